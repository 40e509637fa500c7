"""Whether the topics still are what the job has begun to read: the same ones, with all that it has yet to read.

Spark knows topics by name and offset only. A topic that was deleted and made anew, and has grown longer than the old
one, it would go on reading from the old one's offset, and nobody would notice what was lost.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from confluent_kafka import Consumer, KafkaException, TopicCollection, TopicPartition, Uuid
from confluent_kafka.admin import AdminClient

from sluice.brokers import quiet
from sluice.engine.publish.transaction import TIMEOUT_S, kafka_errors
from sluice.errors import EngineError
from sluice.state.ledger.sources import SourcePartition, Sources
from sluice.state.model import JobRef

Positions = Mapping[str, Mapping[str, int]]
"""Topic → partition as text → offset."""


class InputError(EngineError):
    """A topic is not what the job has begun to read, or has lost what the job has yet to read."""

    status = 409
    title = "The input has changed"


@dataclass(frozen=True)
class Topic:
    """A topic as it is now. `ends` holds (first offset, offset after the last) of each partition."""

    name: str
    id: str
    ends: tuple[tuple[int, int], ...]


@dataclass(frozen=True)
class Guard:
    """Guards the input of one generation of a job."""

    kafka: Mapping[str, str]
    sources: Sources
    ref: JobRef
    topics: tuple[str, ...]

    def check(self, done: Positions, begun: Positions) -> dict[str, dict[str, int]]:
        """Raise InputError if the topics are not as they must be; remember what is new of them.

        `done` is where the next batch starts, `begun` where one that was begun must end, which is done again. Returns
        the offsets at which the generation began to read each partition.
        """
        found = look(self.kafka, self.topics)
        known = self.sources.get(self.ref)
        # A first batch that was begun starts where the job began.
        starts = done or (_firsts(known) if begun else {})
        for topic in self.topics:
            mine = [one for one in known if one.topic == topic]
            self._check_identity(found.get(topic), topic, mine)
            _check_range(found[topic], starts.get(topic, {}), begun.get(topic, {}), self.ref.pipeline)
        new = [one for one in _partitions(found.values()) if not any(_same_place(one, old) for old in known)]
        self.sources.add(self.ref, new)
        return _firsts([*known, *new])

    def check_identity(self) -> None:
        """Raise InputError if a topic has been deleted or made anew since the run began."""
        known = self.sources.get(self.ref)
        ids = topic_ids(self.kafka, self.topics)
        for topic in self.topics:
            mine = [one for one in known if one.topic == topic]
            self._check_identity(Topic(topic, ids[topic], ()) if topic in ids else None, topic, mine)

    def _check_identity(self, found: Topic | None, topic: str, known: list[SourcePartition]) -> None:
        if found is None:
            what = "was deleted" if known else "is not there"
            step = self._anew(topic) if known else "Create it, or correct its name in the pipeline."
            raise InputError(f"Topic {topic} {what}.", next_step=step)
        if known and known[0].topic_id != found.id:
            raise InputError(
                f"Topic {topic} was deleted and made anew: it is {found.id}, and job {self.ref.job!r} of pipeline "
                f"{self.ref.pipeline!r} has read {known[0].topic_id}. What it published stays as it is.",
                next_step=self._anew(topic),
            )

    def _anew(self, topic: str) -> str:
        return (
            "Choose: leave the state as it is, and do not run the pipeline; or bring the old records back into "
            f"{topic}, and build the state from what the topics hold now: sluice rebuild {self.ref.pipeline} --from-topics."
        )


def look(kafka: Mapping[str, str], topics: Iterable[str]) -> dict[str, Topic]:
    """The topics as they are now; those that are not there are left out."""
    ids = topic_ids(kafka, topics)
    consumer = Consumer({**quiet(kafka), "group.id": "sluice-guard", "enable.auto.commit": False})
    try:
        with kafka_errors("Looking at the topics"):
            there = consumer.list_topics(timeout=TIMEOUT_S).topics
            return {
                name: Topic(name, ids[name], tuple(_ends(consumer, name, len(there[name].partitions))))
                for name in ids
                if name in there
            }
    finally:
        consumer.close()


def topic_ids(kafka: Mapping[str, str], topics: Iterable[str]) -> dict[str, str]:
    """Kafka's ids of the topics that are there."""
    admin = AdminClient(quiet(kafka))
    found: dict[str, str] = {}
    with kafka_errors("Looking at the topics"):
        asked = admin.describe_topics(TopicCollection(list(topics)), request_timeout=TIMEOUT_S)
        for name, future in asked.items():
            try:
                identity = future.result().topic_id
            except KafkaException as error:
                if error.args[0].name() != "UNKNOWN_TOPIC_OR_PART":
                    raise
                continue
            assert isinstance(identity, Uuid)
            found[name] = str(identity)
    return found


def _ends(consumer: Consumer, topic: str, partitions: int) -> Iterable[tuple[int, int]]:
    for number in range(partitions):
        low, high = consumer.get_watermark_offsets(TopicPartition(topic, number), timeout=TIMEOUT_S)
        yield low, high


def _partitions(topics: Iterable[Topic]) -> Iterable[SourcePartition]:
    for topic in topics:
        for number, (first, _) in enumerate(topic.ends):
            yield SourcePartition(topic=topic.name, partition=number, topic_id=topic.id, first=first)


def _firsts(known: Iterable[SourcePartition]) -> dict[str, dict[str, int]]:
    firsts: dict[str, dict[str, int]] = {}
    for one in known:
        firsts.setdefault(one.topic, {})[str(one.partition)] = one.first
    return firsts


def _same_place(one: SourcePartition, other: SourcePartition) -> bool:
    return (one.topic, one.partition) == (other.topic, other.partition)


def _check_range(topic: Topic, done: Mapping[str, int], begun: Mapping[str, int], pipeline: str) -> None:
    for partition, position in {**begun, **done}.items():  # where both say something, it begins where `done` says
        number = int(partition)
        if number >= len(topic.ends):
            raise InputError(f"Topic {topic.name} has lost partition {number}.", next_step=_RESTORE)
        first, end = topic.ends[number]
        if partition in done and position < first:
            raise InputError(
                f"Records that were not read yet are gone: {topic.name}, partition {number}, offsets {position} to "
                f"{first - 1}: {first - position} of them, if none was a mark of a transaction.",
                next_step=f"{_RESTORE} Or build the state from what the topics hold now: "
                f"sluice rebuild {pipeline} --from-topics. Then make the topic's retention longer than the longest "
                "time without a run.",
            )
        reached = max(position, begun.get(partition, position))
        if reached > end:
            raise InputError(
                f"Topic {topic.name} is shorter than it was: partition {number} ends at offset {end}, and was read up "
                f"to {reached}. Records {end} to {reached - 1} are in the state, and no longer in the topic.",
                next_step=f"{_RESTORE} Or build the state from what the topics hold now: "
                f"sluice rebuild {pipeline} --from-topics.",
            )


_RESTORE = "Choose: leave the state as it is, and do not run the pipeline; or restore the topic."
