"""A job's query as functions over Arrow batches, which run in Spark's tasks or, for a test, in this process."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Self

import pyarrow as pa

from sluice.engine.batch.arrow_tasks import Chain
from sluice.engine.batch.batch_start import worker_context
from sluice.engine.batch.row_batches import ROW_BATCHES, RowBatchReader, RowBatchWriter
from sluice.engine.batch.storage import Storage
from sluice.engine.combine.totals import Totals
from sluice.engine.publish.shard_writer import ShardWriter
from sluice.engine.publish.state_types import StateTypes
from sluice.engine.read.global_tables import TableReader, ordered_rows
from sluice.engine.read.stream_reader import StreamReader
from sluice.engine.stages.ingest import Ingest
from sluice.engine.stages.job_stages import Stages, kinds_by_name
from sluice.engine.stages.shuffle_targets import ShuffleTargets
from sluice.engine.steps.arrow_steps import ArrowSteps
from sluice.plan import Job
from sluice.plan.arrow_support import NeedsSparkError, types_of, types_read, why_spark
from sluice.values.sql_types import compact


@dataclass(frozen=True)
class ArrowQuery:
    """The tasks of a job, which take and yield Arrow record batches.

    Between two tasks, the record batches contain packed rows: see `batch.row_batches`.
    """

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
    """The tasks that write the shards after a shuffle of their own; None if the last stage's tasks write the shards."""
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
        """The query of a job. Raises NeedsSparkError if Spark must compute a part of it."""
        if reason := why_spark(job):
            raise NeedsSparkError(reason)
        side_outputs = storage.side_outputs
        reader = StreamReader.of(job, side_outputs, interleaved=interleaved)
        types = types_of(job.layers, types_read(job))
        inputs: dict[str, str] = {}
        for group in job.groups:
            inputs |= {name: compact(types[name]) for name in group.inputs}
        totals = Totals.of(job, inputs)
        ingest = Ingest.of(job, totals, side_outputs, partitions)
        shard_writer = ShardWriter.of(storage, epoch, totals)
        stages = Stages(job, storage, ingest, epoch, shard_writer)
        edges = stages.first_edges(kinds_by_name(types))
        steps = ArrowSteps.giving(job, reader.schema, ingest.columns(job), edges)
        workers = job.pipeline.workers
        tasks = []
        for number in range(1, job.stage_count + 1):
            # `task` is called first: it records the types of the results, on which the targets
            # depend.
            stage = stages.task(number)
            targets = ShuffleTargets.of(stages, number)
            last = stages.last_tasks(number)
            tasks.append(Chain((RowBatchReader(side_outputs), stage, targets, *last)))
        state_types = StateTypes.of(stages, totals, inputs)
        # The driver computes the steps between stores and outputs. Without Spark, it must compute
        # them with Arrow.
        for changes in state_types.changes:
            if changes.why_spark:
                raise NeedsSparkError(changes.why_spark)
        return cls(
            workers,
            frozenset(source.topic for source in job.streams),
            frozenset(table.source.topic for table in job.tables),
            Chain(
                (reader, steps, ingest, RowBatchWriter(workers, side_outputs, copied=job.copied))
            ),
            tuple(tasks),
            tables_task(job, storage, interleaved=interleaved),
            None
            if job.writes_in_last_stage
            else Chain((RowBatchReader(side_outputs), shard_writer)),
            state_types,
        )

    def run(self, streams: Iterable[pa.RecordBatch], tables: Iterable[pa.RecordBatch]) -> pa.Table:
        """Run all tasks in this process, and so write the shards. Returns the side outputs, as `StateRows.write`."""
        row_batches = [*self.read(iter(streams))]
        for stage in self.stages:
            row_batches = self._on_workers(stage, row_batches)
        if self.write is not None:
            row_batches = self._on_workers(
                self.write, [*row_batches, *self.read_tables(iter(tables))]
            )
        return pa.Table.from_batches(row_batches, ROW_BATCHES)

    def _on_workers(
        self, task: Chain, row_batches: Iterable[pa.RecordBatch]
    ) -> list[pa.RecordBatch]:
        """What a task yields for the row batches of each worker."""
        shuffled = by_worker(row_batches)
        yielded: list[pa.RecordBatch] = []
        for worker in range(self.workers):
            with worker_context(worker):
                yielded += task(iter(shuffled.get(worker, ())))
        return yielded


def tables_task(job: Job, storage: Storage, *, interleaved: bool) -> Chain:
    """The task that turns the records of global tables into row batches for the shards."""
    reader = TableReader.of(job, storage.side_outputs, interleaved=interleaved)
    return Chain(
        (
            reader,
            ordered_rows,
            RowBatchWriter(job.pipeline.workers, storage.side_outputs, to_all=True),
        )
    )


def by_worker(row_batches: Iterable[pa.RecordBatch]) -> dict[int, list[pa.RecordBatch]]:
    """Group row batches by worker, in place of Spark's shuffle."""
    shuffled: dict[int, list[pa.RecordBatch]] = {}
    for batch in row_batches:
        for row, worker in enumerate(batch.column("worker").to_pylist()):
            shuffled.setdefault(worker, []).append(batch.slice(row, 1))
    return dict(sorted(shuffled.items()))
