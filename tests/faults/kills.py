"""F1: kills the driver many times, at random moments, over one long input."""

from __future__ import annotations

import random
import sqlite3
import sys
import time
from collections import Counter
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import psycopg
from psycopg import sql as postgres
from sqlalchemy import make_url

from sluice.state.model import GenerationRef
from sluice.state.shard.addresses import location
from tests.faults.comparison import Comparison
from tests.faults.truth import Feed, Watcher, compare
from tests.faults.world import Driver, World

WORKERS = {"orders": 4, "words": 2}
AIMS = ("start", "any", "begun", "shard", "after a shard", "published", "after publishing")


class Kills:
    """Kills drivers a given number of times, and counts the phase in which each one died."""

    def __init__(self, world: World, seed: int = 7, poll_s: float = 0.02) -> None:
        """`poll_s`: seconds between checks for the moment to kill; more checks take CPU time from the driver."""
        self.world = world
        self.poll_s = poll_s
        self.rng = random.Random(seed)
        self.phases: Counter[str] = Counter()
        self.watcher = Watcher(world)
        self.feed = Feed(world)
        self.killed = 0
        self._database = Database()

    def run(self, kills: int, batch: int, ahead: int = 10) -> Comparison:
        """Kill `kills` drivers, let the last one finish, and compare the results with the expected ones.

        Each driver starts with at least `ahead` unread batches. `batch`: largest number of records
        in a batch.
        """
        self.feed(2 * ahead * batch)
        while self.killed < kills:
            if self.feed.left() < ahead * batch:
                self.feed(ahead * batch)
            self.kill_one(batch)
            self.watcher.check()
            if self.killed % 10 == 0:
                # pytest captures stderr, and half an hour without output would look like a hang.
                print(f"  {self.killed} of {kills} killed", file=sys.__stderr__, flush=True)
        self.world.run()
        self.watcher.check()
        return compare(self.world)

    def kill_one(self, batch: int) -> None:
        """Start a driver, and kill it at a random moment."""
        driver = self.world.start(SLUICE_MAX_RECORDS=str(batch))
        self.wait_for(driver, self.rng.choice(AIMS))
        if driver.runs:
            processes = self.rng.choice(("java", "python", "all"))
            driver.kill(processes)
            self.killed += 1
            self.phases[self.phase()] += 1
            self.phases[f"{processes} killed"] += 1
        else:
            assert driver.process.returncode == 0, driver.output[-3000:]
            self.phases["ended before"] += 1

    def wait_for(self, driver: Driver, aim: str) -> None:
        """Return at the moment to kill the driver."""
        draw = self.rng.uniform
        if aim == "start":
            time.sleep(draw(0, 9))
        elif aim == "any":
            self.until(driver, self.changed(self.published))
            time.sleep(draw(0, 3))
        elif aim == "begun":
            self.until(driver, self.changed(self.begun, self.rng.randrange(1, 3)))
            time.sleep(draw(0, 0.5))
        elif aim == "shard":
            self.until(driver, self.changed(self.written, self.rng.randrange(1, 6)))
        elif aim == "after a shard":
            self.until(driver, self.changed(self.written, self.rng.randrange(1, 6)))
            time.sleep(draw(0, 0.15))
        else:
            self.until(driver, self.changed(self.published, self.rng.randrange(1, 3)))
            time.sleep(draw(0, 0.03) if aim == "after publishing" else 0)

    @staticmethod
    def changed(read: Callable[[], int], times: int = 1) -> Callable[[], bool]:
        """A condition: the number that `read` returns has changed `times` times."""
        state = {"last": read(), "remaining": times}

        def has_changed() -> bool:
            if (number := read()) != state["last"]:
                state["last"] = number
                state["remaining"] -= 1
            return state["remaining"] <= 0

        return has_changed

    def until(self, driver: Driver, condition: Callable[[], bool]) -> None:
        deadline = time.monotonic() + 150
        while driver.runs and time.monotonic() < deadline and not condition():
            time.sleep(self.poll_s)

    def published(self) -> int:
        """The number of snapshots."""
        return self._query(self.world.settings.ledger, "SELECT count(*) FROM snapshots")

    def begun(self) -> int:
        """The number of batches that have been planned."""
        return self._query(
            self.world.settings.ledger, "SELECT coalesce(sum(number + 1), 0) FROM plans"
        )

    def shards(self) -> list[str]:
        """The locations of the shards."""
        settings, workers = self.world.settings, WORKERS[self.world.name]
        return [
            location(settings.shards, GenerationRef(self.world.name, 1), worker)
            for worker in range(workers)
        ]

    def written(self) -> int:
        """The number of batches in all shards."""
        return sum(self._query(shard, "SELECT count(*) FROM batches") for shard in self.shards())

    def phase(self) -> str:
        """How far the last batch was when the driver died."""
        begun = self.world.begun()
        if begun == self.world.published():
            return "between batches"
        shards = self.shards()
        query = f"SELECT count(*) FROM batches WHERE batch = {begun}"
        written = sum(self._query(shard, query) for shard in shards)
        if written == 0:
            return "before the shards"
        return (
            "among the shards" if written < len(shards) else "after the shards, before the ledger"
        )

    def _query(self, url: str, query: str) -> int:
        return self._database.query(url, query)


class Database:
    """Queries a ledger or a shard directly, without Sluice: fast, and even before the database exists."""

    def __init__(self) -> None:
        self._connections: dict[str, psycopg.Connection[Any]] = {}

    def query(self, url: str, query: str) -> int:
        """The number that the query returns; 0 if the database cannot be read."""
        try:
            return (
                self._postgres(url, query)
                if url.startswith("postgres")
                else self._sqlite(url, query)
            )
        except (sqlite3.Error, psycopg.Error):
            return 0

    @staticmethod
    def _sqlite(url: str, query: str) -> int:
        file = Path(make_url(url).database or "")
        if not file.is_file():
            return 0
        with closing(
            sqlite3.connect(f"{file.as_uri()}?mode=ro", uri=True, timeout=1)
        ) as connection:
            return int(connection.execute(query).fetchone()[0])

    def _postgres(self, url: str, query: str) -> int:
        parsed = make_url(url)
        plain = parsed.difference_update_query(["schema"]).set(drivername="postgresql")
        address = plain.render_as_string(hide_password=False)
        if address not in self._connections or self._connections[address].closed:
            self._connections[address] = psycopg.connect(
                address, autocommit=True, connect_timeout=5
            )
        connection = self._connections[address]
        schema = postgres.Identifier(str(parsed.query.get("schema", "public")))
        connection.execute(postgres.SQL("SET search_path TO {}").format(schema))
        row = connection.execute(postgres.SQL(query)).fetchone()
        return int(row[0]) if row else 0
