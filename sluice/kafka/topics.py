"""Creates, writes and reads Kafka topics."""

from __future__ import annotations

import time
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field
from itertools import zip_longest
from typing import Any

from confluent_kafka import (
    Consumer,
    KafkaError,
    KafkaException,
    Message,
    Producer,
    TopicCollection,
    TopicPartition,
    Uuid,
)
from confluent_kafka.admin import AdminClient, TopicDescription  # type: ignore[attr-defined]
from confluent_kafka.cimpl import NewTopic

from sluice.errors import AccessDenied, EngineError, sentence
from sluice.kafka.brokers import (
    ANSWER_SECONDS,
    broker_errors,
    producer_of,
    require_brokers,
    silent_admin,
)
from sluice.kafka.denied_operations import (
    CREATE,
    DELETE,
    DESCRIBE,
    READ,
    WRITE,
    access_denied,
    allowing_commands,
    client_name,
    denial,
    denial_named,
    denied_on,
    is_denial,
    on_topic,
    topic_denied,
)
from sluice.kafka.range_reader import RangeReader
from sluice.values.phrases import counted
from sluice.values.record_places import Place, Range

_PRODUCER = {
    "linger.ms": "50",
    "batch.size": "1000000",
    "compression.type": "lz4",
    "queue.buffering.max.messages": "1000000",
    "log_level": "3",
}
"""Settings of the producer. The settings of a connection to Kafka take precedence over them."""
_TIMEOUT_S = 30.0
_POLL_EVERY = 1_000
_LISTED_AFTER_S = 0.05
_WITHOUT_LEADER = {KafkaError.NOT_LEADER_FOR_PARTITION, KafkaError.LEADER_NOT_AVAILABLE}
_NO_TOPIC = {KafkaError.UNKNOWN_TOPIC_OR_PART, KafkaError.TOPIC_EXCEPTION}
_FEW_RECORDS = {
    # These settings limit how much the client fetches beyond the few records that are needed.
    "max.partition.fetch.bytes": 65_536,
    "queued.min.messages": 1,
}
_NEAR = 1_000


@dataclass(frozen=True)
class Topic:
    """A topic to create; `replication` 0 means the broker's default."""

    name: str
    partitions: int = 1
    replication: int = 0
    config: Mapping[str, str] = field(default_factory=dict)


def create_topics(kafka: Mapping[str, str], topics: Iterable[Topic]) -> tuple[str, ...]:
    """Create the topics that do not exist yet, and return their names.

    When this function returns, a broker lists all of these topics.
    """
    require_brokers(kafka)
    # The client is assigned to a variable because it must outlive its futures.
    admin = silent_admin(kafka)
    new: list[NewTopic] = []
    for topic in topics:
        # In Kafka's protocol, -1 stands for the broker's default.
        replication = topic.replication or -1
        new.append(NewTopic(topic.name, topic.partitions, replication, config=dict(topic.config)))
    futures = admin.create_topics(new)
    with broker_errors(kafka):
        created: list[str] = []
        for name, future in futures.items():
            error = future.exception(_TIMEOUT_S)
            # Kafka denies the creation of a topic to a user without CREATE, even if the topic
            # exists.
            if _is_denied(error) and _is_listed(admin, name):
                continue
            if _was_created(kafka, name, error):
                created.append(name)
    # An existing topic may have been created by another client only a moment ago.
    _wait_until_listed(kafka, admin, futures.keys())
    return tuple(created)


def delete_topics(kafka: Mapping[str, str], names: Sequence[str]) -> None:
    """Delete topics. Ignore topics that do not exist."""
    if not names:
        return
    admin = silent_admin(kafka)
    with broker_errors(kafka):
        for name, future in admin.delete_topics([*names]).items():
            try:
                with denial_named(DELETE, name):
                    future.result(_TIMEOUT_S)
            except KafkaException as error:
                if error.args[0].code() not in _NO_TOPIC:
                    raise


def delete_group(kafka: Mapping[str, str], name: str) -> None:
    """Delete a consumer group and its offsets. Do nothing if there is no such group."""
    admin = silent_admin(kafka)
    future = admin.delete_consumer_groups([name])[name]
    with broker_errors(kafka):
        try:
            future.result(_TIMEOUT_S)
        except KafkaException as error:
            if error.args[0].code() != KafkaError.GROUP_ID_NOT_FOUND:
                raise


def _wait_until_listed(kafka: Mapping[str, str], admin: AdminClient, names: Set[str]) -> None:
    """Wait until a broker lists topics.

    A broker learns of a new topic only a moment after the controller has created it.
    """
    until = time.monotonic() + _TIMEOUT_S
    with broker_errors(kafka):
        for name in sorted(names):
            # Ask for a topic by name. Otherwise, the broker would describe every topic of the
            # cluster.
            while not _is_listed(admin, name):
                if time.monotonic() > until:
                    raise EngineError(
                        f"Topic {name} was created, but the broker has not listed it within "
                        f"{_TIMEOUT_S:.0f} s.",
                        next_step="Check that the brokers reach their controller.",
                    )
                time.sleep(_LISTED_AFTER_S)


def _is_listed(admin: AdminClient, name: str) -> bool:
    return admin.list_topics(name, timeout=_TIMEOUT_S).topics[name].error is None


def _is_denied(error: BaseException | None) -> bool:
    return isinstance(error, KafkaException) and is_denial(error.args[0])


def watermark_offsets(
    consumer: Consumer, place: TopicPartition, timeout_s: float
) -> tuple[int, int]:
    """Return the first offset of a partition, and the offset that its next record will get.

    If the partition is new, waits until a broker leads it.
    """
    until = time.monotonic() + timeout_s
    while True:
        try:
            with denial_named(DESCRIBE, place.topic):
                return consumer.get_watermark_offsets(place, timeout=timeout_s)
        except KafkaException as error:
            # A broker lists a new topic shortly before it leads the topic's partitions.
            if error.args[0].code() not in _WITHOUT_LEADER or time.monotonic() > until:
                raise
        time.sleep(_LISTED_AFTER_S)


def _was_created(kafka: Mapping[str, str], name: str, error: BaseException | None) -> bool:
    if error is None:
        return True
    reason = str(error)
    if isinstance(error, KafkaException):
        if error.args[0].code() == KafkaError.TOPIC_ALREADY_EXISTS:
            return False
        reason = error.args[0].str()
        if is_denial(error.args[0]):
            command = allowing_commands(kafka, [on_topic(CREATE, name)])
            others = f"let {client_name(kafka)} create it: {command}"
            raise AccessDenied(
                f"Topic {name} was not created: {sentence(reason)}",
                next_step=f"Create the topic yourself, or {others}.",
            )
    raise EngineError(
        f"Topic {name} was not created: {sentence(reason)}",
        next_step="Create the topic yourself, or let this user of Kafka create topics.",
    )


def produce(
    kafka: Mapping[str, str],
    topic: str,
    records: Iterable[tuple[str | None, bytes | None, int]],
) -> None:
    """Send records (key, value, timestamp in ms) in order; a timestamp of 0 means the current time.

    Raises EngineError if the topic does not exist or the broker refuses a record, and
    BrokersUnreachable if no broker answers.
    """
    errors: list[KafkaError] = []

    def note(error: KafkaError | None, _: Message) -> None:
        if error is not None:
            errors.append(error)

    producer = producer_of(
        {**_PRODUCER, **kafka}, {"enable.idempotence": True, "on_delivery": note}
    )
    _require_topic(kafka, producer, topic)
    for number, (key, value, timestamp_ms) in enumerate(records):
        while True:
            try:
                producer.produce(topic, value, key, timestamp=timestamp_ms)
                break
            except BufferError:
                # The queue is full: wait until the broker has accepted some records.
                producer.poll(0.1)
        # While polling, the client calls `note` for the records that the broker has acknowledged.
        if number % _POLL_EVERY == 0:
            producer.poll(0)
    undelivered = producer.flush(_TIMEOUT_S)
    if errors and is_denial(errors[0]):
        raise topic_denied(kafka, WRITE, topic)
    if errors or undelivered:
        cause = "no answer from the broker"
        if errors:
            cause = errors[0].str()
        raise EngineError(
            f"{counted(len(errors) + undelivered, 'record')} could not be written to {topic}: "
            f"{sentence(cause)}",
            next_step="Check that the broker is running, then write the records again.",
        )


def _require_topic(kafka: Mapping[str, str], client: Producer, topic: str) -> None:
    with broker_errors(kafka):
        error = client.list_topics(topic, timeout=_TIMEOUT_S).topics[topic].error
    if error is not None and is_denial(error):
        raise topic_denied(kafka, DESCRIBE, topic)
    if error is not None and error.code() in _NO_TOPIC:
        raise EngineError(
            f"Topic {topic} cannot be written: {sentence(error.str())}",
            next_step="Check the topic's name, or create the topic. sluice topics create NAME "
            "creates the topics of a pipeline.",
        )


def require_delivery(error: KafkaError | None, message: Message) -> None:
    """Raise EngineError if the broker refused the record. This function is a delivery callback."""
    if error is not None:
        raise EngineError(
            f"A record was not written to {message.topic()}: {sentence(error)}",
            next_step="Correct what the broker says, and repeat the command.",
        )


def read_topic(
    kafka: Mapping[str, str],
    topic: str,
    since_ms: int | None = None,
    *,
    longest_silence_s: float | None = None,
) -> Iterator[Message]:
    """Yield a topic's committed records up to its current end, in the order of each partition.

    If `since_ms` is given, starts at each partition's first record with this timestamp or a later
    timestamp. Raises BrokersUnreachable if no broker answers, or no records arrive for
    `longest_silence_s` (see `RangeReader`), and EngineError if the topic cannot be read.
    """
    with RangeReader(kafka, skips_lost=True, longest_silence_s=longest_silence_s) as reader:
        with broker_errors(kafka):
            metadata = reader.consumer.list_topics(topic, timeout=_TIMEOUT_S).topics[topic]
            if metadata.error is not None and is_denial(metadata.error):
                raise topic_denied(kafka, READ, topic)
            if metadata.error is not None:
                raise EngineError(
                    f"Topic {topic} cannot be read: {sentence(metadata.error.str())}",
                    next_step="Check the topic's name.",
                )
            bounds: dict[int, tuple[int, int]] = {}
            for number in metadata.partitions:
                bounds[number] = _bounds(reader.consumer, topic, number)
            since: dict[int, int] = {}
            if since_ms is not None:
                since = _offsets_since(reader.consumer, topic, bounds, since_ms)
        ranges: list[Range] = []
        for number, (first, end) in bounds.items():
            ranges.append(Range(topic, number, since.get(number, first), end))
        for records in reader.read(ranges):
            yield from records.messages


def _bounds(consumer: Consumer, topic: str, partition: int) -> tuple[int, int]:
    return watermark_offsets(consumer, TopicPartition(topic, partition), _TIMEOUT_S)


def _offsets_since(
    consumer: Consumer,
    topic: str,
    bounds: Mapping[int, tuple[int, int]],
    since_ms: int,
) -> dict[int, int]:
    """Return each partition's offset of the first record at or after `since_ms`, or its end."""
    times = [TopicPartition(topic, number, since_ms) for number in bounds]
    offsets: dict[int, int] = {}
    for answer in consumer.offsets_for_times(times, _TIMEOUT_S):
        if answer.error is not None:
            with denial_named(DESCRIBE, topic):
                raise KafkaException(answer.error)
        offset = answer.offset
        # Kafka returns a negative offset for a partition without such a record.
        if offset < 0:
            offset = bounds[answer.partition][1]
        offsets[answer.partition] = offset
    return offsets


def topic_ids(
    kafka: Mapping[str, str],
    topics: Iterable[str],
    seconds: float = _TIMEOUT_S,
) -> dict[str, str]:
    """Return topic → its Kafka id. A topic that is deleted and created again gets a new id.

    Omits missing topics. Raises BrokersUnreachable if no broker answers within `seconds`.
    """
    with broker_errors(kafka):
        return ids_of(described_topics(silent_admin(kafka), topics, seconds))


def ids_of(described: Mapping[str, TopicDescription]) -> dict[str, str]:
    """Return topic → its Kafka id, from the descriptions of the topics."""
    ids: dict[str, str] = {}
    for name, description in described.items():
        identity = description.topic_id
        assert isinstance(identity, Uuid)
        ids[name] = str(identity)
    return ids


def described_topics(
    admin: AdminClient,
    topics: Iterable[str],
    seconds: float = _TIMEOUT_S,
    *,
    with_operations: bool = False,
) -> dict[str, TopicDescription]:
    """Return topic → its description, without the missing topics.

    The request names only these topics. If `with_operations` is set, the descriptions also list the
    operations that this client may do, if the broker can list them.

    Raises KafkaException if no broker answers within `seconds`, or if the client may not describe a
    topic.
    """
    futures = admin.describe_topics(
        TopicCollection(list(dict.fromkeys(topics))),
        include_authorized_operations=with_operations,
        request_timeout=seconds,
    )
    described: dict[str, TopicDescription] = {}
    for name, future in futures.items():
        try:
            with denial_named(DESCRIBE, name):
                described[name] = future.result()
        except KafkaException as error:
            if error.args[0].code() not in _NO_TOPIC:
                raise
    return described


def require_writable(kafka: Mapping[str, str], topics: Collection[str]) -> None:
    """Raise EngineError if one of the topics does not exist, or if Kafka denies writing to it.

    Call this to explain why a write fails or takes long. Does nothing if no broker answers.
    """
    try:
        admin = silent_admin(kafka)
        described = described_topics(admin, topics, ANSWER_SECONDS, with_operations=True)
    except KafkaException as error:
        if (denied := denial(kafka, error)) is not None:
            raise denied from None
        return
    if operations := denied_on(described, dict.fromkeys(topics, (WRITE,))):
        raise access_denied(kafka, operations)
    for topic in topics:
        if topic not in described:
            raise EngineError(
                f"Topic {topic} was deleted while records were written to it.",
                next_step="Create the topic again, and repeat the run or the command.",
            )


Headers = Sequence[tuple[str, bytes | None]]
"""Names and values of a record's headers, in order. Names may occur several times."""
HEADERS_UNREADABLE: Headers = [("(unreadable)", b"names of headers are not UTF-8")]
"""Replaces the headers of a record if a name is not UTF-8, because the client cannot return such
headers."""
_NAME_IS_NOT_UTF_8 = (SystemError, UnicodeDecodeError)
"""Kafka's client raises one of these errors for such a name."""
_NO_HEADERS: Headers = []


def headers_of(message: Message) -> Headers:
    """Return the headers of a record. Call this only once per message."""
    try:
        return _pairs(message.headers())
    except _NAME_IS_NOT_UTF_8:
        return HEADERS_UNREADABLE


def headers_of_each(messages: Sequence[Message]) -> list[Headers]:
    """Return the headers of each record. Call this only once per message.

    For a record without headers, it takes a tenth of the time of `headers_of`.
    """
    found: list[Headers] = []
    headers_of_messages = map(Message.headers, messages)
    while len(found) < len(messages):
        try:
            for headers in headers_of_messages:
                found.append(_pairs(headers) if headers else _NO_HEADERS)
        except _NAME_IS_NOT_UTF_8:
            found.append(HEADERS_UNREADABLE)
    return found


def _pairs(headers: Any) -> Headers:
    """Return the headers that Kafka's client has returned for a message."""
    if not headers:
        return _NO_HEADERS
    if isinstance(headers, dict):
        headers = headers.items()
    return [(name, value.encode() if isinstance(value, str) else value) for name, value in headers]


def records_at(
    kafka: Mapping[str, str], places: Iterable[Place]
) -> Iterator[tuple[Place, Message]]:
    """Yield the committed records at these places, with their places.

    Leave out a place if Kafka has deleted its record, or if the record's transaction was aborted.

    Raises BrokersUnreachable if no broker answers, and EngineError if a topic cannot be read.
    """
    wanted = {*places}
    with RangeReader(kafka, _FEW_RECORDS, skips_lost=True) as reader:
        # Because of this call, the client finds the partitions' leaders at once instead of after
        # 0.5 s.
        for topic in sorted({topic for topic, _, _ in wanted}):
            with broker_errors(kafka):
                reader.consumer.list_topics(topic, timeout=_TIMEOUT_S)
        for ranges in _rounds(wanted):
            for (topic, partition), messages, offsets in reader.read(ranges):
                for message, offset in zip(messages, offsets.tolist(), strict=True):
                    if (place := (topic, partition, offset)) in wanted:
                        yield place, message


def _rounds(places: Iterable[Place]) -> Iterator[list[Range]]:
    """Yield ranges that cover the places. Each list has at most one range of a partition.

    Two places are in the same range if reading on from one to the other is faster than another
    request.
    """
    ranges: dict[tuple[str, int], list[Range]] = {}
    for topic, partition, offset in sorted(places):
        of_partition = ranges.setdefault((topic, partition), [])
        is_near = bool(of_partition) and offset - of_partition[-1].end < _NEAR
        begin = offset
        if is_near:
            begin = of_partition.pop().begin
        of_partition.append(Range(topic, partition, begin, offset + 1))
    for of_round in zip_longest(*ranges.values()):
        yield [part for part in of_round if part is not None]


def as_bytes(content: str | bytes | None) -> bytes | None:
    """Return a record's key or value.

    The client's types also allow text, which it never returns.
    """
    return content.encode() if isinstance(content, str) else content


def text_headers(message: Message) -> dict[str, str]:
    """Return the headers of a record as text."""
    return {name: (value or b"").decode(errors="replace") for name, value in headers_of(message)}
