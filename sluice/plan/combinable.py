"""Finds combinable aggregates: a shard can add up their partial results in any order.

Combinable aggregates are counts, and sums, minima and maxima of integers and decimals. The shard
adds up numbers from JSON. Therefore decimals are combinable only if JSON writes them without an
exponent.
"""

from __future__ import annotations

from dataclasses import dataclass

from sluice.sql.aggregate_expressions import SplitAggregate, split_aggregate
from sluice.sql.typed_expression import type_of
from sluice.sql.types import PLAIN_SCALE, Types, is_decimal, is_integer
from sluice.topology import nodes
from sluice.values.record_metadata import METADATA
from sluice.values.sql_types import MOST_DIGITS, SUM_DIGITS, precision_and_scale


@dataclass(frozen=True)
class CombinableFunction:
    """An aggregate function and the SQL of its argument. For `count(*)`, there is no argument."""

    name: str
    """count, sum, min or max."""
    argument: str | None


def combinable_function(text: str, types: Types) -> CombinableFunction | None:
    """Return the function of an aggregate over fields of these types.

    Return None if the aggregate is not combinable.

    Integers are summed as decimals, whose sum cannot overflow.
    """
    parts = split_aggregate(text)
    # A shard adds up a column's values, so the column must be just the result of one function,
    # `a0`.
    if not isinstance(parts, SplitAggregate) or parts.text != "a0":
        return None
    ((name, argument, _),) = parts.functions
    if name == "count":
        return CombinableFunction("count", argument)
    if argument is None or name not in ("sum", "min", "max"):
        return None
    kind = type_of(argument, types)
    if is_integer(kind):
        # A sum of type BIGINT could overflow in some orders of the records, but not in others.
        if name == "sum":
            argument = f"CAST({argument} AS DECIMAL(20, 0))"
        return CombinableFunction(name, argument)
    if is_decimal(kind):
        precision, scale = precision_and_scale(kind)
        # If a decimal would have more than `MOST_DIGITS` digits, Spark gives it fewer decimal
        # places. So the number of decimal places is unknown if a type has `MOST_DIGITS` digits.
        is_known = precision < MOST_DIGITS
        if name == "sum":
            is_known = precision + SUM_DIGITS <= MOST_DIGITS
        # Decimals with more than `PLAIN_SCALE` decimal places may have an exponent in JSON.
        if is_known and scale <= PLAIN_SCALE:
            return CombinableFunction(name, argument)
    return None


def why_not_combinable(node: nodes.Aggregate) -> str:
    """Return the reason why the functions of an aggregate are not combinable.

    Return an empty text if they are.
    """
    types = node.parent.result_types | METADATA
    for text in node.columns.values():
        if combinable_function(text, types) is None:
            return f"{text} is computed record by record"
    return ""
