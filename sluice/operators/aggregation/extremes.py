"""Functions that choose one of the values: `min`, `max`, and functions with another order.

`min_by`, `max_by`, `first` and `last` pick the value of one record by the order of the records or
of a second column.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

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
    WindowNumbers,
    decimal_column,
    integer_column,
)
from sluice.operators.aggregation.window_ranges import WindowRanges
from sluice.support.arrays import Integers
from sluice.values.partial_results import larger, smaller


class Extreme(Accumulator):
    """The smallest or largest of the values; None without values."""

    choose: np.ufunc
    worst: int
    """Stands for null in columns: `choose` prefers all other numbers to this one."""

    def __init__(self, argument: Any) -> None:
        super().__init__(argument | None)
        self.takes_columns = argument in (int, Decimal)
        self._numbers = decimal_column if argument is Decimal else integer_column

    @override
    def over_windows(
        self, column: Sequence[Any], windows: WindowRanges, order: Integers | None
    ) -> WindowAccumulators:
        arguments = self._numbers(column)
        numbers = np.where(arguments.is_given, arguments.numbers, self.worst)
        extremes = windows.over_ranges(self.choose, numbers)
        counts = arguments.counts(windows)
        return WindowExtremes(WindowNumbers(counts, extremes, arguments.exponent))


class Minimum(Extreme):
    add = staticmethod(smaller)  # type: ignore[assignment]
    choose = np.minimum
    worst = np.iinfo(np.int64).max


class Maximum(Extreme):
    add = staticmethod(larger)  # type: ignore[assignment]
    choose = np.maximum
    worst = np.iinfo(np.int64).min


@dataclass(frozen=True)
class WindowExtremes(WindowAccumulators):
    extremes: WindowNumbers

    def results(self, write: WriteResult) -> pa.Array:
        return self.extremes.texts()

    def accumulators(self, chosen: Integers) -> list[Any]:
        return self.extremes.values(chosen, None)


class First(Accumulator):
    """The first value that is not null."""

    takes_columns = picks = True

    @override
    def add(self, accumulator: Any, value: Any) -> Any:
        if accumulator is None:
            return value
        return accumulator

    @override
    def over_windows(
        self, column: Sequence[Any], windows: WindowRanges, order: Integers | None
    ) -> WindowAccumulators:
        return _picked(_ranks_of_given(column), column, windows, order, picks_first=True)


class Last(Accumulator):
    """The last value that is not null."""

    takes_columns = picks = True

    @override
    def add(self, accumulator: Any, value: Any) -> Any:
        if value is None:
            return accumulator
        return value

    @override
    def over_windows(
        self, column: Sequence[Any], windows: WindowRanges, order: Integers | None
    ) -> WindowAccumulators:
        return _picked(_ranks_of_given(column), column, windows, order)


class ByOrder(Accumulator):
    """`max_by(x, y)` or `min_by(x, y)`: the x of the largest or smallest y.

    If several records have this y, the result is the x of the last of these records.
    """

    takes_columns = picks = True

    def __init__(self, argument: Any, ordering: Any, better: Callable[[Any, Any], bool]) -> None:
        super().__init__(tuple[ordering, argument | None] | None)
        self.better = better

    @override
    def add(self, accumulator: Any, value: Any) -> Any:
        if value is None:
            return accumulator
        return self.merge(accumulator, (value.y, value.x))

    @override
    def merge(self, earlier: Any, later: Any) -> Any:
        if later is None or later[0] is None:
            return earlier
        if earlier is not None and self.better(earlier[0], later[0]):
            return earlier
        return later

    @override
    def result(self, accumulator: Any) -> Any:
        if accumulator is None:
            return None
        return accumulator[1]

    @override
    def over_windows(
        self, column: Sequence[Any], windows: WindowRanges, order: Integers | None
    ) -> WindowAccumulators:
        orderings = [None if value is None else value.y for value in column]
        different = {ordering for ordering in orderings if ordering is not None}
        from_worst = sorted(different, reverse=self.better is operator.lt)
        rank_of = {ordering: rank for rank, ordering in enumerate(from_worst)}
        rank_of[None] = -1
        ranks = np.array([rank_of[ordering] for ordering in orderings], np.int64)
        pairs = [None if value is None else (value.y, value.x) for value in column]
        return _picked(ranks, pairs, windows, order)


def _ranks_of_given(column: Sequence[Any]) -> Integers:
    return np.array([-1 if value is None else 0 for value in column], np.int64)


def _picked(
    ranks: Integers,
    values: Sequence[Any],
    windows: WindowRanges,
    order: Integers | None,
    *,
    picks_first: bool = False,
) -> ListedAccumulators:
    """Return for each window the value with the largest rank, or None if all ranks are -1.

    If several values have this rank, pick the last; with `picks_first`, pick the first.
    """
    assert order is not None
    count = len(values)
    places = np.empty(count, np.int64)
    in_order = np.argsort(order)
    places[in_order] = np.arange(count)
    if picks_first:
        places = count - 1 - places
        in_order = in_order[::-1]
    best = windows.over_ranges(np.maximum, np.where(ranks >= 0, ranks * count + places, -1))
    picked: list[Any] = []
    for record, rank_and_place in zip(in_order[best % count].tolist(), best.tolist(), strict=True):
        picked.append(values[record] if rank_and_place >= 0 else None)
    return ListedAccumulators(picked)
