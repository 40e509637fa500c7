"""Copies a pipeline's own topics to the names that they have after the pipeline is renamed.

The records of dead letters keep their partitions, keys, headers and timestamps, but get other
offsets. A marker of a re-drive names its dead letter by topic and offset, so it is translated. The
markers of batches name the topic of dead letters by its id, and are translated, too.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence

import msgspec
from confluent_kafka import KafkaException, Message
from confluent_kafka.admin import ConfigResource, ResourceType  # type: ignore[attr-defined]

from sluice.engine.batch.job_topics import TIMEOUT_S, kafka_errors
from sluice.engine.publish.markers import (
    MARKER_SETTINGS,
    Marker,
    Writer,
    encode_registration,
    read_marker_topic,
)
from sluice.errors import EngineError
from sluice.kafka.brokers import ANY_SIZE, producer_of, silent_admin
from sluice.kafka.dead_letter_topic import markers_of, topic_of
from sluice.kafka.denied_operations import WRITE, denial, denial_named
from sluice.kafka.redrive_topic import batches_of, transactional_id
from sluice.kafka.topics import (
    Topic,
    as_bytes,
    create_topics,
    delete_topics,
    described_topics,
    headers_of,
    produce,
    read_topic,
    require_delivery,
    topic_ids,
)
from sluice.state.model import GenerationInfo, GenerationRef

_GONE_AFTER_S = 30.0
_DYNAMIC_TOPIC_CONFIG = 1
"""In Kafka's protocol, the source of a setting that was made for this topic."""


def create_copies(kafka: Mapping[str, str], old: Sequence[str], new: Sequence[str]) -> None:
    """Create an empty topic in `new` for each topic in `old`, with the same settings.

    Topics with the new names, which an earlier call has filled in part, are replaced. The topic of
    markers is created even if the old one is missing.
    """
    admin = silent_admin(kafka)
    with kafka_errors("Copying the topics", kafka):
        existing = described_topics(admin, [*old, *new], TIMEOUT_S)
    delete_topics(kafka, [name for name in new if name in existing])
    until = time.monotonic() + _GONE_AFTER_S
    while topic_ids(kafka, new):
        if time.monotonic() > until:
            raise EngineError(
                f"{' and '.join(topic_ids(kafka, new))} could not be deleted in time.",
                next_step="Repeat the command.",
            )
        time.sleep(0.1)
    topics: list[Topic] = []
    for before, after in zip(old, new, strict=True):
        described = existing.get(before)
        if described is None:
            continue
        partitions = described.partitions
        copies = len(partitions[0].replicas)
        topics.append(Topic(after, len(partitions), copies, _settings(kafka, before)))
    if old[0] not in existing:
        topics.append(Topic(new[0], config=MARKER_SETTINGS))
    create_topics(kafka, topics)


def _settings(kafka: Mapping[str, str], topic: str) -> dict[str, str]:
    """Return the settings that were made for a topic."""
    admin = silent_admin(kafka)
    resource = ConfigResource(ResourceType.TOPIC, topic)
    settings: dict[str, str] = {}
    with kafka_errors("Reading the topics' settings", kafka):
        entries = admin.describe_configs([resource])[resource].result(TIMEOUT_S)
        for name, entry in entries.items():
            if entry.source == _DYNAMIC_TOPIC_CONFIG and entry.value is not None:
                settings[name] = entry.value
    return settings


def copy_dead_letters(kafka: Mapping[str, str], old: str, new: str) -> int:
    """Copy all dead letters to the empty topic of the new name. Return their number."""
    source, target = topic_of(old), topic_of(new)
    if not topic_ids(kafka, [source]):
        return 0
    producer = producer_of(kafka, ANY_SIZE | {"enable.idempotence": True, "linger.ms": 50})
    copied = 0
    with kafka_errors("Copying the dead letters", kafka), denial_named(WRITE, target):
        for message in read_topic(kafka, source):
            _produce(producer, target, message)
            copied += 1
        if producer.flush(TIMEOUT_S):
            raise EngineError(
                f"Some dead letters could not be written to {target}.",
                next_step="Check that the broker is running, then repeat the command.",
            )
    return copied


def _produce(producer: object, target: str, message: Message) -> None:
    partition = message.partition()
    assert partition is not None
    while True:
        try:
            producer.produce(  # type: ignore[attr-defined]
                target,
                as_bytes(message.value()),
                as_bytes(message.key()),
                partition=partition,
                timestamp=message.timestamp()[1],
                headers=list(headers_of(message)),
                on_delivery=require_delivery,
            )
        except BufferError:
            # The queue is full: wait until the broker has taken some records.
            producer.poll(0.1)  # type: ignore[attr-defined]
        else:
            producer.poll(0)  # type: ignore[attr-defined]
            return


def write_markers(
    kafka: Mapping[str, str],
    old: str,
    new: str,
    current: GenerationRef,
    infos: Sequence[GenerationInfo],
) -> None:
    """Write the newest marker and the registration of each generation to the topic of the new name.

    `infos` are the generations as the ledger will register them with the new name.
    """
    names = {topic_of(old): topic_of(new), batches_of(old): batches_of(new)}
    ids = topic_ids(kafka, names.values())
    topic = read_marker_topic(kafka, Writer(current, batches_of(old)))
    by_number = {info.generation: info for info in infos}
    records: list[tuple[str | None, bytes | None, int]] = []
    for generation in sorted({*topic.markers, *topic.registrations}):
        writer = Writer(GenerationRef(new, generation), batches_of(new))
        info = by_number.get(generation)
        if info is not None and generation in topic.registrations:
            records.append((writer.registration_key, encode_registration(info), 0))
        marker = topic.markers.get(generation)
        if marker is not None:
            encoded = msgspec.json.encode(_renamed_marker(marker, names, ids))
            records.append((writer.name, encoded, 0))
    produce(kafka, batches_of(new), records)


def _renamed_marker(marker: Marker, names: Mapping[str, str], ids: Mapping[str, str]) -> Marker:
    """Return a marker with the new names and ids of the pipeline's own topics."""
    changed: dict[str, dict[str, object]] = {}
    for field in ("outputs", "checksums", "ids"):
        values: dict[str, object] = {}
        for topic, value in getattr(marker, field).items():
            name = names.get(topic, topic)
            values[name] = ids.get(name, value) if field == "ids" else value
        changed[field] = values
    return msgspec.structs.replace(marker, **changed)


def fence_redrives(kafka: Mapping[str, str], pipeline: str) -> None:
    """Keep processes that re-drive dead letters of a pipeline from going on."""
    producer = producer_of(kafka, {"transactional.id": transactional_id(pipeline)})
    try:
        with denial_named(WRITE, batches_of(pipeline), transactional_id(pipeline)):
            producer.init_transactions(TIMEOUT_S)
    except KafkaException as error:
        detail = f"Re-drives of {pipeline} could not be stopped: {error.args[0].str()}"
        raise denial(kafka, error) or EngineError(detail) from None


def copy_redrives(kafka: Mapping[str, str], old: str, new: str) -> None:
    """Copy the markers of re-drives, after their dead letters were copied. May be repeated.

    No process re-drives dead letters under the old name any more: the ledger does not know it.
    """
    source, target = markers_of(old), markers_of(new)
    ids = topic_ids(kafka, [source, topic_of(old), target, topic_of(new)])
    if source not in ids or topic_of(old) not in ids:
        return
    fence_redrives(kafka, old)
    if target not in ids:
        # The pipeline had its first re-drive after the topics were copied.
        compacted = {"cleanup.policy": "compact"}
        create_topics(kafka, [Topic(target, config=compacted)])
        ids = topic_ids(kafka, [source, topic_of(old), target, topic_of(new)])
    offsets = _new_offsets(kafka, topic_of(old), topic_of(new))
    produce(
        kafka, target, _redrives(kafka, source, ids[topic_of(old)], ids[topic_of(new)], offsets)
    )
    # Record in the topic of batch markers which topic of re-drive markers belongs to it.
    produce(kafka, batches_of(new), [(transactional_id(new), ids[target].encode(), 0)])


def _redrives(
    kafka: Mapping[str, str],
    source: str,
    old_id: str,
    new_id: str,
    offsets: Mapping[tuple[int, int], int],
) -> Iterator[tuple[str | None, bytes | None, int]]:
    """Yield the markers of re-drives, with the new positions of their dead letters."""
    for message in read_topic(kafka, source):
        of_topic, partition, offset = (as_bytes(message.key()) or b"").decode().rsplit("/", 2)
        new = offsets.get((int(partition), int(offset)))
        # A marker of a dead letter that Kafka has deleted is no longer needed.
        if of_topic == old_id and new is not None:
            yield f"{new_id}/{partition}/{new}", as_bytes(message.value()), 0


def _new_offsets(kafka: Mapping[str, str], old: str, new: str) -> dict[tuple[int, int], int]:
    """Return partition and offset of each dead letter → its offset in the copy of the topic.

    The copy has the same records in the same order. Retention may have removed the first records of
    either topic meanwhile, so the records are counted from the end.
    """
    offsets: dict[tuple[int, int], int] = {}
    before, after = _offsets(kafka, old), _offsets(kafka, new)
    for partition, numbers in before.items():
        pairs = zip(reversed(numbers), reversed(after.get(partition, [])), strict=False)
        for offset, copied in pairs:
            offsets[partition, offset] = copied
    return offsets


def _offsets(kafka: Mapping[str, str], topic: str) -> dict[int, list[int]]:
    """Return partition → the offsets of its records."""
    offsets: dict[int, list[int]] = defaultdict(list)
    for message in read_topic(kafka, topic):
        partition, offset = message.partition(), message.offset()
        assert partition is not None
        assert offset is not None
        offsets[partition].append(offset)
    return offsets
