"""Accumulators of counts, sums and averages, which add single values or whole columns."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from decimal import ROUND_HALF_UP, Context, Decimal, Rounded
from typing import Any, Self

import numpy as np
import pyarrow as pa
from typing_extensions import override

from sluice.operators.aggregation.accumulator import (
    Accumulator,
    ListedAccumulators,
    WindowAccumulators,
    WriteResult,
)
from sluice.operators.aggregation.number_columns import (
    NumberColumn,
    NumbersTooLargeError,
    WindowNumbers,
    count_given,
    decimal_column,
    double_column,
    given,
    integer_column,
)
from sluice.operators.aggregation.window_ranges import WindowRanges
from sluice.operators.exact_sums import Exact
from sluice.support.arrays import Integers
from sluice.values.sql_types import AVERAGE_DIGITS, MOST_DIGITS

_SUMS = Context(prec=MOST_DIGITS, rounding=ROUND_HALF_UP, traps=[Rounded])
_MEANS = Context(prec=100, rounding=ROUND_HALF_UP)
_LARGEST = 1 << 62
_LARGEST_HELD_DOUBLE = 1e300
_LARGEST_HELD = 36
"""A Decimal sum in the state must be less than 10 to this power. The sum of two such sums (if
sessions merge) and of the batch's records then has at most 38 digits."""


class Count(Accumulator):
    """`count(argument)`, or `count(*)` if `rows` is set."""

    takes_columns = True

    def __init__(self, rows: bool) -> None:
        super().__init__(int)
        self.rows = rows
        self.needs_argument = not rows

    @override
    def new_accumulator(self) -> int:
        return 0

    @override
    def add(self, accumulator: int, value: Any) -> int:
        if self.rows or value is not None:
            return accumulator + 1
        return accumulator

    @override
    def subtract(self, accumulator: int, value: Any) -> int:
        if self.rows or value is not None:
            return accumulator - 1
        return accumulator

    @override
    def merge(self, earlier: int, later: int) -> int:
        return earlier + later

    @override
    def over_windows(
        self, column: Sequence[Any], windows: WindowRanges, order: Integers | None
    ) -> WindowAccumulators:
        if self.rows:
            return Counts(windows.behind - windows.first)
        return Counts(count_given(given(column), windows))


@dataclass(frozen=True)
class Counts(WindowAccumulators):
    counts: Integers

    def results(self, write: WriteResult) -> pa.Array:
        return pa.array(self.counts).cast(pa.string())

    def accumulators(self, chosen: Integers) -> list[Any]:
        counts: list[Any] = self.counts[chosen].tolist()
        return counts


@dataclass(frozen=True)
class WindowSums(WindowAccumulators):
    """The counts and sums of windows; `zero` is the sum of no values."""

    sums: WindowNumbers
    zero: int | Decimal

    @classmethod
    def of(cls, column: NumberColumn, windows: WindowRanges, zero: int | Decimal) -> Self:
        """Add up a column. Raises NumbersTooLargeError if a sum may not fit 64 bits."""
        numbers = column.numbers
        largest = max(abs(int(numbers.max())), abs(int(numbers.min())))
        if largest * len(numbers) > _LARGEST:
            raise NumbersTooLargeError
        sums = windows.over_ranges(np.add, numbers)
        return cls(WindowNumbers(column.counts(windows), sums, column.exponent), zero)

    def results(self, write: WriteResult) -> pa.Array:
        return self.sums.texts()

    def accumulators(self, chosen: Integers) -> list[Any]:
        sums = self.sums.values(chosen, self.zero)
        return list(zip(self.sums.counts[chosen].tolist(), sums, strict=True))

    def listed(self) -> ListedAccumulators:
        """Return the accumulators for a function whose result is not the sum."""
        return ListedAccumulators(self.accumulators(np.arange(len(self.sums.counts))))


Large = int | str
"""An integer of any size. An integer of more than 64 bits is a text, because MessagePack has no
such integers."""


def _large(number: int) -> Large:
    if -(1 << 63) <= number < 1 << 63:
        return number
    return str(number)


class Sum(Accumulator):
    """The exact sum of integers, with their count, because the sum of no values is null."""

    takes_columns = True

    def __init__(self) -> None:
        super().__init__(tuple[int, Large])

    @override
    def new_accumulator(self) -> tuple[int, Large]:
        return 0, 0

    @override
    def add(self, accumulator: tuple[int, Large], value: int | None) -> tuple[int, Large]:
        if value is None:
            return accumulator
        return accumulator[0] + 1, _large(int(accumulator[1]) + value)

    @override
    def subtract(self, accumulator: tuple[int, Large], value: int | None) -> tuple[int, Large]:
        if value is None:
            return accumulator
        return accumulator[0] - 1, _large(int(accumulator[1]) - value)

    @override
    def merge(self, earlier: tuple[int, Large], later: tuple[int, Large]) -> tuple[int, Large]:
        return earlier[0] + later[0], _large(int(earlier[1]) + int(later[1]))

    @override
    def result(self, accumulator: tuple[int, Large]) -> int | None:
        if accumulator[0]:
            return int(accumulator[1])
        return None

    @override
    def over_windows(
        self, column: Sequence[Any], windows: WindowRanges, order: Integers | None
    ) -> WindowAccumulators:
        return WindowSums.of(integer_column(column), windows, 0)


class BigintSum(Sum):
    """A sum of integers, read as BIGINT: `result` raises OverflowError if the sum does not fit."""

    takes_columns = False

    @override
    def result(self, accumulator: tuple[int, Large]) -> int | None:
        value = super().result(accumulator)
        if value is not None and not -(2**63) <= value < 2**63:
            raise OverflowError(
                f"the sum {value} does not fit BIGINT, the type in which later steps read it"
            )
        return value


class Average(Sum):
    """The mean of integers, as a float."""

    @override
    def result(self, accumulator: tuple[int, Large]) -> Any:
        if accumulator[0]:
            return int(accumulator[1]) / accumulator[0]
        return None

    @override
    def over_windows(
        self, column: Sequence[Any], windows: WindowRanges, order: Integers | None
    ) -> WindowAccumulators:
        return WindowSums.of(integer_column(column), windows, 0).listed()


class ExactSum(Accumulator):
    """The sum of doubles, rounded only in `result`.

    The order of values therefore does not matter.
    """

    takes_columns = True

    def __init__(self) -> None:
        super().__init__(tuple[int, Exact])

    @override
    def new_accumulator(self) -> tuple[int, Exact]:
        return 0, Exact()

    @override
    def add(self, accumulator: tuple[int, Exact], value: float | None) -> tuple[int, Exact]:
        if value is None:
            return accumulator
        return accumulator[0] + 1, accumulator[1].add(value)

    @override
    def subtract(self, accumulator: tuple[int, Exact], value: float | None) -> tuple[int, Exact]:
        if value is None:
            return accumulator
        return accumulator[0] - 1, accumulator[1].subtract(value)

    @override
    def merge(self, earlier: tuple[int, Exact], later: tuple[int, Exact]) -> tuple[int, Exact]:
        return earlier[0] + later[0], earlier[1].merge(later[1])

    @override
    def result(self, accumulator: tuple[int, Exact]) -> float | None:
        if accumulator[0]:
            return float(accumulator[1])
        return None

    @override
    def merge_unordered(
        self, held: tuple[int, Exact], later: tuple[int, Exact]
    ) -> tuple[int, Exact]:
        if abs(float(held[1])) > _LARGEST_HELD_DOUBLE:
            raise NumbersTooLargeError
        return self.merge(held, later)

    @override
    def over_windows(
        self, column: Sequence[Any], windows: WindowRanges, order: Integers | None
    ) -> WindowAccumulators:
        numbers, exponent = double_column(column)
        counts = numbers.counts(windows).tolist()
        sums = windows.over_ranges(np.add, numbers.numbers).tolist()
        pairs = zip(counts, sums, strict=True)
        return ListedAccumulators([(count, Exact(total, exponent)) for count, total in pairs])


class ExactAverage(ExactSum):
    """The mean of doubles, rounded only in `result`."""

    @override
    def result(self, accumulator: tuple[int, Exact]) -> float | None:
        if accumulator[0]:
            return accumulator[1].divided(accumulator[0])
        return None


class DecimalSum(Accumulator):
    """The sum of Decimals, of at most 38 digits as in Spark.

    Raises OverflowError if a sum has more digits.
    """

    takes_columns = True

    def __init__(self) -> None:
        super().__init__(tuple[int, Decimal])

    @override
    def new_accumulator(self) -> tuple[int, Decimal]:
        return 0, Decimal(0)

    @override
    def add(self, accumulator: tuple[int, Decimal], value: Decimal | None) -> tuple[int, Decimal]:
        if value is None:
            return accumulator
        return accumulator[0] + 1, _in_digits(_SUMS.add, accumulator[1], value)

    @override
    def subtract(
        self,
        accumulator: tuple[int, Decimal],
        value: Decimal | None,
    ) -> tuple[int, Decimal]:
        if value is None:
            return accumulator
        return accumulator[0] - 1, _in_digits(_SUMS.subtract, accumulator[1], value)

    @override
    def merge(
        self,
        earlier: tuple[int, Decimal],
        later: tuple[int, Decimal],
    ) -> tuple[int, Decimal]:
        return earlier[0] + later[0], _in_digits(_SUMS.add, earlier[1], later[1])

    @override
    def result(self, accumulator: tuple[int, Decimal]) -> Decimal | None:
        if accumulator[0]:
            return accumulator[1]
        return None

    @override
    def merge_unordered(
        self, held: tuple[int, Decimal], later: tuple[int, Decimal]
    ) -> tuple[int, Decimal]:
        if held[1].adjusted() >= _LARGEST_HELD:
            raise NumbersTooLargeError
        return self.merge(held, later)

    @override
    def over_windows(
        self, column: Sequence[Any], windows: WindowRanges, order: Integers | None
    ) -> WindowAccumulators:
        return WindowSums.of(decimal_column(column), windows, Decimal(0))


class DecimalAverage(DecimalSum):
    """The mean of Decimals, rounded half up to four decimal places more than the values have."""

    @override
    def result(self, accumulator: tuple[int, Decimal]) -> Decimal | None:
        count, total = accumulator
        if not count:
            return None
        places = Decimal((0, (1,), int(total.as_tuple().exponent) - AVERAGE_DIGITS))
        mean = _MEANS.divide(total, Decimal(count)).quantize(places, context=_MEANS)
        return _in_digits(_SUMS.plus, mean)

    @override
    def merge_unordered(
        self, held: tuple[int, Decimal], later: tuple[int, Decimal]
    ) -> tuple[int, Decimal]:
        merged = super().merge_unordered(held, later)
        self.result(merged)
        return merged

    @override
    def over_windows(
        self, column: Sequence[Any], windows: WindowRanges, order: Integers | None
    ) -> WindowAccumulators:
        return WindowSums.of(decimal_column(column), windows, Decimal(0)).listed()


def _in_digits(calculate: Callable[..., Decimal], *numbers: Decimal) -> Decimal:
    """Return the result of a calculation.

    Raises OverflowError if the result has more digits than Spark's decimals.
    """
    try:
        return calculate(*numbers)
    except Rounded:
        raise OverflowError(f"the result has more than {MOST_DIGITS} digits") from None
