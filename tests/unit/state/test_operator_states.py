"""Operator states in a shard: one writer, versions per batch, and detection of lost rows."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sluice.errors import DamagedState, EngineError, LeaseError
from sluice.state.model import NO_WINDOW, GenerationRef
from sluice.state.shard.addresses import location
from sluice.state.shard.checksums import NO_CHECKSUM
from sluice.state.shard.local_shard import LocalShard
from sluice.state.shard.operator_states import State
from sluice.state.shard.postgres_driver import escape, unescape
from sluice.state.shard.ranges import RowRange
from tests.support.state_rows import write_rows

pytestmark = pytest.mark.unit

SUM, JOIN = 3, 4
KEYS_WITH_NUL = [
    "",
    "\0",
    "\0\0",
    "\0shared",
    "\0\1",
    "\1",
    "\1\0",
    "\1\1",
    "\1\2",
    "\2",
    "a",
    "a\0",
    "a\0b",
    "a\1",
    "ab",
]


@pytest.fixture
def shard(database: str) -> LocalShard:
    return LocalShard.create(location(database, GenerationRef("orders", 1), 0))


def run(
    shard: LocalShard, batch: int, epoch: int = 1, operator: int = SUM, **adds: int
) -> dict[str, int]:
    """Add a number to each key's state, as a task does; 0 deletes the key."""
    kept = shard.read_states(operator, list(adds), batch, epoch)
    sums = {
        key: add + int((kept[key].data or 0) if key in kept else 0) for key, add in adds.items()
    }
    states = []
    for key, add in adds.items():
        replaced = kept[key].version if key in kept else None
        states.append(
            State(operator, key, str(sums[key]).encode() if add else None, replaces=replaced)
        )
    shard.write_states(batch, [operator], states, epoch)
    return sums


def kept(shard: LocalShard, batch: int, *keys: str) -> dict[str, bytes]:
    states = shard.read_states(SUM, keys, batch + 1, 99)
    return {key: state.data for key, state in states.items() if state.data is not None}


def test_a_repeated_batch_starts_from_the_same_states(shard: LocalShard) -> None:
    assert run(shard, 0, a=1, b=2) == {"a": 1, "b": 2}
    assert run(shard, 1, a=10) == {"a": 11}
    assert run(shard, 1, a=10, c=1) == {"a": 11, "c": 1}
    assert run(shard, 2, a=0, b=5) == {"a": 11, "b": 7}
    assert kept(shard, 2, "a", "b", "c") == {"b": b"7", "c": b"1"}
    shard.verify_states(2)
    shard.verify_states(1)


def test_a_state_that_stays_the_same_is_not_written_again(shard: LocalShard) -> None:
    run(shard, 0, a=1, b=2)
    state = shard.read_states(SUM, ["a"], 1, 1)["a"]
    shard.write_states(1, [SUM], [State(SUM, "a", state.data, replaces=state.version)], 1)
    assert [version.batch for version in shard.state_versions(0, None, 10)] == [0, 0]
    assert kept(shard, 1, "a", "b") == {"a": b"1", "b": b"2"}
    shard.verify_states(1)


def test_a_key_keeps_two_versions_even_if_it_was_deleted_in_between(shard: LocalShard) -> None:
    for batch, add in enumerate((1, 0, 3, 4)):
        run(shard, batch, a=add, b=1)
    assert [(version.key, version.batch) for version in shard.state_versions(0, None, 10)] == [
        ("a", 2), ("a", 3), ("b", 2), ("b", 3),
    ]  # fmt: skip
    assert kept(shard, 3, "a", "b") == {"a": b"7", "b": b"4"}
    shard.verify_states(3)


def test_a_driver_without_the_lease_neither_writes_nor_reads(shard: LocalShard) -> None:
    run(shard, 0, epoch=1, a=1)
    stopped = shard.read_states(SUM, ["a"], 1, 1)
    run(shard, 1, epoch=2, a=10)
    run(shard, 2, epoch=3, a=100)
    with pytest.raises(LeaseError, match="lost its lease"):
        shard.write_states(1, [SUM], [State(SUM, "a", b"11", replaces=stopped["a"].version)], 1)
    for batch in (1, 3):
        with pytest.raises(LeaseError):
            shard.read_states(SUM, ["a"], batch, 2)
        with pytest.raises(LeaseError):
            shard.due_keys(SUM, 10, batch, 2)
    with pytest.raises(LeaseError):
        write_rows(shard, 1, [(0, "a", NO_WINDOW, NO_WINDOW, "[1]")], 2)
    with pytest.raises(LeaseError):
        shard.expire_windows(1, {0: 5}, 2)
    assert kept(shard, 2, "a") == {"a": b"111"}
    shard.verify_states(2)


def test_a_new_driver_fences_its_predecessor_at_once(shard: LocalShard) -> None:
    run(shard, 0, epoch=1, a=1)
    before = shard.begin_run(2, 0)
    with pytest.raises(LeaseError):
        shard.write_states(1, [SUM], [], 1)
    assert shard.begin_run(2, 0) == before


def test_a_late_task_cannot_replace_a_newer_batch(shard: LocalShard) -> None:
    run(shard, 0, a=1)
    late = shard.read_states(SUM, ["a"], 1, 1)
    run(shard, 1, a=10)
    write_rows(shard, 1, [(0, "a", 0, 10, "[1]")], 1)
    run(shard, 2, a=100)
    write_rows(shard, 2, [(0, "a", 0, 10, "[2]")], 1)
    before = shard.checksums(2)
    with pytest.raises(EngineError, match="already has batch 2"):
        shard.write_states(1, [SUM], [State(SUM, "a", b"11", replaces=late["a"].version)], 1)
    with pytest.raises(EngineError, match="already has batch 2"):
        write_rows(shard, 1, [(0, "a", 0, 10, "[1]")], 1)
    with pytest.raises(EngineError, match="already has batch 2"):
        shard.expire_windows(1, {0: 50}, 1)
    assert kept(shard, 2, "a") == {"a": b"111"}
    assert shard.checksums(2) == before
    shard.verify_rows(2)
    shard.verify_states(2)


def test_the_next_driver_removes_what_was_never_published(shard: LocalShard) -> None:
    run(shard, 0, a=1)
    write_rows(shard, 0, [(0, "a", 0, 10, "[1]")], 1)
    published = shard.checksums(0)
    run(shard, 1, a=10, b=5)
    write_rows(shard, 1, [(0, "a", 0, 10, "[2]"), (0, "b", 0, 10, "[2]")], 1)
    assert shard.begin_run(2, 0) == published
    assert shard.checksums(1) == published
    assert kept(shard, 1, "a", "b") == {"a": b"1"}
    assert shard.batches() == {0: 1}
    run(shard, 1, epoch=2, a=10)
    assert shard.begin_run(3, 1) == shard.checksums(1)


def test_state_rows_fence_states_and_states_fence_state_rows(shard: LocalShard) -> None:
    write_rows(shard, 0, [], epoch=5)
    with pytest.raises(LeaseError):
        shard.write_states(0, [SUM], [], 4)
    shard.write_states(0, [SUM], [], 6)
    with pytest.raises(LeaseError):
        write_rows(shard, 0, [], epoch=5)


def test_the_checksum_of_states_does_not_depend_on_the_batches(
    shard: LocalShard, database: str
) -> None:
    with LocalShard.create(location(database, GenerationRef("orders", 2), 0)) as other:
        run(other, 0, a=11, b=2)
        run(other, 0, operator=JOIN, x=1)
        run(shard, 0, operator=JOIN, x=1)
        run(shard, 1, a=1, b=2, c=3)
        before = shard.checksums(1)
        run(shard, 2, a=10, c=0)
        assert shard.checksums(2) == other.checksums(2)
        assert shard.checksums(1) == before
        assert before.states not in (NO_CHECKSUM, shard.checksums(2).states)
        assert before.state_rows == NO_CHECKSUM


@pytest.mark.parametrize(
    ("table", "kind"), [("state_rows", "state rows"), ("states", "operator states")]
)
def test_the_next_driver_detects_deleted_rows(shard: LocalShard, table: str, kind: str) -> None:
    write_rows(shard, 0, [(0, key, NO_WINDOW, NO_WINDOW, "[1]") for key in "abc"])
    run(shard, 0, a=1, b=1, c=1)
    shard.begin_run(1, 0)
    shard._driver.execute(f"DELETE FROM {table} WHERE key = 'b'")
    with pytest.raises(DamagedState, match=f"3 {kind} were written, but the shard has 2"):
        shard.begin_run(2, 0)


def test_the_row_count_stays_right_after_every_change(shard: LocalShard) -> None:
    def state_rows(*starts: int) -> list[tuple[int, str, int, int, str | None]]:
        return [(0, "a", start, start + 10, "[1]") for start in starts]

    for batch in range(6):
        for _ in range(2):
            write_rows(shard, batch, state_rows(batch * 10, batch * 10 + 10), batch + 1)
            shard.expire_windows(batch, {0: batch * 10 + 1}, batch + 1)
            run(shard, batch, batch + 1, a=1, b=batch % 2)
            shard.begin_run(batch + 1, batch)
    assert shard.compact(4) > 0
    shard.begin_run(7, 5)
    shard.verify_rows(5)
    shard.verify_states(5)


@pytest.mark.parametrize("change", ["state = '7'", "due = 5", "digest = digest + 1", "key = 'b'"])
def test_an_altered_row_is_never_read(shard: LocalShard, change: str) -> None:
    run(shard, 0, a=1)
    shard._driver.execute(f"UPDATE states SET {change}")
    with pytest.raises(DamagedState, match="was altered"):
        shard.read_states(SUM, ["a", "b"], 1, 1)
    with pytest.raises(DamagedState, match="was altered"):
        shard.verify_states(0)


def test_replacing_an_altered_row_detects_it(shard: LocalShard) -> None:
    write_rows(shard, 0, [(0, "a", 0, 10, "[1]")])
    shard._driver.execute("UPDATE state_rows SET value = '[2]'")
    for change in (
        lambda: write_rows(shard, 1, [(0, "a", 0, 10, "[3]")]),
        lambda: shard.expire_windows(1, {0: 50}),
    ):
        with pytest.raises(DamagedState, match="key 'a' was altered"):
            change()


def test_an_older_copy_of_a_shard_has_another_checksum(tmp_path: Path) -> None:
    file = tmp_path / "worker-0.sqlite"
    with LocalShard.create(f"sqlite:///{file}") as shard:
        run(shard, 0, a=1)
    copy = file.read_bytes()
    with LocalShard.open(f"sqlite:///{file}", to_write=True) as shard:
        run(shard, 1, a=1)
        published = shard.checksums(1)
    for old in tmp_path.iterdir():
        old.unlink()
    file.write_bytes(copy)
    with LocalShard.open(f"sqlite:///{file}", to_write=True) as shard:
        assert shard.begin_run(2, 1) != published


def test_a_shard_of_an_older_version_is_rejected(tmp_path: Path) -> None:
    import contextlib
    import sqlite3

    file = tmp_path / "worker-0.sqlite"
    with contextlib.closing(sqlite3.connect(file)) as database:
        database.execute("CREATE TABLE state_rows (group_id INTEGER, key TEXT)")
    for opened in (LocalShard.open, LocalShard.create):
        with pytest.raises(DamagedState, match=r"no such table: shard|another version of Sluice"):
            opened(f"sqlite:///{file}")


def test_shared_state_cannot_collide_with_a_key(shard: LocalShard) -> None:
    states = [State(SUM, key, key.encode()) for key in KEYS_WITH_NUL]
    shard.write_states(0, [SUM], [*states, State(SUM, "", b"of all", shared=True)], 1)
    assert shard.read_states(SUM, [""], 1, 1, shared=True)[""].data == b"of all"
    assert kept(shard, 0, *KEYS_WITH_NUL) == {key: key.encode() for key in KEYS_WITH_NUL}
    shard.verify_states(0)


def test_keys_with_nul_are_stored_found_and_sorted(shard: LocalShard) -> None:
    write_rows(shard, 0, [(0, key, NO_WINDOW, NO_WINDOW, "[0]") for key in KEYS_WITH_NUL])
    write_rows(shard, 1, [(0, key, NO_WINDOW, NO_WINDOW, "[1]") for key in KEYS_WITH_NUL])
    for key in KEYS_WITH_NUL:
        assert shard.get(0, key, 1) == "[1]"
        prefixed = [group_id.key for group_id in shard.scan(0, 1, RowRange(prefix=key))]
        assert prefixed == sorted(other for other in KEYS_WITH_NUL if other.startswith(key))
        after = [group_id.key for group_id in shard.scan(0, 1, after=(key, NO_WINDOW, NO_WINDOW))]
        assert after == sorted(other for other in KEYS_WITH_NUL if other > key)
        within = [group_id.key for group_id in shard.scan(0, 1, RowRange(first="\0\1", last=key))]
        assert within == sorted(other for other in KEYS_WITH_NUL if "\0\1" <= other <= key)
    assert shard.get_many(0, KEYS_WITH_NUL, 1) == dict.fromkeys(KEYS_WITH_NUL, "[1]")
    assert [key for key, *_ in shard.changed_keys(0, 0, 1, 99)] == sorted(KEYS_WITH_NUL)
    shard.verify_rows(1)
    shard.compact(1)
    shard.verify_rows(1)


@given(st.text(st.sampled_from("\0\1\2ab")), st.text(st.sampled_from("\0\1\2ab")))
def test_escaped_keys_keep_order_and_prefixes(one: str, other: str) -> None:
    assert unescape(escape(one)) == one
    assert "\0" not in escape(one)
    assert (escape(one) < escape(other)) == (one < other)
    assert escape(one).startswith(escape(other)) == one.startswith(other)


def test_timers_that_are_due_are_found(shard: LocalShard) -> None:
    states = [
        State(SUM, "a", b"1", due=5),
        State(SUM, "b", b"1", wall=7),
        State(JOIN, "c", b"1", due=5),
    ]
    shard.write_states(0, [SUM, JOIN], states, 1)
    assert shard.due_keys(SUM, 5, 1, 1) == ["a"]
    assert shard.due_keys(SUM, 4, 1, 1) == []
    assert shard.due_keys(SUM, 7, 1, 1, "wall") == ["b"]
    assert shard.earliest_timer(SUM, 1, 1) == 7
    assert shard.earliest_timer(JOIN, 1, 1) is None
    shard.write_states(1, [SUM], [State(SUM, "b", b"2", wall=9), State(SUM, "d", b"1", wall=20)], 1)
    assert [shard.earliest_timer(SUM, before, 1) for before in (1, 2)] == [7, 9]
