"""A job's query as functions over Arrow batches.

They run in Spark's tasks or, for a test, in this process.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Self

import pyarrow as pa

from sluice.engine.batch.arrow_tasks import Chain
from sluice.engine.batch.batch_start import BatchStart, RunningTask
from sluice.engine.batch.row_batches import ROW_BATCHES
from sluice.engine.batch.storage import Storage
from sluice.engine.publish.state_types import StateTypes
from sluice.engine.read.stream_reader import StreamReader
from sluice.engine.run.query_tasks import QueryTasks, tables_task
from sluice.engine.stages.job_stages import kinds_by_name
from sluice.engine.steps.arrow_steps import ArrowSteps
from sluice.plan import Job
from sluice.plan.arrow_support import NeedsSparkError, types_of, types_read, why_spark
from sluice.values.sql_types import compact


@dataclass(frozen=True)
class ArrowQuery:
    """The tasks of a job, which take and yield Arrow record batches (see `query_tasks`)."""

    workers: int
    streams: frozenset[str]
    """The topics of the streams."""
    tables: frozenset[str]
    """The topics of the global tables."""
    read: Chain
    """The tasks that turn the streams' records into row batches for the first stage."""
    stages: tuple[Chain, ...]
    read_tables: Chain
    """The tasks that turn the records of global tables into row batches for the shards."""
    write: Chain | None
    """The tasks that write the shards after a separate shuffle; None if the last stage's tasks
    write the shards."""
    types: StateTypes

    @classmethod
    def of(
        cls,
        job: Job,
        storage: Storage,
        partitions: Mapping[str, int],
        epoch: int,
        *,
        interleaved: bool,
    ) -> Self:
        """Build the Arrow query that runs a job.

        Raise NeedsSparkError if Spark must compute a part of the query.
        """
        if reason := why_spark(job):
            raise NeedsSparkError(reason)
        reader = StreamReader.of(
            job, storage.side_outputs, interleaved=interleaved, registry=storage.registry
        )
        types = types_of(job.layers, types_read(job))

        def type_of(column: str) -> str:
            return compact(types[column])

        tasks = QueryTasks.of(reader, storage, partitions, epoch, type_of, kinds_by_name(types))
        steps = ArrowSteps.giving(job, reader.schema, tasks.ingest.columns(job), tasks.edges)
        stages: list[Chain] = []
        known = tasks.known
        for number in range(1, job.stage_count + 1):
            stage, known = tasks.stage(number, known)
            stages.append(stage)
        state_types = tasks.state_types(known)
        # The driver computes the steps between stores and outputs. If the run has no Spark, the
        # driver must compute them with Arrow.
        for changes in state_types.changes:
            if changes.why_spark:
                raise NeedsSparkError(changes.why_spark)
        streams = frozenset(source.topic for source in job.streams)
        tables = frozenset(table.source.topic for table in job.tables)
        return cls(
            job.pipeline.workers,
            streams,
            tables,
            tasks.read(steps),
            tuple(stages),
            tables_task(job, storage, interleaved=interleaved),
            tasks.write,
            state_types,
        )

    def run(
        self,
        start: BatchStart,
        streams: Iterable[pa.RecordBatch],
        tables: Iterable[pa.RecordBatch],
    ) -> pa.Table:
        """Run all tasks in this process, which writes the shards.

        Return the side outputs, as `StateRows.write` does.
        """
        # Reading tasks belong to no worker, so any number will do.
        reading = RunningTask(start, 0)
        row_batches = [*self.read.run(iter(streams), reading)]
        for stage in self.stages:
            row_batches = self._run_on_workers(stage, row_batches, start)
        if self.write is not None:
            row_batches += self.read_tables.run(iter(tables), reading)
            row_batches = self._run_on_workers(self.write, row_batches, start)
        return pa.Table.from_batches(row_batches, ROW_BATCHES)

    def _run_on_workers(
        self, chain: Chain, row_batches: Iterable[pa.RecordBatch], start: BatchStart
    ) -> list[pa.RecordBatch]:
        """Run tasks on the row batches of each worker, and return the batches that they yield."""
        shuffled = by_worker(row_batches)
        yielded: list[pa.RecordBatch] = []
        for worker in range(self.workers):
            yielded += chain.run(iter(shuffled.get(worker, ())), RunningTask(start, worker))
        return yielded


def by_worker(row_batches: Iterable[pa.RecordBatch]) -> dict[int, list[pa.RecordBatch]]:
    """Group row batches by worker, in place of Spark's shuffle."""
    shuffled: dict[int, list[pa.RecordBatch]] = {}
    for batch in row_batches:
        for row, worker in enumerate(batch.column("worker").to_pylist()):
            shuffled.setdefault(worker, []).append(batch.slice(row, 1))
    return dict(sorted(shuffled.items()))
