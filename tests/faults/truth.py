"""What a pipeline has given, beside what one undisturbed run would have given, whichever of the two it is."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Protocol

from confluent_kafka import Consumer, TopicPartition

from sluice.state.ledger.ledger import Ledger
from sluice.state.model import Snapshot
from tests.faults import orders, words
from tests.faults.found import Found
from tests.faults.world import World


class Pipeline(Protocol):
    """A pipeline that faults are tried on: a module of its own."""

    def feed(self, world: World, count: int, sent: int) -> None:
        """Bring more records after the `sent` ones that came before."""

    def topics(self) -> dict[str, int]:
        """The topics that records come by, and how many partitions each has."""

    def whole(self, ledger: Ledger, world: World, snapshot: Snapshot) -> None:
        """AssertionError if what a reader of a snapshot sees is not that snapshot whole."""

    def compare(self, world: World, earlier: Sequence[Snapshot] = ()) -> Found:
        """AssertionError unless everything is as it must be; `earlier`: snapshots of a generation that is gone."""


PIPELINES: dict[str, Pipeline] = {"orders": orders, "words": words}


def compare(world: World, earlier: Sequence[Snapshot] = ()) -> Found:
    """AssertionError unless state, output topics, dead letters and audits are what the topics give."""
    return PIPELINES[world.name].compare(world, earlier)


class Feed:
    """Brings records, each later than those before."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._pipeline = PIPELINES[world.name]
        self.sent = 0

    def __call__(self, count: int) -> None:
        """Bring so many more."""
        self._pipeline.feed(self._world, count, self.sent)
        self.sent += count

    def left(self) -> int:
        """How many records have not been published yet by every job."""
        with self._world.ledger() as ledger:
            read = ledger.positions(self._world.name)
        consumer = Consumer({**self._world.config, "group.id": "left"})
        try:
            return sum(
                consumer.get_watermark_offsets(TopicPartition(topic, partition), timeout=60)[1]
                - read.get(topic, {}).get(partition, 0)
                for topic, partitions in self._pipeline.topics().items()
                for partition in range(partitions)
            )
        finally:
            consumer.close()


class Watching:
    """A reader who asks again and again while faults happen: each answer must be one whole snapshot."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._last: dict[str, tuple[int, int]] = {}
        self.asked = 0
        self.snapshots: Counter[str] = Counter()

    def look(self) -> None:
        """AssertionError if the newest snapshot of a job is not whole, or older than one that was seen."""
        with self._world.ledger() as ledger:
            for job in self._world.jobs:
                if (snapshot := ledger.snapshots.latest(self._world.name, job)) is not None:
                    self._look(ledger, snapshot)

    def _look(self, ledger: Ledger, snapshot: Snapshot) -> None:
        PIPELINES[self._world.name].whole(ledger, self._world, snapshot)
        seen, now = self._last.get(snapshot.job), (snapshot.generation, snapshot.batch)
        assert seen is None or now >= seen, f"{snapshot.job} went back from {seen} to {now}"
        self.asked += 1
        self.snapshots[snapshot.job] += now != seen
        self._last[snapshot.job] = now
