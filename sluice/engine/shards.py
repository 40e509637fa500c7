"""Changed cells into the workers' shards: the task of one worker writes the shard of that worker."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame

from sluice.engine.place import CELL
from sluice.engine.source import current_batch
from sluice.plan import Job
from sluice.settings import settings
from sluice.state.shard import Shard, rows_of

OWNER = "pmod(crc32(CAST(key AS BINARY)), {workers})"
"""The same as `state.model.owner`."""

RETURNED = "cell INT, key STRING, window_start BIGINT, window_end BIGINT, value STRING, worker INT"
WRITTEN = -1
"""`cell` of the row that says in `window_start` how many rows a worker wrote."""


def share_out(job: Job, cells: DataFrame, tables: DataFrame | None) -> DataFrame:
    """The cells with their `worker`, each worker's in a partition of its own; a global table goes to every worker."""
    workers = job.pipeline.workers
    owned = cells.selectExpr("*", f"CAST({OWNER.format(workers=workers)} AS INT) AS worker")
    if tables is not None:
        owned = owned.unionByName(tables.selectExpr("*", f"explode(sequence(0, {workers - 1})) AS worker"))
    return owned.repartitionById(workers, "worker")


@dataclass(frozen=True)
class ShardWriter:
    """Writes one worker's changed cells, and returns those that the driver makes output records of."""

    locations: tuple[str, ...]
    wanted: frozenset[int]
    """Cell families whose changes the driver needs."""
    tables: frozenset[int]
    """Cell families that every worker has: one worker's are enough."""
    token: str = field(default="", repr=False)
    """What state servers are shown; executors on other hosts do not have the driver's environment."""

    @classmethod
    def of(cls, job: Job, locations: tuple[str, ...]) -> ShardWriter:
        """The writer of a job's shards, one location for each worker."""
        tables = frozenset(table.family for table in job.tables)
        return cls(
            locations, frozenset(sink.family for sink in job.table_sinks) | tables, tables, settings().server_token
        )

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Write the cells of one task."""
        found = [batch for batch in batches if batch.num_rows]
        if not found:
            return
        cells = pa.Table.from_batches(found)
        worker: int = cells.column("worker")[0].as_py()
        latest = self._latest(cells)
        with Shard.open(self.locations[worker], to_write=True, token=self.token) as shard:
            written = shard.write(current_batch(), rows_of(latest))
        yield from self._returned(latest, worker)
        yield pa.RecordBatch.from_pylist([{"cell": WRITTEN, "worker": worker, "window_start": written}], _schema())

    def _latest(self, cells: pa.Table) -> pa.Table:
        """A table's key may have changed several times in the batch: the last change counts."""
        is_table = pc.is_in(cells.column("cell"), pa.array(self.tables, pa.int32()))
        changes = cells.filter(is_table).sort_by([("position", "ascending")])
        last = {(cell, key): row for row, (cell, key) in enumerate(zip(*_columns(changes, "cell", "key"), strict=True))}
        latest = changes.take(pa.array(last.values(), pa.int64()))
        return pa.concat_tables([cells.filter(pc.invert(is_table)), latest]).select([*CELL, "value"])

    def _returned(self, cells: pa.Table, worker: int) -> Iterator[pa.RecordBatch]:
        wanted = self.wanted if worker == 0 else self.wanted - self.tables
        chosen = cells.filter(pc.is_in(cells.column("cell"), pa.array(wanted, pa.int32())))
        with_worker = chosen.append_column("worker", pa.repeat(pa.scalar(worker, pa.int32()), chosen.num_rows))
        yield from with_worker.select(_schema().names).cast(_schema()).to_batches()


def _columns(table: pa.Table, *names: str) -> list[list[Any]]:
    return [table.column(name).to_pylist() for name in names]


def _schema() -> pa.Schema:
    bigint, text = pa.int64(), pa.string()
    return pa.schema(
        [("cell", pa.int32()), ("key", text), ("window_start", bigint), ("window_end", bigint), ("value", text),
         ("worker", pa.int32())]
    )  # fmt: skip
