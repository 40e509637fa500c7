"""Totals in shards: adding batch to batch gives the values of one batch with all records."""

from __future__ import annotations

import json
from collections.abc import Sequence
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import Struct

from sluice import Pipeline
from sluice.engine.combine import totals as module
from sluice.engine.combine.totals import Totals, WindowedRecords
from sluice.plan import Job, plan
from tests.unit.engine.test_partial_aggregates import TYPES, Sale, job, windowed

Record = tuple[str, int, Any]
CENTS = st.none() | st.integers(-(10**12) + 1, 10**12 - 1).map(
    lambda cents: Decimal(cents).scaleb(-2)
)
RECORDS = st.lists(
    st.tuples(st.sampled_from("ab"), st.sampled_from([0, 100]), CENTS), min_size=1, max_size=20
)
AGGREGATES = {
    "n": "count(*)",
    "amounts": "count(amount)",
    "total": "sum(amount)",
    "least": "min(amount)",
    "most": "max(amount)",
}


class Shop(Struct):
    shop: str
    city: str


def totals_of(job: Job) -> Totals:
    return Totals.of(job, TYPES)


def number_of(totals: Totals) -> int:
    (number,) = totals.groups
    return number


def values(totals: Totals, records: Sequence[Record]) -> dict[tuple[str, int], str]:
    """Key and window start → the state row's value that a task makes of these records."""
    number = number_of(totals)
    task = WindowedRecords(totals)
    made = [*task.add_records(number, windowed(*records)), *task.rest()]
    rows = [row for batch in made for row in batch.to_pylist()]
    assert {row["target"] for row in rows} == {number}
    return {(row["key"], row["window_start"]): row["value"] for row in rows}


def test_a_state_row_has_the_json_of_its_stores() -> None:
    totals = totals_of(job(**AGGREGATES))
    found = values(totals, [("a", 0, Decimal("1.10")), ("a", 0, None), ("b", 100, None)])
    assert found == {
        ("a", 0): '[{"n":2,"amounts":1,"total":1.10,"least":1.10,"most":1.10}]',
        ("b", 100): '[{"n":1,"amounts":0,"total":null,"least":null,"most":null}]',
    }


@given(records=RECORDS, cut=st.integers(0, 20))
def test_two_batches_add_up_to_one(records: list[Record], cut: int) -> None:
    totals = totals_of(job(**AGGREGATES))
    parts = [values(totals, part) for part in (records[:cut], records[cut:]) if part]
    added = parts[0]
    for more in parts[1:]:
        added = added | {
            name: totals.combine(number_of(totals), added[name], new) if name in added else new
            for name, new in more.items()
        }
    assert added == values(totals, records)


def timed_totals() -> Totals:
    """The totals of a store whose changes are written to a topic."""
    pipeline = Pipeline("p")
    sums = pipeline.stream("sales", value=Sale).group_by("shop").aggregate(AGGREGATES, store="of")
    shops = pipeline.global_table("shops", value=Shop, key="shop")
    sums.join(shops).select(total="left.total", city="right.city").to("sums")
    return totals_of(plan(pipeline).job)


def rows_of_batches(
    totals: Totals,
    batches: Sequence[Sequence[Record]],
    combined_records: int,
    most_rows: int,
    share: float,
) -> list[dict[str, Any]]:
    """The state rows that a task makes if it combines so many records at once, and keeps so many rows.

    It keeps no rows to which new records add this share of other rows.
    """
    number = number_of(totals)
    task = WindowedRecords(totals)
    found: list[pa.RecordBatch] = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "_COMBINED_RECORDS", combined_records)
        patch.setattr(module, "_MOST_ROWS", most_rows)
        patch.setattr(module, "_SHARE_OF_OTHERS", share)
        for records in batches:
            found += task.add_records(number, windowed(*records))
        found += task.rest()
    return [row for rows in found for row in rows.to_pylist()]


def added_up(totals: Totals, rows: list[dict[str, Any]]) -> dict[tuple[str, int], str]:
    """Like `values`, for rows of which several may have the same key and window."""
    added: dict[tuple[str, int], str] = {}
    for row in rows:
        name = row["key"], row["window_start"]
        assert row["window_end"] == row["window_start"] + 100
        added[name] = (
            totals.combine(number_of(totals), added[name], row["value"])
            if name in added
            else row["value"]
        )
    return added


@pytest.mark.parametrize(
    "totals", [totals_of(job(**AGGREGATES)), timed_totals()], ids=["untimed", "timed"]
)
@given(
    batches=st.lists(RECORDS, min_size=1, max_size=5),
    combined_records=st.integers(1, 30),
    most_rows=st.sampled_from([1, 2, 3, 1_000]),
    share=st.sampled_from([0.0, 0.8, 1_000.0]),
)
def test_rows_that_a_task_makes_before_its_end_add_up_to_those_of_its_end(
    totals: Totals, batches: list[list[Record]], combined_records: int, most_rows: int, share: float
) -> None:
    at_the_end = rows_of_batches(totals, batches, 1_000, 1_000, 1_000.0)
    rows = rows_of_batches(totals, batches, combined_records, most_rows, share)
    assert added_up(totals, rows) == added_up(totals, at_the_end)
    # As long as a task may keep all of its rows, it makes one for each key and window.
    if (most_rows, share) == (1_000, 1_000.0):
        assert rows == at_the_end


def test_sums_of_many_digits_stay_exact() -> None:
    totals = totals_of(job(total="sum(amount)"))
    first, second = '[{"total":99999999999999999999999999999999.99}]', '[{"total":0.02}]'
    assert (
        totals.combine(number_of(totals), first, second)
        == '[{"total":100000000000000000000000000000000.01}]'
    )


def test_a_store_whose_changes_are_written_to_a_topic_also_has_the_largest_event_time() -> None:
    pipeline = Pipeline("p")
    sums = (
        pipeline.stream("sales", value=Sale)
        .group_by("shop")
        .aggregate(total="sum(amount)", store="of")
    )
    shops = pipeline.global_table("shops", value=Shop, key="shop")
    sums.join(shops).select(total="left.total", city="right.city").to("sums")
    totals = totals_of(plan(pipeline).job)
    records = [("a", 7, Decimal(1)), ("a", 3, Decimal(2))]
    (value,) = {key: text for (key, _), text in values(totals, records[:1]).items()}.values()
    assert json.loads(value) == [{"total": 1.0}, 7]
    assert totals.time(value) == 7
    assert totals.time(totals.combine(number_of(totals), value, '[{"total":2.00},4]')) == 7


def test_a_store_whose_output_was_removed_continues_from_its_values() -> None:
    totals = totals_of(job(total="sum(amount)"))
    assert (
        totals.combine(number_of(totals), '[{"total":1.10},7]', '[{"total":2.00}]')
        == '[{"total":3.10}]'
    )
