"""Poison records of every kind among good ones, through every kind of operator: the good ones' results stay the same.

A run of all tests takes two hundred among two thousand. Ten thousand among a hundred thousand are tried with
`POISON_AMONG=100000 make test ARGS=tests/pipelines/test_poison.py`.
"""

from __future__ import annotations

import math
import os
import random
from collections import Counter
from typing import Any

import pytest
from msgspec import Struct

from sluice import Pipeline, Serde, hopping, session, sliding
from sluice.testing import TopologyTestDriver
from tests.pipelines.conftest import Drive

KINDS = ("function", "expression", "reduce", "aggregate", "overflow", "process", "not a number", "encode", "unreadable")
WINDOWS = ("hopping", "sliding", "session")
STORES = ("function", "expression", "reduce", "aggregate", *WINDOWS, "overflow")
TOPICS = ("amounts", "process", "numbers")
GOOD = int(os.environ.get("POISON_AMONG", "2000"))
LARGE = 1.7e308
"""With as much again a sum is larger than any double."""


class Order(Struct):
    """An order as strangers send it: `kind` says which step is to fail for it."""

    amount: float
    kind: str = ""


def refuse(kind: str, order: Order) -> None:
    if order.kind == kind:
        raise ValueError(kind)


def passed(order: Order) -> float:
    refuse("function", order)
    return order.amount


def largest(so_far: Order, order: Order) -> Order:
    refuse("reduce", order)
    return max(so_far, order, key=lambda one: one.amount)


def last_few(key: str, so_far: list[float], order: Order) -> list[float]:
    so_far.append(order.amount)
    del so_far[:-3]
    refuse("aggregate", order)
    return so_far


def joined(key: str, one: list[float], other: list[float]) -> list[float]:
    return (one + other)[-3:]


class Orders:
    """Remembers a key's last amounts, and passes on what they come to."""

    store = "amounts"

    def init(self, context: Any) -> None:
        self.context = context

    def process(self, record: Any) -> None:
        amounts = self.context.store(self.store).get("last", [])
        amounts.append(record.value.amount)
        del amounts[:-3]
        self.context.store(self.store).put("last", amounts)
        self.context.forward(record.key, sum(amounts))
        refuse("process", record.value)
        if record.value.kind == "not a number":
            self.context.forward(record.key, math.nan)


class Others(Orders):
    """The same with another store."""

    store = "others"


def encode(order: dict[str, Any]) -> bytes:
    refuse("encode", Order(**order))
    return str(order["amount"]).encode()


def exchange(name: str) -> Pipeline:
    """Every kind of step fails for the orders of one kind, and does not see those of the others."""
    pipeline = Pipeline(name, workers=2, max_failures=1.0)
    orders = pipeline.stream("orders", value=Order)
    of = {kind: orders.filter(f"kind IN ('', '{kind}')") for kind in KINDS}
    of["encode"].to("amounts", value=Serde(Order, encode=encode))
    of["function"].map_values(passed, returns=float).group_by_key().count(store="function")
    inverse = of["expression"].map_values("1 / IF(kind = 'expression', 0, amount)")
    inverse.group_by_key().aggregate(store="expression", sum="sum(value)")
    of["reduce"].group_by_key().reduce(largest, store="reduce")
    groups = of["aggregate"].group_by_key()
    groups.aggregate(list, last_few, store="aggregate", returns=list[float])
    groups.windowed_by(hopping(500, advance=250)).aggregate(list, last_few, store="hopping", returns=list[float])
    groups.windowed_by(sliding(50)).aggregate(list, last_few, store="sliding", returns=list[float])
    visits = groups.windowed_by(session(20))
    visits.aggregate(list, last_few, merger=joined, store="session", returns=list[float])
    large = orders.filter("kind IN ('', 'overflow', 'first')")
    large.group_by_key().aggregate(store="overflow", sum="sum(amount)", mean="avg(amount)", n="count(*)")
    of["process"].process(Orders, stores={"amounts": list[float]}, returns=float).output.to("process")
    of["not a number"].process(Others, stores={"others": list[float]}, returns=float).output.to("numbers")
    return pipeline


def seen(driver: TopologyTestDriver) -> dict[str, Any]:
    topics = {topic: [(one.key, one.value) for one in driver.output(topic)] for topic in TOPICS}
    return topics | {store: driver.store(store) for store in STORES}


@pytest.mark.timeout(3600)
def test_the_good_records_results_are_those_without_the_poison(drive: Drive) -> None:
    poison = GOOD // 10
    chance = random.Random(12)
    poisoned = dict.fromkeys(chance.sample(range(GOOD), poison))
    kinds: Counter[str] = Counter()
    begun: set[str] = set()
    harmless = 0
    """Orders that `reduce` takes as they are, since they are the first of their key: its function is not called."""
    alone, among = drive(exchange("alone")), drive(exchange("among"))
    for first in range(50):
        for driver in (alone, among):
            driver.pipe("orders", {"amount": LARGE, "kind": "first"}, f"k{first}", timestamp=0)
    for number in range(GOOD):
        key = f"k{chance.randrange(50)}"
        if number in poisoned:
            kind = KINDS[sum(kinds.values()) % len(KINDS)]
            kinds[kind] += 1
            harmless += kind == "reduce" and key not in begun
            value = {"amount": LARGE if kind == "overflow" else 2.0, "kind": kind}
            # A record that a step cannot take has moved stream time all the same: here there is nothing left to move.
            time = max(number - 1, 0)
            among.pipe("orders", b"{" if kind == "unreadable" else value, key, timestamp=time)
        begun.add(key)
        for driver in (alone, among):
            driver.pipe("orders", {"amount": number / 7 + 1}, key, timestamp=number)
        if number == GOOD // 3:
            among.commit()
    assert seen(among) == seen(alone)
    assert alone.dead_letters() == []
    # Of an order that an aggregation cannot take there is a dead letter for each store that it would count in.
    assert len(among.dead_letters()) == poison + len(WINDOWS) * kinds["aggregate"] - harmless
    assert kinds.keys() == set(KINDS)
