"""Authors' Python functions as the engine calls them: always with the key as first argument."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from types import UnionType
from typing import Any, TypeAlias, Union, get_args, get_origin, get_type_hints, is_typeddict

from sluice.errors import TopologyError
from sluice.operators.processor import Record
from sluice.values import contracts
from sluice.values.function_wrappers import DecoderWithHeaders, WithHeaders, WithoutKey

Function: TypeAlias = Callable[..., Any]


def with_key(
    where: str,
    function: Any,
    *arguments: str,
    value_type: Any = Any,
    may_yield: bool = False,
    may_be_async: bool = False,
) -> Function:
    """Return `function` in a form that is always called with the key as the first argument.

    `function` takes `arguments`, or the key and then `arguments`. The last of these is the value.
    Raises TopologyError if the function takes other arguments, is async without `may_be_async`, or
    is a generator without `may_yield`. Raises TopologyError, too, if the function declares the
    value as a Struct other than `value_type`, which is None for plain JSON data.
    """
    allowed = {"may_yield": may_yield, "may_be_async": may_be_async}
    if _accepts(where, function, arguments, **allowed):
        require_value_type(where, function, len(arguments) - 1, value_type)
        return WithoutKey(function)
    if _accepts(where, function, ("key", *arguments), **allowed):
        require_value_type(where, function, len(arguments), value_type)
        return function  # type: ignore[no-any-return]
    taken = ", ".join(arguments)
    raise TopologyError(
        f"{where}: {_signature(function)} must take ({taken}) or (key, {taken}).",
        next_step="Change its parameters.",
    )


def partitioner(where: str, function: Any) -> Function:
    """Return an output's partition function, which may also take headers after key and value."""
    where = f"{where}: partition"
    taken = ("key", "value", "headers")
    if not any(_accepts(where, function, taken[start:stop]) for start, stop in ((1, 2), (0, 2))):
        if _accepts(where, function, taken):
            return WithHeaders(function)
        raise TopologyError(
            f"{where}: {_signature(function)} must take (value) or (key, value), or "
            "(key, value, headers).",
            next_step="Change its parameters.",
        )
    return with_key(where, function, "value")


def decoder(where: str, function: Any) -> Function:
    """Return the decoder of a source's values, which may also take headers after the bytes."""
    if _accepts(where, function, ("data",)):
        return function  # type: ignore[no-any-return]
    if _accepts(where, function, ("data", "headers")):
        return DecoderWithHeaders(function)
    raise TopologyError(
        f"{where}: {_signature(function)} must take (data) or (data, headers).",
        next_step="Change its parameters.",
    )


def require_callable(
    where: str, function: Any, *arguments: str, may_be_async: bool = False
) -> None:
    """Raise TopologyError if `function` does not take these arguments, is async, or is a generator.

    With `may_be_async`, an async function is allowed.
    """
    if not _accepts(where, function, arguments, may_be_async=may_be_async):
        raise TopologyError(
            f"{where}: {_signature(function)} must take ({', '.join(arguments)}).",
            next_step="Change its parameters.",
        )


def require_value_type(where: str, function: Any, position: int, value_type: Any) -> None:
    """Raise TopologyError if the parameter at `position` declares a Struct other than `value_type`.

    A declared `Record` is compared by the type of its values. Without declared types, nothing is
    checked.
    """
    struct = _value_in(declared_type(function, position))
    # The values of a TypedDict are dicts, so any TypedDict with the same fields fits.
    is_contract = contracts.is_class_with_fields(struct) and not is_typeddict(struct)
    if value_type is Any or struct is Record or not is_contract:
        return
    if value_type is None or not (isinstance(value_type, type) and issubclass(value_type, struct)):
        name = _parameter(function, position)
        if value_type is None:
            values = "plain JSON data"
            next_step = (
                f"Declare it as Any and read its fields as {name}['field'], or make the values "
                f"first: map_values(function, returns={struct.__name__})."
            )
        else:
            values = contracts.name_of(value_type)
            next_step = f"Declare it as {values}."
        raise TopologyError(
            f"{where}: {name} is declared as {struct.__name__}, but the values are {values}.",
            next_step=next_step,
        )


def declared_type(function: Any, position: int) -> Any:
    """Return the type of the parameter at `position`; None if the function does not declare one."""
    try:
        return get_type_hints(function).get(_parameter(function, position))
    except (TypeError, ValueError, NameError, IndexError):
        return None


def _parameter(function: Any, position: int) -> str:
    return list(inspect.signature(function).parameters)[position]


def _value_in(declared: Any) -> Any:
    """Return V for `Record[V]`, `Record[V, K]` and `V | None`; any other type unchanged."""
    if get_origin(declared) is Record:
        declared = get_args(declared)[0]
    present = [kind for kind in get_args(declared) if kind is not type(None)]
    if get_origin(declared) in (Union, UnionType) and len(present) == 1:
        return present[0]
    return declared


def _accepts(
    where: str,
    function: Any,
    arguments: tuple[str, ...],
    *,
    may_yield: bool = False,
    may_be_async: bool = False,
) -> bool:
    if not callable(function):
        given = f"{type(function).__name__}: {function!r}"
        advice = f"Pass a function without parameters: lambda: {function!r}."
        if arguments:
            advice = "Pass the function itself, not its result."
        raise TopologyError(
            f"{where}: expected a function of ({', '.join(arguments)}), got {given}.",
            next_step=advice,
        )
    # An instance of a class with `__call__` may be async or a generator, too.
    called = function if inspect.isroutine(function) else getattr(function, "__call__", function)  # noqa: B004
    for code in (function, called):
        if inspect.iscoroutinefunction(code) and not may_be_async:
            raise TopologyError(
                f"{where}: {_name(function)} is async.",
                next_step="Define it without async, or pass it to call(...), which awaits it.",
            )
        if inspect.isasyncgenfunction(code):
            raise TopologyError(
                f"{where}: {_name(function)} is an async generator.",
                next_step="Return the result instead of yielding it.",
            )
        if inspect.isgeneratorfunction(code) and not may_yield:
            raise TopologyError(
                f"{where}: {_name(function)} is a generator, "
                "whose code does not run when it is called.",
                next_step="Return the result instead of yielding it.",
            )
    try:
        inspect.signature(function).bind(*arguments)
    except TypeError:
        return False
    except ValueError:
        # Some built-in functions have no signature, so their arguments cannot be checked.
        return True
    return True


def _signature(function: Function) -> str:
    return f"{_name(function)}{inspect.signature(function)}"


def _name(function: Function) -> str:
    return getattr(function, "__name__", repr(function))
