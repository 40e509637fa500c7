"""The first step of the streaming query: reads the ranges of a batch's plan from Kafka.

The stream only has the tasks' numbers, which determine the ranges that each task reads. If Spark's
own source read the records, each record would cost three times as much CPU time, most of it in Java
code that is compiled anew in every run.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import pyarrow as pa
from confluent_kafka import Message
from typing_extensions import override

from sluice.engine.batch.arrow_tasks import TaskOfBatch
from sluice.engine.batch.batch_start import RunningTask
from sluice.engine.batch.gathered_batches import combined
from sluice.engine.read.backlog_timestamps import timestamps_of
from sluice.kafka.range_reader import PartitionRecords, RangeReader
from sluice.kafka.topics import headers_of_each
from sluice.values.headers import Headers
from sluice.values.record_places import Range

RECORDS = pa.schema([
    ("topic", pa.string()), ("partition", pa.int32()), ("offset", pa.int64()),
    ("timestamp", pa.timestamp("us", "UTC")), ("key", pa.binary()), ("value", pa.binary()),
    ("headers", pa.string()), ("leader_epoch", pa.int32()),
])  # fmt: skip
"""The columns of records. Headers are JSON with values in base64, or null for a record without
headers: Arrow lists are slow even for records without headers. The leader epoch is the number of
the partition leader's term in which the record was written; null if it is unknown."""
_SETTINGS = {
    # The maximum memory for fetched records that the task has not taken yet. The client keeps
    # fetching while it uses less, and a compressed fetch may be several times as large in memory.
    "queued.max.messages.kbytes": 4_096,
    "max.partition.fetch.bytes": 1_048_576,
}
_MOST_ROWS, _MOST_BYTES = 4_000, 4_194_304
"""About how many rows and bytes a record batch has. The reader returns only few messages at once.
They are gathered, because each record batch has a fixed cost when it is decoded."""


@dataclass(frozen=True)
class KafkaRecords(TaskOfBatch):
    """Reads the batch's records of some topics.

    Takes a task's number, and yields record batches of `RECORDS`.

    Each record batch has records of one partition, in the order of their offsets.
    """

    kafka: Mapping[str, str] = field(repr=False)
    topics: frozenset[str]
    tasks: int
    """The number of tasks between which the batch's partitions are divided."""

    @override
    def run(self, batches: Iterator[pa.RecordBatch], task: RunningTask) -> Iterator[pa.RecordBatch]:
        ranges = [part for part in task.start.ranges if part.topic in self.topics]
        for batch in batches:
            for number in batch.column(0).to_pylist():
                # The stream gives the tasks of successive batches consecutive numbers.
                yield from read_ranges(self.kafka, ranges[number % self.tasks :: self.tasks])


def read_ranges(kafka: Mapping[str, str], ranges: Sequence[Range]) -> Iterator[pa.RecordBatch]:
    """Yield the committed records of each range in turn, in record batches of `RECORDS`.

    Raises the errors of `RangeReader.read`.
    """
    if not ranges:
        return
    with RangeReader(kafka, _SETTINGS) as reader:
        for part in ranges:
            yield from combined(map(_record_batch, reader.read([part])), _MOST_ROWS, _MOST_BYTES)


def _record_batch(records: PartitionRecords) -> pa.RecordBatch:
    (topic, partition), messages, offsets = records
    count = len(messages)
    headers = headers_of_each(messages)
    texts = [Headers(pairs).json() for pairs in headers] if any(headers) else pa.nulls(count)
    columns = [
        pa.repeat(pa.scalar(topic), count),
        pa.repeat(pa.scalar(partition, pa.int32()), count),
        pa.array(offsets, pa.int64()),
        pa.array(timestamps_of(messages) * 1_000).cast(pa.timestamp("us", "UTC")),
        pa.array(list(map(Message.key, messages)), pa.binary()),
        pa.array(list(map(Message.value, messages)), pa.binary()),
        pa.array(texts, pa.string()),
        _leader_epochs(messages),
    ]
    return pa.RecordBatch.from_arrays(columns, schema=RECORDS)


def _leader_epochs(messages: Sequence[Message]) -> pa.Array:
    # A partition's leader epochs never decrease, so if the first and the last message have the same
    # epoch, all messages between them have it, too.
    first, last = messages[0].leader_epoch(), messages[-1].leader_epoch()
    if first == last:
        return pa.repeat(pa.scalar(first, pa.int32()), len(messages))
    return pa.array(list(map(Message.leader_epoch, messages)), pa.int32())
