"""What each aggregate function has seen of one argument, in a cell that msgspec can keep.

Adding to a cell makes another one, so that what a record did can be withdrawn; only `count_distinct`, whose cell may be
large while its result is not, changes its cell in place, and remembers how. Null arguments count for nothing, except
that `count` without an argument counts rows.
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Callable
from decimal import ROUND_HALF_UP, Context, Decimal, Rounded
from typing import Any

from typing_extensions import override

from sluice.errors import TopologyError
from sluice.operators.exact import Exact

_DIGITS = 38
"""Of Spark's widest decimal."""
_SUMS = Context(prec=_DIGITS, rounding=ROUND_HALF_UP, traps=[Rounded])
_MEANS = Context(prec=100, rounding=ROUND_HALF_UP)


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

    def keep(self) -> None:
        """What was done in place stays."""

    def undo(self) -> None:
        """Withdraw what was done in place since `keep`."""


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


Large = int | str
"""An integer of any size: text where 64 bits do not hold it, since a state can keep no larger numbers."""


def _kept(number: int) -> Large:
    return number if -(1 << 63) <= number < 1 << 63 else str(number)


class Sum(Cell):
    """The sum of integers, exact whatever its size, and how many there were: over none it is null."""

    def __init__(self) -> None:
        super().__init__(tuple[int, Large])

    @override
    def begin(self) -> tuple[int, Large]:
        return 0, 0

    @override
    def add(self, cell: tuple[int, Large], value: int | None) -> tuple[int, Large]:
        return cell if value is None else (cell[0] + 1, _kept(int(cell[1]) + value))

    @override
    def subtract(self, cell: tuple[int, Large], value: int | None) -> tuple[int, Large]:
        return cell if value is None else (cell[0] - 1, _kept(int(cell[1]) - value))

    @override
    def merge(self, earlier: tuple[int, Large], later: tuple[int, Large]) -> tuple[int, Large]:
        return earlier[0] + later[0], _kept(int(earlier[1]) + int(later[1]))

    @override
    def result(self, cell: tuple[int, Large]) -> int | None:
        return int(cell[1]) if cell[0] else None


class BigintSum(Sum):
    """A sum of integers that has to fit 64 bits. Raises OverflowError where it does not."""

    @override
    def result(self, cell: tuple[int, Large]) -> int | None:
        value = super().result(cell)
        if value is not None and not -(2**63) <= value < 2**63:
            raise OverflowError(f"the sum, {value}, does not fit BIGINT, as which the steps that follow read it")
        return value


class Average(Sum):
    """The mean of integers, as a float."""

    @override
    def result(self, cell: tuple[int, Large]) -> Any:
        return int(cell[1]) / cell[0] if cell[0] else None


class ExactSum(Cell):
    """The sum of doubles, rounded once, when it is read: the order of the values does not show in it."""

    def __init__(self) -> None:
        super().__init__(tuple[int, Exact])

    @override
    def begin(self) -> tuple[int, Exact]:
        return 0, Exact()

    @override
    def add(self, cell: tuple[int, Exact], value: float | None) -> tuple[int, Exact]:
        return cell if value is None else (cell[0] + 1, cell[1].add(value))

    @override
    def subtract(self, cell: tuple[int, Exact], value: float | None) -> tuple[int, Exact]:
        return cell if value is None else (cell[0] - 1, cell[1].subtract(value))

    @override
    def merge(self, earlier: tuple[int, Exact], later: tuple[int, Exact]) -> tuple[int, Exact]:
        return earlier[0] + later[0], earlier[1].merge(later[1])

    @override
    def result(self, cell: tuple[int, Exact]) -> float | None:
        return float(cell[1]) if cell[0] else None


class ExactAverage(ExactSum):
    """The mean of doubles, rounded once as well."""

    @override
    def result(self, cell: tuple[int, Exact]) -> float | None:
        return cell[1].divided(cell[0]) if cell[0] else None


class DecimalSum(Cell):
    """The sum of Decimals, which has at most 38 digits, as Spark's has."""

    def __init__(self) -> None:
        super().__init__(tuple[int, Decimal])

    @override
    def begin(self) -> tuple[int, Decimal]:
        return 0, Decimal(0)

    @override
    def add(self, cell: tuple[int, Decimal], value: Decimal | None) -> tuple[int, Decimal]:
        return cell if value is None else (cell[0] + 1, _within(_SUMS.add, cell[1], value))

    @override
    def subtract(self, cell: tuple[int, Decimal], value: Decimal | None) -> tuple[int, Decimal]:
        return cell if value is None else (cell[0] - 1, _within(_SUMS.subtract, cell[1], value))

    @override
    def merge(self, earlier: tuple[int, Decimal], later: tuple[int, Decimal]) -> tuple[int, Decimal]:
        return earlier[0] + later[0], _within(_SUMS.add, earlier[1], later[1])

    @override
    def result(self, cell: tuple[int, Decimal]) -> Decimal | None:
        return cell[1] if cell[0] else None


class DecimalAverage(DecimalSum):
    """The mean of Decimals, with four places more than they have, half up."""

    @override
    def result(self, cell: tuple[int, Decimal]) -> Decimal | None:
        count, total = cell
        if not count:
            return None
        places = Decimal((0, (1,), int(total.as_tuple().exponent) - 4))
        mean = _MEANS.divide(total, Decimal(count)).quantize(places, context=_MEANS)
        return _within(_SUMS.plus, mean)


def _within(calculate: Callable[..., Decimal], *numbers: Decimal) -> Decimal:
    try:
        return calculate(*numbers)
    except Rounded:
        raise OverflowError(f"the result has more than {_DIGITS} digits") from None


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
        return cell if value is None else [*cell, value]

    @override
    def subtract(self, cell: list[Any], value: Any) -> list[Any]:
        if value not in cell:
            return cell
        at = cell.index(value)
        return cell[:at] + cell[at + 1 :]

    @override
    def merge(self, earlier: list[Any], later: list[Any]) -> list[Any]:
        return earlier + later


class CollectSet(Cell):
    """Every value once, in the order in which they first came."""

    @override
    def begin(self) -> dict[Any, None]:
        return {}

    @override
    def add(self, cell: dict[Any, None], value: Any) -> dict[Any, None]:
        return cell if value is None or value in cell else {**cell, value: None}

    @override
    def merge(self, earlier: dict[Any, None], later: dict[Any, None]) -> dict[Any, None]:
        return earlier | later

    @override
    def result(self, cell: dict[Any, None]) -> list[Any]:
        return list(cell)


class CountDistinct(CollectSet):
    """How many different values there were."""

    def __init__(self, kind: Any) -> None:
        super().__init__(kind)
        self._added: list[tuple[dict[Any, None], Any]] = []

    @override
    def add(self, cell: dict[Any, None], value: Any) -> dict[Any, None]:
        if value is not None and value not in cell:
            cell[value] = None
            self._added.append((cell, value))
        return cell

    @override
    def copy(self, cell: dict[Any, None]) -> dict[Any, None]:
        return dict(cell)

    @override
    def result(self, cell: dict[Any, None]) -> Any:
        return len(cell)

    @override
    def keep(self) -> None:
        self._added.clear()

    @override
    def undo(self) -> None:
        for cell, value in self._added:
            del cell[value]
        self._added.clear()


class Top(CollectList):
    """The n largest, the largest first."""

    def __init__(self, argument: Any, n: int) -> None:
        super().__init__(list[argument])
        self.n = n

    @override
    def add(self, cell: list[Any], value: Any) -> list[Any]:
        if value is None:
            return cell
        added = list(cell)
        insort(added, value)
        return added[-self.n :]

    @override
    def subtract(self, cell: list[Any], value: Any) -> list[Any]:
        return Cell.subtract(self, cell, value)  # type: ignore[no-any-return]

    @override
    def merge(self, earlier: list[Any], later: list[Any]) -> list[Any]:
        return sorted(earlier + later)[-self.n :]

    @override
    def result(self, cell: list[Any]) -> list[Any]:
        return cell[::-1]
