"""Finds dead letters by reason, time and partition, and re-drives them: writes each once to its source topic again.

Each transaction writes records to their source topics and a marker for each record to `PIPELINE_redriven`. Therefore a
crash, a second request or a second process cannot write a record twice. A marker names its dead letter by the id of the
dead-letter topic, partition and offset, because the offsets of a topic that is created again begin anew.

Anyone who writes to a source topic decides the headers of its records, so no header of a record is believed. In a dead
letter, Sluice's headers are those after the record's own (`values.dead_letter_headers`). A record's earlier failures
are in the markers of its re-drives; the headers that tell other readers of the source topic about them are only a copy.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from functools import partial

import msgspec
from confluent_kafka import Consumer, KafkaError, KafkaException, Message, Producer, TopicPartition

from sluice.errors import EngineError
from sluice.kafka.brokers import ANSWER_SECONDS, ANY_SIZE, producer_of, quiet
from sluice.kafka.topics import HEADERS_UNREADABLE, Headers, Topic, create_topics, headers_of, read_topic, topic_ids
from sluice.values.dead_letter_headers import FIRST, PREFIX, original

READ_SECONDS = 8.0
"""Time limit for a search through dead letters, after which the dead letters found so far are returned."""
MOST = 10_000
"""Maximum number of dead letters to re-drive at once."""
MOST_BYTES = 10_000
"""How much of a dead letter's key, value and headers is listed."""
HISTORY, REDRIVEN = "sluice.history.", "sluice.redriven"
"""Last headers of a re-driven record: `sluice.history.1` is its first failure, and `sluice.redriven` counts them."""
UNKNOWN = "unknown"
"""Reason of a record in the topic of dead letters that Sluice has not written."""
UNREADABLE = frozenset(
    {
        "malformed", "not_utf8", "contract", "duplicate_field", "digits", "empty_value", "null_value", "event_time",
        "future", "key", "deleted_key", "key_not_utf8", "key_too_long", "null_key", "out_of_range",
    }
)  # fmt: skip
"""Reasons of records that could not be read and therefore had no effect. Records with other reasons may have had an
effect, and are re-driven only if their reason is requested."""

_TIMEOUT_S = 15.0
_AT_ONCE = 500
_OWN = frozenset(
    f"{PREFIX}{name}"
    for name in (
        "reason", "detail", "topic", "partition", "offset", "timestamp", "step", "at", "key", "timer", "output",
        "left_out", "window_start", "window_end",
    )
)  # fmt: skip
_HEADER_BYTES = 10
"""How much a header counts besides its name and content: a record can have a million empty ones."""
_MOST_DIGITS = 18
"""The digits of an offset, which is a 64-bit integer."""
_LAST_PARTITION = 2**31 - 1
_RECORD_REFUSED = frozenset({KafkaError.MSG_SIZE_TOO_LARGE, KafkaError.INVALID_TIMESTAMP, KafkaError.INVALID_RECORD})
"""Errors for which the broker refuses a record, and accepts others."""
_WAIT_S = 0.1

Place = tuple[str, int, int]
"""Topic, partition and offset of a record."""
Failure = dict[str, str]
"""Reason, detail, step, place and time of a record's failure, and its dead letter."""


def topic_of(pipeline: str) -> str:
    """The topic of a pipeline's dead letters."""
    return f"{pipeline}_dead_letters"


def markers_of(pipeline: str) -> str:
    """The topic that says which dead letters were re-driven."""
    return f"{pipeline}_redriven"


@dataclass(frozen=True)
class Chosen:
    """Selects dead letters by reason, by time, by the partition of their record, or by their own position."""

    reason: str = ""
    since: datetime | None = None
    partition: int | None = None
    place: tuple[int, int] | None = None
    """Partition and offset of the dead letter itself."""

    def matches(self, letter: DeadLetter) -> bool:
        """Whether a dead letter is chosen."""
        return (
            self.reason in ("", letter.reason)
            and (self.since is None or letter.at >= self.since)
            and (self.partition is None or (letter.source is not None and letter.source[1] == self.partition))
            and self.place in (None, (letter.partition, letter.offset))
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
    """Name → text of the headers that Sluice has written."""
    size: int
    """The size of the value in bytes."""
    history: Sequence[Failure] = ()
    """Earlier failures of the same record, oldest first."""

    @classmethod
    def of(cls, message: Message) -> DeadLetter:
        partition, offset = message.partition(), message.offset()
        assert partition is not None
        assert offset is not None
        at = datetime.fromtimestamp(message.timestamp()[1] / 1_000, UTC)
        headers, own = _separated(headers_of(message))
        value = _bytes(message.value())
        return cls(partition, offset, at, _bytes(message.key()), value, headers, own, len(value or b""))

    def header(self, name: str) -> str:
        """Sluice's header `sluice.NAME`; empty if it is missing."""
        return self.sluice_headers.get(f"{PREFIX}{name}", "")

    @property
    def reason(self) -> str:
        return self.header("reason") or UNKNOWN

    @property
    def source(self) -> Place | None:
        """The position of the rejected record; None for an output record and for a timer."""
        topic, partition, offset = self.header("topic"), self.header("partition"), self.header("offset")
        if not (topic and _is_number(partition) and _is_number(offset) and int(partition) <= _LAST_PARTITION):
            return None
        return topic, int(partition), int(offset)

    @property
    def is_original(self) -> bool:
        """Whether key, value and headers are the rejected record's. For a failed step, they can be the step's input."""
        return not (self.header("step") or self.header("left_out"))

    def with_most(self, size: int) -> DeadLetter:
        """The dead letter with at most `size` bytes of its key, of its value, and of all headers together."""
        headers: list[tuple[str, bytes | None]] = []
        left = size
        for name, content in self.headers:
            shown = name.encode()[:left].decode(errors="ignore")
            headers.append((shown, None if content is None else content[:left]))
            left -= len(name.encode()) + len(content or b"") + _HEADER_BYTES
            if left <= 0:
                break
        key, value = (None if content is None else content[:size] for content in (self.key, self.value))
        return replace(self, key=key, value=value, headers=headers)


class Marker(msgspec.Struct, frozen=True):
    """Records that a dead letter was re-driven."""

    at: datetime
    topic: str
    partition: int
    offset: int
    """The offset of the re-driven record."""
    history: list[Failure] = []
    """The failures of the record, oldest first; the dead letter is the last."""


@dataclass
class Found:
    """The newest matching dead letters, newest first."""

    letters: list[DeadLetter] = field(default_factory=list)
    reasons: Counter[str] = field(default_factory=Counter)
    """Reason → number of all matching dead letters, including those not in `letters`."""
    complete: bool = True
    """Whether the search reached the end of the topic within its time limit."""
    markers: dict[tuple[int, int], Marker] = field(default_factory=dict)
    """Partition and offset of a dead letter → the marker of its re-drive."""


@dataclass
class Redriven:
    """The result of re-driving dead letters."""

    redriven: int = 0
    skipped: Counter[str] = field(default_factory=Counter)
    """Reason → number of dead letters that were not re-driven."""
    more: bool = False
    """Whether there are more dead letters to re-drive."""


def find(kafka: Mapping[str, str], pipeline: str, chosen: Chosen, limit: int, most_bytes: int = MOST_BYTES) -> Found:
    """The newest `limit` chosen dead letters of a pipeline, with at most `most_bytes` of each part of a record.

    Raises BrokersUnreachable.
    """
    matches = Found()
    if (topic_id := _topic_id(kafka, pipeline)) is None:
        return matches
    until = time.monotonic() + READ_SECONDS
    for letter in _letters(kafka, pipeline, chosen):
        matches.reasons[letter.reason] += 1
        matches.letters.append(letter.with_most(most_bytes))
        if len(matches.letters) > 2 * limit:
            matches.letters = _newest(matches.letters, limit)
        if time.monotonic() > until:
            matches.complete = False
            break
    matches.markers = _markers(kafka, pipeline, topic_id)
    matches.letters = list(_with_histories(_newest(matches.letters, limit), matches.markers))
    return matches


def redrive(
    kafka: Mapping[str, str], pipeline: str, topics: Iterable[str], chosen: Chosen, limit: int = MOST
) -> Redriven:
    """Write the chosen dead letters' records to their source topics again, oldest first, and mark them.

    `topics` are the pipeline's source topics. Raises EngineError if another process takes over, or for an error of
    Kafka.
    """
    outcome, topics = Redriven(), set(topics)
    if (topic_id := _topic_id(kafka, pipeline)) is None:
        return outcome
    create_topics(kafka, [Topic(markers_of(pipeline), config={"cleanup.policy": "compact"})])
    own = {
        "transactional.id": f"sluice.{pipeline}.redrive",
        "linger.ms": 5,
        "batch.num.messages": 1,  # A broker refuses whole batches, so each record gets its own.
    }
    producer = producer_of(kafka, ANY_SIZE | own)
    try:
        # Aborts the open transaction of a killed process, and fences a process that is still running.
        producer.init_transactions(_TIMEOUT_S)
        markers = _markers(kafka, pipeline, topic_id)
        known = producer.list_topics(timeout=_TIMEOUT_S).topics
        partitions = {topic: len(known[topic].partitions) if topic in known else 0 for topic in topics}
        due: list[DeadLetter] = []
        for letter in _letters(kafka, pipeline, chosen):
            if why := _why_not(letter, chosen, partitions, markers):
                outcome.skipped[why] += 1
            elif len(due) == limit:
                outcome.more = True
                break
            else:
                due.append(letter)
        if _topic_id(kafka, pipeline) != topic_id:
            raise EngineError(
                f"The topic {topic_of(pipeline)} was deleted while it was read.", next_step="Repeat the command."
            )
        due.sort(key=lambda letter: letter.source or ())
        due = list(_with_histories(due, markers))
        for start in range(0, len(due), _AT_ONCE):
            letters: Sequence[DeadLetter] = due[start : start + _AT_ONCE]
            while letters:
                letters = _send(kafka, producer, pipeline, topic_id, letters, outcome)
    except KafkaException as error:
        raise EngineError(
            f"Re-driving dead letters of {pipeline} failed: {error.args[0].str()}.",
            next_step="Run the command again: records that were written are marked and are not written twice.",
        ) from None
    return outcome


def why_not(letter: DeadLetter, topics: Iterable[str], marker: Marker | None) -> str:
    """Why a dead letter cannot be re-driven; empty if it can."""
    if marker is not None:
        return "re-driven already"
    if letter.source is None:
        return "not a record of a source topic"
    return "" if letter.source[0] in topics else "the pipeline does not read its topic"


def _why_not(
    letter: DeadLetter, chosen: Chosen, partitions: Mapping[str, int], markers: Mapping[tuple[int, int], Marker]
) -> str:
    """Like `why_not`; `partitions` are the topics that the pipeline reads, with their numbers of partitions."""
    if why := why_not(letter, partitions, markers.get((letter.partition, letter.offset))):
        return why
    if letter.source is not None and letter.source[1] >= partitions[letter.source[0]]:
        return "its topic has no such partition any more"
    is_named = chosen.reason or chosen.place
    return "" if is_named or letter.reason in UNREADABLE else f"{letter.reason}: name the reason to re-drive these too"


def _send(
    kafka: Mapping[str, str],
    producer: Producer,
    pipeline: str,
    topic_id: str,
    letters: Sequence[DeadLetter],
    outcome: Redriven,
) -> Sequence[DeadLetter]:
    """Write records and their markers in one transaction.

    If the broker refuses a record, nothing is written. Returns the dead letters without it, to be sent again.
    """
    records = _originals(kafka, letters)
    sent: dict[tuple[int, int], Marker] = {}
    errors: list[tuple[DeadLetter, KafkaError]] = []
    now = datetime.now(UTC)

    def delivered(letter: DeadLetter, history: list[Failure], error: KafkaError | None, message: Message) -> None:
        if error is not None:
            errors.append((letter, error))
            return
        sent[letter.partition, letter.offset] = Marker(
            now, message.topic() or "", message.partition() or 0, message.offset() or 0, history
        )

    producer.begin_transaction()
    try:
        for letter, record in zip(letters, records, strict=True):
            if isinstance(record, str):
                continue
            key, value, timestamp, headers = record
            history = [*letter.history, _failure(letter)]
            topic, partition, _ = letter.source or ("", 0, 0)
            producer.produce(
                topic, value, key, partition, timestamp=timestamp, headers=[*headers, *history_headers(history)],
                on_delivery=partial(delivered, letter, history),
            )  # fmt: skip
        until = time.monotonic() + _TIMEOUT_S
        while not errors and producer.flush(_WAIT_S) and time.monotonic() < until:
            pass  # After an error, the client keeps the other records, so that a flush would take all the time.
        for letter, error in errors:
            if error.code() in _RECORD_REFUSED:
                _abort(producer)
                outcome.skipped[f"its topic does not accept it: {error.str()}"] += 1
                return [other for other in letters if other is not letter]
        if errors:
            raise EngineError(f"A record was not written to {(errors[0][0].source or ('',))[0]}: {errors[0][1].str()}.")
        for (partition, offset), marker in sent.items():
            producer.produce(markers_of(pipeline), msgspec.json.encode(marker), f"{topic_id}/{partition}/{offset}")
        producer.commit_transaction(_TIMEOUT_S)
    except BaseException:
        _abort(producer)
        raise
    outcome.redriven += len(sent)
    outcome.skipped.update(record for record in records if isinstance(record, str))
    return []


def _abort(producer: Producer) -> None:
    """Abort the transaction, and forget the records that were not sent."""
    producer.purge()
    producer.flush(_TIMEOUT_S)
    producer.abort_transaction(_TIMEOUT_S)


def history_headers(history: Sequence[Failure]) -> list[tuple[str, bytes]]:
    """The last headers of a record that was re-driven after these failures."""
    if not history:
        return []
    failures = [(f"{HISTORY}{number}", msgspec.json.encode(failure)) for number, failure in enumerate(history, start=1)]
    return [*failures, (REDRIVEN, str(len(history)).encode())]


def _failure(letter: DeadLetter) -> Failure:
    failure = {name: letter.header(name) for name in ("reason", "detail", "step", "topic", "partition", "offset")}
    return failure | {"at": letter.at.isoformat(), "dead_letter": f"{letter.partition}/{letter.offset}"}


Record = tuple[bytes | None, bytes | None, int, Headers]
"""Key, value, timestamp in ms and headers."""


def _originals(kafka: Mapping[str, str], letters: Sequence[DeadLetter]) -> list[Record | str]:
    """The records to write, as they were before they were rejected; or why a record cannot be written."""
    consumer = Consumer(
        {
            "group.id": "sluice-redrive", "enable.auto.commit": False, "isolation.level": "read_committed",
            # A record that is gone is no reason to wait for others.
            "enable.partition.eof": True, "auto.offset.reset": "error", **quiet(kafka),
        }
    )  # fmt: skip
    try:
        return [_original(consumer, letter) for letter in letters]
    finally:
        consumer.close()


def _original(consumer: Consumer, letter: DeadLetter) -> Record | str:
    key, value, timestamp, headers = letter.key, letter.value, _milliseconds(letter.header("timestamp")), letter.headers
    if not letter.is_original:
        message = _fetch(consumer, letter.source or ("", 0, 0))
        if message is None:
            return "the record is no longer in its topic"
        key, value, timestamp = _bytes(message.key()), _bytes(message.value()), message.timestamp()[1]
        headers = headers_of(message)
    if headers == HEADERS_UNREADABLE:
        return "names of its headers are not UTF-8"
    # The record has these headers from its last re-drive, unless another program has written a record to its place.
    earlier = history_headers(letter.history)
    if earlier and [*headers[-len(earlier) :]] == earlier:
        headers = headers[: -len(earlier)]
    return key, value, timestamp, headers


def _fetch(consumer: Consumer, place: Place) -> Message | None:
    """The record at a position; None if retention has removed it."""
    topic, partition, offset = place
    consumer.assign([TopicPartition(topic, partition, offset)])
    message = consumer.poll(_TIMEOUT_S)
    return message if message is not None and message.error() is None and message.offset() == offset else None


def _letters(kafka: Mapping[str, str], pipeline: str, chosen: Chosen) -> Iterator[DeadLetter]:
    since = None if chosen.since is None else round(chosen.since.timestamp() * 1_000)
    for message in read_topic(kafka, topic_of(pipeline), since):
        letter = DeadLetter.of(message)
        if chosen.matches(letter):
            yield letter


def _markers(kafka: Mapping[str, str], pipeline: str, topic_id: str) -> dict[tuple[int, int], Marker]:
    """The markers of the dead-letter topic with this id, by the dead letter's partition and offset."""
    if not topic_ids(kafka, [markers_of(pipeline)], ANSWER_SECONDS):
        return {}
    markers: dict[tuple[int, int], Marker] = {}
    for message in read_topic(kafka, markers_of(pipeline)):
        try:
            of_topic, partition, offset = (_bytes(message.key()) or b"").decode().rsplit("/", 2)
            marker = msgspec.json.decode(_bytes(message.value()) or b"", type=Marker)
            if of_topic == topic_id:
                markers[int(partition), int(offset)] = marker
        except ValueError:  # of msgspec, too
            raise EngineError(
                f"{message.topic()}, partition {message.partition()}, offset {message.offset()}: this record is not a "
                "marker of a re-drive, so another program writes to the topic.",
                next_step="Stop that program, and delete its records (kafka-delete-records) or write over their keys.",
            ) from None
    return markers


def _topic_id(kafka: Mapping[str, str], pipeline: str) -> str | None:
    """The id of a pipeline's topic of dead letters; None before its first dead letter."""
    topic = topic_of(pipeline)
    return topic_ids(kafka, [topic], ANSWER_SECONDS).get(topic)


def _newest(letters: list[DeadLetter], limit: int) -> list[DeadLetter]:
    return sorted(letters, key=lambda letter: (letter.at, letter.offset), reverse=True)[:limit]


def _with_histories(letters: Iterable[DeadLetter], markers: Mapping[tuple[int, int], Marker]) -> Iterator[DeadLetter]:
    """The dead letters with the earlier failures of their records, according to the markers of the re-drives."""
    histories = {(marker.topic, marker.partition, marker.offset): marker.history for marker in markers.values()}
    for letter in letters:
        yield replace(letter, history=histories.get(letter.source, ())) if letter.source else letter


def _separated(headers: Headers) -> tuple[Headers, dict[str, str]]:
    """The headers of a dead letter: the rejected record's own, and Sluice's as text."""
    first = max((number for number, (name, _) in enumerate(headers) if name == FIRST), default=len(headers))
    own = {name: (content or b"").decode(errors="replace") for name, content in headers[first:] if name in _OWN}
    others = [*headers[:first], *(item for item in headers[first:] if item[0] not in _OWN)]
    return [(original(name), content) for name, content in others], own


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdigit() and len(text) <= _MOST_DIGITS


def _bytes(content: str | bytes | None) -> bytes | None:
    return content.encode() if isinstance(content, str) else content


def _milliseconds(iso: str) -> int:
    """A timestamp header as epoch ms; if it is missing, 0, which stands for the current time."""
    if iso.endswith(" ms") and _is_number(iso.removesuffix(" ms")):  # a time after the year 9999
        return int(iso.removesuffix(" ms"))
    try:
        return round(datetime.fromisoformat(iso).timestamp() * 1_000)
    except ValueError:
        return 0
