"""Faults while a driver writes Delta tables: kills around the commit, and a pause past the lease."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import psutil
import pytest

from sluice.local.broker import running as running_broker
from tests.faults.conftest import Observe
from tests.faults.shops import Shops, running_shops
from tests.faults.test_interruptions import LONG_S, marker
from tests.faults.world import Driver, wait_until
from tests.support.delta import delta_rows, written_snapshot

pytestmark = [pytest.mark.heavy, pytest.mark.timeout(7200)]


@dataclass
class DeltaShops(Shops):
    """The pipeline with Delta tables."""

    delta: bool = True
    lake: Path = Path()

    def written(self, table: str = "log") -> int:
        """The last batch that a table has, -1 if none."""
        snapshot = written_snapshot(self.lake / table)
        return -1 if snapshot is None else int(snapshot.partition(".")[2])

    def paused_while_it_writes(self) -> tuple[Driver, list[psutil.Process]]:
        """Start a driver, and pause it when it has written rows of a batch that are not committed."""
        commits, until = self._count("*/_delta_log/*.json"), time.monotonic() + LONG_S
        driver = self.start()

        def wait_for_more(pattern: str, than: int) -> None:
            while self._count(pattern) <= than:
                assert driver.runs, driver.output[-3000:]
                assert time.monotonic() < until, driver.output[-3000:]
                time.sleep(0.002)

        wait_for_more(
            "*/_delta_log/*.json", commits + 1
        )  # with these commits, it takes over both tables
        files = self._count("*/part-*.parquet")
        wait_for_more("*/part-*.parquet", files)
        processes = driver.members()
        for process in processes:
            with suppress(psutil.NoSuchProcess):  # some only change the mode of a file
                process.suspend()
        return driver, processes

    def _count(self, pattern: str) -> int:
        return len([*self.lake.glob(pattern)])

    def totals(self) -> dict[str, int]:
        return {row["shop"]: row["n"] for row in delta_rows(self.lake / "totals")}

    def numbers(self) -> list[int]:
        return [row["number"] for row in delta_rows(self.lake / "log")]

    def compare(self) -> str:
        """Compare also the snapshots of the tables with the newest one."""
        comparison = super().compare()
        with self.ledger() as ledger:
            snapshot = ledger.snapshots.latest(self.name)
        assert snapshot is not None
        assert {written_snapshot(self.lake / table) for table in ("totals", "log")} == {snapshot.id}
        return comparison


@pytest.fixture
def shops(tmp_path: Path) -> Iterator[DeltaShops]:
    lake = tmp_path / "lake"
    tables = ("DeltaTable", f'"{lake}/totals"', f'"{lake}/log"')
    with running_shops(
        DeltaShops, tmp_path, {}, *tables, delta=True, log=f"delta:{lake}/log", lake=lake
    ) as made:
        yield made


@pytest.mark.fault(
    "F37",
    "kill -9 of the driver before a Delta table's commit, and between the commits and the marker",
)
def test_a_driver_killed_around_the_commit(shops: DeltaShops, observe: Observe) -> None:
    shops.send(10)
    before = shops.written("totals")
    driver, _ = shops.paused_while_it_writes()
    assert (shops.written("totals"), shops.written("log")) == (before, before), (
        "no table has the batch"
    )
    driver.kill("all")
    shops.run()
    shops.compare()
    shops.send(10)
    before = shops.written()
    broker = running_broker(shops.kafka.folder)
    assert broker is not None
    driver, processes = shops.paused_while_it_writes()
    psutil.Process(broker.pid).suspend()
    for process in processes:
        if process.is_running():
            process.resume()
    assert wait_until(lambda: min(shops.written("totals"), shops.written("log")) > before, 120), (
        driver.output[-3000:]
    )
    driver.kill("all")
    psutil.Process(broker.pid).resume()
    # A broker that was paused for long answers only some time after it was resumed.
    assert wait_until(lambda: marker(shops) == before), (
        "the batch has a marker, or the broker does not answer"
    )
    assert (shops.published(), shops.written()) == (before, before + 1)
    shops.send(10)
    shops.run()
    observe(f"batch {before + 1} was in the tables, but had no marker; {shops.compare()}")


@pytest.mark.fault(
    "F38",
    "SIGSTOP of a driver that writes Delta tables; another run after its lease expired; SIGCONT",
)
def test_a_driver_paused_while_it_writes(shops: DeltaShops, observe: Observe) -> None:
    shops.send(10)
    stopped, processes = shops.paused_while_it_writes()
    shops.send(10)
    shops.run()
    comparison = shops.compare()
    for process in processes:
        if process.is_running():
            process.resume()
    assert stopped.wait() != 0
    assert shops.compare() == comparison
    shops.send(10)
    shops.run()
    observe(
        f"the resumed driver ended with {stopped.output.strip().splitlines()[-1][:120]}; {shops.compare()}"
    )
