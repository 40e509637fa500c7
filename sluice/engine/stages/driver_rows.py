"""Sends rows to the driver that only the driver needs: operators' output records, rejected rows."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Self

import pyarrow as pa
import pyarrow.compute as pc
from typing_extensions import override

from sluice.engine.batch.arrow_tasks import TaskOfBatch
from sluice.engine.batch.batch_start import RunningTask
from sluice.engine.batch.row_schemas import REJECTED, RETURNED_ROW
from sluice.engine.batch.side_outputs import SideOutputs
from sluice.plan import Job
from sluice.support.arrays import columns_named

_PAGE_ROWS = 50_000


@dataclass(frozen=True)
class DriverRows(TaskOfBatch):
    """The task after a stage: turns rows for the driver into side outputs, passes on other rows.

    The tasks between this task and the driver do not unpack side outputs.
    """

    targets: frozenset[int]
    stage: int
    side_outputs: SideOutputs

    @classmethod
    def of(cls, job: Job, stage: int, side_outputs: SideOutputs) -> Self:
        sinks = [sink.number for sink in job.operator_sinks]
        return cls(frozenset([REJECTED, *sinks]), stage, side_outputs)

    @override
    def run(self, batches: Iterator[pa.RecordBatch], task: RunningTask) -> Iterator[pa.RecordBatch]:
        targets = pa.array(self.targets, pa.int32())
        waiting: list[pa.RecordBatch] = []
        count = page = 0
        for batch in batches:
            is_for_driver = pc.is_in(batch.column("target"), targets)
            if not pc.any(is_for_driver).as_py():
                yield batch
                continue
            if not pc.all(is_for_driver).as_py():
                yield batch.filter(pc.invert(is_for_driver))
                batch = batch.filter(is_for_driver)
            waiting.append(_returned_rows(batch))
            count += batch.num_rows
            if count >= _PAGE_ROWS:
                page = self._add(waiting, page, task.worker)
                waiting, count = [], 0
        if waiting:
            self._add(waiting, page, task.worker)

    def _add(self, rows: list[pa.RecordBatch], page: int, worker: int) -> int:
        part = f"stage-{self.stage}-{worker:05}"
        return self.side_outputs.add_changes(part, pa.Table.from_batches(rows, RETURNED_ROW), page)


def _returned_rows(rows: pa.RecordBatch) -> pa.RecordBatch:
    columns = columns_named(rows, rows.schema.names)
    columns["group_id"] = columns["target"]
    return pa.RecordBatch.from_pydict(columns, schema=RETURNED_ROW)
