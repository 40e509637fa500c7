"""What a run checks between its batches: databases that lost their newest commits, and a source that was cut off."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import psutil
import pytest
from sqlalchemy import update

from sluice import Pipeline, tumbling
from sluice.engine.read.source_identity import InputError
from sluice.engine.run.driver_lease import Patience
from sluice.errors import DamagedState, EngineError, LeaseError, WentBack
from sluice.local.broker import EmbeddedKafka
from sluice.local.broker import running as running_broker
from sluice.operations.repair import RepairingRun
from sluice.plan import plan
from sluice.state.ledger.ledger_tables import SOURCES
from tests.engine.conftest import Running, Start
from tests.engine.shop import Amount, Names
from tests.support.interruptions import POINTS, interrupted
from tests.support.ports import free_port
from tests.support.sqlite_copies import Replicas

FAST = Patience(beat_s=0.2, silence_s=1.0)


def pipeline(names: Names) -> Pipeline:
    """A pipeline with a group, an operator and an output, whose records are numbered."""
    made = Pipeline(names.prefix, workers=2)
    numbers = made.stream(names("in"), value=Amount)
    numbers.group_by_key().aggregate(store="totals", count="count(*)", total="sum(n)")
    numbers.group_by_key().aggregate(store="newest", number="last(n)")
    numbers.to(names("out"))
    return made


def numbered(begin: int, end: int) -> list[tuple[str, bytes]]:
    return [(f"k{number % 7}", b'{"n":%d}' % number) for number in range(begin, end)]


def written(running: Running) -> list[int]:
    """The numbers in the output, in order."""
    return sorted(value["n"] for _, value in running.output("out"))


def totals(end: int) -> dict[str, dict[str, int]]:
    """The right values of the store after all records before `end`."""
    expected: dict[str, dict[str, int]] = {}
    for number in range(end):
        total = expected.setdefault(f"k{number % 7}", {"count": 0, "total": 0})
        total["count"] += 1
        total["total"] += number
    return expected


def ledger_file(running: Running) -> list[Path]:
    return [running.settings.home / "ledger.sqlite"]


def shard_files(running: Running) -> list[Path]:
    return [*(running.settings.home / "shards").rglob("*.sqlite")]


@pytest.fixture
def started(start: Start) -> Running:
    """A pipeline that has published a batch of six records."""
    running = start(pipeline)
    running.send("in", *numbered(0, 6))
    assert running.run() == 6
    return running


@pytest.mark.fault(
    "F50", "the ledger, or ledger and shards, lose commits between two batches of a backlog"
)
@pytest.mark.parametrize("also_shards", [False, True])
def test_a_ledger_that_goes_back_stops_the_run_before_its_next_batch(
    started: Running, also_shards: bool
) -> None:
    files = ledger_file(started) + (shard_files(started) if also_shards else [])
    replicas = Replicas(files)
    started.send("in", *numbered(6, 36))
    with (
        interrupted(POINTS["after the ledger"], replicas.lag, nth=2),
        interrupted(POINTS["after the ledger"], replicas.fail_over, nth=4),
        pytest.raises(
            WentBack,
            match=r"ends at snapshot 1\.2 of shop\S+, but 1\.4 was published.*sluice recover",
        ),
    ):
        started.run(max_records=5)
    assert written(started) == [*range(26)]


@pytest.mark.fault(
    "F50", "the ledger loses commits after a batch is planned, and before it is published"
)
def test_a_ledger_that_goes_back_within_a_batch_does_not_publish_it(started: Running) -> None:
    replicas = Replicas(ledger_file(started))
    started.send("in", *numbered(6, 36))
    with (
        interrupted(POINTS["after the ledger"], replicas.lag, nth=2),
        interrupted(POINTS["before the output"], replicas.fail_over, nth=4),
        pytest.raises(WentBack, match=r"ends at snapshot 1\.2 .* but 1\.3 was published"),
    ):
        started.run(max_records=5)
    assert started.snapshot().batch == 2
    assert written(started) == [*range(26)]


@pytest.mark.fault("F50", "shards lose commits between two batches of a backlog")
def test_shards_that_go_back_are_quarantined_and_restored(started: Running) -> None:
    replicas = Replicas(shard_files(started))
    started.send("in", *numbered(6, 36))
    with (
        interrupted(POINTS["after the ledger"], replicas.lag, nth=2),
        interrupted(POINTS["after the ledger"], replicas.fail_over, nth=4),
        pytest.raises(DamagedState, match="has lost commits") as stopped,
    ):
        started.run(max_records=5)
    assert started.snapshot().batch == 4
    with started.ledger() as ledger:
        assert (
            ledger.quarantine.get(started.snapshot().ref).keys()
            == stopped.value.workers.keys()
            == {0, 1}
        )
    job = plan(started.pipeline).job
    RepairingRun(started.spark, job, started.settings).run()
    assert started.store("totals") == totals(36)
    assert written(started) == [*range(36)]


@pytest.mark.fault(
    "F52", "the ledger loses the lease of a paused driver, and gives the next driver the same place"
)
def test_a_driver_whose_lease_the_ledger_has_lost_replaces_nothing(started: Running) -> None:
    replicas = Replicas(ledger_file(started))
    replicas.lag()
    started.send("in", *numbered(6, 12))

    def fail_over() -> None:
        replicas.fail_over()
        started.send("in", *numbered(12, 18))
        second = threading.Thread(target=started.run, kwargs={"patience": FAST})
        second.start()
        second.join(60)
        assert started.store("totals") == totals(18)

    with (
        interrupted(POINTS["before the shards"], fail_over),
        pytest.raises(LeaseError, match="lost its lease"),
    ):
        started.run()
    assert started.store("totals") == totals(18)
    assert written(started) == [*range(18)]
    started.send("in", *numbered(18, 20))
    assert started.run() == 2
    assert started.store("totals") == totals(20)


def closing_windows(names: Names) -> Pipeline:
    made = Pipeline(names.prefix, workers=1, advance_when_idle="1 second")
    windows = (
        made.stream(names("in"), value=Amount)
        .group_by_key()
        .windowed_by(tumbling("10 seconds", grace="0 seconds"))
    )
    windows.count(store="windows").suppress_until_window_closes().to(names("out"))
    return made


@pytest.mark.fault("F54", "the driver's clock is an hour ahead, right again, and a day behind")
def test_no_valid_record_is_late_or_of_the_future_if_the_driver_s_clock_is_wrong(
    start: Start, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    running = start(closing_windows)
    right = time.time
    running.send("in", *numbered(0, 6))
    assert running.run() == 6
    for seconds in (3_500, 0, -86_400):
        monkeypatch.setattr(time, "time", lambda seconds=seconds: right() + seconds)
        assert running.run() == 0
        running.send("in", *numbered(6, 12))
        assert running.run() == 6
    assert running.counts("applied") == running.counts("read") == 24
    printed = capsys.readouterr().out
    assert "3,500.0 s ahead of that of the broker" in printed
    assert "86,400.0 s behind that of the broker" in printed
    with running.ledger() as ledger:
        (failure,) = [
            each for each in ledger.failures.of(running.pipeline.name) if each.kind == "clock"
        ]
    assert "86,400.0 s behind that of the broker" in failure.detail


def test_a_new_leader_alone_is_no_incident(started: Running) -> None:
    """The records before are compared, and are the same."""
    started.send("in", *numbered(6, 26))
    with interrupted(POINTS["after the ledger"], lambda: change_source(started, leader_epoch=7)):
        assert started.run(max_records=5) == 20
    assert written(started) == [*range(26)]


@pytest.mark.fault(
    "F51", "a partition is cut off and has grown again before the next batch of a run"
)
def test_a_batch_after_replaced_records_is_not_published(started: Running) -> None:
    started.send("in", *numbered(6, 26))
    with (
        interrupted(
            POINTS["after the ledger"],
            lambda: change_source(started, leader_epoch=7, fingerprint="another"),
        ),
        pytest.raises(
            InputError,
            match=r"lost records and grew again.* at offset 10, .* from offset 6 to 10 were repl",
        ),
    ):
        started.run(max_records=5)
    assert started.snapshot().batch == 1
    assert written(started) == [*range(11)]


def change_source(running: Running, **values: int | str) -> None:
    """Let the ledger know another last record of the source, as if the source had changed since."""
    with running.ledger() as ledger, ledger.engine.begin() as connection:
        connection.execute(update(SOURCES).values(**values))


@pytest.fixture
def own_broker(tmp_path: Path) -> Iterator[EmbeddedKafka]:
    with EmbeddedKafka(tmp_path / "kafka", free_port()) as broker:
        yield broker


@pytest.mark.heavy  # the two tests before change what the ledger knows, which is all that a pipeline sees
@pytest.mark.fault(
    "F51", "a broker's log loses its newest records and grows again between two batches of one run"
)
@pytest.mark.parametrize("grown", [3, 12])
def test_a_partition_that_is_cut_off_between_two_batches_is_named(
    own_broker: EmbeddedKafka, start: Start, grown: int
) -> None:
    running = start(pipeline)
    settings = replace(
        running.settings, kafka={"bootstrap.servers": own_broker.bootstrap, "log_level": "0"}
    )
    moved = Running(running.spark, running.names, running.pipeline, settings, own_broker)
    own_broker.create_topics({moved.names("in"): 1})
    moved.send("in", *numbered(0, 5))
    moved.run()
    data = own_broker.folder / "data" / f"{moved.names('in')}-0"
    size = (data / "00000000000000000000.log").stat().st_size
    moved.send("in", *numbered(5, 20))

    def cut_off() -> None:
        stop_at_once(own_broker)
        os.truncate(data / "00000000000000000000.log", size)
        for index in [*data.glob("0*.index"), *data.glob("0*.timeindex")]:
            index.unlink()
        for name in ("recovery-point-offset-checkpoint", "replication-offset-checkpoint"):
            (data.parent / name).unlink(missing_ok=True)
        own_broker.start()
        moved.send("in", *numbered(100, 100 + grown))

    with (
        interrupted(POINTS["after the ledger"], cut_off),
        pytest.raises(
            EngineError,
            match=r"partition 0, (lost records and grew again: at offset (9|14)|has lost records)",
        ),
    ):
        moved.run(max_records=5)
    # The tasks may have read the next batch before the log was cut off.
    assert written(moved) in ([*range(10)], [*range(15)])
    with pytest.raises(
        InputError,
        match=r"lost records and grew again|became shorter: partition 0 ends at offset (8|17)",
    ):
        moved.run()


def stop_at_once(broker: EmbeddedKafka) -> None:
    process = running_broker(broker.folder)
    assert process is not None
    killed = psutil.Process(process.pid)
    killed.kill()
    killed.wait(20)
