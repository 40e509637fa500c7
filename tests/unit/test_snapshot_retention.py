from __future__ import annotations

from datetime import timedelta
from pathlib import Path

import pytest
from sqlalchemy import make_url

from sluice.operations.retention import retain
from sluice.state.model import GenerationRef
from sluice.state.shard.local_shard import LocalShard
from tests.support.states import NOON, States

pytestmark = pytest.mark.unit


@pytest.fixture
def states(database: str) -> States:
    states = States(database, workers=1)
    for minute in range(10):
        states.publish({"a": f"[{minute}]"}, published_at=NOON + timedelta(minutes=minute))
    return states


def kept(states: States) -> list[int]:
    return [snapshot.batch for snapshot in states.ledger.snapshots.recent("orders")]


def test_old_snapshots_are_removed_with_their_versions(states: States) -> None:
    done = retain(states.ledger, "orders", keep_snapshots=3, keep_seconds=0, now=NOON + timedelta(hours=1))
    assert (done.snapshots, done.versions, done.failed) == (7, 7, {})
    assert kept(states) == [9, 8, 7]
    with LocalShard.open(states.location(0)) as shard:
        assert [shard.get(0, "a", batch) for batch in (6, 7, 8, 9)] == [None, "[7]", "[8]", "[9]"]


def test_a_recently_replaced_snapshot_is_kept(states: States) -> None:
    retain(states.ledger, "orders", keep_snapshots=1, keep_seconds=150, now=NOON + timedelta(minutes=10))
    # Batch 7 was replaced by 8 at 12:08, 120 s ago; batch 6 by 7, 180 s ago.
    assert kept(states) == [9, 8, 7]


def test_the_newest_snapshot_is_always_kept(states: States) -> None:
    retain(states.ledger, "orders", keep_snapshots=0, keep_seconds=0, now=NOON + timedelta(days=1))
    assert kept(states) == [9]


def test_a_lost_shard_is_reported_and_not_recreated(tmp_path: Path) -> None:
    states = States(f"sqlite:///{tmp_path}/state", workers=2)
    states.publish({"a": "[1]"})
    lost = Path(make_url(states.location(1)).database or "")
    lost.unlink()
    done = retain(states.ledger, "orders", keep_snapshots=1, keep_seconds=0)
    assert list(done.failed) == [1]
    assert not lost.exists()


def test_without_snapshots_nothing_is_removed(database: str) -> None:
    done = retain(States(database).ledger, "orders")
    assert (done.snapshots, done.versions) == (0, 0)


def test_a_generation_that_is_promoted_meanwhile_keeps_its_versions(
    states: States, monkeypatch: pytest.MonkeyPatch
) -> None:
    built = States(states.database, workers=1, generation=2)
    for value in range(3):
        built.publish({"a": f"[{value}]"})
    forget = states.ledger.snapshots.forget

    def promote_first(ref: GenerationRef, before: int) -> int:
        states.ledger.generations.promote(built.ref)
        return forget(ref, before)

    monkeypatch.setattr(states.ledger.snapshots, "forget", promote_first)
    retain(states.ledger, "orders", keep_snapshots=1, keep_seconds=0, now=NOON + timedelta(hours=1))
    with LocalShard.open(built.location(0)) as shard:
        assert [shard.get(0, "a", batch) for batch in range(3)] == ["[0]", "[1]", "[2]"]
