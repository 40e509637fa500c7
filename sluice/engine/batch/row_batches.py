"""Row batches: many rows for one worker in one binary value.

Python tasks send each other row batches.

Spark converts every row that it gets from Python or hands to Python, and writes and reads every row
in every shuffle. A row batch is one value to Spark, so Spark only copies its bytes.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from zlib import crc32

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from sluice.engine.batch.gathered_batches import gathered
from sluice.engine.batch.row_schemas import SCHEMA, stable_order, taken, with_schema
from sluice.engine.batch.side_outputs import SideOutput, SideOutputs, open_table, pack_table
from sluice.support.arrays import Integers, Mask
from sluice.values.key_owners import key_hashes

ROW_BATCHES = pa.schema(
    [("worker", pa.int32()), ("rows", pa.binary()), ("side_output", pa.string())]
)
_MOST_ROWS, _MOST_BYTES = 50_000, 1 << 24
"""A task packs its rows when it has this many rows or bytes. No row batch is then too large for
Spark."""


@dataclass(frozen=True)
class RowBatchWriter:
    """Packs a task's rows before a shuffle.

    A row goes to the worker that its column `worker` names, or else to the worker that owns its
    key.
    """

    workers: int
    side_outputs: SideOutputs
    """The side outputs of the task, sent after its rows. The label of a side output determines the
    worker to which the side output goes."""
    to_all: bool = False
    """Whether every row goes to every worker."""
    copied: frozenset[tuple[int, int]] = frozenset()
    """Targets and sides whose rows are copied for every worker."""

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for gathered_slices in gathered(_slices(batches), _MOST_ROWS, _MOST_BYTES):
            yield self._row_batches(gathered_slices)
        # All rows have been made, so the task's side outputs are complete.
        yield from packed_side_outputs(self.side_outputs, self.workers)

    def _row_batches(self, batches: list[pa.RecordBatch]) -> pa.RecordBatch:
        table = pa.Table.from_batches(batches, SCHEMA).combine_chunks()
        rows = table.drop_columns(["worker"])
        row_batches: dict[int, bytes] = {}
        copied = self._copied_rows(table)
        if self.to_all:
            row_batches = dict.fromkeys(range(self.workers), pack_table(rows))
        elif copied.any():
            owners = self._owners(table)
            for worker in range(self.workers):
                is_for_worker = pa.array((owners == worker) | copied)
                row_batches[worker] = pack_table(rows.filter(is_for_worker))
        else:
            # Sort the rows once: a filter for each worker would read all rows each time.
            owners = self._owners(table)
            order = stable_order(owners)
            indices = pa.array(order)
            columns = [taken(column, indices) for column in rows.columns]
            rows = pa.Table.from_arrays(columns, schema=rows.schema)
            workers, begins = np.unique(owners[order], return_index=True)
            ends = [*begins[1:].tolist(), len(order)]
            for worker, begin, end in zip(workers.tolist(), begins.tolist(), ends, strict=True):
                row_batches[worker] = pack_table(rows.slice(begin, end - begin))
        return _batch([*row_batches], [*row_batches.values()], [None] * len(row_batches))

    def _copied_rows(self, table: pa.Table) -> Mask:
        """Return the mask of the rows to copy for every worker.

        Leaves out rows that earlier stages have passed on: they have been copied already.
        """
        copied = np.zeros(table.num_rows, bool)
        if self.copied and not self.to_all:
            targets = table.column("target").to_numpy()
            sides = table.column("side").to_numpy()
            for target, side in self.copied:
                copied |= (targets == target) & (sides == side)
            is_new = table.column("worker").is_null()
            copied &= np.asarray(pc.and_(is_new, pc.invert(table.column("emitted"))))
        return copied

    def _owners(self, table: pa.Table) -> Integers:
        """Return the worker of each row, by the rule of `values.key_owners`.

        Records without a key may go to any worker.
        """
        keys = pc.fill_null(table.column("key"), "").cast(pa.binary()).to_pylist()
        owners = np.fromiter(key_hashes(keys), np.int64, len(keys)) % self.workers
        # A row may name its worker: for example, a report of stream time has one row for each
        # worker.
        named_workers = table.column("worker")
        if named_workers.null_count == len(owners):
            return owners
        return np.asarray(pc.coalesce(named_workers, pa.array(owners)))


def packed_side_outputs(side_outputs: SideOutputs, workers: int) -> Iterator[pa.RecordBatch]:
    """Take the side outputs out of `side_outputs`, and yield them in the form of row batches."""
    for label, data in side_outputs.take():
        yield _batch([crc32(label.encode()) % workers], [data], [label])


def _slices(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Yield the batches in slices that are not too large for a row batch."""
    for batch in batches:
        if batch.num_rows:
            rows = with_schema(batch)
            most = max(1, rows.num_rows * _MOST_BYTES // max(rows.nbytes, 1))
            for begin in range(0, rows.num_rows, most):
                yield rows.slice(begin, most)


def _batch(
    workers: list[int],
    row_batches: list[bytes],
    labels: list[str | None],
) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays(
        [
            pa.array(workers, pa.int32()),
            pa.array(row_batches, pa.binary()),
            pa.array(labels, pa.string()),
        ],
        schema=ROW_BATCHES,
    )


@dataclass(frozen=True)
class RowBatchReader:
    """The task after a shuffle: unpacks row batches, and passes on the side outputs.

    Yields the rows with their `worker`.
    """

    side_outputs: SideOutputs

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            workers_of = batch.column("worker").to_pylist()
            labels = batch.column("side_output").to_pylist()
            row_batches = batch.column("rows")
            for worker, row_batch, label in zip(workers_of, row_batches, labels, strict=True):
                if label is not None:
                    self.side_outputs.add(SideOutput(label, row_batch.as_py()))
                    continue
                for rows in open_table(row_batch.as_buffer()):
                    workers = pa.repeat(pa.scalar(worker, pa.int32()), rows.num_rows)
                    yield pa.RecordBatch.from_arrays([*rows.columns, workers], schema=SCHEMA)
