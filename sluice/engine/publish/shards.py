"""Changed state rows into the workers' shards: the task of one worker writes the shard of that worker."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame

from sluice.engine.batch.checkpoint import current_batch
from sluice.engine.batch.rows import REJECTED
from sluice.engine.fused.windowing import STATE_KEY
from sluice.errors import DamagedState
from sluice.plan import FusedJob, Job, OrderedJob
from sluice.settings import settings
from sluice.state.shard.addresses import shown
from sluice.state.shard.shard import Shard, rows_of

OWNER = "pmod(crc32(CAST(coalesce(key, '') AS BINARY)), {workers})"
"""The same as `state.model.owner`; what has no key is output, which any worker may hand on."""

ORDER = ("sequence", "place", "sub", "time")
"""Of what ordered operators send on: where it comes, and its event time."""

WRITTEN = -1
"""`group_id` of the row that says in `window_start` how many rows a worker wrote."""


@contextmanager
def open_shard(worker: int, location: str, token: str = "") -> Iterator[Shard]:
    """A worker's shard, to be written. DamagedState says which worker's it is, and where."""
    try:
        with Shard.open(location, to_write=True, token=token) as shard:
            yield shard
    except DamagedState as error:
        raise damaged({worker: (location, error.detail)}) from error


def damaged(found: Mapping[int, tuple[str, str]]) -> DamagedState:
    """The error of workers whose state is damaged: worker → its shard's address, and what is wrong with it."""
    places = {worker: shown(location) for worker, (location, _) in found.items()}
    sentences = [
        f"Worker {worker} has no shard to go on with: {why} It is at {places[worker]}."
        for worker, (_, why) in found.items()
    ]
    return DamagedState(" ".join(sentences), workers=places)


def share_out(job: Job, state_rows: DataFrame, tables: DataFrame | None) -> DataFrame:
    """The state rows with their `worker`, each worker's in a partition of its own; a global table goes to every worker."""
    workers = job.pipeline.workers
    owned = state_rows.selectExpr("*", f"CAST({OWNER.format(workers=workers)} AS INT) AS worker")
    if tables is not None:
        owned = owned.unionByName(tables.selectExpr("*", f"explode(sequence(0, {workers - 1})) AS worker"))
    return owned.repartitionById(workers, "worker")


@dataclass(frozen=True)
class ShardWriter:
    """Writes one worker's changed state rows, and returns those that the driver makes output records of."""

    locations: tuple[str, ...] = field(repr=False)
    wanted: frozenset[int]
    """State rows whose changes the driver needs."""
    tables: frozenset[int]
    """State rows that every worker has: one worker's are enough."""
    events: frozenset[int]
    """What is no state row: rows of output, which are only handed on."""
    order: tuple[str, ...]
    """The columns by which rows are in order; empty where every state row changes once."""
    epoch: int
    """Of the lease under which is written."""
    token: str = field(default="", repr=False)
    """What state servers are shown; executors on other hosts do not have the driver's environment."""

    @classmethod
    def of(cls, job: Job, locations: tuple[str, ...], epoch: int) -> ShardWriter:
        """The writer of a job's shards, one location for each worker."""
        tables = frozenset(table.group for table in job.tables)
        order: tuple[str, ...]
        match job:
            case FusedJob():
                wanted = tables | {sink.group for sink in job.table_sinks}
                events, order = frozenset([REJECTED]), ("position",)
            case OrderedJob():
                wanted = tables
                events, order = frozenset([REJECTED, *(sink.number for sink in job.ordered_sinks)]), ORDER[:3]
        return cls(locations, wanted, tables, events, order, epoch, settings().server_token)

    @property
    def columns(self) -> list[str]:
        """The columns that it reads of the shared-out state rows."""
        return ["worker", *STATE_KEY, "value", *(("position",) if self.order == ("position",) else ORDER)]

    @property
    def returned(self) -> pa.Schema:
        """What it gives back."""
        bigint, text = pa.int64(), pa.string()
        fields = [("group_id", pa.int32()), ("key", text), ("window_start", bigint), ("window_end", bigint),
                  ("value", text), ("worker", pa.int32())]  # fmt: skip
        return pa.schema([*fields, *((name, bigint) for name in ORDER if len(self.order) > 1)])

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Write the state rows of one task."""
        found = [batch for batch in batches if batch.num_rows]
        if not found:
            return
        state_rows = pa.Table.from_batches(found)
        worker: int = state_rows.column("worker")[0].as_py()
        is_event = pc.is_in(state_rows.column("group_id"), pa.array(self.events, pa.int32()))
        events, state_rows = state_rows.filter(is_event), state_rows.filter(pc.invert(is_event))
        latest = self._latest(state_rows)
        with open_shard(worker, self.locations[worker], self.token) as shard:
            written = shard.write(current_batch(), rows_of(latest.select([*STATE_KEY, "value"])), self.epoch)
        yield from self._returned(latest, worker)
        yield from events.select(self.returned.names).cast(self.returned).to_batches()
        said = {"group_id": WRITTEN, "worker": worker, "window_start": written}
        yield pa.RecordBatch.from_pylist([said], self.returned)

    def _latest(self, state_rows: pa.Table) -> pa.Table:
        """A table's key may have changed several times in the batch, an ordered store's too: the last change counts."""
        is_table = pc.is_in(state_rows.column("group_id"), pa.array(self.tables, pa.int32()))
        several = is_table if self.order == ("position",) else pa.repeat(pa.scalar(True), state_rows.num_rows)
        keyed = pc.and_(several, state_rows.column("key").is_valid())
        changes = state_rows.filter(keyed).sort_by([(name, "ascending") for name in self.order])
        names = zip(*_columns(changes, "group_id", "key", "window_start"), strict=True)
        last = {name: row for row, name in enumerate(names)}
        latest = changes.take(pa.array(last.values(), pa.int64()))
        return pa.concat_tables([state_rows.filter(pc.invert(several)), latest])

    def _returned(self, state_rows: pa.Table, worker: int) -> Iterator[pa.RecordBatch]:
        wanted = self.wanted if worker == 0 else self.wanted - self.tables
        chosen = state_rows.filter(pc.is_in(state_rows.column("group_id"), pa.array(wanted, pa.int32())))
        yield from chosen.select(self.returned.names).cast(self.returned).to_batches()


def _columns(table: pa.Table, *names: str) -> list[list[Any]]:
    return [table.column(name).to_pylist() for name in names]
