"""A job as Spark sees it: from records to the cells of stores, and the rows of output, that a batch changes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.pandas.types import from_arrow_type, to_arrow_type
from pyspark.sql.types import StructField, StructType, TimestampType
from pyspark.sql.types import _parse_datatype_string as parse_ddl

from sluice.engine.attempts import WITHOUT_SHARING
from sluice.engine.combine import Combined, Combiner
from sluice.engine.feeder import Feeder
from sluice.engine.functions import register
from sluice.engine.fuse import fuse, slot_types
from sluice.engine.located import Unresolved, told
from sluice.engine.place import CELL, Placer
from sluice.engine.rows import ROW_DDL
from sluice.engine.shards import share_out
from sluice.engine.source import StreamReader
from sluice.engine.stages import Stages, with_layers
from sluice.engine.storage import Storage
from sluice.engine.tables import TableReader
from sluice.plan import Job


class Input(Protocol):
    """Where a job's records come from: Kafka, or a test's own hands."""

    interleaved: bool
    """All topics' records come in one task, in an order of their own (column `sequence`)."""

    def partitions(self, topics: Sequence[str]) -> dict[str, int]:
        """How many partitions each topic has."""

    def read(self, topics: Sequence[str], max_records: int | None) -> DataFrame:
        """The topics' records as a streaming frame with the columns of `source.RECORD`."""


@dataclass
class Frames:
    """Builds the frames of one job on a session."""

    spark: SparkSession
    job: Job
    storage: Storage
    input: Input
    max_records: int
    partitions: Mapping[str, int]
    epoch: int = 0
    """Of the lease under which operators' states are written."""
    types: dict[str, str] = field(default_factory=dict)
    """Store → the type of its values; known once the cells' frame is made."""
    kept: dict[int, str] = field(default_factory=dict)
    """Family or operator → the types of its inputs, from which its state is built; known at the same time."""

    def shared_out(self) -> DataFrame:
        """The changed cells with their `worker`, each worker's in a partition of its own.

        Raises TopologyError for an expression that Spark cannot take.
        """
        register(self.spark, self.job)
        if self.job.tries:
            for name, value in WITHOUT_SHARING.items():
                self.spark.conf.set(name, value)
        try:
            records = self._records()
            cells = self._fused(records) if self.job.families else self._ordered(records)
        except Unresolved as error:
            raise told(self.job, error) from None
        return share_out(self.job, cells, self._tables())

    def _records(self) -> DataFrame:
        """The streams' records, decoded and through every stateless step: only what is read of them from here on."""
        job, storage = self.job, self.storage
        interleaved = self.input.interleaved and not job.families
        reader = StreamReader.of(job, storage.handoff, storage.batches, interleaved=interleaved)
        schema = ", ".join(f"`{name}` {kind}" for name, kind in reader.columns.items())
        frame = self.input.read([source.topic for source in job.streams], self.max_records)
        return with_layers(frame.mapInArrow(reader.__call__, schema), job.layers, job)

    def _kept(self) -> list[str]:
        """What every task after the stateless steps reads of a record."""
        columns = ["_source", "_partition", "_time"]
        if "_offset" in self.job.metadata:
            columns.append("_offset")
        for sink in self.job.stream_sinks:
            columns += [f"o{sink.number}", f"o{sink.number}_key", f"o{sink.number}_value"]
        failures = [failure for failure in self.job.failures if not failure.stage]
        columns += [f"IF({failure.once}, {failure.error}, NULL) AS {failure.column}" for failure in failures]
        if failures:
            columns += ["_topic", "_timestamp", "_raw_key", "_raw_value", "_raw_headers"]
        return columns

    def _fused(self, records: DataFrame) -> DataFrame:
        """Cells of the fused operator: records placed in time, added up in their task, then by the operator."""
        columns = self._kept()
        for family in self.job.families:
            columns += [family.passed, family.key, *([family.null] if family.null else []), *family.inputs]
            columns += [f"late{family.number}_{name}" for name in ("key", "value") if family.at.late is not None]
        records = records.selectExpr(*dict.fromkeys(columns))
        self.types = slot_types(self.job, records)
        inputs = sorted({name for family in self.job.families for name in family.inputs})
        types = {name: to_arrow_type(records.schema[name].dataType, timezone="UTC") for name in inputs}
        self.kept = {
            family.number: ", ".join(records.schema[name].dataType.simpleString() for name in family.inputs)
            for family in self.job.families
        }
        placer = Placer.of(self.job, self.storage.handoff, self.storage.batches, self.partitions, types)
        combiner = Combiner.of(self.job, types)
        placed = records.mapInArrow(Combined(placer, combiner).__call__, _placed_schema(combiner))
        return fuse(self.job, placed, combiner)

    def _ordered(self, records: DataFrame) -> DataFrame:
        """Cells and output rows of the ordered operators, stage after stage."""
        job, storage = self.job, self.storage
        feeder = Feeder.of(job, storage.handoff, storage.batches, self.partitions, interleaved=self.input.interleaved)
        stages = Stages(job, storage, feeder, self.epoch)
        fed = stages.fed(records)
        columns = self._kept()
        for operator in job.operators:
            for feed in (feed for feed in operator.feeds if feed.stage == 0):
                columns += [feed.name, f"{feed.name}_key", f"{feed.name}_value"]
                columns += [f"{feed.name}_foreign"] if feed.foreign is not None else []
        if feeder.interleaved:
            columns.append("_sequence")
        if job.operators:
            columns.append("_offset")
        fed = fed.selectExpr(*dict.fromkeys(columns))
        rows = stages.rows(fed.mapInArrow(feeder.__call__, ROW_DDL))
        self.types, self.kept = stages.store_types(), stages.kept_types()
        stores = [operator.number for operator in job.operators if operator.store is not None]
        is_store = f"target IN ({', '.join(map(str, stores))})" if stores else "false"
        value = f"IF({is_store}, concat('[', value, ']'), value) AS value"
        order = ("sequence", "place", "sub", "time")
        return rows.selectExpr("target AS cell", "key", "window_start", "window_end", value, *order)

    def _tables(self) -> DataFrame | None:
        """The global tables' changes as cells. Without a limit: a batch has all of them that there are."""
        if not self.job.tables:
            return None
        reader = TableReader.of(self.job, self.storage.handoff, self.storage.batches)
        source = self.input.read([table.source.topic for table in self.job.tables], None)
        cells = source.mapInArrow(reader.__call__, TableReader.columns)
        if self.job.families:
            return cells
        rest = ("0L AS sequence", "position AS place", "0L AS sub", "0L AS time")
        return cells.selectExpr(*CELL, "value", *rest)


def _placed_schema(combiner: Combiner) -> StructType:
    cell = parse_ddl(", ".join(f"{name} {kind}" for name, kind in CELL.items()))
    assert isinstance(cell, StructType)
    times = [StructField("expires_at", TimestampType()), StructField("closed_at", TimestampType())]
    columns = [StructField(name, from_arrow_type(kind)) for name, kind in combiner.columns.items()]
    return StructType([*cell, *times, *columns])
