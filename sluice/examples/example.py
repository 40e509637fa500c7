"""An example: sample records for a pipeline in `spark_jobs`, and the expected results.

The expected results are computed without Sluice, and compared with the pipeline's stores and output
topics.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any, NamedTuple

from sluice.kafka.topics import Topic, create_topics, read_topic, text_headers
from sluice.kafka.topics import produce as send

START_MS = 1_740_988_800_000
"""The time of the first sample record: 2025-03-03T08:00:00Z."""
_FOREVER = {"retention.ms": "-1"}


class Sample(NamedTuple):
    """A record as a producer sends it. No two samples of an example have the same timestamp."""

    topic: str
    key: str | None
    value: bytes | None
    timestamp_ms: int


Window = tuple[str, int, int]
"""A key, and its window's start and end in epoch ms."""


@dataclass
class Results:
    """The results of a pipeline. Numbers with a decimal point are Decimal."""

    stores: dict[str, dict[Any, Any]] = field(default_factory=dict)
    """Store → key or `Window` → value."""
    tables: dict[str, dict[Any, Any]] = field(default_factory=dict)
    """Topic of a table's changes → key or `Window` → last value, except deleted keys."""
    streams: dict[str, Counter[tuple[str | None, str]]] = field(default_factory=dict)
    """Topic of a stream → its records in any order, as key and canonical text of the value."""
    dead_letters: Counter[str] = field(default_factory=Counter)
    """Reason → number of dead letters."""

    def write(self, topic: str, key: str | None, value: Any) -> None:
        """Add a record of a stream."""
        self.streams.setdefault(topic, Counter())[key, canonical(value)] += 1

    @property
    def size(self) -> int:
        """The number of entries, keys and records."""
        size = 0
        for rows in (*self.stores.values(), *self.tables.values()):
            size += len(rows)
        for records in self.streams.values():
            size += records.total()
        return size

    def differences(self, actual: Results) -> dict[str, int]:
        """Return the number of differing keys or records, for each store and topic that differs."""
        counts: Counter[str] = Counter()
        for kind, name, values, others in self._pairs(actual):
            for key in values.keys() | others.keys():
                if values.get(key) != others.get(key):
                    counts[f"{kind} {name}"] += 1
        return dict(counts)

    def _pairs(
        self,
        actual: Results,
    ) -> Iterator[tuple[str, str, Mapping[Any, Any], Mapping[Any, Any]]]:
        for store, rows in self.stores.items():
            yield "store", store, rows, actual.stores[store]
        for topic, rows in self.tables.items():
            yield "topic", topic, rows, actual.tables[topic]
        for topic, records in self.streams.items():
            yield "topic", topic, records, actual.streams[topic]
        yield "dead letters", "by reason", self.dead_letters, actual.dead_letters


@dataclass(frozen=True)
class Example:
    """An example pipeline, with sample records and expected results."""

    name: str
    """The name of the pipeline and of its file in `spark_jobs`."""
    topics: Mapping[str, int]
    """The topics that the pipeline reads, each with its number of partitions."""
    outputs: Mapping[str, int]
    """The topics that the pipeline writes, each with its number of partitions."""
    count: int
    """The default number of samples."""
    samples: Callable[[int, int, int], Iterator[Sample]]
    """`samples(count, seed, start_ms)` yields about `count` records; the same arguments yield the
    same bytes."""
    expected: Callable[[Iterable[Sample]], Results]
    """The expected results, from the samples in the order of their timestamps."""
    paths: Sequence[str]
    """A few paths of the REST API to query."""
    start_ms: int = START_MS
    """The time of the first sample."""
    answers: Callable[[Results], Mapping[str, Any]] = lambda _: {}
    """Path → expected answer, if it follows from the expected results."""
    normal: Callable[[Any], Any] = lambda value: value
    """Normalizes a value that has several equal forms, such as a set, to the form in `expected`."""
    decode: Callable[[str | bytes | None], Any] = lambda value: decoded(value)
    """Decodes the value of an output record."""
    by_clock: frozenset[str] = frozenset()
    """Windowed stores whose windows depend on the time of the run. Their counts are summed by
    key."""

    def actual_store(self, store: str, entries: Iterable[tuple[Any, Any]]) -> dict[Any, Any]:
        """Return a store's entries in the form of `Results.stores`."""
        values: dict[Any, Any] = {}
        for key, value in entries:
            if store in self.by_clock:
                values[key[0]] = values.get(key[0], 0) + value
            else:
                values[key] = self.normal(value)
        return values

    def actual(self, kafka: Mapping[str, str], expected: Results) -> Results:
        """Return the pipeline's results in Kafka: output topics and dead letters, but no stores."""
        results = Results()
        for topic in expected.tables:
            results.tables[topic] = {}
            for message in read_topic(kafka, topic):
                headers = text_headers(message)
                key: Any = _text(message.key())
                # The record's key does not contain a windowed row's window, which is in the
                # headers.
                if "window_start" in headers:
                    key = key, int(headers["window_start"]), int(headers["window_end"])
                # A record without a value deletes the row of its key.
                results.tables[topic].pop(key, None)
                value = message.value()
                if value is not None:
                    results.tables[topic][key] = self.normal(self.decode(value))
        for topic in expected.streams:
            results.streams[topic] = Counter()
            for message in read_topic(kafka, topic):
                results.write(
                    topic, _text(message.key()), self.normal(self.decode(message.value()))
                )
        for message in read_topic(kafka, f"{self.name}_dead_letters"):
            results.dead_letters[text_headers(message).get("sluice.reason", "none")] += 1
        return results


def create_example_topics(kafka: Mapping[str, str], example: Example) -> tuple[str, ...]:
    """Create missing topics of an example, and return their names.

    The topics keep records forever, because Kafka deletes by timestamp and the samples have old
    timestamps.
    """
    partition_counts = {**example.topics, **example.outputs, f"{example.name}_dead_letters": 1}
    topics: list[Topic] = []
    for name, partitions in partition_counts.items():
        topics.append(Topic(name, partitions, 1, _FOREVER))
    return create_topics(kafka, topics)


def produce_samples(
    kafka: Mapping[str, str],
    example: Example,
    samples: Iterable[Sample],
) -> dict[str, int]:
    """Send samples and wait until the broker has all of them.

    Returns the number of records per topic.
    """
    by_topic: dict[str, list[tuple[str | None, bytes | None, int]]] = {
        topic: [] for topic in example.topics
    }
    for sample in samples:
        by_topic[sample.topic].append((sample.key, sample.value, sample.timestamp_ms))
    counts: dict[str, int] = {}
    for topic, records in by_topic.items():
        send(kafka, topic, records)
        counts[topic] = len(records)
    return counts


def read_samples(kafka: Mapping[str, str], example: Example) -> list[Sample]:
    """Read the records of an example's topics, in the order of their timestamps."""
    samples: list[Sample] = []
    for topic in example.topics:
        for message in read_topic(kafka, topic):
            key, value = _text(message.key()), _bytes(message.value())
            samples.append(Sample(topic, key, value, message.timestamp()[1]))
    return sorted(samples, key=lambda sample: sample.timestamp_ms)


def json_bytes(value: Any) -> bytes:
    """Return a value as JSON. A Decimal becomes a number with all of its digits."""
    return _json(value).encode()


def _json(value: Any) -> str:
    match value:
        case Decimal():
            # `json` cannot write a Decimal, and a float would lose digits.
            return f"{value:f}"
        case dict():
            members = [f"{json.dumps(name)}:{_json(member)}" for name, member in value.items()]
            return f"{{{','.join(members)}}}"
        case list():
            return f"[{','.join(map(_json, value))}]"
        case _:
            return json.dumps(value, ensure_ascii=False)


def canonical(value: Any) -> str:
    """Return a value as text. Equal values have the same text."""
    match value:
        case dict():
            members = [f"{name}:{canonical(member)}" for name, member in sorted(value.items())]
            return f"{{{','.join(members)}}}"
        case list():
            return f"[{','.join(map(canonical, value))}]"
        case int() | Decimal() if not isinstance(value, bool):
            # Equal numbers, such as 1 and 1.00, get one text. `true` is left out, although its type
            # is a subclass of int.
            return format(Decimal(value).normalize(), "f")
        case _:
            return repr(value)


def decoded(value: str | bytes | None) -> Any:
    """Return a record's value, decoded from JSON if possible, otherwise as text."""
    if value is None:
        return None
    text = value.decode() if isinstance(value, bytes) else value
    try:
        return json.loads(text, parse_float=Decimal)
    except json.JSONDecodeError:
        return text


def _text(key: str | bytes | None) -> str | None:
    return key.decode() if isinstance(key, bytes) else key


def _bytes(value: str | bytes | None) -> bytes | None:
    return value.encode() if isinstance(value, str) else value
