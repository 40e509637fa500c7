"""Finds dead letters in a pipeline's topic of dead letters, by reason, time and partition.

Anyone who writes to a source topic chooses the headers of its records, and can imitate Sluice's
headers. So Sluice trusts only the headers that it has added itself: in a dead letter, they come
after the record's own headers (`values.dead_letter_headers`). Another topic has a marker for each
re-driven dead letter (`kafka.redrive`).
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime

import msgspec
from confluent_kafka import Message

from sluice.errors import EngineError
from sluice.kafka.brokers import ANSWER_SECONDS
from sluice.kafka.topics import Headers, as_bytes, headers_of, read_topic, topic_ids
from sluice.values.dead_letter_headers import FIRST, PREFIX, STREAMS_HEADERS, original
from sluice.values.record_places import Place
from sluice.values.utc_times import utc_datetime

_READ_SECONDS = 8.0
"""Time limit for a search through dead letters. After it, the dead letters found so far are
returned. A search also waits no longer than this for a silent broker, because somebody waits for
the result."""
_MOST_BYTES = 10_000
"""How many bytes of a dead letter's key, value and headers are listed."""
_UNKNOWN = "unknown"
"""The reason that is shown for a record that another program has written to the dead-letter
topic."""
UNREADABLE = frozenset(
    {
        "malformed", "not_utf8", "contract", "duplicate_field", "digits", "empty_value",
        "null_value", "event_time", "future", "key", "deleted_key", "key_not_utf8", "key_too_long",
        "null_key", "out_of_range", "no_schema", "unknown_schema", "schema",
    }
)  # fmt: skip
"""Reasons of records that could not be read and therefore had no effect. Records with other reasons
may have had an effect, and are re-driven only if the user names their reason or position."""

_SLUICE_HEADERS = frozenset(
    f"{PREFIX}{name}"
    for name in (
        "reason", "detail", "topic", "partition", "offset", "timestamp", "step", "at", "key",
        "timer", "output", "left_out", "window_start", "window_end",
    )
)  # fmt: skip
_HEADER_BYTES = 10
"""Bytes that are counted for a header in addition to its name and content. A record can have a
million empty headers."""
_MOST_DIGITS = 18
"""The maximum number of digits of an offset. Every number of this many digits fits in 64 bits."""
_LAST_PARTITION = 2**31 - 1

Failure = dict[str, str]
"""A failure of a record: its reason, detail, step and time, and the positions of the record and of
the dead letter. `kafka.redrive` reads a failure from the dead letter's headers."""


def topic_of(pipeline: str) -> str:
    """Return the name of a pipeline's topic of dead letters."""
    return f"{pipeline}_dead_letters"


def markers_of(pipeline: str) -> str:
    """Return the name of the topic that has a marker for each re-driven dead letter."""
    return f"{pipeline}_redriven"


@dataclass(frozen=True)
class DeadLetterFilter:
    """Selects dead letters by reason, time, step, the record's partition and key, or position."""

    reason: str = ""
    since: datetime | None = None
    partition: int | None = None
    place: tuple[int, int] | None = None
    """Partition and offset of the dead letter itself."""
    step: str | None = None
    """The step that failed; an empty text for records that no step has processed."""
    key: str | None = None
    """The key of the record, or the key that the failed step received."""

    def matches(self, letter: DeadLetter) -> bool:
        """Return whether this filter selects a dead letter."""
        return (
            self.reason in ("", letter.reason)
            and (self.since is None or letter.at >= self.since)
            and (
                self.partition is None
                or (letter.source is not None and letter.source[1] == self.partition)
            )
            and self.place in (None, (letter.partition, letter.offset))
            and self.step in (None, letter.header("step"))
            and (self.key is None or letter.has_key(self.key))
        )


@dataclass(frozen=True)
class DeadLetter:
    """A record of a dead-letter topic."""

    partition: int
    offset: int
    at: datetime
    key: bytes | None
    value: bytes | None
    headers: Headers
    """The headers of the rejected record."""
    sluice_headers: Mapping[str, str]
    """Name → text of each header that Sluice has written."""
    size: int
    """The size of the value in bytes."""
    history: Sequence[Failure] = ()
    """Earlier failures of the same record, oldest first."""

    @classmethod
    def of(cls, message: Message) -> DeadLetter:
        partition, offset = message.partition(), message.offset()
        assert partition is not None
        assert offset is not None
        at = utc_datetime(message.timestamp()[1])
        headers, own = _separate_headers(headers_of(message))
        value = as_bytes(message.value())
        return cls(
            partition, offset, at, as_bytes(message.key()), value, headers, own, len(value or b"")
        )

    def header(self, name: str) -> str:
        """Return Sluice's header `sluice.NAME`; an empty text if it is missing."""
        return self.sluice_headers.get(f"{PREFIX}{name}", "")

    @property
    def reason(self) -> str:
        return self.header("reason") or _UNKNOWN

    def has_key(self, key: str) -> bool:
        """Return whether this is the key of the record, or the key that the step received."""
        return self.key == key.encode() or self.sluice_headers.get(f"{PREFIX}key") == key

    @property
    def source(self) -> Place | None:
        """The position of the rejected record; None for an output record and for a timer."""
        topic, partition, offset = (
            self.header("topic"),
            self.header("partition"),
            self.header("offset"),
        )
        if not (
            topic
            and is_number(partition)
            and is_number(offset)
            and int(partition) <= _LAST_PARTITION
        ):
            return None
        return topic, int(partition), int(offset)

    @property
    def is_original(self) -> bool:
        """Whether the dead letter has the key, value and headers of the rejected record.

        The dead letter of a failed step may have the step's input instead. A dead letter lacks some
        parts of the record if it would have been too large.
        """
        return not (self.header("step") or self.header("left_out"))

    def with_most(self, size: int) -> DeadLetter:
        """Return the letter, limited to `size` bytes of key, of value, and of all headers."""
        headers: list[tuple[str, bytes | None]] = []
        left = size
        for name, content in self.headers:
            shown = name.encode()[:left].decode(errors="ignore")
            headers.append((shown, None if content is None else content[:left]))
            left -= len(name.encode()) + len(content or b"") + _HEADER_BYTES
            if left <= 0:
                break
        key = None if self.key is None else self.key[:size]
        value = None if self.value is None else self.value[:size]
        return replace(self, key=key, value=value, headers=headers)


class RedriveMarker(msgspec.Struct, frozen=True):
    """Marks a dead letter as re-driven, and tells where its record is now."""

    at: datetime
    topic: str
    partition: int
    offset: int
    """The offset of the re-driven record."""
    history: list[Failure] = []
    """The failures of the record, oldest first. The last one led to the re-driven dead letter."""


@dataclass
class Group:
    """The matching dead letters with the same reason and step."""

    example: DeadLetter
    """The newest dead letter of the group."""
    count: int = 0
    redriven_to: set[Place] = field(default_factory=set)
    """The new positions of the group's re-driven records."""


@dataclass
class MatchingLetters:
    """The newest matching dead letters, newest first."""

    letters: list[DeadLetter] = field(default_factory=list)
    reasons: Counter[str] = field(default_factory=Counter)
    """Reason → number of all matching dead letters, including those that are not in `letters`."""
    complete: bool = True
    """Whether the search reached the end of the topic within its time limit."""
    markers: dict[tuple[int, int], RedriveMarker] = field(default_factory=dict)
    """Partition and offset of a dead letter → the marker of its re-drive."""
    groups: dict[tuple[str, str], Group] = field(default_factory=dict)
    """Reason and step → the matching dead letters with this reason and step."""
    failed_again: set[Place] = field(default_factory=set)
    """The positions of re-driven records that have become dead letters again."""

    def marker(self, letter: DeadLetter) -> RedriveMarker | None:
        """Return the marker of a dead letter's re-drive; None if it was not re-driven."""
        return self.markers.get((letter.partition, letter.offset))

    def has_failed_again(self, letter: DeadLetter) -> bool:
        """Return whether the record was re-driven and has then become a dead letter again."""
        marker = self.marker(letter)
        return (
            marker is not None
            and (marker.topic, marker.partition, marker.offset) in self.failed_again
        )

    def add_to_group(self, letter: DeadLetter) -> None:
        """Count a dead letter in its group."""
        name = letter.reason, letter.header("step")
        group = self.groups.get(name)
        if group is None or letter.at >= group.example.at:
            example = letter.with_most(_MOST_BYTES)
            group = self.groups[name] = (
                Group(example) if group is None else replace(group, example=example)
            )
        group.count += 1
        marker = self.marker(letter)
        if marker is not None:
            group.redriven_to.add((marker.topic, marker.partition, marker.offset))


def find_dead_letters(
    kafka: Mapping[str, str],
    pipeline: str,
    chosen: DeadLetterFilter,
    limit: int,
    most_bytes: int = _MOST_BYTES,
) -> MatchingLetters:
    """Return the newest `limit` chosen dead letters of a pipeline.

    Each part of a record is limited to `most_bytes`. Raises BrokersUnreachable.
    """
    matches = MatchingLetters()
    topic_id = dead_letter_topic_id(kafka, pipeline)
    if topic_id is None:
        return matches
    matches.markers = redrive_markers(kafka, pipeline, topic_id)
    redriven: dict[Place, datetime] = {}
    for marker in matches.markers.values():
        redriven[marker.topic, marker.partition, marker.offset] = marker.at
    until = time.monotonic() + _READ_SECONDS
    # Read all dead letters: a re-driven record may have failed again for another reason.
    for letter in chosen_letters(kafka, pipeline, DeadLetterFilter(since=chosen.since)):
        # An older dead letter belongs to an earlier record at the same position: the topic was
        # deleted and created again.
        if letter.source in redriven and letter.at >= redriven[letter.source]:
            matches.failed_again.add(letter.source)
        if not chosen.matches(letter):
            continue
        matches.reasons[letter.reason] += 1
        matches.add_to_group(letter)
        matches.letters.append(letter.with_most(most_bytes))
        # Drop older dead letters: a search through millions must not keep all of them in memory.
        if len(matches.letters) > 2 * limit:
            matches.letters = _newest(matches.letters, limit)
        if time.monotonic() > until:
            matches.complete = False
            break
    for group in matches.groups.values():
        (group.example,) = with_histories([group.example], matches.markers)
    matches.letters = list(with_histories(_newest(matches.letters, limit), matches.markers))
    return matches


def chosen_letters(
    kafka: Mapping[str, str],
    pipeline: str,
    chosen: DeadLetterFilter,
) -> Iterator[DeadLetter]:
    """Yield the dead letters that a filter selects, in the order of each partition.

    Raises BrokersUnreachable if no record arrives for `_READ_SECONDS`.
    """
    since = None if chosen.since is None else round(chosen.since.timestamp() * 1_000)
    for message in read_topic(kafka, topic_of(pipeline), since, longest_silence_s=_READ_SECONDS):
        letter = DeadLetter.of(message)
        if chosen.matches(letter):
            yield letter


def redrive_markers(
    kafka: Mapping[str, str],
    pipeline: str,
    topic_id: str,
) -> dict[tuple[int, int], RedriveMarker]:
    """Return each re-driven dead letter's marker (see `kafka.redrive`) by partition and offset.

    Include only dead letters in the dead-letter topic with the id `topic_id`. Raises the same
    errors as `chosen_letters`.
    """
    if not topic_ids(kafka, [markers_of(pipeline)], ANSWER_SECONDS):
        return {}
    markers: dict[tuple[int, int], RedriveMarker] = {}
    for message in read_topic(kafka, markers_of(pipeline), longest_silence_s=_READ_SECONDS):
        try:
            of_topic, partition, offset = (as_bytes(message.key()) or b"").decode().rsplit("/", 2)
            marker = msgspec.json.decode(as_bytes(message.value()) or b"", type=RedriveMarker)
            if of_topic == topic_id:
                markers[int(partition), int(offset)] = marker
        except ValueError:
            # Errors of msgspec are ValueErrors, too.
            raise EngineError(
                f"{message.topic()}, partition {message.partition()}, offset {message.offset()}: "
                "this record is not a marker of a re-drive, so another program has written to "
                "the topic.",
                next_step="Stop that program. Then delete its records (kafka-delete-records), or "
                "replace them by records with the same keys.",
            ) from None
    return markers


def dead_letter_topic_id(kafka: Mapping[str, str], pipeline: str) -> str | None:
    """Return the id of a pipeline's topic of dead letters; None if the topic does not exist."""
    topic = topic_of(pipeline)
    return topic_ids(kafka, [topic], ANSWER_SECONDS).get(topic)


def _newest(letters: list[DeadLetter], limit: int) -> list[DeadLetter]:
    return sorted(letters, key=lambda letter: (letter.at, letter.offset), reverse=True)[:limit]


def with_histories(
    letters: Iterable[DeadLetter],
    markers: Mapping[tuple[int, int], RedriveMarker],
) -> Iterator[DeadLetter]:
    """Yield the dead letters, with their records' earlier failures from the markers."""
    histories: dict[tuple[str, int, int], Sequence[Failure]] = {}
    for marker in markers.values():
        histories[marker.topic, marker.partition, marker.offset] = marker.history
    for letter in letters:
        yield replace(letter, history=histories.get(letter.source, ())) if letter.source else letter


def _separate_headers(headers: Headers) -> tuple[Headers, dict[str, str]]:
    """Return the headers of a dead letter: the rejected record's own, and Sluice's as text."""
    # The rejected record may also have a header with the name `FIRST`. The last such header is
    # Sluice's.
    first = max(
        (number for number, (name, _) in enumerate(headers) if name == FIRST), default=len(headers)
    )
    of_record = [(original(name), content) for name, content in headers[:first]]
    of_sluice: dict[str, str] = {}
    for name, content in headers[first:]:
        if name in _SLUICE_HEADERS:
            of_sluice[name] = (content or b"").decode(errors="replace")
        elif name not in STREAMS_HEADERS:
            of_record.append((original(name), content))
    return of_record, of_sluice


def is_number(text: str) -> bool:
    """Return whether a header's text is a number in the range of offsets."""
    return text.isascii() and text.isdigit() and len(text) <= _MOST_DIGITS
