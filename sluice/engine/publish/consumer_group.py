"""Commits a pipeline's offsets to a consumer group, for the tools that show groups' lag.

Nothing in Sluice reads these offsets: the ledger and the markers say where the next batch begins.
If the offsets cannot be committed to the group, the run therefore continues, and the batch is
written.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Iterable, Mapping

import structlog
from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition

from sluice.engine.read.source_identity import Positions
from sluice.kafka.denied_operations import READ, Operation, allowing_commands
from sluice.settings import masked
from sluice.state.ledger.sources import SourcePartition
from sluice.values.record_places import Partition

log = structlog.get_logger()

_TIMEOUT_S, _ABORT_TIMEOUT_S = 5.0, 60.0
_PAUSE_S = 60.0
"""After a failure, how long to wait before the next attempt. Each attempt may take `_TIMEOUT_S`."""


def group_of(pipeline: str) -> str:
    """Return the name of the consumer group that shows how far a pipeline has read."""
    return f"sluice-{pipeline}"


class ConsumerGroup:
    """The consumer group of a pipeline, which has offsets but no members.

    The first batch of a run commits the offsets of all partitions, because Kafka deletes an offset
    seven days after it was committed. Later batches commit the offsets that have changed.
    """

    def __init__(self, kafka: Mapping[str, str], pipeline: str, topics: Collection[str]) -> None:
        self.name = group_of(pipeline)
        self._kafka = kafka
        self._topics = topics
        self._committed: dict[Partition, int] = {}
        self._reason = ""
        """Why the last attempt failed."""
        self._again_at = 0.0
        # The producer needs metadata of a group without members, which only a consumer can create.
        # This consumer has no connection settings, so it connects to no broker.
        consumer = Consumer({"group.id": self.name, "log_level": 0})
        self._metadata = consumer.consumer_group_metadata()
        consumer.close()

    def add_to_transaction(
        self, producer: Producer, sources: Iterable[SourcePartition], ends: Positions
    ) -> None:
        """Commit the offsets with the producer's transaction, which has begun and is empty.

        If this fails, log a warning once, and begin the transaction anew without the offsets.
        Raises KafkaException if the producer can no longer be used. `ends`: topic → partition as
        text → the offset up to which it has been read.
        """
        changed = self._changed(sources, ends)
        if not changed or time.monotonic() < self._again_at:
            return
        offsets = [TopicPartition(*partition, offset) for partition, offset in changed.items()]
        try:
            producer.send_offsets_to_transaction(offsets, self._metadata, _TIMEOUT_S)
        except KafkaException as error:
            reason = error.args[0]
            if reason.fatal() or reason.code() in _OF_PRODUCER:
                raise
            self._note_failure(reason)
            producer.abort_transaction(_ABORT_TIMEOUT_S)
            producer.begin_transaction()
            return
        self._committed |= changed
        self._reason = ""

    def _changed(self, sources: Iterable[SourcePartition], ends: Positions) -> dict[Partition, int]:
        changed: dict[Partition, int] = {}
        for source in sources:
            if source.topic not in self._topics:
                continue
            partition = source.topic, source.partition
            offset = ends.get(source.topic, {}).get(str(source.partition), source.first)
            if self._committed.get(partition) != offset:
                changed[partition] = offset
        return changed

    def _note_failure(self, reason: KafkaError) -> None:
        self._again_at = time.monotonic() + _PAUSE_S
        why = masked(reason.str())
        if why == self._reason:
            return
        self._reason = why
        next_step = "The pipeline goes on: only tools that show consumer lag need these offsets."
        if reason.code() == KafkaError.GROUP_AUTHORIZATION_FAILED:
            needed = Operation(READ, "group", self.name)
            next_step = (
                f"Allow it: {allowing_commands(self._kafka, [needed])}. "
                "Or set SLUICE_COMMIT_OFFSETS=false."
            )
        log.warning("offsets not committed", group=self.name, why=why, next_step=next_step)


_OF_PRODUCER = {KafkaError.TRANSACTIONAL_ID_AUTHORIZATION_FAILED, KafkaError._FENCED}
"""Errors of the producer itself, which do not depend on the records that it sends."""
