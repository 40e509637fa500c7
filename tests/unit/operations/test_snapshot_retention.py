from __future__ import annotations

from datetime import timedelta
from pathlib import Path

import pytest
from sqlalchemy import make_url

from sluice.engine.run.replay import replay_steps
from sluice.operations.snapshot_retention import merge_history, retain
from sluice.state.ledger.history import Batch
from sluice.state.model import GenerationRef
from sluice.state.shard.local_shard import LocalShard
from tests.support.states import NOON, States, make_snapshot

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
    done = retain(
        states.ledger, "orders", keep_snapshots=3, keep_seconds=0, now=NOON + timedelta(hours=1)
    )
    assert (done.snapshots, done.versions, done.failed) == (7, 7, {})
    assert kept(states) == [9, 8, 7]
    with LocalShard.open(states.location(0)) as shard:
        assert [shard.get(0, "a", batch) for batch in (6, 7, 8, 9)] == [None, "[7]", "[8]", "[9]"]


def test_a_recently_replaced_snapshot_is_kept(states: States) -> None:
    retain(
        states.ledger,
        "orders",
        keep_snapshots=1,
        keep_seconds=150,
        now=NOON + timedelta(minutes=10),
    )
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


def batch_of(number: int, ends: dict[str, int], *, by_clock: bool = False) -> Batch:
    return Batch(
        number=number,
        begun=1_000 + number,
        partitions={"orders": 2},
        ends={"orders": ends},
        by_clock=by_clock,
    )


HISTORY = [
    batch_of(0, {"0": 10}),
    batch_of(1, {"1": 5}, by_clock=True),
    batch_of(2, {"0": 20}),
    batch_of(3, {"0": 30, "1": 9}),
    batch_of(4, {"0": 40}),
]


@pytest.mark.parametrize(
    ("begins", "oldest_kept", "left"),
    [
        pytest.param({0: 25, 1: 7}, 4, [2, 3, 4], id="batches of which no record is left"),
        pytest.param(
            {0: 25, 1: 4}, 4, [0, 1, 2, 3, 4], id="not those behind a batch of which some are left"
        ),
        pytest.param({0: 90, 1: 90}, 3, [2, 3, 4], id="not those whose snapshot is kept"),
        pytest.param({0: 90}, 4, [0, 1, 2, 3, 4], id="not those of a partition that is unknown"),
        pytest.param({}, 4, [0, 1, 2, 3, 4], id="nothing without a broker"),
    ],
)
def test_batches_that_no_rebuild_can_repeat_are_merged(
    database: str, begins: dict[int, int], oldest_kept: int, left: list[int]
) -> None:
    states, history = States(database, workers=1), HISTORY
    for number, batch in enumerate(history):
        assert states.ledger.snapshots.publish(make_snapshot(number), batch=batch)
    states.ledger.snapshots.forget(states.ref, oldest_kept)
    steps = {batch.number: step for batch, step in zip(history, replay_steps(history), strict=True)}
    for _ in range(2):
        merge_history(states.ledger, "orders", {"orders": begins} if begins else {})
        kept_batches = states.ledger.history.all(states.ref)
        assert [batch.number for batch in kept_batches] == left
        # The batches that are left begin and end where they did.
        for batch, step in zip(kept_batches, replay_steps(kept_batches), strict=True):
            assert step.ends == steps[batch.number].ends
    assert kept_batches[0].by_clock == (left[0] == 2)
