"""Reads the offsets and timestamps of a backlog's records from Kafka, on the driver, to divide it into batches."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
from confluent_kafka import Consumer, IsolationLevel, KafkaError, KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient, OffsetSpec  # type: ignore[attr-defined]

from sluice.engine.batch.accounting import Partition
from sluice.engine.batch.job_topics import TIMEOUT_S, at, kafka_errors
from sluice.engine.read.ordered_backlog import Offsets, Stretch
from sluice.errors import EngineError
from sluice.kafka.brokers import COMMITS_NOTHING, quiet

_CONSUMER: dict[str, str | int | bool] = {
    **COMMITS_NOTHING,
    "isolation.level": "read_committed",
    "enable.partition.eof": True,
    "auto.offset.reset": "error",
    "fetch.wait.max.ms": 10,
    "fetch.queue.backoff.ms": 5,
    # The fetches are small, because the search needs only a few records of most partitions, and
    # discards all others.
    "max.partition.fetch.bytes": 65_536,
    "queued.min.messages": 20_000,
}
_AT_ONCE = 10_000
_SIZES_READ = 100
"""The number of records of each partition whose size is read."""
_WAIT_S = 0.02


def end_offsets(kafka: Mapping[str, str], partitions: Iterable[Partition]) -> dict[Partition, int]:
    """The offset after each partition's last committed record."""
    latest = OffsetSpec.latest()  # type: ignore[no-untyped-call]
    return {partition: result.offset for partition, result in _list_offsets(kafka, partitions, latest)}


def _list_offsets(
    kafka: Mapping[str, str],
    partitions: Iterable[Partition],
    spec: OffsetSpec,
) -> Iterator[tuple[Partition, Any]]:
    admin = AdminClient(quiet(kafka))
    with kafka_errors("Reading the topics' offsets", kafka):
        futures = admin.list_offsets(
            {TopicPartition(*partition): spec for partition in partitions},
            # Records of an open transaction wait for the next run: tasks would not see them.
            isolation_level=IsolationLevel.READ_COMMITTED,
            request_timeout=TIMEOUT_S,
        )
        for partition, future in futures.items():
            yield (partition.topic, partition.partition), future.result(TIMEOUT_S)


@dataclass(frozen=True)
class KafkaTimestamps:
    """The timestamps of committed records before `ends`."""

    kafka: Mapping[str, str]
    consumer: Consumer
    ends: Offsets

    @classmethod
    @contextmanager
    def of(cls, kafka: Mapping[str, str], ends: Offsets) -> Iterator[KafkaTimestamps]:
        """Open a consumer for the timestamps, and close it at the end of the `with` block."""
        consumer = Consumer({**_CONSUMER, **quiet(kafka)})
        try:
            yield cls(kafka, consumer, ends)
        finally:
            consumer.close()

    def index(self, time: int) -> Offsets:
        """Partition → the first offset with a timestamp of at least `time`. Omits partitions without such an offset."""
        with kafka_errors("Reading the topics' index of timestamps", self.kafka):
            times = [TopicPartition(*partition, time) for partition in self.ends]
            answers = self.consumer.offsets_for_times(times, TIMEOUT_S)
            for answer in answers:
                if answer.error is not None:
                    raise KafkaException(answer.error)
        # Kafka returns a negative offset for a partition without such a record.
        reached = [answer for answer in answers if answer.offset >= 0]
        return {(answer.topic, answer.partition): answer.offset for answer in reached}

    def latest(self) -> int:
        """An upper bound of the records' timestamps."""
        largest = OffsetSpec.max_timestamp()  # type: ignore[no-untyped-call]
        return max(int(result.timestamp) for _, result in _list_offsets(self.kafka, self.ends, largest))

    def read(self, starts: Offsets, count: int) -> Mapping[Partition, Stretch]:
        """Read at least `count` records of each partition from its start offset, or all up to the backlog's end."""
        read: dict[Partition, list[tuple[int, int]]] = {partition: [] for partition in starts}
        sizes = dict.fromkeys(starts, 0)
        complete: set[Partition] = set()
        self.consumer.assign([TopicPartition(*partition, offset) for partition, offset in starts.items()])
        last_answer_s = time.monotonic()

        def is_enough() -> bool:
            lacking = [partition for partition, records in read.items() if len(records) < count]
            return complete.issuperset(lacking)

        while not is_enough():
            messages = self.consumer.consume(_AT_ONCE, _WAIT_S)
            if messages:
                last_answer_s = time.monotonic()
            elif time.monotonic() - last_answer_s > TIMEOUT_S:
                raise EngineError(
                    f"Reading the records' timestamps{at(self.kafka)}: no answer for {TIMEOUT_S} s.",
                    next_step="Check that the broker is running and reachable.",
                )
            for message in messages:
                partition = (str(message.topic()), int(message.partition() or 0))
                # The end of a partition is reported as an error, with the next offset.
                error, offset = message.error(), int(message.offset() or 0)
                if error is None and offset < self.ends[partition]:
                    read[partition].append((offset, message.timestamp()[1]))
                    sizes[partition] += len(message.key() or b"") + len(message.value() or b"")
                elif error is not None and error.code() != KafkaError._PARTITION_EOF:
                    with kafka_errors("Reading the records' timestamps", self.kafka):
                        raise KafkaException(error)
                # The partition is read completely. A record after the backlog's end arrived after
                # the run began, so it is left to the next run.
                if error is not None or offset >= self.ends[partition] - 1:
                    complete.add(partition)
        # A client with assigned partitions would go on fetching records that nobody reads.
        self.consumer.unassign()
        stretches: dict[Partition, Stretch] = {}
        for partition, records in read.items():
            offsets, timestamps = np.array(records, np.int64).reshape(-1, 2).T
            stretches[partition] = Stretch(offsets, timestamps, partition in complete, sizes[partition])
        return stretches

    def mean_size(self, starts: Offsets) -> float:
        """The mean size of the records from the start offsets on, in bytes, estimated from the first of them."""
        unread = {partition: offset for partition, offset in starts.items() if offset < self.ends[partition]}
        total = 0.0
        for partition, stretch in self.read(unread, _SIZES_READ).items():
            share = (self.ends[partition] - unread[partition]) / max(len(stretch.offsets), 1)
            total += stretch.size * share
        return total / max(sum(self.ends[partition] - offset for partition, offset in unread.items()), 1)
