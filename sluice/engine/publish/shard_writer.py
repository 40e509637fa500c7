"""Writes changed state rows to the workers' shards. Each worker's task writes that worker's shard."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc

from sluice.engine.batch.parcels import PARCEL, unpack
from sluice.engine.batch.rows import OWNER, REJECTED, SCHEMA, SORT_KEY, STATE_KEY
from sluice.engine.batch.shards import worker_shard
from sluice.engine.batch.side_outputs import SideOutputs
from sluice.engine.batch.start import this_batch
from sluice.engine.batch.storage import Storage
from sluice.engine.fused.totals import Totals
from sluice.plan import FusedJob, Job, OrderedJob
from sluice.settings import settings
from sluice.state.shard.drivers import Row, RowId
from sluice.state.shard.protocol import Shard
from sluice.state.shard.shard import rows_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


def share_out(job: Job, state_rows: DataFrame, tables: DataFrame | None) -> DataFrame:
    """Repartition state rows, or parcels of an ordered job, by `worker`, one partition per worker.

    The rows of `tables`, the global tables, go to every worker.
    """
    workers = job.pipeline.workers
    if isinstance(job, FusedJob):
        state_rows = state_rows.selectExpr("*", f"CAST({OWNER.format(workers=workers)} AS INT) AS worker")
    owned = state_rows if tables is None else state_rows.unionByName(tables)
    return owned.repartitionById(workers, "worker")


@dataclass(frozen=True)
class ShardWriter:
    """Writes one worker's changed state rows, and spools the rows that the driver turns into output records.

    Returns the number of state rows written. `wanted`, `tables` and `events` are group ids. The rows for the driver are
    spooled because Spark limits the size of results, and keeps them in the memory of the driver's JVM.
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
    stores: frozenset[int] | None
    """For an ordered job, whose rows come in parcels, the operators with stores."""
    epoch: int
    """Epoch of the lease that covers the writes."""
    side_outputs: SideOutputs
    totals: Totals | None = None
    """How to add a batch's totals to the shard's totals; None if the rows already have the totals of all batches."""
    token: str = field(default="", repr=False)
    """Token for state servers, passed along because executors on other hosts lack the driver's environment."""

    @classmethod
    def of(cls, storage: Storage, epoch: int, totals: Totals | None = None) -> ShardWriter:
        job = storage.job
        tables = frozenset(table.group for table in job.tables)
        order: tuple[str, ...]
        stores: frozenset[int] | None = None
        match job:
            case FusedJob():
                wanted = tables | {sink.group for sink in job.table_sinks}
                events, order = frozenset([REJECTED]), ("position",)
            case OrderedJob():
                wanted = tables
                events, order = frozenset([REJECTED, *(sink.number for sink in job.ordered_sinks)]), SORT_KEY
                stores = frozenset(operator.number for operator in job.operators if operator.store is not None)
        locations, side_outputs, token = storage.locations, storage.side_outputs, settings().server_token
        return cls(locations, wanted, tables, events, order, stores, epoch, side_outputs, totals, token)

    @property
    def columns(self) -> list[str]:
        """The columns that the writer reads."""
        return [*PARCEL] if self.stores is not None else ["worker", *STATE_KEY, "value", *self.order, "time"]

    @property
    def spooled(self) -> pa.Schema:
        """Schema of the rows for the driver."""
        bigint, text = pa.int64(), pa.string()
        fields = [("group_id", pa.int32()), ("key", text), ("window_start", bigint), ("window_end", bigint),
                  ("value", text), ("worker", pa.int32())]  # fmt: skip
        of_rows = (*self.order, "headers") if self.order == SORT_KEY else ()
        return pa.schema([*fields, *((name, SCHEMA.field(name).type) for name in (*of_rows, "time"))])

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        if self.stores is not None:
            batches = map(partial(_state_rows, stores=self.stores), unpack(batches))
        received = self._received(batches)
        if received is None:
            return
        worker, events, latest = received
        wanted = self.wanted if worker == 0 else self.wanted - self.tables
        batch, rows = this_batch().number, rows_of(latest.select([*STATE_KEY, "value"]))
        if self.totals is None:
            changes = latest.filter(pc.is_in(latest.column("group_id"), pa.array(wanted, pa.int32())))
        # `rows` has copied them. Otherwise a large batch would need half a gigabyte more.
        del received, latest
        pa.default_memory_pool().release_unused()
        with worker_shard(worker, self.locations[worker], self.token) as shard:
            if self.totals is None:
                written = shard.write(batch, rows, self.epoch)
            else:
                added = self._added(self.totals, shard, batch, rows)
                written = len(added)
                changes = self._changes(self.totals, worker, [row for row in added if row[0] in wanted])
        tables = [table.select(self.spooled.names).cast(self.spooled) for table in (changes, events)]
        if any(table.num_rows for table in tables):
            self.side_outputs.write_changes(batch, worker, pa.concat_tables(tables))
        yield pa.RecordBatch.from_pydict({"written": [written]})

    def _received(self, batches: Iterator[pa.RecordBatch]) -> tuple[int, pa.Table, pa.Table] | None:
        """The worker, its events, and the last change of each state row; None without rows."""
        not_empty = [batch for batch in batches if batch.num_rows]
        if not not_empty:
            return None
        rows = pa.Table.from_batches(not_empty)
        is_event = pc.is_in(rows.column("group_id"), pa.array(self.events, pa.int32()))
        return rows.column("worker")[0].as_py(), rows.filter(is_event), self._latest(rows.filter(pc.invert(is_event)))

    def _added(self, totals: Totals, shard: Shard, batch: int, rows: Iterable[Row]) -> list[Row]:
        """Add sorted rows to the shard's rows. Write and return the results."""
        merged: list[Row] = []
        ids: list[RowId] = []
        last: RowId | None = None
        for row in rows:
            name = row[:3]
            if name == last:
                merged[-1] = self._sum(totals, merged[-1], row)
            else:
                merged.append(row)
                ids.append(name)
                last = name
        before = {old[:3]: old for old in shard.before(batch, ids, self.epoch)}
        if before:
            for at, name in enumerate(ids):
                if (old := before.get(name)) is not None:
                    merged[at] = self._sum(totals, old[:5], merged[at])
        del ids
        shard.write(batch, merged, self.epoch, sum(old[5] for old in before.values()))
        return merged

    def _sum(self, totals: Totals, first: Row, second: Row) -> Row:
        """Combine two versions of a state row: add them up, or return the second for a global table or a tombstone."""
        value, more = first[4], second[4]
        if second[0] in self.tables or value is None or more is None:
            return second
        return (*second[:4], totals.added(second[0], value, more))

    def _changes(self, totals: Totals, worker: int, rows: list[Row]) -> pa.Table:
        """Written rows for the driver, with the time of each row's output record."""
        columns: dict[str, list[Any]] = {name: [row[i] for row in rows] for i, name in enumerate((*STATE_KEY, "value"))}
        columns["time"] = [
            totals.time(value) if value is not None and group_id in totals.timed else 0
            for group_id, _, _, _, value in rows
        ]
        columns["worker"] = [worker] * len(rows)
        return pa.Table.from_pydict({name: columns[name] for name in self.spooled.names}, self.spooled)

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


def _state_rows(rows: pa.RecordBatch, stores: frozenset[int]) -> pa.RecordBatch:
    """Rows for stores and sinks as state rows. The value of a store is an array of one value."""
    is_store = pc.is_in(rows.column("target"), pa.array(stores, pa.int32()))
    value = pc.if_else(is_store, pc.binary_join_element_wise("[", rows.column("value"), "]", ""), rows.column("value"))
    names = ("worker", "target", "key", "window_start", "window_end", *SORT_KEY, "headers", "time")
    columns = {"group_id" if name == "target" else name: rows.column(name) for name in names}
    return pa.RecordBatch.from_pydict(columns | {"value": value})
