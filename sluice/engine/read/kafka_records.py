"""The first step of the streaming query: reads the ranges of a batch's plan from Kafka.

The stream only has the tasks' numbers, which say which of the ranges a task reads. If Spark's own source read the
records, each record would cost three times as much CPU time, most of it in Java code that is compiled anew in every
run.
"""

from __future__ import annotations

import time
from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pyarrow as pa
from confluent_kafka import Consumer, KafkaError, KafkaException, Message, TopicPartition

from sluice.engine.batch.batch_start import Range, this_batch
from sluice.engine.batch.job_topics import at, kafka_errors
from sluice.errors import EngineError
from sluice.kafka.brokers import COMMITS_NOTHING, quiet
from sluice.kafka.topics import headers_of
from sluice.values.headers import Headers

RECORDS = pa.schema([
    ("topic", pa.string()), ("partition", pa.int32()), ("offset", pa.int64()), ("timestamp", pa.timestamp("us", "UTC")),
    ("key", pa.binary()), ("value", pa.binary()), ("headers", pa.string()),
])  # fmt: skip
"""The columns of records. Headers are JSON with values in base64, or null for a record without headers: Arrow lists are
slow even for records without headers."""
_CONSUMER: dict[str, str | int | bool] = {
    **COMMITS_NOTHING,
    "isolation.level": "read_committed",
    "auto.offset.reset": "error",
    # A range may end with records that are not visible: the end of a transaction, or aborted records.
    "enable.partition.eof": True,
    "check.crcs": True,
    # A longer wait for records at the end of the log would delay every batch.
    "fetch.wait.max.ms": 10,
    "fetch.queue.backoff.ms": 5,
    # A broker also sends larger records, one at a time.
    "max.partition.fetch.bytes": 4_194_304,
    "receive.message.max.bytes": 2_147_483_647,
    # The most memory that records need which a task has not asked for yet.
    "queued.max.messages.kbytes": 16_384,
}
_AT_ONCE = 20_000
_WAIT_S = 0.05
_LONGEST_WAIT_S = 60.0
"""If the broker is down, the run ends after this time; the next run continues."""
_FILES = ("ssl.ca", "ssl.certificate", "ssl.key")


@dataclass(frozen=True)
class KafkaRecords:
    """Reads the batch's records of some topics. Takes a task's number, and yields record batches of `RECORDS`.

    Each record batch has records of one partition, in the order of their offsets.
    """

    kafka: Mapping[str, str] = field(repr=False)
    topics: frozenset[str]
    tasks: int
    """The number of tasks among which the batch's partitions are divided."""

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        ranges = [part for part in this_batch().ranges if part.topic in self.topics]
        for batch in batches:
            for number in batch.column(0).to_pylist():
                # The stream would number the tasks of several batches one after the other.
                yield from read_ranges(self.kafka, ranges[number % self.tasks :: self.tasks])


def read_ranges(kafka: Mapping[str, str], ranges: Sequence[Range]) -> Iterator[pa.RecordBatch]:
    """The committed records of ranges, one range after the other, in record batches of `RECORDS`.

    Raises EngineError if the brokers do not answer, or if a range is no longer in its topic.
    """
    if not ranges:
        return
    errors: list[str] = []
    settings = {**_CONSUMER, **quiet(kafka), "error_cb": lambda error: errors.append(error.str())}
    with kafka_errors("Reading records", kafka), closing(Consumer(settings)) as consumer:
        for part in ranges:
            yield from _read(consumer, part, kafka, errors)


def _read(
    consumer: Consumer,
    part: Range,
    kafka: Mapping[str, str],
    errors: Sequence[str],
) -> Iterator[pa.RecordBatch]:
    consumer.assign([TopicPartition(part.topic, part.partition, part.begin)])
    position, answered_s = part.begin, time.monotonic()
    while position < part.end:
        messages = consumer.consume(min(_AT_ONCE, part.end - position), _WAIT_S)
        if messages:
            answered_s = time.monotonic()
        elif time.monotonic() - answered_s > _LONGEST_WAIT_S:
            reason = f" ({errors[-1].rstrip('.')})" if errors else ""
            raise EngineError(
                f"Reading {part.topic}, partition {part.partition}{at(kafka)}: no answer for {_LONGEST_WAIT_S:.0f} s"
                f"{reason}.",
                next_step="Check that the broker is running, and that this host can reach it.",
            )
        records = [message for message in messages if message.error() is None]
        if records:
            offsets = [message.offset() or 0 for message in records]
            position = offsets[-1] + 1
            # Records after the range belong to the next batch.
            if count := bisect_left(offsets, part.end):
                yield _record_batch(part, records[:count], offsets[:count])
                # The tasks after this one have had their time since the last answer.
                answered_s = time.monotonic()
        if len(records) < len(messages):
            position = _after_errors(part, messages, position)


def _after_errors(part: Range, messages: Sequence[Message], position: int) -> int:
    """The position after the messages. The client reports errors, and the end of the partition, as messages."""
    for message in messages:
        error = message.error()
        if error is None:
            continue
        if error.code() == KafkaError._AUTO_OFFSET_RESET:
            raise EngineError(
                f"{part.topic}, partition {part.partition}, has lost records of the batch: offset {position} is not "
                "in the topic any more.",
                next_step="Retention has removed the records, or the topic was created again. Rebuild the state from "
                "the records that are left.",
            )
        if error.code() != KafkaError._PARTITION_EOF:
            raise KafkaException(error)
        # No record that a reader may see is between the last one and the end.
        position = max(position, message.offset() or 0)
    return position


def _record_batch(part: Range, records: Sequence[Message], offsets: Sequence[int]) -> pa.RecordBatch:
    count = len(records)
    milliseconds = np.array([message.timestamp()[1] for message in records], np.int64)
    headers = list(map(headers_of, records))
    texts = [Headers(pairs).json() for pairs in headers] if any(headers) else pa.nulls(count)
    columns = [
        pa.repeat(pa.scalar(part.topic), count),
        pa.repeat(pa.scalar(part.partition, pa.int32()), count),
        pa.array(offsets, pa.int64()),
        pa.array(milliseconds * 1_000).cast(pa.timestamp("us", "UTC")),
        pa.array([message.key() for message in records], pa.binary()),
        pa.array([message.value() for message in records], pa.binary()),
        pa.array(texts, pa.string()),
    ]
    return pa.RecordBatch.from_arrays(columns, schema=RECORDS)


def with_certificates(kafka: Mapping[str, str]) -> dict[str, str]:
    """The settings with the certificates' texts in place of their files, so that executors need no copies of the files.

    A file that cannot be read stays a setting: the client's error names it.
    """
    settings = dict(kafka)
    for name in _FILES:
        path = Path(settings.get(f"{name}.location", ""))
        if path.is_file():
            del settings[f"{name}.location"]
            settings[f"{name}.pem"] = path.read_text()
    return settings
