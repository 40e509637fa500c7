"""Offsets of topics, and the number of records that a pipeline has not read yet."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime

from confluent_kafka import Consumer, IsolationLevel, KafkaError, KafkaException, TopicCollection, TopicPartition
from confluent_kafka.admin import AdminClient, OffsetSpec  # type: ignore[attr-defined]

from sluice.kafka.brokers import ANSWER_SECONDS, broker_errors, configuration_errors, quiet

_MISSING = {KafkaError.UNKNOWN_TOPIC_OR_PART, KafkaError.TOPIC_EXCEPTION}
Offsets = dict[str, dict[int, int]]
"""Topic → partition → offset."""
HELD_SECONDS = 60.0
"""After this time, an open transaction counts as hanging. Most producers commit within a second."""


@dataclass(frozen=True)
class Lag:
    """The end and begin offsets of topics, and the offsets up to which the pipeline has read."""

    ends: Offsets
    """Where a reader of committed records ends now: at the first record of the oldest open transaction, if any."""
    positions: Offsets
    begins: Offsets
    lasts: Offsets = field(default_factory=dict)
    """The ends of the topics with the records that open transactions hold back; missing where they are the same."""

    @property
    def records(self) -> int:
        """The number of unread offsets. All offsets of a topic that was deleted and created again are unread."""
        return sum(self.unread(topic, partition) for topic, partition in self._partitions())

    @property
    def readable(self) -> int:
        """The number of unread offsets that a run can read now."""
        ends = self.ends
        return sum(self._unread(topic, partition, ends[topic][partition]) for topic, partition in self._partitions())

    @property
    def held(self) -> Offsets:
        """The ends of the partitions in which an open transaction holds back records."""
        return {
            topic: held
            for topic, ends in self.ends.items()
            if (held := {partition: end for partition, end in ends.items() if self.held_back(topic, partition)})
        }

    def of(self, topics: Iterable[str], positions: Offsets) -> Lag:
        """The lag of one of several pipelines whose topics were read together."""
        ends = {topic: self.ends[topic] for topic in topics if topic in self.ends}
        return Lag(ends, positions, self.begins, self.lasts)

    def still_held(self, later: Lag) -> Lag:
        """A later lag, without the partitions in which other records are held back than in this one."""
        held = self.held
        ends = {
            topic: {partition: end for partition, end in of_topic.items() if held.get(topic, {}).get(partition) == end}
            for topic, of_topic in later.held.items()
        }
        return Lag(ends, later.positions, later.begins, later.lasts)

    def last(self, topic: str, partition: int) -> int:
        """The end of a partition, with the records that an open transaction holds back."""
        # The two ends are read one after the other.
        return max(self.lasts.get(topic, {}).get(partition, 0), self.ends[topic][partition])

    def unread(self, topic: str, partition: int) -> int:
        """The number of unread offsets of a partition."""
        return self._unread(topic, partition, self.last(topic, partition))

    def held_back(self, topic: str, partition: int) -> int:
        """The number of offsets of a partition that an open transaction holds back."""
        return self.last(topic, partition) - self.ends[topic][partition]

    def _partitions(self) -> Iterator[tuple[str, int]]:
        for topic, ends in self.ends.items():
            for partition in ends:
                yield topic, partition

    def _unread(self, topic: str, partition: int, end: int) -> int:
        begin = self.begins.get(topic, {}).get(partition, 0)
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
    ends, begins = _offsets(admin, partitions, latest), _offsets(admin, unread, earliest)
    return Lag(ends, positions, begins, _offsets(admin, partitions, latest, IsolationLevel.READ_UNCOMMITTED))


class HeldPartitions:
    """Since when open transactions hold back records, as far as this process has seen.

    Kafka does not say it, and the records do not either: producers choose their timestamps, such as event times.
    """

    def __init__(self) -> None:
        self._seen: dict[tuple[str, int], tuple[int, datetime]] = {}
        """Topic and partition → the offset at which records are held back, and when it was first seen."""

    def since(self, lag: Lag, now: datetime) -> datetime | None:
        """When the oldest transaction that holds back records of a lag was first seen; None if none does."""
        times: list[datetime] = []
        for topic, ends in lag.held.items():
            for partition, offset in ends.items():
                seen = self._seen.get((topic, partition))
                if seen is None or seen[0] != offset:
                    seen = self._seen[topic, partition] = offset, now
                times.append(seen[1])
        return min(times, default=None)


def oldest_held(kafka: Mapping[str, str], lag: Lag) -> datetime | None:
    """The oldest timestamp of the records with which transactions that hold back records began; None if none does.

    Raises BrokersUnreachable.
    """
    starts = [
        TopicPartition(topic, partition, end) for topic, ends in lag.held.items() for partition, end in ends.items()
    ]
    if not starts:
        return None
    with configuration_errors():
        consumer = Consumer({
            **quiet(kafka), "group.id": "sluice-open-transactions", "enable.auto.commit": False,
            "isolation.level": "read_uncommitted", "auto.offset.reset": "earliest", "enable.partition.eof": True,
        })  # fmt: skip
    try:
        with broker_errors(kafka):
            consumer.assign(starts)
            oldest: int | None = None
            unseen, until = {(each.topic, each.partition) for each in starts}, time.monotonic() + ANSWER_SECONDS
            while unseen and time.monotonic() < until:
                for message in consumer.consume(len(starts), 0.1):
                    unseen.discard((message.topic() or "", message.partition() or 0))
                    if message.error() is None:
                        began = message.timestamp()[1]
                        oldest = began if oldest is None else min(oldest, began)
    finally:
        consumer.close()
    return None if oldest is None else datetime.fromtimestamp(oldest / 1_000, UTC)


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


def _offsets(
    admin: AdminClient,
    partitions: list[TopicPartition],
    which: OffsetSpec,
    isolation: IsolationLevel = IsolationLevel.READ_COMMITTED,
) -> Offsets:
    """Begin or end offsets. For a reader of committed records, the end is before any open transaction."""
    if not partitions:
        return {}
    futures = admin.list_offsets(
        dict.fromkeys(partitions, which),
        isolation_level=isolation,
        request_timeout=ANSWER_SECONDS,
    )
    offsets: Offsets = {}
    for where, future in futures.items():
        offsets.setdefault(where.topic, {})[where.partition] = future.result(ANSWER_SECONDS).offset
    return offsets
