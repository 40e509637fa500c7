"""What an author hands over, looked at while the pipeline is built: functions, choices, and what belongs together."""

from __future__ import annotations

import inspect
from typing import Any, get_args

from sluice.errors import TopologyError


def callable_with(where: str, function: Any, *arguments: str) -> None:
    """TopologyError unless `function` can be called with so many arguments, which are named for the message."""
    called = f"({', '.join(arguments)})"
    if not callable(function):
        raise TopologyError(f"{where}: {function!r} is no function.", next_step=f"It is called with {called}.")
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):
        return  # of some that are built in nobody knows
    try:
        signature.bind(*arguments)
    except TypeError:
        name = getattr(function, "__name__", repr(function))
        raise TopologyError(
            f"{where}: {name}{signature} cannot be called with {called}.",
            next_step=f"It is given {' and '.join(arguments) or 'nothing'}: change its parameters.",
        ) from None


def choice(where: str, name: str, value: Any, kind: Any) -> None:
    """TopologyError unless `value` is one of those of a Literal."""
    if value not in (known := get_args(kind)):
        raise TopologyError(
            f"{where}: there is no {name}={value!r}.", next_step=f"Choose {', '.join(map(repr, known))}."
        )


def instance(where: str, value: Any, kinds: type | tuple[type, ...], need: str) -> None:
    """TopologyError unless `value` is of one of these classes; `need` says what to write."""
    if not isinstance(value, kinds):
        raise TopologyError(f"{where}: {value!r} will not do.", next_step=need)


def at_least(where: str, name: str, value: int | None, least: int) -> None:
    """TopologyError for a number below `least`."""
    if value is not None and value < least:
        raise TopologyError(f"{where}: {name} is {value}; it must be at least {least}.")
