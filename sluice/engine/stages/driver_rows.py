"""Sends the rows that only the driver needs to the driver: output records of operators, and rejected rows."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Self

import pyarrow as pa
import pyarrow.compute as pc

from sluice.engine.batch.batch_start import this_worker
from sluice.engine.batch.row_schemas import REJECTED, RETURNED_ROW
from sluice.engine.batch.side_outputs import SideOutputs
from sluice.plan import Job

_PAGE_ROWS = 50_000


@dataclass(frozen=True)
class DriverRows:
    """The task after a stage that turns rows for the driver into side outputs, and passes on all other rows.

    The tasks between this one and the driver do not unpack side outputs.
    """

    targets: frozenset[int]
    stage: int
    side_outputs: SideOutputs

    @classmethod
    def of(cls, job: Job, stage: int, side_outputs: SideOutputs) -> Self:
        sinks = [sink.number for sink in job.operator_sinks]
        return cls(frozenset([REJECTED, *sinks]), stage, side_outputs)

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        targets = pa.array(self.targets, pa.int32())
        waiting: list[pa.RecordBatch] = []
        page = 0
        for batch in batches:
            is_for_driver = pc.is_in(batch.column("target"), targets)
            if not pc.any(is_for_driver).as_py():
                yield batch
                continue
            if not pc.all(is_for_driver).as_py():
                yield batch.filter(pc.invert(is_for_driver))
                batch = batch.filter(is_for_driver)
            waiting.append(_returned_rows(batch))
            if sum(rows.num_rows for rows in waiting) >= _PAGE_ROWS:
                page = self._add(waiting, page)
                waiting = []
        if waiting:
            self._add(waiting, page)

    def _add(self, rows: list[pa.RecordBatch], page: int) -> int:
        part = f"stage-{self.stage}-{this_worker():05}"
        return self.side_outputs.add_changes(part, pa.Table.from_batches(rows, RETURNED_ROW), page)


def _returned_rows(rows: pa.RecordBatch) -> pa.RecordBatch:
    columns = dict(zip(rows.schema.names, rows.columns, strict=True))
    columns["group_id"] = columns["target"]
    return pa.RecordBatch.from_arrays(
        [columns[name] for name in RETURNED_ROW.names], schema=RETURNED_ROW
    )
