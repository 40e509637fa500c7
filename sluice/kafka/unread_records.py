"""Counts the records that a pipeline has not read: `Lag` computes the counts from offsets."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from confluent_kafka import (
    IsolationLevel,
    KafkaError,
    KafkaException,
    TopicCollection,
    TopicPartition,
)
from confluent_kafka.admin import (  # type: ignore[attr-defined]
    AdminClient,
    ListOffsetsResultInfo,
    OffsetSpec,
)

from sluice.kafka.brokers import ANSWER_SECONDS
from sluice.kafka.denied_operations import is_denial
from sluice.kafka.listed_offsets import list_offsets
from sluice.values.host_ports import address_of
from sluice.values.topic_patterns import is_pattern, named_or_matching

_MISSING_TOPIC = {KafkaError.UNKNOWN_TOPIC_OR_PART, KafkaError.TOPIC_EXCEPTION}
Offsets = dict[str, dict[int, int]]
"""Topic → partition → offset."""


@dataclass(frozen=True)
class Lag:
    """The end and begin offsets of topics, and the offsets up to which the pipeline has read."""

    ends: Offsets
    """The end offsets for a reader of committed records. If a partition has open transactions, such
    a reader stops before the first record of the oldest transaction."""
    positions: Offsets
    begins: Offsets
    full_ends: Offsets = field(default_factory=dict)
    """The ends of partitions, including the records that open transactions hold back. May omit
    partitions in which no records are held back."""
    broker: str = ""
    """HOST:PORT of a broker that has one of the partitions; empty if no partition has a broker."""
    denied: frozenset[str] = frozenset()
    """The topics that this client may not describe. They are not in `ends`."""

    @property
    def unread(self) -> int:
        """The number of unread records. Records that open transactions hold back count, too."""
        count = 0
        for topic, partition in self.partitions():
            count += self.unread_in(topic, partition)
        return count

    @property
    def readable(self) -> int:
        """The number of unread records that a run can read now."""
        count = 0
        for topic, partition in self.partitions():
            count += self._count(topic, partition, self.ends[topic][partition])
        return count

    def missing(self, topics: Iterable[str]) -> list[str]:
        """Return the topics that do not exist, or that this client may not describe, sorted.

        Includes patterns that match no topic, and topics that were once read through a pattern but
        have been deleted.
        """
        topics = [*topics]
        wanted = {*named_or_matching(topics, self.positions)}
        for topic in topics:
            if is_pattern(topic) and not named_or_matching([topic], self.ends):
                wanted.add(topic)
        return sorted(wanted - self.ends.keys())

    @property
    def held_ends(self) -> Offsets:
        """The ends of the partitions in which an open transaction holds back records."""
        held: Offsets = {}
        for topic, partition in self.partitions():
            if self.held_in(topic, partition):
                held.setdefault(topic, {})[partition] = self.ends[topic][partition]
        return held

    def partitions(self) -> Iterator[tuple[str, int]]:
        """Yield the topic and number of each partition."""
        for topic, ends in self.ends.items():
            for partition in ends:
                yield topic, partition

    def full_end(self, topic: str, partition: int) -> int:
        """Return the end of a partition, with the records that an open transaction holds back."""
        # `ends` and `full_ends` are read one after the other, so a full end may be older and
        # therefore smaller than the end.
        return max(self.full_ends.get(topic, {}).get(partition, 0), self.ends[topic][partition])

    def unread_in(self, topic: str, partition: int) -> int:
        """Return the number of unread records of a partition."""
        return self._count(topic, partition, self.full_end(topic, partition))

    def held_in(self, topic: str, partition: int) -> int:
        """Return the number of records of a partition that an open transaction holds back."""
        return self.full_end(topic, partition) - self.ends[topic][partition]

    def first_unread(self) -> Iterator[tuple[tuple[str, int], int]]:
        """Yield each partition with unread records, and the offset of the first of them."""
        for topic, partition in self.partitions():
            if self.unread_in(topic, partition):
                yield (
                    (topic, partition),
                    self._first(topic, partition, self.full_end(topic, partition)),
                )

    def of_pipeline(self, topics: Iterable[str], positions: Offsets) -> Lag:
        """Return the lag of one pipeline, from this lag of several pipelines' topics."""
        read = named_or_matching(topics, self.ends)
        ends = {topic: self.ends[topic] for topic in read if topic in self.ends}
        return Lag(ends, positions, self.begins, self.full_ends, self.broker, self.denied)

    def still_held(self, later: Lag) -> Lag:
        """Return `later`, limited to partitions that the same transaction still holds back."""
        before = self.held_ends
        ends: Offsets = {}
        for topic, later_ends in later.held_ends.items():
            for partition, end in later_ends.items():
                # A transaction that has ended moves the end of the committed records.
                if before.get(topic, {}).get(partition) == end:
                    ends.setdefault(topic, {})[partition] = end
        return Lag(ends, later.positions, later.begins, later.full_ends, later.broker, later.denied)

    def _count(self, topic: str, partition: int, end: int) -> int:
        """Return the number of offsets before `end` that the pipeline has not read."""
        # If the topic was deleted and created again, count at least one record, even if the topic
        # is empty. A run then starts, and reports the change.
        is_new = self.positions.get(topic, {}).get(partition, 0) > end
        return max(end - self._first(topic, partition, end), int(is_new))

    def _first(self, topic: str, partition: int, end: int) -> int:
        """Return the offset of the first record before `end` that the pipeline has not read.

        Return `end` if the pipeline has read all records.
        """
        begin = self.begins.get(topic, {}).get(partition, 0)
        position = self.positions.get(topic, {}).get(partition, begin)
        # If the position is after the end, the topic was deleted and created again, and all records
        # are unread. If the begin is after the position, retention has removed unread records.
        if position > end:
            return begin
        return max(position, begin)


def read_lag(admin: AdminClient, topics: Iterable[str], positions: Offsets) -> Lag:
    """Return the lag of a pipeline that has read its topics up to `positions`.

    `topics` are names and patterns. Topics that do not exist are omitted. Raises KafkaException or
    TimeoutError if no broker answers.
    """
    partitions, broker, denied = _partitions(admin, topics)
    # The begin offset of an unread partition may be above 0, because of the topic's retention.
    unread: list[TopicPartition] = []
    for where in partitions:
        if where.partition not in positions.get(where.topic, {}):
            unread.append(where)
    latest, earliest = OffsetSpec.latest(), OffsetSpec.earliest()  # type: ignore[no-untyped-call]
    ends = _by_topic(list_offsets(admin, partitions, latest, ANSWER_SECONDS))
    begins = _by_topic(list_offsets(admin, unread, earliest, ANSWER_SECONDS))
    full_ends = list_offsets(
        admin, partitions, latest, ANSWER_SECONDS, IsolationLevel.READ_UNCOMMITTED
    )
    return Lag(ends, positions, begins, _by_topic(full_ends), broker, denied)


def _partitions(
    admin: AdminClient,
    topics: Iterable[str],
) -> tuple[list[TopicPartition], str, frozenset[str]]:
    """Find the partitions of the topics, the address of a broker, and denied topics.

    Topics that do not exist are omitted. If there is no pattern, the request names only these
    topics, however many the cluster has.
    """
    partitions: list[TopicPartition] = []
    broker = ""
    denied: set[str] = set()
    names = [*topics]
    if any(map(is_pattern, names)):
        names = named_or_matching(names, admin.list_topics(timeout=ANSWER_SECONDS).topics)
    # The client refuses an empty list.
    if not names:
        return [], broker, frozenset()
    futures = admin.describe_topics(TopicCollection(names), request_timeout=ANSWER_SECONDS)
    for name, future in futures.items():
        try:
            described = future.result(ANSWER_SECONDS)
        except KafkaException as error:
            reason = error.args[0]
            # A topic that may not be described must not hide the other topics, which other
            # pipelines may read.
            if is_denial(reason):
                denied.add(name)
            elif reason.code() not in _MISSING_TOPIC:
                raise
        else:
            for partition in described.partitions:
                partitions.append(TopicPartition(name, partition.id))
                # A partition without an available broker has no leader.
                if partition.leader is not None:
                    broker = address_of(partition.leader.host, partition.leader.port)
    return partitions, broker, frozenset(denied)


def _by_topic(results: Mapping[TopicPartition, ListOffsetsResultInfo]) -> Offsets:
    offsets: Offsets = {}
    for where, result in results.items():
        offsets.setdefault(where.topic, {})[where.partition] = result.offset
    return offsets
