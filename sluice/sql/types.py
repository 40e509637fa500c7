"""The types of numbers in Spark SQL: their names, their digits, and their common types."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TypeAlias

from sqlglot import exp

from sluice.sql.dialect import text_of
from sluice.values.sql_types import MOST_DIGITS, canonical, parts_of, precision_and_scale

Types: TypeAlias = Mapping[str, str]
"""Column → its Spark SQL type; an empty text if the type is unknown."""

VOID = "VOID"
"""The type of NULL."""
PLAIN_SCALE = 6
"""The largest scale of decimals that Spark and Arrow always write without an exponent."""
_INTEGERS = {"INT": (10, 0), "BIGINT": (20, 0)}
_FEWEST_DECIMALS = 6
"""If a result has more digits than a decimal can have, Spark keeps at least this many digits after
the point."""


def holds_void(kind: str) -> bool:
    """Return whether a type is the type of NULL or contains it, as the type of `array()` does."""
    return kind == VOID or any(map(holds_void, parts_of(kind)))


def is_integer(kind: str) -> bool:
    return kind in _INTEGERS


def is_decimal(kind: str) -> bool:
    return kind.startswith("DECIMAL")


def is_exact(kind: str) -> bool:
    """Return whether numbers of this type have exact arithmetic."""
    return is_integer(kind) or is_decimal(kind)


def is_number(kind: str) -> bool:
    return is_exact(kind) or kind == "DOUBLE"


def digits(kind: str) -> tuple[int, int]:
    """Return precision and scale of an exact number."""
    return _INTEGERS.get(kind) or precision_and_scale(kind)


def decimal(precision: int, scale: int) -> str:
    """Return Spark's decimal type with these digits.

    If there are too many digits, Spark leaves out some after the point.
    """
    if precision > MOST_DIGITS:
        scale = max(MOST_DIGITS - (precision - scale), min(scale, _FEWEST_DECIMALS))
        precision = MOST_DIGITS
    return f"DECIMAL({precision},{scale})"


def wide_decimal(kinds: Iterable[tuple[int, int]]) -> tuple[int, int]:
    """Return precision and scale of a decimal that holds all values of these decimals."""
    whole_digits = decimals = 0
    for precision, scale in kinds:
        whole_digits = max(whole_digits, precision - scale)
        decimals = max(decimals, scale)
    return whole_digits + decimals, decimals


def known_types(kinds: Iterable[str]) -> list[str]:
    """Return the different types, but not VOID, because NULL can be converted to all types."""
    return [kind for kind in dict.fromkeys(kinds) if kind != VOID]


def common_type(kinds: Iterable[str]) -> str:
    """Return the type to which Spark converts values of these types.

    Return an empty text if the type is unknown, or if the conversion can fail.
    """
    different = known_types(kinds)
    if not different:
        return VOID
    if len(different) == 1:
        return different[0]
    # Spark would cast a text to a number, which can fail.
    if not all(map(is_number, different)):
        return ""
    if "DOUBLE" in different:
        return "DOUBLE"
    if all(map(is_integer, different)):
        return "BIGINT"
    precision, scale = wide_decimal(map(digits, different))
    if precision <= MOST_DIGITS:
        return f"DECIMAL({precision},{scale})"
    return ""


def declared(tree: exp.DataType) -> str:
    """Return the type that a CAST names, in the form of contracts."""
    kind = canonical(text_of(tree))
    if is_decimal(kind):
        return decimal(*precision_and_scale(kind))
    return kind
