"""The aggregate functions, their argument types and their accumulators."""

from __future__ import annotations

import operator
from collections.abc import Callable
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

import msgspec

from sluice.errors import TopologyError
from sluice.operators.aggregation import accumulators, extremes, sums, table_functions
from sluice.operators.aggregation.accumulator import Accumulator
from sluice.operators.aggregation.statistics import ArgumentPair, statistic
from sluice.values.aggregate_calls import (
    ARGUMENTS,
    OF_PAIRS,
    STATISTICS_OF_ONE,
    STATISTICS_OF_TWO,
    SUBTRACTABLE,
    Takes,
)

_STATISTICS = STATISTICS_OF_ONE | STATISTICS_OF_TWO

_NUMBERS = (int, float, Decimal)
_TYPES: dict[Takes, tuple[type, ...]] = {
    "a number": _NUMBERS,
    "a whole number": (int,),
    "a condition": (bool,),
    "a value with an order": (*_NUMBERS, str, bool),
}
"""The requirement on an argument → the types that the argument may have."""
NAMES = ARGUMENTS.keys() | SUBTRACTABLE | OF_PAIRS | {
    "approx_count_distinct", "first", "last",
}  # fmt: skip


@dataclass(frozen=True)
class Function:
    """An aggregate function with its argument's type.

    For example, `top(amount, 3)` of Decimals is `Function("top", Decimal, (3,))`.
    """

    name: str
    argument: type | None = None
    """The argument's type: int, float, Decimal, str, bool, or msgspec.Raw for anything else. None
    for `count(*)`."""
    parameters: tuple[float, ...] = ()
    """The number of values that `top` keeps; or for each percentile, the share of values below it,
    such as 0.5."""
    bigint: bool = False
    """Whether a sum of integers must fit 64 bits, because expressions read it as BIGINT."""
    maps: bool = False
    """Whether the argument contains maps. Maps are equal even if the order of their entries
    differs."""
    second: type | None = None
    """The type of the second argument, for a function of two columns."""

    def __post_init__(self) -> None:
        if self.name not in NAMES:
            raise TopologyError(
                f"Unknown aggregate function {self.name}.",
                next_step=f"Use {', '.join(sorted(NAMES))}.",
            )
        first, *more = ARGUMENTS.get(self.name, ("anything",))
        _require(self.name, self.argument, first)
        if more:
            _require(f"The second argument of {self.name}", self.second, more[0])
        if self.name == "top" and self.parameters[:1] < (1,):
            raise TopologyError(
                f"top needs the number of values to keep, at least 1, not {self.parameters}.",
                next_step="Write for example top(amount, 3).",
            )

    @property
    def takes_pairs(self) -> bool:
        """Whether the argument is an object of two columns, `x` and `y`."""
        return self.name in OF_PAIRS

    @property
    def json_type(self) -> Any:
        """The type of the argument in JSON."""
        kind: Any = self.argument
        if kind is None:
            kind = Any
        # `msgspec.Raw` accepts the JSON of any value, including `null`.
        elif kind is not msgspec.Raw:
            kind = kind | None
        if not self.takes_pairs:
            return kind
        # Each pair of types needs its own Struct, because msgspec decodes numbers to the types of
        # the fields.
        fields = [("x", kind), ("y", self.second | None)]  # type: ignore[operator]
        return msgspec.defstruct("TypedPair", fields, bases=(ArgumentPair,), frozen=True) | None


def _require(what: str, argument: type | None, takes: Takes) -> None:
    if takes in _TYPES and argument not in _TYPES[takes]:
        given = _NAMES_OF_TYPES.get(argument, str(argument))
        raise TopologyError(
            f"{what} needs {takes}, not {given}.",
            next_step="Aggregate another field or one of its fields, convert it with CAST, "
            "or use Python functions.",
        )


_NAMES_OF_TYPES: dict[type | None, str] = {
    msgspec.Raw: "an object or a list",
    str: "a text or a time",
    bool: "a Boolean",
    int: "a whole number",
    float: "a float",
    Decimal: "a decimal",
    None: "nothing",
}


_SUMS: dict[Any, Callable[[], Accumulator]] = {
    float: sums.ExactSum,
    Decimal: sums.DecimalSum,
}
_AVERAGES: dict[Any, Callable[[], Accumulator]] = {
    float: sums.ExactAverage,
    Decimal: sums.DecimalAverage,
}


_BITWISE = {"bit_and": operator.and_, "bit_or": operator.or_, "bit_xor": operator.xor}


def table_accumulator_of(function: Function) -> Accumulator:
    """Return the function's accumulator for a table. It can subtract any value that was added."""
    name, kind = function.name, _kind_of(function)
    match name:
        case "min" | "max":
            return table_functions.ExtremeOfRows(kind, min if name == "min" else max)
        case "min_by" | "max_by":
            better = operator.lt if name == "min_by" else operator.gt
            return table_functions.ByOrderOfRows(kind, function.second, better)
        case "top":
            return table_functions.TopOfRows(kind, int(function.parameters[0]))
        case "collect_set":
            return table_functions.SetOfRows(kind)
        case "count_distinct":
            return table_functions.CountDistinctRows(kind)
        case _:
            return accumulator_of(function)


def _kind_of(function: Function) -> Any:
    """Return the type of the values that are accumulated.

    Objects and lists are accumulated as JSON text.
    """
    if function.argument is msgspec.Raw:
        return str
    return function.argument


def accumulator_of(function: Function) -> Accumulator:  # noqa: C901  (a case per function)
    """Return the function's accumulator for a stream, where no values are subtracted."""
    name, parameters = function.name, function.parameters
    kind: Any = _kind_of(function)
    if name in _STATISTICS:
        return statistic(name, kind)
    match name:
        case "count":
            return sums.Count(kind is None)
        case "sum":
            return _SUMS.get(
                kind,
                sums.BigintSum if function.bigint else sums.Sum,
            )()
        case "avg":
            return _AVERAGES.get(kind, sums.Average)()
        case "min":
            return extremes.Minimum(kind)
        case "max":
            return extremes.Maximum(kind)
        case "min_by" | "max_by":
            return extremes.ByOrder(
                kind,
                function.second,
                operator.lt if name == "min_by" else operator.gt,
            )
        case "first":
            return extremes.First(kind | None)
        case "last":
            return extremes.Last(kind | None)
        case "top":
            return accumulators.Top(kind, int(parameters[0]))
        case "collect_list":
            return accumulators.CollectList(list[kind])
        case "collect_sorted":
            return accumulators.CollectSorted(list[kind])
        case "collect_set":
            return accumulators.CollectSet(dict[kind, None])
        case "count_distinct":
            return accumulators.CountDistinct(dict[kind, None])
        case "approx_count_distinct":
            return accumulators.ApproximateCountDistinct()
        case "mode":
            return accumulators.Mode(kind)
        case "percentile" | "percentiles":
            return accumulators.Percentile(kind, parameters, many=name == "percentiles")
        case "approx_percentile" | "approx_percentiles":
            return accumulators.ApproximatePercentile(
                kind,
                parameters,
                many=name == "approx_percentiles",
            )
        case "bool_and" | "bool_or":
            return accumulators.Truths(all_true=name == "bool_and")
        case "bit_and" | "bit_or" | "bit_xor":
            return accumulators.Bits(_BITWISE[name])
    raise AssertionError(f"{name} has no accumulator")
