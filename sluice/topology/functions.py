"""Authors' Python functions, as the engine calls them: always with the key as the first argument."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any, TypeAlias

from sluice.errors import TopologyError
from sluice.values.wrappers import WithoutKey

Function: TypeAlias = Callable[..., Any]


def with_key(where: str, function: Any, *arguments: str) -> Function:
    """Adapt `function`, which takes `arguments` with or without the key before them, to be called with the key.

    Raises TopologyError if it accepts neither.
    """
    if _accepts(where, function, arguments):
        return WithoutKey(function)
    if _accepts(where, function, ("key", *arguments)):
        return function  # type: ignore[no-any-return]
    taken = ", ".join(arguments)
    raise TopologyError(
        f"{where}: {_signature(function)} must take ({taken}) or (key, {taken}).", next_step="Change its parameters."
    )


def require_callable(where: str, function: Any, *arguments: str) -> None:
    """Raise TopologyError unless `function` can be called with these arguments."""
    if not _accepts(where, function, arguments):
        raise TopologyError(
            f"{where}: {_signature(function)} must take ({', '.join(arguments)}).", next_step="Change its parameters."
        )


def _accepts(where: str, function: Any, arguments: tuple[str, ...]) -> bool:
    if not callable(function):
        raise TopologyError(
            f"{where}: expected a function of ({', '.join(arguments)}), got {type(function).__name__}: {function!r}."
        )
    try:
        inspect.signature(function).bind(*arguments)
    except TypeError:
        return False
    except ValueError:
        return True  # some built-in functions have no signature
    return True


def _signature(function: Function) -> str:
    return f"{getattr(function, '__name__', repr(function))}{inspect.signature(function)}"
