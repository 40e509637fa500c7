"""Partial aggregation within a task does not change the operator's results."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import Struct

from sluice import Decimal2, Pipeline, tumbling
from sluice.engine.fused.partial_aggregates import STATE_COLUMNS, Combiner
from sluice.plan import FusedJob, plan
from sluice.sql.expressions import mergeable

AMOUNT = pa.decimal128(12, 2)
TYPES = {"s0_amount": AMOUNT, "s0_number": pa.int64(), "s0_share": pa.float64(), "s0_shop": pa.string()}


class Sale(Struct):
    shop: str
    amount: Decimal2
    number: int
    share: float


def job(**columns: str) -> FusedJob:
    pipeline = Pipeline("p")
    shops = pipeline.stream("sales", value=Sale).group_by("shop")
    shops.windowed_by(tumbling("100 ms")).aggregate(columns, store="of")
    only = plan(pipeline).job
    assert isinstance(only, FusedJob)
    return only


def state_rows(*records: tuple[str, int, Any], column: str = "s0_amount") -> pa.RecordBatch:
    """One row per record: key, window start, value."""
    keys, starts, values = zip(*records, strict=True)
    time = pa.timestamp("us", tz="UTC")
    columns = {
        "group_id": pa.array([0] * len(keys), pa.int32()),
        "key": pa.array(keys),
        "window_start": pa.array(starts, pa.int64()),
        "window_end": pa.array([start + 100 for start in starts], pa.int64()),
        "expires_at": pa.array([(start + 100) * 1000 for start in starts], pa.int64()).cast(time),
        "closed_at": pa.array([0] * len(keys), pa.int64()).cast(time),
        "time": pa.array([start + number for number, start in enumerate(starts)], pa.int64()),
    }
    others = {name: pa.nulls(len(keys), kind) for name, kind in TYPES.items() if name != column}
    return pa.RecordBatch.from_pydict(columns | {column: pa.array(values, TYPES[column])} | others)


def combined(combiner: Combiner, *batches: pa.RecordBatch) -> dict[tuple[str, int], tuple[Any, ...]]:
    """The partial aggregates that reach the operator, one row per state row."""
    rows = [row for batch in combiner(iter(batches)) for row in batch.to_pylist()]
    parts = list(combiner.columns)
    results = {(row["key"], row["window_start"]): tuple(row[part] for part in parts) for row in rows}
    assert len(results) == len(rows)
    return results


def test_a_task_passes_on_one_row_per_state_row() -> None:
    combiner = Combiner.of(job(n="count(*)", total="sum(amount)", least="min(amount)", most="max(amount)"), TYPES)
    first = state_rows(("a", 0, Decimal("1.10")), ("b", 0, Decimal("2.00")), ("a", 100, Decimal("7.00")))
    second = state_rows(("a", 0, Decimal("0.25")))
    assert combined(combiner, first, second) == {
        ("a", 0): (2, Decimal("1.35"), Decimal("0.25"), Decimal("1.10")),
        ("b", 0): (1, Decimal("2.00"), Decimal("2.00"), Decimal("2.00")),
        ("a", 100): (1, Decimal("7.00"), Decimal("7.00"), Decimal("7.00")),
    }


def test_the_columns_that_identify_a_state_row_are_kept() -> None:
    combiner = Combiner.of(job(n="count(*)"), TYPES)
    (batch,) = combiner(iter([state_rows(("a", 100, Decimal(1)), ("a", 100, Decimal(2)))]))
    assert batch.schema.names == [*STATE_COLUMNS, "m0"]
    row = batch.to_pylist()[0]
    assert (row["group_id"], row["window_end"], row["expires_at"].timestamp()) == (0, 200, 0.2)
    assert row["time"] == 101, "the largest of the records' times"


def test_nulls_count_as_spark_counts_them() -> None:
    combiner = Combiner.of(job(all="count(*)", there="count(amount)", total="sum(amount)"), TYPES)
    result = combined(combiner, state_rows(("a", 0, None), ("a", 0, Decimal("5.00")), ("b", 0, None)))
    assert result == {("a", 0): (2, 1, Decimal("5.00")), ("b", 0): (1, 0, None)}


def test_a_sum_has_the_digits_that_spark_gives_it() -> None:
    combiner = Combiner.of(job(total="sum(amount)"), TYPES)
    assert combiner.columns == {"m0": pa.decimal128(22, 2)}
    assert combiner.parts[0]["sum(s0_amount)"].sql == "CAST(sum(m0) AS DECIMAL(22,2))"


@pytest.mark.parametrize("text", ["avg(amount)", "stddev(amount)", "max(share)"])
def test_other_aggregates_pass_on_every_record(text: str) -> None:
    combiner = Combiner.of(job(n="count(*)", value=text), TYPES)
    assert combiner.parts == {}
    column = "s0_share" if "share" in text else "s0_amount"
    value = 0.5 if "share" in text else Decimal("1.00")
    (batch,) = combiner(iter([state_rows(("a", 0, value), ("a", 0, value), column=column)]))
    assert batch.schema.names == [*STATE_COLUMNS, column]
    assert batch.column(column).to_pylist() == [value, value]


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("count(*)", ("count", None)),
        ("COUNT(a)", ("count", "a")),
        ("sum(`a b`)", ("sum", "a b")),
        ("min(a)", ("min", "a")),
        ("sum(a.b)", None),
        ("sum(a) + 1", None),
        ("sum(DISTINCT a)", None),
        ("count(a, b)", None),
        ("sum(a) FILTER (WHERE b)", None),
        ("max_by(a, b)", None),
    ],
)
def test_which_aggregates_can_be_combined_early(text: str, parts: tuple[str, str | None] | None) -> None:
    assert mergeable(text) == parts


records = st.lists(
    st.tuples(st.sampled_from("abc"), st.sampled_from([0, 100, 200]), st.integers(-9999, 9999)), min_size=1
)


@given(st.lists(records, min_size=1, max_size=4))
def test_partial_aggregation_loses_nothing(batches: list[list[tuple[str, int, int]]]) -> None:
    combiner = Combiner.of(job(n="count(*)", total="sum(amount)"), TYPES)
    expected: dict[tuple[str, int], tuple[int, Decimal]] = {}
    for key, start, cents in (record for batch in batches for record in batch):
        count, total = expected.get((key, start), (0, Decimal(0)))
        expected[key, start] = (count + 1, total + Decimal(cents).scaleb(-2))
    made = [state_rows(*((key, start, Decimal(cents).scaleb(-2)) for key, start, cents in batch)) for batch in batches]
    assert combined(combiner, *made) == expected
