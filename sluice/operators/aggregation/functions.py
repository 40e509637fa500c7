"""The aggregate functions, their argument types and their accumulators."""

from __future__ import annotations

import operator
from collections.abc import Callable
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

import msgspec

from sluice.errors import TopologyError
from sluice.operators.aggregation import accumulators
from sluice.operators.aggregation.accumulators import Accumulator

SUBTRACTABLE = frozenset({"count", "sum", "avg", "collect_list"})
"""Functions that can subtract a table's old value."""

NAMES = SUBTRACTABLE | {"min", "max", "collect_set", "count_distinct", "first", "last", "top"}

_NUMBERS = (int, float, Decimal)
_ORDERED = (*_NUMBERS, str, bool)


@dataclass(frozen=True)
class Function:
    """An aggregate function with its argument's type: `top(amount, 3)` is `Function("top", Decimal, 3)`."""

    name: str
    argument: type | None = None
    """The argument's type: int, float, Decimal, str, bool, or msgspec.Raw for anything else. None for `count(*)`."""
    n: int = 0
    """The number of values that `top` keeps."""
    bigint: bool = False
    """Whether a sum of integers must fit 64 bits, because expressions read it as BIGINT."""
    maps: bool = False
    """Whether the argument contains maps, which are equal whatever the order of their entries."""

    def __post_init__(self) -> None:
        if self.name not in NAMES:
            raise TopologyError(
                f"Unknown aggregate function {self.name}.", next_step=f"Use {', '.join(sorted(NAMES))}."
            )
        allowed = {"sum": _NUMBERS, "avg": _NUMBERS, "min": _ORDERED, "max": _ORDERED, "top": _ORDERED}.get(self.name)
        if allowed and self.argument not in allowed:
            raise TopologyError(
                f"{self.name} needs {' or '.join(kind.__name__ for kind in allowed)}, not an object or a list.",
                next_step="Aggregate one of its fields, or use Python functions.",
            )
        if self.name == "top" and self.n < 1:
            raise TopologyError(f"top needs the number of values to keep, at least 1, not {self.n}.")


_SUMS: dict[Any, Callable[[], Accumulator]] = {float: accumulators.ExactSum, Decimal: accumulators.DecimalSum}
_AVERAGES: dict[Any, Callable[[], Accumulator]] = {
    float: accumulators.ExactAverage,
    Decimal: accumulators.DecimalAverage,
}


def accumulator_of(function: Function) -> Accumulator:
    """The function's accumulator. Objects and lists are accumulated as JSON text."""
    kind: Any = str if function.argument is msgspec.Raw else function.argument
    makers: dict[str, Callable[[], Accumulator]] = {
        "count": lambda: accumulators.Count(kind is None),
        "sum": _SUMS.get(kind, accumulators.BigintSum if function.bigint else accumulators.Sum),
        "avg": _AVERAGES.get(kind, accumulators.Average),
        "min": lambda: accumulators.Extreme(kind, operator.lt),
        "max": lambda: accumulators.Extreme(kind, operator.gt),
        "first": lambda: accumulators.First(kind | None),
        "last": lambda: accumulators.Last(kind | None),
        "top": lambda: accumulators.Top(kind, function.n),
        "collect_list": lambda: accumulators.CollectList(list[kind]),
        "collect_set": lambda: accumulators.CollectSet(dict[kind, None]),
        "count_distinct": lambda: accumulators.CountDistinct(dict[kind, None]),
    }
    return makers[function.name]()
