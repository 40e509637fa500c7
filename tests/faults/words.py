"""The words pipeline: its input, and the expected results of one undisturbed run, computed without the engine.

Every record has a later timestamp than the record sent before it, so only one order is right: batch
by batch, and by timestamp within a batch. Stores are compared key by key, and the outputs of joins
record by record.
"""

from __future__ import annotations

import json
import re
import sys
from bisect import bisect_left, bisect_right
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Any

from confluent_kafka import Message

from sluice.kafka.topics import produce, read_topic, text_headers
from sluice.state.ledger.ledger import Ledger
from sluice.state.model import GenerationRef, Snapshot
from sluice.state.remote.opening import open_shard
from tests.faults.comparison import Comparison, batches, difference, records_read, verify_shards
from tests.faults.world import World

NAME = "words"
TOPICS = {"words": 2, "alphabet": 3, "alphabet_descriptions": 2}
LETTERS = [*"ABCDEFGHIJKLMNOPQRST", "É", "Ω"]
START_MS = 1_670_230_527_000
MS_APART = 60
NEAR_MS = 10_000
_NO_TEXT = b"\xff\xfe"

Record = tuple[str, str | None, bytes | None]
"""Topic, key and value."""


def topics() -> dict[str, int]:
    """The input topics and their numbers of partitions."""
    return TOPICS


def feed(world: World, count: int, sent: int) -> None:
    """Send `count` records that are later than the `sent` earlier ones."""
    world.kafka.create_topics(TOPICS)
    by_topic: dict[str, list[tuple[str | None, bytes | None, int]]] = defaultdict(list)
    described: set[str | None] = set()
    for number in range(sent + count):
        rng = Random(number)
        topic, key, value = _record(rng, number, described)
        if number >= sent:
            by_topic[topic].append(
                (key, value, START_MS + number * MS_APART + rng.randrange(MS_APART))
            )
    for topic, records in by_topic.items():
        produce(world.config, topic, records)


def _record(rng: Random, number: int, described: set[str | None]) -> Record:
    """The next record. `described`: the letters that have a description; some records delete one."""
    kind, letter, luck = rng.random(), rng.choice(LETTERS), rng.random()
    if kind < 0.25:
        text = rng.choice((f"word{'s' * rng.randrange(9)}", f"{number}", "no", f"two {number}"))
        return "words", f"key {rng.randrange(60)}", None if luck < 0.1 else text.encode()
    if kind < 0.45:
        if luck < 0.05 and letter in described:
            described.remove(letter)
            return "alphabet_descriptions", letter, None
        described.add(letter)
        return "alphabet_descriptions", letter, f"{letter}, number {number}".encode()
    word = f"{letter}{'x' * rng.randrange(5)}{number}".encode()
    if luck < 0.02:
        return "alphabet", letter, rng.choice((None, _NO_TEXT))
    return "alphabet", None if luck < 0.03 else letter, word


@dataclass(frozen=True)
class TopicRecord:
    """A record of a topic."""

    topic: str
    partition: int
    offset: int
    key: str | None
    value: bytes | None
    time: int

    @property
    def text(self) -> str | None:
        return None if self.value is None else self.value.decode()

    @property
    def reason(self) -> str:
        """The reason why the record is rejected; empty if it is valid."""
        if self.value is None:
            return "null_value" if self.topic == "alphabet" else ""
        return "not_utf8" if self.value == _NO_TEXT else ""


def read(world: World) -> list[TopicRecord]:
    """All records of the three topics."""
    return [
        _topic_record(topic, message)
        for topic in TOPICS
        for message in read_topic(world.config, topic)
    ]


def _topic_record(topic: str, message: Message) -> TopicRecord:
    key = message.key()
    position = message.partition() or 0, message.offset() or 0
    return TopicRecord(
        topic,
        *position,
        None if key is None else key.decode(),
        message.value(),
        message.timestamp()[1],
    )


@dataclass
class Truth:
    """The pipeline in plain Python, record by record."""

    stores: dict[str, dict[str, Any]] = field(default_factory=lambda: defaultdict(dict))
    outputs: dict[str, dict[str | None, list[Any]]] = field(
        default_factory=lambda: defaultdict(lambda: defaultdict(list))
    )

    def add(self, record: TopicRecord) -> None:
        if record.reason:
            return
        if record.topic == "words":
            self._word(record)
        elif record.topic == "alphabet":
            self._letter(record.key, record.text or "")
        else:
            self._description(record.key or "", record.text)

    def _word(self, record: TopicRecord) -> None:
        assert record.key is not None
        clean = record.text if record.text and re.search("^[A-Za-z]{3,}$", record.text) else None
        for store, value in (("words_latest", record.text), ("words_clean", clean)):
            _put(self.stores[store], record.key, value)

    def _letter(self, key: str | None, word: str) -> None:
        stores = self.stores
        lengths = stores["lengths_count"]
        lengths[str(len(word))] = lengths.get(str(len(word)), 0) + 1
        described = stores["descriptions"].get(key or "")
        if key is not None:
            stores["letters_count"][key] = stores["letters_count"].get(key, 0) + 1
            before = stores["letters_joined"].get(key)
            stores["letters_joined"][key] = word if before is None else f"{before}-{word}"
            letter = stores["letters"].setdefault(
                key, {"key": key, "valueList": [], "runningCount": 0}
            )
            stores["letters"][key] = {
                "key": key, "valueList": sorted([*letter["valueList"], word]),
                "runningCount": letter["runningCount"] + 1,
            }  # fmt: skip
            stores["newest_word"][key] = word
        pair = {"left": word, "right": described}
        if key is not None and described is not None:
            self._send("words_with_description_inner", key, pair)
            self._send("letters_with_description_inner", key, pair)
        self._send("words_with_description_left", key, pair)
        if key is not None:
            self._send("letters_with_description_left", key, pair)
            self._send("letters_with_description_outer", key, pair)

    def _description(self, key: str, text: str | None) -> None:
        _put(self.stores["descriptions"], key, text)
        word = self.stores["newest_word"].get(key)
        pair = {"left": word, "right": text}
        if word is not None:
            self._send("letters_with_description_inner", key, pair if text is not None else None)
            self._send("letters_with_description_left", key, pair)
            self._send("letters_with_description_outer", key, pair)
        else:
            self._send("letters_with_description_outer", key, pair if text is not None else None)

    def _send(self, topic: str, key: str | None, value: Any) -> None:
        self.outputs[topic][key].append(value)


def _put(store: dict[str, Any], key: str, value: str | None) -> None:
    if value is None:
        store.pop(key, None)
    else:
        store[key] = value


def check_snapshot(ledger: Ledger, world: World, snapshot: Snapshot) -> None:
    """Raise AssertionError unless a snapshot's stores are right for the records before its positions."""
    truth = Truth()
    for record in _in_order(read(world), [snapshot]):
        truth.add(record)
    _stores(ledger, snapshot, truth)


def compare(world: World, earlier: Sequence[Snapshot] = ()) -> Comparison:
    """Raise AssertionError unless state, output topics, dead letters and audits are right for the input records."""
    records = read(world)
    with world.ledger() as ledger:
        snapshot = ledger.snapshots.latest(NAME)
        assert snapshot is not None
        snapshots = batches(earlier, ledger.snapshots.recent(NAME, limit=sys.maxsize)[::-1])
        truth = Truth()
        for record in _in_order(records, snapshots):
            truth.add(record)
        keys = _stores(ledger, snapshot, truth)
        verify_shards(ledger, snapshot)
        audits = ledger.audits.all(GenerationRef(NAME, snapshot.generation))
        count = records_read(audits, TOPICS)
        assert count == len(records), f"{count} of {len(records)} records were read"
    joined = _outputs(world, truth) + _clean(world, truth) + _near(world, records)
    return Comparison(len(records), _dead_letters(world, records), 0, keys, joined, len(audits))


def _in_order(
    records: Iterable[TopicRecord], snapshots: Sequence[Snapshot]
) -> Iterator[TopicRecord]:
    ends = [
        {
            (topic, int(partition)): end
            for topic, offsets in snapshot.positions.items()
            for partition, end in offsets.items()
        }
        for snapshot in snapshots
    ]
    by_snapshot: list[list[TopicRecord]] = [[] for _ in snapshots]
    for record in records:
        partition = record.topic, record.partition
        number = next(
            (n for n, reached in enumerate(ends) if record.offset < reached.get(partition, 0)), None
        )
        if number is not None:
            by_snapshot[number].append(record)
    for batch in by_snapshot:
        yield from sorted(batch, key=lambda record: record.time)


def _stores(ledger: Ledger, snapshot: Snapshot, truth: Truth) -> int:
    keys = 0
    for store in ledger.generations.stores(NAME):
        actual: dict[str, Any] = {}
        for worker in ledger.generations.workers(NAME):
            with open_shard(worker.location) as shard:
                for row in shard.scan(store.group_id, snapshot.batch, limit=sys.maxsize):
                    actual[row.key] = json.loads(row.value or "")[store.store_column]
        if store.name == "letters":
            actual = {
                key: value | {"valueList": sorted(value["valueList"])}
                for key, value in actual.items()
            }
        expected = truth.stores[store.name]
        assert actual == expected, (
            f"{store.name} as of {snapshot.id}: {difference(actual, expected)}"
        )
        keys += len(actual)
    return keys


def _output(world: World, topic: str) -> Iterator[tuple[str | None, Any]]:
    for message in read_topic(world.config, topic):
        key = message.key()
        yield None if key is None else key.decode(), json.loads(message.value() or b"null")


def _outputs(world: World, truth: Truth) -> int:
    """Compare the joins whose results depend on the order of records, in the order of each key's results."""
    number = 0
    for topic, expected in truth.outputs.items():
        actual: dict[str | None, list[Any]] = defaultdict(list)
        for key, value in _output(world, topic):
            actual[key].append(value)
        for by_key in (actual, expected):
            by_key[None].sort(key=str)  # records without a key are in all partitions
        assert actual == expected, f"{topic}: {difference(actual, expected)}"
        number += sum(map(len, actual.values()))
    return number


def _clean(world: World, truth: Truth) -> int:
    """Compare the topic of a table with its store: the last record of each key has the store's value."""
    last: dict[str | None, str | None] = {}
    for message in read_topic(world.config, "words_clean"):
        value = message.value()
        last[(message.key() or b"").decode()] = None if value is None else value.decode()
    values = {key: value for key, value in last.items() if value is not None}
    assert values == truth.stores["words_clean"], difference(values, truth.stores["words_clean"])
    return len(last)


def _near(world: World, records: list[TopicRecord]) -> int:
    """Compare the joins of two streams with all pairs of a key whose times are near, whatever the batches are."""
    good = [record for record in records if not record.reason and record.value is not None]
    left = [record for record in good if record.topic == "alphabet"]
    right = [record for record in good if record.topic == "alphabet_descriptions"]
    pairs = Counter(_pairs([record for record in left if record.key is not None], right))
    paired = {side: {pair[side] for pair in pairs} for side in (1, 2)}
    last = max(record.time for record in good)
    number = 0
    for how, sides in (("inner", ()), ("left", (1,)), ("outer", (1, 2))):
        results: Counter[tuple[str | None, str | None, str | None]] = Counter()
        for key, value in _output(world, f"words_near_description_{how}"):
            results[key, value["left"], value["right"]] += 1
        number += results.total()
        matched = Counter({pair: n for pair, n in results.items() if None not in pair[1:]})
        assert matched == pairs, f"near, {how}: {difference(matched, pairs)}"
        unmatched = {pair: n for pair, n in results.items() if None in pair[1:]}
        expected = {_unmatched(record, side): 1 for side in sides for record in (left, right)[side - 1]
                    if record.text not in paired[side]}  # fmt: skip
        assert set(unmatched.values()) <= {1}, f"near, {how}: sent unmatched twice: {unmatched}"
        # The last records may still get a match, and a record may get a match after it was sent
        # unmatched.
        waiting = {_unmatched(record, side) for side in sides for record in (left, right)[side - 1]
                   if record.time > last - 4 * NEAR_MS}  # fmt: skip
        missing = expected.keys() - unmatched.keys() - waiting
        assert not missing, (
            f"near, {how}: {len(missing)} records are missing, such as {sorted(missing, key=str)[:3]}"
        )
        possible = {
            _unmatched(record, side) for side in sides for record in (left, right)[side - 1]
        }
        unknown = unmatched.keys() - possible
        assert not unknown, f"near, {how}: {sorted(unknown, key=str)[:3]} belong to no record"
    return number


def _unmatched(record: TopicRecord, side: int) -> tuple[str | None, str | None, str | None]:
    return (record.key, record.text, None) if side == 1 else (record.key, None, record.text)


def _pairs(
    left: list[TopicRecord], right: list[TopicRecord]
) -> Iterator[tuple[str | None, str | None, str | None]]:
    by_key: dict[str | None, list[TopicRecord]] = defaultdict(list)
    for record in sorted(right, key=lambda record: record.time):
        by_key[record.key].append(record)
    for record in left:
        candidates = by_key[record.key]
        first = bisect_left(candidates, record.time - NEAR_MS, key=lambda candidate: candidate.time)
        end = bisect_right(candidates, record.time + NEAR_MS, key=lambda candidate: candidate.time)
        for match in candidates[first:end]:
            yield record.key, record.text, match.text


def _dead_letters(world: World, records: list[TopicRecord]) -> int:
    expected: Mapping[tuple[str, int, int], str] = {
        (record.topic, record.partition, record.offset): record.reason
        for record in records
        if record.reason
    }
    reasons = []
    for dead_letter in read_topic(world.config, "words_dead_letters"):
        headers = text_headers(dead_letter)
        position = (
            headers["sluice.topic"],
            int(headers["sluice.partition"]),
            int(headers["sluice.offset"]),
        )
        reasons.append((position, headers["sluice.reason"]))
    assert len(reasons) == len(dict(reasons)), "a record has two dead letters"
    assert dict(reasons) == dict(expected), difference(dict(reasons), dict(expected))
    return len(reasons)
