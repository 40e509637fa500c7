"""A ledger that was lost, or has lost its newest commits, is made again from the markers and the shards."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import pytest
from confluent_kafka.admin import AdminClient

from sluice.errors import EngineError, Refused
from sluice.operations.rebuild import Rebuild
from sluice.operations.recovery import Recovery, find_recovery, forget, recover
from sluice.operations.repair import RepairingRun
from sluice.plan import plan
from sluice.state.ledger.ledger import Ledger
from tests.engine.conftest import Running, Start
from tests.engine.test_between_batches import (
    ledger_file,
    numbered,
    pipeline,
    shard_files,
    totals,
    written,
)
from tests.support.interruptions import POINTS, crash, interrupted
from tests.support.sqlite_copies import Replicas


@pytest.fixture
def started(start: Start) -> Running:
    """A pipeline that has published two batches of six records."""
    running = start(pipeline)
    for begin in (0, 6):
        running.send("in", *numbered(begin, begin + 6))
        assert running.run() == 6
    return running


def lose_ledger(running: Running) -> None:
    for file in running.settings.home.glob("ledger.sqlite*"):
        file.unlink()


def found(running: Running) -> Recovery | None:
    with Ledger.open(running.settings.ledger) as ledger:
        return find_recovery(ledger, plan(running.pipeline).job, running.settings)


def recovered(running: Running) -> Recovery:
    made = recover(plan(running.pipeline).job, running.settings)
    assert made is not None
    return made


def require_right(running: Running, end: int) -> None:
    """Require the right state and output after all records before `end`."""
    assert running.store("totals") == totals(end)
    assert written(running) == [*range(end)]
    assert sum(read.read for read in audits(running)) >= 0


def audits(running: Running) -> list:  # type: ignore[type-arg]
    with running.ledger() as ledger:
        return [
            source
            for audit in ledger.audits.all(running.snapshot().ref)
            for source in audit.sources
        ]


@pytest.mark.fault("F53", "the ledger is lost, or has lost its newest commits")
def test_a_lost_ledger_is_recovered_without_reading_or_writing_anything(started: Running) -> None:
    before = started.snapshot()
    with started.ledger() as ledger:
        sources, times = (
            ledger.sources.get(before.ref),
            ledger.snapshots.times_before(before.ref, before.batch + 1),
        )
    lose_ledger(started)
    started.send("in", *numbered(12, 15))
    with pytest.raises(EngineError, match=r"is older than the output\. .*sluice recover"):
        started.run()
    said = found(started)
    assert said is not None
    lines = " ".join(said.lines())
    assert "has no snapshot" in lines
    assert "Recovered: snapshot 1.1, with the state of 2 workers of 2." in lines
    assert "Written again: nothing." in lines
    with pytest.raises(EngineError):
        started.run()  # a dry run changes nothing
    assert recovered(started).snapshot == "1.1"
    after = started.snapshot()
    assert (after.id, after.positions, after.stream_times) == (
        before.id,
        before.positions,
        before.stream_times,
    )
    with started.ledger() as ledger:
        assert ledger.sources.get(before.ref) == sources
        assert ledger.snapshots.times_before(before.ref, before.batch + 1) == times
    assert found(started) is None
    assert started.run() == 3
    require_right(started, 15)
    Rebuild(started.spark, plan(started.pipeline).job, started.settings).run()
    assert started.run() == 0
    require_right(started, 15)


@pytest.mark.fault("F53", "the ledger is lost, or has lost its newest commits")
def test_a_ledger_that_went_back_keeps_its_earlier_snapshots(started: Running) -> None:
    replicas = Replicas(ledger_file(started))
    replicas.lag()
    started.send("in", *numbered(12, 15))
    started.run()
    replicas.fail_over()
    with pytest.raises(EngineError, match="sluice recover"):
        started.run()
    assert recovered(started).snapshot == "1.2"
    assert [snapshot.id for snapshot in started.snapshots()] == ["1.0", "1.1", "1.2"]
    started.send("in", *numbered(15, 20))
    assert started.run() == 5
    require_right(started, 20)


@pytest.mark.fault("F53", "the ledger is lost, or has lost its newest commits")
def test_lost_shards_are_restored_from_the_topics_after_the_ledger_was_recovered(
    started: Running,
) -> None:
    lose_ledger(started)
    shutil.rmtree(started.settings.home / "shards")
    started.send("in", *numbered(12, 15))
    made = recovered(started)
    assert made.lost_shards.keys() == {0, 1}
    assert "Worker 1's shard: " in " ".join(made.lines())
    RepairingRun(started.spark, plan(started.pipeline).job, started.settings).run()
    require_right(started, 15)


@pytest.mark.fault("F53", "the ledger is lost, or has lost its newest commits")
def test_a_shard_that_went_back_with_the_ledger_is_restored_from_the_topics(
    started: Running,
) -> None:
    replicas = Replicas([*ledger_file(started), shard_files(started)[0]])
    replicas.lag()
    started.send("in", *numbered(12, 20))
    started.run()
    replicas.fail_over()
    assert len(recovered(started).lost_shards) == 1
    RepairingRun(started.spark, plan(started.pipeline).job, started.settings).run()
    require_right(started, 20)


@pytest.mark.fault("F53", "the ledger is lost, or has lost its newest commits")
def test_a_batch_that_was_written_and_not_published_is_recovered(started: Running) -> None:
    started.send("in", *numbered(12, 15))
    with interrupted(POINTS["after the output"], crash), pytest.raises(EngineError):
        started.run()
    assert found(started) is None, "the next run finishes the batch"
    lose_ledger(started)
    assert recovered(started).snapshot == "1.2"
    assert started.run() == 0
    require_right(started, 15)


@pytest.mark.fault("F53", "the ledger is lost, or has lost its newest commits")
@pytest.mark.parametrize("from_topics", [False, True])
def test_a_rebuild_recovers_the_ledger_first(started: Running, from_topics: bool) -> None:
    lose_ledger(started)
    started.send("in", *numbered(12, 15))
    job = plan(started.pipeline).job
    assert Rebuild(started.spark, job, started.settings, from_topics=from_topics).run() == 2
    assert started.run() == 3
    require_right(started, 15)


def lose_markers(running: Running) -> None:
    admin, topic = AdminClient({"bootstrap.servers": running.bootstrap}), running.pipeline.markers
    admin.delete_topics([topic])[topic].result(20)
    while topic in admin.list_topics(timeout=20).topics:
        pass


@pytest.mark.fault("F53", "the ledger is lost, or has lost its newest commits")
@pytest.mark.parametrize("shards", [False, True])
def test_without_markers_the_topics_give_the_state_and_no_output_is_written(
    started: Running, shards: bool
) -> None:
    lose_ledger(started)
    lose_markers(started)
    if not shards:
        shutil.rmtree(started.settings.home / "shards")
    job = plan(started.pipeline).job
    with pytest.raises(Refused, match="has no marker") as refused:
        recover(job, started.settings)
    assert f"sluice rebuild {started.pipeline.name} --from-topics" in refused.value.next_step
    Rebuild(started.spark, job, started.settings, from_topics=True).run()
    require_right(started, 12)
    started.send("in", *numbered(12, 15))
    assert started.run() == 3
    require_right(started, 15)


@pytest.mark.fault("F53", "the ledger is lost, or has lost its newest commits")
def test_a_pipeline_that_begins_anew_writes_everything_again(started: Running) -> None:
    job = plan(started.pipeline).job
    with pytest.raises(Refused, match="The ledger has the state of"):
        forget(job, started.settings)
    lose_ledger(started)
    with pytest.raises(Refused, match=r"says what .* has written"):
        forget(job, started.settings)
    lose_markers(started)
    with pytest.raises(EngineError, match="but the ledger has none of them"):
        started.run()
    assert len(forget(job, started.settings)) == 2
    assert started.run() == 12
    assert started.store("totals") == totals(12)
    assert written(started) == sorted([*range(12)] * 2)


@pytest.mark.fault("F53", "the ledger, the markers and one of the shards are lost")
def test_a_pipeline_begins_anew_although_its_first_shard_is_lost(started: Running) -> None:
    job = plan(started.pipeline).job
    lose_ledger(started)
    lose_markers(started)
    shard_files(started)[0].unlink()
    with pytest.raises(Refused, match="has no marker"):
        recover(job, started.settings)
    assert len(forget(job, started.settings)) == 1
    assert started.run() == 12
    assert started.store("totals") == totals(12)


def test_a_dry_run_of_a_new_beginning_removes_nothing(started: Running) -> None:
    job = plan(started.pipeline).job
    lose_ledger(started)
    lose_markers(started)
    shards = shard_files(started)
    assert len(forget(job, started.settings, dry_run=True)) == 2
    assert shard_files(started) == shards


def test_a_pipeline_that_has_never_run_has_nothing_to_recover(start: Start) -> None:
    running = start(pipeline)
    with pytest.raises(Refused, match="has never run") as refused:
        recover(plan(running.pipeline).job, running.settings)
    assert refused.value.next_step.startswith("Run it")


def test_shards_of_another_installation_are_named_before_they_are_taken_over(
    started: Running, tmp_path: Path
) -> None:
    copied = replace(
        started.settings,
        ledger=f"sqlite:///{tmp_path}/copy/ledger.sqlite",
        shards=f"sqlite:///{tmp_path}/copy/shards",
    )
    with Ledger.open(copied.ledger) as ledger:
        said = find_recovery(ledger, plan(started.pipeline).job, copied)
    assert said is not None
    lines = " ".join(said.lines())
    first, second = (f"sqlite:///{file}" for file in sorted(shard_files(started)))
    assert f"These shards are outside of this process's SLUICE_SHARDS: {first}, {second}." in lines
    assert "Give this pipeline another name." in lines
