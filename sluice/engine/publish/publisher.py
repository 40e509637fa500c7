"""One batch made visible: shards first, then output records, then the ledger's transaction."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Protocol

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
import structlog
from pyspark.sql import DataFrame

from sluice.engine.batch.checkpoint import batch_positions
from sluice.engine.batch.rejected import SETTLED, Row, rejected_rows, settle
from sluice.engine.batch.rows import in_order
from sluice.engine.batch.storage import Storage
from sluice.engine.batch.stream_time import CLOSED, SEEN
from sluice.engine.publish.at_least_once import AtLeastOnce, Records
from sluice.engine.publish.audit import Auditor
from sluice.engine.publish.encode import NO_LIMIT, UNWRITTEN, SetAside, encoded, fitting, shortened
from sluice.engine.publish.max_failures import require_few_failures
from sluice.engine.publish.retention import Retention
from sluice.engine.publish.shards import WRITTEN, ShardWriter
from sluice.engine.publish.store_changes import GlobalTables, change_records
from sluice.errors import SluiceError
from sluice.plan import FusedJob, OrderedJob
from sluice.state.ledger.history import Batch
from sluice.state.ledger.ledger import Ledger
from sluice.state.model import Snapshot

log = structlog.get_logger()

_OUTPUT = "output/"

_SQL = {pa.int32(): "INT", pa.int64(): "BIGINT", pa.string(): "STRING"}


class Writer(Protocol):
    """Who may write: the holder of the job's lease."""

    @property
    def epoch(self) -> int:
        """The number of the lease, larger with each holder."""

    def check(self) -> None:
        """Raise LeaseError unless the lease is still held."""


class Guarded(Protocol):
    """What watches over the input."""

    def check_identity(self) -> None:
        """Raise EngineError if a topic is another one than at the start."""


class Output(Protocol):
    """Where output records go."""

    def send(self, batch: Batch, records: Iterable[tuple[str, pa.Table]]) -> dict[str, int]:
        """Write a batch's records, all or none; how many by topic."""


def ordered_records(job: OrderedJob, returned: pa.Table, aside: SetAside) -> Iterator[tuple[str, pa.Table]]:
    """What ordered operators sent to topics, each topic's records in order."""
    for sink in job.ordered_sinks:
        mine = returned.filter(pc.equal(returned.column("group_id"), sink.number))
        if mine.num_rows:
            yield sink.topic, encoded(sink, mine.take(pa.array(in_order(mine))), aside)


@dataclass
class Publisher:
    """Publishes one batch after the other. Every step may be done again, after a crash, with the same result."""

    storage: Storage
    ledger: Ledger
    lease: Writer
    guard: Guarded
    output: Output
    tables: GlobalTables
    auditor: Auditor | None
    types: Mapping[str, str]
    retention: Retention
    limits: Mapping[str, int] = field(default_factory=dict)
    """Topic → bytes of the largest record that it takes, where that is known."""
    at_least_once: AtLeastOnce | None = None
    partitions: Mapping[str, int] = field(default_factory=dict)
    """Topic → how many partitions the batches' tasks know it to have."""
    silent: bool = False
    """Whether no output is written, since another generation has written it."""
    read: int = 0
    """Records read so far."""
    error: SluiceError | None = None
    """Why the last batch could not be published: what Spark raises says it only in the text of a traceback."""

    def begin(self) -> None:
        """Hand the tasks of the next batch the times that it goes on from: Spark starts them before it calls."""
        batch = self.storage.next_batch
        times = self.ledger.snapshots.times_before(self.storage.ref, batch)
        self.storage.side_outputs.start(batch, times)

    def __call__(self, state_rows: DataFrame, batch: int) -> None:
        """What Spark calls for each batch, with the changed state rows. They are computed once, by writing the shards."""
        try:
            self._publish(state_rows, batch)
        except SluiceError as error:
            self.error = error
            raise

    def _publish(self, state_rows: DataFrame, batch: int) -> None:
        side_outputs = self.storage.side_outputs
        self.lease.check()
        returned = self._write_shards(state_rows)
        changes, failed = self._changes(state_rows, returned)
        letters, settled = settle(self.storage.job, [*rejected_rows(returned), *failed])
        side_outputs.write_facts(batch, SETTLED, settled)
        facts = side_outputs.facts(batch)
        before = side_outputs.times(batch)
        times = before | facts.stream_times
        counts = facts.counts | {"rows": _rows_written(returned)}
        is_empty = not facts.counts and not counts["rows"]
        ran = self._ran(batch, counts)
        if is_empty and not ran.ends:
            side_outputs.start(batch + 1, before)
            return
        dead = [*side_outputs.records(batch, self.storage.job.pipeline.dead_letters), letters]
        if not self.silent:
            require_few_failures(self.storage.job, counts, dead)
        # A batch may have no records and end further on all the same: the offsets were those of aborted transactions,
        # or a topic has a new partition. It is published, so that the ledger says where the checkpoint stands.
        if not is_empty:
            self.retention.let_go(batch, times, self.lease.epoch)
        audit = None if self.auditor is None else self.auditor.audit(batch)
        self.guard.check_identity()
        aside = SetAside()
        written = {} if self.silent else self._write_output(ran, returned, changes, dead, aside)
        written |= {name.removeprefix(_OUTPUT): n for name, n in counts.items() if name.startswith(_OUTPUT)}
        for topic, number in aside.counts.items():
            counts[f"{UNWRITTEN}{topic}"] = counts.get(f"{UNWRITTEN}{topic}", 0) + number
        snapshot = self._snapshot(batch, times, counts | {f"{_OUTPUT}{topic}": n for topic, n in written.items()})
        new = self.ledger.snapshots.publish(
            snapshot, audit and msgspec.structs.replace(audit, outputs=written), times, ran
        )
        side_outputs.start(batch + 1, times)
        self.read += counts.get("read", 0)
        log.info("batch published" if new else "batch was published already", snapshot=snapshot.id, **snapshot.counts)

    def _ran(self, batch: int, counts: Mapping[str, int]) -> Batch:
        """The batch as it is run."""
        checkpoint = self.storage.checkpoint
        firsts = self.auditor.firsts if self.auditor else {}
        before = batch_positions(checkpoint, batch - 1) if batch else firsts
        moved = {
            topic: {number: end for number, end in ends.items() if before.get(topic, {}).get(number) != end}
            for topic, ends in batch_positions(checkpoint, batch).items()
        }
        return Batch(
            number=batch,
            begun=self.storage.batches.begun(batch),
            partitions=dict(self.partitions),
            ends={topic: ends for topic, ends in moved.items() if ends},
            by_clock=any(name.endswith("/future") for name in counts),
        )

    def _write_shards(self, state_rows: DataFrame) -> pa.Table:
        writer = ShardWriter.of(self.storage.job, self.storage.locations, self.lease.epoch)
        returned = ", ".join(f"{one.name} {_SQL[one.type]}" for one in writer.returned)
        return state_rows.select(*writer.columns).mapInArrow(writer.__call__, returned).toArrow()

    def _changes(self, state_rows: DataFrame, returned: pa.Table) -> tuple[Records, list[Row]]:
        """What the stores' changes are as output records, and those for which a step failed."""
        job = self.storage.job
        if self.silent or not isinstance(job, FusedJob):
            return [], []
        self.tables.apply(returned)
        return change_records(state_rows.sparkSession, job, returned, self.tables, self.types)

    def _write_output(
        self, ran: Batch, returned: pa.Table, changes: Records, letters: list[pa.Table], aside: SetAside
    ) -> dict[str, int]:
        job = self.storage.job
        self.lease.check()
        side_outputs = self.storage.side_outputs
        records = [
            (sink.topic, encoded(sink, table, aside))
            for sink in job.stream_sinks
            for table in side_outputs.records(ran.number, sink.topic)
        ]
        match job:
            case FusedJob():
                late = dict.fromkeys(group.late.topic for group in job.groups if group.late is not None)
                records += [(topic, table) for topic in late for table in side_outputs.records(ran.number, topic)]
                records += changes
            case OrderedJob():
                records += ordered_records(job, returned, aside)
        sinks = {sink.topic: sink for sink in job.sinks}
        records = [
            (topic, fitting(sinks.get(topic), table, self.limits.get(topic, NO_LIMIT), aside))
            for topic, table in records
        ]
        topic = job.pipeline.dead_letters
        limit = self.limits.get(topic, NO_LIMIT)
        records += [(topic, shortened(table, limit)) for table in (*letters, *aside.letters) if table.num_rows]
        if self.at_least_once is None:
            return self.output.send(ran, records)
        sent, rest = self.at_least_once.send(records)
        return sent | self.output.send(ran, rest)

    def _snapshot(self, batch: int, times: dict[str, int], counts: dict[str, int]) -> Snapshot:
        job = self.storage.job
        return Snapshot(
            pipeline=job.pipeline.name,
            job=job.name,
            generation=self.storage.generation,
            batch=batch,
            published_at=datetime.now(UTC),
            positions=batch_positions(self.storage.checkpoint, batch),
            # How far everything is closed, and when a partition was seen, depends on the batches.
            stream_times={name: time for name, time in times.items() if name.split("/")[0] not in (CLOSED, SEEN)},
            counts=counts,
            run=self.auditor.run if self.auditor else "",
        )


def _rows_written(returned: pa.Table) -> int:
    mine = returned.filter(pc.equal(returned.column("group_id"), WRITTEN))
    return int(pc.sum(mine.column("window_start")).as_py() or 0)
