"""One job, run until it has read what there is."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.pandas.types import from_arrow_type, to_arrow_type
from pyspark.sql.types import StructField, StructType, TimestampType
from pyspark.sql.types import _parse_datatype_string as parse_ddl

from sluice.engine.changes import GlobalTables
from sluice.engine.combine import Combined, Combiner
from sluice.engine.fuse import fuse, slot_types
from sluice.engine.place import CELL, Placer
from sluice.engine.produce import TransactionalOutput, Writer, ensure_topics, partition_counts
from sluice.engine.publish import Publisher
from sluice.engine.registration import job_info
from sluice.engine.shards import share_out
from sluice.engine.source import RECORD, StreamReader, TableReader
from sluice.engine.storage import Storage
from sluice.errors import EngineError
from sluice.plan import Job
from sluice.settings import Settings
from sluice.state.ledger import Ledger
from sluice.state.places import Places

_KAFKA_OPTIONS = {
    "startingOffsets": "earliest",
    "failOnDataLoss": "true",
    "includeHeaders": "true",
    "kafka.isolation.level": "read_committed",
    # At the end of the log a longer wait would hold up every batch.
    "kafka.fetch.max.wait.ms": "10",
    "kafka.max.poll.records": "20000",
    "kafka.max.partition.fetch.bytes": "16777216",
    "kafka.fetch.max.bytes": "67108864",
}


@dataclass
class JobRun:
    """A job on a session. A batch has at most `max_records` records of the streams; a longer backlog takes several."""

    spark: SparkSession
    job: Job
    settings: Settings
    generation: int = 1
    max_records: int = 2_000_000

    def __post_init__(self) -> None:
        self.storage = Storage.of(self.job, self.generation, self.settings)

    def run(self) -> int:
        """Read, compute and publish what there is to read; returns the number of records read."""
        if not self.job.families:
            raise EngineError(f"{self.job.pipeline.name} has no store.", next_step="Aggregate a stream into one.")
        partitions = partition_counts(self.settings.kafka, self.job.topics)
        pipeline = self.job.pipeline
        writer = Writer(pipeline.name, self.job.name, self.generation, pipeline.markers)
        self._make_topics(partitions, writer)
        if self.job.pipeline.file is not None:
            self.spark.sparkContext.addPyFile(str(self.job.pipeline.file))
        records = self._records()
        types = slot_types(self.job, records)
        cells = share_out(self.job, self._cells(records, partitions), self._tables())
        with Ledger.open(self.settings.ledger) as ledger, TransactionalOutput(self.settings.kafka, writer) as output:
            published = ledger.last_batch(self.job.pipeline.name, self.job.name, self.generation)
            self.storage = self.storage.placed(Places(ledger))
            self.storage.prepare(published, output.last_batch)
            ledger.register(job_info(self.storage, types))
            tables = GlobalTables.load(self.job, self.storage.locations[0], published)
            publisher = Publisher(self.storage, ledger, output, tables, types)
            self._stream(cells, publisher)
        return publisher.read

    def _make_topics(self, partitions: Mapping[str, int], writer: Writer) -> None:
        widest = max(partitions[source.topic] for source in self.job.streams)
        wanted = dict.fromkeys(self.job.outputs, widest) | {self.job.pipeline.dead_letters: 1, writer.markers: 1}
        ensure_topics(self.settings.kafka, wanted, frozenset({writer.markers}))

    def _records(self) -> DataFrame:
        """The streams' records, decoded and through every stateless step: only what placing reads of them."""
        reader = StreamReader.of(self.job, self.storage.handoff, self.storage.checkpoint)
        schema = ", ".join(f"`{name}` {kind}" for name, kind in reader.columns.items())
        topics = [source.topic for source in self.job.streams]
        frame = self._source(topics, {"maxOffsetsPerTrigger": str(self.max_records)})
        frame = frame.mapInArrow(reader.__call__, schema)
        for layer in self.job.layers:
            frame = frame.selectExpr("*", *(f"{sql} AS `{name}`" for name, sql in layer))
        columns = ["_source", "_partition", "_time"]
        for family in self.job.families:
            columns += [family.passed, family.key, *family.inputs]
        for sink in self.job.stream_sinks:
            columns += [f"o{sink.number}_key", f"o{sink.number}_value"]
        return frame.select(*dict.fromkeys(columns))

    def _cells(self, records: DataFrame, partitions: Mapping[str, int]) -> DataFrame:
        """The cells that a batch changes: records placed in time, added up in their task, then by the operator."""
        inputs = sorted({name for family in self.job.families for name in family.inputs})
        types = {name: to_arrow_type(records.schema[name].dataType) for name in inputs}
        placer = Placer.of(self.job, self.storage.handoff, partitions, types)
        combiner = Combiner.of(self.job, types)
        placed = records.mapInArrow(Combined(placer, combiner).__call__, _placed_schema(combiner))
        return fuse(self.job, placed, combiner)

    def _tables(self) -> DataFrame | None:
        """The global tables' changes as cells. Without a limit: a batch has all of them that there are."""
        if not self.job.tables:
            return None
        reader = TableReader.of(self.job, self.storage.handoff, self.storage.checkpoint)
        source = self._source([table.source.topic for table in self.job.tables], {})
        return source.mapInArrow(reader.__call__, TableReader.columns)

    def _source(self, topics: list[str], options: dict[str, str]) -> DataFrame:
        kafka = {f"kafka.{name}": value for name, value in self.settings.kafka.items()}
        reader = self.spark.readStream.format("kafka").options(**kafka, **_KAFKA_OPTIONS, **options)
        return reader.option("subscribe", ",".join(topics)).load().selectExpr(*RECORD)

    def _stream(self, cells: DataFrame, publisher: Publisher) -> None:
        query = (
            cells.writeStream.foreachBatch(publisher)
            .outputMode("update")
            .option("checkpointLocation", self.storage.checkpoint)
            .trigger(availableNow=True)
            .queryName(f"{self.job.pipeline.name}.{self.job.name}")
            .start()
        )
        query.awaitTermination()


def _placed_schema(combiner: Combiner) -> StructType:
    cell = parse_ddl(", ".join(f"{name} {kind}" for name, kind in CELL.items()))
    assert isinstance(cell, StructType)
    times = [StructField("expires_at", TimestampType()), StructField("closed_at", TimestampType())]
    columns = [StructField(name, from_arrow_type(kind)) for name, kind in combiner.columns.items()]
    return StructType([*cell, *times, *columns])
