"""The functions in aggregate expressions such as `sum(a) / count(*)`: their arguments, and their results' types."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

from sqlglot import exp

from sluice.errors import TopologyError
from sluice.sql.calls import Call, TextPart, aggregate_calls, replace
from sluice.sql.dialect import tree_of
from sluice.values.aggregate_calls import OF_PAIRS, STATISTICS_OF_ONE, STATISTICS_OF_TWO, AggregateFunction
from sluice.values.sql_text import all_of, named_struct, value_if
from sluice.values.sql_types import MOST_DIGITS, precision_and_scale, struct_fields


@dataclass(frozen=True)
class SplitAggregate:
    """An aggregate expression as functions, and `text`, an expression over their results `a0`, `a1`, ..."""

    text: str
    functions: tuple[AggregateFunction, ...]
    calls: tuple[str, ...]
    """The author's text for each function."""


@cache
def split_aggregate(text: str) -> SplitAggregate | str:
    """Split an aggregate into functions that take one record at a time.

    Returns the SQL of the call if Sluice does not have a function of the aggregate.
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
    exp.ArrayUniqueAgg: "collect_set", exp.First: "first", exp.Last: "last", exp.FirstValue: "first",
    exp.LastValue: "last", exp.AnyValue: "first", exp.Count: "count", exp.CountIf: "count_if",
    exp.ApproxDistinct: "approx_count_distinct", exp.Mode: "mode", exp.Median: "median",
    exp.Stddev: "stddev_samp", exp.StddevSamp: "stddev_samp", exp.StddevPop: "stddev_pop",
    exp.Variance: "var_samp", exp.VariancePop: "var_pop", exp.Skewness: "skewness", exp.Kurtosis: "kurtosis",
    exp.LogicalAnd: "bool_and", exp.LogicalOr: "bool_or",
    exp.BitwiseAndAgg: "bit_and", exp.BitwiseOrAgg: "bit_or", exp.BitwiseXorAgg: "bit_xor",
    exp.ArgMax: "max_by", exp.ArgMin: "min_by", exp.Corr: "corr", exp.CovarPop: "covar_pop",
    exp.CovarSamp: "covar_samp", exp.Quantile: "percentile", exp.ApproxQuantile: "approx_percentile",
}  # fmt: skip
_NAMED_FUNCTIONS = {"std": "stddev_samp", "mean": "avg", "every": "bool_and", "some": "bool_or", "top": "top"}
"""Functions that sqlglot parses as unknown functions."""


def _function(call: Call) -> AggregateFunction | None:
    tree = call.tree()
    first, *more = (part.text for part in call.arguments) if call.arguments else ("",)
    name = _NAMED_FUNCTIONS.get(tree.name.lower()) if isinstance(tree, exp.Anonymous) else _FUNCTIONS.get(type(tree))
    if name in ("first", "last") and call.nulls != "RESPECT" and [part.lower() for part in more] == ["true"]:
        more = []  # these functions ignore nulls
    if name is None or not first or call.nulls == "RESPECT":
        return None
    argument, parameters = first, tuple[float, ...]()
    condition = None if call.condition is None else call.condition.text
    if name in OF_PAIRS and len(more) == 1:
        pair = [f"CAST({part} AS DOUBLE)" if name in STATISTICS_OF_TWO else part for part in (first, *more)]
        # These functions ignore pairs with a null.
        if condition is not None:
            pair = [value_if(condition, part) for part in pair]
        argument = named_struct({"x": pair[0], "y": pair[1]})
    elif name == "top":
        parameters = (int(more[0]),)
    elif name == "median" and not more:
        name, parameters = "percentile", (0.5,)
    elif name in ("percentile", "approx_percentile") and len(more) == 1:
        percentages, is_array = _percentages(more[0])
        if not percentages:
            return None
        name, parameters = f"{name}s" if is_array else name, percentages
    elif name == "count" and more and not call.quantifier:
        argument = value_if(all_of(f"({part}) IS NOT NULL" for part in (first, *more)), "TRUE")
    elif name == "count_if" and not more:
        name, argument = "count", value_if(first, "TRUE")
    elif more or name in OF_PAIRS or name in ("percentile", "approx_percentile"):
        return None
    if condition is not None and name not in OF_PAIRS:
        # Aggregates ignore nulls, so `sum(x) FILTER (WHERE c)` is `sum(IF(c, x, NULL))`.
        argument = value_if(condition, "TRUE" if argument == "*" else argument)
    if call.quantifier == "DISTINCT":
        return ("count_distinct", argument, ()) if name == "count" else None
    return (name, None, ()) if argument == "*" else (name, argument, parameters)


def _percentages(text: str) -> tuple[tuple[float, ...], bool]:
    """The percentages in the text, and whether it is an array. No percentages if any is not a constant from 0 to 1."""
    tree = tree_of(text)
    is_array = isinstance(tree, exp.Array)
    numbers = [node.name for node in (tree.expressions if is_array else [tree]) if isinstance(node, exp.Literal)]
    try:
        percentages = tuple(map(float, numbers))
    except ValueError:
        return (), is_array
    is_complete = len(numbers) == (len(tree.expressions) if is_array else 1)
    return (percentages if is_complete and all(0 <= part <= 1 for part in percentages) else ()), is_array


def require_supported(text: str, where: str) -> None:
    """Raise TopologyError if Sluice does not have a function of an aggregate."""
    call = split_aggregate(text)
    if isinstance(call, str):
        name = call.partition("(")[0].strip().lower()
        raise TopologyError(f"{where}: {call} is not supported.", next_step=_INSTEAD.get(name, _USE))


_USE = (
    f"Use {', '.join(sorted({*_FUNCTIONS.values(), *_NAMED_FUNCTIONS.values()}))}, count(DISTINCT ...), or Python "
    "functions."
)
_FIRST_OR_LAST = "Use first(x) or last(x), which ignore nulls."
_BY_ORDER = "Use max_by(x, y) or min_by(x, y) for one value, top(y, 3) for several, or Python functions."
_PERCENTILE = (
    "Use percentile(x, 0.5), or approx_percentile(x, 0.5), whose state stays small. Both take a percentage from 0 to "
    "1, or an array of percentages, and no further arguments."
)
_INSTEAD = {
    "try_sum": "Use sum: a sum of integers has as many digits as it needs.",
    "try_avg": "Use avg.",
    **dict.fromkeys(("first", "last", "first_value", "last_value", "any_value"), _FIRST_OR_LAST),
    **dict.fromkeys(("max_by", "min_by"), _BY_ORDER),
    **dict.fromkeys(("listagg", "string_agg"), "Use array_join(collect_list(x), ',')."),
    **dict.fromkeys(("percentile", "percentile_cont", "percentile_disc"), _PERCENTILE),
    **dict.fromkeys(("approx_percentile", "percentile_approx", "histogram_numeric"), _PERCENTILE),
    **dict.fromkeys(("approx_count_distinct", "hll_sketch_agg", "hll_union_agg"), "Use approx_count_distinct(x)."),
    **dict.fromkeys(("regr_slope", "regr_intercept", "regr_r2"), "Compute it with corr, covar_samp, var_samp and avg."),
}
"""Name of a function that Sluice does not have, or not in all its forms → what to use instead."""

_DOUBLES = STATISTICS_OF_ONE | STATISTICS_OF_TWO | {"percentile"}
_SUM_DIGITS, _AVG_DIGITS = 10, 4


def result_type(function: str, argument: str) -> str:
    """The type of a function's result, as in Spark's aggregate function with the same name."""
    if function in ("count", "count_distinct", "approx_count_distinct"):
        return "bigint"
    if function in ("collect_list", "collect_set", "top", "approx_percentiles"):
        return f"array<{argument}>"
    if function in ("min_by", "max_by"):
        return struct_fields(argument)["x"]
    if function in _DOUBLES:
        return "double"
    if function == "percentiles":
        return "array<double>"
    if argument.startswith("decimal") and function in ("sum", "avg"):
        precision, scale = precision_and_scale(argument)
        digits = _SUM_DIGITS if function == "sum" else _AVG_DIGITS
        scale += _AVG_DIGITS if function == "avg" else 0
        return f"decimal({min(precision + digits, MOST_DIGITS)},{min(scale, MOST_DIGITS)})"
    if function == "avg" or (function == "sum" and argument in ("float", "double")):
        return "double"
    return "bigint" if function == "sum" else argument
