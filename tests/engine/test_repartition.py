"""A run continues after its state was spread over another number of workers."""

from __future__ import annotations

import random
import time
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from sluice import Context, Pipeline, Record, Timer, session, tumbling, within
from sluice.engine.job.repartition import repartition
from sluice.errors import EngineError
from sluice.plan import plan
from sluice.state.model import owner
from tests.engine.conftest import Running, Start
from tests.engine.shop import Amount, Build, Names, Sale, Shop, address, sale, sales_of, shop

KEYS = [f"shop {number}" for number in range(20)]


def in_order(names: Names) -> Pipeline:
    """A count and the last amount, by an ordered operator, an output of its changes, and a join with a global table."""
    pipeline = names.pipeline()
    sales = sales_of(pipeline, names)
    last = sales.group_by("shop").aggregate(store="total", n="count(*)", last="last(amount)")
    last.to_stream().to(names("copies"))
    shops = pipeline.global_table(names("shops"), value=Shop, key="shop")
    sales.join(shops).select(city="right.city").to(names("with_city"))
    return pipeline


@pytest.mark.parametrize("build", [in_order, shop])
def test_a_run_continues_with_the_same_values_on_more_workers(build: Build, start: Start) -> None:
    running = start(build)
    running.send("shops", *(address(key, f"city of {key}") for key in KEYS))
    running.send("sales", *(sale(key) for key in KEYS))
    running.run()
    before = running.store("total")
    pipeline = build(running.names)
    pipeline.workers = 5
    wider = replace(running, pipeline=pipeline)
    with pytest.raises(EngineError, match="2 workers became 5"):
        wider.run()
    repartition(plan(pipeline).job, running.settings)
    assert wider.store("total") == before
    wider.send("sales", *(sale(key) for key in (*KEYS, "new")))
    assert wider.run() == len(KEYS) + 1
    assert {key: value["n"] for key, value in wider.store("total").items()} == dict.fromkeys(KEYS, 2) | {"new": 1}
    for worker in range(5):
        assert {owner(key, 5) for key in wider.owned("total", worker)} <= {worker}
    assert len(wider.output("copies")) == 2 * len(KEYS) + 1
    cities = [value["city"] for _, value in wider.output("with_city")]
    assert sorted(cities) == sorted(2 * [f"city of {key}" for key in KEYS])


class Turns:
    """Numbers the records of a key, and sends a further record when a timer fires."""

    def init(self, context: Context) -> None:
        self.context = context

    def process(self, record: Record) -> None:
        turns = self.context.store("turns")
        number = turns.get("number", 0) + 1
        turns.put("number", number)
        self.context.schedule("later", record.time + 20_000)
        self.context.forward(record.key, {"n": number})

    def on_timer(self, timer: Timer) -> None:
        self.context.forward(timer.key, {"n": -1})


def nothing() -> dict[str, int]:
    return {"n": 0}


def add(total: dict[str, int], sale: Sale) -> dict[str, int]:
    return {"n": (total["n"] * 3 + sale.quantity) % 1_000}


def every_operator(names: Names) -> Pipeline:
    """Windows with retention, suppress, deduplicate, a processor with timers, and joins of all divisible kinds."""
    pipeline = names.pipeline()
    sales = sales_of(pipeline, names)
    shops = pipeline.global_table(names("shops"), value=Shop, key="shop")
    table = pipeline.table(names("table"), value=Shop)
    groups = sales.group_by("shop")
    groups.aggregate(nothing, add, store="python", returns=dict[str, int]).to_stream().to(names("in_python"))
    sessions = groups.windowed_by(session("6 seconds", grace="3 seconds")).count(store="sessions")
    sessions.suppress_until_window_closes().to_stream().to(names("closed"))
    windows = groups.windowed_by(tumbling("10 seconds", grace="5 seconds"), retention="60 seconds")
    windows.aggregate(store="windows", quantities="collect_list(quantity)")
    groups.count(store="n").suppress_until_time_limit("5 seconds").to_stream().to(names("limited"))
    sales.deduplicate("quantity", within="15 s").select("shop", "quantity").to(names("once"))
    sales.process(Turns, stores={"turns": int}, returns=Amount, queryable=False).output.to(names("turns"))
    sales.join(shops, how="left").select(city="right.city").to(names("global"))
    sales.select("shop", "quantity").join(table, how="left").select(city="right.city").to(names("lookups"))
    large, near = sales.filter("quantity > 3"), within(before="4 seconds", after="4 seconds", grace="0 seconds")
    sales.join(large, near).select(left="left.quantity", right="right.quantity").to(names("pairs"))
    table.group_by("city").count(store="per_city")
    latest = sales.to_table(store="latest").join(table, on="shop", how="left")
    latest.to_stream().select(quantity="left.quantity", city="right.city").to(names("foreign"))
    return pipeline


def rounds(chance: random.Random) -> Iterator[list[tuple[str, bytes, bytes | None]]]:
    """Topic, key and value of the records of each run. Some sales are late."""
    clock = 0
    for _ in range(5):
        records: list[tuple[str, bytes, bytes | None]] = []
        for _ in range(60):
            key = chance.choice(KEYS)
            clock += chance.choice((0, 1, 1, 2))
            at = max(0, clock - chance.choice((0, 0, 0, 3, 9, 30)))
            value = sale(key, at=f"08:{at // 60:02d}:{at % 60:02d}", quantity=chance.randint(1, 6))
            records.append(("sales", key.encode(), value))
            if chance.random() < 0.2:
                city = chance.choice(("X", "Y", None))
                topic, key = chance.choice(("shops", "table")), chance.choice(KEYS)
                records.append((topic, key.encode(), None if city is None else address(key, city)))
        yield records


def results(running: Running) -> tuple[dict[str, Any], dict[str, dict[Any, list[Any]]]]:
    """The stores, and the output records of each key in order."""
    everything = running.everything()
    outputs: dict[str, dict[Any, list[Any]]] = {}
    for topic, records in everything["outputs"].items():
        by_key = outputs.setdefault(topic.rpartition(".")[2], defaultdict(list))
        for key, value in records:
            by_key[key].append(value)
    return {name.rpartition(".")[2]: store for name, store in everything["stores"].items()}, outputs


@pytest.mark.heavy
@pytest.mark.timeout(400)
def test_every_operator_gives_the_same_results_on_changing_numbers_of_workers(start: Start) -> None:
    plain, moved = (start(every_operator, sales=2) for _ in range(2))
    base = time.time_ns() // 1_000_000 - 1_000_000
    for number, records in enumerate(rounds(random.Random(7))):
        for running in (plain, moved):
            for place, (topic, key, value) in enumerate(records):
                partition = key[-1] % 2 if topic == "sales" else 0
                at = base + (100 * number + place) * 10
                running.producer.produce(running.names(topic), value, key, partition, timestamp=at)
            assert running.producer.flush(20) == 0
        plain.run()
        workers = (1, 3, 2, 1, 3)[number]
        moved = replace(moved, pipeline=every_operator(moved.names))
        moved.pipeline.workers = workers
        if number:
            assert repartition(plan(moved.pipeline).job, moved.settings).workers == workers
        moved.run()
    assert results(moved) == results(plain)
    assert all(results(plain)[1].values())
