"""Aggregate functions over many windows at once.

These are counts, sums, averages, minima and maxima of numbers, and picks. A pick, such as `last` or
`max_by`, is the value of one of a window's records, and depends on their order. The other functions
do not depend on this order. None of the functions can fail for a record. The results equal those of
`Functions`, which adds one record after the other.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from decimal import Context, Decimal
from functools import partial
from typing import Any, Protocol, Self

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from sluice.operators.aggregation.accumulators import (
    Accumulator,
    Average,
    ByOrder,
    Count,
    DecimalAverage,
    DecimalSum,
    ExactAverage,
    ExactSum,
    Extreme,
    First,
    Last,
    Sum,
)
from sluice.operators.aggregation.calculation import Calculation, Functions
from sluice.operators.aggregation.window_ranges import WindowRanges
from sluice.operators.exact_sums import Exact
from sluice.support.arrays import Integers, Mask

_LARGEST = 1 << 62
_LARGEST_DOUBLE = 1e300
"""If the absolute values of a batch's doubles add up to at most this number, every sum of some of
these doubles fits a double."""
_DOUBLE_BITS = 53
_WIDEST = 200
"""The exponents of a batch's doubles may differ by at most this many bits, so that sums have few
digits."""
_EXACT = Context(prec=100)
_LARGEST_HELD = 36
"""A Decimal sum in the state must be less than 10 to this power. So the sum of two such sums (if
sessions merge) and of the batch's records has at most 38 digits."""
_PLAIN_EXPONENTS = range(-6, 1)
"""The exponents of Decimals that are always written without an exponent, such as 1.50, not 1E+3."""


class NumbersTooLargeError(Exception):
    """A number or a sum may be too large for 64 bits, 38 digits or a double.

    Records must be added up one by one.
    """


@dataclass(frozen=True)
class Arguments:
    """One function's arguments for each record: numbers, and a mask of those that are not null.

    `numbers` is None if the function only counts. Decimals are given as integers, in units of 10 to
    the power `exponent`. Doubles are given as integers of any size, in units of 2 to this power.
    """

    is_given: Mask
    numbers: Integers | None
    exponent: int | None = None


class Aggregated(Protocol):
    """The aggregates of one function, one for each window."""

    def results(self) -> pa.Array:
        """Return the results as JSON, or null."""

    def accumulators(self, chosen: Integers) -> list[Any]:
        """Return the chosen windows' accumulators, in the form of the function's `Accumulator`."""


@dataclass(frozen=True)
class Counted(Aggregated):
    counts: Integers

    def results(self) -> pa.Array:
        return pa.array(self.counts).cast(pa.string())

    def accumulators(self, chosen: Integers) -> list[Any]:
        counts: list[Any] = self.counts[chosen].tolist()
        return counts


@dataclass(frozen=True)
class Summed(Aggregated):
    counts: Integers
    sums: Integers
    exponent: int | None

    def results(self) -> pa.Array:
        return _texts(self.sums, self.counts == 0, self.exponent)

    def accumulators(self, chosen: Integers) -> list[Any]:
        sums: list[Any] = self.sums[chosen].tolist()
        if self.exponent is not None:
            # A sum of no values is 0 without decimal places.
            given = zip(sums, self.counts[chosen].tolist(), strict=True)
            sums = [
                _decimal(number, self.exponent) if count else Decimal(0) for number, count in given
            ]
        return list(zip(self.counts[chosen].tolist(), sums, strict=True))


@dataclass(frozen=True)
class ByAccumulator(Aggregated):
    """Aggregates whose results are computed one by one."""

    made: Sequence[Any]
    """The accumulators."""
    result_json: Callable[[Any], str]
    """The result of an accumulator, as JSON."""

    def results(self) -> pa.Array:
        return pa.array([self.result_json(each) for each in self.made], pa.string())

    def accumulators(self, chosen: Integers) -> list[Any]:
        return [self.made[number] for number in chosen.tolist()]


@dataclass(frozen=True)
class Extremes(Aggregated):
    counts: Integers
    extremes: Integers
    exponent: int | None

    def results(self) -> pa.Array:
        return _texts(self.extremes, self.counts == 0, self.exponent)

    def accumulators(self, chosen: Integers) -> list[Any]:
        given = zip(self.extremes[chosen].tolist(), self.counts[chosen].tolist(), strict=True)
        exponent = self.exponent
        if exponent is None:
            return [number if count else None for number, count in given]
        return [_decimal(number, exponent) if count else None for number, count in given]


def _texts(numbers: Integers, is_null: Mask, exponent: int | None) -> pa.Array:
    """Return the numbers as text, in units of 10 to the power `exponent`."""
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
        """Return each window's result, as `Functions.result` writes it."""
        texts = [pc.fill_null(each.results(), "null") for each in self.of_functions]
        if self.functions.scalar:
            return texts[0]
        names = [msgspec.json.encode(name).decode() + ":" for name in self.functions.fields] or [
            ""
        ] * len(texts)
        if self.functions.fields:
            begin, end = "{}"
        else:
            begin, end = "[]"
        parts: list[Any] = []
        for name, text in zip(names, texts, strict=True):
            parts += [("," if parts else begin) + name, text]
        return pc.binary_join_element_wise(*parts, end, "")

    def aggregates(self, chosen: Integers) -> list[tuple[Any, ...]]:
        """Return the aggregates of the chosen windows, in the form that `Functions` uses."""
        return list(zip(*(each.accumulators(chosen) for each in self.of_functions), strict=True))


@dataclass(frozen=True)
class ColumnFunctions:
    """Computes the functions of an aggregation for many windows at once, from columns."""

    functions: Functions

    @classmethod
    def of(cls, calculation: Calculation, *, in_order: bool) -> Self | None:
        """Return the functions of a calculation.

        Return None if it has a function that needs one record after the other.

        `in_order` is true if `aggregates` gets the order of the records, by which functions can
        pick a value.
        """
        if not isinstance(calculation, Functions):
            return None
        for accumulator in calculation.accumulators:
            if not _is_columnar(accumulator) and not (
                in_order and isinstance(accumulator, _PICKING)
            ):
                return None
        return cls(calculation)

    @property
    def picks(self) -> bool:
        """Whether any of the functions picks a value by the order of the records."""
        return any(isinstance(accumulator, _PICKING) for accumulator in self.functions.accumulators)

    def aggregates(
        self, values: pa.Array, windows: WindowRanges, order: Integers | None = None
    ) -> Aggregates:
        """Return the aggregates of the windows.

        `values`: the argument of `Functions.read` for each of the sorted records.

        `order`: numbers that increase in the order of the records, needed if a function picks a
        value by this order. Raises NumbersTooLargeError if a sum may be too large.
        """
        of_functions: list[Aggregated] = []
        for number, column in enumerate(self._arguments(values)):
            accumulator = self.functions.accumulators[number]
            aggregated: Aggregated | list[Any]
            if isinstance(accumulator, _PICKING):
                assert order is not None
                aggregated = _picked(accumulator, column, windows, order)
            else:
                aggregated = _aggregated(accumulator, _argument(accumulator, column), windows)
            if isinstance(aggregated, list):
                aggregated = ByAccumulator(aggregated, partial(self.functions.result_json, number))
            of_functions.append(aggregated)
        return Aggregates(self.functions, tuple(of_functions))

    def merge(self, key: str, held: Any, aggregate: Any) -> Any:
        """Combine a window's aggregate `held` in the state with the `aggregate` of its new records.

        Raises NumbersTooLargeError if a sum has so many digits that the order of additions could
        matter.
        """
        accumulators = self.functions.accumulators
        try:
            for accumulator, part in zip(accumulators, held, strict=True):
                if isinstance(accumulator, DecimalSum) and part[1].adjusted() >= _LARGEST_HELD:
                    raise NumbersTooLargeError
                if isinstance(accumulator, ExactSum) and abs(float(part[1])) > _LARGEST_DOUBLE:
                    raise NumbersTooLargeError
            merged = self.functions.merge(key, held, aggregate)
            for accumulator, part in zip(accumulators, merged, strict=True):
                if isinstance(accumulator, DecimalAverage):
                    accumulator.result(part)
        except OverflowError:
            raise NumbersTooLargeError from None
        return merged

    def _arguments(self, values: pa.Array) -> list[Sequence[Any]]:
        """Return the arguments of each function."""
        accumulators = self.functions.accumulators
        if all(isinstance(each, Count) and each.rows for each in accumulators):
            return [range(len(values))] * len(accumulators)
        read = self.functions.read
        return list(zip(*(read(value) for value in values.to_pylist()), strict=True))


def _is_columnar(accumulator: Accumulator) -> bool:
    if isinstance(accumulator, Extreme):
        return accumulator.kind in (int | None, Decimal | None)
    # `isinstance` would accept `BigintSum`, too, whose result can raise an error.
    return type(accumulator) in (
        Count,
        Sum,
        Average,
        DecimalSum,
        DecimalAverage,
        ExactSum,
        ExactAverage,
    )


_PICKING = (ByOrder, First, Last)


def _argument(accumulator: Accumulator, column: Sequence[Any]) -> Arguments:
    if isinstance(accumulator, Count) and accumulator.rows:
        return Arguments(np.ones(len(column), np.bool_), None)
    is_given = np.array([value is not None for value in column], np.bool_)
    if isinstance(accumulator, Count):
        return Arguments(is_given, None)
    if isinstance(accumulator, ExactSum):
        return _double_argument(is_given, column)
    if isinstance(accumulator, DecimalSum) or accumulator.kind == Decimal | None:
        return _decimal_argument(is_given, column)
    return Arguments(is_given, np.array([value or 0 for value in column], np.int64))


def _decimal_argument(is_given: Mask, column: Sequence[Decimal | None]) -> Arguments:
    """Decimals as integers.

    Raises NumbersTooLargeError if the decimals differ in their numbers of decimal places, or if
    these numbers or the integers are too large.
    """
    exponents = {int(value.as_tuple().exponent) for value in column if value is not None}
    if exponents:
        exponent = exponents.pop()
    else:
        exponent = 0
    if exponents or exponent not in _PLAIN_EXPONENTS:
        raise NumbersTooLargeError
    numbers = [0 if value is None else int(value.scaleb(-exponent, _EXACT)) for value in column]
    try:
        return Arguments(is_given, np.array(numbers, np.int64), exponent)
    except OverflowError:
        raise NumbersTooLargeError from None


def _double_argument(is_given: Mask, column: Sequence[float | None]) -> Arguments:
    """Doubles as integers of any size, in units of 2 to the power `exponent`.

    Raises NumbersTooLargeError if their sum may be larger than any double, or if they differ very
    much in size.
    """
    doubles = np.array([value or 0.0 for value in column], np.float64)
    with np.errstate(over="ignore"):
        if np.abs(doubles).sum() > _LARGEST_DOUBLE:
            raise NumbersTooLargeError
    fractions, exponents = np.frexp(doubles)
    exponents -= _DOUBLE_BITS
    sizes = exponents[doubles != 0]
    if len(sizes):
        least = int(sizes.min())
    else:
        least = 0
    if len(sizes) and int(sizes.max()) - least > _WIDEST:
        raise NumbersTooLargeError
    mantissas = np.ldexp(fractions, _DOUBLE_BITS).astype(np.int64).tolist()
    shifts = np.maximum(exponents - least, 0).tolist()
    numbers = [mantissa << shift for mantissa, shift in zip(mantissas, shifts, strict=True)]
    return Arguments(is_given, np.array(numbers, object), least)


def _picked(
    accumulator: Accumulator, column: Sequence[Any], windows: WindowRanges, order: Integers
) -> list[Any]:
    """Return the accumulators of `first`, `last`, `min_by` or `max_by`, one for each window."""
    count = len(column)
    # Each record has a rank, which is larger for a better value. Of the records with the largest
    # rank, the last one is picked, or the first one for `first`.
    if isinstance(accumulator, ByOrder):
        orderings = [None if value is None else value.y for value in column]
        different = sorted(
            {each for each in orderings if each is not None},
            reverse=accumulator.better is operator.lt,
        )
        ranks = {each: rank for rank, each in enumerate(different)}
        chosen = np.array([-1 if each is None else ranks[each] for each in orderings], np.int64)
        picked: Sequence[Any] = [None if value is None else (value.y, value.x) for value in column]
    else:
        chosen = np.array([-1 if value is None else 0 for value in column], np.int64)
        picked = column
    places = np.empty(count, np.int64)
    in_order = np.argsort(order)
    places[in_order] = np.arange(count)
    if isinstance(accumulator, First):
        places = count - 1 - places
        in_order = in_order[::-1]
    best = windows.over_ranges(np.maximum, np.where(chosen >= 0, chosen * count + places, -1))
    records = in_order[best % count].tolist()
    return [
        picked[record] if is_any else None
        for record, is_any in zip(records, (best >= 0).tolist(), strict=True)
    ]


def _aggregated(
    accumulator: Accumulator, arguments: Arguments, windows: WindowRanges
) -> Aggregated | list[Any]:
    """Return a function's aggregates, or its accumulators if results are computed one by one."""
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
    if isinstance(accumulator, ExactSum):
        assert exponent is not None
        sums = windows.over_ranges(np.add, numbers).tolist()
        return [
            (count, Exact(total, exponent))
            for count, total in zip(counts.tolist(), sums, strict=True)
        ]
    largest = max(abs(int(numbers.max())), abs(int(numbers.min())))
    if largest * len(numbers) > _LARGEST:
        raise NumbersTooLargeError
    summed = Summed(counts, windows.over_ranges(np.add, numbers), exponent)
    if isinstance(accumulator, Average | DecimalAverage):
        return summed.accumulators(np.arange(len(windows)))
    return summed
