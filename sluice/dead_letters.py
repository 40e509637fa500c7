"""Finds dead letters by reason, time and partition, and re-drives them: writes each once to its source topic again.

Each transaction writes records to their source topics and a marker for each record to `PIPELINE_redriven`. Therefore a
crash, a second request or a second process cannot write a record twice. A marker names its dead letter by the id of the
dead-letter topic, partition and offset, because the offsets of a topic that is created again begin anew.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import partial
from typing import Any

import msgspec
from confluent_kafka import Consumer, KafkaError, KafkaException, Message, Producer, TopicPartition

from sluice.errors import EngineError
from sluice.kafka.brokers import ANSWER_SECONDS, ANY_SIZE, configuration_errors, quiet
from sluice.kafka.topics import Topic, create_topics, read_topic, require_delivery, topic_ids

READ_SECONDS = 8.0
"""Time limit for a search through dead letters, after which the dead letters found so far are returned."""
MOST = 10_000
"""Maximum number of dead letters to re-drive at once."""
HISTORY, REDRIVEN = "sluice.history.", "sluice.redriven"
"""Headers of a re-driven record: `sluice.history.1` describes its first failure; `sluice.redriven` counts failures."""
UNREADABLE = frozenset(
    {
        "malformed", "not_utf8", "contract", "duplicate_field", "digits", "empty_value", "null_value", "event_time",
        "future", "key", "key_not_utf8", "key_too_long", "null_key", "out_of_range",
    }
)  # fmt: skip
"""Reasons of records that could not be read and therefore had no effect. Records with other reasons may have had an
effect, and are re-driven only if their reason is requested."""

_TIMEOUT_S = 15.0
_AT_ONCE = 500
_OWN = frozenset(
    f"sluice.{name}"
    for name in (
        "reason", "detail", "topic", "partition", "offset", "timestamp", "step", "at", "key", "timer", "output",
        "left_out",
    )
)  # fmt: skip

Place = tuple[str, int, int]
"""Topic, partition and offset of a record."""


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
    headers: Sequence[tuple[str, bytes | None]]

    @classmethod
    def of(cls, message: Message) -> DeadLetter:
        partition, offset = message.partition(), message.offset()
        assert partition is not None
        assert offset is not None
        at = datetime.fromtimestamp(message.timestamp()[1] / 1_000, UTC)
        headers = [(name, _bytes(content)) for name, content in _headers(message)]
        return cls(partition, offset, at, _bytes(message.key()), _bytes(message.value()), headers)

    def header(self, name: str) -> str:
        """The header `sluice.NAME` as text; empty if it is missing."""
        # Sluice's header is the last of its name: the record itself may have had headers with this name.
        values = [value for key, value in self.headers if key == f"sluice.{name}"]
        return (values[-1] or b"").decode(errors="replace") if values else ""

    @property
    def reason(self) -> str:
        return self.header("reason")

    @property
    def source(self) -> Place | None:
        """The position of the rejected record; None for an output record and for a timer."""
        topic, partition, offset = self.header("topic"), self.header("partition"), self.header("offset")
        return (topic, int(partition), int(offset)) if topic and partition.isdecimal() and offset.isdecimal() else None

    @property
    def is_original(self) -> bool:
        """Whether key and value are those of the rejected record. For a failed step, they can be the step's input."""
        return not (self.header("step") or self.header("left_out"))

    @property
    def history(self) -> list[Any]:
        """Earlier failures of the same record, oldest first."""
        return _history(self.headers)


class Marker(msgspec.Struct, frozen=True):
    """Records that a dead letter was re-driven."""

    at: datetime
    topic: str
    partition: int
    offset: int
    """The offset of the re-driven record."""


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


def find(kafka: Mapping[str, str], pipeline: str, chosen: Chosen, limit: int) -> Found:
    """The newest `limit` chosen dead letters of a pipeline. Raises BrokersUnreachable."""
    matches = Found()
    if (topic_id := _topic_id(kafka, pipeline)) is None:
        return matches
    until = time.monotonic() + READ_SECONDS
    for letter in _letters(kafka, pipeline, chosen):
        matches.reasons[letter.reason] += 1
        matches.letters.append(letter)
        if len(matches.letters) > 2 * limit:
            matches.letters = _newest(matches.letters, limit)
        if time.monotonic() > until:
            matches.complete = False
            break
    matches.letters = _newest(matches.letters, limit)
    matches.markers = _markers(kafka, pipeline, topic_id)
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
    with configuration_errors():
        producer = Producer(
            {**quiet(kafka), **ANY_SIZE, "transactional.id": f"sluice.{pipeline}.redrive", "linger.ms": 5}
        )
    try:
        # Aborts the open transaction of a killed process, and fences a process that is still running.
        producer.init_transactions(_TIMEOUT_S)
        markers = _markers(kafka, pipeline, topic_id)
        due: list[DeadLetter] = []
        for letter in _letters(kafka, pipeline, chosen):
            if why := _why_not(letter, chosen, topics, markers):
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
        for start in range(0, len(due), _AT_ONCE):
            _send(kafka, producer, pipeline, topic_id, due[start : start + _AT_ONCE], outcome)
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
    letter: DeadLetter, chosen: Chosen, topics: Iterable[str], markers: Mapping[tuple[int, int], Marker]
) -> str:
    if why := why_not(letter, topics, markers.get((letter.partition, letter.offset))):
        return why
    is_named = chosen.reason or chosen.place
    return "" if is_named or letter.reason in UNREADABLE else f"{letter.reason}: name the reason to re-drive these too"


def _send(
    kafka: Mapping[str, str],
    producer: Producer,
    pipeline: str,
    topic_id: str,
    letters: Sequence[DeadLetter],
    outcome: Redriven,
) -> None:
    """Write records and their markers in one transaction."""
    records = _originals(kafka, letters)
    sent: dict[tuple[int, int], Marker] = {}
    errors: list[EngineError] = []
    now = datetime.now(UTC)

    def delivered(letter: DeadLetter, error: KafkaError | None, message: Message) -> None:
        try:
            require_delivery(error, message)
        except EngineError as refused:
            errors.append(refused)
            return
        place = Marker(now, message.topic() or "", message.partition() or 0, message.offset() or 0)
        sent[letter.partition, letter.offset] = place

    producer.begin_transaction()
    try:
        for letter, record in zip(letters, records, strict=True):
            if record is None:
                outcome.skipped["the record is no longer in its topic"] += 1
                continue
            key, value, timestamp, headers = record
            topic, partition, _ = letter.source or ("", 0, 0)
            producer.produce(
                topic, value, key, partition, timestamp=timestamp, headers=headers,
                on_delivery=partial(delivered, letter),
            )  # fmt: skip
        producer.flush(_TIMEOUT_S)
        if errors:
            raise errors[0]
        for (partition, offset), marker in sent.items():
            producer.produce(markers_of(pipeline), msgspec.json.encode(marker), f"{topic_id}/{partition}/{offset}")
        producer.commit_transaction(_TIMEOUT_S)
    except BaseException:
        producer.abort_transaction(_TIMEOUT_S)
        raise
    outcome.redriven += len(sent)


Record = tuple[bytes | None, bytes | None, int, list[tuple[str, str | bytes | None]]]
"""Key, value, timestamp in ms and headers."""


def _originals(kafka: Mapping[str, str], letters: Sequence[DeadLetter]) -> list[Record | None]:
    """The records to write, as they were before they were rejected, with the history of their failures."""
    consumer = Consumer(
        {"group.id": "sluice-redrive", "enable.auto.commit": False, "isolation.level": "read_committed", **quiet(kafka)}
    )
    try:
        return [_original(consumer, letter) for letter in letters]
    finally:
        consumer.close()


def _original(consumer: Consumer, letter: DeadLetter) -> Record | None:
    key, value, timestamp = letter.key, letter.value, _milliseconds(letter.header("timestamp"))
    headers: list[tuple[str, str | bytes | None]] = [item for item in letter.headers if item[0] not in _OWN]
    if not letter.is_original:
        message = _fetch(consumer, letter.source or ("", 0, 0))
        if message is None:
            return None
        key, value, timestamp = _bytes(message.key()), _bytes(message.value()), message.timestamp()[1]
        headers = _headers(message)
    number = len(_history(headers)) + 1
    failure = {name: letter.header(name) for name in ("reason", "detail", "step", "topic", "partition", "offset")}
    failure |= {"at": letter.at.isoformat(), "dead_letter": f"{letter.partition}/{letter.offset}"}
    kept = [(name, content) for name, content in headers if name != REDRIVEN]
    own = [(f"{HISTORY}{number}", msgspec.json.encode(failure)), (REDRIVEN, str(number).encode())]
    return key, value, timestamp, [*kept, *own]


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


def _history(headers: Iterable[tuple[str, str | bytes | None]]) -> list[Any]:
    failures: dict[int, Any] = {}
    for name, content in headers:
        number = name.removeprefix(HISTORY)
        if name.startswith(HISTORY) and number.isdecimal():
            try:
                failures[int(number)] = msgspec.json.decode(content or b"")
            except msgspec.DecodeError:
                failures[int(number)] = {"reason": "unreadable"}
    return [failures[number] for number in sorted(failures)]


def _headers(message: Message) -> list[tuple[str, str | bytes | None]]:
    headers = message.headers() or []
    return list(headers.items()) if isinstance(headers, dict) else headers


def _bytes(content: str | bytes | None) -> bytes | None:
    return content.encode() if isinstance(content, str) else content


def _milliseconds(iso: str) -> int:
    """A timestamp header as epoch ms; if it is missing, 0, which stands for the current time."""
    try:
        return round(datetime.fromisoformat(iso).timestamp() * 1_000)
    except ValueError:
        return 0
