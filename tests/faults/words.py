"""The words pipeline: its input, and what one undisturbed run would have given, worked out without the product.

Every record has a time of its own, later than that of the record sent before it, so that only one order is right: batch
by batch, and by time in each. What is compared: every store key by key; each join's output record by record.
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

from sluice.remote.opening import open_shard
from sluice.state.ledger.ledger import Ledger
from sluice.state.model import JobRef, Snapshot
from sluice.topics import produce, read_topic, text_headers
from tests.faults.found import Found, batches, difference, gapless, verify_shards
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
    """The topics that records come by, and how many partitions each has."""
    return TOPICS


def feed(world: World, count: int, sent: int) -> None:
    """Bring more records, later than the `sent` ones before."""
    world.kafka.create_topics(TOPICS)
    by_topic: dict[str, list[tuple[str | None, bytes | None, int]]] = defaultdict(list)
    there: set[str | None] = set()
    for number in range(sent + count):
        chance = Random(number)
        topic, key, value = _record(chance, number, there)
        if number >= sent:
            by_topic[topic].append((key, value, START_MS + number * MS_APART + chance.randrange(MS_APART)))
    for topic, records in by_topic.items():
        produce(world.config, topic, records)


def _record(chance: Random, number: int, there: set[str | None]) -> Record:
    """The next record; `there`: the letters that have a description, of which now and then one is deleted."""
    kind, letter, luck = chance.random(), chance.choice(LETTERS), chance.random()
    if kind < 0.25:
        text = chance.choice((f"word{'s' * chance.randrange(9)}", f"{number}", "no", f"two {number}"))
        return "words", f"key {chance.randrange(60)}", None if luck < 0.1 else text.encode()
    if kind < 0.45:
        if luck < 0.05 and letter in there:
            there.remove(letter)
            return "alphabet_descriptions", letter, None
        there.add(letter)
        return "alphabet_descriptions", letter, f"{letter}, number {number}".encode()
    word = f"{letter}{'x' * chance.randrange(5)}{number}".encode()
    if luck < 0.02:
        return "alphabet", letter, chance.choice((None, _NO_TEXT))
    return "alphabet", None if luck < 0.03 else letter, word


@dataclass(frozen=True)
class Seen:
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
        """Why it is set aside; empty if it is not."""
        if self.value is None:
            return "null_value" if self.topic == "alphabet" else ""
        return "not_utf8" if self.value == _NO_TEXT else ""


def read(world: World) -> list[Seen]:
    """All records of the three topics."""
    return [_seen(topic, message) for topic in TOPICS for message in read_topic(world.config, topic)]


def _seen(topic: str, message: Message) -> Seen:
    key = message.key()
    place = message.partition() or 0, message.offset() or 0
    return Seen(topic, *place, None if key is None else key.decode(), message.value(), message.timestamp()[1])


@dataclass
class Truth:
    """The pipeline in plain Python, record by record."""

    stores: dict[str, dict[str, Any]] = field(default_factory=lambda: defaultdict(dict))
    outputs: dict[str, dict[str | None, list[Any]]] = field(
        default_factory=lambda: defaultdict(lambda: defaultdict(list))
    )

    def add(self, record: Seen) -> None:
        if record.reason:
            return
        if record.topic == "words":
            self._word(record)
        elif record.topic == "alphabet":
            self._letter(record.key, record.text or "")
        else:
            self._description(record.key or "", record.text)

    def _word(self, record: Seen) -> None:
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
            letter = stores["letters"].setdefault(key, {"key": key, "valueList": [], "runningCount": 0})
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


def whole(ledger: Ledger, world: World, cut: Snapshot) -> None:
    """AssertionError if a snapshot's stores are not what the records before its positions give."""
    truth = Truth()
    for record in _in_order(read(world), [cut]):
        truth.add(record)
    _stores(ledger, cut, truth)


def compare(world: World, earlier: Sequence[Snapshot] = ()) -> Found:
    """AssertionError unless state, output topics, dead letters and audits are what the topics give."""
    records = read(world)
    keys = audits = 0
    with world.ledger() as ledger:
        for job in world.jobs:
            cut = ledger.snapshots.latest(NAME, job)
            assert cut is not None
            before = [one for one in earlier if one.job == job]
            cuts = batches(before, ledger.snapshots.recent(NAME, job, limit=sys.maxsize)[::-1])
            truth = Truth()
            for record in _in_order(records, cuts):
                truth.add(record)
            keys += _stores(ledger, cut, truth)
            verify_shards(ledger, cut)
            found = ledger.audits.all(JobRef(NAME, job, cut.generation))
            count = gapless(found, TOPICS)
            assert count == len(records), f"{job} has read {count} of {len(records)} records"
            audits += len(found)
    # The last job's batches are those that the joins saw.
    joined = _outputs(world, truth) + _clean(world, truth) + _near(world, records)
    return Found(len(records), _letters(world, records), 0, keys, joined, audits)


def _in_order(records: Iterable[Seen], cuts: Sequence[Snapshot]) -> Iterator[Seen]:
    ends = [
        {(topic, int(p)): end for topic, places in cut.positions.items() for p, end in places.items()} for cut in cuts
    ]
    by_cut: list[list[Seen]] = [[] for _ in cuts]
    for record in records:
        place = record.topic, record.partition
        number = next((n for n, reached in enumerate(ends) if record.offset < reached.get(place, 0)), None)
        if number is not None:
            by_cut[number].append(record)
    for batch in by_cut:
        yield from sorted(batch, key=lambda one: one.time)


def _stores(ledger: Ledger, cut: Snapshot, truth: Truth) -> int:
    keys = 0
    for store in (one for one in ledger.jobs.stores(NAME) if one.job == cut.job):
        found: dict[str, Any] = {}
        for worker in ledger.jobs.workers(NAME, cut.job):
            with open_shard(worker.location) as shard:
                for group_id in shard.scan(store.group_id, cut.batch, limit=sys.maxsize):
                    found[group_id.key] = json.loads(group_id.value or "")[store.store_column]
        if store.name == "letters":
            found = {key: value | {"valueList": sorted(value["valueList"])} for key, value in found.items()}
        expected = truth.stores[store.name]
        assert found == expected, f"{store.name} as of {cut.id}: {difference(found, expected)}"
        keys += len(found)
    return keys


def _output(world: World, topic: str) -> Iterator[tuple[str | None, Any]]:
    for message in read_topic(world.config, topic):
        key = message.key()
        yield None if key is None else key.decode(), json.loads(message.value() or b"null")


def _outputs(world: World, truth: Truth) -> int:
    """The joins whose results depend on the order of records: each key's, one after the other."""
    number = 0
    for topic, expected in truth.outputs.items():
        found: dict[str | None, list[Any]] = defaultdict(list)
        for key, value in _output(world, topic):
            found[key].append(value)
        for by_key in (found, expected):
            by_key[None].sort(key=str)  # over all partitions
        assert found == expected, f"{topic}: {difference(found, expected)}"
        number += sum(map(len, found.values()))
    return number


def _clean(world: World, truth: Truth) -> int:
    """The table that goes to a topic: the last record of each key is what the store holds."""
    last: dict[str | None, str | None] = {}
    for message in read_topic(world.config, "words_clean"):
        value = message.value()
        last[(message.key() or b"").decode()] = None if value is None else value.decode()
    found = {key: value for key, value in last.items() if value is not None}
    assert found == truth.stores["words_clean"], difference(found, truth.stores["words_clean"])
    return len(last)


def _near(world: World, records: list[Seen]) -> int:
    """The joins of two streams: all pairs of a key that are near each other, however they were put into batches."""
    good = [record for record in records if not record.reason and record.value is not None]
    left = [record for record in good if record.topic == "alphabet"]
    right = [record for record in good if record.topic == "alphabet_descriptions"]
    pairs = Counter(_pairs([one for one in left if one.key is not None], right))
    paired = {side: {pair[side] for pair in pairs} for side in (1, 2)}
    last = max(record.time for record in good)
    number = 0
    for how, sides in (("inner", ()), ("left", (1,)), ("outer", (1, 2))):
        found: Counter[tuple[str | None, str | None, str | None]] = Counter()
        for key, value in _output(world, f"words_near_description_{how}"):
            found[key, value["left"], value["right"]] += 1
        number += found.total()
        both = Counter({pair: n for pair, n in found.items() if None not in pair[1:]})
        assert both == pairs, f"near, {how}: {difference(both, pairs)}"
        alone = {pair: n for pair, n in found.items() if None in pair[1:]}
        expected = {_alone(one, side): 1 for side in sides for one in (left, right)[side - 1]
                    if one.text not in paired[side]}  # fmt: skip
        assert set(alone.values()) <= {1}, f"near, {how}, twice alone: {alone}"
        # The last ones may still find a match; one that had waited long may have found it after it was sent.
        waiting = {_alone(one, side) for side in sides for one in (left, right)[side - 1]
                   if one.time > last - 4 * NEAR_MS}  # fmt: skip
        missing = expected.keys() - alone.keys() - waiting
        assert not missing, f"near, {how}: {len(missing)} records are missing, such as {sorted(missing, key=str)[:3]}"
        known = {_alone(one, side) for side in sides for one in (left, right)[side - 1]}
        assert alone.keys() <= known, f"near, {how}: {sorted(alone.keys() - known, key=str)[:3]} came from nowhere"
    return number


def _alone(record: Seen, side: int) -> tuple[str | None, str | None, str | None]:
    return (record.key, record.text, None) if side == 1 else (record.key, None, record.text)


def _pairs(left: list[Seen], right: list[Seen]) -> Iterator[tuple[str | None, str | None, str | None]]:
    by_key: dict[str | None, list[Seen]] = defaultdict(list)
    for record in sorted(right, key=lambda one: one.time):
        by_key[record.key].append(record)
    for one in left:
        mine = by_key[one.key]
        first = bisect_left(mine, one.time - NEAR_MS, key=lambda record: record.time)
        end = bisect_right(mine, one.time + NEAR_MS, key=lambda record: record.time)
        for other in mine[first:end]:
            yield one.key, one.text, other.text


def _letters(world: World, records: list[Seen]) -> int:
    expected: Mapping[tuple[str, int, int], str] = {
        (one.topic, one.partition, one.offset): one.reason for one in records if one.reason
    }
    found = []
    for letter in read_topic(world.config, "words_dead_letters"):
        headers = text_headers(letter)
        place = headers["sluice.topic"], int(headers["sluice.partition"]), int(headers["sluice.offset"])
        found.append((place, headers["sluice.reason"]))
    assert len(found) == len(dict(found)), "a dead letter twice"
    assert dict(found) == dict(expected), difference(dict(found), dict(expected))
    return len(found)
