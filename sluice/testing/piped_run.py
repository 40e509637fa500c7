"""Runs a pipeline under test: the engine's own query and publisher, on records that a test pipes in."""

from __future__ import annotations

import base64
import json
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession

from sluice.engine.batch.dead_letters import headers_of
from sluice.engine.batch.rejected import Place
from sluice.engine.batch.storage import Storage
from sluice.engine.job.query import JobQuery
from sluice.engine.publish.encode import UNWRITTEN
from sluice.engine.publish.tables import declared_columns
from sluice.engine.session import close_idle_callbacks
from sluice.engine.steps.worker_errors import worker_error
from sluice.errors import EngineError
from sluice.plan import Job
from sluice.remote.opening import create_shard
from sluice.settings import Settings
from sluice.sinks.protocol import BatchId, Column, Published, Rows
from sluice.state.ledger.history import Batch
from sluice.state.ledger.ledger import Ledger
from sluice.values import epochs
from sluice.values.keys import key_text

_RECORD = (
    "topic STRING, partition INT, offset BIGINT, timestamp BIGINT, key STRING, value STRING, headers STRING, "
    "sequence BIGINT"
)
_COLUMNS = (
    "r.topic", "r.partition", "r.offset", "timestamp_millis(r.timestamp) AS timestamp", "unbase64(r.key) AS key",
    "unbase64(r.value) AS value", "nullif(r.headers, 'null') AS headers", "r.sequence",
)  # fmt: skip


Headers = Mapping[str, str | bytes | None]


class PipedRecords:
    """Numbers the records of all topics, and writes each as JSON of the columns."""

    def __init__(self) -> None:
        self._offsets: Counter[tuple[str, int]] = Counter()

    def record(
        self,
        topic: str,
        value: Any,
        key: Any = None,
        *,
        timestamp: int,
        headers: Headers | None = None,
        partition: int = 0,
    ) -> str:
        """The next record of a topic's partition. Values of type str, bytes or None stay as they are, and keys too."""
        named = [{"key": name, "value": _base64(_bytes(text))} for name, text in (headers or {}).items()]
        record = {
            "topic": topic, "partition": partition, "offset": self._offsets[topic, partition], "timestamp": timestamp,
            "key": _base64(_bytes(_text(key))), "value": _base64(_bytes(value)), "sequence": self._offsets.total(),
            "headers": json.dumps(named or None),
        }  # fmt: skip
        self._offsets[topic, partition] += 1
        return json.dumps(record)


def _text(key: Any) -> str | bytes | None:
    return key if isinstance(key, bytes) else key_text(key)


def _bytes(value: Any) -> bytes | None:
    if value is None or isinstance(value, bytes):
        return value
    if isinstance(value, str):
        return value.encode()
    return msgspec.json.Encoder(decimal_format="number").encode(epochs.in_numbers(value))


def _base64(value: bytes | None) -> str | None:
    return None if value is None else base64.b64encode(value).decode()


class PipedInput:
    """The records that a test pipes in. One task gets the records of all topics, in the order of the calls."""

    interleaved = True

    def __init__(self, spark: SparkSession) -> None:
        self._spark = spark
        self._stream: Any = None
        self._headers: dict[Place, list[Mapping[str, str | bytes | None]]] = {}

    def headers_at(self, places: Sequence[Place]) -> dict[Place, list[Mapping[str, str | bytes | None]]]:
        return {place: self._headers[place] for place in places if place in self._headers}

    def partitions(self, topics: Sequence[str]) -> dict[str, int]:
        return dict.fromkeys(topics, 1)

    def read(self, topics: Sequence[str], max_records: int | None) -> DataFrame:
        """The topics' records as a streaming DataFrame. Each call of `add` is one batch."""
        if self._stream is None:
            memory = self._class("org.apache.spark.sql.execution.streaming.runtime.MemoryStream")
            strings = self._class("org.apache.spark.sql.Encoders").STRING()
            self._stream = memory.apply(strings, self._spark._jsparkSession)
        frame = DataFrame(self._stream.toDF(), self._spark).selectExpr(f"from_json(value, '{_RECORD}') AS r")
        names = ", ".join(f"'{topic}'" for topic in topics)
        return frame.where(f"r.topic IN ({names})").selectExpr(*_COLUMNS)

    def forget(self, done: Sequence[Sequence[str]] = ()) -> None:
        """Begin the input again, with the records of the batches that a copied checkpoint has done."""
        if self._stream is not None:
            self._stream.reset()
        for records in done:
            self.add(records)

    def add(self, records: Sequence[str]) -> None:
        """Add the records of a batch, each as JSON of the columns."""
        batch = self._class("java.util.ArrayList")()
        for record in records:
            batch.add(record)
            values = json.loads(record)
            if values["headers"] != "null":
                place = values["topic"], values["partition"], values["offset"]
                self._headers[place] = [*headers_of(values["headers"])]
        self._stream.addData(self._class("scala.jdk.javaapi.CollectionConverters").asScala(batch).toSeq())

    def _class(self, name: str) -> Any:
        """A class of the JVM. By its whole name, because py4j searches all jars for each part of a dotted path."""
        return getattr(self._spark._jvm, name)


@dataclass
class KeptOutput:
    """Stores output records by topic for the test."""

    records: dict[str, list[dict[str, Any]]] = field(default_factory=dict)

    def start(self, batch: int, records: Sequence[tuple[str, pa.Table]]) -> None:
        """`send` gets these records too."""

    def give_up(self) -> None:
        """Nothing has been stored before `send`."""

    def send(self, batch: Batch, records: Iterable[tuple[str, pa.Table]]) -> dict[str, int]:
        counts: Counter[str] = Counter()
        for topic, table in records:
            counts[topic] += table.num_rows
            self.records.setdefault(topic, []).extend(table.to_pylist())
        return dict(counts)


@dataclass
class KeptRows:
    """Stores the records of tables' rows, like those of topics, and checks them against the declared columns."""

    output: KeptOutput
    columns: Mapping[str, Sequence[Column]]

    def begin(self, published: Published | None) -> None:
        pass

    def write(self, batch: BatchId, rows: Mapping[str, Rows]) -> dict[str, int]:
        for output, of_table in rows.items():
            self.output.records.setdefault(output, []).extend(of_table.records.to_pylist())
        return {output: of_table.count for output, of_table in rows.items()}


class OnlyWriter:
    """A lease and identity check that always succeed, because nothing else uses the state and topics of a test."""

    @property
    def epoch(self) -> int:
        return 1

    def check(self) -> None:
        pass

    def check_identity(self) -> None:
        pass


class PipedRun:
    """Runs the pipeline under test."""

    def __init__(self, spark: SparkSession, job: Job, settings: Settings, partitions: Mapping[str, int]) -> None:
        self.job = job
        self._moved = Path(settings.home, "clock")
        self._moved.parent.mkdir(parents=True, exist_ok=True)
        self._moved.write_text("0")
        self.storage = replace(Storage.of(job, 1, settings), moved=str(self._moved))
        self.output = KeptOutput()
        self.counts: Counter[str] = Counter()
        self.batch = -1
        self._spark = spark
        self._input = PipedInput(spark)
        self._ledger = Ledger.open(settings.ledger)
        for place in self.storage.locations:
            create_shard(place).close()
        self.partitions = self._input.partitions(job.topics) | dict(partitions)
        """Topic → its number of partitions."""
        only = OnlyWriter()
        query = JobQuery(spark, self.storage, self._input, self.partitions, only.epoch)
        self._ledger.generations.register(query.info)
        table_sinks = {
            destination: KeptRows(self.output, {sink.topic: declared_columns(sink) for sink in sinks})
            for destination, sinks in job.written_tables.items()
        }
        self._publisher = query.publisher(
            self._ledger, only, only, self.output, table_sinks=table_sinks, headers_at=self._input.headers_at
        )
        self._publisher.begin()
        self._query = query.start(self._publish)

    def take(self, records: list[str]) -> None:
        """Process records as one batch, and wait until the batch is published."""
        self._input.add(records)
        try:
            self._query.processAllAvailable()
        except StreamingQueryException as error:
            raise (worker_error(self.job, str(error)) or _root(error)) from error

    def advance(self, milliseconds: int) -> None:
        """Advance the clock of the next batches."""
        self._moved.write_text(str(int(self._moved.read_text()) + milliseconds))

    def stop(self) -> None:
        """Stop the query and close the ledger."""
        self._query.stop()
        close_idle_callbacks(self._spark)
        self._ledger.close()

    def _publish(self, state_rows: DataFrame, batch: int) -> None:
        self._publisher(state_rows, batch)
        self.batch = batch
        self.counts.update(self.storage.side_outputs.facts(batch).counts)
        snapshot = self._ledger.snapshots.latest(self.job.pipeline.name)
        if snapshot is not None and snapshot.batch == batch:
            self.counts.update({name: n for name, n in snapshot.counts.items() if name.startswith(UNWRITTEN)})


def _root(error: StreamingQueryException) -> EngineError:
    """The error that a task or the driver raised, without Spark's stack trace."""
    lines = str(error).splitlines()
    python = [i for i, line in enumerate(lines) if line.startswith("Traceback")]
    for line in lines[python[-1] if python else 0 :]:
        if (match := re.match(r"(?:sluice\.errors\.\w+|[\w.]*(?:Error|Exception)): (.+)", line)) is not None:
            return EngineError(match[1] if line.startswith("sluice.") else line)
    return EngineError(lines[0])
