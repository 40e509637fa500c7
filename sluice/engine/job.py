"""One job, run until it has read what there is: the streaming query and the publishing of its batches."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path

import pyarrow as pa
import structlog
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.pandas.types import to_arrow_type
from pyspark.sql.types import StructField, StructType, TimestampType
from pyspark.sql.types import _parse_datatype_string as parse_ddl

from sluice.engine.changes import GlobalTables, change_records
from sluice.engine.fuse import fuse, slot_types
from sluice.engine.handoff import Handoff
from sluice.engine.place import CELL, Placer
from sluice.engine.produce import TransactionalOutput, Writer, ensure_topics, partition_counts
from sluice.engine.shards import RETURNED, WRITTEN, ShardWriter, share_out
from sluice.engine.source import RECORD, StreamReader, TableReader, batch_positions
from sluice.errors import EngineError
from sluice.plan import Job
from sluice.settings import Settings
from sluice.state.ledger import Ledger
from sluice.state.model import NO_WINDOW, Cut, JobInfo, StoreInfo, WorkerInfo
from sluice.state.shard import Shard, location
from sluice.topology import drawing, nodes

log = structlog.get_logger()

_SPARK_OPTIONS = {
    "startingOffsets": "earliest",
    "failOnDataLoss": "true",
    "includeHeaders": "true",
    "kafka.isolation.level": "read_committed",
    "kafka.fetch.max.wait.ms": "10",
    "kafka.max.poll.records": "20000",
    "kafka.max.partition.fetch.bytes": "16777216",
    "kafka.fetch.max.bytes": "67108864",
}


@dataclass
class JobRun:
    """A job of a pipeline on a session, with everything that its batches need."""

    spark: SparkSession
    job: Job
    settings: Settings
    generation: int = 1
    max_records: int = 2_000_000
    """Records of the streams in one batch, at most; a longer backlog takes several."""
    _types: dict[str, str] = field(default_factory=dict, init=False)

    def __post_init__(self) -> None:
        name = f"{self.job.pipeline.name}/{self.job.name}/g{self.generation}"
        self.checkpoint = f"{self.settings.checkpoints}/{name}/spark"
        self.handoff = Handoff(f"{self.settings.checkpoints}/{name}/handoff")
        self.locations = tuple(
            location(self.settings.shards, self.job.pipeline.name, self.job.name, self.generation, worker)
            for worker in range(self.job.pipeline.workers)
        )

    def run(self) -> int:
        """Read, compute and publish what there is to read; returns the number of records read."""
        pipeline = self.job.pipeline
        partitions = partition_counts(self.settings.kafka, self.job.topics)
        writer = Writer(pipeline.name, self.job.name, self.generation)
        widest = max(partitions[source.topic] for source in self.job.streams) if self.job.streams else 1
        wanted = dict.fromkeys(self.job.outputs, widest) | {pipeline.dead_letters: 1, writer.markers: 1}
        ensure_topics(self.settings.kafka, wanted, frozenset({writer.markers}))
        if pipeline.file is not None:
            self.spark.sparkContext.addPyFile(str(pipeline.file))
        placed = self._placed(partitions) if self.job.streams else None
        cells = self._cells(placed)
        for place in self.locations:
            Shard.create(place).close()
        with Ledger.open(self.settings.ledger) as ledger, TransactionalOutput(self.settings.kafka, writer) as output:
            ledger.register(self._info())
            publisher = self._publisher(ledger, output)
            self._stream(cells, publisher)
        return publisher.read

    def _placed(self, partitions: Mapping[str, int]) -> DataFrame:
        """The streams' records as cells in time, not yet aggregated."""
        reader = StreamReader.of(self.job, self.handoff, self.checkpoint)
        schema = ", ".join(f"`{name}` {kind}" for name, kind in reader.columns.items())
        topics = [source.topic for source in self.job.streams]
        frame = self._source(topics, {"maxOffsetsPerTrigger": str(self.max_records)}).mapInArrow(reader.__call__, schema)
        for layer in self.job.layers:
            frame = frame.selectExpr("*", *(f"{sql} AS `{name}`" for name, sql in layer))
        inputs = [frame.schema[name] for name in sorted({name for f in self.job.families for name in f.inputs})]
        placer = Placer.of(self.job, self.handoff, partitions, {i.name: to_arrow_type(i.dataType) for i in inputs})
        return self._needed(frame).mapInArrow(placer.__call__, _placed_schema(inputs))

    def _needed(self, frame: DataFrame) -> DataFrame:
        """Only what placing reads: everything else need not be carried to Python."""
        columns = ["_source", "_partition", "_time"]
        for family in self.job.families:
            columns += [family.passed, family.key, *family.inputs]
        for sink in self.job.stream_sinks:
            columns += [f"o{sink.number}_key", f"o{sink.number}_value"]
        return frame.select(*dict.fromkeys(columns))

    def _cells(self, placed: DataFrame | None) -> DataFrame:
        """Every changed cell of a batch, each worker's in a partition of its own."""
        tables = None
        if self.job.tables:
            reader = TableReader.of(self.job, self.handoff, self.checkpoint)
            source = self._source([table.source.topic for table in self.job.tables], {})
            tables = source.mapInArrow(reader.__call__, TableReader.columns)
        if placed is None or not self.job.families:
            raise EngineError(f"{self.job.pipeline.name}: a pipeline without a store is not supported yet.")
        self._types = slot_types(self.job, placed)
        return share_out(self.job, fuse(self.job, placed), tables)

    def _source(self, topics: list[str], options: dict[str, str]) -> DataFrame:
        kafka = {f"kafka.{name}": value for name, value in self.settings.kafka.items()}
        reader = self.spark.readStream.format("kafka").options(**kafka, **_SPARK_OPTIONS, **options)
        return reader.option("subscribe", ",".join(topics)).load().selectExpr(*RECORD)

    def _info(self) -> JobInfo:
        pipeline, name = self.job.pipeline, self.job.name
        workers = tuple(
            WorkerInfo(pipeline=pipeline.name, job=name, number=number, location=place)
            for number, place in enumerate(self.locations)
        )
        return JobInfo(
            pipeline=pipeline.name, job=name, generation=self.generation, workers=workers,
            stores=tuple(_stores(self.job, self._types)), topics=self.job.topics,
            description=drawing.text(pipeline), drawing=drawing.svg(pipeline),
        )  # fmt: skip

    def _publisher(self, ledger: Ledger, output: TransactionalOutput) -> Publisher:
        last = ledger.last_batch(self.job.pipeline.name, self.job.name, self.generation)
        tables = GlobalTables.load(self.job, self.locations[0], -1 if last is None else last)
        return Publisher(self, ledger, output, tables)

    def _stream(self, cells: DataFrame, publisher: Publisher) -> None:
        query = (
            cells.writeStream.foreachBatch(publisher)
            .outputMode("update")
            .option("checkpointLocation", self.checkpoint)
            .trigger(availableNow=True)
            .queryName(f"{self.job.pipeline.name}.{self.job.name}")
            .start()
        )
        query.awaitTermination()

    @property
    def types(self) -> dict[str, str]:
        """Store → the type of its value, as Spark SQL DDL."""
        return self._types


@dataclass
class Publisher:
    """Publishes one batch after the other: shards, then output, then the ledger, which makes it visible."""

    run: JobRun
    ledger: Ledger
    output: TransactionalOutput
    tables: GlobalTables
    read: int = 0

    def __call__(self, cells: DataFrame, batch: int) -> None:
        """What Spark calls for each batch. Every step may be done again with the same result."""
        job, handoff = self.run.job, self.run.handoff
        handoff.start(batch)
        writer = ShardWriter.of(job, self.run.locations)
        returned = cells.select("worker", *CELL, "value", "position").mapInArrow(writer.__call__, RETURNED).toArrow()
        facts = handoff.facts(batch)
        times = handoff.times(batch - 1) | facts.stream_times
        handoff.write_times(batch, times)
        counts = facts.counts | {"rows": _rows_written(returned)}
        if not facts.counts and not counts["rows"]:
            return  # Spark adds a batch without data to let go of closed windows; there is nothing to publish.
        counts |= {f"output/{topic}": n for topic, n in self._write_output(batch, returned).items()}
        cut = self._cut(batch, times, counts)
        new = self.ledger.publish(cut)
        self.read += counts.get("read", 0)
        log.info("batch published" if new else "batch was published already", cut=cut.id, **counts)

    def _write_output(self, batch: int, returned: pa.Table) -> dict[str, int]:
        job, handoff = self.run.job, self.run.handoff
        self.tables.apply(returned)
        topics = [*(sink.topic for sink in job.stream_sinks), job.pipeline.dead_letters]
        records = [(topic, table) for topic in topics for table in handoff.records(batch, topic)]
        records += change_records(self.run.spark, job, returned, self.tables, self.run.types)
        return self.output.send(batch, records)

    def _cut(self, batch: int, times: dict[str, int], counts: dict[str, int]) -> Cut:
        return Cut(
            pipeline=self.run.job.pipeline.name, job=self.run.job.name, generation=self.run.generation, batch=batch,
            published_at=datetime.now(UTC), positions=batch_positions(self.run.checkpoint, batch), stream_times=times,
            counts=counts,
        )  # fmt: skip


def _rows_written(returned: pa.Table) -> int:
    mine = returned.filter(pa.compute.equal(returned.column("cell"), WRITTEN))
    return pa.compute.sum(mine.column("window_start")).as_py() or 0


def _placed_schema(inputs: list[StructField]) -> StructType:
    cell = parse_ddl(", ".join(f"{name} {kind}" for name, kind in CELL.items()))
    assert isinstance(cell, StructType)
    return StructType([*cell, StructField("expires_at", TimestampType()), StructField("closed_at", TimestampType()), *inputs])


def _stores(job: Job, types: Mapping[str, str]) -> list[StoreInfo]:
    common = {"pipeline": job.pipeline.name, "job": job.name}
    stores = [
        StoreInfo(
            **common, name=slot.store, kind="window" if family.window else "key-value", cell=family.number, slot=i,
            key=family.at.key, window_ms=family.window.size_ms if family.window else None,
            grace_ms=family.window.grace_ms if family.window else None, value=types[slot.store],
        )
        for family in job.families
        for i, slot in enumerate(family.slots)
    ]  # fmt: skip
    for table in job.tables:
        stores.append(
            StoreInfo(
                **common, name=table.source.topic, kind="global", cell=table.family, slot=0,
                key=table.source.key or "_key", value=_struct_type(table.source),
            )  # fmt: skip
        )
    return stores


def _struct_type(source: nodes.Source) -> str:
    return f"struct<{','.join(f'{name}:{kind.lower()}' for name, kind in source.fields.items())}>"
