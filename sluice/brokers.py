"""Kafka's brokers: whether one answers, and clients that do not log every attempt to reach one."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import AdminClient

from sluice.errors import BrokersUnreachable

ANSWER_SECONDS = 5.0
"""How long brokers may take to answer before a run, or a producer of samples, gives up."""

_CRITICAL = 2
_AROUND = re.compile(r"^\S+/(bootstrap|\d+): | \(after .*\)$")
"""What librdkafka says around a reason: which of its connections, and for how long."""


def quiet(kafka: Mapping[str, str]) -> dict[str, Any]:
    """Settings of a client that logs nothing below what is critical: what matters comes as an error, once."""
    return {"log_level": _CRITICAL, **kafka}


def require_brokers(kafka: Mapping[str, str], seconds: float = ANSWER_SECONDS) -> None:
    """Raise BrokersUnreachable, with the address, unless a broker answers within `seconds`."""
    heard: list[str] = []

    def hear(error: KafkaError) -> None:
        if error.code() != KafkaError._ALL_BROKERS_DOWN:
            heard.append(error.str())

    admin = AdminClient(quiet(kafka) | {"error_cb": hear})
    try:
        admin.list_topics(timeout=seconds)
    except KafkaException as error:
        admin.poll(0)
        raise unreachable(kafka, heard[-1] if heard else error.args[0].str()) from None


def unreachable(kafka: Mapping[str, str], why: str) -> BrokersUnreachable:
    """The error that says where no broker answers."""
    address = kafka.get("bootstrap.servers", "an address that is not set")
    reason = _AROUND.sub("", why).rstrip(".")
    return BrokersUnreachable(f"Kafka at {address} does not answer: {reason}.")
