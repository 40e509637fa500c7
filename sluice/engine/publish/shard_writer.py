"""Writes changed state rows to the workers' shards. Each worker's task writes that worker's shard."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import islice
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from sluice.engine.batch.batch_start import this_batch, this_worker
from sluice.engine.batch.row_batches import packed_side_outputs
from sluice.engine.batch.row_schemas import RETURNED_ROW, SORT_KEY, STATE_KEY
from sluice.engine.batch.side_outputs import BatchStats, SideOutputs
from sluice.engine.batch.storage import Storage
from sluice.engine.batch.worker_shards import worker_shard
from sluice.engine.combine.totals import Totals
from sluice.settings import settings
from sluice.state.shard.row_pages import digested_rows_of, rows_of, sorted_pages
from sluice.state.shard.row_tuples import Row, RowId
from sluice.state.shard.shard import Shard

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_PAGE_ROWS = 20_000


class StateRows(Protocol):
    """A batch's changed state rows. They are computed when they are written."""

    @property
    def spark(self) -> SparkSession | None:
        """The session that computes the rows; None without Spark."""

    def write(self) -> pa.Table:
        """Have each worker's rows computed, and written to its shard.

        Returns the side outputs of all tasks, with the schema `ROW_BATCHES`.
        """


@dataclass(frozen=True)
class RowsOnSpark:
    """State rows that Spark computes."""

    frame: DataFrame
    """The side outputs of the tasks that write the shards."""

    @property
    def spark(self) -> SparkSession:
        return self.frame.sparkSession

    def write(self) -> pa.Table:
        return self.frame.toArrow()


@dataclass(frozen=True)
class ShardWriter:
    """Writes one worker's changed state rows. Takes the worker's rows, with the columns of `SCHEMA`.

    Yields side outputs, in the form of row batches: the side outputs that earlier tasks have sent to
    this worker, the number of state rows written, and the rows that the driver turns into output
    records. The numbers in `wanted` and `tables` are group ids.
    """

    locations: tuple[str, ...] = field(repr=False)
    wanted: frozenset[int]
    """The groups whose changes the driver needs: groups with outputs, and global tables that these
    outputs look up."""
    tables: frozenset[int]
    """Global tables. Every worker has them, so only the first worker returns their changes."""
    stores: frozenset[int]
    """The numbers of the operators with stores."""
    epoch: int
    """Epoch of the lease under which the rows are written."""
    side_outputs: SideOutputs
    totals: Totals
    """Adds up two state rows of a group: the shard's row and the batch's row."""
    token: str = field(default="", repr=False)
    """Token for state servers, passed along because executors on other hosts lack the driver's environment."""

    @classmethod
    def of(cls, storage: Storage, epoch: int, totals: Totals) -> ShardWriter:
        job = storage.job
        return cls(
            storage.locations,
            wanted=job.looked_up_groups.union(sink.group for sink in job.change_sinks),
            tables=frozenset(table.group for table in job.tables),
            stores=frozenset(operator.number for operator in job.operators if operator.store is not None),
            epoch=epoch,
            side_outputs=storage.side_outputs,
            totals=totals,
            token=settings().server_token,
        )

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        self._write(batches)
        yield from packed_side_outputs(self.side_outputs, len(self.locations))

    def _write(self, batches: Iterator[pa.RecordBatch]) -> None:
        """Write the shard, and add the count of rows, and the rows that the driver needs, to the side outputs."""
        received = [_rows_of_shard(rows, self.stores) for rows in batches if rows.num_rows]
        if not received:
            return
        worker = this_worker()
        # The row batches of many tasks are small. A column of many chunks would be slow, so the
        # chunks are combined. The combined and the sorted rows are copies. A large batch would need
        # half a gigabyte more if the original rows were kept.
        together = pa.Table.from_batches(received).combine_chunks()
        row_bytes = together.nbytes
        del received
        pages = sorted_pages(self._latest_changes(together))
        del together
        pa.default_memory_pool().release_unused()
        batch = this_batch().number
        changes = RETURNED_ROW.empty_table()
        with worker_shard(worker, self.locations[worker], self.token) as shard:
            if self.totals.groups:
                count, changes = self._add_up(shard, worker, batch, rows_of(pages))
            else:
                count = shard.write_digested_rows(batch, digested_rows_of(pages), self.epoch)
        stats = BatchStats({"rows": count}, row_bytes={"shard": row_bytes})
        self.side_outputs.add_stats(f"shard-{worker:05}", stats)
        self.side_outputs.add_changes(f"shard-{worker:05}", changes)

    def _add_up(
        self,
        shard: Shard,
        worker: int,
        batch: int,
        rows: Iterable[Row],
    ) -> tuple[int, pa.Table]:
        """Add sorted rows to the shard's rows, and write the results.

        Returns the number of written rows, and the rows that the driver needs.
        """
        # Every worker writes each change of a global table, but the driver needs the change only
        # once, so only the first worker returns it.
        wanted = self.wanted if worker == 0 else self.wanted - self.tables
        changes = [RETURNED_ROW.empty_table()]
        replaced = 0

        def added_up() -> Iterator[Row]:
            nonlocal replaced
            merged = self._merged(rows)
            # Only one page of rows at a time is turned into Python objects, which take several
            # times as much memory.
            while page := list(islice(merged, _PAGE_ROWS)):
                # Only versions before this batch are read, so that a repeated batch never adds to its own rows.
                stored = shard.rows_before(batch, [row[:4] for row in page], self.epoch)
                before = {old[:4]: old for old in stored}
                for number, row in enumerate(page if before else ()):
                    if (old := before.get(row[:4])) is not None:
                        page[number] = self._sum(old[:5], row)
                        replaced += old[5]
                changes.append(self._change_rows([row for row in page if row[0] in wanted]))
                yield from (row for row in page if row[4] is not None or row[:4] in before)

        count = shard.write_rows(batch, added_up(), self.epoch, lambda: replaced)
        return count, pa.concat_tables(changes)

    def _merged(self, rows: Iterable[Row]) -> Iterator[Row]:
        """One row for each key and window: the sum of its rows.

        `rows` are sorted, so the rows of the same key and window follow each other.
        """
        last: Row | None = None
        last_id: RowId | None = None
        for row in rows:
            row_id = row[:4]
            if last is None:
                last = row
            elif row_id == last_id:
                last = self._sum(last, row)
            else:
                yield last
                last = row
            last_id = row_id
        if last is not None:
            yield last

    def _sum(self, first: Row, second: Row) -> Row:
        """Combine two versions of a state row.

        Rows of groups are added up. Of any other row, the second version is returned.
        """
        value, more = first[4], second[4]
        if second[0] not in self.totals.groups or value is None or more is None:
            return second
        return (*second[:4], self.totals.combine(second[0], value, more))

    def _change_rows(self, rows: list[Row]) -> pa.Table:
        """Written rows for the driver, with the time of each row's output record."""
        columns: dict[str, list[Any]] = {}
        for number, name in enumerate((*STATE_KEY, "value")):
            columns[name] = [row[number] for row in rows]
        columns["time"] = [self._time(row) for row in rows]
        columns |= {name: [None] * len(rows) for name in (*SORT_KEY, "headers")}
        return pa.Table.from_pydict(
            {name: columns[name] for name in RETURNED_ROW.names},
            RETURNED_ROW,
        )

    def _time(self, row: Row) -> int:
        group_id, value = row[0], row[4]
        return self.totals.time(value) if value is not None and group_id in self.totals.timed else 0

    def _latest_changes(self, state_rows: pa.Table) -> pa.Table:
        """Keep only the last change of each row of a store or global table, but all rows of groups."""
        is_of_group = pc.is_in(
            state_rows.column("group_id"),
            pa.array(self.totals.groups, pa.int32()),
        )
        rest = _chosen(state_rows, pc.invert(is_of_group))
        # A row without a key belongs to no store, so it is left out.
        changes = rest.filter(rest.column("key").is_valid())
        if len(_last_rows(changes)) < len(changes):
            changes = changes.sort_by([(name, "ascending") for name in SORT_KEY])
            changes = changes.take(_last_rows(changes))
        return pa.concat_tables([_chosen(state_rows, is_of_group), changes])


def _chosen(rows: pa.Table, mask: pa.ChunkedArray) -> pa.Table:
    """The rows for which the mask is true. If it is true for all rows, as in most batches, nothing is copied."""
    return rows if pc.all(mask).as_py() else rows.filter(mask)


def _last_rows(changes: pa.Table) -> pa.ChunkedArray:
    """The index of the last change of each row of a store."""
    identity = ["group_id", "key", "window_start", "window_end"]
    numbered = changes.select(identity).append_column("row", pa.array(np.arange(len(changes))))
    return numbered.group_by(identity, use_threads=False).aggregate([("row", "max")]).column("row_max")


def _rows_of_shard(rows: pa.RecordBatch, stores: frozenset[int]) -> pa.RecordBatch:
    """Rows for stores and groups as state rows, with their positions.

    The value of a store's row becomes an array of this one value, as in the state rows of groups.
    """
    value = rows.column("value")
    if stores:
        is_store = pc.is_in(rows.column("target"), pa.array(stores, pa.int32()))
        value = pc.if_else(is_store, pc.binary_join_element_wise("[", value, "]", ""), value)
    columns = {"group_id": rows.column("target"), "value": value}
    names = ("key", "window_start", "window_end", *SORT_KEY)
    return pa.RecordBatch.from_pydict(columns | {name: rows.column(name) for name in names})
