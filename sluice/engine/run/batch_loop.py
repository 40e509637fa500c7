"""Runs a job's batches: plans each batch in the ledger, gives the plan to Spark, and publishes the result.

A batch whose driver ended before it was published is repeated with the same plan. The records that
are unread when a run begins are divided into batches of a limited size; if results depend on the
order of records across partitions, the division respects this order.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing
from dataclasses import dataclass, field

from sluice.engine.batch.batch_start import BatchStart
from sluice.engine.batch.idle_time import IdleTime
from sluice.engine.batch.stream_time import ORDER
from sluice.engine.publish.publisher import Publisher
from sluice.engine.read.ordered_backlog import Backlog, Offsets
from sluice.engine.read.source_identity import Positions
from sluice.engine.read.timestamps import KafkaTimestamps, end_offsets
from sluice.engine.run.batch_query import BatchQuery
from sluice.engine.run.batch_size import SAFE_RECORDS, BatchSize
from sluice.engine.run.clocks import Clocks
from sluice.engine.run.driver_lease import Lease
from sluice.engine.run.read_ahead import ReadAhead
from sluice.engine.run.replay import ReplayStep, divided, offsets_between
from sluice.engine.run.streaming_query import JobQuery
from sluice.plan import Job
from sluice.state.ledger.ledger import Ledger
from sluice.state.ledger.plans import PlannedBatch
from sluice.state.model import Snapshot
from sluice.support.memory import release_unused_memory
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
    partitions: Mapping[str, int] = field(init=False)
    """Topic → its number of partitions now."""
    _backlog: ReadAhead | None = field(default=None, init=False)
    """The batches that are still to be run; None if the present batch is not one of a backlog."""

    def __post_init__(self) -> None:
        self.partitions = self.query.partitions

    @property
    def positions(self) -> dict[str, dict[str, int]]:
        """The offsets at which the next batch begins, for all partitions."""
        return positions_after(self.publisher.newest, self.firsts)

    def run_all(self, kafka: Mapping[str, str]) -> None:
        """Read all records that the topics have now, in batches of a limited number of records of streams.

        Without new records, fires the wall-clock timers that are due, in a batch of their own. At
        the end, runs batches without records in which stream time goes on, if results become due by
        this (see `IdleTime`).
        """
        now = self.clocks.now()
        topic_ends = end_offsets(kafka, _offsets(self.positions))
        self.publisher.identity.require_reached(self.positions, topic_ends)
        # The output of an interrupted batch may be written already, so the next
        # batch must have the same records.
        self._repeat_interrupted()
        begin = _offsets(self.positions)
        # All of these batches get the same time of the clock. A batch has no records if it covers
        # only aborted transactions or a new partition. Such a batch is published, too, so that the
        # ledger has the new positions.
        first = self._next_number
        batch_ends = self._batch_ends(kafka, begin, topic_ends)
        self._run_each(
            self._planned(number, now, ends) for number, ends in enumerate(batch_ends, start=first)
        )
        # Every batch fires the timers that are due. If there was no batch, run one for the timers.
        earliest = self.clocks.earliest()
        if self._next_number == first and self._has_due_timers(earliest):
            self.run(self._planned(first, earliest, begin))
        # When one of these batches has sent the results of an operator, stream time may go on for
        # the operators downstream of it.
        while self._idle_time.has_results(earliest):
            self.run(self._planned(self._next_number, earliest, _offsets(self.positions)))

    def _planned(self, number: int, now: int, ends: Offsets) -> PlannedBatch:
        return PlannedBatch(
            number=number, begun=now, partitions=dict(self.partitions), ends=_positions(ends)
        )

    def _run_each(self, plans: Iterator[PlannedBatch]) -> None:
        """Run the batches of a backlog. While a batch is written, tasks already read the next."""
        with closing(ReadAhead(plans, self._read_ahead)) as self._backlog:
            while (upcoming := self._backlog.next_batch()) is not None:
                self.run(*upcoming)
        self._backlog = None

    def _when_read(self, times: Mapping[str, int]) -> None:
        """Begin to read the next batch, because the current batch is read. `times` are the stream times after this."""
        if self._backlog is not None and self.publisher.can_read_ahead:
            self._backlog.begin_next(times)

    def _read_ahead(
        self, previous: PlannedBatch, plan: PlannedBatch, times: Mapping[str, int]
    ) -> BatchQuery | None:
        """Start the query of a batch while the previous batch is written. None if the batch has no records to read."""
        if offsets_between(previous.ends, plan.ends) <= 0:
            return None
        return self._query(self._start(plan, previous.ends, times))

    def _query(self, start: BatchStart) -> BatchQuery:
        return BatchQuery(self.query, start, self._when_read, self.publisher)

    @property
    def next_timer(self) -> int | None:
        """When the next timer fires, or the next result becomes due, without records, epoch ms.

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
        """Run the steps of a history that have not been run yet, each as a batch.

        Without any record, publishes an empty batch, so that queries answer from the new
        generation.
        """
        self._repeat_interrupted()
        for step in steps:
            begun = self.clocks.now() if step.begun is None else step.begun
            if offsets_between(self.positions, step.ends) <= 0 and not self._has_due_timers(begun):
                continue
            partitions = {**self.partitions, **(step.partitions or {})}
            # A batch that is replayed did not know topics that a pattern matched only later, so
            # it must not wait for their partitions now.
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
        if self.publisher.newest is None:
            self.run(self._planned(0, self.clocks.now(), _offsets(self.positions)))

    @property
    def _next_number(self) -> int:
        newest = self.publisher.newest
        return 0 if newest is None else newest.batch + 1

    def _repeat_interrupted(self) -> None:
        """Run the batch that was planned and not published, because its driver ended."""
        planned = self.ledger.plans.unpublished(self.query.storage.ref)
        if planned is not None:
            self._repeat(planned)

    def _repeat(self, plan: PlannedBatch) -> None:
        """Run a batch with the numbers of partitions that the topics had when it was first planned."""
        # Windows wait for all partitions that a batch knows, so a repeated batch must know the same
        # partitions as before. Topics that match a pattern and were found after the batch was
        # planned have no partitions in it.
        self._repartition(dict.fromkeys(self.query.job.matched_topics, 0) | plan.partitions)
        self.run(plan)
        self._repartition(self.partitions)

    def _repartition(self, partitions: Mapping[str, int]) -> None:
        if dict(partitions) != dict(self.query.partitions):
            self.query.repartition(partitions)
            self.publisher.partitions = partitions

    def run(self, plan: PlannedBatch, ahead: BatchQuery | None = None) -> None:
        """Plan a batch in the ledger, run it and publish it. `ahead` is its query, if it has been started already.

        Raises LeaseError, before anything of the batch is written, if this driver has lost its
        lease, and WentBack if the ledger has lost the batch before.
        """
        with ExitStack() as started:
            if ahead is not None:
                started.enter_context(closing(ahead))
            positions = self.positions
            # From here on, a run that repeats the batch gives it the same records and the same
            # clock.
            plan = self.ledger.plans.add(self.query.storage.ref, plan, self.lease.epoch)
            times = self.publisher.begin(
                plan, positions, reads_records=offsets_between(positions, plan.ends) > 0
            )
            start = self._start(plan, positions, times)
            # The ledger decides. Tasks that began with anything else have read in vain.
            if ahead is None or not ahead.has_read(start):
                started.close()
                ahead = started.enter_context(closing(self._query(start)))
            ahead.finish(start)
        self.size.measure(
            self.publisher.counts.get("read", 0),
            self.publisher.row_bytes,
            self.publisher.output_size,
        )
        # The next batch's tasks need the memory that this batch's output needed in the driver.
        release_unused_memory()

    def _start(self, plan: PlannedBatch, begins: Positions, times: Mapping[str, int]) -> BatchStart:
        clocks = self.query.job.read_clocks
        return BatchStart.of(plan.number, plan.begun, times, clocks, _ranges(begins, plan.ends))

    def _batch_ends(
        self,
        kafka: Mapping[str, str],
        begin: Offsets,
        topic_ends: Offsets,
    ) -> Iterator[Offsets]:
        """The end offsets of the batches that read everything from `begin` to the ends of the topics.

        There are four cases:

        - Nothing is new: there is no batch.
        - The unread records fit one batch: there is one batch.
        - There are more records, and results depend on the order of records across partitions: the
          records are divided in this order (`Backlog`).
        - There are more records, and results do not depend on this order: each batch takes the same
          share of every partition (`divided`).
        """
        streams = _streams(self.query.job, begin)
        snapshot = self.publisher.newest
        published = _offsets(self.firsts if snapshot is None else snapshot.positions)
        ends = {part: max(end, begin[part]) for part, end in topic_ends.items() if part in begin}
        if all(published.get(part) == end for part, end in ends.items()):
            return
        unread = sum(ends[part] - begin[part] for part in streams)
        _expect_size(self.size, self.query.job, kafka, begin, ends)
        if unread <= self.size.most_records():
            yield ends
            return
        # The first batch reads global tables to their ends: in Kafka Streams,
        # too, joins see a complete table.
        stream_begin = {part: begin[part] for part in streams}
        stream_ends = {part: ends[part] for part in streams}
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
                    of_streams = {part: batch_ends[part] for part in streams}
                    yield {**ends, **of_streams}

    def _timestamps_read(self, streams: Iterable[Partition]) -> dict[Partition, int]:
        """The largest Kafka timestamp that was read from each partition of the streams."""
        times = self.ledger.snapshots.times_before(self.query.storage.ref, self._next_number)
        names = {part: f"{ORDER}/{part[0]}/{part[1]}" for part in streams}
        return {part: times[name] for part, name in names.items() if name in times}


def positions_after(snapshot: Snapshot | None, firsts: Positions) -> dict[str, dict[str, int]]:
    """The offsets at which the batch after a snapshot begins, for all partitions. `firsts` are those of the first."""
    ends = {} if snapshot is None else snapshot.positions
    # A partition that is new since the last batch begins at its first offset.
    return {topic: {**first, **ends.get(topic, {})} for topic, first in firsts.items()}


def expect_size(size: BatchSize, job: Job, kafka: Mapping[str, str], positions: Positions) -> None:
    """Expect rows of the size of the records that are unread now, unless the size of batches is known.

    A run can call this while its session starts.
    """
    if size.is_unknown:
        begin = _offsets(positions)
        _expect_size(size, job, kafka, begin, end_offsets(kafka, begin))


def _expect_size(
    size: BatchSize, job: Job, kafka: Mapping[str, str], begin: Offsets, ends: Offsets
) -> None:
    starts = {part: begin[part] for part in _streams(job, begin)}
    unread = sum(ends[part] - start for part, start in starts.items())
    if unread > SAFE_RECORDS and size.is_unknown:
        with KafkaTimestamps.of(kafka, ends) as records:
            size.expect(records.mean_size(starts), _rows_per_record(job))


def depends_on_order(job: Job, partitions: Mapping[str, int]) -> bool:
    """Whether results depend on the order of records across partitions. `partitions`: topic → number of partitions."""
    partition_count = sum(partitions.get(source.topic, 0) for source in job.streams)
    return job.has_operators and partition_count > 1


def _rows_per_record(job: Job) -> int:
    """The most rows that a record has for operators. Tasks add up the records of combinable aggregates at once."""
    edges = [edge for operator in job.operators for edge in operator.edges_from_records]
    counts = [sum(source.topic in edge.topics for edge in edges) for source in job.streams]
    return max(counts, default=0)


def prefetch(batches: Iterator[Offsets]) -> Generator[Offsets, None, None]:
    """Find the end of the next batch in another thread while the caller runs a batch."""
    with ThreadPoolExecutor(1, "backlog") as finder:
        next_ends = finder.submit(next, batches, None)
        while (ends := next_ends.result()) is not None:
            next_ends = finder.submit(next, batches, None)
            yield ends


def _ranges(begins: Positions, ends: Positions) -> list[Range]:
    """The records between two positions, sorted by topic and partition, so that each partition has its task."""
    ranges: list[Range] = []
    for (topic, partition), end in sorted(_offsets(ends).items()):
        begin = begins[topic][str(partition)]
        if begin < end:
            ranges.append(Range(topic, partition, begin, end))
    return ranges


def _ends_of_step(positions: Positions, step: ReplayStep) -> dict[str, dict[str, int]]:
    """The end offsets of a step's batch, for all partitions. A partition that the step does not read keeps its offset.

    No offset goes back: an interrupted replay may have run a part of the step already.
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
    """The batches of about `most` records in which a rebuild reads from `begin` to `target`.

    A rebuild uses them if it does not know the batches in which the records were read before.
    """
    partition_counts = {topic: len(partitions) for topic, partitions in target.items()}
    if not depends_on_order(job, partition_counts):
        return [*map(ReplayStep, divided(begin, target, lambda: most))]
    starts, ends = _offsets(begin), _offsets(target)
    streams = _streams(job, ends)
    position = {part: starts.get(part, 0) for part in streams}
    ends_of_streams = {part: ends[part] for part in streams}
    with KafkaTimestamps.of(kafka, ends_of_streams) as timestamps:
        backlog = Backlog(timestamps, streams, position, ends_of_streams)
        batches = list(backlog.batches(lambda: most))
    if not batches:
        return [*map(ReplayStep, divided(begin, target, lambda: most))]
    return [ReplayStep(_positions({**ends, **batch_ends})) for batch_ends in batches]


def _streams(job: Job, partitions: Iterable[Partition]) -> tuple[Partition, ...]:
    """The partitions of streams, in the order in which operators process records with the same time."""
    numbers = {source.topic: source.number for source in job.streams}
    of_streams = (part for part in partitions if part[0] in numbers)
    return tuple(sorted(of_streams, key=lambda part: (numbers[part[0]], part[1])))


def _offsets(positions: Positions) -> dict[Partition, int]:
    offsets: dict[Partition, int] = {}
    for topic, partitions in positions.items():
        offsets |= {(topic, int(partition)): offset for partition, offset in partitions.items()}
    return offsets


def _positions(offsets: Offsets) -> dict[str, dict[str, int]]:
    positions: dict[str, dict[str, int]] = {}
    for (topic, partition), offset in offsets.items():
        positions.setdefault(topic, {})[str(partition)] = offset
    return positions
