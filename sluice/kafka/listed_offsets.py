"""Gets partitions' offsets from Kafka: begins, ends, or those of the largest timestamps."""

from __future__ import annotations

from collections.abc import Iterable

from confluent_kafka import IsolationLevel, TopicPartition
from confluent_kafka.admin import (  # type: ignore[attr-defined]
    AdminClient,
    ListOffsetsResultInfo,
    OffsetSpec,
)

from sluice.kafka.denied_operations import DESCRIBE, denial_named


def list_offsets(
    admin: AdminClient,
    partitions: Iterable[TopicPartition],
    which: OffsetSpec,
    seconds: float,
    isolation: IsolationLevel = IsolationLevel.READ_COMMITTED,
) -> dict[TopicPartition, ListOffsetsResultInfo]:
    """Return partition → the offset and timestamp that `which` selects.

    For a reader of committed records, a partition ends before the first record of its oldest open
    transaction. Raises KafkaException or TimeoutError if no broker answers within `seconds`.
    """
    requests = dict.fromkeys(partitions, which)
    # The client raises an error for an empty request.
    if not requests:
        return {}
    futures = admin.list_offsets(requests, isolation_level=isolation, request_timeout=seconds)
    listed: dict[TopicPartition, ListOffsetsResultInfo] = {}
    for partition, future in futures.items():
        with denial_named(DESCRIBE, partition.topic):
            listed[partition] = future.result(seconds)
    return listed
