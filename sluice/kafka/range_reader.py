"""Reads ranges of offsets. Hides gaps, ends and errors of partitions from all other modules.

A range can have fewer records than offsets. Compaction removes records, and a reader of committed
records sees neither the markers of transactions nor the records of aborted transactions. Such
offsets can be at the beginning of a range, at its end, or everywhere. A range has therefore been
read completely in two cases. The reader gets a record after the range, or it reaches the
partition's end, which is not before the range's end.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, NamedTuple, Self

import msgspec
from confluent_kafka import Consumer, KafkaError, KafkaException, Message, TopicPartition

from sluice.errors import BrokersUnreachable, EngineError, sentence
from sluice.kafka.brokers import COMMITS_NOTHING, configuration_errors, quiet, unreachable
from sluice.kafka.denied_operations import DESCRIBE, READ, is_denial, topic_denied
from sluice.values.record_places import Partition, Range

if TYPE_CHECKING:
    from sluice.support.arrays import Integers

LONGEST_SILENCE_S = 60.0
"""How long a reader waits for records from the brokers, for example while they restart."""
_SETTINGS: Mapping[str, str | int | bool] = {
    **COMMITS_NOTHING,
    "isolation.level": "read_committed",
    # If the records of a range are gone, the client must not continue at another offset.
    "auto.offset.reset": "error",
    "enable.partition.eof": True,
    "check.crcs": True,
    # A longer wait for records at the end of a partition would delay every reader.
    "fetch.wait.max.ms": 10,
    # By default, the client waits a second before it fetches again after its queue was full.
    "fetch.queue.backoff.ms": 5,
    # A broker sends at least one batch of records, even if it is very large.
    "receive.message.max.bytes": 2_147_483_647,
}
_RUN_AGAIN = (
    "Run the pipeline again: the run checks its topics first, and its error says what you can do."
)
_QUESTION_S = 5.0
"""If the brokers have sent nothing for this many seconds, the reader asks one of them whether the
topics exist and may be read. A broker learns of new partitions within a second."""
_STATISTICS_MS = 5_000
_ANSWER_S = 5.0
_WAIT_S = 0.05
"""How long a call may take to read the intended number of records."""
_AT_ONCE, _BYTES_AT_ONCE = 4_000, 4_194_304
"""About how many records and bytes a call reads. 20,000 messages at once do not fit into a
processor's caches: each message then takes a sixth more CPU time."""
_SIZES_READ = 100
# A consumer that chooses its partitions itself needs no group, but the client looks up the group's
# coordinator nevertheless.
_GROUP_ERRORS = {KafkaError.GROUP_AUTHORIZATION_FAILED, KafkaError.INVALID_GROUP_ID}
_OUT_OF_RANGE = {KafkaError._AUTO_OFFSET_RESET, KafkaError.OFFSET_OUT_OF_RANGE}
_NO_TOPIC = {
    KafkaError.UNKNOWN_TOPIC_OR_PART,
    KafkaError._UNKNOWN_TOPIC,
    KafkaError._UNKNOWN_PARTITION,
}


class PartitionRecords(NamedTuple):
    """Records of one partition, in the order of their offsets."""

    partition: Partition
    messages: Sequence[Message]
    offsets: Integers


class _PartitionStatistics(msgspec.Struct):
    next_offset: int


class _TopicStatistics(msgspec.Struct):
    partitions: dict[str, _PartitionStatistics]


class _Statistics(msgspec.Struct):
    """The part of a client's statistics that tells how far the client has fetched."""

    topics: dict[str, _TopicStatistics]


_decode_statistics = msgspec.json.Decoder(_Statistics).decode


class RangeReader:
    """A consumer that reads the committed records of ranges. Use it in a `with` block.

    `settings` are more settings of the consumer. The settings of the connection take precedence. If
    the topic no longer has all records of a range, the reader raises an error or, with
    `skips_lost`, reads the remaining records. `longest_silence_s`: how long the reader waits for
    records; `LONGEST_SILENCE_S` by default.
    """

    def __init__(
        self,
        kafka: Mapping[str, str],
        settings: Mapping[str, str | int | bool] | None = None,
        *,
        skips_lost: bool = False,
        longest_silence_s: float | None = None,
    ) -> None:
        self.unread: set[Partition] = set()
        """The partitions of the last call of `read` whose ranges have not been read completely."""
        self._kafka = kafka
        self._skips_lost = skips_lost
        if longest_silence_s is None:
            longest_silence_s = LONGEST_SILENCE_S
        self._longest_silence_s = longest_silence_s
        self._ranges: dict[Partition, Range] = {}
        self._left: set[Partition] = set()
        """The partitions whose ranges the caller has left, so they are not read any further."""
        self._positions: dict[Partition, int] = {}
        """Partition → the offset up to which it has been read."""
        self._fetched: dict[Partition, int] = {}
        """Partition → the offset up to which the client had fetched when it last reported this."""
        self._answered_s = 0.0
        self._reason = ""
        """The last error of a connection since the brokers' last answer."""
        self._has_asked = False
        """Whether the reader has asked a broker about the topics since the last record or other
        answer."""
        self._has_warned = False
        """Whether the reader has logged why it waits."""
        with configuration_errors(kafka):
            self.consumer = Consumer({
                **_SETTINGS, **(settings or {}), **quiet(kafka),
                "statistics.interval.ms": _STATISTICS_MS,
                "error_cb": self._note_error, "stats_cb": self._note_progress,
            })  # fmt: skip

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.consumer.close()

    def read(self, ranges: Iterable[Range]) -> Iterator[PartitionRecords]:
        """Yield the records of ranges of different partitions, which are read at the same time.

        Raises BrokersUnreachable if no records arrive for `longest_silence_s`. Raises EngineError
        if records of a range are no longer in the topic, or for another error of Kafka.
        """
        self._ranges = {}
        for part in ranges:
            self._ranges[part.topic, part.partition] = part
        self._left = set()
        self.unread = {*self._ranges}
        for partition, part in self._ranges.items():
            self._reach(partition, part.begin)
        self._note_answer()
        is_assigned, at_once = False, _AT_ONCE
        while wanted := self._wanted:
            if not is_assigned:
                self._assign()
                is_assigned = True
            count = 0
            for partition in wanted:
                count += self._ranges[partition].end - self._positions[partition]
            messages = self.consumer.consume(min(count, at_once), _WAIT_S)
            records, others = messages, []
            # Most calls return only records, and no errors or ends of partitions.
            if any(map(Message.error, messages)):
                records = []
                for message in messages:
                    if message.error() is None:
                        records.append(message)
                    else:
                        others.append(message)
            # Free the messages. Otherwise, the records of two calls would be in memory at the same
            # time.
            del messages
            if records:
                at_once = _count_at_once(records)
                yield from self._of_ranges(records)
                # The time that the caller took does not count as silence of the brokers.
                self._note_answer()
            del records
            for message in others:
                is_assigned &= self._handle(message)
            silence_s = time.monotonic() - self._answered_s
            is_long = silence_s > self._longest_silence_s
            # If a broker is reachable, ask it why no records arrive.
            if not self._reason and (is_long or (silence_s > _QUESTION_S and not self._has_asked)):
                self._has_asked = True
                self._require_topics()
            elif self._reason and silence_s > _QUESTION_S and not self._has_warned:
                self._has_warned = True
                self._warn()
            if is_long:
                raise self._silence()

    @property
    def _wanted(self) -> set[Partition]:
        """The partitions whose ranges have not been read to their ends."""
        return self.unread - self._left

    def leave(self, partition: Partition) -> None:
        """Read no more records of a partition's range.

        `read` ends when it has read the other ranges.
        """
        if partition not in self._left:
            self._left.add(partition)
            self.consumer.incremental_unassign([TopicPartition(*partition)])

    def pause(self) -> None:
        """Stop fetching until the next `read`.

        Otherwise, the client would continue to fetch the unread ranges.
        """
        self.consumer.unassign()

    def _reach(self, partition: Partition, position: int) -> None:
        self._positions[partition] = position
        if position >= self._ranges[partition].end:
            self.unread.discard(partition)

    def _assign(self) -> None:
        self._fetched = {}
        places: list[TopicPartition] = []
        for partition in self._wanted:
            offset = self._positions[partition]
            self._fetched[partition] = offset
            places.append(TopicPartition(*partition, offset))
        self.consumer.assign(places)

    def _of_ranges(self, messages: Sequence[Message]) -> Iterator[PartitionRecords]:
        """Yield the messages by partition. Leaves out messages after the ranges."""
        # Imported only here, because commands that import this module need no NumPy, unless they
        # read records.
        import numpy as np

        for partition, of_partition in self._by_partition(messages).items():
            offsets = _offsets(of_partition)
            self._reach(partition, int(offsets[-1]) + 1)
            if count := int(np.searchsorted(offsets, self._ranges[partition].end)):
                yield PartitionRecords(partition, of_partition[:count], offsets[:count])

    def _by_partition(self, messages: Sequence[Message]) -> Mapping[Partition, Sequence[Message]]:
        if len(self._ranges) == 1:
            # A task reads one partition at a time. Do not look at each message, because that takes
            # time.
            return dict.fromkeys(self._ranges, messages)
        by_partition: dict[Partition, list[Message]] = {}
        for message in messages:
            by_partition.setdefault(_partition(message), []).append(message)
        return by_partition

    def _handle(self, message: Message) -> bool:
        """Handle a message that reports the end of a partition, or an error.

        Returns False if the client has stopped reading a partition, which must then be assigned
        again.
        """
        error, partition = message.error(), _partition(message)
        assert error is not None
        if error.code() in _GROUP_ERRORS:
            return True
        if partition not in self._ranges:
            raise self._failure(error, partition)
        # Ignore ends and errors after a range, or in a partition that the caller has left.
        if partition not in self._wanted:
            return True
        part = self._ranges[partition]
        if error.code() == KafkaError._PARTITION_EOF:
            self._note_answer()
            # There are no more readable records before the end.
            self._reach(partition, max(self._positions[partition], message.offset() or 0))
            # A follower may not have the newest records yet, so only the leader can tell whether
            # they are lost.
            if partition in self.unread:
                self._check_bounds(part)
            return True
        if error.code() in _OUT_OF_RANGE:
            self._check_bounds(part)
            return False
        raise self._failure(error, partition)

    def _check_bounds(self, part: Range) -> None:
        """Compare a range with the records that its partition has now.

        Records that the partition lacks are lost.
        """
        partition = part.topic, part.partition
        position = self._positions[partition]
        try:
            first, end = self.consumer.get_watermark_offsets(TopicPartition(*partition), _ANSWER_S)
        except KafkaException:
            # The partition may have no leader for a moment. If this lasts, `longest_silence_s` ends
            # the wait.
            return
        is_lost = first > position or end < part.end
        if is_lost and not self._skips_lost:
            raise EngineError(
                f"{part.topic}, partition {part.partition}, has lost records: the batch has to "
                f"read offsets {position} to {part.end - 1}, but the partition begins at offset "
                f"{first} and ends before offset {end}. Possible causes: retention removed the "
                "records, the topic was created again, or a broker that lacks the newest records "
                "leads the partition.",
                next_step=_RUN_AGAIN,
            )
        if first > position:
            self._reach(partition, first)
        elif end <= position:
            self._reach(partition, part.end)

    def _require_topics(self) -> None:
        """Raise EngineError if a topic or partition does not exist, or may not be read."""
        for topic, partition in sorted(self._wanted):
            try:
                known = self.consumer.list_topics(topic, _ANSWER_S).topics[topic]
            except KafkaException:
                return
            error = known.error
            if error is None and partition not in known.partitions:
                error = KafkaError(KafkaError.UNKNOWN_TOPIC_OR_PART)
            if error is not None and (is_denial(error) or error.code() in _NO_TOPIC):
                raise self._failure(error, (topic, partition), DESCRIBE)

    def _failure(
        self,
        error: KafkaError,
        partition: Partition,
        operation: str = READ,
    ) -> EngineError:
        topic, number = partition
        # The error of a whole topic has the number -1, and the error of the client has no topic.
        is_of_partition = bool(topic) and number >= 0
        if is_denial(error):
            if number < 0:
                operation = DESCRIBE
            return topic_denied(self._kafka, operation, topic)
        address = self._kafka.get("bootstrap.servers", "an unset address")
        if error.code() in _NO_TOPIC:
            next_step = (
                f"The topic was deleted, or was created again with fewer partitions. {_RUN_AGAIN}"
            )
        else:
            next_step = "Check that the broker is running and that its disk has no errors."
        # The error of a whole topic has the partition number -1. The error of the client has no
        # topic.
        where = topic or "records"
        if is_of_partition:
            where = f"{topic}, partition {number}"
        detail = f"Reading {where} from Kafka at {address}: {sentence(error.str())}"
        return EngineError(detail, next_step=next_step)

    def _warn(self) -> None:
        # Imported only here, because commands that import this module should start quickly.
        import structlog

        why = unreachable(self._kafka, self._reason).detail
        structlog.get_logger().warning("waiting for the broker", why=why)

    def _silence(self) -> BrokersUnreachable:
        topic, partition = min(self._wanted)
        cause = unreachable(self._kafka, self._reason or "the client reports no error")
        return BrokersUnreachable(
            f"No record of {topic}, partition {partition}, has arrived for "
            f"{self._longest_silence_s:.0f} s. {cause.detail}",
            next_step=cause.next_step,
        )

    def _note_answer(self) -> None:
        self._answered_s, self._reason, self._has_asked = time.monotonic(), "", False

    def _note_error(self, error: KafkaError) -> None:
        # The client first reports why each broker cannot be reached, and then that all brokers are
        # down.
        if error.code() not in {KafkaError._ALL_BROKERS_DOWN, *_NO_TOPIC}:
            self._reason = error.str()

    def _note_progress(self, statistics: str) -> None:
        """Count fetched records as the brokers' answer, even if the client returns none of them.

        The client drops the records of aborted transactions.
        """
        topics = _decode_statistics(statistics).topics
        for (topic, number), before in self._fetched.items():
            if topic in topics and str(number) in topics[topic].partitions:
                fetched = topics[topic].partitions[str(number)].next_offset
                if fetched > before:
                    self._fetched[topic, number] = fetched
                    self._note_answer()


def _offsets(messages: Sequence[Message]) -> Integers:
    """Return the offsets of messages of one partition."""
    import numpy as np

    first, last = messages[0].offset() or 0, messages[-1].offset() or 0
    # Offsets increase, so the messages have all offsets between the first and the last. There is no
    # need to read each
    # message's offset.
    if last - first == len(messages) - 1:
        return np.arange(first, last + 1)
    return np.fromiter(map(Message.offset, messages), np.int64, len(messages))


def _count_at_once(records: Sequence[Message]) -> int:
    """Return how many records a call should read if further records are as large as these."""
    sizes = [len(record) for record in records[:_SIZES_READ]]
    return min(_AT_ONCE, max(_BYTES_AT_ONCE * len(sizes) // max(sum(sizes), 1), 1))


def _partition(message: Message) -> Partition:
    return message.topic() or "", message.partition() or 0
