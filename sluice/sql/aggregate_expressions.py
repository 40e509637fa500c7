"""Splits aggregate expressions such as `sum(a) / count(*)` into functions and their arguments."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

from sqlglot import exp

from sluice.errors import TopologyError
from sluice.sql.calls import FunctionCall, TextPart, aggregate_calls, replace
from sluice.sql.dialect import tree_of
from sluice.values.aggregate_calls import (
    OF_PAIRS,
    STATISTICS_OF_TWO,
    AggregateFunction,
)
from sluice.values.sql_text import all_of, named_struct, value_if


@dataclass(frozen=True)
class SplitAggregate:
    """An aggregate expression: its functions, and `text`, which combines their results `a0`, ..."""

    text: str
    functions: tuple[AggregateFunction, ...]
    calls: tuple[str, ...]
    """The author's text for each function."""


@cache
def split_aggregate(text: str) -> SplitAggregate | str:
    """Split an aggregate into functions that take one record at a time.

    If Sluice lacks a function for some call, returns the SQL of the first such call.
    """
    functions: dict[AggregateFunction, str] = {}
    replaced: list[tuple[TextPart, str]] = []
    for call in aggregate_calls(text):
        function = _function(call)
        if function is None:
            return call.whole.text
        functions.setdefault(function, call.whole.text)
        replaced.append((call.whole, f"a{list(functions).index(function)}"))
    return SplitAggregate(replace(text, replaced), tuple(functions), tuple(functions.values()))


_FUNCTIONS: dict[type[exp.Expr], str] = {
    exp.Sum: "sum", exp.Min: "min", exp.Max: "max", exp.Avg: "avg", exp.ArrayAgg: "collect_list",
    exp.ArrayUniqueAgg: "collect_set", exp.First: "first", exp.Last: "last",
    exp.FirstValue: "first", exp.LastValue: "last", exp.AnyValue: "first",
    exp.Count: "count", exp.CountIf: "count_if",
    exp.ApproxDistinct: "approx_count_distinct", exp.Mode: "mode", exp.Median: "median",
    exp.Stddev: "stddev_samp", exp.StddevSamp: "stddev_samp", exp.StddevPop: "stddev_pop",
    exp.Variance: "var_samp", exp.VariancePop: "var_pop", exp.Skewness: "skewness",
    exp.Kurtosis: "kurtosis",
    exp.LogicalAnd: "bool_and", exp.LogicalOr: "bool_or",
    exp.BitwiseAndAgg: "bit_and", exp.BitwiseOrAgg: "bit_or", exp.BitwiseXorAgg: "bit_xor",
    exp.ArgMax: "max_by", exp.ArgMin: "min_by", exp.Corr: "corr", exp.CovarPop: "covar_pop",
    exp.CovarSamp: "covar_samp", exp.Quantile: "percentile",
    exp.ApproxQuantile: "approx_percentile",
}  # fmt: skip
_NAMED_FUNCTIONS = {
    "std": "stddev_samp",
    "mean": "avg",
    "every": "bool_and",
    "any": "bool_or",
    "some": "bool_or",
    "top": "top",
    "collect_sorted": "collect_sorted",
}
"""Name of a function that sqlglot does not know → the name of the same function in Sluice."""


def aggregate_name(node: exp.Expr) -> str:
    """Return Sluice's name of an aggregate function; empty for other functions."""
    if isinstance(node, exp.Anonymous):
        return _NAMED_FUNCTIONS.get(node.name.lower(), "")
    return _FUNCTIONS.get(type(node), "")


def _function(call: FunctionCall) -> AggregateFunction | None:
    """Return Sluice's function for a call; None if Sluice has no such function."""
    name = aggregate_name(call.tree())
    arguments = [argument.text for argument in call.arguments]
    # The second argument `true` of these functions means "ignore nulls", as Sluice always does.
    if name in ("first", "last") and [argument.lower() for argument in arguments[1:]] == ["true"]:
        del arguments[1:]
    if not name or not arguments or call.nulls == "RESPECT":
        return None
    condition = None
    if call.condition is not None:
        condition = call.condition.text
    if name in OF_PAIRS:
        has_two = len(arguments) == 2 and call.quantifier != "DISTINCT"
        if has_two:
            return (name, _pair(name, arguments, condition), ())
        return None
    function = _function_of_one(name, arguments, call.quantifier)
    if function is None:
        return None
    name, argument, parameters = function
    if condition is not None:
        # Aggregates ignore nulls, so `sum(x) FILTER (WHERE c)` is `sum(IF(c, x, NULL))`.
        if argument == "*":
            argument = "TRUE"
        argument = value_if(condition, argument)
    if call.quantifier == "DISTINCT":
        if name == "count":
            return ("count_distinct", argument, ())
        return None
    if argument == "*":
        return name, None, parameters
    return name, argument, parameters


def _pair(name: str, arguments: Sequence[str], condition: str | None) -> str:
    """Return the argument for a function that takes two columns: an object with `x` and `y`."""
    pair: list[str] = []
    for argument in arguments:
        sql = argument
        if name in STATISTICS_OF_TWO:
            sql = f"CAST({argument} AS DOUBLE)"
        # These functions ignore pairs with a null. So if the condition of FILTER is not true, both
        # values of the pair become null.
        if condition is not None:
            sql = value_if(condition, sql)
        pair.append(sql)
    return named_struct({"x": pair[0], "y": pair[1]})


def _function_of_one(
    name: str,
    arguments: Sequence[str],
    quantifier: str,
) -> tuple[str, str, tuple[float, ...]] | None:
    """Return name, argument and parameters of Sluice's function of one column, if there is one."""
    first, *more = arguments
    match name:
        case "top":
            return name, first, (int(more[0]),)
        case "median" if not more:
            return "percentile", first, (0.5,)
        case "percentile" | "approx_percentile" if len(more) == 1:
            percentages, is_array = _percentages(more[0])
            if not percentages:
                return None
            function = f"{name}s" if is_array else name
            return function, first, percentages
        case "percentile" | "approx_percentile":
            return None
        case "count" if more and not quantifier:
            # `count` with several arguments counts the rows in which none of them is null.
            are_given = all_of(f"({argument}) IS NOT NULL" for argument in arguments)
            return name, value_if(are_given, "TRUE"), ()
        case "count_if" if not more:
            return "count", value_if(first, "TRUE"), ()
        case _ if not more:
            return name, first, ()
        case _:
            return None


def _percentages(text: str) -> tuple[tuple[float, ...], bool]:
    """Return the percentages in the text, and whether the text is an array.

    If any of them is not a constant from 0 to 1, no percentages are returned.
    """
    tree = tree_of(text)
    is_array = isinstance(tree, exp.Array)
    percentages: list[float] = []
    for node in tree.expressions if is_array else [tree]:
        try:
            percentage = -1.0
            if isinstance(node, exp.Literal):
                percentage = float(node.name)
        except ValueError:
            return (), is_array
        if not 0 <= percentage <= 1:
            return (), is_array
        percentages.append(percentage)
    return tuple(percentages), is_array


def require_supported(text: str, where: str) -> None:
    """Raise TopologyError if Sluice has no function for an aggregate in the expression."""
    call = split_aggregate(text)
    if isinstance(call, str):
        name = call.partition("(")[0].strip().lower()
        raise TopologyError(
            f"{where}: {call} is not supported.",
            next_step=_INSTEAD.get(name, _USE),
        )


_USE = (
    f"Use {', '.join(sorted({*_FUNCTIONS.values(), *_NAMED_FUNCTIONS.values()}))}, count(DISTINCT "
    "...), or Python functions."
)
_FIRST_OR_LAST = "Use first(x) or last(x), which ignore nulls."
_BY_ORDER = (
    "Use max_by(x, y) or min_by(x, y) for one value, top(y, 3) for several, or Python functions."
)
_PERCENTILE = (
    "Use percentile(x, 0.5), or approx_percentile(x, 0.5), whose state stays small. Both take a "
    "percentage from 0 to 1, or an array of percentages, and no further arguments."
)
_INSTEAD = {
    "try_sum": "Use sum: a sum of integers has as many digits as it needs.",
    "try_avg": "Use avg.",
    **dict.fromkeys(("first", "last", "first_value", "last_value", "any_value"), _FIRST_OR_LAST),
    **dict.fromkeys(("max_by", "min_by"), _BY_ORDER),
    **dict.fromkeys(("listagg", "string_agg"), "Use array_join(collect_list(x), ',')."),
    **dict.fromkeys(("percentile", "percentile_cont", "percentile_disc"), _PERCENTILE),
    **dict.fromkeys(("approx_percentile", "percentile_approx", "histogram_numeric"), _PERCENTILE),
    **dict.fromkeys(
        ("approx_count_distinct", "hll_sketch_agg", "hll_union_agg"),
        "Use approx_count_distinct(x).",
    ),
    **dict.fromkeys(
        ("regr_slope", "regr_intercept", "regr_r2"),
        "Compute it with corr, covar_samp, var_samp and avg.",
    ),
}
"""Name of a function that Sluice lacks, or lacks in some forms → advice on what to use instead."""
