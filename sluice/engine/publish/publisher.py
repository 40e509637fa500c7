"""Publishes a batch: writes the shards, the output, and then the snapshot in the ledger.

The snapshot has the offsets up to which records have been read, so snapshot and offsets are
committed at once (`state/ledger/snapshots.py`). `consumer_group.py` copies the offsets to Kafka for
other tools. Readers see a batch from the moment when the ledger has its snapshot
(`Publisher._make_visible`). Every earlier step can be repeated after a crash with the same result.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import InitVar, dataclass, field
from datetime import UTC, datetime
from functools import cached_property
from typing import Protocol

import msgspec
import pyarrow as pa
import structlog

from sluice.answers import FailureKind
from sluice.engine.batch.dead_letters import RejectedOutput, dead_letters_of_steps
from sluice.engine.batch.idle_time import IdleTime
from sluice.engine.batch.record_outcomes import corrected_counts
from sluice.engine.batch.rejections import rejected_rows
from sluice.engine.batch.side_outputs import Collected, DataSize
from sluice.engine.batch.storage import Storage
from sluice.engine.batch.stream_time import StreamTimes, times_of_operators
from sluice.engine.publish.auditor import Auditor
from sluice.engine.publish.closed_windows import announced_times
from sluice.engine.publish.encode import UNWRITTEN
from sluice.engine.publish.expectations import broken_expectations, require_expected
from sluice.engine.publish.lookup_tables import LookupTables
from sluice.engine.publish.markers import PublishedState
from sluice.engine.publish.max_failures import notable_rejections, require_few_failures
from sluice.engine.publish.output_writer import BatchOutput, Destinations, OutputWriter, SinkRecords
from sluice.engine.publish.shard_writer import StateRows
from sluice.engine.publish.state_types import StateTypes
from sluice.engine.publish.store_changes import change_records
from sluice.engine.publish.window_expiry import expire_windows
from sluice.engine.read.source_identity import Positions
from sluice.errors import (
    DamagedState,
    EngineError,
    ExpectationBroken,
    OutputError,
    RecordsRejected,
)
from sluice.observe.tracing import trace_batch
from sluice.plan import Job
from sluice.state.ledger.audits import Audit, SourceAudit
from sluice.state.ledger.failures import Failure
from sluice.state.ledger.history import Batch
from sluice.state.ledger.ledger import Ledger
from sluice.state.ledger.plans import PlannedBatch
from sluice.state.ledger.sources import SourcePartition
from sluice.state.model import Snapshot
from sluice.state.shard.shard import Checksums
from sluice.values.record_places import Partition

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
        """Raise EngineError if a topic has lost records that precede the records of a batch.

        Return all partitions that are read, with their last records up to this batch.
        """

    def require_reached(self, positions: Positions, ends: Mapping[Partition, int]) -> None:
        """Raise EngineError if a partition ends before the offset up to which it was read."""

    def why_unwritable(self) -> EngineError | None:
        """Return the error for a changed topic that keeps output from being written, if any."""


@dataclass(frozen=True)
class BegunBatch:
    """A batch whose query may start."""

    plan: PlannedBatch
    before: Positions
    """The offsets at which the batch begins."""
    times: Mapping[str, int]
    """The stream times at its start."""
    partitions: Mapping[str, int]
    """Topic → its number of partitions, as assumed by the batch's tasks."""


@dataclass(frozen=True)
class PublishedBatch:
    """The snapshot and the sizes of a published batch."""

    snapshot: Snapshot | None
    """None if the batch was empty, and there was nothing to publish."""
    counts: Mapping[str, int]
    row_bytes: int
    """The size of the batch's rows (see `Collected.row_bytes`)."""
    output_size: DataSize
    """The size of the records and changes that tasks have sent to the driver."""


@dataclass
class Phases:
    """The durations of a batch's phases, in ms."""

    ms: dict[str, int] = field(default_factory=dict)
    _since: float = field(default_factory=time.monotonic)

    def end(self, name: str) -> None:
        """End the current phase under this name, and begin the next one."""
        now = time.monotonic()
        self.ms[name], self._since = round((now - self._since) * 1_000), now


@dataclass(frozen=True)
class BatchResult:
    """The results of a batch's tasks, which have written the shards."""

    collected: Collected
    """All side outputs of the tasks."""
    output: BatchOutput
    counts: dict[str, int]
    """The counts of all tasks, including `rows`."""
    stream_times: dict[str, int]
    """The stream times after the batch."""

    has_new_times: bool
    """Whether a task has reported a time. A task reports a time if it has read records or fired
    timers."""

    @property
    def is_empty(self) -> bool:
        """Whether the batch had no records, fired no timers and changed no state."""
        return self.counts == {ROWS: 0} and not self.has_new_times

    @property
    def depends_on_clock(self) -> bool:
        """Whether a record was rejected because its time was too far ahead of the clock."""
        return any(name.endswith("/future") for name in self.counts)

    def published(self, snapshot: Snapshot | None) -> PublishedBatch:
        """Return the batch's snapshot and sizes, once it has been published as this snapshot."""
        collected = self.collected
        return PublishedBatch(snapshot, self.counts, collected.row_bytes, collected.output_size)


@dataclass(kw_only=True)
class Publisher:
    """Publishes batches in order."""

    storage: Storage
    types: StateTypes
    ledger: Ledger
    lease: HeldLease
    identity: IdentityCheck
    destinations: Destinations | None
    """None for a rebuild, which writes no output, because an earlier generation has already written
    it."""
    auditor: Auditor | None = None
    newest: InitVar[Snapshot | None] = None
    """The newest snapshot of earlier runs, or None if they have published nothing."""
    _may_be_degraded: bool = True
    """Whether an earlier batch, perhaps of an earlier run, may have been recorded as having many
    rejected records, or as breaking an expectation."""
    _ready_ms: int = field(default_factory=lambda: round(time.time() * 1_000))
    """When the last batch was published, or this driver became ready for its first batch, epoch
    ms."""

    def __post_init__(self, newest: Snapshot | None) -> None:
        published = None if newest is None else newest.batch
        self._tables = LookupTables.load(self._job, self.storage.locations[0], published)

    def begin(
        self,
        plan: PlannedBatch,
        before: Positions,
        partitions: Mapping[str, int],
        *,
        reads_records: bool = True,
    ) -> BegunBatch:
        """Prepare to publish a batch that begins at the offsets `before`.

        If the batch reads no records, stream time may advance by the batch's clock (see
        `IdleTime`). Call this before the batch's query starts, because its tasks need the stream
        times.
        """
        times = self.ledger.snapshots.times_before(self.storage.ref, plan.number)
        if not reads_records:
            times = IdleTime(self._job, times, partitions).at(plan.begun)
        # Discard the side outputs that a failed attempt may have left in this process.
        self.storage.side_outputs.take()
        return BegunBatch(plan, before, times, partitions)

    def publish(self, batch: BegunBatch, state_rows: StateRows) -> PublishedBatch:
        """Write the shards, then the output, then the snapshot in the ledger.

        On Spark, the tasks that write the shards run only when `state_rows` are written.
        """
        number = batch.plan.number
        phases = self._begin_phases(batch.plan)
        # If the lease is lost, stop early: shards, Kafka and the ledger would refuse the writes
        # anyway.
        self.lease.check()
        collected = self._write_shards(state_rows)
        phases.end("state")
        # If the run ends after this line, the shards have a batch that the ledger lacks. The next
        # run repeats the batch with the same plan, which replaces the batch's rows.
        result = self._settle(batch, state_rows, collected)
        if result.is_empty and not batch.plan.ends:
            return result.published(None)
        try:
            dead_letters = self._dead_letters(result)
        except RecordsRejected:
            # Failed calls may succeed when the batch is repeated, for example if a service was
            # down. The recorded failures can be removed, because no output of the batch has been
            # written.
            self.storage.forget_failures(number, self.lease.epoch)
            raise
        # A batch without records can still move the offsets on: past aborted transactions, or
        # because a partition is new. Such a batch is published to store the new positions in the
        # ledger.
        if not result.is_empty:
            self._expire_windows(batch, result.stream_times)
        audit = self._audit(batch, collected)
        # If a topic was deleted and created again, or truncated, do not publish the batch. A source
        # then has other records at the same offsets, or an output lacks earlier records.
        read: Sequence[SourceAudit] = ()
        checksums: dict[str, Checksums] = {}
        if audit is not None:
            read, checksums = audit.sources, audit.all_checksums
        sources = self.identity.check_batch(read)
        due = self._due(batch, result.stream_times)
        state = PublishedState(result.stream_times, tuple(sources), checksums, due)
        phases.end("audit")
        metadata = _metadata(batch, result)
        written = self._write_output(metadata, result, dead_letters, state)
        phases.end("output")
        snapshot = self._make_visible(batch, metadata, result, written, audit, phases)
        self._note_rejections(snapshot, dead_letters)
        return result.published(snapshot)

    def _begin_phases(self, plan: PlannedBatch) -> Phases:
        phases = Phases()
        if self.destinations is not None:
            # The phase starts at `begun`, with two exceptions. All batches of a backlog have the
            # same `begun`, so a later batch starts when the previous batch is published. A repeated
            # batch has the `begun` of a driver that has ended, so it starts when this driver is
            # ready.
            begun = max(plan.begun, self._ready_ms)
            phases.ms["start"] = max(round(time.time() * 1_000) - begun, 0)
        return phases

    def _write_shards(self, state_rows: StateRows) -> Collected:
        """Write the shards. Return all tasks' side outputs."""
        returned = state_rows.write()
        # The data are not copied: the buffers are parts of the returned table.
        data = [value.as_buffer() for value in returned.column("rows")]
        return Collected(zip(returned.column("side_output").to_pylist(), data, strict=True))

    def _settle(
        self, batch: BegunBatch, state_rows: StateRows, collected: Collected
    ) -> BatchResult:
        """Compute the steps after stores. Make dead letters of rows on which a step has failed.

        Raise EngineError if a step with `on_error="fail"` has failed.
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
        stream_times = {**batch.times, **stats.stream_times}
        after = self._stream_times(batch, stream_times)
        return BatchResult(
            collected,
            BatchOutput(collected, changes, dead_letters),
            counts=stats.counts | {ROWS: stats.counts.get(ROWS, 0)},
            stream_times=stream_times | announced_times(self._job, batch.times, after),
            has_new_times=bool(stats.stream_times),
        )

    def _dead_letters(self, result: BatchResult) -> list[pa.Table]:
        """Return the dead letters of records that could not be read or processed.

        Raise RecordsRejected if there are too many of them, or if the batch breaks an expectation.
        """
        if self._writer is None:
            return []
        dead_letters = self._writer.dead_letters(result.output)
        require_few_failures(self._job, result.counts, dead_letters)
        require_expected(self._job, result.counts)
        return dead_letters

    def _audit(self, batch: BegunBatch, collected: Collected) -> Audit | None:
        """Audit the batch.

        Return None if there is no auditor. Quarantines shards that have lost commits.
        """
        if self.auditor is None:
            return None
        try:
            return self.auditor.audit(batch.plan, batch.before, collected)
        except DamagedState as damaged:
            for worker in damaged.workers:
                self.ledger.quarantine.add(self.storage.ref, worker, damaged.detail)
            raise

    def _expire_windows(self, batch: BegunBatch, stream_times: Mapping[str, int]) -> None:
        times = self._stream_times(batch, stream_times)
        expire_windows(self.storage, batch.plan.number, times, self.lease.epoch)

    def _stream_times(self, batch: BegunBatch, times: Mapping[str, int]) -> StreamTimes:
        idle_timeout_ms = self._job.pipeline.idle_timeout_ms
        return StreamTimes(times, batch.partitions, batch.plan.begun, idle_timeout_ms)

    def _write_output(
        self,
        metadata: Batch,
        result: BatchResult,
        dead_letters: list[pa.Table],
        state: PublishedState,
    ) -> dict[str, int]:
        """Write the output. Return the number of records per topic."""
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
                result.counts[f"{UNWRITTEN}{topic}"] = number
        return written

    def _make_visible(
        self,
        batch: BegunBatch,
        metadata: Batch,
        result: BatchResult,
        written: Mapping[str, int],
        audit: Audit | None,
        phases: Phases,
    ) -> Snapshot:
        """Publish the batch's snapshot in the ledger, in one transaction.

        From then on, readers see the batch.
        """
        counts = dict(result.counts)
        for topic, number in written.items():
            counts[f"{_OUTPUT}{topic}"] = number
        snapshot = self._snapshot(batch, result.stream_times, counts)
        if audit is not None:
            # The numbers of written records and the durations of the phases are known only now.
            # The audit's balance was checked before the output was written.
            audit = msgspec.structs.replace(audit, outputs=written, phases=phases.ms)
        is_new = self.ledger.snapshots.publish(snapshot, audit, result.stream_times, metadata)
        if self.auditor is not None:
            self.auditor.newest = audit
        self._ready_ms = round(time.time() * 1_000)
        message = "batch published"
        if not is_new:
            message = "batch was published already"
        durations = {f"{name}_ms": ms for name, ms in phases.ms.items()}
        log.info(message, snapshot=snapshot.id, **snapshot.counts, **durations)
        trace_batch(f"{snapshot.pipeline} {snapshot.id}", phases.ms, snapshot.counts)
        return snapshot

    def _note_rejections(self, published: Snapshot, dead_letters: Sequence[pa.Table]) -> None:
        """Record in the ledger whether the pipeline is degraded.

        It is degraded if it rejects many records, or if a batch breaks an expectation.
        """
        # A rebuild reads old records, and a batch without records rejects none. Neither shows
        # whether the pipeline rejects many records now.
        if self.destinations is None or not published.counts.get("read", 0):
            return
        noted: dict[FailureKind, RecordsRejected] = {}
        detail = notable_rejections(published.counts, dead_letters)
        if detail:
            noted["rejections"] = RecordsRejected(
                detail,
                next_step="Look at the dead letters. Correct the contract or the producer.",
            )
        detail = broken_expectations(self._job, published.counts)
        if detail:
            noted["expectations"] = ExpectationBroken(
                detail, next_step="Correct the producer, or the expectation."
            )
        for kind, error in noted.items():
            failure = Failure.of(error, published.pipeline, run=published.run, kind=kind)
            self.ledger.failures.keep(failure)
        kinds: tuple[FailureKind, ...] = ("rejections", "expectations")
        if self._may_be_degraded and len(noted) < len(kinds):
            kept = [kind for kind in kinds if kind not in noted]
            self.ledger.failures.clear(published.pipeline, *kept)
        self._may_be_degraded = bool(noted)

    def _snapshot(
        self, batch: BegunBatch, times: dict[str, int], counts: dict[str, int]
    ) -> Snapshot:
        return Snapshot(
            pipeline=self._job.pipeline.name,
            generation=self.storage.generation,
            batch=batch.plan.number,
            published_at=datetime.now(UTC),
            positions=batch.plan.ends,
            stream_times=times_of_operators(times),
            counts=counts,
            run=self.auditor.run if self.auditor else "",
            due=self._due(batch, times),
        )

    def _due(self, batch: BegunBatch, times: Mapping[str, int]) -> int | None:
        """Return when a batch without records will be needed next.

        `times` are the stream times after this batch.
        """
        return IdleTime(self._job, times, batch.partitions).next_batch

    @property
    def _job(self) -> Job:
        return self.storage.job

    @cached_property
    def _writer(self) -> OutputWriter | None:
        if self.destinations is None:
            return None
        return OutputWriter(
            self._job, self.storage.generation, self.destinations, self.storage.registry
        )


def _metadata(batch: BegunBatch, result: BatchResult) -> Batch:
    """Return the batch's metadata for the ledger and the marker."""
    return Batch(
        number=batch.plan.number,
        begun=batch.plan.begun,
        partitions=dict(batch.partitions),
        ends=_moved_ends(batch),
        by_clock=result.depends_on_clock,
    )


def _moved_ends(batch: BegunBatch) -> dict[str, dict[str, int]]:
    """Return topic → partition → the batch's end offset.

    Omit partitions from which the batch has read no records.
    """
    ends: dict[str, dict[str, int]] = {}
    for topic, planned in batch.plan.ends.items():
        before = batch.before.get(topic, {})
        moved: dict[str, int] = {}
        for number, end in planned.items():
            if before.get(number) != end:
                moved[number] = end
        if moved:
            ends[topic] = moved
    return ends
