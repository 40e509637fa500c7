"""Checks of the arguments that an author gives to a pipeline's methods."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, get_args
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from sluice.errors import TopologyError


def require_choice(where: str, name: str, value: Any, literal: Any) -> None:
    """Raise TopologyError unless `value` is one of the choices of `literal`, a Literal type."""
    if value not in (choices := get_args(literal)):
        raise TopologyError(
            f"{where}: unknown {name}={value!r}.",
            next_step=f"Choose {', '.join(map(repr, choices))}.",
        )


def require_instance(where: str, value: Any, types: type | tuple[type, ...], expected: str) -> None:
    """Raise TopologyError unless `value` is an instance of one of the types."""
    # For Python, True is an int, but an author who passes True has made a mistake.
    if not isinstance(value, types) or (types is int and isinstance(value, bool)):
        raise TopologyError(f"{where}: expected {expected}, got {type(value).__name__}: {value!r}.")


def require_at_least(where: str, name: str, value: int | None, minimum: int) -> None:
    """Raise TopologyError if `value` is below `minimum`; None is allowed."""
    if value is not None and value < minimum:
        raise TopologyError(
            f"{where}: {name} is {value}, but must be at least {minimum}.",
            next_step=f"Give {name} a larger value.",
        )


def require_zone(where: str, zone: str) -> None:
    """Raise TopologyError unless `zone` is the name of a time zone."""
    try:
        ZoneInfo(zone)
    except (ZoneInfoNotFoundError, ValueError, TypeError, OSError):
        raise TopologyError(
            f"{where}: {zone!r} is not the name of a time zone.",
            next_step='Write for example "Europe/Berlin".',
        ) from None


def require_batch_limit(where: str, name: str, value: float) -> float:
    """Return the limit if it is a number of records, or a share of a batch's records.

    Raise TopologyError otherwise.
    """
    # True is not a number of records, although a bool is an int in Python.
    is_count = isinstance(value, int) and not isinstance(value, bool) and value >= 0
    if not (is_count or (isinstance(value, float) and 0 <= value <= 1)):
        raise TopologyError(
            f"{where}: {name}={value!r} must be a number of records, or a share from 0.0 to 1.0.",
            next_step=f"Write for example {name}=1000, or {name}=0.1 for a tenth.",
        )
    return value


def first_twins(names: Iterable[str], folded: Callable[[str], str]) -> tuple[str, str] | None:
    """Return two different names that `folded` maps to the same text; None if no two names do."""
    first_names: dict[str, str] = {}
    for name in names:
        other = first_names.setdefault(folded(name), name)
        if other != name:
            return other, name
    return None
