"""Writes changed state rows to the workers' shards.

Each worker's task writes that worker's shard.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from typing_extensions import override

from sluice.engine.batch.arrow_tasks import TaskOfBatch
from sluice.engine.batch.batch_start import RunningTask
from sluice.engine.batch.record_headers import rows_with_headers
from sluice.engine.batch.row_batches import packed_side_outputs
from sluice.engine.batch.row_schemas import RETURNED_ROW, SORT_KEY
from sluice.engine.batch.side_outputs import BatchStats, SideOutputs
from sluice.engine.batch.storage import Storage
from sluice.engine.batch.worker_shards import worker_shard
from sluice.engine.combine.totals import Totals
from sluice.state.shard.row_columns import RowColumns
from sluice.state.shard.row_pages import columns_of, ids_of, pages_of, repeats_previous, sorted_rows
from sluice.state.shard.shard import Shard
from sluice.support.memory import release_much_memory

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


class StateRows(Protocol):
    """A batch's changed state rows. The rows are computed only when they are written."""

    @property
    def spark(self) -> SparkSession | None:
        """The session that computes the rows; None if Spark is not used."""

    def write(self) -> pa.Table:
        """Compute each worker's rows, and write them to its shard.

        Return the side outputs of all tasks, with the schema `ROW_BATCHES`.
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
class ShardWriter(TaskOfBatch):
    """Writes one worker's changed state rows.

    It takes the worker's rows, with the columns of `SCHEMA`. It yields side outputs, in the form of
    row batches. These are the side outputs that earlier tasks have sent to this worker, the number
    of state rows written, and the rows that the driver turns into output records. The numbers in
    `wanted` and `tables` are group ids.
    """

    locations: tuple[str, ...] = field(repr=False)
    wanted: frozenset[int]
    """The groups whose changes the driver needs: groups with outputs, and global tables that these
    outputs look up."""
    tables: frozenset[int]
    """Global tables. Every worker has all of their rows, so only the first worker returns their
    changes."""
    stores: frozenset[int]
    """The numbers of the operators with stores."""
    with_headers: frozenset[int]
    """The numbers of the operators whose stores keep headers."""
    epoch: int
    """Epoch of the lease under which the rows are written."""
    side_outputs: SideOutputs
    totals: Totals
    """Adds up two state rows of a group: the shard's row and the batch's row."""
    token: str = field(default="", repr=False)
    """Token for state servers, passed along because executors on other hosts lack the driver's
    environment."""

    @classmethod
    def of(cls, storage: Storage, epoch: int, totals: Totals) -> ShardWriter:
        job = storage.job
        stores: set[int] = set()
        with_headers: set[int] = set()
        for operator in job.operators:
            if operator.store is not None:
                stores.add(operator.number)
                if operator.keeps_headers:
                    with_headers.add(operator.number)
        return cls(
            storage.locations,
            wanted=job.looked_up_groups.union(sink.group for sink in job.change_sinks),
            tables=frozenset(table.group for table in job.tables),
            stores=frozenset(stores),
            with_headers=frozenset(with_headers),
            epoch=epoch,
            side_outputs=storage.side_outputs,
            totals=totals,
            token=storage.token,
        )

    @override
    def run(self, batches: Iterator[pa.RecordBatch], task: RunningTask) -> Iterator[pa.RecordBatch]:
        self._write(batches, task)
        yield from packed_side_outputs(self.side_outputs, len(self.locations))

    def _write(self, batches: Iterator[pa.RecordBatch], task: RunningTask) -> None:
        """Write the shard, and add the rows for the driver to the side outputs."""
        received = [self._rows_of_shard(rows) for rows in batches if rows.num_rows]
        if not received:
            return
        worker = task.worker
        # The row batches of many tasks are small. Columns of many chunks are slow, so combine the
        # chunks. The combined and the sorted rows are copies, so free the originals: for a large
        # batch, they would need another half gigabyte.
        together = pa.Table.from_batches(received).combine_chunks()
        row_bytes = together.nbytes
        del received
        state_rows = self._changed_rows(together)
        del together
        release_much_memory()
        batch = task.start.number
        changes = RETURNED_ROW.empty_table()
        with worker_shard(worker, self.locations[worker], self.token) as shard:
            if self.totals.groups:
                count, changes = self._add_up(shard, worker, batch, state_rows)
            else:
                count = shard.write_pages(batch, map(columns_of, pages_of(state_rows)), self.epoch)
        stats = BatchStats({"rows": count}, row_bytes={"shard": row_bytes})
        self.side_outputs.add_stats(f"shard-{worker:05}", stats)
        self.side_outputs.add_changes(f"shard-{worker:05}", changes)

    def _rows_of_shard(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        """Return rows for stores and groups as state rows, with their positions.

        The value of a store's row becomes an array, as in the state rows of groups: an array of
        this one value, or of the value and the headers.
        """
        value = rows.column("value")
        if self.stores:
            is_store = pc.is_in(rows.column("target"), pa.array(self.stores, pa.int32()))
            of_store = pc.binary_join_element_wise("[", value, "]", "")
            if self.with_headers:
                keeps = pc.is_in(rows.column("target"), pa.array(self.with_headers, pa.int32()))
                with_headers = rows_with_headers(value, rows.column("headers"))
                of_store = pc.if_else(keeps, with_headers, of_store)
            value = pc.if_else(is_store, of_store, value)
        columns = {"group_id": rows.column("target"), "value": value}
        for name in ("key", "window_start", "window_end", *SORT_KEY):
            columns[name] = rows.column(name)
        return pa.RecordBatch.from_pydict(columns)

    def _changed_rows(self, rows: pa.Table) -> pa.Table:
        """Return one sorted row for each key and window.

        For a group, this row is the sum of the rows; otherwise, it is the last change.
        """
        # Leave out rows without a key: they belong to no store.
        rows = sorted_rows(_chosen(rows, rows.column("key").is_valid()), then_by=SORT_KEY)
        repeats = repeats_previous(rows)
        # A task makes only one row of a key's records in a window, and most keys have all of their
        # records in one partition. So in most batches, no key and window occurs twice.
        if not repeats.any():
            return rows
        is_last = np.append(~repeats[1:], True)
        last = rows.filter(pa.array(is_last))
        is_of_group = _is_in(rows.column("group_id"), self.totals.groups)
        added_up = np.asarray(is_of_group) & (repeats | ~is_last)
        to_add = rows.append_column("repeats", pa.array(repeats)).filter(pa.array(added_up))
        sums: list[str] = []
        for page in pages_of(to_add):
            groups, texts = page.column("group_id").to_pylist(), page.column("value").to_pylist()
            repeated = page.column("repeats").to_pylist()
            for group, value, repeats_last in zip(groups, texts, repeated, strict=True):
                if repeats_last:
                    sums[-1] = self.totals.combine(group, sums[-1], value)
                else:
                    sums.append(value)
        is_sum, totals = pa.array(added_up[is_last]), pa.array(sums, pa.string())
        return _with_values(last, pc.replace_with_mask(last.column("value"), is_sum, totals))

    def _add_up(
        self, shard: Shard, worker: int, batch: int, state_rows: pa.Table
    ) -> tuple[int, pa.Table]:
        """Add sorted rows to the shard's rows, and write the results.

        Return the number of written rows, and the rows that the driver needs.
        """
        # Every worker writes each change of a global table, but the driver needs the change only
        # once, so only the first worker returns it.
        wanted = self.wanted if worker == 0 else self.wanted - self.tables
        changes = [RETURNED_ROW.empty_table()]
        replaced = 0

        def added_up() -> Iterator[RowColumns]:
            nonlocal replaced
            # Turn only one page of rows at a time into Python objects, because the objects take
            # several times as much memory as the rows.
            for page in pages_of(state_rows):
                ids = ids_of(page)
                # Read only versions before this batch: a repeated batch must not add to its own
                # rows.
                before = shard.rows_before(batch, ids, self.epoch)
                if before:
                    values = page.column("value").to_pylist()
                    for place, (group, _, _, _, value, digest) in before.items():
                        values[place] = self._sum(group, value, values[place])
                        replaced += digest
                    page = _with_values(page, pa.array(values, pa.string()))
                changes.append(self._changes(page, wanted))
                yield columns_of(page, ids).with_needed_tombstones(before)

        count = shard.write_pages(batch, added_up(), self.epoch, lambda: replaced)
        return count, pa.concat_tables(changes)

    def _sum(self, group: int, first: str | None, second: str | None) -> str | None:
        """Combine the values of two versions of a state row.

        Values of groups are added up. For any other row, the second value is returned.
        """
        if group not in self.totals.groups or first is None or second is None:
            return second
        return self.totals.combine(group, first, second)

    def _changes(self, page: pa.Table, wanted: frozenset[int]) -> pa.Table:
        """Return the rows of the groups `wanted`, with the time of each row's output record."""
        rows = page.filter(_is_in(page.column("group_id"), wanted))
        groups, values = rows.column("group_id").to_pylist(), rows.column("value").to_pylist()
        columns: dict[str, Any] = {}
        for column in RETURNED_ROW:
            if column.name == "time":
                columns["time"] = pa.array(map(self._time, groups, values), pa.int64())
            elif column.name in (*SORT_KEY, "headers"):
                columns[column.name] = pa.nulls(len(rows), column.type)
            else:
                columns[column.name] = rows.column(column.name)
        return pa.Table.from_pydict(columns, RETURNED_ROW)

    def _time(self, group: int, value: str | None) -> int:
        if value is None or group not in self.totals.timed:
            return 0
        return self.totals.time(value)


def _is_in(numbers: pa.ChunkedArray, chosen: Collection[int]) -> pa.ChunkedArray:
    return pc.is_in(numbers, pa.array(chosen, pa.int32()))


def _chosen(rows: pa.Table, mask: pa.ChunkedArray) -> pa.Table:
    """Return the rows for which the mask is true.

    If it is true for all rows, as in most batches, do not copy them.
    """
    if pc.all(mask).as_py():
        return rows
    return rows.filter(mask)


def _with_values(rows: pa.Table, values: pa.Array | pa.ChunkedArray) -> pa.Table:
    return rows.set_column(rows.column_names.index("value"), "value", values)
