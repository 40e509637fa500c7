"""Faults while a driver writes tables of a PostgreSQL database: kills, a pause past the lease, a database that ends."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import psycopg
import pytest

from sluice.local.broker import running as running_broker
from tests.faults.conftest import Observe
from tests.faults.shops import Shops, running_shops
from tests.faults.test_interruptions import LONG_S, marker
from tests.faults.world import Driver, wait_until
from tests.support.ports import free_port
from tests.support.postgres import postgres_server

pytestmark = [pytest.mark.heavy, pytest.mark.timeout(7200)]


@dataclass
class PostgresShops(Shops):
    """The pipeline with tables of a database."""

    url: str = ""

    def rows(self, statement: str) -> list[tuple[Any, ...]]:
        with psycopg.connect(self.url, autocommit=True) as database:
            return database.execute(statement.encode()).fetchall()

    def written(self) -> int:
        """The last batch that the database has, -1 if none."""
        return next(
            (
                batch
                for (batch,) in self.rows("SELECT batch FROM sluice_batches")
                if batch is not None
            ),
            -1,
        )

    def is_up(self) -> bool:
        try:
            return bool(self.rows("SELECT 1"))
        except psycopg.Error:
            return False

    @contextmanager
    def blocked(self) -> Iterator[None]:
        """While the block lasts, a driver waits when it has begun to write the tables."""
        with psycopg.connect(self.url) as database:
            database.execute("LOCK TABLE totals IN EXCLUSIVE MODE")
            yield

    def await_blocked(self, driver: Driver) -> None:
        waits = "SELECT 1 FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND query LIKE 'INSERT INTO \"totals\"%'"
        assert wait_until(lambda: bool(self.rows(waits)) or not driver.runs, LONG_S), driver.output[
            -3000:
        ]
        assert driver.runs, driver.output[-3000:]

    def totals(self) -> dict[str, int]:
        return dict(self.rows("SELECT shop, n FROM totals"))

    def numbers(self) -> list[int]:
        return [number for (number,) in self.rows("SELECT number FROM log")]


@pytest.fixture
def shops(tmp_path: Path) -> Iterator[PostgresShops]:
    with postgres_server(tmp_path / "postgres", free_port()) as url:
        variables = {"SLUICE_CONNECTION_WAREHOUSE": url}
        tables = (
            "PostgresTable",
            '"totals", connection="warehouse"',
            '"log", connection="warehouse"',
        )
        with running_shops(
            PostgresShops, tmp_path, variables, *tables, url=url, log="warehouse:log"
        ) as made:
            yield made


@pytest.mark.fault(
    "F32", "kill -9 of the driver before the database's commit, and between it and the marker"
)
def test_a_driver_killed_around_the_databases_commit(
    shops: PostgresShops, observe: Observe
) -> None:
    shops.send(10)
    with shops.blocked():
        driver = shops.start()
        shops.await_blocked(driver)
        driver.kill("all")
    shops.run()
    shops.compare()
    shops.send(10)
    before = shops.written()
    broker = running_broker(shops.kafka.folder)
    assert broker is not None
    with shops.blocked():
        driver = shops.start()
        shops.await_blocked(driver)
        psutil.Process(broker.pid).suspend()
    assert wait_until(lambda: shops.written() > before, 60), driver.output[-3000:]
    driver.kill("all")
    psutil.Process(broker.pid).resume()
    # A broker that was paused for long answers only some time after it was resumed.
    assert wait_until(lambda: marker(shops) == before), (
        "the batch has a marker, or the broker does not answer"
    )
    assert (shops.published(), shops.written()) == (before, before + 1)
    shops.send(10)
    shops.run()
    observe(f"batch {before + 1} was in the database, but had no marker; {shops.compare()}")


@pytest.mark.fault(
    "F33", "SIGSTOP of a driver that writes tables; another run after its lease expired; SIGCONT"
)
def test_a_driver_paused_while_it_writes_tables(shops: PostgresShops, observe: Observe) -> None:
    shops.send(10)
    with shops.blocked():
        stopped = shops.start()
        shops.await_blocked(stopped)
        processes = stopped.members()
        for process in processes:
            process.suspend()
    shops.send(10)
    shops.run()
    comparison = shops.compare()
    for process in processes:
        if process.is_running():
            process.resume()
    status = stopped.wait()
    assert status != 0
    assert shops.compare() == comparison
    shops.send(10)
    shops.run()
    observe(
        f"the resumed driver ended with {stopped.output.strip().splitlines()[-1][:120]}; {shops.compare()}"
    )


@pytest.mark.fault(
    "F34", "kill -9 of the database's process that writes a driver's rows; the database restarts"
)
def test_a_database_that_crashes(shops: PostgresShops, observe: Observe) -> None:
    shops.send(10)
    with psycopg.connect(shops.url) as database:
        database.execute("LOCK TABLE totals IN EXCLUSIVE MODE")
        driver = shops.start()
        shops.await_blocked(driver)
        ((backend,),) = shops.rows(
            "SELECT pid FROM pg_stat_activity WHERE application_name = 'sluice.shops'"
        )
        psutil.Process(backend).kill()
        assert driver.wait() == 1
        with contextlib.suppress(psycopg.Error):  # the server has ended this connection too
            database.rollback()
    assert wait_until(shops.is_up, 60)
    shops.send(10)
    shops.run()
    observe(
        f"the run ended with {driver.output.strip().splitlines()[-1][:150]}; with the database back, {shops.compare()}"
    )
