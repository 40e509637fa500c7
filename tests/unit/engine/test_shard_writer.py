"""A worker writes one row of each key and window per batch: a sum, or the last change."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import Struct

from sluice import Pipeline, tumbling
from sluice.engine.batch.batch_start import BatchStart, batch_context, worker_context
from sluice.engine.batch.row_schemas import LAST, RETURNED_ROW, SORT_KEY, rows
from sluice.engine.batch.storage import Storage
from sluice.engine.combine.totals import Totals
from sluice.engine.publish.shard_writer import ShardWriter
from sluice.plan import plan
from sluice.settings import Settings
from sluice.state.model import StateRow
from sluice.state.shard import row_pages
from sluice.state.shard.local_shard import LocalShard
from sluice.state.shard.row_tuples import RowId

pytestmark = pytest.mark.unit

Counts = list[tuple[str, int, int]]
"""Key, window start, and the count in this window."""
COUNTS = st.lists(
    st.tuples(st.sampled_from(["", "a", "b"]), st.integers(-2, 12), st.integers(0, 3)), max_size=40
)


class Sale(Struct):
    shop: str
    amount: int


def writer(home: Path) -> tuple[ShardWriter, int]:
    """A writer of counts in windows of 10 ms, and the number of their group."""
    pipeline = Pipeline("sales", workers=1)
    by_shop = pipeline.stream("sales", value=Sale).group_by("shop")
    by_shop.windowed_by(tumbling("10 ms")).count(store="counts")
    job = plan(pipeline).job
    writes = ShardWriter.of(Storage.of(job, 1, Settings.read({})), 1, Totals.of(job, {}))
    url = f"sqlite:///{home}/worker-0.sqlite"
    LocalShard.create(url).close()
    return dataclasses.replace(writes, locations=(url,)), job.groups[0].number


def state_rows(group: int, counts: Counts) -> pa.RecordBatch:
    starts = [start * 10 for _, start, _ in counts]
    columns = {
        "key": pa.array([key for key, _, _ in counts], pa.string()),
        "window_start": pa.array(starts, pa.int64()),
        "window_end": pa.array([start + 10 for start in starts], pa.int64()),
        "value": pa.array([f"[{count}]" for _, _, count in counts], pa.string()),
    }
    return rows(len(counts), {"target": group, **columns})


@given(
    batches=st.lists(COUNTS, min_size=1, max_size=4), page_rows=st.sampled_from([1, 2, 7, 20_000])
)
def test_batches_in_pages_add_up_to_the_counts_of_all_rows(
    tmp_path_factory: pytest.TempPathFactory, batches: list[Counts], page_rows: int
) -> None:
    home = tmp_path_factory.mktemp("shard")
    writes, group = writer(home)
    expected: dict[RowId, int] = {}
    with pytest.MonkeyPatch.context() as patch, LocalShard.open(writes.locations[0]) as shard:
        patch.setattr(row_pages, "PAGE_ROWS", page_rows)
        for number, counts in enumerate(batches):
            for key, start, count in counts:
                row_id = (group, key, start * 10, start * 10 + 10)
                expected[row_id] = expected.get(row_id, 0) + count
            for _ in range(2):  # the second attempt repeats the batch
                with batch_context(BatchStart(number, 0)), worker_context(0):
                    list(writes(iter([state_rows(group, counts)])))
            assert shard.scan(group, number) == [
                StateRow(*row_id, f"[{count}]") for row_id, count in sorted(expected.items())
            ]
            shard.verify_rows(number)


STORE = 99
"""The number of an operator with a store. Only the last change of each of its rows is written."""
CHANGES = st.lists(
    st.tuples(
        st.booleans(),  # whether the row is of the group
        st.sampled_from(["a", "b"]),
        st.integers(0, 1),
        st.integers(0, 3),
        st.none() | st.integers(0, 3),
    )
)
"""Each change's target, key, window start, value, and the sequence in its position; rows of groups have no position."""


@given(changes=CHANGES)
def test_a_batch_has_the_sums_of_groups_and_the_last_changes_of_stores(
    tmp_path_factory: pytest.TempPathFactory, changes: list[tuple[bool, str, int, int, int | None]]
) -> None:
    writes, group = writer(tmp_path_factory.mktemp("shard"))
    given_rows: list[dict[str, object]] = []
    sums: dict[RowId, int] = {}
    last: dict[RowId, tuple[tuple[int, int], int]] = {}
    for origin, (is_of_group, key, start, value, sequence) in enumerate(changes):
        row_id = (group if is_of_group else STORE, key, start, start + 10)
        position = (LAST if sequence is None else sequence, origin)
        if is_of_group:
            sums[row_id] = sums.get(row_id, 0) + value
        else:
            last[row_id] = max(last.get(row_id, ((-1, 0), 0)), (position, value))
        row = dict(zip(StateRow.__struct_fields__, (*row_id, f"[{value}]"), strict=True))
        row["path"] = b""
        given_rows.append(row if is_of_group else row | {"sequence": position[0], "origin": origin})
    schema = pa.schema(
        [RETURNED_ROW.field(name) for name in (*StateRow.__struct_fields__, *SORT_KEY)]
    )
    written = writes._changed_rows(pa.Table.from_pylist(given_rows, schema))
    expected = sums | {row_id: value for row_id, (_, value) in last.items()}
    assert [tuple(row.values()) for row in written.to_pylist()] == [
        (*row_id, f"[{value}]") for row_id, value in sorted(expected.items())
    ]


def test_rows_that_occur_once_are_not_decoded(tmp_path: Path) -> None:
    writes, group = writer(tmp_path)
    counts = state_rows(group, [("a", 0, 1), ("b", 0, 2), ("a", 0, 3)])
    columns = {
        name: counts.column(name) for name in ("key", "window_start", "window_end", *SORT_KEY)
    }
    columns |= {
        "group_id": counts.column("target"),
        "value": pa.array(["[1]", "not decoded", "[2]"]),
    }
    written = writes._changed_rows(pa.table(columns))
    assert [(row["key"], row["value"]) for row in written.to_pylist()] == [
        ("a", "[3]"),
        ("b", "not decoded"),
    ]


def test_a_row_without_a_key_is_left_out(tmp_path: Path) -> None:
    writes, _ = writer(tmp_path)
    columns = {
        "group_id": [STORE, STORE],
        "key": ["a", None],
        "window_start": [0, 0],
        "window_end": [1, 1],
    }
    columns |= {"value": ["[1]", "[2]"], "sequence": [1, 2], "origin": [1, 2], "path": [b"", b""]}
    assert writes._changed_rows(pa.table(columns)).column("key").to_pylist() == ["a"]
