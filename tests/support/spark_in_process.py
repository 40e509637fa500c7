"""A stand-in for Spark in tests of runs: it runs a query's tasks in this process, without a JVM.

The engine uses a few methods of a session and its DataFrames. Here, they do the same over Arrow batches: the offsets of
a batch come from the checkpoint that the driver has written, and the records from Kafka; tasks are pickled, as Spark
pickles them; and an error ends the query as text. Spark SQL is missing, so each step of a pipeline must be a step that
tasks compute alone.
"""

# ruff: noqa: N802 (the methods have the names of Spark's)

from __future__ import annotations

import json
import traceback
from base64 import b64encode
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self, cast

import pyarrow as pa
from confluent_kafka import Consumer, KafkaError, Message, TopicPartition
from pyspark.errors import StreamingQueryException
from pyspark.serializers import CloudPickleSerializer
from pyspark.sql import SparkSession

from sluice.engine.batch import batch_start
from sluice.engine.batch.batch_start import batch_context, worker_context
from sluice.engine.read.stream_reader import RECORD
from sluice.engine.run.arrow_query import by_worker
from sluice.kafka.topics import headers_of
from sluice.sql.arrow_types import arrow_type

Task = Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]
Partitions = Sequence[Sequence[pa.RecordBatch]]
Ends = dict[str, dict[str, int]]
"""Topic → partition → offset."""

RECORDS = pa.schema([
    ("topic", pa.string()), ("partition", pa.int32()), ("offset", pa.int64()), ("timestamp", pa.timestamp("us", "UTC")),
    ("key", pa.binary()), ("value", pa.binary()), ("headers", pa.string()),
])  # fmt: skip
_SECONDS = 20.0


class Settings(dict[str, str]):
    """The settings of a session or of its context."""

    def set(self, name: str, value: object) -> None:
        self[name] = str(value)

    def contains(self, name: str) -> bool:
        return name in self


class Anything:
    """An object of the JVM that the engine calls and needs nothing from, except an empty list of settings."""

    def __getattr__(self, name: str) -> Anything:
        return self

    def __call__(self, *_: object) -> Anything:
        return self

    def json(self) -> str:
        return '{"conf": {}}'


class Part:
    """A part of Spark's interface."""

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(f"There is no {name} without Spark: give the test the marker spark.")


@dataclass
class Context(Part):
    """The session's context. Queries read the start of their batch from its local properties."""

    master = "local[1]"
    properties: dict[str, str] = field(default_factory=dict)
    _conf: Settings = field(default_factory=Settings)
    _gateway = Anything()

    def setLocalProperty(self, name: str, value: str) -> None:
        self.properties[name] = value

    @property
    def start(self) -> batch_start.BatchStart:
        """The start of the batch that runs next."""
        return batch_start._decode_start(self.properties[batch_start._START])


@dataclass
class SparkInProcess(Part):
    """The session."""

    sparkContext: Context = field(default_factory=Context)
    conf: Settings = field(default_factory=lambda: Settings({"spark.sql.shuffle.partitions": "1"}))
    batch: dict[tuple[str, int], tuple[int, int]] = field(default_factory=dict)
    """Topic and partition → the offsets at which the running batch begins and ends."""
    _jvm = _jsparkSession = Anything()

    @property
    def readStream(self) -> KafkaReader:
        return KafkaReader(self)

    def createDataFrame(self, rows: Sequence[object], _: str) -> Frame:
        assert not rows
        return Frame(self, RECORDS, list)

    @classmethod
    def session(cls) -> SparkSession:
        return cast(SparkSession, cls())


@dataclass
class KafkaReader:
    """Builds the DataFrame of topics."""

    spark: SparkInProcess
    settings: dict[str, str] = field(default_factory=dict)

    def format(self, name: str) -> Self:
        assert name == "kafka"
        return self

    def options(self, **settings: str) -> Self:
        self.settings |= settings
        return self

    def option(self, name: str, value: str) -> Self:
        return self.options(**{name: value})

    def load(self) -> Self:
        return self

    def selectExpr(self, *columns: str) -> Frame:
        assert columns == RECORD
        topics = self.settings["subscribe"].split(",")
        return Frame(self.spark, RECORDS, lambda: self._partitions(topics))

    def _partitions(self, topics: Sequence[str]) -> Partitions:
        kafka = {"bootstrap.servers": self.settings["kafka.bootstrap.servers"], "log_level": 0}
        return [
            [batch] if (batch := read(kafka, topic, partition, begin, end)).num_rows else []
            for (topic, partition), (begin, end) in sorted(self.spark.batch.items())
            if topic in topics
        ]


def read(kafka: Mapping[str, Any], topic: str, partition: int, begin: int, end: int) -> pa.RecordBatch:
    """The committed records of a partition from one offset to another."""
    consumer = Consumer({
        **kafka, "group.id": "tests", "isolation.level": "read_committed", "enable.auto.commit": False,
        "enable.partition.eof": True, "fetch.wait.max.ms": 10, "auto.offset.reset": "error",
    })  # fmt: skip
    rows: list[dict[str, Any]] = []
    with closing(consumer):
        consumer.assign([TopicPartition(topic, partition, begin)])
        while begin < end:
            message = consumer.poll(_SECONDS)
            assert message is not None, f"{topic}/{partition} has no record from {begin}"
            error = message.error()
            if error is not None and error.code() != KafkaError._PARTITION_EOF:
                raise RuntimeError(error.str())
            begin = cast(int, message.offset()) + (error is None)
            if error is None and begin <= end:
                rows.append(columns(message))
    return pa.RecordBatch.from_pylist(rows, RECORDS)


def columns(message: Message) -> dict[str, Any]:
    """A record as Spark's Kafka source gives it."""
    # Spark leaves out the value of a header that is null.
    headers = []
    for name, value in headers_of(message):
        encoded = {} if value is None else {"value": b64encode(value).decode()}
        headers.append({"key": name, **encoded})
    return {
        "topic": message.topic(),
        "partition": message.partition(),
        "offset": message.offset(),
        "timestamp": message.timestamp()[1] * 1_000,
        "key": message.key(),
        "value": message.value(),
        "headers": json.dumps(headers, separators=(",", ":")) if headers else None,
    }


@dataclass(frozen=True)
class Frame(Part):
    """A DataFrame, whose partitions are computed whenever they are needed."""

    sparkSession: SparkInProcess
    schema: pa.Schema
    partitions: Callable[[], Partitions]

    def mapInArrow(self, task: Task, columns: str) -> Frame:
        kinds = (column.split() for column in columns.split(", "))
        schema = pa.schema([(name, arrow_type(kind)) for name, kind in kinds])
        return Frame(self.sparkSession, schema, lambda: self._run(task))

    def repartitionById(self, count: int, column: str) -> Frame:
        assert column == "worker"
        return Frame(self.sparkSession, self.schema, lambda: self._shuffled(count))

    def unionByName(self, other: Frame) -> Frame:
        return Frame(self.sparkSession, self.schema, lambda: [*self.partitions(), *other.partitions()])

    def toArrow(self) -> pa.Table:
        batches = [batch for partition in self.partitions() for batch in partition]
        return pa.Table.from_batches(batches, self.schema)

    @property
    def writeStream(self) -> Query:
        return Query(self)

    def _run(self, task: Task) -> Partitions:
        results = []
        # A task has copies of the driver's objects, and each task has its own.
        pickled = CloudPickleSerializer().dumps(task)  # type: ignore[no-untyped-call]
        for number, batches in enumerate(self.partitions()):
            with worker_context(number):
                copy: Task = CloudPickleSerializer().loads(pickled)  # type: ignore[no-untyped-call]
                results.append(list(copy(iter(batches))))
        return results

    def _shuffled(self, count: int) -> Partitions:
        rows = by_worker(batch for partition in self.partitions() for batch in partition)
        return [rows.get(number, []) for number in range(count)]


@dataclass
class Query:
    """Writes the batch that a checkpoint has planned, as a query with the trigger `once`."""

    frame: Frame
    sink: Callable[[Frame, int], None] = field(init=False)
    checkpoint: Path = field(init=False)

    def foreachBatch(self, sink: Callable[[Frame, int], None]) -> Self:
        self.sink = sink
        return self

    def option(self, name: str, value: str) -> Self:
        assert name == "checkpointLocation"
        self.checkpoint = Path(value.removeprefix("file://"))
        return self

    def outputMode(self, mode: str) -> Self:
        return self

    def queryName(self, name: str) -> Self:
        return self

    def trigger(self, *, once: bool) -> Self:
        assert once
        return self

    def start(self) -> Self:
        return self

    def awaitTermination(self) -> None:
        """Run the batch. An error of a task or of the sink is raised as text, like Spark's."""
        spark = self.frame.sparkSession
        number, begin, end = planned(self.checkpoint)
        spark.batch = {
            (topic, int(partition)): (begin[topic][partition], offset)
            for topic, ends in end.items()
            for partition, offset in ends.items()
        }
        try:
            with batch_context(spark.sparkContext.start):
                self.sink(self.frame, number)
        except Exception as error:
            text = f"Query terminated with exception: {error}\n{traceback.format_exc()}"
            raise StreamingQueryException(text) from None


def planned(checkpoint: Path) -> tuple[int, Ends, Ends]:
    """The number of the batch that a checkpoint has planned, and the offsets at which it begins and ends."""
    number = max(int(file.name) for file in (checkpoint / "offsets").iterdir())
    if number:
        assert (checkpoint / "commits" / str(number - 1)).exists()
        begin = _lines(checkpoint / "offsets" / str(number - 1), 2)
    else:
        begin = [line for source in (checkpoint / "sources").iterdir() for line in _lines(source / "0", 1)]
    return number, _merged(begin), _merged(_lines(checkpoint / "offsets" / str(number), 2))


def _lines(file: Path, first: int) -> list[Ends]:
    return [json.loads(line.removeprefix("v1")) for line in file.read_text().split("\n")[first:]]


def _merged(ends: Iterable[Ends]) -> Ends:
    merged: Ends = {}
    for of_source in ends:
        merged |= of_source
    return merged
