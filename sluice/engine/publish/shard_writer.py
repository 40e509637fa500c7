"""Writes changed state rows to the workers' shards. Each worker's task writes that worker's shard."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame

from sluice.engine.batch.checkpoint import current_batch
from sluice.engine.batch.rows import OWNER, REJECTED, SCHEMA, SORT_KEY, STATE_KEY
from sluice.engine.batch.shards import worker_shard
from sluice.plan import FusedJob, Job, OrderedJob
from sluice.settings import settings
from sluice.state.shard.shard import rows_of

WRITTEN = -1
"""`group_id` of the row that reports, in `window_start`, how many rows a worker wrote."""


def share_out(job: Job, state_rows: DataFrame, tables: DataFrame | None) -> DataFrame:
    """Repartition state rows by `worker`, one partition per worker. Global tables' rows go to every worker."""
    workers = job.pipeline.workers
    owned = state_rows.selectExpr("*", f"CAST({OWNER.format(workers=workers)} AS INT) AS worker")
    if tables is not None:
        owned = owned.unionByName(tables.selectExpr("*", f"explode(sequence(0, {workers - 1})) AS worker"))
    return owned.repartitionById(workers, "worker")


@dataclass(frozen=True)
class ShardWriter:
    """Writes one worker's changed state rows, and returns the rows that the driver turns into output records.

    `wanted`, `tables` and `events` are group ids.
    """

    locations: tuple[str, ...] = field(repr=False)
    wanted: frozenset[int]
    """The groups whose changes the driver needs."""
    tables: frozenset[int]
    """Global tables. Every worker has them, so only the first worker returns their changes."""
    events: frozenset[int]
    """Groups of output records and rejected rows, which are returned but not written to the shard."""
    order: tuple[str, ...]
    """The columns by which changes of the same state row are sorted."""
    epoch: int
    """Epoch of the lease that covers the writes."""
    token: str = field(default="", repr=False)
    """Token for state servers, passed along because executors on other hosts lack the driver's environment."""

    @classmethod
    def of(cls, job: Job, locations: tuple[str, ...], epoch: int) -> ShardWriter:
        tables = frozenset(table.group for table in job.tables)
        order: tuple[str, ...]
        match job:
            case FusedJob():
                wanted = tables | {sink.group for sink in job.table_sinks}
                events, order = frozenset([REJECTED]), ("position",)
            case OrderedJob():
                wanted = tables
                events, order = frozenset([REJECTED, *(sink.number for sink in job.ordered_sinks)]), SORT_KEY
        return cls(locations, wanted, tables, events, order, epoch, settings().server_token)

    @property
    def columns(self) -> list[str]:
        """The columns that the writer reads."""
        return ["worker", *STATE_KEY, "value", *self.order, "time"]

    @property
    def returned(self) -> pa.Schema:
        """Schema of the returned rows."""
        bigint, text = pa.int64(), pa.string()
        fields = [("group_id", pa.int32()), ("key", text), ("window_start", bigint), ("window_end", bigint),
                  ("value", text), ("worker", pa.int32())]  # fmt: skip
        order = self.order if self.order == SORT_KEY else ()
        return pa.schema([*fields, *((name, SCHEMA.field(name).type) for name in (*order, "time"))])

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        not_empty = [batch for batch in batches if batch.num_rows]
        if not not_empty:
            return
        state_rows = pa.Table.from_batches(not_empty)
        worker: int = state_rows.column("worker")[0].as_py()
        is_event = pc.is_in(state_rows.column("group_id"), pa.array(self.events, pa.int32()))
        events, state_rows = state_rows.filter(is_event), state_rows.filter(pc.invert(is_event))
        latest = self._latest(state_rows)
        with worker_shard(worker, self.locations[worker], self.token) as shard:
            written = shard.write(current_batch(), rows_of(latest.select([*STATE_KEY, "value"])), self.epoch)
        wanted = self.wanted if worker == 0 else self.wanted - self.tables
        changes = latest.filter(pc.is_in(latest.column("group_id"), pa.array(wanted, pa.int32())))
        for table in (changes, events):
            yield from table.select(self.returned.names).cast(self.returned).to_batches()
        yield pa.RecordBatch.from_pylist(
            [{"group_id": WRITTEN, "worker": worker, "window_start": written}], self.returned
        )

    def _latest(self, state_rows: pa.Table) -> pa.Table:
        """Keep only the last change of each row of a global table or an ordered job; others change once per batch."""
        is_table = pc.is_in(state_rows.column("group_id"), pa.array(self.tables, pa.int32()))
        several = is_table if self.order == ("position",) else pa.repeat(pa.scalar(True), state_rows.num_rows)
        keyed = pc.and_(several, state_rows.column("key").is_valid())
        changes = state_rows.filter(keyed).sort_by([(name, "ascending") for name in self.order])
        names = zip(*(changes.column(name).to_pylist() for name in ("group_id", "key", "window_start")), strict=True)
        last = {name: row for row, name in enumerate(names)}
        latest = changes.take(pa.array(last.values(), pa.int64()))
        return pa.concat_tables([state_rows.filter(pc.invert(several)), latest])
