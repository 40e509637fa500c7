"""Arithmetic with Arrow arrays, with the same results and errors as in Spark."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from sluice.sql.arrow_types import arrow_type
from sluice.sql.arrow_values import (
    Result,
    Value,
    any_of,
    array_of,
    map_rows,
    mask_of,
    valid_rows,
)
from sluice.sql.types import is_decimal
from sluice.values.sql_types import precision_and_scale

_LEAST = {"INT": -(2**31), "BIGINT": -(2**63)}
_CHECKED: dict[
    str, tuple[Callable[..., Value], Callable[..., Value], Callable[[Any, Any], Any]]
] = {
    "+": (pc.add_checked, pc.add, operator.add),
    "-": (pc.subtract_checked, pc.subtract, operator.sub),
    "*": (pc.multiply_checked, pc.multiply, operator.mul),
}


def calculate(sign: str, left: Value, right: Value, kind: str, count: int) -> Result:
    """Return a sum, difference or product. Rows with integers that are too large fail."""
    checked, plain, exact = _CHECKED[sign]
    wanted = arrow_type(kind)
    if kind == "DOUBLE" or is_decimal(kind):
        return Result(plain(left, right))
    try:
        return Result(checked(left, right))
    # Arrow's error does not name the row that overflows, so compute row by row.
    except pa.ArrowInvalid:
        return map_rows(lambda a, b: _in_range(exact(a, b), kind), [left, right], wanted, count)


def _in_range(number: int, kind: str) -> int:
    least = _LEAST[kind]
    if not least <= number < -least:
        raise OverflowError
    return number


def divide(left: Value, right: Value, count: int) -> Result:
    """Return a quotient of doubles."""
    return _without_zero(np.divide, left, right, "DOUBLE", count)


def divide_whole(left: Value, right: Value, count: int) -> Result:
    """Return a quotient of whole numbers, rounded towards zero."""
    result = _without_zero(_quotient, left, right, "BIGINT", count)
    overflows = np.asarray(
        pc.fill_null(
            pc.and_(pc.equal(array_of(left, count), _LEAST["BIGINT"]), pc.equal(right, -1)),
            False,
        )
    ).astype(bool)
    if not overflows.any():
        return result
    values = pc.if_else(pa.array(overflows), pa.scalar(None, pa.int64()), result.values)
    return Result(values, any_of(result.failed, overflows))


def _quotient(left: Any, right: Any) -> Any:
    # NumPy rounds a quotient down, but SQL rounds it towards zero. For the divisor -1, the quotient
    # is `-left`, because NumPy's division of the least integer by -1 would overflow.
    quotient, rest = np.divmod(left, np.where(right == -1, 1, right))
    return np.where(right == -1, -left, quotient + ((rest != 0) & ((left < 0) != (right < 0))))


def remainder(left: Value, right: Value, kind: str, count: int) -> Result:
    """Return a remainder, with the sign of the dividend."""
    function = np.fmod if kind == "DOUBLE" else _remainder
    return _without_zero(function, left, right, kind, count)


def _remainder(left: Any, right: Any) -> Any:
    return np.fmod(left, np.where(right == -1, 1, right))


def modulus(left: Value, right: Value, kind: str, count: int) -> Result:
    """Return a remainder that is not negative if the divisor is positive."""
    return _without_zero(_positive_remainder, left, right, kind, count)


def _positive_remainder(left: Any, right: Any) -> Any:
    rest = _remainder(left, right)
    return np.where(rest < 0, _remainder(rest + right, right), rest)


def _without_zero(
    function: Callable[..., Any],
    left: Value,
    right: Value,
    kind: str,
    count: int,
) -> Result:
    """Return the results of a division. Rows with the divisor 0 fail."""
    is_known = valid_rows(left, count) & valid_rows(right, count)
    dividends, divisors = _filled(left, count), _filled(right, count)
    failed = is_known & (divisors == 0)
    with np.errstate(all="ignore"):
        results = function(dividends, np.where(divisors == 0, 1, divisors))
    values = pa.array(results, arrow_type(kind), mask=~is_known | failed)
    return Result.with_failures(values, failed)


def _filled(value: Value, count: int) -> npt.NDArray[Any]:
    """Return the number for each of `count` rows, with 0 in place of null."""
    filled: npt.NDArray[Any] = pc.fill_null(array_of(value, count), 0).to_numpy(
        zero_copy_only=False
    )
    return filled


def negate(value: Value, kind: str, count: int) -> Result:
    """Return the negative of a number."""
    return _unsigned(pc.negate, value, kind, count)


def absolute_value(value: Value, kind: str, count: int) -> Result:
    """Return the absolute value of a number."""
    return _unsigned(pc.abs, value, kind, count)


def _unsigned(function: Callable[..., Value], value: Value, kind: str, count: int) -> Result:
    results = function(value)
    if kind not in _LEAST:
        return Result(results)
    least = mask_of(pc.equal(value, _LEAST[kind]), count)
    if not least.any():
        return Result(results)
    return Result(
        pc.if_else(pa.array(least), pa.scalar(None, arrow_type(kind)), array_of(results, count)),
        least,
    )


def round_decimals(value: Value, places: int, kind: str, count: int) -> Result:
    """Round decimals to a number of places. Half-way values are rounded away from zero."""
    values = array_of(value, count)
    wide = values.cast(pa.decimal128(38, values.type.scale))
    return Result(pc.round(wide, places, "half_towards_infinity").cast(arrow_type(kind)))


def round_to_whole(
    function: Callable[[Value], Value],
    value: Value,
    of: str,
    kind: str,
    count: int,
) -> Result:
    """Round numbers up or down to whole numbers."""
    if of == "INT" or of == kind == "BIGINT":
        return Result(value.cast(pa.int64()))
    values = array_of(value, count)
    if is_decimal(of):
        wide = values.cast(pa.decimal128(38, precision_and_scale(of)[1]))
        return Result(function(wide).cast(arrow_type(kind)))
    return Result(java_longs(function(values)))


def java_longs(values: pa.Array) -> pa.Array:
    """Convert doubles to longs like Java: NaN to 0, numbers out of range to the nearest long."""
    numbers = np.nan_to_num(
        pc.fill_null(values, 0.0).to_numpy(zero_copy_only=False),
        nan=0.0,
        posinf=_MOST,
        neginf=-_MOST,
    )
    is_large = numbers >= _MOST
    integers = np.where(is_large, 0, np.maximum(numbers, -_MOST)).astype(np.int64)
    return pa.array(
        np.where(is_large, 2**63 - 1, integers),
        pa.int64(),
        mask=~valid_rows(values, len(values)),
    )


_MOST = 2.0**63
