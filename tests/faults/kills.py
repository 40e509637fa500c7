"""F1: the driver is killed again and again, at random moments, over one long input."""

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

from sluice.state.model import JobRef
from sluice.state.shard.addresses import location
from tests.faults.found import Found
from tests.faults.truth import Feed, Watching, compare
from tests.faults.world import Driver, World

WORKERS = {"orders": 4, "words": 2}
AIMS = ("start", "any", "begun", "shard", "after a shard", "published", "after publishing")


class Kills:
    """Kills drivers until it has done so often enough, and tells in which phase each one died."""

    def __init__(self, world: World, seed: int = 7) -> None:
        self.world = world
        self.chance = random.Random(seed)
        self.phases: Counter[str] = Counter()
        self.watching = Watching(world)
        self.feed = Feed(world)
        self.killed = 0
        self._database = Database()

    def run(self, kills: int, batch: int, ahead: int = 10) -> Found:
        """Kill so many drivers, let the last one finish, and compare. Each begins with at least `ahead` batches to do.

        `batch` is how many records a batch has at most.
        """
        self.feed(2 * ahead * batch)
        while self.killed < kills:
            if self.feed.left() < ahead * batch:
                self.feed(ahead * batch)
            self.one_life(batch)
            self.watching.look()
            if self.killed % 10 == 0:
                # Past pytest, which keeps what is printed: half an hour without a word would look like a hang.
                print(f"  {self.killed} of {kills} killed", file=sys.__stderr__, flush=True)
        self.world.run()
        self.watching.look()
        return compare(self.world)

    def one_life(self, batch: int) -> None:
        """Start a driver, and kill it at a moment that is drawn anew each time."""
        driver = self.world.start(SLUICE_MAX_RECORDS=str(batch))
        self.wait_for(driver, self.chance.choice(AIMS))
        if driver.runs:
            what = self.chance.choice(("java", "python", "all"))
            driver.kill(what)
            self.killed += 1
            self.phases[self.phase()] += 1
            self.phases[f"{what} killed"] += 1
        else:
            assert driver.process.returncode == 0, driver.said[-3000:]
            self.phases["ended before"] += 1

    def wait_for(self, driver: Driver, aim: str) -> None:
        """Return at the moment to kill."""
        draw = self.chance.uniform
        if aim == "start":
            time.sleep(draw(0, 9))
        elif aim == "any":
            self.until(driver, self.changed(self.published))
            time.sleep(draw(0, 3))
        elif aim == "begun":
            self.until(driver, self.changed(self.begun, self.chance.randrange(1, 3)))
            time.sleep(draw(0, 0.5))
        elif aim == "shard":
            self.until(driver, self.changed(self.written, self.chance.randrange(1, 6)))
        elif aim == "after a shard":
            self.until(driver, self.changed(self.written, self.chance.randrange(1, 6)))
            time.sleep(draw(0, 0.15))
        else:
            self.until(driver, self.changed(self.published, self.chance.randrange(1, 3)))
            time.sleep(draw(0, 0.03) if aim == "after publishing" else 0)

    @staticmethod
    def changed(look: Callable[[], int], times: int = 1) -> Callable[[], bool]:
        """Whether what is looked at has changed so often."""
        state = {"was": look(), "left": times}

        def has() -> bool:
            if (now := look()) != state["was"]:
                state["was"] = now
                state["left"] -= 1
            return state["left"] <= 0

        return has

    @staticmethod
    def until(driver: Driver, true: Callable[[], bool]) -> None:
        deadline = time.monotonic() + 150
        while driver.runs and time.monotonic() < deadline and not true():
            time.sleep(0.004)

    def published(self) -> int:
        """How many snapshots there are, of all jobs."""
        return self._ask(self.world.settings.ledger, "SELECT count(*) FROM snapshots")

    def begun(self) -> int:
        """How many batches Spark has written down, of all jobs."""
        folders = (
            self.world.home / "checkpoints" / self.world.name / job / "g1/spark/offsets" for job in self.world.jobs
        )
        return sum(len(list(folder.glob("[0-9]*"))) for folder in folders if folder.is_dir())

    def shards(self, *jobs: str) -> list[str]:
        """Where the shards are; of all jobs if none is named."""
        known, workers = self.world.settings, WORKERS[self.world.name]
        return [
            location(known.shards, JobRef(self.world.name, job, 1), worker)
            for job in jobs or self.world.jobs
            for worker in range(workers)
        ]

    def written(self) -> int:
        """How many batches the shards have, all together."""
        return sum(self._ask(shard, "SELECT count(*) FROM batches") for shard in self.shards())

    def phase(self) -> str:
        """What had been done of the last batch when the driver died."""
        for job in self.world.jobs:
            begun, done, published = self.world.begun(job), self.world.done(job), self.world.published(job)
            if begun == done:
                continue
            if published == begun:
                return "after the ledger, before Spark's commit"
            mine = self.shards(job)
            shards = sum(self._ask(one, f"SELECT count(*) FROM batches WHERE batch = {begun}") for one in mine)
            if shards == 0:
                return "before the shards"
            return "among the shards" if shards < len(mine) else "after the shards, before the ledger"
        return "between batches"

    def _ask(self, url: str, query: str) -> int:
        return self._database.ask(url, query)


class Database:
    """Asks a ledger or a shard past the product: quickly, again and again, and whether it is there yet or not."""

    def __init__(self) -> None:
        self._connections: dict[str, psycopg.Connection[Any]] = {}

    def ask(self, url: str, query: str) -> int:
        """The query's number; 0 if the database has no answer."""
        try:
            return self._postgres(url, query) if url.startswith("postgres") else self._sqlite(url, query)
        except (sqlite3.Error, psycopg.Error):
            return 0

    @staticmethod
    def _sqlite(url: str, query: str) -> int:
        file = Path(make_url(url).database or "")
        if not file.is_file():
            return 0
        with closing(sqlite3.connect(f"{file.as_uri()}?mode=ro", uri=True, timeout=1)) as connection:
            return int(connection.execute(query).fetchone()[0])

    def _postgres(self, url: str, query: str) -> int:
        parsed = make_url(url)
        plain = parsed.difference_update_query(["schema"]).set(drivername="postgresql")
        address = plain.render_as_string(hide_password=False)
        if address not in self._connections or self._connections[address].closed:
            self._connections[address] = psycopg.connect(address, autocommit=True, connect_timeout=5)
        connection = self._connections[address]
        schema = postgres.Identifier(str(parsed.query.get("schema", "public")))
        connection.execute(postgres.SQL("SET search_path TO {}").format(schema))
        row = connection.execute(postgres.SQL(query)).fetchone()
        return int(row[0]) if row else 0
