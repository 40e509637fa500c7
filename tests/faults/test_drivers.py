"""Faults of what runs: drivers, brokers, databases, disks and clocks, as processes that are really killed."""

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
from sluice.testing.kafka import running as running_broker
from tests.faults.clock import SteppedClock
from tests.faults.conftest import Seen, small_disk
from tests.faults.kills import Kills
from tests.faults.truth import Watching, compare
from tests.faults.world import LONGEST_S, Driver, World, wait_until, world
from tests.ports import free_port
from tests.postgres import postgres_server

pytestmark = pytest.mark.timeout(7200)

KILLS = int(os.environ.get("KILLS", "100"))
PIPELINES = os.environ.get("PIPELINE", "orders words").split()
DATABASES = os.environ.get("SHARDS", "sqlite postgres").split()
SUBJECTS = [f"{name}{'-postgres' if kind == 'postgres' else ''}" for name in PIPELINES for kind in DATABASES]
"""The pipelines whose drivers are killed a hundred times, and where their ledger and shards lie."""

BATCH = {"orders": 400, "words": 150}
"""How many records a batch has there: each takes about a second."""

TEN_MINUTES_S = 600.0


@pytest.mark.parametrize("subject", ["orders", "words-postgres"], indirect=True)
@pytest.mark.fault("F1", "kill -9 of driver and JVM, once (a sample; `make faults` has a hundred)")
def test_a_kill(subject: World, seen: Seen) -> None:
    kills = Kills(subject, seed=int(time.time()))
    found = kills.run(1, BATCH[subject.name], ahead=3)
    seen(f"died {dict(kills.phases)}; {found}")


def test_the_temporary_files_of_a_killed_driver_go_too(
    orders: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    driver = orders.start()
    assert wait_until(lambda: bool([*tmp_path.glob("sluice-run-*/spark-*")])), driver.said[-3000:]
    driver.kill("all")
    assert [*tmp_path.glob("sluice-run-*/spark-*")]
    orders.close()
    assert [*tmp_path.iterdir()] == []


@pytest.mark.heavy
@pytest.mark.parametrize("subject", SUBJECTS, indirect=True)
@pytest.mark.fault("F1", f"kill -9 of driver, JVM or both, {KILLS} times at random moments over one long input")
def test_a_hundred_kills(subject: World, seen: Seen) -> None:
    kills = Kills(subject)
    found = kills.run(KILLS, BATCH[subject.name])
    assert kills.killed == KILLS
    seen(f"died {dict(kills.phases)}; a reader saw {kills.watching.asked} times one whole snapshot; {found}")


@contextmanager
def working(orders: World, batches: int = 2) -> Iterator[Driver]:
    """A driver in the middle of a long input."""
    orders.produce(20_000)
    driver = orders.start(SLUICE_MAX_RECORDS="400", SLUICE_RUN="orders/one/main")
    orders.await_batch(driver, batches - 1)
    yield driver


@pytest.mark.heavy
@pytest.mark.fault("F3", "a second driver while the first works; then the first is stopped (SIGSTOP), and wakes later")
def test_two_drivers(orders: World, seen: Seen) -> None:
    with working(orders) as first:
        second = orders.start(SLUICE_RUN="orders/two/main")
        assert second.wait() == 1
        refused = next(line for line in second.said.splitlines() if "Another driver is running job" in line)
        program = first.python()
        assert program is not None
        program.suspend()
        third = orders.start(SLUICE_RUN="orders/three/main")
        assert wait_until(lambda: "lease taken over" in third.said or not third.runs, LONGEST_S), third.said
        assert third.runs, third.said[-3000:]
        wait_until(lambda: third.said.count("batch published") >= 1 or not third.runs, LONGEST_S)
        program.resume()
        assert first.wait() == 1, first.said[-2000:]
        assert third.wait() == 0, third.said[-3000:]
    fenced = next(line for line in first.said.splitlines()[::-1] if line.startswith(("Another driver", "The job")))
    seen(f"{refused[:130]}; the stopped one, awake: {fenced[:110]}; {compare(orders)}")


@pytest.mark.heavy
@pytest.mark.fault("F7", "no broker at the start; the broker killed (-9) in mid-batch, and gone for ten minutes")
def test_no_broker(orders: World, seen: Seen) -> None:
    orders.produce(6_000)
    orders.kafka.stop()
    begun = time.monotonic()
    driver = orders.start()
    assert driver.wait() == 1
    at_start, why = time.monotonic() - begun, driver.said.strip().splitlines()[-1]
    orders.kafka.start()
    driver = orders.start(SLUICE_MAX_RECORDS="400")
    orders.await_batch(driver, 1)
    broker = running_broker(orders.kafka.folder)
    assert broker is not None
    psutil.Process(broker.pid).kill()
    begun = time.monotonic()
    assert driver.wait(400) == 1, driver.said[-3000:]
    in_batch = time.monotonic() - begun
    orders.run(expect=1)
    time.sleep(max(0.0, TEN_MINUTES_S - (time.monotonic() - begun)))
    orders.kafka.start()
    orders.run()
    failed = f"failed after {at_start:.0f} s ({why[:90]}) and {in_batch:.0f} s, and again while it was gone"
    seen(f"{failed}; then resumed: {compare(orders)}")


@pytest.mark.heavy
@pytest.mark.parametrize("what", ["CHECKPOINTS", "SHARDS", "LEDGER"])
@pytest.mark.fault("F13", "the disk runs full under the checkpoint, the shards, the ledger, in turn")
def test_a_full_disk(orders: World, seen: Seen, what: str) -> None:
    with small_disk(orders.folder / "disk", "24m") as disk:
        address = {"CHECKPOINTS": str(disk), "SHARDS": f"sqlite:///{disk}", "LEDGER": f"sqlite:///{disk}/ledger.sqlite"}
        orders.environment[f"SLUICE_{what}"] = address[what]
        orders.produce(12_000)
        driver = orders.start(SLUICE_MAX_RECORDS="400")
        orders.await_batch(driver, 1)
        filler = disk / "filler"
        with filler.open("wb", buffering=0) as file:
            try:
                while True:
                    file.write(b"\0" * 4096)
            except OSError:
                pass
        status = driver.wait()
        assert status == 1, f"{status}: {driver.said[-1500:]}"
        why = next(line for line in driver.said.splitlines()[::-1] if line.startswith(("The job", "State")))
        watching = Watching(orders)
        filler.unlink()
        watching.look()
        orders.run()
        watching.look()
        seen(f"{what.lower()}: {why[:120]}; with space again: {compare(orders)}")


@pytest.mark.heavy
@pytest.mark.fault("F14", "PostgreSQL, which holds ledger and shards, restarted during queries and in mid-run")
def test_a_restarted_database(tmp_path: Path, seen: Seen) -> None:
    port = free_port()
    with world() as orders:
        with postgres_server(tmp_path / "postgres", port) as url:
            orders.environment |= {"SLUICE_LEDGER": url, "SLUICE_SHARDS": url}
            orders.produce(8_000)
            driver = orders.start(SLUICE_MAX_RECORDS="400")
            orders.await_batch(driver, 2)
            watching = Watching(orders)
            watching.look()
        with pytest.raises(StateError) as down:
            watching.look()
        assert down.value.status == 503
        time.sleep(3)
        with postgres_server(tmp_path / "postgres", port):
            status = driver.wait()
            watching.look()
            orders.run()
            watching.look()
            found = compare(orders)
    seen(f"queries 503 while it was down, whole snapshots before and after; the driver ended with {status}; {found}")


@pytest.mark.heavy
@pytest.mark.fault(
    "F18", "a driver's clock stepped an hour ahead, back, and an hour behind, in mid-run; a second one two hours ahead"
)
def test_clocks(orders: World, tmp_path: Path, seen: Seen) -> None:
    mine, ahead = (SteppedClock(folder) for folder in (tmp_path / "mine", tmp_path / "ahead"))
    orders.produce(24_000)
    driver = orders.start(SLUICE_MAX_RECORDS="400", SLUICE_RUN="a/stepped/b", **mine.environment)
    for hours in (1, 0, -1):
        orders.await_batch(driver, orders.published() + 3)
        mine.step(hours)
    ahead.step(1)
    second = orders.start(SLUICE_RUN="a/ahead/b", **ahead.environment)
    assert second.wait() == 1
    assert "Another driver is running job" in second.said, second.said[-2000:]
    assert driver.runs, "it ended too soon to have been met by the second"
    assert driver.wait() == 0, driver.said[-3000:]
    with orders.ledger() as ledger:
        times = [snapshot.published_at for snapshot in ledger.snapshots.recent("orders", "main", limit=1000)[::-1]]
    back = sum(later < earlier for earlier, later in pairwise(times))
    assert back == 2, "the clock did not step"
    stepped = f"{len(times)} batches, twice published at an earlier hour than the one before"
    seen(f"{stepped}; the second driver was refused while the first lived; {compare(orders)}")
