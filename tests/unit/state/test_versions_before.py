"""The earlier versions of a batch's rows. Windows that start after the newest window of their key are not looked up."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sluice.state.model import NO_WINDOW, GenerationRef
from sluice.state.shard.addresses import location
from sluice.state.shard.local_shard import LocalShard
from sluice.state.shard.row_columns import RowColumns, RowIds
from sluice.state.shard.row_tuples import RowId
from tests.support.state_rows import ids_of, page_of, write_rows

pytestmark = pytest.mark.unit

WINDOWS = st.tuples(st.integers(-3, 12), st.integers(1, 2)).map(
    lambda window: (window[0], sum(window))
)
IDS = st.tuples(
    st.integers(0, 1), st.sampled_from(["", "\0b"]), WINDOWS | st.just((NO_WINDOW, NO_WINDOW))
).map(lambda parts: (parts[0], parts[1], *parts[2]))
VALUES = st.none() | st.integers(0, 9).map(lambda number: f"[{number}]")


@given(
    batches=st.lists(st.dictionaries(IDS, VALUES, max_size=40), min_size=1, max_size=4),
    ids=st.lists(IDS, unique=True, min_size=16, max_size=60),
)
def test_the_versions_before_a_batch_are_the_last_ones_written(
    tmp_path_factory: pytest.TempPathFactory,
    batches: list[dict[RowId, str | None]],
    ids: list[RowId],
) -> None:
    """The 16 rows or more belong to at most four keys, so the shard is asked for the newest window of each key."""
    written: dict[RowId, str | None] = {}
    with LocalShard.create(
        f"sqlite:///{tmp_path_factory.mktemp('shard')}/worker-0.sqlite"
    ) as shard:
        for number, batch in enumerate(batches):
            before = shard.rows_before(number, ids_of(ids), epoch=0)
            assert {ids[place]: version[:5] for place, version in before.items()} == {
                row_id: (*row_id, value)
                for row_id in ids
                if (value := written.get(row_id)) is not None
            }
            write_rows(shard, number, [(*row_id, value) for row_id, value in batch.items()])
            written |= batch
            shard.verify_rows(number)


def test_windows_after_the_newest_one_of_their_key_are_not_looked_up(database: str) -> None:
    with LocalShard.create(location(database, GenerationRef("orders", 1), 0)) as shard:
        write_rows(
            shard,
            0,
            [
                (0, "a", 10, 20, "[1]"),
                (0, "a", 20, 30, "[1]"),
                (1, "b", 30, 40, None),
                (1, "a", 5, 9, "[1]"),
            ],
        )
        keys = [(0, "a"), (0, "\0"), (1, "a"), (1, "b")]
        ids = ids_of([(*key, start, start + 10) for key in keys for start in range(0, 50, 10)])
        places = shard._places_to_look_up(ids)
        assert [[*ids][place][:3] for place in places] == [
            (0, "a", 0), (0, "a", 10), (0, "a", 20), (1, "a", 0),
        ]  # fmt: skip
        few = ids_of([(0, "a", start, start + 10) for start in (0, 90)])
        assert [*shard._places_to_look_up(few)] == [0, 1], (
            "asking for the newest window would take as long"
        )


def test_only_tombstones_of_stored_rows_are_kept() -> None:
    rows = page_of(
        [(0, "a", 5, 6, None), (0, "a", 5, 7, None), (0, "a", 5, 8, "[3]"), (0, "b", 5, 8, None)]
    )
    assert [row[1:5] for row in rows.with_needed_tombstones({1, 2})] == [
        ("a", 5, 7, None),
        ("a", 5, 8, "[3]"),
    ]
    assert [*rows.with_needed_tombstones({0, 1, 3})] == [*rows]


def test_columns_of_different_lengths_are_rejected() -> None:
    with pytest.raises(ValueError, match="differ in length"):
        RowIds([0], ["a", "b"], [0, 0], [1, 1])
    with pytest.raises(ValueError, match="differ in length"):
        RowColumns(ids_of([(0, "a", 0, 1)]), ["[1]"], [])
    with pytest.raises(msgspec.ValidationError, match="differ in length"):
        msgspec.msgpack.decode(msgspec.msgpack.encode(([0], ["a", "b"], [0], [1])), type=RowIds)
