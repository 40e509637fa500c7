"""F1: the driver is killed again and again, at random moments, over one long input."""

from __future__ import annotations

import random
import sqlite3
import sys
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

from confluent_kafka import Consumer, TopicPartition

from tests.faults.truth import Found, Watching, compare
from tests.faults.world import Driver, World

AIMS = ("start", "any", "begun", "shard", "after a shard", "published", "after publishing")


class Kills:
    """Kills drivers until it has done so often enough, and tells in which phase each one died."""

    def __init__(self, world: World, seed: int = 7) -> None:
        self.world = world
        self.chance = random.Random(seed)
        self.phases: Counter[str] = Counter()
        self.watching = Watching(world)
        self.killed = 0
        self._start_ms = 1_670_230_527_000

    def run(self, kills: int, batch: int = 400, seconds: float = 36_000) -> Found:
        """Kill so many drivers, or for so long, let the last one finish, and compare; `batch` bounds the batches."""
        self.feed(10_000)
        until = time.monotonic() + seconds
        while self.killed < kills and time.monotonic() < until:
            if self.left() < 4_000:
                self.feed(6_000)
            self.one_life(batch)
            self.watching.look()
            if self.killed % 10 == 0:
                # Past pytest, which keeps what is printed: half an hour without a word would look like a hang.
                print(f"  {self.killed} of {kills} killed", file=sys.__stderr__, flush=True)
        self.world.run()
        self.watching.look()
        return compare(self.world)

    def feed(self, count: int) -> None:
        """More orders, later in event time than those before."""
        self.world.produce(count, seed=self._start_ms // 1000, start_ms=self._start_ms)
        self._start_ms += 600_000

    def left(self) -> int:
        """How many orders have not been published yet."""
        with self.world.ledger() as ledger:
            read = ledger.positions("orders").get("orders", {})
        consumer = Consumer({**self.world.config, "group.id": "left"})
        try:
            ends = [consumer.get_watermark_offsets(TopicPartition("orders", p), timeout=20)[1] for p in range(4)]
        finally:
            consumer.close()
        return sum(ends) - sum(read.values())

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
        return _ask(self.world.home / "ledger.sqlite", "SELECT count(*) FROM cuts")

    def begun(self) -> int:
        folder = self.world.home / "checkpoints" / "orders" / "main" / "g1" / "spark" / "offsets"
        return len(list(folder.glob("[0-9]*"))) if folder.is_dir() else 0

    def shards(self) -> list[Path]:
        return [self.world.home / "shards/orders/main/g1" / f"worker-{number}.sqlite" for number in range(4)]

    def written(self) -> int:
        return sum(_ask(shard, "SELECT count(*) FROM batches") for shard in self.shards())

    def phase(self) -> str:
        """What had been done of the last batch when the driver died."""
        begun, done, published = self.world.begun(), self.world.done(), self.world.published()
        if begun == done:
            return "between batches"
        if published == begun:
            return "after the ledger, before Spark's commit"
        shards = sum(_ask(shard, f"SELECT count(*) FROM batches WHERE batch = {begun}") for shard in self.shards())
        if shards == 0:
            return "before the shards"
        return "among the shards" if shards < 4 else "after the shards, before the ledger"


def _ask(file: Path, sql: str) -> int:
    if not file.is_file():
        return 0
    try:
        connection = sqlite3.connect(f"{file.as_uri()}?mode=ro", uri=True, timeout=1)
        try:
            return int(connection.execute(sql).fetchone()[0])
        finally:
            connection.close()
    except sqlite3.Error:
        return 0
