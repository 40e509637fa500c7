"""Side outputs travel with the rows to the driver, which sorts them by the parts of the input."""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from dataclasses import replace
from functools import partial, reduce
from pathlib import Path
from types import SimpleNamespace

import pyarrow as pa
import pyarrow.compute as pc
import pyspark
import pytest

from sluice.engine.batch import side_outputs as module
from sluice.engine.batch.arrow_tasks import Chain
from sluice.engine.batch.row_batches import RowBatchReader, RowBatchWriter
from sluice.engine.batch.row_schemas import SCHEMA, rows
from sluice.engine.batch.side_outputs import (
    NOTHING,
    BatchStats,
    Collected,
    DirectOutput,
    LastRecord,
    SideOutputs,
    part_name,
)


def records(*keys: str) -> pa.Table:
    return pa.table({"key": list(keys), "value": [key.upper() for key in keys]})


def collected(*of_tasks: SideOutputs) -> Collected:
    return Collected(output for task in of_tasks for output in task.take())


def keys_of(outputs: Collected, topic: str) -> list[str]:
    return [key for table in outputs.records(topic) for key in table.column("key").to_pylist()]


def test_counts_of_all_parts_are_added_up() -> None:
    task = SideOutputs()
    task.add_stats(
        "read-a-00000", BatchStats({"read": 5}, last=LastRecord(7, "print"), partition="a-0")
    )
    task.add_stats("part-a-00000", BatchStats({"applied": 4, "late/w": 1}, {"w/a/0": 70}, "a-0"))
    task.add_stats(
        "stage-1-00000",
        BatchStats({"applied": 2}, {"w/a/1": 60}, by_partition={"a-0": {"applied": 2}}),
    )
    all_of_them = collected(task)
    all_of_them.add_stats(BatchStats({"dead_letter/processing": 1}))
    expected = {"read": 5, "applied": 6, "late/w": 1, "dead_letter/processing": 1}
    assert all_of_them.stats == BatchStats(expected, {"w/a/0": 70, "w/a/1": 60})
    assert all_of_them.counts_by_partition == {("a", 0): {"read": 5, "applied": 6, "late/w": 1}}
    assert all_of_them.last_records == {("a", 0): LastRecord(7, "print")}
    assert collected(task).stats == BatchStats(), "what was taken is forgotten"


def test_records_have_the_order_of_the_parts_and_of_their_pages(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "_MOST_ROWS", 2)
    tasks = [SideOutputs() for _ in range(3)]
    for task, part in zip(tasks, (10, 2, 0), strict=True):
        task.add_records(
            "out", part_name("part", "a", part), records(*(f"{part}.{row}" for row in range(5)))
        )
        task.add_records("other", part_name("part", "a", part), records())
    outputs = collected(*tasks)
    assert keys_of(outputs, "out") == [f"{part}.{row}" for part in (0, 2, 10) for row in range(5)]
    assert max(table.num_rows for table in outputs.records("out")) == 2
    assert [*outputs.records("other")] == [*outputs.records("another")] == []


def test_the_size_of_the_output_is_known_before_it_is_read() -> None:
    task = SideOutputs()
    task.add_stats("part", BatchStats({"read": 5}))
    assert collected(task).output_size == NOTHING
    written = records(*(f"key {row % 3}" for row in range(20_000)))
    changed = records("of 7").append_column("group_id", pa.array([7], pa.int32()))
    task.add_records("out", "part", written)
    task.add_changes("part", changed)
    plain, compressed = collected(task).output_size
    assert plain == written.nbytes + changed.nbytes
    assert changed.nbytes < compressed < plain / 2


def test_names_that_look_like_each_other_are_different() -> None:
    """The name of a Delta table's output is a path; a topic may be named like a part."""
    task = SideOutputs()
    names = (
        "delta:/lake/a/b",
        "delta:/lake/a=b",
        "delta:/lake/a%2Fb",
        "b",
        "warehouse:a.b",
        "worker-00001",
        "x" * 249,
    )
    for name in names:
        task.add_records(name, part_name("part", name, 0), records(name))
    changed = records("of 7", "of 8").append_column("group_id", pa.array([7, 8], pa.int32()))
    task.add_changes("shard-00001", changed)
    outputs = collected(task)
    assert [keys_of(outputs, name) for name in names] == [[name] for name in names]
    assert [table.column("key").to_pylist() for table in outputs.changes([7])] == [["of 7"]]


def test_records_that_a_task_writes_itself_are_only_counted() -> None:
    task = replace(
        SideOutputs(),
        direct=lambda topic, _: (
            DirectOutput({"sent": 1}, {"letters": records("rejected")}) if topic == "out" else None
        ),
    )
    assert task.add_records("out", "part-a-00000", records("x")) == {"sent": 1}
    assert task.add_records("letters", "part-a-00000", records("own")) == {}
    outputs = collected(task)
    assert (keys_of(outputs, "out"), keys_of(outputs, "letters")) == ([], ["own", "rejected"])


def counting(
    task: SideOutputs, name: str, batches: Iterator[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    """A task that passes on its rows and counts them."""
    count = 0
    for batch in batches:
        count += batch.num_rows
        yield batch
    task.add_stats(name, BatchStats({name: count}))
    task.add_records("out", name, records(name))


def test_they_go_through_every_shuffle_behind_the_rows() -> None:
    """Each task has a copy of the chain, as on executors, and a task that fails leaves nothing behind."""
    given = rows(
        40,
        {"target": 1, "key": pa.array([f"key {number}" for number in range(40)]), "path": b"\x00"},
    )

    def run(stage: int, batches: list[pa.RecordBatch]) -> list[pa.RecordBatch]:
        own = pickle.loads(pickle.dumps(SideOutputs()))
        tasks = (
            *((RowBatchReader(own),) if stage else ()),
            partial(counting, own, f"stage {stage}"),
            RowBatchWriter(3, own),
        )
        return [*reduce(lambda made, task: task(made), tasks, iter(batches))]

    row_batches = run(0, [given])
    for stage in (1, 2):
        workers = sorted(
            {worker for batch in row_batches for worker in batch.column("worker").to_pylist()}
        )
        by_worker = [
            [
                rest
                for batch in row_batches
                if (rest := batch.filter(pc.equal(batch.column("worker"), worker))).num_rows
            ]
            for worker in workers
        ]
        run(stage, by_worker[0])  # a speculative copy, whose result Spark throws away
        row_batches = [row_batch for of_worker in by_worker for row_batch in run(stage, of_worker)]
    last = SideOutputs()
    arrived = pa.Table.from_batches(RowBatchReader(last)(iter(row_batches)), SCHEMA)
    outputs = collected(last)
    assert sorted(arrived.column("key").to_pylist()) == sorted(given.column("key").to_pylist())
    assert outputs.stats.counts == {"stage 0": 40, "stage 1": 40, "stage 2": 40}
    assert set(keys_of(outputs, "out")) == {"stage 0", "stage 1", "stage 2"}


def test_a_chain_before_spark_sql_leaves_them_for_the_next_chain_of_its_task(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SPARK_LOCAL_DIRS", f"{tmp_path},/nowhere")
    given = rows(2, {"target": 1, "key": pa.array(["a", "b"]), "path": b"\x00"})
    for attempt in (1, 2):  # the first attempt fails behind Spark SQL
        context = SimpleNamespace(taskAttemptId=lambda: attempt)  # noqa: B023
        monkeypatch.setattr(pyspark.TaskContext, "get", lambda: context)  # noqa: B023
        first, second = SideOutputs(), SideOutputs()
        leaving = Chain((partial(counting, first, "read"), first.leave))
        assert [*leaving(iter([given]))] == [given]
    second.add_stats("ingest", BatchStats({"ingested": 2}))
    assert collected(second).stats.counts == {"read": 2, "ingested": 2}
    assert [file.name for file in tmp_path.iterdir()] == ["side-outputs-1"], (
        "Spark deletes the folder at the end"
    )
