"""Aggregate functions over many windows at once: counts, and sums, minima and maxima of integers.

The results do not depend on the order of the records, and no record can fail. They equal the results of `Functions`,
which adds one record after the other.
"""

from __future__ import annotations

import operator
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol, Self

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from sluice.operators.aggregation.accumulators import Accumulator, Count, Extreme, Sum
from sluice.operators.aggregation.calculation import Calculation, Functions
from sluice.operators.aggregation.window_ranges import Mask, Numbers, WindowRanges

_LARGEST = 1 << 62


class NumbersTooLargeError(Exception):
    """A sum may not fit 64 bits. The operators can add up the records one by one."""


@dataclass(frozen=True)
class Arguments:
    """The arguments of one function for each record: integers, and a mask of the arguments that are not null.

    `numbers` is None if the function only counts.
    """

    is_given: Mask
    numbers: Numbers | None


class Aggregated(Protocol):
    """The aggregates of one function, one for each window."""

    def results(self) -> pa.Array: ...

    def accumulators(self, chosen: Numbers) -> list[Any]:
        """The accumulators of the chosen windows, in the form that the function's `Accumulator` uses."""


@dataclass(frozen=True)
class Counted(Aggregated):
    counts: Numbers

    def results(self) -> pa.Array:
        return pa.array(self.counts)

    def accumulators(self, chosen: Numbers) -> list[Any]:
        counts: list[Any] = self.counts[chosen].tolist()
        return counts


@dataclass(frozen=True)
class Summed(Aggregated):
    counts: Numbers
    sums: Numbers

    def results(self) -> pa.Array:
        return pa.array(self.sums, mask=self.counts == 0)

    def accumulators(self, chosen: Numbers) -> list[Any]:
        return list(zip(self.counts[chosen].tolist(), self.sums[chosen].tolist(), strict=True))


@dataclass(frozen=True)
class Extremes(Aggregated):
    counts: Numbers
    extremes: Numbers

    def results(self) -> pa.Array:
        return pa.array(self.extremes, mask=self.counts == 0)

    def accumulators(self, chosen: Numbers) -> list[Any]:
        extremes: list[Any] = self.results().take(pa.array(chosen)).to_pylist()
        return extremes


@dataclass(frozen=True)
class Aggregates:
    """The aggregates of all functions, one for each window."""

    functions: Functions
    of_functions: tuple[Aggregated, ...]

    def results(self) -> pa.Array:
        """Each window's result, as `Functions.result` writes it."""
        texts = [pc.fill_null(each.results().cast(pa.string()), "null") for each in self.of_functions]
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

    def _arguments(self, values: pa.Array) -> list[Arguments]:
        accumulators = self.functions.accumulators
        if all(isinstance(each, Count) and each.rows for each in accumulators):
            return [Arguments(np.ones(len(values), np.bool_), None)] * len(accumulators)
        read = self.functions.read
        columns = zip(*(read(value) for value in values.to_pylist()), strict=True)
        return [_argument(each, column) for each, column in zip(accumulators, columns, strict=True)]


def _is_columnar(accumulator: Accumulator) -> bool:
    if isinstance(accumulator, Extreme):
        return bool(accumulator.kind == int | None)
    # The subclasses of Sum are excluded: the results of `Average` are not integers, and `BigintSum` can fail.
    return type(accumulator) in (Count, Sum)


def _argument(accumulator: Accumulator, column: Sequence[Any]) -> Arguments:
    is_given = np.array([value is not None for value in column], np.bool_)
    if isinstance(accumulator, Count):
        return Arguments(is_given | accumulator.rows, None)
    return Arguments(is_given, np.array([value or 0 for value in column], np.int64))


def _aggregated(accumulator: Accumulator, arguments: Arguments, windows: WindowRanges) -> Aggregated:
    is_given, numbers = arguments.is_given, arguments.numbers
    if is_given.all():
        counts = windows.behind - windows.first
    else:
        counts = windows.over_ranges(np.add, is_given.astype(np.int64))
    if numbers is None:
        return Counted(counts)
    if isinstance(accumulator, Extreme):
        worst = np.iinfo(np.int64)
        if accumulator.better is operator.lt:
            return Extremes(counts, windows.over_ranges(np.minimum, np.where(is_given, numbers, worst.max)))
        return Extremes(counts, windows.over_ranges(np.maximum, np.where(is_given, numbers, worst.min)))
    largest = max(abs(int(numbers.max())), abs(int(numbers.min())))
    if largest * len(numbers) > _LARGEST:
        raise NumbersTooLargeError
    return Summed(counts, windows.over_ranges(np.add, numbers))
