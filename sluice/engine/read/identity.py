"""Checks that the source topics were not replaced and have not lost unread records.

Spark identifies a topic only by name and offset. If a topic was deleted, created again and has grown longer than the
old topic, Spark would continue at the old topic's offset and silently skip records.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from confluent_kafka import Consumer, TopicPartition

from sluice.engine.batch.topics import TIMEOUT_S, kafka_errors
from sluice.errors import EngineError
from sluice.kafka.brokers import quiet
from sluice.kafka.topics import topic_ids
from sluice.state.ledger.sources import SourcePartition, Sources
from sluice.state.model import JobRef

Positions = Mapping[str, Mapping[str, int]]
"""Topic → partition as text → offset."""


class InputError(EngineError):
    """A topic was replaced since the job began to read it, or has lost records that the job has not read yet."""

    status = 409
    title = "The input has changed"


@dataclass(frozen=True)
class Topic:
    """A topic's current state. `ends` holds, per partition, the first offset and the offset after the last record."""

    name: str
    id: str
    ends: tuple[tuple[int, int], ...]


@dataclass(frozen=True)
class SourceIdentity:
    """The source topics of a job's generation, identified by topic ids and offsets."""

    kafka: Mapping[str, str]
    sources: Sources
    ref: JobRef
    topics: tuple[str, ...]

    def check(self, done: Positions, begun: Positions) -> dict[str, dict[str, int]]:
        """Raise InputError if a topic has changed. Record new partitions in the ledger.

        `done` are the start offsets of the next batch; `begun` are the end offsets of an unfinished batch that will be
        retried. Returns the offsets at which the generation began to read each partition.
        """
        topics = describe_topics(self.kafka, self.topics)
        recorded = self.sources.get(self.ref)
        # An unfinished first batch starts where the generation began.
        starts = done or (_firsts(recorded) if begun else {})
        for topic in self.topics:
            self._check_identity(topics.get(topic), topic, [source for source in recorded if source.topic == topic])
            _check_range(topics[topic], starts.get(topic, {}), begun.get(topic, {}), self.ref.pipeline)
        partitions = {(source.topic, source.partition) for source in recorded}
        new = [
            SourcePartition(topic=topic.name, partition=number, topic_id=topic.id, first=first)
            for topic in topics.values()
            for number, (first, _) in enumerate(topic.ends)
            if (topic.name, number) not in partitions
        ]
        self.sources.add(self.ref, new)
        return _firsts([*recorded, *new])

    def check_identity(self) -> None:
        """Raise InputError if a topic has been deleted or created again since the run began."""
        recorded = self.sources.get(self.ref)
        ids = topic_ids(self.kafka, self.topics)
        for topic in self.topics:
            current = Topic(topic, ids[topic], ()) if topic in ids else None
            self._check_identity(current, topic, [source for source in recorded if source.topic == topic])

    def _check_identity(self, current: Topic | None, topic: str, recorded: list[SourcePartition]) -> None:
        if current is None:
            problem = "was deleted" if recorded else "does not exist"
            step = self._choices(topic) if recorded else "Create the topic, or correct its name in the pipeline."
            raise InputError(f"Topic {topic} {problem}.", next_step=step)
        if recorded and recorded[0].topic_id != current.id:
            raise InputError(
                f"Topic {topic} was deleted and created again: its id is {current.id}, and job {self.ref.job!r} of "
                f"pipeline {self.ref.pipeline!r} has read {recorded[0].topic_id}. The published state is unchanged.",
                next_step=self._choices(topic),
            )

    def _choices(self, topic: str) -> str:
        return (
            "Either stop running the pipeline, which leaves the state unchanged; or write the old records back to "
            f"{topic}, then rebuild the state from the topics' current records: "
            f"sluice rebuild {self.ref.pipeline} --from-topics."
        )


def describe_topics(kafka: Mapping[str, str], topics: Iterable[str]) -> dict[str, Topic]:
    """The topics' current ids and offsets. Omits topics that do not exist."""
    ids = topic_ids(kafka, topics)
    consumer = Consumer({**quiet(kafka), "group.id": "sluice-guard", "enable.auto.commit": False})
    try:
        with kafka_errors("Reading the topics' offsets", kafka):
            existing = consumer.list_topics(timeout=TIMEOUT_S).topics
            return {
                name: Topic(name, ids[name], tuple(_ends(consumer, name, len(existing[name].partitions))))
                for name in ids
                if name in existing
            }
    finally:
        consumer.close()


def _ends(consumer: Consumer, topic: str, partitions: int) -> Iterable[tuple[int, int]]:
    for number in range(partitions):
        low, high = consumer.get_watermark_offsets(TopicPartition(topic, number), timeout=TIMEOUT_S)
        yield low, high


def _firsts(sources: Iterable[SourcePartition]) -> dict[str, dict[str, int]]:
    firsts: dict[str, dict[str, int]] = {}
    for source in sources:
        firsts.setdefault(source.topic, {})[str(source.partition)] = source.first
    return firsts


def _check_range(topic: Topic, done: Mapping[str, int], begun: Mapping[str, int], pipeline: str) -> None:
    for partition, position in {**begun, **done}.items():  # `done` takes precedence
        number = int(partition)
        if number >= len(topic.ends):
            raise InputError(f"Topic {topic.name} has lost partition {number}.", next_step=_RESTORE)
        first, end = topic.ends[number]
        if partition in done and position < first:
            raise InputError(
                f"Unread records are gone: {topic.name}, partition {number}, offsets {position} to {first - 1} "
                f"(at most {first - position} records; some offsets may be transaction markers).",
                next_step=f"{_RESTORE} Or rebuild the state from the topics' current records: "
                f"sluice rebuild {pipeline} --from-topics. Then make the topic's retention longer than the longest "
                "time without a run.",
            )
        reached = max(position, begun.get(partition, position))
        if reached > end:
            raise InputError(
                f"Topic {topic.name} became shorter: partition {number} ends at offset {end}, but was read up to "
                f"{reached}. Records {end} to {reached - 1} are in the state but no longer in the topic.",
                next_step=f"{_RESTORE} Or rebuild the state from the topics' current records: "
                f"sluice rebuild {pipeline} --from-topics.",
            )


_RESTORE = "Either stop running the pipeline, which leaves the state unchanged, or restore the topic."
