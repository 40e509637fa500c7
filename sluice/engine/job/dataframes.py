"""The DataFrames of a job's query: from records to changed state rows and output rows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.pandas.types import from_arrow_type, to_arrow_schema, to_arrow_type
from pyspark.sql.types import LongType, StructField, StructType, TimestampType
from pyspark.sql.types import _parse_datatype_string as parse_ddl

from sluice.engine.batch.accounting import columns_of_records
from sluice.engine.batch.arrow import Chain
from sluice.engine.batch.parcels import PARCEL_DDL, Pack
from sluice.engine.batch.rows import STATE_KEY
from sluice.engine.batch.spark_types import ddl
from sluice.engine.batch.storage import Storage
from sluice.engine.fused.aggregate import column_types, fuse
from sluice.engine.fused.partial_aggregates import Combiner
from sluice.engine.fused.totals import COLUMNS, Totals
from sluice.engine.fused.windowing import Windowing
from sluice.engine.ordered.ingest import Ingest
from sluice.engine.ordered.stage_frames import kinds_in, through, with_layers
from sluice.engine.ordered.stages import Stages
from sluice.engine.publish.shard_writer import share_out
from sluice.engine.read.global_tables import TableReader, ordered_rows
from sluice.engine.read.streams import StreamReader
from sluice.engine.steps import pickling, python_steps
from sluice.engine.steps.arrow_steps import ArrowSteps
from sluice.engine.steps.attempts import share_subexpressions
from sluice.engine.steps.sql_errors import Unresolved, unresolved_error
from sluice.plan import FusedJob, Job, OrderedJob
from sluice.sql.arrow_types import arrow_type


class Input(Protocol):
    """The source of a job's records: Kafka, or a test driver."""

    interleaved: bool
    """Whether one task gets the records of all topics, in the order of the column `sequence`."""

    def partitions(self, topics: Sequence[str]) -> dict[str, int]:
        """Each topic's number of partitions."""

    def read(self, topics: Sequence[str]) -> DataFrame:
        """The topics' records as a streaming DataFrame with the columns of `streams.RECORD`."""


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
    types: dict[str, str] = field(default_factory=dict)
    """Store → the type of its values; set by `state_rows`."""
    input_types: dict[int, str] = field(default_factory=dict)
    """Step of a store or operator → the types of its inputs, which define the meaning of its state; set likewise."""
    totals: Totals | None = None
    """How shards add up the totals of batches; None if Spark's state does so; set by `state_rows`."""

    def state_rows(self) -> DataFrame:
        """The changed state rows with their `worker`, in one partition per worker; of an ordered job, their parcels.

        Raises TopologyError for an expression that Spark cannot resolve.
        """
        pickling.register()
        python_steps.register(self.spark, self.job)
        share_subexpressions(self.spark, shared=not self.job.tries)
        try:
            reader, source = self._source()
            schema = ", ".join(f"`{name}` {kind}" for name, kind in reader.columns.items())
            records = with_layers(source.mapInArrow(reader.__call__, schema), self.job.layers)
            match self.job:
                case FusedJob():
                    state_rows = self._fused(self.job, records, reader, source)
                case OrderedJob():
                    state_rows = self._ordered(self.job, records, reader, source)
        except Unresolved as error:
            raise unresolved_error(self.job, error) from None
        return share_out(self.job, state_rows, self._tables())

    def _source(self) -> tuple[StreamReader, DataFrame]:
        """The streams' records as they are in Kafka, and the task that decodes them."""
        job, storage = self.job, self.storage
        interleaved = self.input.interleaved and isinstance(job, OrderedJob)
        reader = StreamReader.of(job, storage.side_outputs, interleaved=interleaved)
        return reader, self.input.read([source.topic for source in job.streams])

    def _fused(self, job: FusedJob, records: DataFrame, reader: StreamReader, source: DataFrame) -> DataFrame:
        """State rows of the fused operator. Tasks assign records to windows and combine them before the aggregation.

        If the stateless steps can run on Arrow, the task that decodes the records computes them too; Spark then only
        checks them. If not, records go from the decoding task to Spark SQL and back.
        """
        columns = columns_of_records(job)
        for group in job.groups:
            own = [group.passed, group.key, *([group.null] if group.null else []), *group.inputs]
            own += [group.late_key, group.late_value] if group.late is not None else []
            columns |= {name: name for name in own}
        records = select_columns(records, columns)
        self.types = column_types(job, records)
        inputs = sorted({name for group in job.groups for name in group.inputs})
        types = {name: to_arrow_type(records.schema[name].dataType, timezone="UTC") for name in inputs}
        self.input_types = {
            store.step: ", ".join(ddl(records.schema[name].dataType) for name in store.inputs)
            for group in job.groups
            for store in group.store_columns
        }
        windowing = Windowing.of(job, self.storage.side_outputs, self.partitions, types)
        combiner = Combiner.of(job, types)
        steps = ArrowSteps.of(job, _arrow_schema(reader), to_arrow_schema(records.schema, timezone="UTC"))
        tasks = (windowing, combiner) if steps is None else (reader, steps, windowing, combiner)
        frame = records if steps is None else source
        self.totals = Totals.of(job, combiner)
        if self.totals is not None:
            schema = ", ".join(f"{name} {kind}" for name, kind in COLUMNS.items())
            return frame.mapInArrow(Chain((*tasks, self.totals)).__call__, schema)
        return fuse(job, frame.mapInArrow(Chain(tasks).__call__, _windowed_schema(combiner)), combiner)

    def _ordered(self, job: OrderedJob, records: DataFrame, reader: StreamReader, source: DataFrame) -> DataFrame:
        """Parcels of rows for stores and sinks. As in `_fused`, the steps run on Arrow if they can."""
        storage = self.storage
        ingest = Ingest.of(job, storage.side_outputs, self.partitions)
        stages = Stages(job, storage, ingest, self.epoch)
        edges = stages.first_edges(kinds_in(records))
        records = select_columns(with_layers(records, edges), ingest.columns(job))
        steps = ArrowSteps.of(job, _arrow_schema(reader), to_arrow_schema(records.schema, timezone="UTC"), edges)
        pack = Pack(job.pipeline.workers)
        frame, tasks = (records, (ingest, pack)) if steps is None else (source, (reader, steps, ingest, pack))
        parcels = frame.mapInArrow(Chain(tasks).__call__, PARCEL_DDL)
        for number in range(1, job.stages + 1):
            parcels = through(stages, number, parcels)
        self.types, self.input_types = stages.store_types(), stages.input_types()
        return parcels

    def _tables(self) -> DataFrame | None:
        """The changes of global tables as state rows, or their parcels. Every batch reads all available changes."""
        if not self.job.tables:
            return None
        reader = TableReader.of(self.job, self.storage.side_outputs, interleaved=self.input.interleaved)
        source = self.input.read([table.source.topic for table in self.job.tables])
        workers = self.job.pipeline.workers
        if isinstance(self.job, OrderedJob):
            return source.mapInArrow(Chain((reader, ordered_rows, Pack(workers, to_all=True))).__call__, PARCEL_DDL)
        state_rows = source.mapInArrow(reader.__call__, TableReader.columns)
        return state_rows.selectExpr("*", "0L AS time", f"explode(sequence(0, {workers - 1})) AS worker")


def select_columns(frame: DataFrame, columns: Mapping[str, str]) -> DataFrame:
    """The columns with these names, each from its SQL."""
    return frame.selectExpr(*(name if sql == name else f"{sql} AS {name}" for name, sql in columns.items()))


def _arrow_schema(reader: StreamReader) -> pa.Schema:
    return pa.schema([(name, arrow_type(kind)) for name, kind in reader.columns.items()])


def _windowed_schema(combiner: Combiner) -> StructType:
    group_id = parse_ddl(", ".join(f"{name} {kind}" for name, kind in STATE_KEY.items()))
    assert isinstance(group_id, StructType)
    times = [StructField(name, TimestampType()) for name in ("expires_at", "closed_at")]
    times.append(StructField("time", LongType()))
    columns = [StructField(name, from_arrow_type(kind)) for name, kind in combiner.columns.items()]
    return StructType([*group_id, *times, *columns])
