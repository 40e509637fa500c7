"""Combines two partial results of `sum`, `min` or `max`, either of which may be null.

A partial result without values is null. The result is then the other partial result.
"""

from __future__ import annotations

from decimal import Context
from typing import Any

_EXACT = Context(prec=700)
"""Enough digits to add doubles exactly: as JSON, a double has up to 309 digits before the point,
and up to 324 after it."""


def add_up(first: Any, second: Any) -> Any:
    """Return the exact sum of two integers or Decimals."""
    if first is None:
        return second
    if second is None:
        return first
    if type(first) is int and type(second) is int:
        return first + second
    return _EXACT.add(first, second)


def smaller(first: Any, second: Any) -> Any:
    """Return the smaller of two values; the first if they are equal."""
    if first is None or (second is not None and second < first):
        return second
    return first


def larger(first: Any, second: Any) -> Any:
    """Return the larger of two values; the first if they are equal."""
    if first is None or (second is not None and second > first):
        return second
    return first
