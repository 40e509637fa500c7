"""Offsets of topics, and the number of records that a pipeline has not read yet."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from confluent_kafka import IsolationLevel, TopicPartition
from confluent_kafka.admin import AdminClient, OffsetSpec  # type: ignore[attr-defined]

from sluice.brokers import ANSWER_SECONDS

Offsets = dict[str, dict[int, int]]
"""Topic → partition → offset."""


@dataclass(frozen=True)
class Lag:
    """The end and begin offsets of topics, and the offsets up to which the pipeline has read."""

    ends: Offsets
    positions: Offsets
    begins: Offsets

    @property
    def records(self) -> int:
        """The number of unread offsets. All offsets of a topic that was deleted and created again are unread."""
        return sum(self.unread(topic, partition) for topic, ends in self.ends.items() for partition in ends)

    def unread(self, topic: str, partition: int) -> int:
        """The number of unread offsets of a partition."""
        end, begin = self.ends[topic][partition], self.begins.get(topic, {}).get(partition, 0)
        position = self.positions.get(topic, {}).get(partition, begin)
        return end - max(position, begin) if position <= end else max(end - begin, 1)


def read_lag(admin: AdminClient, topics: Iterable[str], positions: Offsets) -> Lag:
    """The lag of a pipeline that has read its topics up to `positions`. Topics that do not exist are omitted.

    Raises KafkaException or TimeoutError if no broker answers.
    """
    existing = admin.list_topics(timeout=ANSWER_SECONDS).topics
    partitions = [
        TopicPartition(name, number) for name in topics if name in existing for number in existing[name].partitions
    ]
    # The begin offset of an unread partition may be above 0, because of the topic's retention.
    unread = [where for where in partitions if where.partition not in positions.get(where.topic, {})]
    latest, earliest = OffsetSpec.latest(), OffsetSpec.earliest()  # type: ignore[no-untyped-call]
    return Lag(_offsets(admin, partitions, latest), positions, _offsets(admin, unread, earliest))


def _offsets(admin: AdminClient, partitions: list[TopicPartition], which: OffsetSpec) -> Offsets:
    """Begin or end offsets for a reader of committed records; the end is before any open transaction."""
    if not partitions:
        return {}
    futures = admin.list_offsets(
        dict.fromkeys(partitions, which),
        isolation_level=IsolationLevel.READ_COMMITTED,
        request_timeout=ANSWER_SECONDS,
    )
    offsets: Offsets = {}
    for where, future in futures.items():
        offsets.setdefault(where.topic, {})[where.partition] = future.result(ANSWER_SECONDS).offset
    return offsets
