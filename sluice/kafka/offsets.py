"""Offsets of topics, and the number of records that a pipeline has not read yet."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from confluent_kafka import IsolationLevel, KafkaError, KafkaException, TopicCollection, TopicPartition
from confluent_kafka.admin import AdminClient, OffsetSpec  # type: ignore[attr-defined]

from sluice.kafka.brokers import ANSWER_SECONDS

_MISSING = {KafkaError.UNKNOWN_TOPIC_OR_PART, KafkaError.TOPIC_EXCEPTION}
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

    def of(self, topics: Iterable[str], positions: Offsets) -> Lag:
        """The lag of one of several pipelines whose topics were read together."""
        return Lag({topic: self.ends[topic] for topic in topics if topic in self.ends}, positions, self.begins)

    def unread(self, topic: str, partition: int) -> int:
        """The number of unread offsets of a partition."""
        end, begin = self.ends[topic][partition], self.begins.get(topic, {}).get(partition, 0)
        position = self.positions.get(topic, {}).get(partition, begin)
        return end - max(position, begin) if position <= end else max(end - begin, 1)


def read_lag(admin: AdminClient, topics: Iterable[str], positions: Offsets) -> Lag:
    """The lag of a pipeline that has read its topics up to `positions`. Topics that do not exist are omitted.

    Raises KafkaException or TimeoutError if no broker answers.
    """
    partitions = _partitions(admin, topics)
    # The begin offset of an unread partition may be above 0, because of the topic's retention.
    unread = [where for where in partitions if where.partition not in positions.get(where.topic, {})]
    latest, earliest = OffsetSpec.latest(), OffsetSpec.earliest()  # type: ignore[no-untyped-call]
    return Lag(_offsets(admin, partitions, latest), positions, _offsets(admin, unread, earliest))


def _partitions(admin: AdminClient, topics: Iterable[str]) -> list[TopicPartition]:
    """The partitions of the topics that exist. Only these topics are asked for, however many the cluster has."""
    found: list[TopicPartition] = []
    futures = admin.describe_topics(TopicCollection([*topics]), request_timeout=ANSWER_SECONDS)
    for name, future in futures.items():
        try:
            described = future.result(ANSWER_SECONDS)
        except KafkaException as error:
            if error.args[0].code() not in _MISSING:
                raise
        else:
            found += [TopicPartition(name, partition.id) for partition in described.partitions]
    return found


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
