"""Runs a job's batches: plans them in the ledger, runs them on Spark, and publishes them.

A batch whose driver ended before it was published is repeated with the same plan. The records that
are unread when a run begins are divided into batches of a limited size. If results depend on the
order of records across partitions, the division respects this order.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Generator, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass, field
from functools import partial
from itertools import count

import msgspec
from confluent_kafka.admin import AdminClient
from pyspark.sql import DataFrame

from sluice.engine.batch.batch_start import BatchStart
from sluice.engine.batch.idle_time import IdleTime
from sluice.engine.batch.stream_time import ORDER
from sluice.engine.publish.publisher import BegunBatch, PublishedBatch, Publisher
from sluice.engine.publish.shard_writer import RowsOnSpark
from sluice.engine.read.backlog_timestamps import KafkaTimestamps, end_offsets
from sluice.engine.read.ordered_backlog import Backlog, Offsets
from sluice.engine.read.source_identity import Positions
from sluice.engine.run.batch_query import BatchQuery
from sluice.engine.run.batch_size import SAFE_RECORDS, BatchSize
from sluice.engine.run.clocks import Clocks
from sluice.engine.run.driver_lease import Lease
from sluice.engine.run.read_ahead import BatchQueries, may_read_ahead
from sluice.engine.run.replay import ReplayStep, divided, offsets_between
from sluice.engine.run.shared_snapshots import newest_snapshots, shared_snapshots
from sluice.engine.run.streaming_query import JobQuery
from sluice.kafka.brokers import silent_admin
from sluice.plan import Job
from sluice.state.ledger.ledger import Ledger
from sluice.state.ledger.plans import PlannedBatch
from sluice.state.model import Snapshot
from sluice.support.memory import release_unused_memory
from sluice.values.call_parameters import SharedSnapshot
from sluice.values.record_places import Partition, Range


@dataclass
class BatchLoop:
    """Runs the batches of a job's generation. This driver holds the generation's lease."""

    query: JobQuery
    publisher: Publisher
    ledger: Ledger
    lease: Lease
    firsts: Positions
    """The offsets at which the generation began to read."""
    size: BatchSize
    clocks: Clocks
    newest: Snapshot | None
    """The newest published snapshot, or None before the first batch has been published."""
    read: int = field(default=0, init=False)
    """Number of records read so far."""
    partitions: Mapping[str, int] = field(init=False)
    """Topic → its current number of partitions."""
    _queries: BatchQueries = field(init=False)
    _admin: AdminClient | None = field(default=None, init=False)
    """Stays connected while the run lingers."""

    def __post_init__(self) -> None:
        self.partitions = self.query.partitions
        # A rebuild writes no output, and does not read ahead.
        writes_output = self.publisher.destinations is not None
        reads_ahead = writes_output and may_read_ahead(self.query.job)
        start_query = partial(BatchQuery, self.query)
        self._queries = BatchQueries(start_query, self._start, reads_ahead=reads_ahead)

    @property
    def positions(self) -> dict[str, dict[str, int]]:
        """The offsets at which the next batch begins, for all partitions."""
        return positions_after(self.newest, self.firsts)

    def run_all(self, kafka: Mapping[str, str]) -> None:
        """Read all records that the topics have now, in batches of a limited size.

        The limit is a number of records of streams. If there are no new records, fire the due
        wall-clock timers in a separate batch. At the end, run batches without records in which
        stream time advances, if this makes results due (see `IdleTime`).
        """
        now = self.clocks.now()
        self._admin = self._admin or silent_admin(kafka)
        topic_ends = end_offsets(kafka, _offsets(self.positions), self._admin)
        self.publisher.identity.require_reached(self.positions, topic_ends)
        # The output of an interrupted batch may be written already, so the next
        # batch must have the same records.
        self._repeat_interrupted()
        begin = _offsets(self.positions)
        # All of these batches get the same clock time. A batch has no records if it covers only
        # aborted transactions or a new partition. Such a batch is published, too, so that the
        # ledger has the new positions.
        first = self._next_number
        batch_ends = self._batch_ends(kafka, begin, topic_ends)
        plans = map(partial(self._planned, now=now), count(first), batch_ends)
        with closing(self._queries.take_each(plans)) as backlog:
            for plan in backlog:
                self.run(plan)
        # Every batch fires the timers that are due. If there was no batch, run one for the timers.
        earliest = self.clocks.earliest()
        if self._next_number == first and self._has_due_timers(earliest):
            self.run(self._planned(first, begin, now=earliest))
        # After a batch has sent an operator's results, stream time may advance further downstream.
        while self._idle_time.has_results(earliest):
            offsets = _offsets(self.positions)
            self.run(self._planned(self._next_number, offsets, now=earliest))

    def _planned(self, number: int, ends: Offsets, *, now: int) -> PlannedBatch:
        return PlannedBatch(
            number=number, begun=now, partitions=dict(self.partitions), ends=_positions(ends)
        )

    @property
    def next_timer(self) -> int | None:
        """The next time at which a timer fires or a result becomes due without records, epoch ms.

        None if there is no such timer or result.
        """
        return self._idle_time.next_batch

    @property
    def _idle_time(self) -> IdleTime:
        storage = self.query.storage
        times = self.ledger.snapshots.times_before(storage.ref, self._next_number)
        return IdleTime(self.query.job, times, self.query.partitions)

    def _has_due_timers(self, now: int) -> bool:
        next_timer = self.next_timer
        return next_timer is not None and next_timer <= now

    def replay(self, steps: Iterable[ReplayStep]) -> None:
        """Run the steps of a replay that have not been run yet, each as a batch.

        If there are no records at all, publish an empty batch: queries need a snapshot of the new
        generation.
        """
        self._repeat_interrupted()
        for step in steps:
            begun = self.clocks.now() if step.begun is None else step.begun
            if offsets_between(self.positions, step.ends) <= 0 and not self._has_due_timers(begun):
                continue
            partitions = {**self.partitions, **(step.partitions or {})}
            # When a replayed batch first ran, it did not know topics that a pattern matched only
            # later. So it must not wait for their partitions now.
            later = [topic for topic in self.query.job.matched_topics if topic not in step.ends]
            partitions |= dict.fromkeys(later, 0)
            ends = _ends_of_step(self.positions, step)
            self._repeat(
                PlannedBatch(
                    number=self._next_number,
                    begun=begun,
                    partitions=partitions,
                    ends=ends,
                )
            )
        if self.newest is None:
            self.run(self._planned(0, _offsets(self.positions), now=self.clocks.now()))

    @property
    def _next_number(self) -> int:
        return 0 if self.newest is None else self.newest.batch + 1

    def _repeat_interrupted(self) -> None:
        """Run the batch that an earlier driver planned but did not publish."""
        planned = self.ledger.plans.unpublished(self.query.storage.ref)
        if planned is not None:
            self._repeat(planned)

    def _repeat(self, plan: PlannedBatch) -> None:
        """Run a batch with the numbers of partitions with which it was first planned."""
        # Windows wait for all partitions that a batch knows, so a repeated batch must know the same
        # partitions as before. Topics that match a pattern and were found after the batch was
        # planned have no partitions in it.
        self._repartition(dict.fromkeys(self.query.job.matched_topics, 0) | plan.partitions)
        self.run(plan)
        self._repartition(self.partitions)

    def _repartition(self, partitions: Mapping[str, int]) -> None:
        if dict(partitions) != dict(self.query.partitions):
            self.query.repartition(partitions)

    def run(self, plan: PlannedBatch) -> None:
        """Plan a batch in the ledger, run it and publish it.

        Raise LeaseError, before anything of the batch is written, if this driver has lost its
        lease. Raise WentBack if the ledger has lost the previous batch.
        """
        positions = self.positions
        if self.query.job.shared_stores:
            snapshots = newest_snapshots(self.ledger, self.query.job)
            plan = msgspec.structs.replace(plan, snapshots=snapshots)
        # From here on, a run that repeats the batch uses the same records and the same clock time.
        plan = self.ledger.plans.add(self.query.storage.ref, plan, self.lease.epoch)
        reads_records = offsets_between(positions, plan.ends) > 0
        batch = self.publisher.begin(
            plan, positions, self.query.partitions, reads_records=reads_records
        )
        start = self._start(plan, positions, batch.times)
        with closing(self._queries.query(start)) as query:
            published = query.finish(start, partial(self._publish, batch))
        if published.snapshot is not None:
            self.newest = published.snapshot
        read = published.counts.get("read", 0)
        self.read += read
        self.size.measure(read, published.row_bytes, published.output_size)
        # Free the memory that this batch's output needed in the driver: the next batch's tasks need
        # it.
        release_unused_memory()

    def _publish(self, batch: BegunBatch, written: DataFrame) -> PublishedBatch:
        return self.publisher.publish(batch, RowsOnSpark(written))

    def _start(self, plan: PlannedBatch, begins: Positions, times: Mapping[str, int]) -> BatchStart:
        clocks = self.query.job.read_clocks
        shared: Mapping[str, SharedSnapshot] = {}
        # The snapshots of other pipelines are not chosen yet when a batch's records are read ahead.
        if plan.snapshots:
            shared = shared_snapshots(self.ledger, self.query.job, plan.snapshots)
        ranges = _ranges(begins, plan.ends)
        return BatchStart.of(plan.number, plan.begun, times, clocks, ranges, shared)

    def _batch_ends(
        self,
        kafka: Mapping[str, str],
        begin: Offsets,
        topic_ends: Offsets,
    ) -> Iterator[Offsets]:
        """Yield the end offsets of the batches that read everything from `begin` on.

        The last of them ends where the topics end. There are four cases:

        - Nothing is new: there is no batch.
        - The unread records fit one batch: there is one batch.
        - There are more records, and results depend on the order of records across partitions: the
          records are divided in this order (`Backlog`).
        - There are more records, and results do not depend on this order: each batch takes the same
          share of every partition (`divided`).
        """
        streams = _streams(self.query.job, begin)
        positions = self.firsts if self.newest is None else self.newest.positions
        published = _offsets(positions)
        ends: dict[Partition, int] = {}
        for partition, end in topic_ends.items():
            if partition in begin:
                ends[partition] = max(end, begin[partition])
        if all(published.get(partition) == end for partition, end in ends.items()):
            return
        stream_begin, stream_ends = _chosen(begin, streams), _chosen(ends, streams)
        unread = sum(stream_ends.values()) - sum(stream_begin.values())
        _expect_size(self.size, self.query.job, kafka, begin, ends)
        if unread <= self.size.most_records():
            yield ends
            return
        # The first batch reads global tables to their ends. As in Kafka Streams, joins then see a
        # complete table.
        if not depends_on_order(self.query.job, self.partitions):
            for positions in divided(
                _positions(stream_begin), _positions(stream_ends), self.size.most_records
            ):
                yield {**ends, **_offsets(positions)}
            return
        with KafkaTimestamps.of(kafka, stream_ends) as timestamps:
            backlog = Backlog(
                timestamps,
                streams,
                dict(begin),
                stream_ends,
                self._timestamps_read(streams),
            )
            with closing(prefetch(backlog.batches(self.size.most_records))) as batches:
                for batch_ends in batches:
                    yield {**ends, **_chosen(batch_ends, streams)}

    def _timestamps_read(self, streams: Iterable[Partition]) -> dict[Partition, int]:
        """Return the largest Kafka timestamp that was read from each partition of the streams."""
        times = self.ledger.snapshots.times_before(self.query.storage.ref, self._next_number)
        read: dict[Partition, int] = {}
        for topic, partition in streams:
            name = f"{ORDER}/{topic}/{partition}"
            if name in times:
                read[topic, partition] = times[name]
        return read


def positions_after(snapshot: Snapshot | None, firsts: Positions) -> dict[str, dict[str, int]]:
    """Return the offsets at which the batch after a snapshot begins, for all partitions.

    `firsts` are the offsets at which the first batch begins.
    """
    ends = {} if snapshot is None else snapshot.positions
    # A partition that is new since the last batch begins at its first offset.
    return {topic: {**first, **ends.get(topic, {})} for topic, first in firsts.items()}


def expect_size(size: BatchSize, job: Job, kafka: Mapping[str, str], positions: Positions) -> None:
    """Estimate the size of rows from the records that are unread now.

    Do nothing if the size of batches is known. A run can call this while its session starts.
    """
    if size.is_unknown:
        begin = _offsets(positions)
        _expect_size(size, job, kafka, begin, end_offsets(kafka, begin))


def _expect_size(
    size: BatchSize, job: Job, kafka: Mapping[str, str], begin: Offsets, ends: Offsets
) -> None:
    starts = _chosen(begin, _streams(job, begin))
    unread = sum(ends[partition] - start for partition, start in starts.items())
    if unread > SAFE_RECORDS and size.is_unknown:
        with KafkaTimestamps.of(kafka, ends) as records:
            size.expect(records.mean_size(starts), _rows_per_record(job))


def depends_on_order(job: Job, partitions: Mapping[str, int]) -> bool:
    """Return whether results depend on the order of records across partitions.

    `partitions`: topic → number of partitions.
    """
    partition_count = sum(partitions.get(source.topic, 0) for source in job.streams)
    return job.has_operators and partition_count > 1


def _rows_per_record(job: Job) -> int:
    """Return the largest number of rows that a record becomes for operators.

    Records for combinable aggregates do not count, because the tasks that read them add them up.
    """
    counts = Counter[str]()
    for operator in job.operators:
        for edge in operator.edges_from_records:
            counts.update({*edge.topics})
    return max((counts[source.topic] for source in job.streams), default=0)


def prefetch(batches: Iterator[Offsets]) -> Generator[Offsets, None, None]:
    """Find the end of the next batch in another thread while the caller runs a batch."""
    with ThreadPoolExecutor(1, "backlog") as finder:
        next_ends = finder.submit(next, batches, None)
        while (ends := next_ends.result()) is not None:
            next_ends = finder.submit(next, batches, None)
            yield ends


def _ranges(begins: Positions, ends: Positions) -> list[Range]:
    """Return the ranges of records between two positions, sorted by topic and partition.

    Each partition with records has one range, because each range gets its own task.
    """
    ranges: list[Range] = []
    for (topic, partition), end in sorted(_offsets(ends).items()):
        begin = begins[topic][str(partition)]
        if begin < end:
            ranges.append(Range(topic, partition, begin, end))
    return ranges


def _ends_of_step(positions: Positions, step: ReplayStep) -> dict[str, dict[str, int]]:
    """Return the end offsets of a step's batch, for all partitions.

    A partition that the step does not read keeps its offset. Offsets never decrease: an interrupted
    replay may already have run a part of the step.
    """
    ends: dict[str, dict[str, int]] = {}
    for topic, partitions in positions.items():
        step_ends = step.ends.get(topic, {})
        ends[topic] = {}
        for partition, begin in partitions.items():
            ends[topic][partition] = max(begin, step_ends.get(partition, begin))
    return ends


def divide_records(
    job: Job,
    kafka: Mapping[str, str],
    begin: Positions,
    target: Positions,
    most: int,
) -> list[ReplayStep]:
    """Divide the records from `begin` to `target` into batches of about `most` records.

    A rebuild uses these batches if it does not know the batches in which the records were first
    read.
    """
    partition_counts = {topic: len(partitions) for topic, partitions in target.items()}
    if not depends_on_order(job, partition_counts):
        return [*map(ReplayStep, divided(begin, target, lambda: most))]
    starts, ends = _offsets(begin), _offsets(target)
    streams = _streams(job, ends)
    position = {partition: starts.get(partition, 0) for partition in streams}
    ends_of_streams = _chosen(ends, streams)
    with KafkaTimestamps.of(kafka, ends_of_streams) as timestamps:
        backlog = Backlog(timestamps, streams, position, ends_of_streams)
        batches = list(backlog.batches(lambda: most))
    if not batches:
        return [*map(ReplayStep, divided(begin, target, lambda: most))]
    steps: list[ReplayStep] = []
    for batch_ends in batches:
        steps.append(ReplayStep(_positions({**ends, **batch_ends})))
    return steps


def _streams(job: Job, partitions: Iterable[Partition]) -> tuple[Partition, ...]:
    """Return the partitions of streams, in the order in which operators process records.

    This is the order of records with the same time.
    """
    numbers = {source.topic: source.number for source in job.streams}
    of_streams = [partition for partition in partitions if partition[0] in numbers]
    return tuple(sorted(of_streams, key=lambda each: (numbers[each[0]], each[1])))


def _chosen(offsets: Offsets, partitions: Iterable[Partition]) -> dict[Partition, int]:
    """Return the offsets of these partitions only."""
    return {partition: offsets[partition] for partition in partitions}


def _offsets(positions: Positions) -> dict[Partition, int]:
    offsets: dict[Partition, int] = {}
    for topic, partitions in positions.items():
        for partition, offset in partitions.items():
            offsets[topic, int(partition)] = offset
    return offsets


def _positions(offsets: Offsets) -> dict[str, dict[str, int]]:
    positions: dict[str, dict[str, int]] = {}
    for (topic, partition), offset in offsets.items():
        positions.setdefault(topic, {})[str(partition)] = offset
    return positions
