"""Names and calls of aggregate functions."""

from __future__ import annotations

from typing import Literal, TypeAlias

AggregateFunction: TypeAlias = tuple[str, str | None, tuple[float, ...]]
"""A function's name, its argument's SQL (None for `count(*)`), and its parameters, such as 3 in
`top(x, 3)`. The argument of a function of two columns is an object with the fields `x` and `y`."""

STATISTICS_OF_ONE = frozenset(
    {"var_samp", "var_pop", "stddev_samp", "stddev_pop", "skewness", "kurtosis"}
)
STATISTICS_OF_TWO = frozenset({"covar_samp", "covar_pop", "corr"})
"""Statistics of two columns of doubles."""
OF_PAIRS = STATISTICS_OF_TWO | {"min_by", "max_by"}
"""Functions of two columns."""

Takes: TypeAlias = Literal[
    "anything", "a number", "a whole number", "a condition", "a value with an order"
]
"""The requirements on a function's argument: in SQL, and in words. Objects, lists, maps and bytes
have no order."""

ARGUMENTS: dict[str, tuple[Takes, ...]] = {
    **dict.fromkeys(("sum", "avg", "percentile", "percentiles"), ("a number",)),
    **dict.fromkeys(("approx_percentile", "approx_percentiles", *STATISTICS_OF_ONE), ("a number",)),
    **dict.fromkeys(STATISTICS_OF_TWO, ("a number", "a number")),
    **dict.fromkeys(("min", "max", "top"), ("a value with an order",)),
    **dict.fromkeys(("min_by", "max_by"), ("anything", "a value with an order")),
    **dict.fromkeys(("bool_and", "bool_or"), ("a condition",)),
    **dict.fromkeys(("bit_and", "bit_or", "bit_xor"), ("a whole number",)),
}  # fmt: skip
"""Function → the requirements on each of its arguments. Other functions take arguments of any
type."""

SUBTRACTABLE = STATISTICS_OF_ONE | STATISTICS_OF_TWO | {
    "count", "count_distinct", "sum", "avg", "min", "max", "min_by", "max_by", "top",
    "collect_list", "collect_set", "collect_sorted", "bool_and", "bool_or", "percentile",
    "percentiles", "mode",
}  # fmt: skip
"""The functions that can aggregate a table, because they can subtract the old value of a row."""

UNORDERED = frozenset({
    "count", "count_distinct", "sum", "avg", "min", "max", "top", "bool_and", "bool_or",
    "percentile", "percentiles", "mode",
})  # fmt: skip
"""The functions over a table whose results do not depend on the order of its changes. Subtracting a
value and adding it again changes nothing."""
