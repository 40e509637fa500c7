"""Reads the headers of single records again, for dead letters of steps that get rows without the record's headers."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from itertools import groupby

from confluent_kafka import Consumer, KafkaError, Message, TopicPartition

from sluice.engine.batch.job_topics import TIMEOUT_S, kafka_errors
from sluice.engine.batch.record_headers import Place
from sluice.kafka.brokers import quiet
from sluice.kafka.topics import headers_of

Headers = list[Mapping[str, str | bytes | None]]
_NEAR = 1_000
"""The consumer reads on to a record that is at most this many offsets ahead, and jumps to one that
is further away."""


class _Deleted(Exception):
    """Retention has removed a record."""


def headers_at(kafka: Mapping[str, str], places: Iterable[Place]) -> dict[Place, Headers]:
    """Place → the headers of the record at this place.

    Omits records without headers, and records that are no longer in the topics.
    """
    consumer = Consumer({
        **quiet(kafka), "group.id": "sluice-headers", "enable.auto.commit": False,
        "isolation.level": "read_committed", "auto.offset.reset": "error", "fetch.wait.max.ms": 10,
    })  # fmt: skip
    headers_by_place: dict[Place, Headers] = {}
    try:
        with kafka_errors("Reading the headers of rejected records", kafka):
            # The places are sorted, so that records with nearby offsets are read one after the
            # other.
            by_partition = groupby(sorted({*places}), lambda place: place[:2])
            for (topic, partition), of_partition in by_partition:
                message: Message | None = None
                for place in of_partition:
                    try:
                        message = _read(consumer, place, message)
                    except _Deleted:
                        message = None
                        continue
                    # After a timeout or an error, skip the partition's other records: dead letters
                    # without headers are better than a failed batch.
                    if message is None:
                        break
                    # Compaction may have removed the record. The consumer has then read the next record.
                    if message.offset() != place[2]:
                        continue
                    if headers := headers_of(message):
                        pairs: Headers = [{"key": name, "value": text} for name, text in headers]
                        headers_by_place[topic, partition, place[2]] = pairs
    finally:
        consumer.close()
    return headers_by_place


def _read(consumer: Consumer, place: Place, message: Message | None) -> Message | None:
    """Read on from `message` to the first record at or after a place. Returns None after a timeout or an error.

    Raises _Deleted if retention has removed the place from the topic, which may still have later records.
    """
    topic, partition, offset = place
    if message is None or offset - (message.offset() or 0) > _NEAR:
        consumer.assign([TopicPartition(topic, partition, offset)])
        message = None
    while message is None or (message.offset() or 0) < offset:
        message = consumer.poll(TIMEOUT_S)
        error = None if message is None else message.error()
        if error is not None and error.code() == KafkaError._AUTO_OFFSET_RESET:
            raise _Deleted
        if message is None or error is not None:
            return None
    return message
