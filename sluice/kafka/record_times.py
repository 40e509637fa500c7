"""Reads the timestamps of records at given offsets."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from datetime import datetime

from confluent_kafka import Consumer, TopicPartition

from sluice.kafka.brokers import ANSWER_SECONDS, broker_errors, configuration_errors, quiet
from sluice.kafka.unread_records import Lag
from sluice.values.record_places import Partition
from sluice.values.utc_times import utc_datetime

_MOST_BYTES = 65_536
"""The maximum number of bytes that a request fetches from a partition. A broker sends a larger
record nevertheless."""


class OldestUnread:
    """The timestamps of pipelines' oldest unread records, cached in this process.

    The timestamp at an offset is read from Kafka only once, so a scrape of the metrics costs
    little.
    """

    def __init__(self, kafka: Mapping[str, str]) -> None:
        self._kafka = kafka
        self._times: dict[tuple[Partition, int], datetime] = {}
        """Partition and offset → the timestamp of the first record at this offset or after it."""

    def of(self, lags: Iterable[Lag]) -> dict[tuple[Partition, int], datetime]:
        """Partition and first unread offset → the timestamp of the first unread record.

        Omits partitions without unread records, and partitions whose record cannot be read in time.
        Raises BrokersUnreachable.
        """
        unread: set[tuple[Partition, int]] = set()
        for lag in lags:
            unread.update(lag.first_unread())
        for has_been_read in self._times.keys() - unread:
            del self._times[has_been_read]
        unknown = unread - self._times.keys()
        # Two pipelines may have read a partition up to different offsets. But a consumer has only
        # one position in a partition, so each call of `timestamps_at` reads at one offset of the
        # partition.
        while unknown:
            batch = dict(unknown)
            read = timestamps_at(self._kafka, batch)
            for partition, timestamp in read.items():
                self._times[partition, batch[partition]] = timestamp
            unknown -= batch.items()
        return dict(self._times)


def timestamps_at(
    kafka: Mapping[str, str],
    offsets: Mapping[Partition, int],
) -> dict[Partition, datetime]:
    """Partition → the timestamp of its first record at or after an offset.

    Also reads records of open transactions. Omits partitions without such a record. Raises
    BrokersUnreachable.
    """
    places: list[TopicPartition] = []
    for partition, offset in offsets.items():
        places.append(TopicPartition(*partition, offset))
    if not places:
        return {}
    with configuration_errors(kafka):
        consumer = Consumer({
            **quiet(kafka), "group.id": "sluice-timestamps", "enable.auto.commit": False,
            # With `read_committed`, the consumer would get no record of an open transaction.
            "isolation.level": "read_uncommitted", "auto.offset.reset": "earliest",
            "enable.partition.eof": True,
            "fetch.message.max.bytes": _MOST_BYTES, "queued.min.messages": 1,
        })  # fmt: skip
    times: dict[Partition, datetime] = {}
    unseen = {*offsets}
    try:
        with broker_errors(kafka):
            consumer.assign(places)
            until = time.monotonic() + ANSWER_SECONDS
            while unseen and time.monotonic() < until:
                for message in consumer.consume(len(places), 0.1):
                    partition = message.topic() or "", message.partition() or 0
                    if partition in unseen and message.error() is None:
                        times[partition] = utc_datetime(message.timestamp()[1])
                    unseen.discard(partition)
    finally:
        consumer.close()
    return times
