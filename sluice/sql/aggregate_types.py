"""Finds the types of aggregates' results. For other functions, see `result_types` and `rules`."""

from __future__ import annotations

from sluice.values.aggregate_calls import STATISTICS_OF_ONE, STATISTICS_OF_TWO
from sluice.values.sql_types import (
    average_digits,
    precision_and_scale,
    struct_fields,
    sum_digits,
)

_OF_DOUBLES = STATISTICS_OF_ONE | STATISTICS_OF_TWO | {"percentile"}


def type_of_aggregate(function: str, argument: str) -> str:
    """Return the type of an aggregate's result, which is the same as in Spark."""
    if function in ("count", "count_distinct", "approx_count_distinct"):
        return "bigint"
    if function in ("collect_list", "collect_set", "collect_sorted", "top", "approx_percentiles"):
        return f"array<{argument}>"
    if function in ("min_by", "max_by"):
        return struct_fields(argument)["x"]
    if function in _OF_DOUBLES:
        return "double"
    if function == "percentiles":
        return "array<double>"
    if argument.startswith("decimal") and function in ("sum", "avg"):
        digits_of = sum_digits if function == "sum" else average_digits
        precision, scale = digits_of(*precision_and_scale(argument))
        return f"decimal({precision},{scale})"
    if function == "avg" or (function == "sum" and argument in ("float", "double")):
        return "double"
    if function == "sum":
        return "bigint"
    return argument
