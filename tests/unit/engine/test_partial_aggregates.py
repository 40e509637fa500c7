"""Aggregation within a task: one row per state row, and nothing is lost."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import Struct

from sluice import Decimal2, Pipeline, tumbling
from sluice.engine.combine.partial_aggregates import PartialAggregates
from sluice.errors import EngineError
from sluice.plan import AggregationGroup, Job, plan
from sluice.plan.combinable import CombinableFunction, combinable_function

TYPES = {
    "s0_amount": "decimal(12,2)",
    "s0_number": "bigint",
    "s0_share": "double",
    "s0_shop": "string",
}


class Sale(Struct):
    shop: str
    amount: Decimal2
    number: int
    share: float


def job(**columns: str) -> Job:
    pipeline = Pipeline("p")
    shops = pipeline.stream("sales", value=Sale).group_by("shop")
    shops.windowed_by(tumbling("100 ms")).aggregate(columns, store="of")
    return plan(pipeline).job


def group(**columns: str) -> AggregationGroup:
    (only,) = job(**columns).groups
    return only


def aggregates(**columns: str) -> PartialAggregates:
    return PartialAggregates.of(group(**columns).store_columns, TYPES)


def windowed(*records: tuple[str, int, Any]) -> pa.RecordBatch:
    """One row per record: key, window start, amount."""
    keys, starts, values = zip(*records, strict=True)
    return pa.RecordBatch.from_pydict({
        "key": pa.array(keys),
        "window_start": pa.array(starts, pa.int64()),
        "window_end": pa.array([start + 100 for start in starts], pa.int64()),
        "time": pa.array([start + number for number, start in enumerate(starts)], pa.int64()),
        "s0_amount": pa.array(values, pa.decimal128(12, 2)),
    })  # fmt: skip


def combined(
    partial: PartialAggregates, *batches: pa.RecordBatch
) -> dict[tuple[str, int], tuple[Any, ...]]:
    """The partial aggregates of each state row."""
    rows = partial.combine(pa.Table.from_batches(batches)).to_pylist()
    results = {
        (row["key"], row["window_start"]): tuple(row[part.column] for part in partial.parts)
        for row in rows
    }
    assert len(results) == len(rows)
    return results


def test_a_task_passes_on_one_row_per_state_row() -> None:
    partial = aggregates(n="count(*)", total="sum(amount)", least="min(amount)", most="max(amount)")
    first = windowed(
        ("a", 0, Decimal("1.10")), ("b", 0, Decimal("2.00")), ("a", 100, Decimal("7.00"))
    )
    second = windowed(("a", 0, Decimal("0.25")))
    assert combined(partial, first, second) == {
        ("a", 0): (2, Decimal("1.35"), Decimal("0.25"), Decimal("1.10")),
        ("b", 0): (1, Decimal("2.00"), Decimal("2.00"), Decimal("2.00")),
        ("a", 100): (1, Decimal("7.00"), Decimal("7.00"), Decimal("7.00")),
    }


def test_a_row_has_the_end_of_its_window_and_the_largest_time_of_its_records() -> None:
    records = windowed(("a", 100, Decimal(1)), ("a", 100, Decimal(2)))
    (row,) = aggregates(n="count(*)").combine(pa.Table.from_batches([records])).to_pylist()
    assert (row["window_end"], row["time"]) == (200, 101)


def test_nulls_count_as_spark_counts_them() -> None:
    partial = aggregates(all="count(*)", there="count(amount)", total="sum(amount)")
    result = combined(partial, windowed(("a", 0, None), ("a", 0, Decimal("5.00")), ("b", 0, None)))
    assert result == {("a", 0): (2, 1, Decimal("5.00")), ("b", 0): (1, 0, None)}


def test_a_sum_has_the_digits_that_spark_gives_it() -> None:
    assert [part.type for part in aggregates(total="sum(amount)").parts] == [pa.decimal128(22, 2)]


FIELDS = {"a": "DECIMAL(12,2)", "i": "BIGINT", "d": "DOUBLE", "s": "STRING", "b": "BOOLEAN", "o": "STRUCT<a: BIGINT>",
          "long": "DECIMAL(30,2)", "places": "DECIMAL(20,7)"}  # fmt: skip


@pytest.mark.parametrize(
    ("text", "function", "argument"),
    [
        ("count(*)", "count", None),
        ("COUNT(s)", "count", "s"),
        ("count(*) FILTER (WHERE b)", "count", "IF(b, TRUE, NULL)"),
        ("sum(`a`)", "sum", "`a`"),
        ("sum(i)", "sum", "CAST(i AS DECIMAL(20, 0))"),
        ("sum(o.a)", "sum", "CAST(o.a AS DECIMAL(20, 0))"),
        ("sum(a * 2)", "sum", "a * 2"),
        ("sum(a) FILTER (WHERE b)", "sum", "IF(b, a, NULL)"),
        ("min(i)", "min", "i"),
        ("max(long)", "max", "long"),
    ],
)
def test_which_aggregates_are_combinable(text: str, function: str, argument: str | None) -> None:
    found = combinable_function(text, FIELDS)
    assert found is not None
    assert (found.name, found.argument) == (function, argument)
    assert isinstance(found, CombinableFunction)


@pytest.mark.parametrize(
    "text",
    [
        "sum(d)", "sum(a) + 1", "sum(a) / count(*)", "count(DISTINCT s)", "max_by(a, i)", "stddev(a)", "min(d)",
        "sum(long)", "sum(places)", "min(places)", "first(a)", "collect_list(a)", "sum(unknown(a))",
    ],
)  # fmt: skip
def test_which_aggregates_are_not(text: str) -> None:
    assert combinable_function(text, FIELDS) is None


def test_a_column_of_another_type_than_the_plans_ends_the_run_with_advice() -> None:
    with pytest.raises(EngineError, match=r"decimal\(20,7\)"):
        PartialAggregates.of(
            group(total="sum(amount)").store_columns, TYPES | {"s0_amount": "decimal(20,7)"}
        )


records = st.lists(
    st.tuples(st.sampled_from("abc"), st.sampled_from([0, 100, 200]), st.integers(-9999, 9999)),
    min_size=1,
)


@given(st.lists(records, min_size=1, max_size=4))
def test_partial_aggregation_loses_nothing(batches: list[list[tuple[str, int, int]]]) -> None:
    partial = aggregates(n="count(*)", total="sum(amount)")
    expected: dict[tuple[str, int], tuple[int, Decimal]] = {}
    for key, start, cents in (record for batch in batches for record in batch):
        count, total = expected.get((key, start), (0, Decimal(0)))
        expected[key, start] = (count + 1, total + Decimal(cents).scaleb(-2))
    made = [
        windowed(*((key, start, Decimal(cents).scaleb(-2)) for key, start, cents in batch))
        for batch in batches
    ]
    assert combined(partial, *made) == expected
