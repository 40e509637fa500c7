"""A stand-in for Spark in tests of runs: it runs a query's tasks in this process, without a JVM.

The engine uses a few methods of a session and its DataFrames. Here, they do the same over Arrow
batches: tasks are pickled, as Spark pickles them, and an error ends the query as text. Spark SQL is
missing, so each step of a pipeline must be a step that tasks compute alone.
"""

# ruff: noqa: N802 (the methods have the names of Spark's)

from __future__ import annotations

import itertools
import traceback
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from threading import Thread, local
from typing import Any, Self, cast
from weakref import WeakValueDictionary

import pyarrow as pa
from pyspark.errors import StreamingQueryException
from pyspark.serializers import CloudPickleSerializer
from pyspark.sql import SparkSession
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

from sluice.engine.batch import batch_start
from sluice.engine.batch.batch_start import RunningTask
from sluice.engine.read.kafka_records import RECORDS
from sluice.engine.run.arrow_query import by_worker

Task = Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]
Partitions = Sequence[Sequence[pa.RecordBatch]]

NUMBERS = pa.schema([("value", pa.int64())])


class Settings(dict[str, str]):
    """The settings of a session or of its context."""

    def set(self, name: str, value: object) -> None:
        self[name] = str(value)

    def contains(self, name: str) -> bool:
        return name in self


class Anything:
    """An object of the JVM that the engine calls and needs nothing from."""

    def __getattr__(self, name: str) -> Anything:
        return self

    def __call__(self, *_: object) -> Anything:
        return self


class Part:
    """A part of Spark's interface."""

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(f"There is no {name} without Spark: give the test the marker spark.")


@dataclass
class Accumulator(Part):
    """What tasks have reported. Their copies of it are the driver's own."""

    value: dict[str, int]

    def __post_init__(self) -> None:
        _ACCUMULATORS[id(self)] = self

    def __reduce__(self) -> tuple[Callable[[int], Accumulator], tuple[int]]:
        return _accumulator, (id(self),)

    def add(self, value: dict[str, int]) -> None:
        self.value = self.value | value


_ACCUMULATORS: WeakValueDictionary[int, Accumulator] = WeakValueDictionary()


def _accumulator(number: int) -> Accumulator:
    return _ACCUMULATORS[number]


@dataclass
class Context(Part):
    """The session's context. Queries read the start of their batch from its local properties."""

    master = "local[1]"
    defaultParallelism = 1
    _local: local = field(default_factory=local)
    _conf: Settings = field(default_factory=Settings)
    _gateway = Anything()

    def accumulator(self, value: dict[str, int], _: object) -> Accumulator:
        return Accumulator(value)

    def setLocalProperty(self, name: str, value: str) -> None:
        self.properties[name] = value

    @property
    def properties(self) -> dict[str, str]:
        """The local properties of this thread."""
        return cast(dict[str, str], vars(self._local).setdefault("properties", {}))

    @property
    def start(self) -> batch_start.BatchStart:
        """The start of the batch whose tasks this thread runs."""
        return batch_start._decode_start(self.properties[batch_start._START])


@dataclass
class Streams(Part):
    """The session's streaming queries."""

    active: list[Query] = field(default_factory=list)


@dataclass
class SparkInProcess(Part):
    """The session."""

    streams: Streams = field(default_factory=Streams)

    sparkContext: Context = field(default_factory=Context)
    conf: Settings = field(default_factory=lambda: Settings({"spark.sql.shuffle.partitions": "1"}))
    _jvm = _jsparkSession = Anything()

    @property
    def readStream(self) -> NumbersReader:
        return NumbersReader(self)

    def createDataFrame(self, rows: Sequence[object], _: str) -> Frame:
        assert not rows
        return Frame(self, RECORDS, list)

    @classmethod
    def session(cls) -> SparkSession:
        return cast(SparkSession, cls())


@dataclass
class NumbersReader:
    """Builds the stream of tasks' numbers: each batch has the next numbers, each in a partition of its own."""

    spark: SparkInProcess
    settings: dict[str, str] = field(default_factory=dict)

    def format(self, name: str) -> Self:
        assert name == "rate-micro-batch"
        return self

    def options(self, **settings: str) -> Self:
        self.settings |= settings
        return self

    def load(self) -> Self:
        return self

    def select(self, column: str) -> Frame:
        assert [column] == NUMBERS.names
        count = int(self.settings["numPartitions"])
        assert self.settings["rowsPerBatch"] == self.settings["numPartitions"]
        batches = itertools.count()

        def partitions() -> Partitions:
            first = next(batches) * count
            return [
                [pa.record_batch({"value": [first + number]}, NUMBERS)] for number in range(count)
            ]

        return Frame(self.spark, NUMBERS, partitions)


@dataclass(frozen=True)
class Frame(Part):
    """A DataFrame, whose partitions are computed whenever they are needed."""

    sparkSession: SparkInProcess
    schema: pa.Schema
    partitions: Callable[[], Partitions]
    through_shuffle: Callable[[], Frame] | None = None
    """The same frame, computed up to its last shuffle; None if there is no shuffle."""

    def mapInArrow(self, task: Task, columns: StructType) -> Frame:
        shuffled = self.through_shuffle
        return Frame(
            self.sparkSession,
            to_arrow_schema(columns),
            lambda: self._run(task),
            None if shuffled is None else lambda: shuffled().mapInArrow(task, columns),
        )

    def repartitionById(self, count: int, column: str) -> Frame:
        assert column == "worker"

        def computed() -> Frame:
            partitions = self._shuffled(count)
            return Frame(self.sparkSession, self.schema, lambda: partitions)

        return Frame(self.sparkSession, self.schema, lambda: self._shuffled(count), computed)

    def unionByName(self, other: Frame) -> Frame:
        return Frame(
            self.sparkSession, self.schema, lambda: [*self.partitions(), *other.partitions()]
        )

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
            running = RunningTask(self.sparkSession.sparkContext.start, number)
            copy: Any = CloudPickleSerializer().loads(pickled)  # type: ignore[no-untyped-call]
            results.append(list(copy.__self__.run(iter(batches), running)))
        return results

    def _shuffled(self, count: int) -> Partitions:
        rows = by_worker(batch for partition in self.partitions() for batch in partition)
        return [rows.get(number, []) for number in range(count)]


@dataclass
class Query:
    """A streaming query with the trigger `availableNow`, for which one batch is available.

    It runs in its own thread, and is computed up to its last shuffle before its sink is called.
    """

    frame: Frame
    sink: Callable[[Frame, int], None] = field(init=False)
    _thread: Thread = field(init=False)
    _error: BaseException | None = field(default=None, init=False)

    def foreachBatch(self, sink: Callable[[Frame, int], None]) -> Self:
        self.sink = sink
        return self

    def option(self, name: str, value: str) -> Self:
        assert name == "checkpointLocation"
        # A batch depends on nothing that Spark has noted before.
        assert not [*Path(value.removeprefix("file://")).iterdir()]
        return self

    def outputMode(self, mode: str) -> Self:
        return self

    def queryName(self, name: str) -> Self:
        return self

    def trigger(self, *, availableNow: bool) -> Self:  # noqa: N803
        assert availableNow
        return self

    def start(self) -> Self:
        properties = self.frame.sparkSession.sparkContext.properties
        self._thread = Thread(target=self._run, args=[dict(properties)], daemon=True)
        self.frame.sparkSession.streams.active.append(self)
        self._thread.start()
        return self

    def _run(self, properties: dict[str, str]) -> None:
        """Run the batch in this thread, with the properties of the thread that has started the query."""
        try:
            self.frame.sparkSession.sparkContext.properties.update(properties)
            through_shuffle = self.frame.through_shuffle
            self.sink(self.frame if through_shuffle is None else through_shuffle(), 0)
        except BaseException as error:
            self._error = error
        finally:
            self.frame.sparkSession.streams.active.remove(self)

    def awaitTermination(self) -> None:
        """Wait for the batch. An error of a task or of the sink is raised as text, like Spark's."""
        self._thread.join()
        if isinstance(self._error, Exception):
            text = f"Query terminated with exception: {self._error}\n{''.join(traceback.format_exception(self._error))}"
            raise StreamingQueryException(text) from None
        if self._error is not None:
            raise self._error

    def stop(self) -> None:
        self._thread.join()
