"""The orders pipeline: its input, and what one undisturbed run would have given, worked out without the product."""

from __future__ import annotations

import json
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from decimal import Decimal
from typing import Any

from confluent_kafka import Message

from sluice.examples.orders.records import START_MS
from sluice.examples.orders.totals import TYPES, Totals, read
from sluice.remote.opening import open_shard
from sluice.state.ledger.audits import Audit
from sluice.state.ledger.ledger import Ledger
from sluice.state.model import JobRef, Snapshot
from sluice.topics import read_topic, text_headers
from tests.faults.found import Found, batches, difference, gapless, verify_shards
from tests.faults.world import World

NAME, JOB = "orders", "main"
_MS_APART = 60

NOW_MS = int(time.time() * 1000)
"""Samples from the future are years ahead of any clock here."""


def feed(world: World, count: int, sent: int) -> None:
    """Bring more orders, later in event time than the `sent` ones before."""
    start_ms = START_MS + sent * _MS_APART
    world.produce(count, seed=start_ms // 1000, start_ms=start_ms)


def topics() -> dict[str, int]:
    """The topics that records come by, and how many partitions each has."""
    return {"orders": 4}


def whole(ledger: Ledger, _: World, cut: Snapshot) -> None:
    """AssertionError if the counts of a cut are not those of all batches up to it."""
    audits = ledger.audits.all(JobRef(NAME, JOB, cut.generation))
    applied = sum(s.applied for a in audits if a.batch <= cut.batch for s in a.sources if s.topic == "orders")
    counted = sum(sum(contents(ledger, f"{kind.lower()}_orders_count", cut).values()) for kind in TYPES)
    assert counted == applied, f"cut {cut.id} shows {counted} orders, and has {applied}"


def stores_equal(ledger: Ledger, world: World, cut: Snapshot) -> int:
    """How many keys the newest snapshot has, all equal to those of all the topic's orders."""
    totals = Totals()
    for message in read_topic(world.config, "orders"):
        totals.add(message.value(), message.partition() or 0, NOW_MS)
    return _stores(ledger, cut, totals)


def compare(world: World, earlier: Sequence[Snapshot] = ()) -> Found:
    """AssertionError unless state, output topics, dead letters and audits are what the topic gives."""
    messages = list(read_topic(world.config, "orders"))
    totals = Totals()
    for message in messages:
        totals.add(message.value(), message.partition() or 0, NOW_MS)
    with world.ledger() as ledger:
        cut = ledger.snapshots.latest(NAME, JOB)
        assert cut is not None
        keys = _stores(ledger, cut, totals)
        audits = ledger.audits.all(JobRef(NAME, JOB, cut.generation))
        cuts = batches(earlier, ledger.snapshots.recent(NAME, JOB, limit=sys.maxsize)[::-1])
    _audits(audits, messages, totals)
    records = _plain_outputs(world, messages) + _revenue_outputs(world, messages, cuts)
    letters = _letters(world, messages)
    return Found(totals.read, letters, sum(totals.late.values()), keys, records, len(audits))


def _stores(ledger: Ledger, cut: Snapshot, totals: Totals) -> int:
    keys = 0
    for name, expected in totals.stores().items():
        found = contents(ledger, name, cut)
        assert found == expected, f"{name}: {difference(found, expected)}"
        keys += len(expected)
    verify_shards(ledger, cut)
    return keys


def contents(ledger: Ledger, name: str, cut: Snapshot) -> dict[Any, Any]:
    """A store as of a cut, in the shape of `Totals.stores`."""
    store = next(one for one in ledger.jobs.stores(NAME) if one.name == name)
    values: dict[Any, Any] = {}
    for worker in ledger.jobs.workers(NAME, JOB):
        with open_shard(worker.location) as shard:
            for group_id in shard.scan(store.group_id, cut.batch, limit=sys.maxsize):
                value = json.loads(group_id.value or "", parse_float=Decimal)[store.store_column]
                key = group_id.key if store.window_ms is None else (group_id.key, group_id.window_start)
                values[key] = (
                    value if "count" in name else (value["runningOrderCount"], Decimal(value["runningRevenue"]))
                )
    return values


def _audits(audits: list[Audit], messages: list[Message], totals: Totals) -> None:
    read = gapless(audits, topics())
    sums: Counter[str] = Counter()
    for source in (source for audit in audits for source in audit.sources if source.topic == "orders"):
        sums.update({"applied": source.applied, "letters": sum(source.dead_letters.values())})
    good = sum(count for count, _ in totals.running.values())
    bad = sum(totals.dead_letters.values())
    assert (read, sums["applied"], sums["letters"]) == (len(messages), good, bad), (read, sums)


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
        assert found == expected[kind], f"{kind}: {difference(found, expected[kind])}"
        number += sum(map(len, found.values()))
    return number


def _revenue_outputs(world: World, messages: list[Message], cuts: list[Snapshot]) -> int:
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
        assert found == expected[kind], f"{kind} revenue: {difference(found, expected[kind])}"
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
        headers = text_headers(letter)
        if headers["sluice.topic"] == "orders":
            place = int(headers["sluice.partition"]), int(headers["sluice.offset"])
            found.append((place, headers["sluice.reason"]))
    assert len(found) == len(dict(found)), "a dead letter twice"
    assert dict(found) == expected, difference(dict(found), expected)
    return len(found)


def _orders(messages: list[Message]) -> Iterator[tuple[Message, Any]]:
    for message in messages:
        try:
            yield message, read(message.value(), NOW_MS)
        except Exception:
            continue
