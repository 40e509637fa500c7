"""Turns columns of numbers into integers, to add up and compare windows exactly."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from decimal import Context, Decimal
from typing import Any

import numpy as np
import pyarrow as pa

from sluice.operators.aggregation.window_ranges import WindowRanges
from sluice.support.arrays import Integers, Mask

_EXACT = Context(prec=100)
_PLAIN_EXPONENTS = range(-6, 1)
"""The exponents of Decimals that are always written without an exponent, such as 1.50, not 1E+3."""
_LARGEST_DOUBLE_SUM = 1e300
"""If the absolute values of a batch's doubles add up to at most this number, the sum of any of
these doubles fits a double."""
_DOUBLE_BITS = 53
_WIDEST = 200
"""The binary exponents of a batch's doubles may differ by at most this number, so that their exact
sums stay short."""


class NumbersTooLargeError(Exception):
    """A number or a sum may be too large for 64 bits, 38 digits or a double.

    The caller must add up the records one by one.
    """


@dataclass(frozen=True)
class NumberColumn:
    """Numbers, and a mask of those that are not null.

    Decimals are given as integers, in units of 10 to the power `exponent`. Doubles are given as
    integers of any size, in units of 2 to the power `exponent`.
    """

    is_given: Mask
    numbers: Integers
    exponent: int | None = None

    def counts(self, windows: WindowRanges) -> Integers:
        """Return, for each window, the number of its values that are not null."""
        return count_given(self.is_given, windows)


def given(column: Sequence[Any]) -> Mask:
    """Return a mask of the values that are not null."""
    return np.array([value is not None for value in column], np.bool_)


def count_given(is_given: Mask, windows: WindowRanges) -> Integers:
    """Return, for each window, the number of its values for which the mask is true."""
    if is_given.all():
        return windows.behind - windows.first
    return windows.over_ranges(np.add, is_given.astype(np.int64))


def integer_column(column: Sequence[int | None]) -> NumberColumn:
    numbers = np.array([value or 0 for value in column], np.int64)
    return NumberColumn(given(column), numbers)


def decimal_column(column: Sequence[Decimal | None]) -> NumberColumn:
    """Return decimals as integers.

    Raises NumbersTooLargeError if the decimals do not all have the same number of decimal places,
    if they have too many places, or if an integer is too large.
    """
    exponents = {int(value.as_tuple().exponent) for value in column if value is not None}
    exponent = exponents.pop() if exponents else 0
    if exponents or exponent not in _PLAIN_EXPONENTS:
        raise NumbersTooLargeError
    numbers = [0 if value is None else int(value.scaleb(-exponent, _EXACT)) for value in column]
    try:
        return NumberColumn(given(column), np.array(numbers, np.int64), exponent)
    except OverflowError:
        raise NumbersTooLargeError from None


def double_column(column: Sequence[float | None]) -> tuple[NumberColumn, int]:
    """Return doubles as integers of any size, and the exponent of 2 that is their unit.

    Raises NumbersTooLargeError if their sum may be larger than any double, or if their sizes differ
    too much.
    """
    doubles = np.array([value or 0.0 for value in column], np.float64)
    with np.errstate(over="ignore"):
        if np.abs(doubles).sum() > _LARGEST_DOUBLE_SUM:
            raise NumbersTooLargeError
    fractions, exponents = np.frexp(doubles)
    exponents -= _DOUBLE_BITS
    sizes = exponents[doubles != 0]
    least = int(sizes.min()) if len(sizes) else 0
    if len(sizes) and int(sizes.max()) - least > _WIDEST:
        raise NumbersTooLargeError
    mantissas = np.ldexp(fractions, _DOUBLE_BITS).astype(np.int64).tolist()
    shifts = np.maximum(exponents - least, 0).tolist()
    numbers = [mantissa << shift for mantissa, shift in zip(mantissas, shifts, strict=True)]
    return NumberColumn(given(column), np.array(numbers, object)), least


@dataclass(frozen=True)
class WindowNumbers:
    """One number per window, as an integer in units of 10 to the power `exponent`."""

    counts: Integers
    """The number of values of each window. The result of a window without values is null."""
    numbers: Integers
    exponent: int | None

    def texts(self) -> pa.Array:
        """Return the numbers as JSON, or null."""
        is_null = self.counts == 0
        if not self.exponent:
            return pa.array(self.numbers, mask=is_null).cast(pa.string())
        texts = [str(_decimal(number, self.exponent)) for number in self.numbers.tolist()]
        return pa.array(texts, pa.string(), mask=is_null)

    def values(self, chosen: Integers, without_values: Any) -> list[Any]:
        """Return the chosen windows' numbers; `without_values` for a window without values."""
        numbers: list[Any] = self.numbers[chosen].tolist()
        if self.exponent is not None:
            numbers = [_decimal(number, self.exponent) for number in numbers]
        for window in np.flatnonzero(self.counts[chosen] == 0).tolist():
            numbers[window] = without_values
        return numbers


def _decimal(number: int, exponent: int) -> Decimal:
    return Decimal(number).scaleb(exponent)
