"""Checks that the source topics were not replaced and have not lost unread records.

Spark identifies a topic only by name and offset. If a topic was deleted, created again and has
grown longer than the old topic, Spark would continue at the old topic's offset and silently skip
records. Spark would also skip records if a partition lost its last records and grew again, after an
unclean election of a leader or after a broker's disk was restored. Therefore the ledger keeps, for
each partition, the fingerprint of the last record that was read. A run compares this fingerprint
with the record that is now at the same offset.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from confluent_kafka import Consumer, Message, TopicPartition

from sluice.engine.batch.job_topics import TIMEOUT_S, kafka_errors, topic_limits
from sluice.engine.read.backlog_timestamps import timestamps_of
from sluice.errors import EngineError
from sluice.kafka.brokers import COMMITS_NOTHING, configuration_errors, quiet
from sluice.kafka.topics import as_bytes, records_at, topic_ids, watermark_offsets
from sluice.state.ledger.audits import Audits, SourceAudit
from sluice.state.ledger.sources import SourcePartition, Sources
from sluice.state.model import GenerationRef
from sluice.values.record_metadata import record_fingerprint
from sluice.values.record_places import Partition, Place

Positions = Mapping[str, Mapping[str, int]]
"""Topic → partition as text → offset."""


_NEW_LEADER_S = 1.0
"""How long a run waits until a new leader knows the end of the committed records."""


class InputError(EngineError):
    """A topic was replaced since the pipeline began to read it, or has lost unread records."""

    status = 409
    title = "The input has changed"


@dataclass(frozen=True)
class TopicState:
    """A topic's current state.

    `ends` holds, per partition, the first offset and the offset after the last record.
    """

    name: str
    id: str
    ends: tuple[tuple[int, int], ...]


@dataclass(frozen=True)
class SourceIdentity:
    """The source topics of a generation, identified by topic ids and offsets."""

    kafka: Mapping[str, str] = field(repr=False)
    sources: Sources
    ref: GenerationRef
    topics: tuple[str, ...]
    audits: Audits | None = None
    """The audits of earlier batches. If a partition has lost records, these audits tell the offset
    up to which it is unchanged."""

    def check(self, done: Positions, begun: Positions) -> dict[str, dict[str, int]]:
        """Raise InputError if a topic has changed. Record new partitions in the ledger.

        `done` are the start offsets of the next batch; `begun` are the end offsets of an unfinished
        batch that will be retried. Returns the offsets at which the generation began to read each
        partition.
        """
        topics = describe_topics(self.kafka, self.topics)
        recorded = self.sources.get(self.ref)
        # An unfinished first batch starts where the generation began.
        starts: Positions = done
        if begun and not done:
            starts = _firsts(recorded)
        for name in self.topics:
            self._check_identity(topics.get(name), name, recorded)
            _check_range(
                topics[name],
                starts.get(name, {}),
                begun.get(name, {}),
                self.ref.pipeline,
            )
        self.require_last_records(topics)
        partitions = {source.place for source in recorded}
        new: list[SourcePartition] = []
        for topic in topics.values():
            for number, (first, _) in enumerate(topic.ends):
                if (topic.name, number) not in partitions:
                    source = SourcePartition(
                        topic=topic.name,
                        partition=number,
                        topic_id=topic.id,
                        first=first,
                    )
                    new.append(source)
        self.sources.add(self.ref, new)
        return _firsts([*recorded, *new])

    def require_last_records(self, topics: Mapping[str, TopicState]) -> None:
        """Raise InputError if the last record that the pipeline has read has been replaced.

        A record that retention or compaction has removed cannot be compared, and raises no error.
        """
        self._require_last_records(self.sources.get(self.ref), topics)

    def _require_last_records(
        self, sources: Iterable[SourcePartition], topics: Mapping[str, TopicState]
    ) -> None:
        last: dict[Place, SourcePartition] = {}
        for source in sources:
            topic = topics.get(source.topic)
            # If a topic was deleted, or created again, another check reports it.
            if topic is None or topic.id != source.topic_id or not source.fingerprint:
                continue
            # If retention has removed the record, it cannot be compared.
            is_kept = (
                source.partition < len(topic.ends)
                and source.last >= topic.ends[source.partition][0]
            )
            if is_kept:
                last[source.topic, source.partition, source.last] = source
        if not last:
            return
        records = dict(records_at(self.kafka, last))
        gone = {topic for topic, _, _ in last.keys() - records.keys()}
        compacted: set[str] = set()
        if gone:
            for name, limits in topic_limits(self.kafka, gone).items():
                if limits.needs_key:
                    compacted.add(name)
        for place, source in last.items():
            record = records.get(place)
            # If compaction has removed the record, it cannot be compared.
            if record is None and source.topic in compacted:
                continue
            if record is None or _fingerprint(record) != source.fingerprint:
                raise self._went_back(source, is_gone=record is None)

    def _went_back(self, source: SourcePartition, *, is_gone: bool) -> InputError:
        offset = source.last
        same = self._last_unchanged(source)
        if same is None:
            since = f"{source.first} at the earliest"
        else:
            since = str(same + 1)
        record = "another record"
        if is_gone:
            record = "no record"
        name = self.ref.pipeline
        return InputError(
            f"Topic {source.topic}, partition {source.partition}, lost records and grew again. The "
            f"last record that {name} has read was at offset {offset}, where there is now "
            f"{record}. The records from offset {since} to {offset} were replaced: the state and "
            "the output contain the old records, and the new ones were not read. Possible causes: "
            "an unclean leader election, or a broker's disk was restored. The published state is "
            "unchanged.",
            next_step="Either stop running the pipeline, which leaves the state unchanged; or "
            "restore the topic; or rebuild the state from the topics' current records: sluice "
            f"rebuild {name} --from-topics. The rebuild reads the new records, and writes no "
            f"output for those up to offset {offset}.",
        )

    def _last_unchanged(self, source: SourcePartition) -> int | None:
        """Return the newest offset at which a batch ended and whose record is the same, if any."""
        if self.audits is None:
            return None
        for audit in reversed(self.audits.all(self.ref)):
            for read in audit.sources:
                if (read.topic, read.partition) != source.place or not read.fingerprint:
                    continue
                if read.last >= source.last:
                    continue
                place = read.topic, read.partition, read.last
                record = dict(records_at(self.kafka, [place])).get(place)
                if record is not None and _fingerprint(record) == read.fingerprint:
                    return read.last
        return None

    def check_batch(
        self,
        read: Sequence[SourceAudit],
        ids: Mapping[str, str] | None = None,
    ) -> list[SourcePartition]:
        """Raise InputError if a topic has lost records that precede the records of a batch.

        `read` are the partitions of the batch, which is not published yet. A partition that was
        truncated and has grown again has new records with a new leader epoch. So the last record of
        the earlier batches is compared only if the epoch has changed since. `ids`: topic → its id
        now; by default, this method asks a broker. Returns all partitions that the generation
        reads, with their last records up to this batch.
        """
        recorded = self.sources.get(self.ref)
        if ids is None:
            ids = topic_ids(self.kafka, self.topics)
        for topic in self.topics:
            current = TopicState(topic, ids[topic], ()) if topic in ids else None
            self._check_identity(current, topic, recorded)
        of_batch: dict[Partition, SourceAudit] = {}
        for audit in read:
            of_batch[audit.topic, audit.partition] = audit
        doubtful: list[SourcePartition] = []
        after: list[SourcePartition] = []
        for source in recorded:
            of_partition = of_batch.get(source.place)
            if of_partition is None or not of_partition.fingerprint:
                after.append(source)
                continue
            epoch = of_partition.first_leader_epoch
            if epoch >= 0 and source.fingerprint and epoch != source.leader_epoch:
                doubtful.append(source)
            after.append(source.after(of_partition))
        if doubtful:
            topics = describe_topics(self.kafka, {source.topic for source in doubtful})
            self._require_last_records(doubtful, topics)
        return after

    def require_reached(self, positions: Positions, ends: Mapping[Partition, int]) -> None:
        """Raise InputError if a partition ends before the offset up to which it was read.

        `ends` are the ends of the committed records. Shortly after a change of the partition's
        leader, they may be too low. If a partition seems too short, its end is read again.
        """
        for topic, partitions in positions.items():
            for number, position in partitions.items():
                if ends.get((topic, int(number)), position) < position:
                    self.check(positions, {})
                    time.sleep(_NEW_LEADER_S)
                    return

    def _check_identity(
        self,
        current: TopicState | None,
        topic: str,
        recorded: Iterable[SourcePartition],
    ) -> None:
        # All recorded partitions of a topic have the topic's id, so any of them gives this id.
        id_read = next((source.topic_id for source in recorded if source.topic == topic), None)
        if current is None and id_read is None:
            raise InputError(
                f"Topic {topic} does not exist.",
                next_step="Create the topic, or correct its name in the pipeline.",
            )
        if current is None:
            raise InputError(f"Topic {topic} was deleted.", next_step=self._choices(topic))
        if id_read not in (None, current.id):
            raise InputError(
                f"Topic {topic} was deleted and created again: its id is {current.id}, but "
                f"{self.ref.pipeline!r} has read id {id_read}. The published state is unchanged.",
                next_step=self._choices(topic),
            )

    def _choices(self, topic: str) -> str:
        return (
            "Either stop running the pipeline, which leaves the state unchanged; or write the old "
            f"records back to {topic}, then rebuild the state from the topics' current records: "
            f"sluice rebuild {self.ref.pipeline} --from-topics. The rebuild is followed by a run, "
            f"which reads the records of {topic} and writes their output."
        )


def describe_topics(kafka: Mapping[str, str], topics: Iterable[str]) -> dict[str, TopicState]:
    """Return the topics' current ids and offsets. Omits topics that do not exist."""
    ids = topic_ids(kafka, topics)
    with configuration_errors(kafka):
        consumer = Consumer({**quiet(kafka), **COMMITS_NOTHING})
    try:
        with kafka_errors("Reading the topics' offsets", kafka):
            described: dict[str, TopicState] = {}
            for name, topic_id in ids.items():
                # If no topic was named, the broker would describe every topic of the cluster.
                if (
                    partitions := consumer.list_topics(name, timeout=TIMEOUT_S)
                    .topics[name]
                    .partitions
                ):
                    described[name] = TopicState(
                        name, topic_id, tuple(_ends(consumer, name, len(partitions)))
                    )
            return described
    finally:
        consumer.close()


def _ends(consumer: Consumer, topic: str, partitions: int) -> Iterable[tuple[int, int]]:
    for number in range(partitions):
        yield watermark_offsets(consumer, TopicPartition(topic, number), TIMEOUT_S)


def _fingerprint(record: Message) -> str:
    (timestamp_ms,) = timestamps_of([record]).tolist()
    return record_fingerprint(as_bytes(record.key()), as_bytes(record.value()), timestamp_ms)


def _firsts(sources: Iterable[SourcePartition]) -> dict[str, dict[str, int]]:
    firsts: dict[str, dict[str, int]] = {}
    for source in sources:
        firsts.setdefault(source.topic, {})[str(source.partition)] = source.first
    return firsts


def _check_range(
    topic: TopicState,
    done: Mapping[str, int],
    begun: Mapping[str, int],
    pipeline: str,
) -> None:
    # If a partition is in both, its offset in `done` takes precedence.
    for partition, position in {**begun, **done}.items():
        number = int(partition)
        if number >= len(topic.ends):
            raise InputError(f"Topic {topic.name} has lost partition {number}.", next_step=_RESTORE)
        first, end = topic.ends[number]
        if partition in done and position < first:
            raise InputError(
                f"Unread records are gone: {topic.name}, partition {number}, offsets {position} to "
                f"{first - 1} (at most {first - position} records; some offsets may be transaction "
                "markers).",
                next_step=f"{_RESTORE} Or rebuild the state from the topics' current records: "
                f"sluice rebuild {pipeline} --from-topics. Then make the topic's retention longer "
                "than the longest time without a run.",
            )
        reached = max(position, begun.get(partition, position))
        if reached > end:
            raise InputError(
                f"Topic {topic.name} became shorter: partition {number} ends at offset {end}, but "
                f"was read up to {reached}. Records {end} to {reached - 1} are in the state but no "
                "longer in the topic.",
                next_step=f"{_RESTORE} Or rebuild the state from the topics' current records: "
                f"sluice rebuild {pipeline} --from-topics.",
            )


_RESTORE = (
    "Either stop running the pipeline, which leaves the state unchanged, or restore the topic."
)
