"""Output records of operators leave the rows behind a stage, and reach the driver packed."""

from __future__ import annotations

import pyarrow as pa
import pytest

from sluice import Pipeline
from sluice.engine.batch.batch_start import worker_context
from sluice.engine.batch.row_schemas import REJECTED, rows
from sluice.engine.batch.side_outputs import Collected, SideOutputs
from sluice.engine.stages import driver_rows
from sluice.engine.stages.driver_rows import DriverRows
from sluice.plan import plan

pytestmark = pytest.mark.unit


def test_only_rows_for_the_driver_leave_and_all_of_their_pages_arrive(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(driver_rows, "_PAGE_ROWS", 4)
    pipeline = Pipeline("p")
    pipeline.stream("clicks", value=int).group_by_key().aggregate(
        int, max, store="last", returns=int
    ).to("changes")
    job = plan(pipeline).job
    (sink,) = (sink.number for sink in job.operator_sinks)
    store = job.operators[0].number
    collected: list[tuple[str, bytes]] = []
    for worker in (1, 0):
        side_outputs = SideOutputs()
        task = DriverRows.of(job, 1, side_outputs)
        given = [
            rows(
                3,
                {
                    "target": pa.array([sink, store, REJECTED], pa.int32()),
                    "key": pa.array([f"{worker}{n}"] * 3),
                },
            )
            for n in range(5)
        ]
        with worker_context(worker):
            passed_on = pa.Table.from_batches(task(iter(given)))
        assert passed_on.column("target").to_pylist() == [store] * 5
        collected += side_outputs.take()
    of_batch = Collected(collected)
    pages = [page.column("key").to_pylist() for page in of_batch.changes([sink])]
    assert pages == [["00", "01"], ["02", "03"], ["04"], ["10", "11"], ["12", "13"], ["14"]]
    assert sum(page.num_rows for page in of_batch.changes([REJECTED, sink])) == 20
    assert [*of_batch.changes([store])] == []
