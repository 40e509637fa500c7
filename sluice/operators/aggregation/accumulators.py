"""Accumulators of the aggregate functions, one per function and type of argument.

`add` returns a new accumulator and leaves the old one unchanged, so that a failed record can be
undone. Accumulators that may be large are modified in place instead, and their changes can be
undone. Null arguments are ignored, except that `count` without an argument counts rows.
"""

from __future__ import annotations

import itertools
import math
from bisect import bisect_right, insort
from collections.abc import Callable
from decimal import ROUND_HALF_UP, Context, Decimal, Rounded
from functools import partial
from typing import Any

from typing_extensions import override

from sluice.errors import TopologyError
from sluice.operators.aggregation.sketches import Distinct, Histogram, hash_of
from sluice.operators.exact_sums import Exact

_DIGITS = 38
"""The maximum precision of Spark's decimals."""
_SUMS = Context(prec=_DIGITS, rounding=ROUND_HALF_UP, traps=[Rounded])
_MEANS = Context(prec=100, rounding=ROUND_HALF_UP)


class Accumulator:
    """The operations of one aggregate function.

    The function's accumulated value, the `accumulator`, has the msgspec type `kind`.
    """

    def __init__(self, kind: Any) -> None:
        self.kind = kind

    def new_accumulator(self) -> Any:
        return None

    def add(self, accumulator: Any, value: Any) -> Any:
        raise NotImplementedError

    def subtract(self, accumulator: Any, value: Any) -> Any:
        raise TopologyError(f"{type(self).__name__} cannot subtract a table's old value.")

    def merge(self, earlier: Any, later: Any) -> Any:
        """Combine the accumulators of two sessions."""
        return self.add(earlier, later)

    def copy(self, accumulator: Any) -> Any:
        """Return an independent copy for another window."""
        return accumulator

    def result(self, accumulator: Any) -> Any:
        """Return the function's result as SQL defines it."""
        return accumulator

    def keep_changes(self) -> None:
        """Make in-place changes final."""

    def undo_changes(self) -> None:
        """Undo in-place changes since `keep_changes`."""


class Count(Accumulator):
    """`count(argument)`, or `count(*)` if `rows` is set."""

    def __init__(self, rows: bool) -> None:
        super().__init__(int)
        self.rows = rows

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


Large = int | str
"""An integer of any size, as text if it does not fit 64 bits, because MessagePack has no larger
integers."""


def _large(number: int) -> Large:
    if -(1 << 63) <= number < 1 << 63:
        return number
    return str(number)


class Sum(Accumulator):
    """The exact sum of integers, and their count, because the sum of no values is null."""

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


class BigintSum(Sum):
    """A sum of integers, read as BIGINT: `result` raises OverflowError if the sum does not fit."""

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


class ExactSum(Accumulator):
    """The sum of doubles, rounded only in `result`, so that the order of values does not matter."""

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


class ExactAverage(ExactSum):
    """The mean of doubles, rounded only in `result`."""

    @override
    def result(self, accumulator: tuple[int, Exact]) -> float | None:
        if accumulator[0]:
            return accumulator[1].divided(accumulator[0])
        return None


class DecimalSum(Accumulator):
    """The sum of Decimals, of at most 38 digits as in Spark. Raises OverflowError beyond that."""

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


class DecimalAverage(DecimalSum):
    """The mean of Decimals, rounded half up to four decimal places more than the values have."""

    @override
    def result(self, accumulator: tuple[int, Decimal]) -> Decimal | None:
        count, total = accumulator
        if not count:
            return None
        # Spark's average has four decimal places more than its argument.
        places = Decimal((0, (1,), int(total.as_tuple().exponent) - 4))
        mean = _MEANS.divide(total, Decimal(count)).quantize(places, context=_MEANS)
        return _in_digits(_SUMS.plus, mean)


def _in_digits(calculate: Callable[..., Decimal], *numbers: Decimal) -> Decimal:
    """Return the result of a calculation.

    Raises OverflowError if it has more digits than Spark's decimals.
    """
    try:
        return calculate(*numbers)
    except Rounded:
        raise OverflowError(f"the result has more than {_DIGITS} digits") from None


class Extreme(Accumulator):
    """The minimum or maximum of the values; without values, None."""

    def __init__(self, argument: Any, better: Callable[[Any, Any], bool]) -> None:
        super().__init__(argument | None)
        self.better = better

    @override
    def add(self, accumulator: Any, value: Any) -> Any:
        if accumulator is None or (value is not None and self.better(value, accumulator)):
            return value
        return accumulator


class First(Accumulator):
    """The first value that is not null."""

    @override
    def add(self, accumulator: Any, value: Any) -> Any:
        if accumulator is None:
            return value
        return accumulator


class Last(Accumulator):
    """The last value that is not null."""

    @override
    def add(self, accumulator: Any, value: Any) -> Any:
        if value is None:
            return accumulator
        return value


class CollectList(Accumulator):
    """All values that are not null, in order."""

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


class InPlace(Accumulator):
    """Changes its accumulator in place, since a copy may be large, and can undo the changes."""

    def __init__(self, kind: Any) -> None:
        super().__init__(kind)
        self.changes: list[Callable[[], object]] = []
        """Functions that undo the changes since `keep_changes`, in the order of the changes."""

    @override
    def keep_changes(self) -> None:
        self.changes.clear()

    @override
    def undo_changes(self) -> None:
        while self.changes:
            # Undo the last change first, because a later change may depend on an earlier change.
            self.changes.pop()()


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
    """The number of distinct values: exact up to 512, beyond that with an error of 1.6 %."""

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
"""For each percentile, the share of all values that are below it, such as 0.5 for the median."""


class ApproximatePercentile(InPlace):
    """Percentiles: exact up to 512 distinct numbers, beyond that within 1 % of the exact ones."""

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


class Counted(InPlace):
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
        # A value with the count 0 must leave no entry, because equal states must have equal bytes.
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


class Mode(Counted):
    """The most frequent value; if several values are equally frequent, the smallest."""

    @override
    def result(self, accumulator: dict[Any, int]) -> Any:
        most = max(accumulator.values(), default=0)
        modes = [value for value, count in accumulator.items() if count == most]
        return min(modes, default=None)


class Percentile(Counted):
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

    `values`: the distinct values, sorted. `ends`: for each of them, how many of all values are at
    most as large.
    """
    position = (ends[-1] - 1) * part
    below = float(values[bisect_right(ends, math.floor(position))])
    above = float(values[bisect_right(ends, math.ceil(position))])
    # Without this, interpolation between equal numbers could round to another number.
    if below == above:
        return below
    return (math.ceil(position) - position) * below + (position - math.floor(position)) * above


class ByOrder(Accumulator):
    """`max_by(x, y)` or `min_by(x, y)`: the x of the largest or smallest y.

    If several records have this y, the result is the x of the last of these records.
    """

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
