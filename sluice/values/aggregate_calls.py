"""Names and calls of aggregate functions."""

from __future__ import annotations

from typing import TypeAlias

AggregateFunction: TypeAlias = tuple[str, str | None, tuple[float, ...]]
"""A function's name, the SQL of its argument (None for `count(*)`), and its constant parameters: 3 in `top(x, 3)`.

The argument of a function of two columns is an object of `x` and `y`.
"""

STATISTICS_OF_ONE = frozenset({"var_samp", "var_pop", "stddev_samp", "stddev_pop", "skewness", "kurtosis"})
STATISTICS_OF_TWO = frozenset({"covar_samp", "covar_pop", "corr"})
"""Statistics of two columns of doubles."""
OF_PAIRS = STATISTICS_OF_TWO | {"min_by", "max_by"}
"""Functions of two columns."""
