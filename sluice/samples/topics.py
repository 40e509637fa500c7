"""Topics of the orders pipeline: made, filled with samples, read back."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, Producer, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from sluice.brokers import quiet, require_brokers
from sluice.errors import EngineError
from sluice.samples.orders import START_MS, orders, stores

PARTITIONS = 4
_FOREVER = {"retention.ms": "-1"}
_LATEST = {"cleanup.policy": "compact"}
_TOPICS = {
    "general_orders": (PARTITIONS, _FOREVER),
    "restaurant_orders": (PARTITIONS, _FOREVER),
    "general_orders_revenue": (PARTITIONS, _FOREVER),
    "restaurant_orders_revenue": (PARTITIONS, _FOREVER),
    "orders_dead_letters": (1, _FOREVER),
    "stores": (1, _LATEST),
}
_PRODUCER = {
    "linger.ms": 50,
    "batch.size": 1_000_000,
    "compression.type": "lz4",
    "queue.buffering.max.messages": 1_000_000,
    "enable.idempotence": True,
    "log_level": 3,
}
_TIMEOUT_S = 30.0
_REPORT_EVERY = 1_000


@dataclass(frozen=True)
class Produced:
    """What `produce_orders` did."""

    orders: int
    stores: int
    bad: int
    seconds: float
    topics_made: tuple[str, ...]


def create_topics(kafka: Mapping[str, str], topic: str = "orders") -> tuple[str, ...]:
    """Make the topics of the orders pipeline that are missing; the names of those that were made.

    Orders bear the time at which they were placed, years ago for the samples: Kafka deletes by that time, so these
    topics keep records for ever.
    """
    wanted = {topic: (PARTITIONS, _FOREVER), **_TOPICS}
    topics = [NewTopic(name, partitions, 1, config=config) for name, (partitions, config) in wanted.items()]
    require_brokers(kafka)
    admin = AdminClient(quiet(kafka))  # kept in a name: it must outlive its answers
    made = admin.create_topics(topics)
    return tuple(name for name, future in made.items() if _made(name, future.exception(_TIMEOUT_S)))


def _made(name: str, error: BaseException | None) -> bool:
    if error is None:
        return True
    if isinstance(error, KafkaException) and error.args[0].code() == KafkaError.TOPIC_ALREADY_EXISTS:
        return False
    raise EngineError(f"Topic {name} could not be made: {error}", next_step="See that the broker is up and reachable.")


def produce_orders(
    kafka: Mapping[str, str],
    *,
    count: int,
    stores: int = 50,
    seed: int = 7,
    bad_share: float = 0.0,
    late_share: float = 0.0,
    start_ms: int = START_MS,
    topic: str = "orders",
    progress: Callable[[int], None] = lambda _: None,
) -> Produced:
    """Bring sample stores, then sample orders, to Kafka, and wait until it has them all.

    `progress` is called with the number of orders handed over so far.
    """
    began = time.monotonic()
    made = create_topics(kafka, topic)
    sent = _Sent(progress)
    produce(kafka, "stores", ((key, value, 0) for key, value in _stores(stores)))
    samples = orders(count, stores, seed, bad_share, late_share, start_ms)
    produce(kafka, topic, sent.counted(samples))
    return Produced(sent.orders, stores, sent.bad, time.monotonic() - began, made)


_stores = stores


class _Sent:
    def __init__(self, progress: Callable[[int], None]) -> None:
        self.orders = self.bad = 0
        self._progress = progress

    def counted(self, samples: Iterable[tuple[str, bytes, int, str]]) -> Iterator[tuple[str, bytes, int]]:
        for key, value, timestamp_ms, reason in samples:
            self.orders += 1
            self.bad += bool(reason)
            if self.orders % _REPORT_EVERY == 0:
                self._progress(self.orders)
            yield key, value, timestamp_ms
        self._progress(self.orders)


def produce(kafka: Mapping[str, str], topic: str, records: Iterable[tuple[str | None, bytes | None, int]]) -> None:
    """Send (key, value, timestamp in ms) records, in order; a timestamp of 0 is now.

    Raises EngineError if the broker refuses any.
    """
    failed: list[KafkaError] = []

    def note(error: KafkaError | None, _: Message) -> None:
        if error is not None:
            failed.append(error)

    producer = Producer({**_PRODUCER, **quiet(kafka), "on_delivery": note})
    for number, (key, value, timestamp_ms) in enumerate(records):
        while True:
            try:
                producer.produce(topic, value, key, timestamp=timestamp_ms)
                break
            except BufferError:
                producer.poll(0.1)
        if number % _REPORT_EVERY == 0:
            producer.poll(0)
    left = producer.flush(_TIMEOUT_S)
    if failed or left:
        why = failed[0] if failed else "no answer from the broker"
        raise EngineError(
            f"{len(failed) + left} records were not written to {topic}: {why}.",
            next_step="See that the broker is up and reachable, and produce again.",
        )


def require_delivery(error: KafkaError | None, message: Message) -> None:
    """Raise EngineError if the broker refused the record: a callback for producers."""
    if error is not None:
        raise EngineError(f"A record was not written to {message.topic()}: {error}.")


def read_topic(kafka: Mapping[str, str], topic: str) -> Iterator[Message]:
    """Read the topic's committed records from its beginning to where it ends now, each partition's in order."""
    consumer = Consumer(
        {
            "group.id": "sluice-samples",
            "enable.auto.commit": False,
            "enable.partition.eof": True,
            "isolation.level": "read_committed",
            "auto.offset.reset": "earliest",
            "fetch.queue.backoff.ms": 5,
            **quiet(kafka),
        }
    )
    try:
        found = consumer.list_topics(topic, timeout=_TIMEOUT_S).topics[topic]
        if found.error is not None:
            raise EngineError(f"Topic {topic} cannot be read: {found.error}")
        consumer.assign([TopicPartition(topic, number, 0) for number in found.partitions])
        yield from _until_ends(consumer, set(found.partitions))
    finally:
        consumer.close()


def _until_ends(consumer: Consumer, open_partitions: set[int]) -> Iterator[Message]:
    while open_partitions:
        batch = consumer.consume(10_000, timeout=1.0)
        for message in batch:
            error = message.error()
            if error is None:
                yield message
            elif error.code() == KafkaError._PARTITION_EOF:
                open_partitions.discard(message.partition() or 0)
            else:
                raise EngineError(f"Topic {message.topic()} cannot be read: {error}")
