"""The DataFrames of a job's query: from records to changed state rows and output rows."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

from sluice.engine.batch.arrow_tasks import Chain
from sluice.engine.batch.spark_types import ROW_BATCH_TYPE, ddl
from sluice.engine.batch.storage import Storage
from sluice.engine.publish.state_types import StateTypes
from sluice.engine.read.stream_reader import StreamReader
from sluice.engine.run.arrow_query import ArrowQuery
from sluice.engine.run.query_tasks import QueryTasks, tables_task
from sluice.engine.stages.stage_frames import kinds_in, stage_with_sql, with_layers
from sluice.engine.steps import pickling, python_steps
from sluice.engine.steps.arrow_steps import ArrowSteps
from sluice.engine.steps.fallible_expressions import share_subexpressions
from sluice.engine.steps.sql_errors import Unresolved, unresolved_error
from sluice.plan import Job, Source
from sluice.plan.arrow_support import NeedsSparkError
from sluice.spark_releases import arrow_schema, by_worker


class RecordSource(Protocol):
    """The source of a job's records: Kafka, or a test driver."""

    interleaved: bool
    """Whether one task gets the records of all topics, in the order of the column `sequence`."""

    def read(
        self, partitions: Mapping[str, int], task: Chain, columns: StructType | str
    ) -> DataFrame:
        """Read topics, and return the rows into which `task` turns their records.

        `partitions`: topic → its number of partitions. The task takes record batches with the
        columns of `kafka_records.RECORDS`. `columns` are the rows' names and types.
        """


@dataclass(frozen=True)
class WrittenFrame:
    """The DataFrame of a job's query, and facts that are known once it has been built."""

    frame: DataFrame
    """The side outputs of the tasks that write the shards, as row batches."""
    types: StateTypes
    """The types of the job's stores and of their inputs."""
    computes_sql: bool
    """Whether Spark computes expressions of each record, because Arrow cannot."""


class _Rows(NamedTuple):
    """The row batches after the last stage."""

    row_batches: DataFrame
    types: StateTypes
    write: Chain | None
    """The tasks that write the shards; None if the tasks of the last stage write them."""


@dataclass(frozen=True)
class Frames:
    """Builds the DataFrames of a job on a Spark session."""

    spark: SparkSession
    job: Job
    storage: Storage
    input: RecordSource
    partitions: Mapping[str, int]
    epoch: int = 0
    """Epoch of the lease under which operators' states are written."""
    checked: bool = False
    """Whether Spark analyzes all steps, including steps that it need not compute."""

    def build(self) -> WrittenFrame:
        """Build the DataFrame whose tasks write the shards.

        Raise TopologyError for an expression that Spark cannot resolve.
        """
        pickling.register()
        computes_sql = False
        try:
            rows = self._through_sql() if self.checked else self._through_tasks()
        except NeedsSparkError:
            rows = self._through_sql()
            computes_sql = True
        return WrittenFrame(self._write_shards(rows), rows.types, computes_sql)

    def _write_shards(self, rows: _Rows) -> DataFrame:
        if rows.write is None:
            return rows.row_batches
        owned = rows.row_batches
        tables = self._tables()
        if tables is not None:
            owned = owned.unionByName(tables)
        # One partition per worker: the task that writes a shard must get all of the worker's rows.
        shuffled = by_worker(owned, self.job.pipeline.workers)
        return shuffled.mapInArrow(rows.write.__call__, ROW_BATCH_TYPE)

    def _through_tasks(self) -> _Rows:
        """Build the row batches after the last stage, which Python tasks compute alone.

        Raise NeedsSparkError if Spark must compute a step.
        """
        interleaved = self.input.interleaved
        query = ArrowQuery.of(
            self.job,
            self.storage,
            self.partitions,
            self.epoch,
            interleaved=interleaved,
        )
        row_batches = self._read(query.read, ROW_BATCH_TYPE)
        for stage in query.stages:
            shuffled = by_worker(row_batches, query.workers)
            row_batches = shuffled.mapInArrow(stage.__call__, ROW_BATCH_TYPE)
        return _Rows(row_batches, query.types, query.write)

    def _through_sql(self) -> _Rows:
        """Build the row batches after the last stage, alternating Python tasks and Spark SQL."""
        python_steps.register(self.spark, self.job)
        # If subexpressions were shared, Spark would compute them outside of `TryEval`, where a
        # failure ends the query.
        share_subexpressions(self.spark, shared=not self.job.has_fallible_expressions)
        try:
            reader = StreamReader.of(
                self.job,
                self.storage.side_outputs,
                interleaved=self.input.interleaved,
                registry=self.storage.registry,
            )
            schema = ", ".join(f"`{name}` {kind}" for name, kind in reader.columns.items())
            # Spark SQL passes on rows only, so a file takes the side outputs past Spark SQL.
            decoding = Chain((reader, self.storage.side_outputs.leave))
            records = with_layers(self._read(decoding, schema), self.job.layers)
            return self._row_batches(records, reader)
        except Unresolved as error:
            raise unresolved_error(self.job, error) from None

    def _read(self, task: Chain, columns: StructType | str) -> DataFrame:
        """Return the rows into which `task` turns the streams' records."""
        return self.input.read(self._partitions_of(self.job.streams), task, columns)

    def _row_batches(self, records: DataFrame, reader: StreamReader) -> _Rows:
        """Build the rows for stores, groups and sinks, as row batches.

        If Arrow can compute the stateless steps, the task that decodes the records also computes
        the steps, and Spark only checks the expressions. If not, records go from the decoding task
        to Spark SQL and back.
        """
        job = self.job
        kinds = kinds_in(records)

        def type_of(column: str) -> str:
            return ddl(records.schema[column].dataType)

        tasks = QueryTasks.of(reader, self.storage, self.partitions, self.epoch, type_of, kinds)
        columns = tasks.ingest.columns(job)
        records = select_columns(with_layers(records, tasks.edges), columns)
        by_spark = arrow_schema(records.schema)
        steps = ArrowSteps.of(job, reader.schema, columns, tasks.edges, by_spark)
        if steps is None:
            row_batches = records.mapInArrow(tasks.pack.__call__, ROW_BATCH_TYPE)
        else:
            row_batches = self._read(tasks.read(steps), ROW_BATCH_TYPE)
        known = tasks.known
        for number in range(1, job.stage_count + 1):
            shuffled = by_worker(row_batches, job.pipeline.workers)
            try:
                stage, after = tasks.stage(number, known)
                row_batches = shuffled.mapInArrow(stage.__call__, ROW_BATCH_TYPE)
            except NeedsSparkError:
                row_batches, after = stage_with_sql(tasks.stages, number, known, shuffled)
            known = after
        return _Rows(row_batches, tasks.state_types(known), tasks.write)

    def _tables(self) -> DataFrame | None:
        """Build the changes of global tables, as row batches.

        Every batch reads all available changes.
        """
        if not self.job.tables:
            return None
        partitions = self._partitions_of(table.source for table in self.job.tables)
        task = tables_task(self.job, self.storage, interleaved=self.input.interleaved)
        return self.input.read(partitions, task, ROW_BATCH_TYPE)

    def _partitions_of(self, sources: Iterable[Source]) -> dict[str, int]:
        return {source.topic: self.partitions[source.topic] for source in sources}


def select_columns(frame: DataFrame, columns: Mapping[str, str]) -> DataFrame:
    """Reduce a frame to these columns: name → SQL."""
    expressions: list[str] = []
    for name, sql in columns.items():
        expressions.append(name if sql == name else f"{sql} AS {name}")
    return frame.selectExpr(*expressions)
