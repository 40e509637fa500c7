"""Accumulators over tables for functions such as `max`, whose result may come from a single row.

These accumulators keep the values of all rows, because another row's value becomes the result if
that row changes or is deleted.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import chain, islice, repeat
from typing import Any

from typing_extensions import override

from sluice.operators.aggregation.accumulator import Accumulator
from sluice.operators.aggregation.accumulators import CollectList, ValueCounts


class ExtremeOfRows(ValueCounts):
    """The minimum or maximum of the rows' values. `choose` is `min` or `max`."""

    def __init__(self, argument: Any, choose: Callable[..., Any]) -> None:
        super().__init__(argument)
        self.choose = choose

    @override
    def result(self, accumulator: dict[Any, int]) -> Any:
        return self.choose(accumulator, default=None)


class TopOfRows(ValueCounts):
    """The n largest values, in descending order."""

    def __init__(self, argument: Any, n: int) -> None:
        super().__init__(argument)
        self.n = n

    @override
    def result(self, accumulator: dict[Any, int]) -> list[Any]:
        descending = sorted(accumulator, reverse=True)
        values = chain.from_iterable(repeat(value, accumulator[value]) for value in descending)
        return list(islice(values, self.n))


class SetOfRows(ValueCounts):
    """The distinct values, in the order in which they were first added."""

    @override
    def result(self, accumulator: dict[Any, int]) -> list[Any]:
        return list(accumulator)


class CountDistinctRows(ValueCounts):
    """The number of distinct values."""

    @override
    def result(self, accumulator: dict[Any, int]) -> int:
        return len(accumulator)


class ByOrderOfRows(Accumulator):
    """`max_by(x, y)` or `min_by(x, y)`: the x of the largest or smallest y.

    If several rows have this y, the result is the x of the last of these rows.
    """

    def __init__(self, argument: Any, ordering: Any, better: Callable[[Any, Any], bool]) -> None:
        super().__init__(list[tuple[ordering, argument | None]])
        self.better = better
        self._pairs = CollectList(self.kind)

    @override
    def new_accumulator(self) -> list[Any]:
        return []

    @override
    def add(self, accumulator: list[Any], value: Any) -> list[Any]:
        return self._pairs.add(accumulator, self._pair(value))

    @override
    def subtract(self, accumulator: list[Any], value: Any) -> list[Any]:
        return self._pairs.subtract(accumulator, self._pair(value))

    @override
    def result(self, accumulator: list[Any]) -> Any:
        best: tuple[Any, Any] | None = None
        for pair in accumulator:
            if best is None or not self.better(best[0], pair[0]):
                best = pair
        if best is None:
            return None
        return best[1]

    def _pair(self, value: Any) -> tuple[Any, Any] | None:
        if value is None or value.y is None:
            return None
        return value.y, value.x
