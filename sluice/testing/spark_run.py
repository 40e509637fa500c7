"""Runs a pipeline under test on Spark: the engine's own query, on records that a test pipes in."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

from sluice.engine.batch.arrow_tasks import Chain
from sluice.engine.batch.batch_start import tell_tasks_by_file, write_start
from sluice.engine.publish.shard_writer import RowsOnSpark
from sluice.engine.run.streaming_query import JobQuery
from sluice.engine.session import close_idle_callbacks
from sluice.engine.steps.worker_errors import worker_error
from sluice.errors import EngineError, SluiceError
from sluice.plan import Job
from sluice.settings import Settings
from sluice.spark_releases import MEMORY_STREAM
from sluice.testing.piped_run import PipedRun

_RECORD = (
    "topic STRING, partition INT, offset BIGINT, timestamp BIGINT, key STRING, value STRING, "
    "headers STRING, sequence BIGINT"
)
_COLUMNS = (
    "r.topic",
    "r.partition",
    "r.offset",
    "timestamp_millis(r.timestamp) AS timestamp",
    "unbase64(r.key) AS key",
    "unbase64(r.value) AS value",
    "nullif(r.headers, 'null') AS headers",
    "r.sequence",
)


_NO_RECORD = "{}"
"""A record that makes Spark run a batch. The record belongs to no topic, so no task reads it."""


class PipedInput:
    """The records that a test pipes in.

    One task gets the records of all topics, in the order of the calls.
    """

    interleaved = True

    def __init__(self, spark: SparkSession) -> None:
        self._spark = spark
        self._stream: Any = None

    def read(
        self, partitions: Mapping[str, int], task: Chain, columns: StructType | str
    ) -> DataFrame:
        """Return the rows that a task makes of the topics' records, as a streaming DataFrame.

        Each call of `add` is one batch.
        """
        if self._stream is None:
            memory = self._class(MEMORY_STREAM)
            strings = self._class("org.apache.spark.sql.Encoders").STRING()
            self._stream = memory.apply(strings, self._spark._jsparkSession)
        names = ", ".join(f"'{topic}'" for topic in partitions)
        records = DataFrame(self._stream.toDF(), self._spark)
        records = records.selectExpr(f"from_json(value, '{_RECORD}') AS r")
        records = records.where(f"r.topic IN ({names})").selectExpr(*_COLUMNS)
        return records.mapInArrow(Chain((task,)).__call__, columns)

    def add(self, records: Sequence[str]) -> None:
        """Add the records of a batch, each as a JSON object of its columns."""
        batch = self._class("java.util.ArrayList")()
        for record in records:
            batch.add(record)
        converters = self._class("scala.jdk.javaapi.CollectionConverters")
        self._stream.addData(converters.asScala(batch).toSeq())

    def _class(self, name: str) -> Any:
        """Return a class of the JVM.

        It is looked up by its whole name, because py4j would search all jars for each part of a
        dotted path.
        """
        return getattr(self._spark._jvm, name)


class SparkRun(PipedRun):
    """Runs one job of the pipeline under test on Spark."""

    def __init__(
        self,
        spark: SparkSession,
        job: Job,
        settings: Settings,
        partitions: Mapping[str, int],
    ) -> None:
        super().__init__(job, settings, partitions)
        self._spark = spark
        self._input = PipedInput(spark)
        self._home = settings.home
        self._error: SluiceError | None = None
        """The error of publishing, of which Spark's error has only the text."""
        self._start = Path(settings.home, "start")
        tell_tasks_by_file(spark.sparkContext, self._start)
        self._start_query()

    def _start_query(self) -> None:
        query = JobQuery(self._spark, self.storage, self._input, self.partitions, self.lease.epoch)
        self.begin(query.info, query.written.types)
        self._query = query.start(self._publish, str(self._home / "checkpoint"))

    def read_also(self, job: Job) -> None:
        self._query.stop()
        super().read_also(job)
        self._start_query()

    def process(self, records: list[str]) -> None:
        self.keep_headers(records)
        write_start(self._start, self.plan(self.batch + 1, reads_records=bool(records)))
        self._input.add(records or [_NO_RECORD])
        try:
            self._query.processAllAvailable()
        except StreamingQueryException as error:
            if self._error is not None:
                raise self._error from None
            raise (worker_error(self.job, str(error)) or _root(error)) from error

    def stop(self) -> None:
        self._query.stop()
        close_idle_callbacks(self._spark)
        super().stop()

    def _publish(self, written: DataFrame, batch: int) -> None:
        try:
            self.publish(RowsOnSpark(written))
        except SluiceError as error:
            self._error = error
            raise
        # After a batch, Spark may run a batch without records, to evict its own state. The tasks of
        # that batch read its number and clock from the file that is written here.
        write_start(self._start, self.plan(batch + 1))


_ERROR_LINE = re.compile(r"(?:sluice\.errors\.\w+|[\w.]*(?:Error|Exception)): (.+)")
"""The last line of a traceback: the name of the error, and its message."""


def _root(error: StreamingQueryException) -> EngineError:
    """Return the error that a task or the driver raised, without Spark's stack trace."""
    lines = str(error).splitlines()
    last_traceback = 0
    for number, line in enumerate(lines):
        if line.startswith("Traceback"):
            last_traceback = number
    for line in lines[last_traceback:]:
        match = _ERROR_LINE.match(line)
        if match is not None:
            return EngineError(match[1] if line.startswith("sluice.") else line)
    return EngineError(lines[0])
