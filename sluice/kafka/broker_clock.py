"""Reads a broker's clock: the timestamp that the broker itself gives to a record."""

from __future__ import annotations

import time
from collections.abc import Mapping

from confluent_kafka import TIMESTAMP_LOG_APPEND_TIME, KafkaError, KafkaException, Message

from sluice.kafka.brokers import producer_of

STAMPED_BY_BROKER: Mapping[str, str] = {"message.timestamp.type": "LogAppendTime"}
"""The topic setting with which each record's timestamp comes from the broker's clock."""
_KEY = b"sluice.clock"
_ANSWER_S = 5.0


def milliseconds_ahead(kafka: Mapping[str, str], topic: str) -> int | None:
    """Return how far this machine's clock is ahead of the broker's, in ms; negative if behind.

    Writes two records to the topic, which should be compacted. Returns None if the broker does not
    accept them, does not answer, or does not stamp the topic's records.
    """
    stamps: list[int] = []

    def note(error: KafkaError | None, message: Message) -> None:
        kind, timestamp_ms = message.timestamp()
        if error is None and kind == TIMESTAMP_LOG_APPEND_TIME:
            stamps.append(timestamp_ms)

    producer = producer_of(
        kafka, {"acks": 1, "linger.ms": 0, "message.timeout.ms": int(_ANSWER_S * 1_000)}
    )
    written_ms = 0.0
    try:
        # The first record opens the connection. That takes long, so it must not be part of the
        # measurement.
        for _ in range(2):
            begun_ms = time.time() * 1_000
            producer.produce(topic, b"", _KEY, on_delivery=note)
            producer.flush(_ANSWER_S)
            written_ms = (begun_ms + time.time() * 1_000) / 2
    except KafkaException:
        return None
    return round(written_ms - stamps[-1]) if len(stamps) == 2 else None
