"""Accumulators of functions that count, collect or compare values, but do not add them up.

For sums, averages, minima, maxima and statistics, see `sums`, `extremes` and `statistics`.
"""

from __future__ import annotations

import itertools
import math
from bisect import bisect_right, insort
from collections.abc import Callable
from functools import partial
from typing import Any

from typing_extensions import override

from sluice.operators.aggregation.accumulator import Accumulator, InPlace
from sluice.operators.aggregation.sketches import Distinct, Histogram, hash_of


class CollectList(Accumulator):
    """All values that are not null, in the order of their records."""

    @override
    def new_accumulator(self) -> list[Any]:
        return []

    @override
    def add(self, accumulator: list[Any], value: Any) -> list[Any]:
        if value is None:
            return accumulator
        return [*accumulator, value]

    @override
    def subtract(self, accumulator: list[Any], value: Any) -> list[Any]:
        if value not in accumulator:
            return accumulator
        at = accumulator.index(value)
        return accumulator[:at] + accumulator[at + 1 :]

    @override
    def merge(self, earlier: list[Any], later: list[Any]) -> list[Any]:
        return earlier + later


class CollectSorted(CollectList):
    """All values that are not null, in ascending order.

    Objects and lists are ordered by their JSON text.
    """

    @override
    def result(self, accumulator: list[Any]) -> list[Any]:
        return sorted(accumulator)


class CollectSet(Accumulator):
    """The distinct values, in the order of their first records."""

    @override
    def new_accumulator(self) -> dict[Any, None]:
        return {}

    @override
    def add(self, accumulator: dict[Any, None], value: Any) -> dict[Any, None]:
        if value is None or value in accumulator:
            return accumulator
        return {**accumulator, value: None}

    @override
    def merge(self, earlier: dict[Any, None], later: dict[Any, None]) -> dict[Any, None]:
        return earlier | later

    @override
    def result(self, accumulator: dict[Any, None]) -> list[Any]:
        return list(accumulator)


class CountDistinct(InPlace, CollectSet):
    """The number of distinct values."""

    @override
    def add(self, accumulator: dict[Any, None], value: Any) -> dict[Any, None]:
        if value is not None and value not in accumulator:
            accumulator[value] = None
            self.changes.append(partial(accumulator.pop, value))
        return accumulator

    @override
    def copy(self, accumulator: dict[Any, None]) -> dict[Any, None]:
        return dict(accumulator)

    @override
    def result(self, accumulator: dict[Any, None]) -> Any:
        return len(accumulator)


class ApproximateCountDistinct(InPlace):
    """The number of distinct values: exact up to 512, and with an error of 1.6 % beyond that."""

    def __init__(self) -> None:
        super().__init__(Distinct)

    @override
    def new_accumulator(self) -> Distinct:
        return Distinct({}, bytearray())

    @override
    def add(self, accumulator: Distinct, value: Any) -> Distinct:
        if value is not None and (undo := accumulator.add(hash_of(value))) is not None:
            self.changes.append(undo)
        return accumulator

    @override
    def merge(self, earlier: Distinct, later: Distinct) -> Distinct:
        return earlier.merge(later)

    @override
    def copy(self, accumulator: Distinct) -> Distinct:
        return accumulator.copy()

    @override
    def result(self, accumulator: Distinct) -> int:
        return accumulator.estimate


Parts = tuple[float, ...]
"""For each percentile, the share of all values below it, such as 0.5 for the median."""


class ApproximatePercentile(InPlace):
    """Percentiles: exact up to 512 distinct numbers; beyond that, with an error of at most 1 %."""

    def __init__(self, argument: Any, parts: Parts, *, many: bool) -> None:
        super().__init__(Histogram[argument])
        self.parts, self.many = parts, many

    @override
    def new_accumulator(self) -> Histogram[Any]:
        return Histogram({}, {})

    @override
    def add(self, accumulator: Histogram[Any], value: Any) -> Histogram[Any]:
        if value is not None:
            self.changes.append(accumulator.add(value))
        return accumulator

    @override
    def merge(self, earlier: Histogram[Any], later: Histogram[Any]) -> Histogram[Any]:
        return earlier.merge(later)

    @override
    def copy(self, accumulator: Histogram[Any]) -> Histogram[Any]:
        return accumulator.copy()

    @override
    def result(self, accumulator: Histogram[Any]) -> Any:
        if not accumulator.counts and not accumulator.bins:
            return None
        results = [accumulator.percentile(part) for part in self.parts]
        if self.many:
            return results
        return results[0]


class ValueCounts(InPlace):
    """Counts how often each value occurs."""

    def __init__(self, argument: Any) -> None:
        super().__init__(dict[argument, int])

    @override
    def new_accumulator(self) -> dict[Any, int]:
        return {}

    def _set(self, accumulator: dict[Any, int], value: Any, count: int) -> dict[Any, int]:
        before = accumulator.get(value, 0)
        if before:
            self.changes.append(partial(accumulator.__setitem__, value, before))
        else:
            self.changes.append(partial(accumulator.pop, value, None))
        # Remove a value whose count is 0, because equal states must have equal bytes.
        if count:
            accumulator[value] = count
        else:
            del accumulator[value]
        return accumulator

    @override
    def add(self, accumulator: dict[Any, int], value: Any) -> dict[Any, int]:
        if value is None:
            return accumulator
        return self._set(accumulator, value, accumulator.get(value, 0) + 1)

    @override
    def subtract(self, accumulator: dict[Any, int], value: Any) -> dict[Any, int]:
        if value not in accumulator:
            return accumulator
        return self._set(accumulator, value, accumulator[value] - 1)

    @override
    def merge(self, earlier: dict[Any, int], later: dict[Any, int]) -> dict[Any, int]:
        merged = dict(earlier)
        for value, count in later.items():
            merged[value] = merged.get(value, 0) + count
        return merged

    @override
    def copy(self, accumulator: dict[Any, int]) -> dict[Any, int]:
        return dict(accumulator)


class Mode(ValueCounts):
    """The most frequent value. Of several equally frequent values, the smallest."""

    @override
    def result(self, accumulator: dict[Any, int]) -> Any:
        most = max(accumulator.values(), default=0)
        modes = [value for value, count in accumulator.items() if count == most]
        return min(modes, default=None)


class Percentile(ValueCounts):
    """Exact percentiles of numbers, as doubles, interpolated between two of the numbers."""

    def __init__(self, argument: Any, parts: Parts, *, many: bool) -> None:
        super().__init__(argument)
        self.parts, self.many = parts, many

    @override
    def result(self, accumulator: dict[Any, int]) -> Any:
        if not accumulator:
            return None
        values = sorted(accumulator)
        ends = list(itertools.accumulate(accumulator[value] for value in values))
        results = [_percentile(values, ends, part) for part in self.parts]
        if self.many:
            return results
        return results[0]


def _percentile(values: list[Any], ends: list[int], part: float) -> float:
    """Return the number below which the share `part` of all values lies: the median for 0.5.

    `values`: the distinct values, sorted. `ends`: for each distinct value, the number of all values
    up to and including it.
    """
    position = (ends[-1] - 1) * part
    below = float(values[bisect_right(ends, math.floor(position))])
    above = float(values[bisect_right(ends, math.ceil(position))])
    # Do not interpolate between equal numbers, because rounding could give another number.
    if below == above:
        return below
    return (math.ceil(position) - position) * below + (position - math.floor(position)) * above


class Truths(Accumulator):
    """`bool_and` if `all_true`, else `bool_or`: counts how many conditions were true and false."""

    def __init__(self, *, all_true: bool) -> None:
        super().__init__(tuple[int, int])
        self.all_true = all_true

    @override
    def new_accumulator(self) -> tuple[int, int]:
        return 0, 0

    @override
    def add(self, accumulator: tuple[int, int], value: bool | None) -> tuple[int, int]:
        if value is None:
            return accumulator
        return accumulator[0] + value, accumulator[1] + (not value)

    @override
    def subtract(self, accumulator: tuple[int, int], value: bool | None) -> tuple[int, int]:
        if value is None:
            return accumulator
        return accumulator[0] - value, accumulator[1] - (not value)

    @override
    def merge(self, earlier: tuple[int, int], later: tuple[int, int]) -> tuple[int, int]:
        return earlier[0] + later[0], earlier[1] + later[1]

    @override
    def result(self, accumulator: tuple[int, int]) -> bool | None:
        trues, falses = accumulator
        if not trues and not falses:
            return None
        if self.all_true:
            return not falses
        return bool(trues)


class Bits(Accumulator):
    """The bitwise AND, OR or XOR of integers."""

    def __init__(self, combine: Callable[[int, int], int]) -> None:
        super().__init__(int | None)
        self.combine = combine

    @override
    def add(self, accumulator: int | None, value: int | None) -> int | None:
        if accumulator is None or value is None:
            if accumulator is None:
                return value
            return accumulator
        return self.combine(accumulator, value)


class Top(CollectList):
    """The n largest values, in descending order."""

    def __init__(self, argument: Any, n: int) -> None:
        super().__init__(list[argument])
        self.n = n

    @override
    def add(self, accumulator: list[Any], value: Any) -> list[Any]:
        if value is None:
            return accumulator
        values = list(accumulator)
        insort(values, value)
        return values[-self.n :]

    @override
    def subtract(self, accumulator: list[Any], value: Any) -> list[Any]:
        return Accumulator.subtract(self, accumulator, value)  # type: ignore[no-any-return]

    @override
    def merge(self, earlier: list[Any], later: list[Any]) -> list[Any]:
        return sorted(earlier + later)[-self.n :]

    @override
    def result(self, accumulator: list[Any]) -> list[Any]:
        return accumulator[::-1]
