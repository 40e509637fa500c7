"""The aggregate functions: how each keeps what it has seen of one argument in a small cell, as SQL would answer.

A cell is what msgspec can keep: it is never shared by two windows, so lists and dicts may be changed in place.
Null arguments count for nothing, except that `count` without an argument counts rows.
"""

from __future__ import annotations

import operator
from bisect import insort
from collections.abc import Callable
from dataclasses import dataclass
from decimal import ROUND_HALF_UP, Context, Decimal
from typing import Any

import msgspec

from sluice.errors import TopologyError

SUBTRACTABLE = frozenset({"count", "sum", "avg", "collect_list"})
"""The functions that can take back a table's old value."""

NAMES = SUBTRACTABLE | {"min", "max", "collect_set", "count_distinct", "first", "last", "top"}

_EXACT = Context(prec=100, rounding=ROUND_HALF_UP)
_NUMBERS = (int, float, Decimal)
_ORDERED = (*_NUMBERS, str, bool)


@dataclass(frozen=True)
class Function:
    """One aggregate function of a step: `top(3)` of a Decimal is `Function("top", Decimal, 3)`."""

    name: str
    argument: type | None = None
    """The argument's type: int, float, Decimal, str, bool, or msgspec.Raw for anything else; None: `count(*)`."""
    n: int = 0
    """How many `top` keeps."""

    def __post_init__(self) -> None:
        if self.name not in NAMES:
            raise TopologyError(
                f"There is no aggregate function {self.name}.", next_step=f"Use {', '.join(sorted(NAMES))}."
            )
        allowed = {"sum": _NUMBERS, "avg": _NUMBERS, "min": _ORDERED, "max": _ORDERED, "top": _ORDERED}.get(self.name)
        if allowed and self.argument not in allowed:
            raise TopologyError(
                f"{self.name} needs {' or '.join(kind.__name__ for kind in allowed)}, not {self.argument}."
            )
        if self.name == "top" and self.n < 1:
            raise TopologyError(f"top needs how many to keep, at least 1, not {self.n}.")


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


class _Count(Cell):
    """`count(argument)`, or `count(*)` if it counts rows."""

    def __init__(self, rows: bool) -> None:
        super().__init__(int)
        self.rows = rows

    def begin(self) -> int:
        return 0

    def add(self, cell: int, value: Any) -> int:
        return cell + 1 if self.rows or value is not None else cell

    def subtract(self, cell: int, value: Any) -> int:
        return cell - 1 if self.rows or value is not None else cell

    def merge(self, earlier: int, later: int) -> int:
        return earlier + later


class _Sum(Cell):
    """How many numbers there were, and their sum: over none it is null."""

    def __init__(self, argument: Any) -> None:
        super().__init__(tuple[int, argument])
        self.zero = (0, argument(0))
        exact = argument is Decimal
        self.plus: Callable[[Any, Any], Any] = _EXACT.add if exact else operator.add
        self.minus: Callable[[Any, Any], Any] = _EXACT.subtract if exact else operator.sub

    def begin(self) -> tuple[int, Any]:
        return self.zero

    def add(self, cell: tuple[int, Any], value: Any) -> tuple[int, Any]:
        return cell if value is None else (cell[0] + 1, self.plus(cell[1], value))

    def subtract(self, cell: tuple[int, Any], value: Any) -> tuple[int, Any]:
        return cell if value is None else (cell[0] - 1, self.minus(cell[1], value))

    def merge(self, earlier: tuple[int, Any], later: tuple[int, Any]) -> tuple[int, Any]:
        return earlier[0] + later[0], self.plus(earlier[1], later[1])

    def result(self, cell: tuple[int, Any]) -> Any:
        return cell[1] if cell[0] else None


class _Average(_Sum):
    """The mean: of Decimals with four places more than they have, half up; else a float."""

    def result(self, cell: tuple[int, Any]) -> Any:
        count, total = cell
        if not count:
            return None
        if not isinstance(total, Decimal):
            return total / count
        places = Decimal((0, (1,), int(total.as_tuple().exponent) - 4))
        return _EXACT.divide(total, Decimal(count)).quantize(places, context=_EXACT)


class _Extreme(Cell):
    """`min` or `max`."""

    def __init__(self, argument: Any, better: Callable[[Any, Any], bool]) -> None:
        super().__init__(argument | None)
        self.better = better

    def add(self, cell: Any, value: Any) -> Any:
        return value if cell is None or (value is not None and self.better(value, cell)) else cell


class _First(Cell):
    """The first value that was not null."""

    def add(self, cell: Any, value: Any) -> Any:
        return value if cell is None else cell


class _Last(Cell):
    """The last value that was not null."""

    def add(self, cell: Any, value: Any) -> Any:
        return cell if value is None else value


class _CollectList(Cell):
    """All values, in order."""

    def begin(self) -> list[Any]:
        return []

    def add(self, cell: list[Any], value: Any) -> list[Any]:
        if value is not None:
            cell.append(value)
        return cell

    def subtract(self, cell: list[Any], value: Any) -> list[Any]:
        if value in cell:
            cell.remove(value)
        return cell

    def merge(self, earlier: list[Any], later: list[Any]) -> list[Any]:
        return earlier + later

    def copy(self, cell: list[Any]) -> list[Any]:
        return list(cell)


class _CollectSet(Cell):
    """Every value once, in the order in which they first came."""

    def begin(self) -> dict[Any, None]:
        return {}

    def add(self, cell: dict[Any, None], value: Any) -> dict[Any, None]:
        if value is not None:
            cell[value] = None
        return cell

    def merge(self, earlier: dict[Any, None], later: dict[Any, None]) -> dict[Any, None]:
        return earlier | later

    def copy(self, cell: dict[Any, None]) -> dict[Any, None]:
        return dict(cell)

    def result(self, cell: dict[Any, None]) -> list[Any]:
        return list(cell)


class _CountDistinct(_CollectSet):
    """How many different values there were."""

    def result(self, cell: dict[Any, None]) -> Any:
        return len(cell)


class _Top(_CollectList):
    """The n largest, the largest first."""

    def __init__(self, argument: Any, n: int) -> None:
        super().__init__(list[argument])
        self.n = n

    def add(self, cell: list[Any], value: Any) -> list[Any]:
        if value is not None:
            insort(cell, value)
            del cell[: -self.n]
        return cell

    def subtract(self, cell: list[Any], value: Any) -> list[Any]:
        return Cell.subtract(self, cell, value)  # type: ignore[no-any-return]

    def merge(self, earlier: list[Any], later: list[Any]) -> list[Any]:
        return sorted(earlier + later)[-self.n :]

    def result(self, cell: list[Any]) -> list[Any]:
        return cell[::-1]


def cell_of(function: Function) -> Cell:
    """What keeps the function's values. JSON of another type than the simple ones is kept as its text."""
    kind: Any = str if function.argument is msgspec.Raw else function.argument
    makers: dict[str, Callable[[], Cell]] = {
        "count": lambda: _Count(kind is None),
        "sum": lambda: _Sum(kind),
        "avg": lambda: _Average(kind),
        "min": lambda: _Extreme(kind, operator.lt),
        "max": lambda: _Extreme(kind, operator.gt),
        "first": lambda: _First(kind | None),
        "last": lambda: _Last(kind | None),
        "top": lambda: _Top(kind, function.n),
        "collect_list": lambda: _CollectList(list[kind]),
        "collect_set": lambda: _CollectSet(dict[kind, None]),
        "count_distinct": lambda: _CountDistinct(dict[kind, None]),
    }
    return makers[function.name]()
