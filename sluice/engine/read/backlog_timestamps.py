"""Reads offsets and timestamps of a backlog's records, on the driver, to divide it into batches."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from operator import itemgetter

import numpy as np
import pyarrow as pa
from confluent_kafka import KafkaException, Message, TopicPartition
from confluent_kafka.admin import (  # type: ignore[attr-defined]
    AdminClient,
    ListOffsetsResultInfo,
    OffsetSpec,
)

from sluice.engine.batch.job_topics import TIMEOUT_S, kafka_errors
from sluice.engine.batch.side_outputs import DataSize
from sluice.engine.read.ordered_backlog import Offsets, Stretch
from sluice.kafka.brokers import silent_admin
from sluice.kafka.denied_operations import DESCRIBE, denial_named
from sluice.kafka.listed_offsets import list_offsets
from sluice.kafka.range_reader import PartitionRecords, RangeReader
from sluice.support.arrays import Times
from sluice.values.record_places import Partition, Range

_SETTINGS = {
    # The fetches are small, because the search needs only a few records of most partitions, and
    # discards all others.
    "max.partition.fetch.bytes": 65_536,
    "queued.min.messages": 20_000,
}
_SIZES_READ = 100
"""The number of records of each partition whose size is read."""
_LAST_MS = (2**63 - 1) // 1_000
"""The last timestamp that fits 64 bits in microseconds, about the year 294,000."""


def timestamps_of(messages: Sequence[Message]) -> Times:
    """Return the timestamps of records, epoch ms.

    A producer can write any number of 64 bits, for example nanoseconds by mistake. A number that
    does not fit 64 bits in microseconds becomes the nearest number that fits, so it stays far in
    the future or in the past.
    """
    timestamps = np.fromiter(
        map(itemgetter(1), map(Message.timestamp, messages)), np.int64, len(messages)
    )
    return np.clip(timestamps, -_LAST_MS, _LAST_MS)


def end_offsets(
    kafka: Mapping[str, str],
    partitions: Iterable[Partition],
    admin: AdminClient | None = None,
) -> dict[Partition, int]:
    """Return the offset after each partition's last committed record.

    `admin` is a client to use again; None for a new one.
    """
    latest = OffsetSpec.latest()  # type: ignore[no-untyped-call]
    listed = _listed(kafka, partitions, latest, admin)
    ends: dict[Partition, int] = {}
    for place, result in listed.items():
        ends[place.topic, place.partition] = result.offset
    return ends


def _listed(
    kafka: Mapping[str, str],
    partitions: Iterable[Partition],
    which: OffsetSpec,
    admin: AdminClient | None = None,
) -> dict[TopicPartition, ListOffsetsResultInfo]:
    """Return the offsets that Kafka lists for committed records.

    Records of open transactions wait for the next run.
    """
    admin = admin or silent_admin(kafka)
    places = [TopicPartition(*partition) for partition in partitions]
    with kafka_errors("Reading the topics' offsets", kafka):
        # If a client requests offsets before it is connected, it may find the partitions' leaders
        # only after one to three seconds. So first make a request that waits for the connection.
        admin.describe_cluster(request_timeout=TIMEOUT_S).result(TIMEOUT_S)
        return list_offsets(admin, places, which, TIMEOUT_S)


@dataclass(frozen=True)
class KafkaTimestamps:
    """The timestamps of committed records before `ends`."""

    kafka: Mapping[str, str] = field(repr=False)
    reader: RangeReader
    ends: Offsets

    @classmethod
    @contextmanager
    def of(cls, kafka: Mapping[str, str], ends: Offsets) -> Iterator[KafkaTimestamps]:
        """Open a consumer for the timestamps, and close it at the end of the `with` block."""
        with RangeReader(kafka, _SETTINGS) as reader:
            yield cls(kafka, reader, ends)

    def index(self, time: int) -> Offsets:
        """Partition → the first offset with a timestamp of at least `time`.

        Omits partitions without such an offset.
        """
        with kafka_errors("Reading the topics' index of timestamps", self.kafka):
            times = [TopicPartition(*partition, time) for partition in self.ends]
            answers = self.reader.consumer.offsets_for_times(times, TIMEOUT_S)
            for answer in answers:
                if answer.error is not None:
                    with denial_named(DESCRIBE, answer.topic):
                        raise KafkaException(answer.error)
        firsts: dict[Partition, int] = {}
        for answer in answers:
            # Kafka returns a negative offset for a partition without such a record.
            if answer.offset >= 0:
                firsts[answer.topic, answer.partition] = answer.offset
        return firsts

    def latest(self) -> int:
        """Return an upper bound of the records' timestamps."""
        largest = OffsetSpec.max_timestamp()  # type: ignore[no-untyped-call]
        listed = _listed(self.kafka, self.ends, largest)
        latest = max(int(result.timestamp) for result in listed.values())
        return min(latest, _LAST_MS)

    def read(self, starts: Offsets, count: int) -> Mapping[Partition, Stretch]:
        """Read each partition from its start: at least `count` records, or the whole backlog."""
        read: dict[Partition, list[tuple[int, int]]] = {partition: [] for partition in starts}
        for partition, messages, offsets in self._records(starts, count):
            read[partition] += zip(offsets.tolist(), timestamps_of(messages).tolist(), strict=True)
        stretches: dict[Partition, Stretch] = {}
        for partition, records in read.items():
            all_offsets, timestamps = np.array(records, np.int64).reshape(-1, 2).T
            is_complete = partition not in self.reader.unread
            stretches[partition] = Stretch(all_offsets, timestamps, is_complete)
        return stretches

    def mean_size(self, starts: Offsets) -> DataSize:
        """Estimate the mean size of the unread records from the first ones of each partition."""
        unread: dict[Partition, int] = {}
        for partition, offset in starts.items():
            if offset < self.ends[partition]:
                unread[partition] = offset
        counts, sizes, compressed = Counter[Partition](), Counter[Partition](), Counter[Partition]()
        for partition, messages, _ in self._records(unread, _SIZES_READ):
            parts: list[bytes] = []
            for message in messages:
                parts += [message.key() or b"", message.value() or b""]
            data = b"".join(parts)
            counts[partition] += len(messages)
            sizes[partition] += len(data)
            compressed[partition] += len(pa.compress(data, "lz4", asbytes=True))
        count = 0
        size = compressed_size = 0.0
        for partition, offset in unread.items():
            of_partition = self.ends[partition] - offset
            count += of_partition
            share = of_partition / max(counts[partition], 1)
            size += sizes[partition] * share
            compressed_size += compressed[partition] * share
        count = max(count, 1)
        return DataSize(size / count, compressed_size / count)

    def _records(self, starts: Offsets, count: int) -> Iterator[PartitionRecords]:
        """Yield each partition's records from its start: `count` or more, or its whole backlog."""
        ranges: list[Range] = []
        for partition, offset in starts.items():
            ranges.append(Range(*partition, offset, self.ends[partition]))
        counts = Counter[Partition]()
        for records in self.reader.read(ranges):
            yield records
            counts[records.partition] += len(records.messages)
            if counts[records.partition] >= count:
                # Leave the partition: otherwise, the client would fetch the rest of it while it
                # waits for records of another partition.
                self.reader.leave(records.partition)
        self.reader.pause()
