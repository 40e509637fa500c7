"""Publishes a batch: writes the shards, then the output in one transaction, then the snapshot in the ledger.

Readers see a batch from the moment when the ledger has its snapshot (`Publisher._make_visible`).
Every earlier step can be repeated after a crash with the same result.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import cached_property
from typing import TYPE_CHECKING, Protocol

import msgspec
import pyarrow as pa
import structlog

from sluice.engine.batch.dead_letters import RejectedOutput, dead_letters_of_steps
from sluice.engine.batch.idle_time import IdleTime
from sluice.engine.batch.record_outcomes import corrected_counts
from sluice.engine.batch.rejections import rejected_rows
from sluice.engine.batch.side_outputs import NOTHING, Collected, DataSize
from sluice.engine.batch.storage import Storage
from sluice.engine.batch.stream_time import StreamTimes, times_of_operators
from sluice.engine.publish.auditor import Auditor
from sluice.engine.publish.encode import UNWRITTEN
from sluice.engine.publish.lookup_tables import LookupTables
from sluice.engine.publish.markers import PublishedState
from sluice.engine.publish.max_failures import notable_rejections, require_few_failures
from sluice.engine.publish.output_writer import BatchOutput, Destinations, OutputWriter, SinkRecords
from sluice.engine.publish.shard_writer import RowsOnSpark, StateRows
from sluice.engine.publish.state_types import StateTypes
from sluice.engine.publish.store_changes import change_records
from sluice.engine.publish.window_expiry import expire_windows
from sluice.engine.read.source_identity import Positions
from sluice.errors import DamagedState, EngineError, OutputError, RecordsRejected, SluiceError
from sluice.observe.tracing import trace_batch
from sluice.plan import Job
from sluice.state.ledger.audits import Audit, SourceAudit
from sluice.state.ledger.failures import Failure
from sluice.state.ledger.history import Batch
from sluice.state.ledger.ledger import Ledger
from sluice.state.ledger.plans import PlannedBatch
from sluice.state.ledger.sources import SourcePartition
from sluice.state.model import Snapshot
from sluice.values.record_places import Partition

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

log = structlog.get_logger()

_OUTPUT = "output/"
ROWS = "rows"
"""The name of the count of state rows written."""


class HeldLease(Protocol):
    """The generation's lease, or a test driver's stand-in."""

    @property
    def epoch(self) -> int:
        """The lease's epoch, which grows with every new holder."""

    def check(self) -> None:
        """Raise LeaseError unless the lease is still held."""


class IdentityCheck(Protocol):
    """The identity of the run's topics, or a test driver's stand-in."""

    def check_batch(self, read: Sequence[SourceAudit]) -> Sequence[SourcePartition]:
        """Raise EngineError if a topic no longer has the records before those that a batch has read.

        Returns all partitions that are read, with their last records up to this batch.
        """

    def require_reached(self, positions: Positions, ends: Mapping[Partition, int]) -> None:
        """Raise EngineError if a partition ends before the offset up to which it was read."""

    def why_unwritable(self) -> EngineError | None:
        """Return the change of a topic because of which no output can be written, if any."""


@dataclass
class Phases:
    """The durations of a batch's phases, in ms."""

    ms: dict[str, int] = field(default_factory=dict)
    _since: float = field(default_factory=time.monotonic)

    def end(self, name: str) -> None:
        """End the current phase, which gets this name, and begin the next phase."""
        now = time.monotonic()
        self.ms[name], self._since = round((now - self._since) * 1_000), now


@dataclass(frozen=True)
class BatchResult:
    """What a batch's tasks have returned after they have written the shards."""

    output: BatchOutput
    counts: dict[str, int]
    """The counts of all tasks, including `rows`."""
    stream_times: dict[str, int]
    """The stream times after the batch."""

    has_new_times: bool
    """Whether a task has reported a time. It does so if it has read records or has fired timers."""

    @property
    def is_empty(self) -> bool:
        """Whether the batch had no records, has fired no timers and has changed no state."""
        return self.counts == {ROWS: 0} and not self.has_new_times

    @property
    def depends_on_clock(self) -> bool:
        """Whether a record was rejected because its time was too far ahead of the clock."""
        return any(name.endswith("/future") for name in self.counts)


@dataclass(kw_only=True)
class Publisher:
    """Publishes batches in order."""

    storage: Storage
    types: StateTypes
    ledger: Ledger
    lease: HeldLease
    identity: IdentityCheck
    partitions: Mapping[str, int]
    """Topic → its number of partitions, as assumed by tasks."""
    destinations: Destinations | None
    """None for a rebuild, which writes no output, because an earlier generation has already written it."""
    auditor: Auditor | None = None
    newest: Snapshot | None = None
    """The newest published snapshot; None before the first."""
    read: int = 0
    """Number of records read so far."""
    counts: Mapping[str, int] = field(default_factory=dict)
    """The counts of the last batch."""
    row_bytes: int = 0
    """The size of the last batch's rows (see `Collected.row_bytes`)."""
    output_size: DataSize = NOTHING
    """The size of the records and changes of the last batch that tasks sent to the driver."""
    error: SluiceError | None = None
    """The last batch's error. Spark's own exception contains it only as traceback text."""
    _may_be_degraded: bool = True
    """Whether an earlier batch, perhaps of an earlier run, may have been recorded as having many rejected records."""
    _ready_ms: int = field(default_factory=lambda: round(time.time() * 1_000))
    """When the last batch was published, or this driver became ready for its first batch, epoch ms."""
    _planned: PlannedBatch | None = None
    _before: Positions = field(default_factory=dict)
    _times: Mapping[str, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        published = None if self.newest is None else self.newest.batch
        self._tables = LookupTables.load(self._job, self.storage.locations[0], published)

    def begin(
        self, plan: PlannedBatch, before: Positions, *, reads_records: bool = True
    ) -> Mapping[str, int]:
        """Prepare to publish a batch that begins at the offsets `before`. Returns the stream times at its start.

        If the batch reads no records, stream time may go on by the batch's clock (see `IdleTime`).

        Call this before the batch's query starts: the tasks need these stream times, and run before
        Spark calls the publisher.
        """
        self._planned, self._before = plan, before
        self._times = self.ledger.snapshots.times_before(self.storage.ref, plan.number)
        if not reads_records:
            self._times = IdleTime(self._job, self._times, self.partitions).at(plan.begun)
        # Discard the side outputs that a failed attempt may have left in this process.
        self.storage.side_outputs.take()
        return self._times

    def __call__(self, written: DataFrame, batch: int) -> None:
        """Publish a batch. Spark calls this with the side outputs of the tasks that write the shards.

        Spark runs these tasks only when `publish` writes the shards.
        """
        self.publish(RowsOnSpark(written), batch)

    def publish(self, state_rows: StateRows, batch: int) -> None:
        """Publish a batch with these changed state rows."""
        try:
            self._publish(state_rows, batch)
        except BaseException as error:
            # Spark turns an error of this function into text, so
            # the run raises the error that is kept here.
            if isinstance(error, SluiceError):
                self.error = error
            raise

    def _publish(self, state_rows: StateRows, batch: int) -> None:
        """Write the shards, then the output, then the snapshot in the ledger."""
        assert batch == self._plan.number
        phases = self._begin_phases()
        # A driver that has lost its lease stops early. Shards, Kafka and the
        # ledger would refuse its writes anyway.
        self.lease.check()
        collected = self._write_shards(state_rows)
        phases.end("state")
        # If the run ends after this line, the shards have a batch that the ledger lacks. The next
        # run repeats the batch with the same plan, which replaces the batch's rows.
        result = self._settle(state_rows, collected)
        self.counts = result.counts
        self.row_bytes, self.output_size = collected.row_bytes, collected.output_size
        if result.is_empty and not self._plan.ends:
            return
        try:
            dead_letters = self._dead_letters(result)
        except RecordsRejected:
            # Calls that have failed, perhaps because a service was down, may succeed when the batch
            # is repeated. No output of the batch has been written.
            self.storage.forget_failures(batch, self.lease.epoch)
            raise
        # A batch without records may still end at later offsets, after aborted transactions or for
        # a new partition. Such a batch is published so that the ledger has the new positions.
        if not result.is_empty:
            self._expire_windows(result.stream_times)
        audit = self._audit(collected)
        # A source that was deleted and created again, or cut off, has other records at the same
        # offsets, and such an output lacks earlier records. The batch must not be published then.
        sources = self.identity.check_batch(() if audit is None else audit.sources)
        state = PublishedState(
            result.stream_times,
            tuple(sources),
            {} if audit is None else audit.all_checksums,
            self._due(result.stream_times),
        )
        phases.end("audit")
        metadata = self._metadata(result)
        written = self._write_output(metadata, result, dead_letters, state)
        phases.end("output")
        snapshot = self._make_visible(metadata, result, written, audit, phases)
        self._note_rejections(snapshot, dead_letters)

    def _begin_phases(self) -> Phases:
        phases = Phases()
        if self.destinations is not None:
            # The phase starts at `begun`, with two exceptions. All batches of a backlog have the
            # same `begun`, so a later batch starts when the previous batch is published. A repeated
            # batch has the `begun` of a driver that has ended, so it starts when this driver is
            # ready.
            begun = max(self._plan.begun, self._ready_ms)
            phases.ms["start"] = max(round(time.time() * 1_000) - begun, 0)
        return phases

    def _write_shards(self, state_rows: StateRows) -> Collected:
        """Write the shards. Returns all tasks' side outputs."""
        returned = state_rows.write()
        # The data are not copied: the buffers are parts of the returned table.
        data = [value.as_buffer() for value in returned.column("rows")]
        return Collected(zip(returned.column("side_output").to_pylist(), data, strict=True))

    def _settle(self, state_rows: StateRows, collected: Collected) -> BatchResult:
        """Compute the steps after stores, and make dead letters of the rows on which a step has failed.

        Raises EngineError if a step with `on_error="fail"` has failed.
        """
        changes: SinkRecords = ()
        rejected = rejected_rows(collected)
        # A rebuild writes no output, so it needs no records for the changes of stores.
        if self.destinations is not None and self.types.changes:
            for page in collected.changes(self._tables.groups):
                self._tables.apply(page)
            changes, rejected_changes = change_records(
                collected,
                self.types.changes,
                self._tables,
                state_rows.spark,
            )
            rejected += rejected_changes
        dead_letters, failures = dead_letters_of_steps(self._job, rejected)
        collected.add_stats(failures)
        collected.add_stats(corrected_counts(collected.undecided(), self._job.topics_by_source))
        stats = collected.stats
        return BatchResult(
            BatchOutput(collected, changes, dead_letters),
            counts=stats.counts | {ROWS: stats.counts.get(ROWS, 0)},
            stream_times={**self._times, **stats.stream_times},
            has_new_times=bool(stats.stream_times),
        )

    def _dead_letters(self, result: BatchResult) -> list[pa.Table]:
        """The dead letters of records that could not be read or processed.

        Raises RecordsRejected if there are too many of them.
        """
        if self._writer is None:
            return []
        dead_letters = self._writer.dead_letters(result.output)
        require_few_failures(self._job, result.counts, dead_letters)
        return dead_letters

    def _audit(self, collected: Collected) -> Audit | None:
        """Audit the batch; None without an auditor. Quarantines shards that have lost commits."""
        if self.auditor is None:
            return None
        try:
            return self.auditor.audit(self._plan, self._before, collected)
        except DamagedState as damaged:
            for worker in damaged.workers:
                self.ledger.quarantine.add(self.storage.ref, worker, damaged.detail)
            raise

    def _expire_windows(self, stream_times: Mapping[str, int]) -> None:
        idle_timeout_ms = self._job.pipeline.idle_timeout_ms
        times = StreamTimes(stream_times, self.partitions, self._plan.begun, idle_timeout_ms)
        expire_windows(self.storage, self._plan.number, times, self.lease.epoch)

    def _write_output(
        self,
        metadata: Batch,
        result: BatchResult,
        dead_letters: list[pa.Table],
        state: PublishedState,
    ) -> dict[str, int]:
        """Write the output. Returns the number of records per topic, including records that tasks have written."""
        written: dict[str, int] = {}
        if self._writer is not None:
            # A driver that was paused while the shards were
            # written may have lost its lease meanwhile.
            self.lease.check()
            rejected = RejectedOutput()
            try:
                written = self._writer.write(metadata, result.output, dead_letters, rejected, state)
            except OutputError:
                raise
            except EngineError as error:
                reason = self.identity.why_unwritable()
                if reason is None:
                    raise
                raise reason from error
            for topic, number in rejected.counts.items():
                name = f"{UNWRITTEN}{topic}"
                # Tasks that write at least once have counted unwritten records, too, so the counts
                # are added.
                result.counts[name] = result.counts.get(name, 0) + number
        for name, number in result.counts.items():
            if name.startswith(_OUTPUT):
                written[name.removeprefix(_OUTPUT)] = number
        return written

    def _make_visible(
        self,
        metadata: Batch,
        result: BatchResult,
        written: Mapping[str, int],
        audit: Audit | None,
        phases: Phases,
    ) -> Snapshot:
        """Publish the batch's snapshot in the ledger, in one transaction. From then on, readers see the batch."""
        counts = result.counts | {f"{_OUTPUT}{topic}": number for topic, number in written.items()}
        snapshot = self._snapshot(result.stream_times, counts)
        if audit is not None:
            # The numbers of written records and the durations of the phases are known only now.
            # The audit's balance was checked before the output was written.
            audit = msgspec.structs.replace(audit, outputs=written, phases=phases.ms)
        is_new = self.ledger.snapshots.publish(snapshot, audit, result.stream_times, metadata)
        self.newest = snapshot
        if self.auditor is not None:
            self.auditor.newest = audit
        self._ready_ms = round(time.time() * 1_000)
        self.read += counts.get("read", 0)
        message = "batch published" if is_new else "batch was published already"
        durations = {f"{name}_ms": ms for name, ms in phases.ms.items()}
        log.info(message, snapshot=snapshot.id, **snapshot.counts, **durations)
        trace_batch(f"{snapshot.pipeline} {snapshot.id}", phases.ms, snapshot.counts)
        return snapshot

    def _note_rejections(self, published: Snapshot, dead_letters: Sequence[pa.Table]) -> None:
        """Record in the ledger whether the pipeline is degraded, that is, rejects many records."""
        # A rebuild reads old records, and a batch without records rejects none. Neither shows
        # whether the pipeline rejects many records now.
        if self.destinations is None or not published.counts.get("read", 0):
            return
        detail = notable_rejections(published.counts, dead_letters)
        if detail:
            error = RecordsRejected(
                detail,
                next_step="Look at the dead letters. Correct the contract or the producer.",
            )
            failure = Failure.of(error, published.pipeline, run=published.run, kind="rejections")
            self.ledger.failures.keep(failure)
        elif self._may_be_degraded:
            self.ledger.failures.clear(published.pipeline, "rejections")
        self._may_be_degraded = bool(detail)

    def _metadata(self, result: BatchResult) -> Batch:
        """The batch's metadata for the ledger and the marker."""
        return Batch(
            number=self._plan.number,
            begun=self._plan.begun,
            partitions=dict(self.partitions),
            ends=self._ends(),
            by_clock=result.depends_on_clock,
        )

    def _ends(self) -> dict[str, dict[str, int]]:
        """Topic → partition → the batch's end offset, for the partitions from which it has read records."""
        ends: dict[str, dict[str, int]] = {}
        for topic, planned in self._plan.ends.items():
            before = self._before.get(topic, {})
            moved = {number: end for number, end in planned.items() if before.get(number) != end}
            if moved:
                ends[topic] = moved
        return ends

    def _snapshot(self, times: dict[str, int], counts: dict[str, int]) -> Snapshot:
        return Snapshot(
            pipeline=self._job.pipeline.name,
            generation=self.storage.generation,
            batch=self._plan.number,
            published_at=datetime.now(UTC),
            positions=self._plan.ends,
            stream_times=times_of_operators(times),
            counts=counts,
            run=self.auditor.run if self.auditor else "",
            due=self._due(times),
        )

    def _due(self, times: Mapping[str, int]) -> int | None:
        """Return when a batch without records next has something to do. `times` are the stream times before it."""
        return IdleTime(self._job, times, self.partitions).next_batch

    @property
    def can_read_ahead(self) -> bool:
        """Whether the tasks may read a batch before the previous batch is published.

        If there are several shuffles, the tasks before the last shuffle also write states, which
        must not be written before the previous batch is published. And tasks that write records at
        least once would write them before the driver has written those of the previous batch.
        """
        if self.destinations is None or self.destinations.at_least_once is not None:
            return False
        return self._job.has_one_shuffle and self._job.reads_without_stages

    @property
    def _job(self) -> Job:
        return self.storage.job

    @property
    def _plan(self) -> PlannedBatch:
        assert self._planned is not None
        return self._planned

    @cached_property
    def _writer(self) -> OutputWriter | None:
        if self.destinations is None:
            return None
        return OutputWriter(self._job, self.storage.generation, self.destinations)
