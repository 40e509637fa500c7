"""The orders pipeline: its input, and the expected results of one undisturbed run, computed without the engine."""

from __future__ import annotations

import json
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from decimal import Decimal
from types import MappingProxyType
from typing import Any

from confluent_kafka import Message

from sluice.examples.orders.expected_totals import TYPES, Totals, read
from sluice.examples.orders.records import START_MS
from sluice.kafka.topics import read_topic, text_headers
from sluice.state.ledger.audits import Audit
from sluice.state.ledger.ledger import Ledger
from sluice.state.model import GenerationRef, Snapshot
from sluice.state.remote.opening import open_shard
from tests.faults.comparison import Comparison, batches, difference, records_read, verify_shards
from tests.faults.world import World

NAME = "orders"
_MS_APART = 60

NOTHING: Mapping[int, int] = MappingProxyType({})

NOW_MS = int(time.time() * 1000)
"""Sample orders with a date in the future are years ahead of it."""


def feed(world: World, count: int, sent: int) -> None:
    """Send `count` orders with later event times than the `sent` earlier ones."""
    start_ms = START_MS + sent * _MS_APART
    world.produce(count, seed=start_ms // 1000, start_ms=start_ms)


def topics() -> dict[str, int]:
    """The input topics and their numbers of partitions."""
    return {"orders": 4}


def check_snapshot(ledger: Ledger, _: World, snapshot: Snapshot) -> None:
    """Raise AssertionError unless the counts of a snapshot equal those in the audits of all batches up to it."""
    audits = ledger.audits.all(GenerationRef(NAME, snapshot.generation))
    applied = sum(
        s.applied
        for a in audits
        if a.batch <= snapshot.batch
        for s in a.sources
        if s.topic == "orders"
    )
    counted = sum(
        sum(contents(ledger, f"{kind.lower()}_orders_count", snapshot).values()) for kind in TYPES
    )
    assert counted == applied, (
        f"snapshot {snapshot.id} counts {counted} orders, and its audits {applied}"
    )


def stores_equal(
    ledger: Ledger, world: World, snapshot: Snapshot, begin: Mapping[int, int] = NOTHING
) -> int:
    """The number of keys in a snapshot. Raises AssertionError unless their values equal the topic's `totals`."""
    return _stores(ledger, snapshot, totals(world, begin))


def totals(world: World, begin: Mapping[int, int] = NOTHING) -> Totals:
    """The totals of the topic's records, from the offsets in `begin` on."""
    totals = Totals()
    for message in read_topic(world.config, "orders"):
        partition = message.partition() or 0
        if (message.offset() or 0) >= begin.get(partition, 0):
            totals.add(message.value(), partition, NOW_MS)
    return totals


def compare(world: World, earlier: Sequence[Snapshot] = ()) -> Comparison:
    """Raise AssertionError unless state, output topics, dead letters and audits are right for the topic's records."""
    messages = list(read_topic(world.config, "orders"))
    totals = Totals()
    for message in messages:
        totals.add(message.value(), message.partition() or 0, NOW_MS)
    with world.ledger() as ledger:
        snapshot = ledger.snapshots.latest(NAME)
        assert snapshot is not None
        keys = _stores(ledger, snapshot, totals)
        audits = ledger.audits.all(GenerationRef(NAME, snapshot.generation))
        snapshots = batches(earlier, ledger.snapshots.recent(NAME, limit=sys.maxsize)[::-1])
    _audits(audits, messages, totals)
    records = _plain_outputs(world, messages) + _revenue_outputs(world, messages, snapshots)
    dead_letters = _dead_letters(world, messages)
    return Comparison(
        totals.read, dead_letters, sum(totals.late.values()), keys, records, len(audits)
    )


def _stores(ledger: Ledger, snapshot: Snapshot, totals: Totals) -> int:
    keys = 0
    for name, expected in totals.stores().items():
        actual = contents(ledger, name, snapshot)
        assert actual == expected, f"{name}: {difference(actual, expected)}"
        keys += len(expected)
    verify_shards(ledger, snapshot)
    return keys


def contents(ledger: Ledger, name: str, snapshot: Snapshot) -> dict[Any, Any]:
    """The values of a store in a snapshot, in the form of `Totals.stores`."""
    info = next(store for store in ledger.generations.stores(NAME) if store.name == name)
    values: dict[Any, Any] = {}
    for worker in ledger.generations.workers(NAME):
        with open_shard(worker.location) as shard:
            for row in shard.scan(info.group_id, snapshot.batch, limit=sys.maxsize):
                value = json.loads(row.value or "", parse_float=Decimal)[info.store_column]
                key = row.key if info.window_ms is None else (row.key, row.window_start)
                values[key] = (
                    value
                    if "count" in name
                    else (value["runningOrderCount"], Decimal(value["runningRevenue"]))
                )
    return values


def _audits(audits: list[Audit], messages: list[Message], totals: Totals) -> None:
    read = records_read(audits, topics())
    sums: Counter[str] = Counter()
    for source in (
        source for audit in audits for source in audit.sources if source.topic == "orders"
    ):
        sums.update({"applied": source.applied, "dead letters": sum(source.dead_letters.values())})
    good = sum(count for count, _ in totals.running.values())
    bad = sum(totals.dead_letters.values())
    assert (read, sums["applied"], sums["dead letters"]) == (len(messages), good, bad), (read, sums)


def _plain_outputs(world: World, messages: list[Message]) -> int:
    expected: dict[str, dict[str, list[Decimal]]] = {kind: defaultdict(list) for kind in TYPES}
    for _, order in _orders(messages):
        expected[order.kind][order.location].append(order.amount)
    number = 0
    for kind in TYPES:
        actual: dict[str, list[Decimal]] = defaultdict(list)
        for message in read_topic(world.config, f"{kind.lower()}_orders"):
            value = json.loads(message.value() or b"", parse_float=Decimal)
            assert value["locationId"] == (message.key() or b"").decode()
            actual[value["locationId"]].append(value["finalAmount"])
        assert actual == expected[kind], f"{kind}: {difference(actual, expected[kind])}"
        number += sum(map(len, actual.values()))
    return number


def _revenue_outputs(world: World, messages: list[Message], snapshots: list[Snapshot]) -> int:
    """Compare the changes of each snapshot: for every key that changed, the totals at the snapshot's end."""
    positions = [
        {int(p): end for p, end in snapshot.positions["orders"].items()} for snapshot in snapshots
    ]
    expected = {kind: _changes(messages, positions, kind) for kind in TYPES}
    number = 0
    for kind in TYPES:
        actual: dict[str, list[tuple[int, Decimal]]] = defaultdict(list)
        for message in read_topic(world.config, f"{kind.lower()}_orders_revenue"):
            value = json.loads(message.value() or b"", parse_float=Decimal)
            total, key = value["totalRevenue"], (message.key() or b"").decode()
            assert value["store"]["locationId"] == total["locationId"] == key
            actual[key].append((total["runnuingOrderCount"], Decimal(total["runningRevenue"])))
        assert actual == expected[kind], f"{kind} revenue: {difference(actual, expected[kind])}"
        number += sum(map(len, actual.values()))
    return number


def _changes(
    messages: list[Message], positions: list[dict[int, int]], kind: str
) -> dict[str, list[tuple[int, Decimal]]]:
    by_snapshot: list[list[Any]] = [[] for _ in positions]
    for message, order in _orders(messages):
        if order.kind == kind:
            partition, offset = message.partition() or 0, message.offset() or 0
            by_snapshot[
                next(i for i, ends in enumerate(positions) if offset < ends.get(partition, 0))
            ].append(order)
    totals: dict[str, tuple[int, Decimal]] = {}
    changes: dict[str, list[tuple[int, Decimal]]] = defaultdict(list)
    for orders in by_snapshot:
        for order in orders:
            count, amount = totals.get(order.location, (0, Decimal(0)))
            totals[order.location] = (count + 1, amount + order.amount)
        for key in {order.location for order in orders}:
            changes[key].append(totals[key])
    return changes


def _dead_letters(world: World, messages: list[Message]) -> int:
    expected: dict[tuple[int, int], str] = {}
    for message in messages:
        try:
            read(message.value(), NOW_MS)
        except Exception as bad:
            expected[message.partition() or 0, message.offset() or 0] = str(bad)
    reasons = []
    for dead_letter in read_topic(world.config, "orders_dead_letters"):
        headers = text_headers(dead_letter)
        if headers["sluice.topic"] == "orders":
            position = int(headers["sluice.partition"]), int(headers["sluice.offset"])
            reasons.append((position, headers["sluice.reason"]))
    assert len(reasons) == len(dict(reasons)), "a record has two dead letters"
    assert dict(reasons) == expected, difference(dict(reasons), expected)
    return len(reasons)


def _orders(messages: list[Message]) -> Iterator[tuple[Message, Any]]:
    for message in messages:
        try:
            yield message, read(message.value(), NOW_MS)
        except Exception:
            continue
