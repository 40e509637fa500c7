"""Runs a job's batches: plans each in the ledger, gives the plan to Spark, and publishes the result.

A batch whose driver ended before it was published is repeated with the same plan. The records that are unread when a
run begins are divided into batches of a limited size; if results depend on the order of records across partitions, the
division respects this order.
"""

from __future__ import annotations

import json
import time
from collections.abc import Generator, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from sluice.engine.batch.batch_start import BatchStart, tell_tasks
from sluice.engine.batch.checkpoint import write_checkpoint
from sluice.engine.batch.stream_time import ORDER
from sluice.engine.publish.publisher import Publisher
from sluice.engine.read.batch_ends import Backlog, Offsets, Part
from sluice.engine.read.source_identity import Positions
from sluice.engine.read.timestamps import KafkaTimestamps, end_offsets
from sluice.engine.run.driver_lease import Lease
from sluice.engine.run.replay import Step, evenly, moved
from sluice.engine.run.streaming_query import JobQuery
from sluice.plan import Job
from sluice.state.ledger.ledger import Ledger
from sluice.state.ledger.plans import PlannedBatch

_SHUFFLE = "spark.sql.shuffle.partitions"
_METADATA = "org.apache.spark.sql.execution.streaming.checkpointing.OffsetSeqMetadata"


@dataclass
class Batches:
    """Runs the batches of a job's generation, whose lease is held."""

    query: JobQuery
    publisher: Publisher
    ledger: Ledger
    lease: Lease
    firsts: Positions
    """The offsets at which the generation began to read."""
    partitions: Mapping[str, int] = field(init=False)
    """Topic → its number of partitions now."""

    def __post_init__(self) -> None:
        self.partitions = self.query.partitions

    @property
    def reached(self) -> dict[str, dict[str, int]]:
        """Where the next batch begins, for all partitions."""
        snapshot = self.ledger.snapshots.newest(self.query.storage.ref)
        published = {} if snapshot is None else snapshot.positions
        return {topic: {**first, **published.get(topic, {})} for topic, first in self.firsts.items()}

    def run_all(self, kafka: Mapping[str, str], most: int) -> None:
        """Read all records that the topics have now, in batches of at most `most` records of streams."""
        ref, now = self.query.storage.ref, int(time.time() * 1000)
        planned = self.ledger.plans.unpublished(ref)
        ends = end_offsets(kafka, _offsets(self.reached))
        if planned is not None:
            self._repeat(planned)
        newest = self.ledger.snapshots.newest(ref)
        position, number = _offsets(self.reached), 0 if newest is None else newest.batch + 1
        # The batches of a run have the same clock. After aborted transactions, or for a new partition, a batch has no
        # records: it is published so that the ledger has the new positions.
        for batch, taken in enumerate(self._division(kafka, position, ends, most), start=number):
            self.run(PlannedBatch(number=batch, begun=now, partitions=dict(self.partitions), ends=_positions(taken)))

    def repeat(self, steps: Iterable[Step]) -> None:
        """Run the steps of a history that have not been run yet, each as a batch."""
        planned = self.ledger.plans.unpublished(self.query.storage.ref)
        if planned is not None:
            self._repeat(planned)
        for step in steps:
            reached = self.reached
            if moved(reached, step.ends) <= 0:
                continue
            newest = self.ledger.snapshots.newest(self.query.storage.ref)
            ends = {
                topic: {
                    part: max(begin, step.ends[topic].get(part, begin)) if topic in step.ends else begin
                    for part, begin in parts.items()
                }
                for topic, parts in reached.items()
            }
            begun = int(time.time() * 1000) if step.begun is None else step.begun
            partitions = {**self.partitions, **(step.partitions or {})}
            number = 0 if newest is None else newest.batch + 1
            self._repeat(PlannedBatch(number=number, begun=begun, partitions=partitions, ends=ends))

    def _repeat(self, plan: PlannedBatch) -> None:
        """Run a batch with the numbers of partitions that the topics had when it was first planned."""
        self._repartition(plan.partitions)
        self.run(plan)
        self._repartition(self.partitions)

    def _repartition(self, partitions: Mapping[str, int]) -> None:
        if dict(partitions) != dict(self.query.partitions):
            self.query.repartition(partitions)
            self.publisher.partitions = partitions

    def run(self, plan: PlannedBatch) -> None:
        """Plan a batch in the ledger, run it and publish it.

        Raises LeaseError, before anything of the batch is written, if this driver has lost its lease.
        """
        storage, reached = self.query.storage, self.reached
        plan = self.ledger.plans.add(storage.ref, plan, self.lease.epoch)
        before = {topic: {part: reached[topic][part] for part in parts} for topic, parts in plan.ends.items()}
        self._start(plan, before)
        conf, sources = self._conf(), self.query.job.topics_of_sources
        with TemporaryDirectory(prefix="sluice-checkpoint-") as checkpoint:
            write_checkpoint(Path(checkpoint), plan, before, sources, conf)
            # Without a scheme, Spark would look for it in a cluster's own file system.
            self.query.run(self.publisher, f"file://{checkpoint}")

    def _start(self, plan: PlannedBatch, before: Positions) -> None:
        times = self.publisher.begin(plan, before)
        tell_tasks(self.query.spark.sparkContext, BatchStart(plan.number, plan.begun, times))

    def _conf(self) -> dict[str, str]:
        """The settings that Spark keeps with a batch."""
        spark = self.query.spark
        metadata: Any = getattr(spark._jvm, _METADATA)
        kept: dict[str, str] = json.loads(metadata.apply(0, 0, spark._jsparkSession.conf()).json())["conf"]
        return kept | {_SHUFFLE: str(spark.conf.get(_SHUFFLE))}

    def _division(self, kafka: Mapping[str, str], position: Offsets, ends: Offsets, most: int) -> Iterator[Offsets]:
        """The end offsets of the batches that read everything up to `ends`."""
        job = self.query.job
        streams = _streams(job, position)
        snapshot = self.ledger.snapshots.newest(self.query.storage.ref)
        known = _offsets(self.firsts if snapshot is None else snapshot.positions)
        ends = {part: max(end, position[part]) for part, end in ends.items() if part in position}
        if all(known.get(part) == end for part, end in ends.items()):
            return
        if sum(ends[part] - position[part] for part in streams) <= most:
            yield ends
            return
        if not needs_order(job, self.partitions):
            begin = _positions({part: position[part] for part in streams})
            for step in evenly(begin, _positions({part: ends[part] for part in streams}), most):
                yield {**ends, **_offsets(step.ends)}
            return
        number = 0 if snapshot is None else snapshot.batch + 1
        times = self.ledger.snapshots.times_before(self.query.storage.ref, number)
        reached = {part: times[name] for part in streams if (name := f"{ORDER}/{part[0]}/{part[1]}") in times}
        ends_of_streams = {part: ends[part] for part in streams}
        with KafkaTimestamps.of(kafka, ends_of_streams) as timestamps:
            backlog = Backlog(timestamps, streams, dict(position), ends_of_streams, reached)
            with closing(ahead(backlog.batches(most))) as batches:
                for taken in batches:
                    yield {**ends, **{part: taken[part] for part in streams}}


def needs_order(job: Job, partitions: Mapping[str, int]) -> bool:
    """Whether results depend on the order of records across partitions. `partitions`: topic → number of partitions."""
    in_all = sum(partitions.get(source.topic, 0) for source in job.streams)
    return job.has_operators and in_all > 1


def ahead(batches: Iterator[Offsets]) -> Generator[Offsets, None, None]:
    """Find the end of the next batch in another thread while the caller runs a batch."""
    with ThreadPoolExecutor(1, "backlog") as finder:
        found = finder.submit(next, batches, None)
        while (ends := found.result()) is not None:
            found = finder.submit(next, batches, None)
            yield ends


def divided(job: Job, kafka: Mapping[str, str], begin: Positions, target: Positions, most: int) -> list[Step]:
    """Divide the records up to `target` into batches of about `most` records, if the original batches are unknown."""
    if not needs_order(job, {topic: len(partitions) for topic, partitions in target.items()}):
        return evenly(begin, target, most)
    starts, ends = _offsets(begin), _offsets(target)
    streams = _streams(job, ends)
    position = {part: starts.get(part, 0) for part in streams}
    ends_of_streams = {part: ends[part] for part in streams}
    with KafkaTimestamps.of(kafka, ends_of_streams) as timestamps:
        batches = list(Backlog(timestamps, streams, position, ends_of_streams).batches(most))
    return [Step(_positions({**ends, **taken})) for taken in batches] or evenly(begin, target, most)


def _streams(job: Job, partitions: Iterable[Part]) -> tuple[Part, ...]:
    """The partitions of streams, in the order in which operators process records with the same time."""
    numbers = {source.topic: source.number for source in job.streams}
    of_streams = (part for part in partitions if part[0] in numbers)
    return tuple(sorted(of_streams, key=lambda part: (numbers[part[0]], part[1])))


def _offsets(positions: Positions) -> dict[Part, int]:
    return {
        (topic, int(partition)): offset
        for topic, partitions in positions.items()
        for partition, offset in partitions.items()
    }


def _positions(offsets: Offsets) -> dict[str, dict[str, int]]:
    positions: dict[str, dict[str, int]] = {}
    for (topic, partition), offset in offsets.items():
        positions.setdefault(topic, {})[str(partition)] = offset
    return positions
