"""The DataFrames of a job's query: from records to changed state rows and output rows."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Protocol

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

from sluice.engine.batch.arrow_tasks import BatchTask, Chain
from sluice.engine.batch.row_batches import RowBatchReader, RowBatchWriter
from sluice.engine.batch.spark_types import ROW_BATCH_TYPE, ddl
from sluice.engine.batch.storage import Storage
from sluice.engine.combine.totals import Totals
from sluice.engine.publish.shard_writer import ShardWriter
from sluice.engine.publish.state_types import StateTypes
from sluice.engine.read.stream_reader import StreamReader
from sluice.engine.run.arrow_query import ArrowQuery, tables_task
from sluice.engine.stages.ingest import Ingest
from sluice.engine.stages.job_stages import Stages
from sluice.engine.stages.stage_frames import after_stage, kinds_in, with_layers
from sluice.engine.steps import pickling, python_steps
from sluice.engine.steps.arrow_steps import ArrowSteps
from sluice.engine.steps.fallible_expressions import share_subexpressions
from sluice.engine.steps.sql_errors import Unresolved, unresolved_error
from sluice.plan import Job, Source
from sluice.plan.arrow_support import NeedsSparkError
from sluice.spark_releases import arrow_schema, by_worker


class Input(Protocol):
    """The source of a job's records: Kafka, or a test driver."""

    interleaved: bool
    """Whether one task gets the records of all topics, in the order of the column `sequence`."""

    def read(
        self, partitions: Mapping[str, int], task: BatchTask, columns: StructType | str
    ) -> DataFrame:
        """The rows that a task makes of the records of topics.

        `partitions`: topic → its number of partitions. The task takes record batches with the
        columns of `kafka_records.RECORDS`. `columns` are the rows' names and types.
        """


@dataclass
class Frames:
    """Builds the DataFrames of a job on a Spark session."""

    spark: SparkSession
    job: Job
    storage: Storage
    input: Input
    partitions: Mapping[str, int]
    epoch: int = 0
    """Epoch of the lease under which operators' states are written."""
    checked: bool = False
    """Whether Spark analyzes all steps, including steps that it need not compute."""
    computes_sql: bool = field(default=False, init=False)
    """Whether Spark computes expressions of each record; set by `written`."""
    types: StateTypes = field(init=False)
    """The types of the job's stores and of their inputs; set by `written`."""

    def written(self) -> DataFrame:
        """The side outputs of the tasks that write the shards, in the form of row batches.

        Raises TopologyError for an expression that Spark cannot resolve.
        """
        pickling.register()
        try:
            row_batches = self._through_sql() if self.checked else self._through_tasks()
        except NeedsSparkError:
            row_batches = self._through_sql()
            self.computes_sql = True
        if self.job.writes_in_last_stage:
            return row_batches
        tables = self._tables()
        owned = row_batches if tables is None else row_batches.unionByName(tables)
        # One partition per worker: the task that writes a shard must get all of the worker's rows.
        shuffled = by_worker(owned, self.job.pipeline.workers)
        writer = ShardWriter.of(self.storage, self.epoch, self.types.totals)
        return shuffled.mapInArrow(
            Chain((RowBatchReader(self.storage.side_outputs), writer)).__call__, ROW_BATCH_TYPE
        )

    def _through_tasks(self) -> DataFrame:
        """Row batches after the last stage, which Python tasks compute alone.

        Raises NeedsSparkError if Spark must compute a step.
        """
        interleaved = self.input.interleaved
        query = ArrowQuery.of(
            self.job,
            self.storage,
            self.partitions,
            self.epoch,
            interleaved=interleaved,
        )
        self.types = query.types
        row_batches = self._read(query.read, ROW_BATCH_TYPE)
        for stage in query.stages:
            shuffled = by_worker(row_batches, query.workers)
            row_batches = shuffled.mapInArrow(stage.__call__, ROW_BATCH_TYPE)
        return row_batches

    def _through_sql(self) -> DataFrame:
        """Row batches after the last stage, which Python tasks and Spark SQL compute in turns."""
        python_steps.register(self.spark, self.job)
        # If subexpressions were shared, Spark would compute them outside of `TryEval`, where a
        # failure ends the query.
        share_subexpressions(self.spark, shared=not self.job.has_fallible_expressions)
        try:
            reader = StreamReader.of(
                self.job,
                self.storage.side_outputs,
                interleaved=self.input.interleaved,
            )
            schema = ", ".join(f"`{name}` {kind}" for name, kind in reader.columns.items())
            # Spark SQL passes on rows only, so the side outputs go around it in a file.
            decoding = Chain((reader, self.storage.side_outputs.leave))
            records = with_layers(self._read(decoding, schema), self.job.layers)
            return self._row_batches(records, reader)
        except Unresolved as error:
            raise unresolved_error(self.job, error) from None

    def _read(self, task: BatchTask, columns: StructType | str) -> DataFrame:
        """The rows that a task makes of the streams' records."""
        return self.input.read(self._partitions_of(self.job.streams), task, columns)

    def _row_batches(self, records: DataFrame, reader: StreamReader) -> DataFrame:
        """The rows for stores, groups and sinks, as row batches.

        If Arrow can compute the stateless steps, the task that decodes the records also computes
        the steps, and Spark only checks the expressions. If not, records go from the decoding task
        to Spark SQL and back.
        """
        job, storage = self.job, self.storage
        inputs: dict[str, str] = {}
        for group in job.groups:
            inputs |= {name: ddl(records.schema[name].dataType) for name in group.inputs}
        totals = Totals.of(job, inputs)
        ingest = Ingest.of(job, totals, storage.side_outputs, self.partitions)
        stages = Stages(
            job, storage, ingest, self.epoch, ShardWriter.of(storage, self.epoch, totals)
        )
        edges = stages.first_edges(kinds_in(records))
        records = select_columns(with_layers(records, edges), ingest.columns(job))
        by_spark = arrow_schema(records.schema)
        steps = ArrowSteps.of(job, reader.schema, ingest.columns(job), edges, by_spark)
        pack = RowBatchWriter(job.pipeline.workers, storage.side_outputs, copied=job.copied)
        if steps is None:
            row_batches = records.mapInArrow(Chain((ingest, pack)).__call__, ROW_BATCH_TYPE)
        else:
            decode_and_compute = Chain((reader, steps, ingest, pack))
            row_batches = self._read(decode_and_compute, ROW_BATCH_TYPE)
        for number in range(1, job.stage_count + 1):
            row_batches = after_stage(stages, number, row_batches)
        self.types = StateTypes.of(stages, totals, inputs)
        return row_batches

    def _tables(self) -> DataFrame | None:
        """The changes of global tables, as row batches. Every batch reads all available changes."""
        if not self.job.tables:
            return None
        partitions = self._partitions_of(table.source for table in self.job.tables)
        task = tables_task(self.job, self.storage, interleaved=self.input.interleaved)
        return self.input.read(partitions, task, ROW_BATCH_TYPE)

    def _partitions_of(self, sources: Iterable[Source]) -> dict[str, int]:
        return {source.topic: self.partitions[source.topic] for source in sources}


def select_columns(frame: DataFrame, columns: Mapping[str, str]) -> DataFrame:
    """The frame with only these columns: name → SQL."""
    expressions = [name if sql == name else f"{sql} AS {name}" for name, sql in columns.items()]
    return frame.selectExpr(*expressions)
