"""Create, write and read Kafka topics."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field

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
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from sluice.errors import EngineError, sentence
from sluice.kafka.brokers import (
    broker_errors,
    configuration_errors,
    producer_of,
    quiet,
    require_brokers,
    silent_admin,
    unreachable,
)
from sluice.values.phrases import counted

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
_AT_ONCE = 10_000
_WITHOUT_LEADER = {KafkaError.NOT_LEADER_FOR_PARTITION, KafkaError.LEADER_NOT_AVAILABLE}
_NO_TOPIC = {KafkaError.UNKNOWN_TOPIC_OR_PART, KafkaError.TOPIC_EXCEPTION}
_NOTHING_THERE = {
    KafkaError._PARTITION_EOF,
    KafkaError._AUTO_OFFSET_RESET,
    KafkaError.OFFSET_OUT_OF_RANGE,
}
_ONE_RECORD: dict[str, str | int | bool] = {
    "group.id": "sluice-record",
    "enable.auto.commit": False,
    "enable.partition.eof": True,
    "isolation.level": "read_committed",
    "auto.offset.reset": "error",
    # A small limit is enough: a broker sends at least one batch of records, however large it is.
    "fetch.message.max.bytes": 1_000,
    "fetch.wait.max.ms": 10,
}
_WAIT_S = 0.02
"""How long a call waits until it has read `_AT_ONCE` records. If fewer records are left in the
topic, the call takes this long."""


@dataclass(frozen=True)
class Topic:
    """A topic to create; `replication` 0 means the broker's default."""

    name: str
    partitions: int = 1
    replication: int = 0
    config: Mapping[str, str] = field(default_factory=dict)


def create_topics(kafka: Mapping[str, str], topics: Iterable[Topic]) -> tuple[str, ...]:
    """Create the topics that do not exist yet, and return their names. A broker lists all topics when this returns."""
    require_brokers(kafka)
    # The client is assigned to a variable because it must outlive its futures.
    admin = AdminClient(quiet(kafka))
    futures = admin.create_topics(
        # In Kafka's protocol, -1 stands for the broker's default.
        [NewTopic(topic.name, topic.partitions, topic.replication or -1, config=dict(topic.config)) for topic in topics]
    )
    with broker_errors(kafka):
        created = tuple(name for name, future in futures.items() if _was_created(name, future.exception(_TIMEOUT_S)))
    # Another client may have created a topic that exists only a moment ago.
    _wait_until_listed(kafka, admin, futures.keys())
    return created


def _wait_until_listed(kafka: Mapping[str, str], admin: AdminClient, names: Set[str]) -> None:
    """Wait until a broker lists topics. It learns of a new topic only a moment after the controller has created it."""
    until = time.monotonic() + _TIMEOUT_S
    with broker_errors(kafka):
        while missing := names - admin.list_topics(timeout=_TIMEOUT_S).topics.keys():
            if time.monotonic() > until:
                raise EngineError(
                    f"Topic {min(missing)} was created, but the broker has not listed it within {_TIMEOUT_S:.0f} s.",
                    next_step="Check that the brokers reach their controller.",
                )
            time.sleep(_LISTED_AFTER_S)


def watermark_offsets(consumer: Consumer, place: TopicPartition, timeout_s: float) -> tuple[int, int]:
    """The first offset of a partition, and the offset that its next record will get.

    If the partition is new, waits until a broker leads it.
    """
    until = time.monotonic() + timeout_s
    while True:
        try:
            return consumer.get_watermark_offsets(place, timeout=timeout_s)
        except KafkaException as error:
            # A broker lists a new topic a moment before it leads the topic's partitions.
            if error.args[0].code() not in _WITHOUT_LEADER or time.monotonic() > until:
                raise
        time.sleep(_LISTED_AFTER_S)


def _was_created(name: str, error: BaseException | None) -> bool:
    if error is None:
        return True
    reason = str(error)
    if isinstance(error, KafkaException):
        if error.args[0].code() == KafkaError.TOPIC_ALREADY_EXISTS:
            return False
        reason = error.args[0].str()
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

    producer = producer_of({**_PRODUCER, **kafka}, {"enable.idempotence": True, "on_delivery": note})
    _require_topic(kafka, producer, topic)
    for number, (key, value, timestamp_ms) in enumerate(records):
        while True:
            try:
                producer.produce(topic, value, key, timestamp=timestamp_ms)
                break
            except BufferError:
                # The queue is full: wait until the broker has taken some records.
                producer.poll(0.1)
        # Polling calls `note` for the records that the broker has answered.
        if number % _POLL_EVERY == 0:
            producer.poll(0)
    undelivered = producer.flush(_TIMEOUT_S)
    if errors or undelivered:
        cause = errors[0].str() if errors else "no answer from the broker"
        raise EngineError(
            f"{counted(len(errors) + undelivered, 'record')} could not be written to {topic}: {sentence(cause)}",
            next_step="Check that the broker is running, then write them again.",
        )


def _require_topic(kafka: Mapping[str, str], client: Producer, topic: str) -> None:
    with broker_errors(kafka):
        error = client.list_topics(topic, timeout=_TIMEOUT_S).topics[topic].error
    if error is not None and error.code() in _NO_TOPIC:
        raise EngineError(
            f"Topic {topic} cannot be written: {sentence(error.str())}",
            next_step="Check its name, or create it. sluice topics create NAME creates the topics of a pipeline.",
        )


def require_delivery(error: KafkaError | None, message: Message) -> None:
    """A delivery callback that raises EngineError if the broker refused the record."""
    if error is not None:
        raise EngineError(f"A record was not written to {message.topic()}: {sentence(error)}")


def read_topic(
    kafka: Mapping[str, str],
    topic: str,
    since_ms: int | None = None,
) -> Iterator[Message]:
    """The committed records of a topic from its beginning to its current end, in the order of each partition.

    With `since_ms`, starts at each partition's first record with this timestamp or a later timestamp.
    Raises BrokersUnreachable if no broker answers.
    """
    with configuration_errors():
        consumer = Consumer(
            {
                **quiet(kafka),
                "group.id": "sluice-read-topic",
                "enable.auto.commit": False,
                "enable.partition.eof": True,
                "isolation.level": "read_committed",
                "auto.offset.reset": "earliest",
                # By default, the client waits a second before it fetches again after its queue of
                # records was full.
                "fetch.queue.backoff.ms": 5,
                # How long the broker waits before it reports the end of a partition.
                "fetch.wait.max.ms": 10,
            }
        )
    try:
        with broker_errors(kafka):
            metadata = consumer.list_topics(topic, timeout=_TIMEOUT_S).topics[topic]
        if metadata.error is not None:
            raise EngineError(f"Topic {topic} cannot be read: {metadata.error}")
        partitions = [TopicPartition(topic, number, since_ms or 0) for number in metadata.partitions]
        consumer.assign(partitions if since_ms is None else consumer.offsets_for_times(partitions, _TIMEOUT_S))
        unread = set(metadata.partitions)
        while unread:
            for message in consumer.consume(_AT_ONCE, _WAIT_S):
                error = message.error()
                if error is None:
                    yield message
                elif error.code() == KafkaError._PARTITION_EOF:
                    unread.discard(message.partition() or 0)
                else:
                    raise EngineError(f"Topic {message.topic()} cannot be read: {error}")
    finally:
        consumer.close()


def topic_ids(
    kafka: Mapping[str, str],
    topics: Iterable[str],
    seconds: float = _TIMEOUT_S,
) -> dict[str, str]:
    """Topic → its Kafka id, which is new after the topic is deleted and created again.

    Omits missing topics. Raises BrokersUnreachable if no broker answers within `seconds`.
    """
    admin = silent_admin(kafka)
    ids: dict[str, str] = {}
    with broker_errors(kafka):
        futures = admin.describe_topics(TopicCollection(list(topics)), request_timeout=seconds)
        for name, future in futures.items():
            try:
                identity = future.result().topic_id
            except KafkaException as error:
                if error.args[0].code() not in _NO_TOPIC:
                    raise
                continue
            assert isinstance(identity, Uuid)
            ids[name] = str(identity)
    return ids


Headers = Sequence[tuple[str, bytes | None]]
"""Names and values of a record's headers, in order. Names may occur several times."""
HEADERS_UNREADABLE: Headers = [("(unreadable)", b"names of headers are not UTF-8")]
"""Replaces the headers of a record if a name is not UTF-8, because the client cannot return such
headers."""


def headers_of(message: Message) -> Headers:
    """The headers of a record. Call it once per message."""
    try:
        headers = message.headers() or []
    # The client raises one of these errors for a name that is not UTF-8.
    except (SystemError, UnicodeDecodeError):
        return HEADERS_UNREADABLE
    pairs = headers.items() if isinstance(headers, dict) else headers
    return [(name, value.encode() if isinstance(value, str) else value) for name, value in pairs]


def records_at(
    kafka: Mapping[str, str],
    places: Mapping[tuple[str, int], int],
) -> dict[tuple[str, int], Message]:
    """Topic and partition → the committed record at the given offset.

    Omits partitions without a record there. Raises BrokersUnreachable if a broker does not answer.
    """
    records: dict[tuple[str, int], Message] = {}
    unread = set(places)
    with configuration_errors():
        consumer = Consumer({**quiet(kafka), **_ONE_RECORD})
    try:
        with broker_errors(kafka):
            # This call makes the client find the partitions' leaders at once instead of after 0.5
            # s.
            if places:
                consumer.list_topics(timeout=_TIMEOUT_S)
            consumer.assign([TopicPartition(topic, number, offset) for (topic, number), offset in places.items()])
            until = time.monotonic() + _TIMEOUT_S
            while unread:
                message = consumer.poll(max(until - time.monotonic(), 0))
                if message is None:
                    raise unreachable(kafka, f"no record of {min(unread)[0]} within {_TIMEOUT_S:.0f} s")
                error, place = message.error(), (message.topic() or "", message.partition() or 0)
                if error is not None and error.code() not in _NOTHING_THERE:
                    raise KafkaException(error)
                if error is None and place in unread and message.offset() == places[place]:
                    records[place] = message
                unread.discard(place)
    finally:
        consumer.close()
    return records


def text_headers(message: Message) -> dict[str, str]:
    """The headers of a record as text."""
    return {name: (value or b"").decode(errors="replace") for name, value in headers_of(message)}
