"""Windows expire after their retention."""

from __future__ import annotations

import pytest

from sluice.errors import LeaseError
from sluice.state.model import NO_WINDOW, GenerationRef
from sluice.state.shard.addresses import location
from sluice.state.shard.local_shard import LocalShard
from sluice.state.shard.row_tuples import Row
from tests.support.state_rows import write_rows

pytestmark = pytest.mark.unit


@pytest.fixture
def shard(database: str) -> LocalShard:
    return LocalShard.create(location(database, GenerationRef("clicks", 1), 0))


def row(key: str, start: int, value: str | None = "[1]", group_id: int = 0) -> Row:
    return group_id, key, start, start + 10 if start >= 0 else NO_WINDOW, value


def starts(shard: LocalShard, as_of: int, group_id: int = 0) -> list[int]:
    return [row.window_start for row in shard.scan(group_id, as_of)]


def test_expired_windows_stay_visible_in_older_snapshots(shard: LocalShard) -> None:
    write_rows(
        shard,
        0,
        [row("a", 0), row("a", 10), row("a", 20), row("a", NO_WINDOW), row("a", 0, group_id=1)],
    )
    write_rows(shard, 1, [row("a", 30)])
    shard.expire_windows(1, {0: 25})
    assert starts(shard, 0) == [NO_WINDOW, 0, 10, 20]
    assert starts(shard, 1) == [NO_WINDOW, 20, 30]
    assert starts(shard, 1, group_id=1) == [0], "another store keeps its windows longer"


def test_a_worker_without_rows_of_the_batch_expires_windows_too(shard: LocalShard) -> None:
    write_rows(shard, 0, [row("a", 0), row("a", 10)])
    shard.expire_windows(1, {0: 15})
    assert starts(shard, 1) == [10]
    assert shard.batches() == {0: 2, 1: 1}


def test_a_window_that_expires_within_its_batch_is_never_visible(shard: LocalShard) -> None:
    write_rows(shard, 0, [row("a", 0), row("a", 50)])
    shard.expire_windows(0, {0: 40})
    assert starts(shard, 0) == [50]


def test_a_window_expires_by_its_newest_end(shard: LocalShard) -> None:
    write_rows(shard, 0, [(0, "a", 0, 10, "[1]")])
    write_rows(shard, 1, [(0, "a", 0, 40, "[2]")])
    shard.expire_windows(1, {0: 30})
    assert starts(shard, 1) == [0], "the session lasted until 40"
    shard.expire_windows(2, {0: 41})
    assert starts(shard, 2) == []


def test_the_checksum_matches_the_remaining_rows(shard: LocalShard, database: str) -> None:
    other = LocalShard.create(location(database, GenerationRef("clicks", 2), 0))
    write_rows(other, 0, [row("a", 20)])
    write_rows(shard, 0, [row("a", 0), row("b", 10)])
    write_rows(shard, 1, [row("a", 20)])
    shard.expire_windows(1, {0: 25})
    assert shard.checksum(1) == other.checksum(0)
    shard.verify_rows(1)
    write_rows(shard, 2, [row("a", 20, "[2]")])
    write_rows(other, 1, [row("a", 20, "[2]")])
    assert shard.checksum(2) == other.checksum(1)


@pytest.mark.parametrize("written_again", [True, False])
def test_repeating_a_batch_gives_the_same_state(shard: LocalShard, written_again: bool) -> None:
    write_rows(shard, 0, [row("a", 0), row("a", 10)])
    shard.expire_windows(0, {0: 5})
    checksums = set()
    for _ in range(2):
        if written_again:
            write_rows(shard, 1, [row("b", 100)])
        shard.expire_windows(1, {0: 15})
        checksums.add(shard.checksum(1))
        assert starts(shard, 1) == ([10, 100] if written_again else [10])
    assert len(checksums) == 1
    shard.verify_rows(1)


def test_a_changed_retention_applies_from_now_on(shard: LocalShard) -> None:
    write_rows(shard, 0, [row("a", start) for start in range(0, 60, 10)])
    for batch, until, left in ((0, 35, [30, 40, 50]), (1, 15, [30, 40, 50]), (2, 55, [50])):
        shard.expire_windows(batch, {0: until})
        assert starts(shard, batch) == left


def test_tombstones_are_removed_with_their_snapshots(shard: LocalShard) -> None:
    write_rows(shard, 0, [row("a", 0), row("a", 50)])
    write_rows(shard, 1, [])
    shard.expire_windows(1, {0: 20})
    assert shard.compact(1) == 2
    assert [version.window_start for version in shard.row_versions(0, None, 10)] == [50]


def test_a_driver_without_the_lease_expires_nothing(shard: LocalShard) -> None:
    write_rows(shard, 0, [row("a", 0)], epoch=2)
    with pytest.raises(LeaseError):
        shard.expire_windows(1, {0: 100}, epoch=1)
    assert starts(shard, 1) == [0]
