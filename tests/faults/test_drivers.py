"""Faults of drivers, brokers, databases, disks and clocks, with real processes."""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path

import psutil
import pytest

from sluice.errors import StateError
from sluice.local.broker import running as running_broker
from tests.faults.clock import SteppedClock
from tests.faults.conftest import Observe, fill, small_disk
from tests.faults.kills import Kills
from tests.faults.truth import Watcher, compare
from tests.faults.world import LONGEST_S, Driver, World, wait_until, world
from tests.support.ports import free_port
from tests.support.postgres import postgres_server

pytestmark = pytest.mark.timeout(7200)

KILLS = int(os.environ.get("KILLS", "100"))
PIPELINES = os.environ.get("PIPELINE", "orders words").split()
DATABASES = os.environ.get("SHARDS", "sqlite postgres").split()
SUBJECTS = [
    f"{name}{'-postgres' if kind == 'postgres' else ''}" for name in PIPELINES for kind in DATABASES
]
"""The pipelines whose drivers are killed a hundred times, with the databases of their ledger and shards."""

BATCH = {"orders": 400, "words": 150}
"""Largest number of records in a batch. Such a batch takes about a second."""

TEN_MINUTES_S = 600.0


@pytest.mark.heavy  # test_replay.py has crashes at many moments, and test_end_to_end.py a real driver
@pytest.mark.parametrize("subject", ["orders-postgres"], indirect=True)
@pytest.mark.fault(
    "F1", "kill -9 of driver and JVM, once (a sample; `make faults` kills a hundred)"
)
def test_a_killed_driver_and_jvm(
    subject: World, observe: Observe, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The temporary files of the killed driver are deleted, too."""
    (temporary := tmp_path / "temporary").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(temporary))
    kills = Kills(subject, seed=int(time.time()), poll_s=0.2)
    comparison = kills.run(
        1, BATCH[subject.name], ahead=2
    )  # enough that the driver does not end first
    subject.close()
    assert [*temporary.iterdir()] == []
    observe(f"the driver died {dict(kills.phases)}; {comparison}")


@pytest.mark.heavy
@pytest.mark.parametrize("subject", SUBJECTS, indirect=True)
@pytest.mark.fault(
    "F1", f"kill -9 of driver, JVM or both, {KILLS} times at random moments over one long input"
)
def test_a_hundred_kills(subject: World, observe: Observe) -> None:
    kills = Kills(subject)
    comparison = kills.run(KILLS, BATCH[subject.name])
    assert kills.killed == KILLS
    checks = kills.watcher.checks
    observe(
        f"the drivers died {dict(kills.phases)}; a reader saw {checks} complete snapshots; {comparison}"
    )


@contextmanager
def working(orders: World, batches: int = 2) -> Iterator[Driver]:
    """A driver that has published some batches of a long input."""
    orders.produce(20_000)
    driver = orders.start(SLUICE_MAX_RECORDS="400", SLUICE_RUN="orders/one/main")
    orders.await_batch(driver, batches - 1)
    yield driver


@pytest.mark.heavy
@pytest.mark.fault(
    "F3", "a second driver while the first works; then the first is paused (SIGSTOP) and resumed"
)
def test_two_drivers(orders: World, observe: Observe) -> None:
    with working(orders) as first:
        second = orders.start(SLUICE_RUN="orders/two/main")
        assert second.wait() == 1
        rejection = next(
            line for line in second.output.splitlines() if "Another driver is running" in line
        )
        program = first.python()
        assert program is not None
        program.suspend()
        third = orders.start(SLUICE_RUN="orders/three/main")
        assert wait_until(
            lambda: "lease taken over" in third.output or not third.runs, LONGEST_S
        ), third.output
        assert third.runs, third.output[-3000:]
        wait_until(lambda: third.output.count("batch published") >= 1 or not third.runs, LONGEST_S)
        program.resume()
        assert first.wait() == 1, first.output[-2000:]
        assert third.wait() == 0, third.output[-3000:]
    error = next(
        line
        for line in first.output.splitlines()[::-1]
        if line.startswith(("Another driver", "The job"))
    )
    observe(f"{rejection[:130]}; the paused driver after SIGCONT: {error[:110]}; {compare(orders)}")


@pytest.mark.heavy
@pytest.mark.fault(
    "F7",
    "no broker at the start; the broker is killed (-9) during a batch and stays down ten minutes",
)
def test_no_broker(orders: World, observe: Observe) -> None:
    orders.produce(6_000)
    orders.kafka.stop()
    start = time.monotonic()
    driver = orders.start()
    assert driver.wait() == 1
    at_start, error = time.monotonic() - start, driver.output.strip().splitlines()[-1]
    orders.kafka.start()
    driver = orders.start(SLUICE_MAX_RECORDS="400")
    orders.await_batch(driver, 1)
    broker = running_broker(orders.kafka.folder)
    assert broker is not None
    psutil.Process(broker.pid).kill()
    start = time.monotonic()
    assert driver.wait(400) == 1, driver.output[-3000:]
    in_batch = time.monotonic() - start
    orders.run(expect=1)
    time.sleep(max(0.0, TEN_MINUTES_S - (time.monotonic() - start)))
    orders.kafka.start()
    orders.run()
    failures = f"runs failed after {at_start:.0f} s ({error[:90]}) and {in_batch:.0f} s, and while the broker was down"
    observe(f"{failures}; with the broker: {compare(orders)}")


@pytest.mark.heavy
@pytest.mark.parametrize("what", ["TMPDIR", "SLUICE_SHARDS", "SLUICE_LEDGER"])
@pytest.mark.fault("F13", "the disk is full, under temporary files, the shards or the ledger")
def test_a_full_disk(orders: World, observe: Observe, what: str) -> None:
    with small_disk(orders.folder / "disk", "24m") as disk:
        shards = f"sqlite:///{disk}"
        address = {
            "TMPDIR": str(disk),
            "SLUICE_SHARDS": shards,
            "SLUICE_LEDGER": f"{shards}/ledger.sqlite",
        }
        orders.environment[what] = address[what]
        orders.produce(12_000)
        driver = orders.start(SLUICE_MAX_RECORDS="400")
        orders.await_batch(driver, 1)
        filler = fill(disk)
        status = driver.wait()
        assert status == 1, f"{status}: {driver.output[-1500:]}"
        error = next(
            line
            for line in driver.output.splitlines()[::-1]
            if line.startswith(("The run", "State"))
        )
        watcher = Watcher(orders)
        filler.unlink()
        watcher.check()
        orders.run()
        watcher.check()
        observe(f"{what.lower()}: {error[:120]}; with free space: {compare(orders)}")


@pytest.mark.heavy
@pytest.mark.fault(
    "F14", "PostgreSQL, with ledger and shards, restarts during queries and during a run"
)
def test_a_restarted_database(tmp_path: Path, observe: Observe) -> None:
    port = free_port()
    with world() as orders:
        with postgres_server(tmp_path / "postgres", port) as url:
            orders.environment |= {"SLUICE_LEDGER": url, "SLUICE_SHARDS": url}
            orders.produce(8_000)
            driver = orders.start(SLUICE_MAX_RECORDS="400")
            orders.await_batch(driver, 2)
            watcher = Watcher(orders)
            watcher.check()
        with pytest.raises(StateError) as down:
            watcher.check()
        assert down.value.status == 503
        time.sleep(3)
        with postgres_server(tmp_path / "postgres", port):
            status = driver.wait()
            watcher.check()
            orders.run()
            watcher.check()
            comparison = compare(orders)
    result = f"queries returned 503 while it was down, complete snapshots otherwise; the driver ended with {status}"
    observe(f"{result}; {comparison}")


@pytest.mark.heavy
@pytest.mark.fault(
    "F18",
    "during a run, a driver's clock jumps an hour ahead, back, and an hour behind; a second driver is ahead",
)
def test_a_drivers_clock_jumps(orders: World, tmp_path: Path, observe: Observe) -> None:
    clock, ahead = (SteppedClock(folder) for folder in (tmp_path / "first", tmp_path / "ahead"))
    orders.produce(24_000)
    driver = orders.start(SLUICE_MAX_RECORDS="400", SLUICE_RUN="a/stepped/b", **clock.environment)
    for hours in (1, 0, -1):
        orders.await_batch(driver, orders.published() + 3)
        clock.step(hours)
    ahead.step(1)
    second = orders.start(SLUICE_RUN="a/ahead/b", **ahead.environment)
    assert second.wait() == 1
    assert "Another driver is running" in second.output, second.output[-2000:]
    assert driver.runs, "the first driver ended before the second one started"
    assert driver.wait() == 0, driver.output[-3000:]
    with orders.ledger() as ledger:
        times = [
            snapshot.published_at
            for snapshot in ledger.snapshots.recent("orders", limit=1000)[::-1]
        ]
    back = sum(later < earlier for earlier, later in pairwise(times))
    assert back == 2, "the clock did not jump"
    jumps = f"{len(times)} batches, two of them published at an earlier hour than the batch before"
    observe(f"{jumps}; the second driver was rejected while the first ran; {compare(orders)}")
