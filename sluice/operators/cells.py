"""What each aggregate function has seen of one argument, in a cell that msgspec can keep.

A cell is never shared by two windows, so lists and dicts may be changed in place. Null arguments count for nothing,
except that `count` without an argument counts rows.
"""

from __future__ import annotations

import operator
from bisect import insort
from collections.abc import Callable
from decimal import ROUND_HALF_UP, Context, Decimal
from typing import Any

from typing_extensions import override

from sluice.errors import TopologyError

_EXACT = Context(prec=100, rounding=ROUND_HALF_UP)


def _within_64_bits(combine: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
    """What Spark's bigint holds, and a state: beyond it a sum is an error of the record, not of the whole state."""

    def checked(one: int, other: int) -> int:
        total: int = combine(one, other)
        if not -(1 << 63) <= total < 1 << 63:
            raise OverflowError(f"A sum of integers would become {total}, which 64 bits do not hold.")
        return total

    return checked


class Cell:
    """What one function does with its cell; `kind` is the cell's type."""

    def __init__(self, kind: Any) -> None:
        self.kind = kind

    def begin(self) -> Any:
        """The cell before the first value."""
        return None

    def add(self, cell: Any, value: Any) -> Any:
        """The cell with one more value."""
        raise NotImplementedError

    def subtract(self, cell: Any, value: Any) -> Any:
        """The cell with one value less."""
        raise TopologyError(f"{type(self).__name__} cannot take back a table's old value.")

    def merge(self, earlier: Any, later: Any) -> Any:
        """The cell of two sessions that have become one."""
        return self.add(earlier, later)

    def copy(self, cell: Any) -> Any:
        """A cell of another window, with the same content."""
        return cell

    def result(self, cell: Any) -> Any:
        """What SQL would answer."""
        return cell


class Count(Cell):
    """`count(argument)`, or `count(*)` if it counts rows."""

    def __init__(self, rows: bool) -> None:
        super().__init__(int)
        self.rows = rows

    @override
    def begin(self) -> int:
        return 0

    @override
    def add(self, cell: int, value: Any) -> int:
        return cell + 1 if self.rows or value is not None else cell

    @override
    def subtract(self, cell: int, value: Any) -> int:
        return cell - 1 if self.rows or value is not None else cell

    @override
    def merge(self, earlier: int, later: int) -> int:
        return earlier + later


class Sum(Cell):
    """How many numbers there were, and their sum: over none it is null."""

    def __init__(self, argument: Any) -> None:
        super().__init__(tuple[int, argument])
        self.zero = (0, argument(0))
        self.plus: Callable[[Any, Any], Any] = _EXACT.add if argument is Decimal else operator.add
        self.minus: Callable[[Any, Any], Any] = _EXACT.subtract if argument is Decimal else operator.sub
        if argument is int:
            self.plus, self.minus = _within_64_bits(operator.add), _within_64_bits(operator.sub)

    @override
    def begin(self) -> tuple[int, Any]:
        return self.zero

    @override
    def add(self, cell: tuple[int, Any], value: Any) -> tuple[int, Any]:
        return cell if value is None else (cell[0] + 1, self.plus(cell[1], value))

    @override
    def subtract(self, cell: tuple[int, Any], value: Any) -> tuple[int, Any]:
        return cell if value is None else (cell[0] - 1, self.minus(cell[1], value))

    @override
    def merge(self, earlier: tuple[int, Any], later: tuple[int, Any]) -> tuple[int, Any]:
        return earlier[0] + later[0], self.plus(earlier[1], later[1])

    @override
    def result(self, cell: tuple[int, Any]) -> Any:
        return cell[1] if cell[0] else None


class Average(Sum):
    """The mean: of Decimals with four places more than they have, half up; else a float."""

    @override
    def result(self, cell: tuple[int, Any]) -> Any:
        count, total = cell
        if not count:
            return None
        if not isinstance(total, Decimal):
            return total / count
        places = Decimal((0, (1,), int(total.as_tuple().exponent) - 4))
        return _EXACT.divide(total, Decimal(count)).quantize(places, context=_EXACT)


class Extreme(Cell):
    """`min` or `max`."""

    def __init__(self, argument: Any, better: Callable[[Any, Any], bool]) -> None:
        super().__init__(argument | None)
        self.better = better

    @override
    def add(self, cell: Any, value: Any) -> Any:
        return value if cell is None or (value is not None and self.better(value, cell)) else cell


class First(Cell):
    """The first value that was not null."""

    @override
    def add(self, cell: Any, value: Any) -> Any:
        return value if cell is None else cell


class Last(Cell):
    """The last value that was not null."""

    @override
    def add(self, cell: Any, value: Any) -> Any:
        return cell if value is None else value


class CollectList(Cell):
    """All values, in order."""

    @override
    def begin(self) -> list[Any]:
        return []

    @override
    def add(self, cell: list[Any], value: Any) -> list[Any]:
        if value is not None:
            cell.append(value)
        return cell

    @override
    def subtract(self, cell: list[Any], value: Any) -> list[Any]:
        if value in cell:
            cell.remove(value)
        return cell

    @override
    def merge(self, earlier: list[Any], later: list[Any]) -> list[Any]:
        return earlier + later

    @override
    def copy(self, cell: list[Any]) -> list[Any]:
        return list(cell)


class CollectSet(Cell):
    """Every value once, in the order in which they first came."""

    @override
    def begin(self) -> dict[Any, None]:
        return {}

    @override
    def add(self, cell: dict[Any, None], value: Any) -> dict[Any, None]:
        if value is not None:
            cell[value] = None
        return cell

    @override
    def merge(self, earlier: dict[Any, None], later: dict[Any, None]) -> dict[Any, None]:
        return earlier | later

    @override
    def copy(self, cell: dict[Any, None]) -> dict[Any, None]:
        return dict(cell)

    @override
    def result(self, cell: dict[Any, None]) -> list[Any]:
        return list(cell)


class CountDistinct(CollectSet):
    """How many different values there were."""

    @override
    def result(self, cell: dict[Any, None]) -> Any:
        return len(cell)


class Top(CollectList):
    """The n largest, the largest first."""

    def __init__(self, argument: Any, n: int) -> None:
        super().__init__(list[argument])
        self.n = n

    @override
    def add(self, cell: list[Any], value: Any) -> list[Any]:
        if value is not None:
            insort(cell, value)
            del cell[: -self.n]
        return cell

    @override
    def subtract(self, cell: list[Any], value: Any) -> list[Any]:
        return Cell.subtract(self, cell, value)  # type: ignore[no-any-return]

    @override
    def merge(self, earlier: list[Any], later: list[Any]) -> list[Any]:
        return sorted(earlier + later)[-self.n :]

    @override
    def result(self, cell: list[Any]) -> list[Any]:
        return cell[::-1]
