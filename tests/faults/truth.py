"""Compares a pipeline's results with the expected ones, for both pipelines of the fault scenarios."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from confluent_kafka import Consumer, TopicPartition

from sluice.state.ledger.ledger import Ledger
from sluice.state.model import Snapshot
from tests.faults import orders, words
from tests.faults.comparison import Comparison
from tests.faults.world import World


class Pipeline(Protocol):
    """A pipeline of the fault scenarios; each is a module."""

    def feed(self, world: World, count: int, sent: int) -> None:
        """Send `count` records that are later than the `sent` earlier ones."""

    def topics(self) -> dict[str, int]:
        """The input topics and their numbers of partitions."""

    def check_snapshot(self, ledger: Ledger, world: World, snapshot: Snapshot) -> None:
        """Raise AssertionError unless the snapshot is complete."""

    def compare(self, world: World, earlier: Sequence[Snapshot] = ()) -> Comparison:
        """Raise AssertionError for a wrong result.

        `earlier`: snapshots of a generation that was replaced.
        """


PIPELINES: dict[str, Pipeline] = {"orders": orders, "words": words}


def compare(world: World, earlier: Sequence[Snapshot] = ()) -> Comparison:
    """Raise AssertionError unless state, output topics, dead letters and audits are right for the input records."""
    return PIPELINES[world.name].compare(world, earlier)


class Feed:
    """Sends records, each later than the previous ones."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._pipeline = PIPELINES[world.name]
        self.sent = 0

    def __call__(self, count: int) -> None:
        """Send `count` more records."""
        self._pipeline.feed(self._world, count, self.sent)
        self.sent += count

    def left(self) -> int:
        """The number of records that the pipeline has not published yet."""
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


class Watcher:
    """A reader that checks, while faults happen, that it only ever sees complete snapshots."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._last: tuple[int, int] | None = None
        self.checks = 0

    def check(self) -> None:
        """Raise AssertionError if the newest snapshot is incomplete, or older than an earlier one."""
        with self._world.ledger() as ledger:
            if (snapshot := ledger.snapshots.latest(self._world.name)) is not None:
                self._check(ledger, snapshot)

    def _check(self, ledger: Ledger, snapshot: Snapshot) -> None:
        PIPELINES[self._world.name].check_snapshot(ledger, self._world, snapshot)
        last, now = self._last, (snapshot.generation, snapshot.batch)
        assert last is None or now >= last, f"{snapshot.pipeline} went back from {last} to {now}"
        self.checks += 1
        self._last = now
