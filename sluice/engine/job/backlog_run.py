"""Runs a job whose results depend on the order of records across partitions, in batches that respect this order.

If all records fit into one batch, Spark runs the batch as for other jobs. Otherwise Sluice divides the backlog at the
start of the run, writes Spark's log of each batch, and lets Spark recover the batch from its log.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass

from sluice.engine.batch.checkpoint import batch_positions, last_batch
from sluice.engine.batch.stream_time import ORDER
from sluice.engine.job.query import JobQuery
from sluice.engine.job.replay import Step, evenly, log_batch
from sluice.engine.publish.publisher import Publisher
from sluice.engine.read.backlog import Backlog, Offsets, Part
from sluice.engine.read.identity import Positions
from sluice.engine.read.timestamps import KafkaTimestamps, end_offsets
from sluice.plan import Job, OrderedJob


def needs_order(job: Job, partitions: Mapping[str, int]) -> bool:
    """Whether results depend on the order of records across partitions. `partitions`: topic → number of partitions."""
    in_all = sum(partitions.get(source.topic, 0) for source in job.streams)
    return isinstance(job, OrderedJob) and bool(job.operators) and in_all > 1


@dataclass(frozen=True)
class BacklogRun:
    """Runs a query until it has read its backlog, in batches of at most `most` stream records."""

    query: JobQuery
    kafka: Mapping[str, str]
    most: int
    require: Callable[[], None]
    """Raises LeaseError if this driver may no longer work on the pipeline."""

    def run(self, publisher: Publisher, firsts: Positions) -> None:
        """Read the whole backlog. `firsts` are the partitions' first offsets."""
        now = int(time.time() * 1000)
        checkpoint = self.query.storage.checkpoint
        begun, done = (last_batch(checkpoint, log) for log in ("offsets", "commits"))
        position = _offsets(firsts) | _offsets(batch_positions(checkpoint, begun) if begun >= 0 else {})
        ends = end_offsets(self.kafka, position)
        streams = _streams(self.query.job, position)
        times = publisher.begin()
        if sum(ends[part] - position[part] for part in streams) <= self.most:
            self.query.run(publisher)
            return
        if begun > done:
            # The unfinished batch keeps its end offsets, because its output may have been published already.
            self.query.run(publisher, once=True)
            times = publisher.begin()
        pattern = self.query.pattern()
        ends_of_streams = {part: ends[part] for part in streams}
        reached = {part: times[name] for part in streams if (name := f"{ORDER}/{part[0]}/{part[1]}") in times}
        with KafkaTimestamps.of(self.kafka, ends_of_streams) as timestamps:
            backlog = Backlog(timestamps, streams, position, ends_of_streams, reached)
            with closing(ahead(backlog.batches(self.most))) as batches:
                for batch, taken in enumerate(batches, start=begun + 1):
                    self.require()
                    log_batch(checkpoint, batch, _positions({**ends, **taken}), now, pattern)
                    self.query.run(publisher, once=True)


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
