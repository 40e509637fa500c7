"""Faults while a driver writes Delta tables: kills around the commit, and a pause past the lease."""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import psutil
import pytest
from confluent_kafka import Producer

from sluice.settings import settings
from sluice.testing.kafka import running as running_broker
from sluice.topics import read_topic
from tests.delta import delta_rows, written_snapshot
from tests.faults.conftest import Observe
from tests.faults.test_interruptions import LONG_S, marker
from tests.faults.world import Driver, World, wait_until, world

pytestmark = [pytest.mark.heavy, pytest.mark.timeout(7200)]

PIPELINE = '''
from msgspec import Struct
from sluice import DeltaTable, Pipeline

class Sale(Struct):
    """A sale."""
    shop: str
    number: int

pipeline = Pipeline("shops")
sales = pipeline.stream("sales", value=Sale, key="shop")
sales.group_by("shop").count(store="n").select(n="value").to(DeltaTable("LAKE/totals", key="shop"))
sales.to(DeltaTable("LAKE/log"))
sales.to("copies")
'''


class Shops(World):
    """The pipeline of these tests. Its sales are numbered."""

    lake: Path
    sent: int = 0

    def send(self, count: int) -> None:
        """Send sales of three shops."""
        producer = Producer(self.config)
        for number in range(self.sent, self.sent + count):
            shop = "abc"[number % 3]
            producer.produce("sales", json.dumps({"shop": shop, "number": number}), shop, partition=number % 2)
        assert producer.flush(30) == 0
        self.sent += count

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

        wait_for_more("*/_delta_log/*.json", commits + 1)  # with these commits, it takes over both tables
        files = self._count("*/part-*.parquet")
        wait_for_more("*/part-*.parquet", files)
        processes = driver.members()
        for process in processes:
            with suppress(psutil.NoSuchProcess):  # some only change the mode of a file
                process.suspend()
        return driver, processes

    def _count(self, pattern: str) -> int:
        return len([*self.lake.glob(pattern)])

    def compare(self) -> str:
        """Compare the tables and the topic with the records that were sent."""
        expected = Counter("abc"[number % 3] for number in range(self.sent))
        assert {row["shop"]: row["n"] for row in delta_rows(self.lake / "totals")} == expected
        assert sorted(row["number"] for row in delta_rows(self.lake / "log")) == [*range(self.sent)]
        copies = [json.loads(message.value() or b"")["number"] for message in read_topic(self.config, "copies")]
        assert sorted(copies) == [*range(self.sent)]
        with self.ledger() as ledger:
            snapshot = ledger.snapshots.latest(self.name, "main")
            assert snapshot is not None
            audits = ledger.audits.all(snapshot.ref)
        assert sum(audit.outputs.get(f"delta:{self.lake}/log", 0) for audit in audits) == self.sent
        assert {written_snapshot(self.lake / table) for table in ("totals", "log")} == {snapshot.id}
        return f"the tables and the topic have each of {self.sent} records once, as audited"


@pytest.fixture
def shops(tmp_path: Path) -> Iterator[Shops]:
    lake = tmp_path / "lake"
    (tmp_path / "jobs").mkdir()
    (tmp_path / "jobs" / "shops.py").write_text(PIPELINE.replace("LAKE", str(lake)))
    with world("shops") as made:
        made.environment |= {
            "SLUICE_PIPELINES": str(tmp_path / "jobs"), "SLUICE_DELTA_JARS": str(settings().delta_jars),
        }  # fmt: skip
        made.kafka.create_topics({"sales": 2})
        shops = Shops(made.folder, made.kafka, made.name, made.environment)
        shops.delta, shops.lake = True, lake
        shops.send(10)
        shops.run()
        try:
            yield shops
        finally:
            shops.close()


@pytest.mark.fault("F37", "kill -9 of the driver before a Delta table's commit, and between the commits and the marker")
def test_a_driver_killed_around_the_commit(shops: Shops, observe: Observe) -> None:
    shops.send(10)
    before = shops.written("totals")
    driver, _ = shops.paused_while_it_writes()
    assert (shops.written("totals"), shops.written("log")) == (before, before), "no table has the batch"
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
    assert wait_until(lambda: min(shops.written("totals"), shops.written("log")) > before, 120), driver.output[-3000:]
    driver.kill("all")
    psutil.Process(broker.pid).resume()
    assert (shops.published(), marker(shops), shops.written()) == (before, before, before + 1)
    shops.send(10)
    shops.run()
    observe(f"batch {before + 1} was in the tables, but had no marker; {shops.compare()}")


@pytest.mark.fault("F38", "SIGSTOP of a driver that writes Delta tables; another run after its lease expired; SIGCONT")
def test_a_driver_paused_while_it_writes(shops: Shops, observe: Observe) -> None:
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
    observe(f"the resumed driver ended with {stopped.output.strip().splitlines()[-1][:120]}; {shops.compare()}")
