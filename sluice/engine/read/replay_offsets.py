"""Finds the offsets at which a rebuild or a replay starts and stops reading the topics."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Literal

import msgspec

from sluice.engine.read.backlog_timestamps import KafkaTimestamps
from sluice.engine.read.source_identity import InputError, Positions, TopicState
from sluice.errors import EngineError
from sluice.state.ledger.sources import SourcePartition
from sluice.state.model import GenerationRef
from sluice.values.record_places import Partition
from sluice.values.replay_span import Point


def sources_from_point(
    begin: Point,
    sources: Iterable[SourcePartition],
    streams: Iterable[str],
    now: Mapping[str, TopicState],
    kafka: Mapping[str, str],
) -> list[SourcePartition]:
    """Return the sources, with the streams' first offsets moved to the point where a replay begins.

    A table's state needs all of the table's records, so the first offsets of tables stay. Raises
    EngineError if the point has an offset of a partition that the streams do not have.
    """
    streams = set(streams)
    of_streams: dict[str, TopicState] = {}
    for name, topic in now.items():
        if name in streams:
            of_streams[name] = topic
    if begin.is_beginning:
        firsts = _bounds(of_streams, 0)
    else:
        firsts = offsets_at(begin, of_streams, kafka)
    moved: list[SourcePartition] = []
    for source in sources:
        first = firsts.get(source.place, source.first)
        moved.append(msgspec.structs.replace(source, first=first))
    return moved


def offsets_at(
    point: Point,
    topics: Mapping[str, TopicState],
    kafka: Mapping[str, str],
) -> dict[Partition, int]:
    """Return the offsets at a point other than the beginning.

    Raises EngineError if the point has an offset of a partition that is not in `topics`.
    """
    ends = _bounds(topics, 1)
    if point.time_ms is not None:
        with KafkaTimestamps.of(kafka, ends) as timestamps:
            # The index omits partitions whose records are all older than the time. In these
            # partitions, the replay begins at the end.
            return {**ends, **timestamps.index(point.time_ms)}
    offsets = point.offsets or {}
    unknown = offsets.keys() - ends.keys()
    if unknown:
        raise EngineError(
            f"The replay cannot begin or end in these partitions: {_listed(unknown)}.",
            next_step=f"Choose among the partitions {_listed(ends)}.",
        )
    return offsets


def _listed(partitions: Iterable[Partition]) -> str:
    return ", ".join([f"{topic}/{number}" for topic, number in sorted(partitions)])


def _bounds(topics: Mapping[str, TopicState], side: Literal[0, 1]) -> dict[Partition, int]:
    """Return the first offsets (side 0) or the end offsets (side 1) of all partitions."""
    bounds: dict[Partition, int] = {}
    for name, topic in topics.items():
        for number, first_and_end in enumerate(topic.ends):
            bounds[name, number] = first_and_end[side]
    return bounds


def sources_from_topics(
    recorded: Iterable[SourcePartition],
    now: Mapping[str, TopicState],
) -> Iterator[SourcePartition]:
    """Yield the topics' current partitions, each with the offset at which to begin.

    A partition begins at its recorded first offset. If no offset is recorded, or if the topic no
    longer has the record at this offset, the partition begins at the first record that it still
    has.
    """
    firsts: dict[tuple[str, str, int], int] = {}
    for source in recorded:
        firsts[source.topic, source.topic_id, source.partition] = source.first
    for name, topic in now.items():
        for number, (low, _) in enumerate(topic.ends):
            # A topic with another id is another topic, even if it has the same name.
            first = max(firsts.get((name, topic.id, number), low), low)
            yield SourcePartition(topic=name, partition=number, topic_id=topic.id, first=first)


def require_records(
    old: GenerationRef,
    sources: Iterable[SourcePartition],
    now: Mapping[str, TopicState],
    read: Positions,
) -> None:
    """Raise InputError if `sources` have lost records before the positions `read`."""
    if lost := list(_lost(sources, now, read)):
        raise InputError(
            f"The topics no longer have all records that {old.pipeline} has read: "
            f"{'; '.join(lost)}.",
            next_step="Restore the topics, or rebuild from their current records: "
            f"sluice rebuild {old.pipeline} --from-topics.",
        )


def ends_of(
    topics: Mapping[str, TopicState],
    sources: Iterable[SourcePartition],
    stops: Mapping[Partition, int],
) -> dict[str, list[tuple[int, int]]]:
    """Return topic → each partition's first offset to read, and the offset after the last one."""
    firsts = {source.place: source.first for source in sources}
    ends: dict[str, list[tuple[int, int]]] = {}
    for name, topic in topics.items():
        for number, (low, high) in enumerate(topic.ends):
            first = min(max(firsts.get((name, number), low), low), high)
            stop = min(stops.get((name, number), high), high)
            ends.setdefault(name, []).append((first, max(stop, first)))
    return ends


def limit_to_ranges(
    ends: Mapping[str, Sequence[tuple[int, int]]],
    positions: Positions,
) -> Positions:
    """Limit positions to the partitions' ranges (first offset, end).

    Omit partitions that do not exist.
    """
    limited: dict[str, dict[str, int]] = {}
    for topic, ranges in ends.items():
        limited[topic] = {}
        for number, (first, end) in enumerate(ranges):
            given = int(positions.get(topic, {}).get(str(number), first))
            limited[topic][str(number)] = min(max(given, first), end)
    return limited


def position(positions: Positions, source: SourcePartition, otherwise: int) -> int:
    return int(positions.get(source.topic, {}).get(str(source.partition), otherwise))


def _lost(
    sources: Iterable[SourcePartition],
    now: Mapping[str, TopicState],
    read: Positions,
) -> Iterable[str]:
    """Describe the records that were read and that the topics no longer have."""
    for source in sources:
        topic = now.get(source.topic)
        if topic is None or topic.id != source.topic_id:
            # Describe the loss once for the topic, not for each of its partitions.
            if source.partition == 0 and topic is None:
                yield f"{source.topic} was deleted"
            elif source.partition == 0:
                yield f"{source.topic} was deleted and created again"
            continue
        first, end = topic.ends[source.partition]
        partition = f"{source.topic}, partition {source.partition},"
        if first > source.first:
            yield f"{partition} has lost offsets {source.first} to {first - 1}"
        if (reached := position(read, source, 0)) > end:
            yield f"{partition} ends at {end} but was read up to {reached}"
