"""Creates topics, reads their partitions and limits, and turns Kafka's errors into EngineErrors."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import ConfigResource, ResourceType  # type: ignore[attr-defined]

from sluice.errors import EngineError, sentence
from sluice.kafka.brokers import silent_admin, without_token
from sluice.kafka.denied_operations import denial
from sluice.kafka.topics import Topic, create_topics, described_topics

TIMEOUT_S = 30
_ANY_TIME = 2**63 - 1
_NO_CONNECTION = {
    KafkaError._ALL_BROKERS_DOWN,
    KafkaError._AUTHENTICATION,
    KafkaError._MSG_TIMED_OUT,
    KafkaError._TIMED_OUT,
    KafkaError._TIMED_OUT_QUEUE,
    KafkaError._TRANSPORT,
}
"""The errors that a client may get because it has no token and therefore no connection."""
_NO_CONFIG = (KafkaError.TOPIC_AUTHORIZATION_FAILED, KafkaError.UNKNOWN_TOPIC_OR_PART)


@dataclass(frozen=True)
class TopicLimits:
    """The records that a topic accepts, according to its settings. The defaults are Kafka's."""

    size: int = 1_048_588
    """The maximum size, in bytes, of a batch of records that Kafka accepts."""
    needs_key: bool = False
    """Whether records without a key are rejected, because the topic is compacted."""
    before_ms: int = _ANY_TIME
    """How far before the broker's clock a record's timestamp may be."""
    after_ms: int = 3_600_000
    """How far after the broker's clock a record's timestamp may be."""


NO_LIMITS = TopicLimits(size=2**31, after_ms=_ANY_TIME)


@contextlib.contextmanager
def kafka_errors(action: str, kafka: Mapping[str, str]) -> Iterator[None]:
    """Convert Kafka's errors to EngineErrors that name the action and the brokers.

    An example of an action is "Reading the markers". If Kafka has denied an operation, raises
    AccessDenied, which names the denied operation, not the action.
    """
    try:
        yield
    except KafkaException as error:
        denied = denial(kafka, error)
        if denied is not None:
            raise denied from error
        if error.args[0].code() in _NO_CONNECTION and (tokenless := without_token(kafka)):
            raise tokenless from error
        reason = error.args[0].str()
        raise EngineError(
            f"{action}{at(kafka, reason)}: {sentence(reason)}",
            next_step=next_step_for(reason),
        ) from error
    except TimeoutError as error:
        # The admin client's futures raise TimeoutError if the brokers do not answer.
        if (tokenless := without_token(kafka)) is not None:
            raise tokenless from error
        raise EngineError(
            f"{action}{at(kafka)}: no answer in time.",
            next_step=next_step_for(""),
        ) from error


def at(kafka: Mapping[str, str], reason: str = "") -> str:
    """Return the brokers' configured address, for a message.

    Return an empty text if `reason` contains the address.
    """
    address = kafka.get("bootstrap.servers", "an unset address")
    if address in reason:
        return ""
    return f", Kafka at {address}"


def next_step_for(reason: str) -> str:
    """Return the advice after an error of Kafka's client, as the `next_step` of a Sluice error."""
    if "size too large" in reason:
        return (
            "Nothing from the batch was published. Raise max.message.bytes of the output's topic, "
            "let the pipeline write smaller records, or turn such records into dead letters: "
            'to(topic, on_error="dead_letter"). If no output has on_error="fail", a dead letter is '
            "too large: raise max.message.bytes of the pipeline's topic for dead letters."
        )
    if "Invalid timestamp" in reason or "failed to validate record" in reason:
        return (
            "Nothing from the batch was published. Compare the output's keys and timestamps with "
            "the topic's cleanup.policy, message.timestamp.before.max.ms and "
            "message.timestamp.after.max.ms, or turn such records into dead letters: "
            'to(topic, on_error="dead_letter").'
        )
    return "Check that the broker is running and reachable."


def topic_limits(kafka: Mapping[str, str], topics: Iterable[str]) -> dict[str, TopicLimits]:
    """Return each topic's limits, or Kafka's defaults if access to a topic's settings is denied."""
    admin = silent_admin(kafka)
    limits = dict.fromkeys(topics, TopicLimits())
    resources = [ConfigResource(ResourceType.TOPIC, topic) for topic in limits]
    configurations = admin.describe_configs(resources)
    with kafka_errors("Reading the topics' settings", kafka):
        for resource, future in configurations.items():
            try:
                entries = future.result(TIMEOUT_S)
                settings = {name: entry.value for name, entry in entries.items()}
                limits[resource.name] = _limits(settings)
            except KafkaException as error:
                if error.args[0].code() not in _NO_CONFIG:
                    raise
    return limits


def _limits(settings: Mapping[str, str]) -> TopicLimits:
    # With `LogAppendTime`, the broker replaces records' timestamps, so it accepts any timestamp.
    is_stamped = settings.get("message.timestamp.type") == "LogAppendTime"
    # Brokers before Kafka 3.6 have one setting for both directions.
    either = settings.get("message.timestamp.difference.max.ms", str(_ANY_TIME))
    before_ms = int(settings.get("message.timestamp.before.max.ms", either))
    after_ms = int(settings.get("message.timestamp.after.max.ms", either))
    if is_stamped:
        before_ms = after_ms = _ANY_TIME
    return TopicLimits(
        size=int(settings["max.message.bytes"]),
        needs_key="compact" in settings.get("cleanup.policy", ""),
        before_ms=before_ms,
        after_ms=after_ms,
    )


def ensure_topics(
    kafka: Mapping[str, str],
    wanted: Mapping[str, int],
    settings: Mapping[str, Mapping[str, str]],
) -> None:
    """Create missing topics with the `wanted` number of partitions, and with their `settings`."""
    admin = silent_admin(kafka)
    with kafka_errors("Listing the topics", kafka):
        existing = described_topics(admin, wanted, TIMEOUT_S)
    missing: list[Topic] = []
    for topic, count in wanted.items():
        if topic not in existing:
            missing.append(Topic(topic, count, config=settings.get(topic, {})))
    # The client refuses an empty list of topics.
    if missing:
        create_topics(kafka, missing)


def partition_counts(kafka: Mapping[str, str], topics: Iterable[str]) -> dict[str, int]:
    """Return each topic's number of partitions.

    Raises EngineError for a topic that does not exist.
    """
    admin = silent_admin(kafka)
    with kafka_errors("Listing the topics", kafka):
        existing = described_topics(admin, topics, TIMEOUT_S)
    missing = sorted(set(topics) - existing.keys())
    if missing:
        raise EngineError(
            f"There is no topic {', '.join(missing)}.",
            next_step="Create the topic, or correct its name in the pipeline.",
        )
    return {topic: len(existing[topic].partitions) for topic in topics}
