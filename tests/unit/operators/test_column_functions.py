"""Functions over columns: numbers that 64 bits cannot hold exactly are left to the operators."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from sluice.operators.aggregation.aggregate_functions import Function
from sluice.operators.aggregation.calculation import Functions
from sluice.operators.aggregation.column_functions import ColumnFunctions, WindowAggregates
from sluice.operators.aggregation.number_columns import NumbersTooLargeError
from sluice.operators.aggregation.window_ranges import WindowRanges
from sluice.operators.exact_sums import Exact


def aggregated(function: Function, *values: str) -> WindowAggregates:
    """The aggregates of one window with all values."""
    functions = ColumnFunctions.of(Functions(function), in_order=False)
    assert functions is not None
    one = [np.array([number], np.int64) for number in (0, 0, 10, 0, len(values))]
    return functions.aggregates(pa.array([f"[{value}]" for value in values]), WindowRanges(*one))


@pytest.mark.parametrize(
    ("kind", "values", "result", "aggregate"),
    [
        (int, ["4611686018427387900", "-1"], None, None),
        (int, ["2", "null", "3"], "[5]", (2, 5)),
        (int, ["null"], "[null]", (0, 0)),
        (Decimal, ["1.50", "-1.25"], "[0.25]", (2, Decimal("0.25"))),
        (Decimal, ["0.000001"], "[0.000001]", (1, Decimal("0.000001"))),
        (Decimal, ["1.5", "1.25"], None, None),
        (Decimal, ["0.0000001"], None, None),
        (Decimal, ["99999999999999999999"], None, None),
    ],
)
def test_a_sum_is_exact_or_left_to_the_operator(
    kind: type, values: list[str], result: Any, aggregate: Any
) -> None:
    function = Function("sum", kind)
    if result is None:
        with pytest.raises(NumbersTooLargeError):
            aggregated(function, *values)
        return
    sums = aggregated(function, *values)
    assert sums.results().to_pylist() == [result]
    assert sums.aggregates(np.array([0])) == [(aggregate,)]
    functions = Functions(function)
    added = functions.new_aggregate()
    for value in values:
        added = functions.add("key", added, functions.read(f"[{value}]"))
    assert (functions.result(added), added) == (result, (aggregate,))


def test_a_held_sum_of_many_digits_is_left_to_the_operator() -> None:
    functions = ColumnFunctions.of(Functions(Function("sum", Decimal)), in_order=False)
    assert functions is not None
    held, larger = Decimal("1" + 35 * "0"), Decimal("1" + 36 * "0")
    assert functions.merge(((1, held),), ((1, Decimal(1)),)) == (
        (2, Decimal("1" + 34 * "0" + "1")),
    )
    with pytest.raises(NumbersTooLargeError):
        functions.merge(((1, larger),), ((1, Decimal(1)),))


@pytest.mark.parametrize("held", [Exact(1, 1_023), Exact(1, 1_024), Exact(-1, 5_000)])
def test_a_held_sum_near_or_above_the_largest_double_is_left_to_the_operator(held: Exact) -> None:
    functions = ColumnFunctions.of(Functions(Function("sum", float)), in_order=False)
    assert functions is not None
    with pytest.raises(NumbersTooLargeError):
        functions.merge(((1, held),), ((1, Exact(1)),))


def test_a_held_sum_whose_average_has_too_many_digits_is_left_to_the_operator() -> None:
    functions = ColumnFunctions.of(Functions(Function("avg", Decimal)), in_order=False)
    assert functions is not None
    held = Decimal("1" + 34 * "0" + ".1")
    with pytest.raises(NumbersTooLargeError):
        functions.merge(((1, held),), ((1, Decimal("0.1")),))


def test_functions_that_need_the_order_of_records_are_not_computed_in_columns() -> None:
    first = Functions(Function("count"), Function("first", int))
    assert ColumnFunctions.of(first, in_order=False) is None
    assert ColumnFunctions.of(first, in_order=True) is not None
    assert ColumnFunctions.of(Functions(Function("stddev_samp", float)), in_order=True) is None
