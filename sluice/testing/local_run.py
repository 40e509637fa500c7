"""Runs a pipeline under test in this process: Spark's tasks, with a list in place of a shuffle."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from operator import itemgetter
from typing import Any, Self

import pyarrow as pa

from sluice.engine.batch.batch_start import BatchStart
from sluice.engine.batch.storage import Storage
from sluice.engine.run.arrow_query import ArrowQuery
from sluice.engine.run.registration import generation_info
from sluice.plan import Job
from sluice.plan.arrow_support import NeedsSparkError
from sluice.settings import Settings
from sluice.testing.piped_records import UncontestedLease
from sluice.testing.piped_run import PipedRun

PIPED = pa.schema(
    [
        ("topic", pa.string()),
        ("partition", pa.int32()),
        ("offset", pa.int64()),
        ("timestamp", pa.timestamp("us", "UTC")),
        ("key", pa.binary()),
        ("value", pa.binary()),
        ("headers", pa.string()),
        ("sequence", pa.int64()),
    ]
)
"""The records that a task reads, as `engine.read.stream_reader` expects them."""


def why_not_local(job: Job, settings: Settings) -> str:
    """Return the part of a job that only Spark can run; empty if there is none."""
    try:
        local_query(job, settings, {})
    except NeedsSparkError as reason:
        return str(reason)
    return ""


def local_query(job: Job, settings: Settings, partitions: Mapping[str, int]) -> ArrowQuery:
    """Return the query of a pipeline under test.

    Raises NeedsSparkError if only Spark can run a part of it.
    """
    counts = dict.fromkeys(job.topics, 1) | dict(partitions)
    return ArrowQuery.of(
        job,
        Storage.of(job, 1, settings),
        counts,
        UncontestedLease().epoch,
        interleaved=True,
    )


class LocalRun(PipedRun):
    """Runs the pipeline under test in this process."""

    def __init__(
        self,
        job: Job,
        settings: Settings,
        partitions: Mapping[str, int],
        query: ArrowQuery,
    ) -> None:
        super().__init__(job, settings, partitions)
        self._settings = settings
        self._failed: BaseException | None = None
        self._begin_with(query)

    def _begin_with(self, query: ArrowQuery) -> None:
        self._query = query
        self.begin(generation_info(self.storage, query.types), query.types)

    def read_also(self, job: Job) -> None:
        super().read_also(job)
        self._begin_with(local_query(job, self._settings, self.partitions))

    def process(self, records: list[str]) -> None:
        # After a failure, process no later records, as a query of Spark would not.
        if self._failed is not None:
            raise self._failed
        self.keep_headers(records)
        start = self.plan(self.batch + 1, reads_records=bool(records))
        try:
            self.publish(PipedRows.of(self._query, records, start))
        except BaseException as error:
            self._failed = error
            raise


@dataclass(frozen=True)
class PipedRows:
    """The state rows of a batch of piped records, which are computed in this process."""

    query: ArrowQuery
    start: BatchStart
    streams: list[dict[str, Any]]
    """The records of streams, sorted by partition."""
    tables: list[dict[str, Any]]
    """The records of global tables, sorted by partition."""
    spark = None

    @classmethod
    def of(cls, query: ArrowQuery, records: Sequence[str], start: BatchStart) -> Self:
        # A task makes one Arrow batch of the consecutive records of a partition. Sort the records
        # by partition, so that there are few Arrow batches even if a test pipes records into
        # several topics in turn.
        decoded = [decode_piped(record) for record in records]
        decoded.sort(key=itemgetter("topic", "partition"))
        streams: list[dict[str, Any]] = []
        tables: list[dict[str, Any]] = []
        for record in decoded:
            if record["topic"] in query.streams:
                streams.append(record)
            if record["topic"] in query.tables:
                tables.append(record)
        return cls(query, start, streams, tables)

    def write(self) -> pa.Table:
        return self.query.run(self.start, _batches(self.streams), _batches(self.tables))


def decode_piped(record: str) -> dict[str, Any]:
    """Return the columns of a piped record."""
    values: dict[str, Any] = json.loads(record)
    values["timestamp"] *= 1_000
    for name in ("key", "value"):
        if values[name] is not None:
            values[name] = base64.b64decode(values[name])
    if values["headers"] == "null":
        values["headers"] = None
    return values


def _batches(records: Sequence[dict[str, Any]]) -> Iterator[pa.RecordBatch]:
    if records:
        yield pa.RecordBatch.from_pylist(list(records), PIPED)
