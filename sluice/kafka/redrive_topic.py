"""The topic with a marker for each re-driven dead letter, and the record of this topic's id.

If this topic were lost unnoticed, the next re-drive would write every record to its source topic a
second time. Therefore its id is a record in the topic with the markers of the pipeline's batches,
`PIPELINE_markers`, under a key that no batch has.
"""

from __future__ import annotations

from collections.abc import Mapping

from confluent_kafka import KafkaException, Producer

from sluice.errors import EngineError, OutputError, sentence
from sluice.kafka.broker_clock import STAMPED_BY_BROKER
from sluice.kafka.brokers import ANSWER_SECONDS, producer_of
from sluice.kafka.dead_letter_topic import markers_of
from sluice.kafka.denied_operations import WRITE, denial, denial_named
from sluice.kafka.topics import Topic, as_bytes, create_topics, read_topic, topic_ids

TIMEOUT_S = 15.0


REDRIVE_SETTINGS: Mapping[str, str] = {"cleanup.policy": "compact"}
"""The settings of the topic of re-drives."""


def batches_of(pipeline: str) -> str:
    """Return the topic of the markers of a pipeline's batches."""
    return f"{pipeline}_markers"


def transactional_id(pipeline: str) -> str:
    """Return the transactional id of a pipeline's re-drives."""
    return f"sluice.{pipeline}.redrive"


def require_redrive_topic(kafka: Mapping[str, str], pipeline: str, producer: Producer) -> None:
    """Create the topic before the first re-drive. Later, raise OutputError if it was deleted.

    `producer` has the re-drives' transactional id. The id keeps other processes from re-driving
    meanwhile.
    """
    topic = markers_of(pipeline)
    remembered = _remembered_id(kafka, pipeline)
    now = topic_ids(kafka, [topic], ANSWER_SECONDS).get(topic)
    if remembered and remembered != now:
        happened = "was deleted" if now is None else "was deleted and created again"
        raise OutputError(
            f"Topic {topic} {happened}. Its records told which dead letters of {pipeline} were "
            "re-driven. Without them, a re-drive would write these dead letters to their source "
            "topics a second time. Nothing was re-driven.",
            next_step="If you have a copy of the topic, restore it. Then accept the topic as it "
            f"is: sluice topics accept {pipeline}. All dead letters without a marker then count as "
            "not re-driven, so re-drive only those that came after the last re-drive: sluice "
            f"dead-letters redrive {pipeline} --since TIME.",
        )
    if remembered is None:
        batches = Topic(batches_of(pipeline), config={**REDRIVE_SETTINGS, **STAMPED_BY_BROKER})
        create_topics(kafka, [Topic(topic, config=REDRIVE_SETTINGS), batches])
        _remember(pipeline, producer, topic_ids(kafka, [topic], ANSWER_SECONDS)[topic])


def accept_redrive_topic(kafka: Mapping[str, str], pipeline: str) -> str | None:
    """Accept the topic as it is now for the next re-drive, even if the earlier topic was deleted.

    Returns the topic's name if it was deleted, or else None.
    """
    topic = markers_of(pipeline)
    remembered = _remembered_id(kafka, pipeline)
    now = topic_ids(kafka, [topic], ANSWER_SECONDS).get(topic)
    if remembered in (None, now):
        return None
    producer = producer_of(kafka, {"transactional.id": transactional_id(pipeline)})
    try:
        with denial_named(WRITE, batches_of(pipeline), transactional_id(pipeline)):
            producer.init_transactions(TIMEOUT_S)
            _remember(pipeline, producer, now)
    except KafkaException as error:
        detail = f"The topic {topic} was not accepted: {sentence(error.args[0].str())}"
        raise denial(kafka, error) or EngineError(detail) from None
    return topic


def _remembered_id(kafka: Mapping[str, str], pipeline: str) -> str | None:
    """Read the id of the topic that re-drives have used. Return None if there was no re-drive."""
    batches = batches_of(pipeline)
    if not topic_ids(kafka, [batches], ANSWER_SECONDS):
        return None
    remembered: str | None = None
    for record in read_topic(kafka, batches, longest_silence_s=ANSWER_SECONDS):
        if as_bytes(record.key()) == transactional_id(pipeline).encode():
            remembered = (as_bytes(record.value()) or b"").decode() or None
    return remembered


def _remember(pipeline: str, producer: Producer, topic_id: str | None) -> None:
    producer.begin_transaction()
    producer.produce(batches_of(pipeline), topic_id, transactional_id(pipeline))
    producer.commit_transaction(TIMEOUT_S)
