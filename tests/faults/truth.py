"""What one undisturbed run would have given, worked out from the topic without the product, beside what there is."""

from __future__ import annotations

import json
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

from confluent_kafka import Message

from sluice.demo.answers import letter_headers
from sluice.samples.topics import read_topic
from sluice.samples.totals import TYPES, Totals, read
from sluice.state.audits import Audit
from sluice.state.ledger import Ledger
from sluice.state.model import Cut
from sluice.state.shard import Checksums, Shard
from tests.faults.world import JOB, NAME, World

NOW_MS = int(time.time() * 1000)
"""Samples from the future are years ahead of any clock here."""


@dataclass(frozen=True)
class Found:
    """What was compared, for the line that tells of it."""

    orders: int
    letters: int
    late: int
    keys: int
    records: int
    cuts: int

    def __str__(self) -> str:
        return (
            f"{self.orders:,} records, {self.keys:,} keys and windows and {self.records:,} output records equal, "
            f"{self.letters:,} dead letters, {self.late:,} late, {self.cuts} audits balance"
        )


def compare(world: World) -> Found:
    """AssertionError unless state, output topics, dead letters and audits are what the topic gives."""
    messages = list(read_topic(world.config, "orders"))
    totals = Totals()
    for message in messages:
        totals.add(message.value(), message.partition() or 0, NOW_MS)
    with world.ledger() as ledger:
        cut = ledger.latest_cut(NAME, JOB)
        assert cut is not None
        keys = _stores(ledger, cut, totals)
        audits = ledger.audits.all(NAME, JOB, cut.generation)
        cuts = ledger.cuts(NAME, JOB, limit=sys.maxsize)[::-1]
    _audits(audits, messages, totals)
    records = _plain_outputs(world, messages) + _revenue_outputs(world, messages, cuts)
    letters = _letters(world, messages)
    return Found(totals.read, letters, sum(totals.late.values()), keys, records, len(audits))


def _stores(ledger: Ledger, cut: Cut, totals: Totals) -> int:
    keys = 0
    for name, expected in totals.stores().items():
        found = contents(ledger, name, cut)
        assert found == expected, f"{name}: {_difference(found, expected)}"
        keys += len(expected)
    audit = ledger.audits.newest(NAME, JOB, cut.generation)
    assert audit is not None
    for worker in ledger.workers(NAME, JOB):
        published = Checksums(*(sums[str(worker.number)] for sums in (audit.checksums, audit.states)))
        with Shard.open(worker.location) as shard:
            shard.verify(cut.batch, published)
            shard.verify_states(cut.batch, published)
    return keys


def contents(ledger: Ledger, name: str, cut: Cut) -> dict[Any, Any]:
    """A store as of a cut, in the shape of `Totals.stores`."""
    store = next(one for one in ledger.stores(NAME) if one.name == name)
    values: dict[Any, Any] = {}
    for worker in ledger.workers(NAME, JOB):
        with Shard.open(worker.location) as shard:
            for cell in shard.scan(store.cell, cut.batch, limit=sys.maxsize):
                value = json.loads(cell.value or "", parse_float=Decimal)[store.slot]
                key = cell.key if store.window_ms is None else (cell.key, cell.window_start)
                values[key] = (
                    value if "count" in name else (value["runningOrderCount"], Decimal(value["runningRevenue"]))
                )
    return values


def _audits(audits: list[Audit], messages: list[Message], totals: Totals) -> None:
    ends: dict[int, int] = {}
    sums: Counter[str] = Counter()
    for audit in audits:
        assert not audit.wrong
        for source in audit.sources:
            if source.topic == "orders":
                assert source.start == ends.get(source.partition, 0), f"{source} does not follow on {ends}"
                ends[source.partition] = source.end
                sums.update(
                    {"read": source.read, "applied": source.applied, "letters": sum(source.dead_letters.values())}
                )
    good = sum(count for count, _ in totals.running.values())
    bad = sum(totals.dead_letters.values())
    assert (sums["read"], sums["applied"], sums["letters"]) == (len(messages), good, bad), sums


def _plain_outputs(world: World, messages: list[Message]) -> int:
    expected: dict[str, dict[str, list[Decimal]]] = {kind: defaultdict(list) for kind in TYPES}
    for _, order in _orders(messages):
        expected[order.kind][order.location].append(order.amount)
    number = 0
    for kind in TYPES:
        found: dict[str, list[Decimal]] = defaultdict(list)
        for message in read_topic(world.config, f"{kind.lower()}_orders"):
            value = json.loads(message.value() or b"", parse_float=Decimal)
            assert value["locationId"] == (message.key() or b"").decode()
            found[value["locationId"]].append(value["finalAmount"])
        assert found == expected[kind], f"{kind}: {_difference(found, expected[kind])}"
        number += sum(map(len, found.values()))
    return number


def _revenue_outputs(world: World, messages: list[Message], cuts: list[Cut]) -> int:
    """Each cut says, of every key that changed in it, the totals as of its end."""
    places = [{int(p): end for p, end in cut.positions["orders"].items()} for cut in cuts]
    expected = {kind: _changes(messages, places, kind) for kind in TYPES}
    number = 0
    for kind in TYPES:
        found: dict[str, list[tuple[int, Decimal]]] = defaultdict(list)
        for message in read_topic(world.config, f"{kind.lower()}_orders_revenue"):
            value = json.loads(message.value() or b"", parse_float=Decimal)
            total, key = value["totalRevenue"], (message.key() or b"").decode()
            assert value["store"]["locationId"] == total["locationId"] == key
            found[key].append((total["runnuingOrderCount"], Decimal(total["runningRevenue"])))
        assert found == expected[kind], f"{kind} revenue: {_difference(found, expected[kind])}"
        number += sum(map(len, found.values()))
    return number


def _changes(messages: list[Message], places: list[dict[int, int]], kind: str) -> dict[str, list[tuple[int, Decimal]]]:
    by_cut: list[list[Any]] = [[] for _ in places]
    for message, order in _orders(messages):
        if order.kind == kind:
            partition, offset = message.partition() or 0, message.offset() or 0
            by_cut[next(i for i, ends in enumerate(places) if offset < ends.get(partition, 0))].append(order)
    totals: dict[str, tuple[int, Decimal]] = {}
    changes: dict[str, list[tuple[int, Decimal]]] = defaultdict(list)
    for orders in by_cut:
        for order in orders:
            count, amount = totals.get(order.location, (0, Decimal(0)))
            totals[order.location] = (count + 1, amount + order.amount)
        for key in {order.location for order in orders}:
            changes[key].append(totals[key])
    return changes


def _letters(world: World, messages: list[Message]) -> int:
    expected: dict[tuple[int, int], str] = {}
    for message in messages:
        try:
            read(message.value(), NOW_MS)
        except Exception as bad:
            expected[message.partition() or 0, message.offset() or 0] = str(bad)
    found = []
    for letter in read_topic(world.config, "orders_dead_letters"):
        headers = letter_headers(letter)
        if headers["sluice.topic"] == "orders":
            place = int(headers["sluice.partition"]), int(headers["sluice.offset"])
            found.append((place, headers["sluice.reason"]))
    assert len(found) == len(dict(found)), "a dead letter twice"
    assert dict(found) == expected, _difference(dict(found), expected)
    return len(found)


def _orders(messages: list[Message]) -> Iterator[tuple[Message, Any]]:
    for message in messages:
        try:
            yield message, read(message.value(), NOW_MS)
        except Exception:
            continue


def _difference(found: dict[Any, Any], expected: dict[Any, Any]) -> str:
    wrong = [key for key in found.keys() | expected.keys() if found.get(key) != expected.get(key)]
    shown = [f"{key}: {str(found.get(key))[:200]}, not {str(expected.get(key))[:200]}" for key in wrong[:3]]
    return f"{len(wrong)} differ: {'; '.join(shown)}"


class Watching:
    """A reader who asks again and again while faults happen: each answer must be one whole cut."""

    def __init__(self, world: World) -> None:
        self._world = world
        self.asked = self.cuts = 0
        self._last = -1

    def look(self) -> None:
        """AssertionError if the counts of the newest cut are not those of all batches up to it."""
        with self._world.ledger() as ledger:
            cut = ledger.latest_cut(NAME, JOB)
            if cut is None:
                return
            audits = ledger.audits.all(NAME, JOB, cut.generation)
            applied = sum(s.applied for a in audits if a.batch <= cut.batch for s in a.sources if s.topic == "orders")
            counted = sum(sum(contents(ledger, f"{kind.lower()}_orders_count", cut).values()) for kind in TYPES)
        assert counted == applied, f"cut {cut.id} shows {counted} orders, and has {applied}"
        assert cut.batch >= self._last, "a cut went back"
        self.asked += 1
        self.cuts += cut.batch != self._last
        self._last = cut.batch


Scenario = Callable[[], str]
