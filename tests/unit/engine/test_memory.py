"""A process returns the memory that it no longer needs."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import numpy as np
import psutil
import pyarrow as pa
import pyarrow.compute as pc
import pytest

from sluice import Pipeline
from sluice.engine.batch.dead_letters import RejectedOutput
from sluice.engine.batch.row_schemas import RETURNED_ROW
from sluice.engine.batch.side_outputs import Collected, SideOutputs
from sluice.engine.publish.markers import NOTHING_PUBLISHED, PublishedState
from sluice.engine.publish.output_writer import BatchOutput, Destinations, OutputWriter
from sluice.plan import plan
from sluice.state.ledger.history import Batch
from sluice.support import memory
from sluice.support.memory import release_memory_after_task
from sluice.support.pandas_on_demand import import_pandas_on_demand


def resident_mb() -> float:
    return psutil.Process().memory_info().rss / 1e6


def after_a_task() -> tuple[float, object]:
    """The memory in MB that a worker has freed in a task and kept, and the task's last objects."""
    import_pandas_on_demand()
    before = resident_mb()
    numbers = pa.array(range(1_000))
    columns = [pc.add(numbers, number) for number in range(10_000)]
    texts = [b"%05d" % number * 400 for number in range(50_000)]
    # The last objects keep the memory in front of them from being returned by itself.
    last = columns[-1], texts[-1]
    assert resident_mb() > before + 150
    del columns, texts
    release_memory_after_task("stop", {"generation": 2})
    return resident_mb() - before, last


def test_a_worker_with_much_memory_returns_what_it_has_freed_after_a_task(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(memory, "_MUCH_BYTES", psutil.Process().memory_info().rss)
    kept, _ = after_a_task()
    assert kept < 40


def test_a_worker_with_little_memory_keeps_it_for_its_next_task(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(memory, "_MUCH_BYTES", 1 << 40)
    kept, _ = after_a_task()
    assert kept > 80
    memory.release_unused_memory()


def test_a_worker_always_returns_memory_if_the_system_does_not_say_how_much_it_has(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(memory, "_RESIDENT_PAGES", tmp_path / "statm")
    kept, _ = after_a_task()
    assert kept < 40


class MeasuredOutput:
    """Takes the records of a batch, and measures Arrow's memory meanwhile."""

    def __init__(self) -> None:
        self.allocated = self.size = 0

    def send(
        self, batch: Batch, records: Iterable[tuple[str, pa.Table]], state: PublishedState
    ) -> dict[str, int]:
        tables = [table for _, table in records]
        self.size = sum(table.nbytes for table in tables)
        self.allocated = pa.total_allocated_bytes()
        return {"changes": sum(map(len, tables))}


def test_while_a_batch_is_sent_the_driver_has_only_the_records_that_it_sends() -> None:
    pipeline = Pipeline("p")
    numbers = (
        pipeline.stream("numbers", value=int)
        .group_by_key()
        .aggregate(int, max, store="last", returns=int)
    )
    numbers.to_stream().to("changes")
    job = plan(pipeline).job
    (sink,) = job.operator_sinks
    count = 100_000
    values = {name: pa.nulls(count, RETURNED_ROW.field(name).type) for name in RETURNED_ROW.names}
    values |= {"key": pa.array(map(str, range(count))), "value": pa.array(map(str, range(count)))}
    values |= {name: pa.array(np.arange(count)[::-1]) for name in ("sequence", "origin", "time")}
    values |= {
        "group_id": pa.repeat(pa.scalar(sink.number, pa.int32()), count),
        "path": pa.array([b"\x00"] * count),
    }
    side_outputs = SideOutputs()
    side_outputs.add_changes(
        "stage-1-00000", pa.table(values).select(RETURNED_ROW.names).cast(RETURNED_ROW)
    )
    collected = Collected(side_outputs.take())
    del values
    topic = MeasuredOutput()
    before = pa.total_allocated_bytes()
    output = BatchOutput(collected, changes=(), dead_letters=())
    batch = Batch(number=0, begun=0, partitions={}, ends={})
    written = OutputWriter(job, 1, Destinations(topic)).write(
        batch, output, (), RejectedOutput(), NOTHING_PUBLISHED
    )
    assert written == {"changes": count}
    assert topic.allocated - before < topic.size * 1.1
