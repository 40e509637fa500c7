"""Publishes a batch: writes the shards, then the output records, then the snapshot in the ledger."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from itertools import starmap
from typing import TYPE_CHECKING, Protocol

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
import structlog

from sluice.engine.batch.job_topics import NO_LIMITS, TopicLimits
from sluice.engine.batch.record_headers import concatenated, with_headers
from sluice.engine.batch.rejected import HeadersAt, Row, rejected_rows, settle, with_own_headers
from sluice.engine.batch.row_schemas import in_order
from sluice.engine.batch.side_outputs import BatchStats, Collected, SideOutput
from sluice.engine.batch.storage import Storage
from sluice.engine.batch.stream_time import OWN_TIMES
from sluice.engine.combine.totals import Totals
from sluice.engine.publish.at_least_once import AtLeastOnce, Records
from sluice.engine.publish.auditor import Auditor
from sluice.engine.publish.encode import UNWRITTEN, RejectedOutput, encoded, fitting, shortened
from sluice.engine.publish.max_failures import require_few_failures
from sluice.engine.publish.shard_writer import RESULT_DDL, ShardWriter
from sluice.engine.publish.store_changes import GlobalTables, change_records
from sluice.engine.publish.table_rows import joined_rows, table_rows, with_positions
from sluice.engine.publish.window_retention import Retention
from sluice.engine.read.source_identity import Positions
from sluice.errors import SluiceError
from sluice.plan import Job, Sink
from sluice.sinks.target import BatchId, Rows, TableSink
from sluice.state.ledger.history import Batch
from sluice.state.ledger.ledger import Ledger
from sluice.state.ledger.plans import PlannedBatch
from sluice.state.model import Snapshot

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

log = structlog.get_logger()

_OUTPUT = "output/"


class HeldLease(Protocol):
    """The generation's lease, or a test driver's stand-in."""

    @property
    def epoch(self) -> int:
        """The lease's epoch, which grows with every new holder."""

    def check(self) -> None:
        """Raise LeaseError unless the lease is still held."""


class IdentityCheck(Protocol):
    """The identity of the source topics, or a test driver's stand-in."""

    def check_identity(self) -> None:
        """Raise EngineError if a topic was deleted or created again since the run began."""


class Output(Protocol):
    """The destination of output records: a Kafka transaction, or a test driver's memory."""

    def send(self, batch: Batch, records: Iterable[tuple[str, pa.Table]]) -> dict[str, int]:
        """Write a batch's records atomically. Returns the number of records per topic."""


class StateRows(Protocol):
    """The row batches of a batch's changed state rows, which are computed when they are written."""

    def write(self, writer: ShardWriter) -> pa.Table:
        """Have each worker's rows written to its shard. Returns what the writers of all workers return."""


@dataclass(frozen=True)
class OnSpark:
    """State rows that Spark computes."""

    frame: DataFrame

    def write(self, writer: ShardWriter) -> pa.Table:
        return self.frame.mapInArrow(writer.__call__, RESULT_DDL).toArrow()


def operator_records(job: Job, spooled: pa.Table) -> Iterator[tuple[Sink, pa.Table]]:
    """The sorted output records of operators, per sink."""
    for sink in job.operator_sinks:
        rows = spooled.filter(pc.equal(spooled.column("group_id"), sink.number))
        if rows.num_rows:
            rows = rows.take(pa.array(in_order(rows)))
            yield sink, with_headers(rows.drop_columns(["headers"]), rows.column("headers"))


def _tables(sink: Sink, records: Iterator[pa.Table]) -> Iterable[pa.Table]:
    """The records of a batch for an output of a stream, as the tasks of the partitions have spooled them.

    In a job with operators, the records have positions and are sorted across partitions. They are in one table
    too if only each key's latest is written.
    """
    tables = [*records]
    if not tables or (sink.emit == "every" and "sequence" not in tables[0].column_names):
        return tables
    together = concatenated(tables)
    return [together.take(pa.array(in_order(together))) if "sequence" in together.column_names else together]


@dataclass
class Phases:
    """The durations of a batch's phases, in ms."""

    ms: dict[str, int] = field(default_factory=dict)
    _since: float = field(default_factory=time.monotonic)

    def end(self, name: str) -> None:
        """The current phase ends, and the next one begins."""
        now = time.monotonic()
        self.ms[name], self._since = round((now - self._since) * 1_000), now


@dataclass
class Publisher:
    """Publishes batches in order. Every step can be repeated after a crash with the same result."""

    storage: Storage
    ledger: Ledger
    lease: HeldLease
    identity: IdentityCheck
    output: Output | None
    """None to suppress output, because an earlier generation has already written it."""
    tables: GlobalTables
    auditor: Auditor | None
    types: Mapping[str, str]
    retention: Retention
    headers_at: HeadersAt
    """Reads the headers of records that ordered steps have rejected."""
    totals: Totals
    """How shards add up the state rows of groups."""
    limits: Mapping[str, TopicLimits] = field(default_factory=dict)
    """Topic → the records that it accepts, where known."""
    at_least_once: AtLeastOnce | None = None
    table_sinks: Mapping[str, TableSink] = field(default_factory=dict)
    """Destination → the writer of its tables outside Kafka."""
    partitions: Mapping[str, int] = field(default_factory=dict)
    """Topic → its number of partitions, as assumed by tasks."""
    read: int = 0
    """Number of records read so far."""
    stats: BatchStats = field(default_factory=BatchStats)
    """The counts and stream times of the last batch."""
    error: SluiceError | None = None
    """The last batch's error. Spark's own exception contains it only as traceback text."""
    _published_ms: int = 0
    """When the last batch was published, epoch ms."""
    _planned: PlannedBatch | None = None
    _before: Positions = field(default_factory=dict)
    _times: Mapping[str, int] = field(default_factory=dict)

    def begin(self, plan: PlannedBatch, before: Positions) -> Mapping[str, int]:
        """Prepare to publish a batch that begins at the offsets `before`. Returns the stream times that it starts from.

        Spark starts tasks before it calls the publisher.
        """
        self._planned, self._before = plan, before
        self._times = self.ledger.snapshots.times_before(self.storage.ref, plan.number)
        self.storage.side_outputs.take()  # what an attempt that failed has left in this process
        return self._times

    @property
    def _plan(self) -> PlannedBatch:
        assert self._planned is not None
        return self._planned

    def __call__(self, state_rows: DataFrame, batch: int) -> None:
        """Publish a batch. Spark calls this with the changed state rows; writing the shards computes them once."""
        self.publish(OnSpark(state_rows), batch)

    def publish(self, state_rows: StateRows, batch: int) -> None:
        """Publish a batch with these changed state rows."""
        try:
            self._publish(state_rows, batch)
        except BaseException as error:
            if isinstance(error, SluiceError):
                self.error = error
            raise

    def _publish(self, state_rows: StateRows, batch: int) -> None:
        phases = Phases()
        if self.output is not None:
            # The batches of a backlog have the same clock.
            begun = max(self._plan.begun, self._published_ms)
            phases.ms["start"] = max(round(time.time() * 1_000) - begun, 0)
        self.lease.check()
        assert batch == self._plan.number
        ends = self._ends()
        collected, spooled = self._write_shards(state_rows)
        phases.end("state")
        changes, failed = self._changes(state_rows, spooled)
        step_letters, rejected_stats = settle(self.storage.job, [*rejected_rows(spooled), *failed])
        collected.add(rejected_stats)
        stats = self.stats = collected.stats
        times = {**self._times, **stats.stream_times}
        rows = stats.counts.pop("rows", 0)
        counts = stats.counts | {"rows": rows}
        is_empty = not stats.counts and not rows
        metadata = self._metadata(batch, ends, counts)
        if is_empty and not self._plan.ends:
            return
        dead_letters = [*collected.records(self.storage.job.pipeline.dead_letters)]
        if self.output is not None:
            dead_letters.append(with_own_headers(step_letters, self.headers_at))
            require_few_failures(self.storage.job, counts, dead_letters)
        # A batch without records may still end at later offsets, after aborted transactions or for a new partition.
        # Publish it so that the ledger has the positions.
        if not is_empty:
            self.retention.expire(self._plan, times, self.lease.epoch)
        audit = None if self.auditor is None else self.auditor.audit(self._plan, self._before, collected)
        self.identity.check_identity()
        phases.end("audit")
        rejected = RejectedOutput()
        written: dict[str, int] = {}
        if self.output is not None:
            written = self._write_output(self.output, metadata, collected, spooled, changes, dead_letters, rejected)
        written |= {name.removeprefix(_OUTPUT): n for name, n in counts.items() if name.startswith(_OUTPUT)}
        for topic, number in rejected.counts.items():
            counts[f"{UNWRITTEN}{topic}"] = counts.get(f"{UNWRITTEN}{topic}", 0) + number
        phases.end("output")
        snapshot = self._snapshot(batch, times, counts | {f"{_OUTPUT}{topic}": n for topic, n in written.items()})
        new = self.ledger.snapshots.publish(
            snapshot, audit and msgspec.structs.replace(audit, outputs=written, phases=phases.ms), times, metadata
        )
        self._published_ms = round(time.time() * 1_000)
        self.read += counts.get("read", 0)
        done = "batch published" if new else "batch was published already"
        log.info(done, snapshot=snapshot.id, **snapshot.counts, **{f"{name}_ms": ms for name, ms in phases.ms.items()})

    def _metadata(self, batch: int, ends: dict[str, dict[str, int]], counts: Mapping[str, int]) -> Batch:
        """The batch's metadata for the ledger and the marker."""
        return Batch(
            number=batch,
            begun=self._plan.begun,
            partitions=dict(self.partitions),
            ends=ends,
            by_clock=any(name.endswith("/future") for name in counts),
        )

    def _ends(self) -> dict[str, dict[str, int]]:
        """Topic → partition → the batch's end offset, for the partitions of which it has read."""
        moved = {
            topic: {number: end for number, end in ends.items() if self._before.get(topic, {}).get(number) != end}
            for topic, ends in self._plan.ends.items()
        }
        return {topic: ends for topic, ends in moved.items() if ends}

    def _write_shards(self, state_rows: StateRows) -> tuple[Collected, pa.Table]:
        """Write the shards. Returns the side outputs of all tasks, and those rows among them that the driver needs."""
        writer = ShardWriter.of(self.storage, self.lease.epoch, self.totals)
        returned = state_rows.write(writer)
        outputs = zip(returned.column("label").to_pylist(), returned.column("data").to_pylist(), strict=True)
        collected = Collected(starmap(SideOutput, outputs))
        return collected, pa.concat_tables([writer.spooled.empty_table(), *collected.changes()])

    def _changes(self, state_rows: StateRows, spooled: pa.Table) -> tuple[Records, list[Row]]:
        """The output records for store changes, and the rejected rows for changes on which a step failed."""
        job = self.storage.job
        if self.output is None or not job.table_sinks:
            return [], []
        self.tables.apply(spooled)
        spark = state_rows.frame.sparkSession if isinstance(state_rows, OnSpark) else None
        return change_records(spark, job, spooled, self.tables, self.types)

    def _stream_records(self, collected: Collected, rejected: RejectedOutput) -> Records:
        """The encoded output records of streams."""
        return [
            (
                sink.topic,
                fitting(sink, encoded(sink, table, rejected), self.limits.get(sink.topic, NO_LIMITS), rejected),
            )
            for sink in self.storage.job.stream_sinks
            if not sink.table
            for table in _tables(sink, collected.records(sink.topic))
        ]

    def _write_output(
        self,
        output: Output,
        batch: Batch,
        collected: Collected,
        spooled: pa.Table,
        changes: Records,
        dead_letters: list[pa.Table],
        rejected: RejectedOutput,
    ) -> dict[str, int]:
        """Write all output records, and add those that cannot be written to `rejected`.

        Returns the number of records per topic.
        """
        job = self.storage.job
        self.lease.check()
        sinks = {sink.topic: sink for sink in job.sinks}
        of_streams = self._stream_records(collected, rejected)
        results = [
            (sink, table)
            for sink in job.stream_sinks
            if sink.table
            for table in _tables(sink, collected.records(sink.topic))
        ]
        results += [(sinks[topic], table) for topic, table in changes]
        results += [
            (sink, with_positions(job, table) if sink.appends else table)
            for sink, table in operator_records(job, spooled)
        ]
        late = dict.fromkeys(group.late.topic for group in job.groups if group.late is not None)
        records = [
            *((sink.topic, encoded(sink, table, rejected)) for sink, table in results if not sink.table),
            *((topic, table) for topic in late for table in collected.records(topic)),
        ]
        rows = self._table_rows([each for each in results if each[0].table], rejected)
        records = [
            (topic, fitting(sinks.get(topic), table, self.limits.get(topic, NO_LIMITS), rejected))
            for topic, table in records
        ]
        topic = job.pipeline.dead_letters
        limit = self.limits.get(topic, NO_LIMITS).size
        records += [
            (topic, shortened(table, limit)) for table in (*dead_letters, *rejected.dead_letters) if table.num_rows
        ]
        written: dict[str, int] = {}
        id_ = BatchId(self.storage.generation, batch.number, batch.begun)
        for destination, of_tables in rows.items():
            written |= self.table_sinks[destination].write(id_, of_tables)
        records = [*of_streams, *records]
        if self.at_least_once is None:
            return written | output.send(batch, records)
        sent, rest = self.at_least_once.send(records)
        return written | sent | output.send(batch, rest)

    def _table_rows(
        self, results: Sequence[tuple[Sink, pa.Table]], rejected: RejectedOutput
    ) -> dict[str, dict[str, Rows]]:
        """Destination → output → the rows for a table there."""
        return {
            destination: {
                sink.topic: joined_rows(
                    table_rows(sink, self.table_sinks[destination].columns[sink.topic], table, rejected)
                    for other, table in results
                    if other is sink
                )
                for sink in sinks
            }
            for destination, sinks in self.storage.job.written_tables.items()
        }

    def _snapshot(self, batch: int, times: dict[str, int], counts: dict[str, int]) -> Snapshot:
        job = self.storage.job
        return Snapshot(
            pipeline=job.pipeline.name,
            generation=self.storage.generation,
            batch=batch,
            published_at=datetime.now(UTC),
            positions=self._plan.ends,
            # Closed times, and when each partition last had a record, depend on where batches end.
            stream_times={name: time for name, time in times.items() if name.split("/")[0] not in OWN_TIMES},
            counts=counts,
            run=self.auditor.run if self.auditor else "",
        )
