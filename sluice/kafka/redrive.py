"""Re-drives dead letters: writes the record of each dead letter to its source topic again, once.

Each transaction writes records to their source topics and a marker for each record to
`PIPELINE_redriven`. Therefore each record is written only once, even after a crash, a second
request, a second process, or the loss of this topic (see `redrive_topic`). A marker names its dead
letter by the id of the dead-letter topic, partition and offset, because offsets start again if a
topic is created again. A record's earlier failures are in the markers of its re-drives. The headers
with these failures are only a copy for other readers of the source topic.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import partial

import msgspec
from confluent_kafka import KafkaError, KafkaException, Message, Producer

from sluice.errors import EngineError, sentence
from sluice.kafka.brokers import ANY_SIZE, producer_of
from sluice.kafka.dead_letter_topic import (
    UNREADABLE,
    DeadLetter,
    DeadLetterFilter,
    Failure,
    RedriveMarker,
    chosen_letters,
    dead_letter_topic_id,
    is_number,
    markers_of,
    redrive_markers,
    topic_of,
    with_histories,
)
from sluice.kafka.denied_operations import WRITE, denial, denial_named
from sluice.kafka.redrive_topic import batches_of, require_redrive_topic, transactional_id
from sluice.kafka.topics import (
    HEADERS_UNREADABLE,
    Headers,
    as_bytes,
    headers_of,
    records_at,
    require_writable,
)
from sluice.values.record_places import Place
from sluice.values.topic_patterns import named_or_matching

MOST = 10_000
"""Maximum number of dead letters to re-drive at once."""
HISTORY, REDRIVEN = "sluice.history.", "sluice.redriven"
"""The last headers of a re-driven record: `sluice.history.1` has its first failure,
`sluice.history.2` its second failure, and so on. `sluice.redriven` has the number of failures."""

_TIMEOUT_S = 15.0
_AT_ONCE = 500
_WAIT_S = 0.1
_RECORD_REFUSED = frozenset(
    {KafkaError.MSG_SIZE_TOO_LARGE, KafkaError.INVALID_TIMESTAMP, KafkaError.INVALID_RECORD}
)
"""Errors with which the broker rejects a single record, but would accept others."""


@dataclass
class RedriveOutcome:
    """The result of re-driving dead letters."""

    redriven: int = 0
    skipped: Counter[str] = field(default_factory=Counter)
    """Reason → number of dead letters that were not re-driven."""
    more: bool = False
    """Whether there are more dead letters to re-drive."""


def redrive(
    kafka: Mapping[str, str],
    pipeline: str,
    topics: Iterable[str],
    chosen: DeadLetterFilter,
    limit: int = MOST,
    value: bytes | None = None,
) -> RedriveOutcome:
    """Write the chosen dead letters' records to their topics again, oldest first, and mark them.

    `topics` are the names and the patterns of the pipeline's source topics. `value` replaces the
    records' own values; None keeps them. Raises EngineError if another process takes over, or for
    an error of Kafka.
    """
    outcome = RedriveOutcome()
    topic_id = dead_letter_topic_id(kafka, pipeline)
    if topic_id is None:
        return outcome
    producer_settings = {
        "transactional.id": transactional_id(pipeline),
        "linger.ms": 5,
        # If a broker rejects a record, it rejects the record's whole batch. So each record gets its
        # own batch.
        "batch.num.messages": 1,
    }
    producer = producer_of(kafka, ANY_SIZE | producer_settings)
    try:
        # Aborts the open transaction of a killed process, and fences a process that is still
        # running.
        with denial_named(WRITE, batches_of(pipeline), transactional_id(pipeline)):
            producer.init_transactions(_TIMEOUT_S)
            require_redrive_topic(kafka, pipeline, producer)
        markers = redrive_markers(kafka, pipeline, topic_id)
        cluster = producer.list_topics(timeout=_TIMEOUT_S).topics
        partitions: dict[str, int] = {}
        for topic in named_or_matching(topics, cluster):
            partitions[topic] = len(cluster[topic].partitions) if topic in cluster else 0
        due: list[DeadLetter] = []
        for letter in chosen_letters(kafka, pipeline, chosen):
            obstacle = _obstacle(letter, chosen, partitions, markers)
            if obstacle:
                outcome.skipped[obstacle] += 1
            elif len(due) == limit:
                outcome.more = True
                break
            else:
                due.append(letter)
        if dead_letter_topic_id(kafka, pipeline) != topic_id:
            raise EngineError(
                f"The topic {topic_of(pipeline)} was deleted while it was read.",
                next_step="Repeat the command.",
            )
        # Write each partition's records in their original order again.
        due.sort(key=lambda letter: letter.source or ())
        due = list(with_histories(due, markers))
        for start in range(0, len(due), _AT_ONCE):
            letters: Sequence[DeadLetter] = due[start : start + _AT_ONCE]
            while letters:
                letters = _send(kafka, producer, pipeline, topic_id, letters, outcome, value)
    except KafkaException as error:
        if (denied := denial(kafka, error)) is not None:
            raise denied from None
        raise EngineError(
            f"Re-driving dead letters of {pipeline} failed: {sentence(error.args[0].str())}",
            next_step="Run the command again: records that were written are marked and are not "
            "written twice.",
        ) from None
    return outcome


def redrive_obstacle(
    letter: DeadLetter, topics: Iterable[str], marker: RedriveMarker | None
) -> str:
    """Return why a dead letter cannot be re-driven; an empty text if it can be re-driven."""
    if marker is not None:
        return "re-driven already"
    if letter.source is None:
        return "not a record of a source topic"
    return "" if letter.source[0] in topics else "the pipeline does not read its topic"


def _obstacle(
    letter: DeadLetter,
    chosen: DeadLetterFilter,
    partitions: Mapping[str, int],
    markers: Mapping[tuple[int, int], RedriveMarker],
) -> str:
    """Do the same as `redrive_obstacle`, but also check the record's partition and `chosen`.

    `partitions`: each topic that the pipeline reads → its number of partitions.
    """
    obstacle = redrive_obstacle(letter, partitions, markers.get((letter.partition, letter.offset)))
    if obstacle:
        return obstacle
    if letter.source is not None and letter.source[1] >= partitions[letter.source[0]]:
        return "its topic has no such partition any more"
    # A record that could be read may already have had an effect. So re-drive it only if the user
    # names the reason, or the dead letter's position.
    if chosen.reason or chosen.place or letter.reason in UNREADABLE:
        return ""
    return f"{letter.reason}: re-driven only if the command names this reason"


def _send(
    kafka: Mapping[str, str],
    producer: Producer,
    pipeline: str,
    topic_id: str,
    letters: Sequence[DeadLetter],
    outcome: RedriveOutcome,
    corrected: bytes | None,
) -> Sequence[DeadLetter]:
    """Write records and their markers in one transaction.

    Returns the dead letters that still have to be re-driven. If the broker refuses a record,
    nothing is written, and the result has all other dead letters. Otherwise, the result is empty.
    """
    records = _originals(kafka, letters)
    sent: dict[tuple[int, int], RedriveMarker] = {}
    errors: list[tuple[DeadLetter, KafkaError]] = []
    now = datetime.now(UTC)

    def delivered(
        letter: DeadLetter,
        history: list[Failure],
        error: KafkaError | None,
        message: Message,
    ) -> None:
        if error is not None:
            errors.append((letter, error))
            return
        sent[letter.partition, letter.offset] = RedriveMarker(
            now, message.topic() or "", message.partition() or 0, message.offset() or 0, history
        )

    producer.begin_transaction()
    try:
        for letter, record in zip(letters, records, strict=True):
            if isinstance(record, str):
                # `record` is a text: the reason why the record cannot be written.
                continue
            key, value, timestamp, headers = record
            if corrected is not None:
                value = corrected
            history = [*letter.history, _failure(letter)]
            topic, partition, _ = letter.source or ("", 0, 0)
            producer.produce(
                topic,
                value,
                key,
                partition,
                timestamp=timestamp,
                headers=[*headers, *_history_headers(history)],
                on_delivery=partial(delivered, letter, history),
            )
        until = time.monotonic() + _TIMEOUT_S
        while not errors and producer.flush(_WAIT_S) and time.monotonic() < until:
            # Stop at the first error. After an error, the client does not send the other records,
            # and the loop would wait for them until its time limit.
            pass
        for letter, error in errors:
            if error.code() in _RECORD_REFUSED:
                _abort(producer)
                outcome.skipped[f"its topic does not accept it: {error.str()}"] += 1
                return [other for other in letters if other is not letter]
        if errors:
            letter, error = errors[0]
            topic = (letter.source or ("",))[0]
            # The client's error may only say that the record was not sent, so look for the cause.
            require_writable(kafka, {topic, markers_of(pipeline)})
            raise EngineError(
                f"A record was not written to {topic}: {sentence(error.str())}",
                next_step="Remove the cause, and repeat the command: it skips records that are "
                "written already.",
            )
        for (partition, offset), marker in sent.items():
            producer.produce(
                markers_of(pipeline),
                msgspec.json.encode(marker),
                f"{topic_id}/{partition}/{offset}",
            )
        with denial_named(WRITE, markers_of(pipeline), transactional_id(pipeline)):
            producer.commit_transaction(_TIMEOUT_S)
    except BaseException:
        # Ignore errors: if nothing was written, a broker may refuse to abort the transaction.
        with suppress(KafkaException):
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


def _history_headers(history: Sequence[Failure]) -> list[tuple[str, bytes]]:
    """Return the last headers of a re-driven record, which list these failures."""
    if not history:
        return []
    headers: list[tuple[str, bytes]] = []
    for number, failure in enumerate(history, start=1):
        headers.append((f"{HISTORY}{number}", msgspec.json.encode(failure)))
    return [*headers, (REDRIVEN, str(len(history)).encode())]


def _failure(letter: DeadLetter) -> Failure:
    failure = {
        name: letter.header(name)
        for name in ("reason", "detail", "step", "topic", "partition", "offset")
    }
    return failure | {
        "at": letter.at.isoformat(),
        "dead_letter": f"{letter.partition}/{letter.offset}",
    }


Record = tuple[bytes | None, bytes | None, int, Headers]
"""Key, value, timestamp in ms and headers."""


def _originals(kafka: Mapping[str, str], letters: Sequence[DeadLetter]) -> list[Record | str]:
    """Return the records to write, in the form in which they were rejected.

    A record that cannot be written is replaced by the reason.
    """
    changed: list[Place] = []
    for letter in letters:
        if letter.source is not None and not letter.is_original:
            changed.append(letter.source)
    sources: dict[Place, Record] = {}
    if changed:
        for place, message in records_at(kafka, changed):
            key, value = as_bytes(message.key()), as_bytes(message.value())
            sources[place] = key, value, message.timestamp()[1], headers_of(message)
    return [_original(letter, sources) for letter in letters]


def _original(letter: DeadLetter, sources: Mapping[Place, Record]) -> Record | str:
    """Return the record of a dead letter.

    `sources` has the records that are not in their dead letters.
    """
    record: Record | None = (
        letter.key,
        letter.value,
        _milliseconds(letter.header("timestamp")),
        letter.headers,
    )
    if not letter.is_original and letter.source is not None:
        record = sources.get(letter.source)
    if record is None:
        return "the record is no longer in its topic"
    key, value, timestamp, headers = record
    if headers == HEADERS_UNREADABLE:
        return "names of its headers are not UTF-8"
    # The last re-drive has added these headers at the end of the record. If they are missing,
    # another program's record is at this position.
    earlier = _history_headers(letter.history)
    if earlier and [*headers[-len(earlier) :]] == earlier:
        headers = headers[: -len(earlier)]
    return key, value, timestamp, headers


def _milliseconds(iso: str) -> int:
    """Return a timestamp header as epoch ms.

    Returns 0 if the header is missing: the record then gets the current time.
    """
    # A time before the year 1 or after the year 9999 is written as a number.
    number = iso.removesuffix(" ms")
    if number != iso and is_number(number.removeprefix("-")):
        return int(number)
    try:
        return round(datetime.fromisoformat(iso).timestamp() * 1_000)
    except ValueError:
        return 0
