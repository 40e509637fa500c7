"""Aggregate functions over many windows at once: counts, and sums, minima and maxima of integers and Decimals.

The results do not depend on the order of the records, and no record can fail. They equal the results of `Functions`,
which adds one record after the other.
"""

from __future__ import annotations

import operator
from collections.abc import Sequence
from dataclasses import dataclass
from decimal import Context, Decimal
from typing import Any, Protocol, Self

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from sluice.operators.aggregation.accumulators import Accumulator, Count, DecimalSum, Extreme, Sum
from sluice.operators.aggregation.calculation import Calculation, Functions
from sluice.operators.aggregation.window_ranges import Mask, Numbers, WindowRanges

_LARGEST = 1 << 62
_EXACT = Context(prec=100)


_LARGEST_HELD = 36
"""A Decimal sum in the state must be less than 10 to this power. Even two such sums (if sessions
merge) and the batch's records then have at most 38 digits together."""
_PLAIN_EXPONENTS = range(-6, 1)
"""The exponents of Decimals that are always written without an exponent, such as 1.50, not 1E+3."""


class NumbersTooLargeError(Exception):
    """A number may not fit 64 bits, or a sum 38 digits. Records must be added up one by one."""


@dataclass(frozen=True)
class Arguments:
    """The arguments of one function for each record: numbers, and a mask of the arguments that are not null.

    `numbers` is None if the function only counts. Decimals are integers, in units of 10 to the power `exponent`.
    """

    is_given: Mask
    numbers: Numbers | None
    exponent: int | None = None


class Aggregated(Protocol):
    """The aggregates of one function, one for each window."""

    def results(self) -> pa.Array:
        """The results as JSON, or null."""

    def accumulators(self, chosen: Numbers) -> list[Any]:
        """The accumulators of the chosen windows, in the form that the function's `Accumulator` uses."""


@dataclass(frozen=True)
class Counted(Aggregated):
    counts: Numbers

    def results(self) -> pa.Array:
        return pa.array(self.counts).cast(pa.string())

    def accumulators(self, chosen: Numbers) -> list[Any]:
        counts: list[Any] = self.counts[chosen].tolist()
        return counts


@dataclass(frozen=True)
class Summed(Aggregated):
    counts: Numbers
    sums: Numbers
    exponent: int | None

    def results(self) -> pa.Array:
        return _texts(self.sums, self.counts == 0, self.exponent)

    def accumulators(self, chosen: Numbers) -> list[Any]:
        sums: list[Any] = self.sums[chosen].tolist()
        if self.exponent is not None:
            # A sum of no values is 0 without decimal places.
            given = zip(sums, self.counts[chosen].tolist(), strict=True)
            sums = [_decimal(number, self.exponent) if count else Decimal(0) for number, count in given]
        return list(zip(self.counts[chosen].tolist(), sums, strict=True))


@dataclass(frozen=True)
class Extremes(Aggregated):
    counts: Numbers
    extremes: Numbers
    exponent: int | None

    def results(self) -> pa.Array:
        return _texts(self.extremes, self.counts == 0, self.exponent)

    def accumulators(self, chosen: Numbers) -> list[Any]:
        given = zip(self.extremes[chosen].tolist(), self.counts[chosen].tolist(), strict=True)
        exponent = self.exponent
        if exponent is None:
            return [number if count else None for number, count in given]
        return [_decimal(number, exponent) if count else None for number, count in given]


def _texts(numbers: Numbers, is_null: Mask, exponent: int | None) -> pa.Array:
    """The numbers as text, in units of 10 to the power `exponent`."""
    if not exponent:
        return pa.array(numbers, mask=is_null).cast(pa.string())
    texts = [str(_decimal(number, exponent)) for number in numbers.tolist()]
    return pa.array(texts, pa.string(), mask=is_null)


def _decimal(number: int, exponent: int) -> Decimal:
    return Decimal(number).scaleb(exponent)


@dataclass(frozen=True)
class Aggregates:
    """The aggregates of all functions, one for each window."""

    functions: Functions
    of_functions: tuple[Aggregated, ...]

    def results(self) -> pa.Array:
        """Each window's result, as `Functions.result` writes it."""
        texts = [pc.fill_null(each.results(), "null") for each in self.of_functions]
        if self.functions.scalar:
            return texts[0]
        names = [msgspec.json.encode(name).decode() + ":" for name in self.functions.fields] or [""] * len(texts)
        begin, end = "{}" if self.functions.fields else "[]"
        parts: list[Any] = []
        for name, text in zip(names, texts, strict=True):
            parts += [("," if parts else begin) + name, text]
        return pc.binary_join_element_wise(*parts, end, "")

    def aggregates(self, chosen: Numbers) -> list[tuple[Any, ...]]:
        """The aggregates of the chosen windows, in the form that `Functions` uses."""
        return list(zip(*(each.accumulators(chosen) for each in self.of_functions), strict=True))


@dataclass(frozen=True)
class ColumnFunctions:
    """The functions of an aggregation, over columns."""

    functions: Functions

    @classmethod
    def of(cls, calculation: Calculation) -> Self | None:
        """The functions of a calculation; None if it has a function that needs one record after the other."""
        if not isinstance(calculation, Functions):
            return None
        is_columnar = [_is_columnar(accumulator) for accumulator in calculation.accumulators]
        return cls(calculation) if all(is_columnar) else None

    def aggregates(self, values: pa.Array, windows: WindowRanges) -> Aggregates:
        """The aggregates of the windows. `values`: the argument of `Functions.read` for each of the sorted records.

        Raises NumbersTooLargeError if a sum may not fit 64 bits.
        """
        accumulators = self.functions.accumulators
        arguments = self._arguments(values)
        of_functions = (_aggregated(each, of, windows) for each, of in zip(accumulators, arguments, strict=True))
        return Aggregates(self.functions, tuple(of_functions))

    def merge(self, key: str, held: Any, aggregate: Any) -> Any:
        """Combine a window's aggregate `held` in the state with the `aggregate` of its new records.

        Raises NumbersTooLargeError if a sum has so many digits that the order of additions could matter.
        """
        for accumulator, part in zip(self.functions.accumulators, held, strict=True):
            if isinstance(accumulator, DecimalSum) and part[1].adjusted() >= _LARGEST_HELD:
                raise NumbersTooLargeError
        return self.functions.merge(key, held, aggregate)

    def _arguments(self, values: pa.Array) -> list[Arguments]:
        accumulators = self.functions.accumulators
        if all(isinstance(each, Count) and each.rows for each in accumulators):
            return [Arguments(np.ones(len(values), np.bool_), None)] * len(accumulators)
        read = self.functions.read
        columns = zip(*(read(value) for value in values.to_pylist()), strict=True)
        return [_argument(each, column) for each, column in zip(accumulators, columns, strict=True)]


def _is_columnar(accumulator: Accumulator) -> bool:
    if isinstance(accumulator, Extreme):
        return accumulator.kind in (int | None, Decimal | None)
    # `isinstance` would accept subclasses, too: averages, whose results are no sums, and
    # `BigintSum`, which can fail.
    return type(accumulator) in (Count, Sum, DecimalSum)


def _argument(accumulator: Accumulator, column: Sequence[Any]) -> Arguments:
    is_given = np.array([value is not None for value in column], np.bool_)
    if isinstance(accumulator, Count):
        return Arguments(is_given | accumulator.rows, None)
    if isinstance(accumulator, DecimalSum) or accumulator.kind == Decimal | None:
        return _decimal_argument(is_given, column)
    return Arguments(is_given, np.array([value or 0 for value in column], np.int64))


def _decimal_argument(is_given: Mask, column: Sequence[Decimal | None]) -> Arguments:
    """Decimals as integers. Raises NumbersTooLargeError if they have different numbers of decimal places."""
    exponents = {int(value.as_tuple().exponent) for value in column if value is not None}
    exponent = exponents.pop() if exponents else 0
    if exponents or exponent not in _PLAIN_EXPONENTS:
        raise NumbersTooLargeError
    numbers = [0 if value is None else int(value.scaleb(-exponent, _EXACT)) for value in column]
    try:
        return Arguments(is_given, np.array(numbers, np.int64), exponent)
    except OverflowError:
        raise NumbersTooLargeError from None


def _aggregated(accumulator: Accumulator, arguments: Arguments, windows: WindowRanges) -> Aggregated:
    is_given, numbers, exponent = arguments.is_given, arguments.numbers, arguments.exponent
    if is_given.all():
        counts = windows.behind - windows.first
    else:
        counts = windows.over_ranges(np.add, is_given.astype(np.int64))
    if numbers is None:
        return Counted(counts)
    if isinstance(accumulator, Extreme):
        least, most = np.iinfo(np.int64).min, np.iinfo(np.int64).max
        if accumulator.better is operator.lt:
            extremes = windows.over_ranges(np.minimum, np.where(is_given, numbers, most))
        else:
            extremes = windows.over_ranges(np.maximum, np.where(is_given, numbers, least))
        return Extremes(counts, extremes, exponent)
    largest = max(abs(int(numbers.max())), abs(int(numbers.min())))
    if largest * len(numbers) > _LARGEST:
        raise NumbersTooLargeError
    return Summed(counts, windows.over_ranges(np.add, numbers), exponent)
