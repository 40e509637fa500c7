"""The tasks of a job's query, in the order in which a batch runs through them.

1. The tasks that read decode the records of streams (`reader`), compute the stateless steps, and
   make rows for the first stage, for stores and for the driver (`ingest`).
2. After a shuffle by worker, the tasks of each stage run its operators (`Stages.task`). They make
   rows of the results for later operators, for stores and for the driver (`ShuffleTargets`,
   `Stages.last_tasks`).
3. After another shuffle, or at the end of the last stage, the tasks write the shards (`write`).
   If the job has global tables, other tasks read the tables' records for the shards
   (`tables_task`).

Between two tasks, the record batches contain packed rows: see `batch.row_batches`. All tasks are
Python functions over Arrow batches. If Arrow cannot compute some steps, Spark SQL computes them
between two tasks (`run.dataframes`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Self

from sluice.engine.batch.arrow_tasks import Chain
from sluice.engine.batch.row_batches import RowBatchReader, RowBatchWriter
from sluice.engine.batch.storage import Storage
from sluice.engine.combine.totals import Totals
from sluice.engine.publish.shard_writer import ShardWriter
from sluice.engine.publish.state_types import StateTypes
from sluice.engine.read.global_tables import TableReader, ordered_rows
from sluice.engine.read.stream_reader import StreamReader
from sluice.engine.stages.ingest import Ingest
from sluice.engine.stages.job_stages import Kinds, KnownTypes, Stages, first_edges
from sluice.engine.stages.shuffle_targets import ShuffleTargets
from sluice.engine.steps.arrow_steps import ArrowSteps
from sluice.plan import Job, Layers


@dataclass(frozen=True)
class QueryTasks:
    """Makes the tasks of a job's query.

    Each stage needs the types that are known after the previous stage.
    """

    job: Job
    storage: Storage
    reader: StreamReader
    ingest: Ingest
    edges: Layers
    """The columns of the edges from the stateless steps, computed from the columns of these
    steps."""
    known: KnownTypes
    """The types that are known before the first stage."""
    stages: Stages
    totals: Totals
    _inputs: Mapping[str, str]
    """Column that a group reads → its type."""

    @classmethod
    def of(
        cls,
        reader: StreamReader,
        storage: Storage,
        partitions: Mapping[str, int],
        epoch: int,
        type_of: Callable[[str], str],
        kinds: Kinds,
    ) -> Self:
        """Make the tasks.

        `type_of` returns the type of a column after the stateless steps. `kinds` returns the types
        of columns that are computed from such columns.
        """
        job = storage.job
        inputs: dict[str, str] = {}
        for group in job.groups:
            for name in group.inputs:
                inputs[name] = type_of(name)
        totals = Totals.of(job, inputs)
        ingest = Ingest.of(job, totals, storage.side_outputs, partitions)
        stages = Stages(job, storage, ingest, epoch, ShardWriter.of(storage, epoch, totals))
        edges, known = first_edges(job, kinds)
        return cls(job, storage, reader, ingest, edges, known, stages, totals, inputs)

    def read(self, steps: ArrowSteps) -> Chain:
        """Return the tasks that turn the streams' records into row batches for the first stage."""
        return Chain((self.reader, steps, *self.pack.tasks))

    @property
    def pack(self) -> Chain:
        """The tasks that turn the columns of the stateless steps into row batches."""
        job = self.job
        writer = RowBatchWriter(job.pipeline.workers, self.storage.side_outputs, copied=job.copied)
        return Chain((self.ingest, writer))

    def stage(self, number: int, known: KnownTypes) -> tuple[Chain, KnownTypes]:
        """Return the tasks of a stage, and the types that are known after it.

        `known` has the types that are known before the stage. Raise NeedsSparkError if Spark must
        compute the steps after the stage.
        """
        task = self.stages.task(number, known)
        targets, known = ShuffleTargets.of(number, known.with_results(number))
        read_rows = RowBatchReader(self.storage.side_outputs)
        return Chain((read_rows, task, targets, *self.stages.last_tasks(number))), known

    @property
    def write(self) -> Chain | None:
        """The tasks that write the shards; None if the tasks of the last stage write them."""
        if self.job.writes_in_last_stage:
            return None
        return Chain((RowBatchReader(self.storage.side_outputs), self.stages.shard_writer))

    def state_types(self, known: KnownTypes) -> StateTypes:
        """Return the types of the job's stores, given the types known after the last stage."""
        return StateTypes.of(known, self.totals, self._inputs)


def tables_task(job: Job, storage: Storage, *, interleaved: bool) -> Chain:
    """Return the task that turns the records of global tables into row batches for the shards."""
    reader = TableReader.of(
        job, storage.side_outputs, interleaved=interleaved, registry=storage.registry
    )
    writer = RowBatchWriter(job.pipeline.workers, storage.side_outputs, to_all=True)
    return Chain((reader, ordered_rows, writer))
