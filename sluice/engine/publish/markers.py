"""The topic of a pipeline's markers: the last batch that each generation has written.

The markers show which output is in Kafka, even if the ledger is lost. A marker also has what the
ledger publishes with the batch, and the topic has each generation's registration.
From the markers and the shards, `sluice recover` can make a lost ledger again. The topic is
compacted, so it has the newest record of each key.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Self

import msgspec
from confluent_kafka import Message, TopicPartition

from sluice.engine.batch.job_topics import TIMEOUT_S, kafka_errors
from sluice.engine.read.source_identity import Positions
from sluice.errors import EngineError, sentence
from sluice.kafka.broker_clock import STAMPED_BY_BROKER
from sluice.kafka.range_reader import RangeReader
from sluice.kafka.topics import as_bytes, watermark_offsets
from sluice.sinks.target import Written
from sluice.state.ledger.history import Batch
from sluice.state.ledger.sources import SourcePartition
from sluice.state.model import GenerationInfo, GenerationRef, WorkerInfo
from sluice.state.shard.passwords import without_password
from sluice.state.shard.shard import Checksums
from sluice.values.record_places import Range

MARKER_SETTINGS: Mapping[str, str] = {"cleanup.policy": "compact", **STAMPED_BY_BROKER}
"""The settings of a topic of markers. The broker sets the records' timestamps, which therefore show
its clock."""
_REGISTRATION = "registration"


@dataclass(frozen=True)
class Writer:
    """A generation of a pipeline, which writes output to Kafka."""

    ref: GenerationRef
    markers: str
    """The topic of the pipeline's markers."""

    @property
    def transactional_id(self) -> str:
        """Return the transactional id.

        A pipeline's generations share it, so a newer producer fences an older one.
        """
        return f"sluice.{self.ref.pipeline}"

    @property
    def name(self) -> str:
        """Return the key of the generation's markers in the topic."""
        return f"{self.transactional_id}.{self.ref.generation}"

    @property
    def registration_key(self) -> str:
        """Return the key of the generation's registration."""
        return f"{self.name}.{_REGISTRATION}"

    def generation_of(self, key: str) -> int | None:
        """Return the generation whose marker has this key; None for another key."""
        writer, _, generation = key.rpartition(".")
        if writer != self.transactional_id or not generation.isdecimal():
            return None
        return int(generation)


class PublishedState(msgspec.Struct, frozen=True):
    """The state that the ledger publishes with a batch, apart from the batch itself."""

    times: dict[str, int]
    """The stream times from which the next batch continues."""
    sources: tuple[SourcePartition, ...]
    """The partitions that the generation reads, with their last records up to this batch."""
    shards: dict[str, Checksums]
    """Worker's number as text → the checksums of its shard as of this batch."""
    due: int | None = None
    """See `Snapshot.due`."""


NOTHING_PUBLISHED = PublishedState({}, (), {})


class Marker(msgspec.Struct, frozen=True):
    """A written batch, and its number of records per topic."""

    batch: Batch
    outputs: dict[str, int]
    ends: dict[str, dict[str, int]] = {}
    """Topic → partition as text → offset after the last record of this batch and of all batches
    before it."""
    checksums: dict[str, str] = {}
    """Topic → the checksum of the batch's records without their headers, which may contain times
    and offsets."""
    ids: dict[str, str] = {}
    """Topic → Kafka's id of the topic that the batch was written to. A topic that is deleted and
    created again has another id, and lacks the records of this and of all earlier batches."""
    state: PublishedState = NOTHING_PUBLISHED

    def without(self, topics: Collection[str]) -> Self:
        """Return the marker that the batch would have without these topics."""
        changes: dict[str, Any] = {}
        for name in ("outputs", "checksums", "ids"):
            values = dict(getattr(self, name))
            for topic in topics:
                values.pop(topic, None)
            changes[name] = values
        return msgspec.structs.replace(self, **changes)

    def restored(self, ids: Mapping[str, str]) -> Self:
        """Return the marker, with the ids of topics to which the batch's records were restored."""
        return msgspec.structs.replace(self, ids={**self.ids, **ids})

    def written_to(self, topic: str) -> Written:
        """Return the number and the checksum of the records that were written to a topic."""
        return Written(self.outputs.get(topic, 0), self.checksums.get(topic, ""))

    @property
    def with_earlier(self) -> Batch:
        """Return the batch, with the end offsets of all partitions that have been read so far."""
        return msgspec.structs.replace(self.batch, ends=merge_ends(self.ends, self.batch.ends))


def merge_ends(ends: Positions, later: Positions) -> dict[str, dict[str, int]]:
    """Merge end offsets by topic and partition.

    An offset in `later` replaces the partition's offset in `ends`.
    """
    merged: dict[str, dict[str, int]] = {}
    for topic in {*ends, *later}:
        merged[topic] = {**ends.get(topic, {}), **later.get(topic, {})}
    return merged


@dataclass(frozen=True)
class MarkerTopic:
    """The records of a pipeline's topic of markers, by generation."""

    markers: Mapping[int, Marker] = field(default_factory=dict)
    """Generation → its newest committed marker."""
    registrations: Mapping[int, bytes] = field(default_factory=dict)
    """Generation → its newest committed registration, as JSON."""

    def registration(self, generation: int) -> GenerationInfo | None:
        """Return a generation's newest registration; None if the topic has none."""
        encoded = self.registrations.get(generation)
        if encoded is None:
            return None
        return msgspec.json.decode(encoded, type=GenerationInfo)


def encode_registration(info: GenerationInfo) -> bytes:
    """Encode a generation for the topic of markers, without passwords.

    Leaves out the topology's drawing, too, because the next run makes it again.
    """
    workers: list[WorkerInfo] = []
    for worker in info.workers:
        location = without_password(worker.location)
        workers.append(msgspec.structs.replace(worker, location=location))
    return msgspec.json.encode(msgspec.structs.replace(info, picture="", workers=tuple(workers)))


def read_markers(kafka: Mapping[str, str], writer: Writer) -> dict[int, Marker]:
    """Return generation → its newest committed marker, for the writer's pipeline."""
    return dict(read_marker_topic(kafka, writer).markers)


def read_marker_topic(kafka: Mapping[str, str], writer: Writer) -> MarkerTopic:
    """Read the newest records of all generations of the writer's pipeline.

    Raise EngineError if a marker cannot be decoded.
    """
    newest: dict[int, Marker] = {}
    registrations: dict[int, bytes] = {}
    try:
        for message in _read_messages(kafka, writer.markers):
            key = (as_bytes(message.key()) or b"").decode(errors="replace")
            value = as_bytes(message.value()) or b""
            registered = writer.generation_of(key.removesuffix(f".{_REGISTRATION}"))
            if registered is not None and key.endswith(_REGISTRATION):
                registrations[registered] = value
                continue
            generation = writer.generation_of(key)
            # If the key names no generation of the pipeline, the marker is another pipeline's.
            if generation is None:
                continue
            marker = msgspec.json.decode(value, type=Marker)
            # The topic is compacted only now and then, so it also has older markers.
            if generation not in newest or marker.batch.number >= newest[generation].batch.number:
                newest[generation] = marker
    except msgspec.DecodeError as error:
        raise EngineError(
            f"A marker of {writer.name} in the topic {writer.markers} cannot be read: "
            f"{sentence(error)}",
            next_step="Another version of Sluice or another program wrote the marker. "
            "Give the pipeline another name.",
        ) from error
    return MarkerTopic(newest, registrations)


def newest_until(markers: Mapping[int, Marker], generation: int) -> Marker | None:
    """Return the newest marker of this generation or, if it has none, of an earlier one."""
    written = [number for number in markers if number <= generation]
    if not written:
        return None
    return markers[max(written)]


def _read_messages(kafka: Mapping[str, str], topic: str) -> Sequence[Message]:
    messages: list[Message] = []
    with kafka_errors("Reading the markers", kafka), RangeReader(kafka, skips_lost=True) as reader:
        # Reading the watermarks first, the client finds the partition's leader at once instead of
        # after 0.5 s.
        begin, end = watermark_offsets(reader.consumer, TopicPartition(topic, 0), TIMEOUT_S)
        for records in reader.read([Range(topic, 0, begin, end)]):
            messages += records.messages
    return messages
