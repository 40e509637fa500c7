"""A pipeline with every operator whose state can be divided by key, and records for it."""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from sluice import Context, Pipeline, Record, Timer, session, tumbling, within
from sluice.topology import GlobalTable, Stream, Table
from tests.engine.conftest import Running
from tests.engine.shop import Amount, Names, Sale, Shop, address, sale, sales_of

KEYS = [f"shop {number}" for number in range(20)]


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


@dataclass(frozen=True)
class Inputs:
    """What the parts of the pipeline read."""

    names: Names
    sales: Stream[Sale]
    shops: GlobalTable[Shop]
    table: Table[Shop]


def in_python(given: Inputs) -> None:
    totals = given.sales.group_by("shop").aggregate(
        nothing, add, store="python", returns=dict[str, int]
    )
    totals.to_stream().to(given.names("in_python"))


def closed_sessions(given: Inputs) -> None:
    groups = given.sales.group_by("shop").windowed_by(session("6 seconds", grace="3 seconds"))
    groups.count(store="sessions").suppress_until_window_closes().to_stream().to(
        given.names("closed")
    )


def windows(given: Inputs) -> None:
    groups = given.sales.group_by("shop")
    windows = groups.windowed_by(tumbling("10 seconds", grace="5 seconds"), retention="60 seconds")
    windows.aggregate(store="windows", quantities="collect_list(quantity)")


def limited(given: Inputs) -> None:
    counts = given.sales.group_by("shop").count(store="n")
    counts.suppress_until_time_limit("5 seconds").to_stream().to(given.names("limited"))


def once(given: Inputs) -> None:
    given.sales.deduplicate("quantity", within="15 s").select("shop", "quantity").to(
        given.names("once")
    )


def turns(given: Inputs) -> None:
    processed = given.sales.process(Turns, stores={"turns": int}, returns=Amount, queryable=False)
    processed.output.to(given.names("turns"))


def looked_up(given: Inputs) -> None:
    given.sales.join(given.shops, how="left").select(city="right.city").to(given.names("global"))


def joined_table(given: Inputs) -> None:
    sales = given.sales.select("shop", "quantity")
    sales.join(given.table, how="left").select(city="right.city").to(given.names("lookups"))


def pairs(given: Inputs) -> None:
    large = given.sales.filter("quantity > 3")
    near = within(before="4 seconds", after="4 seconds", grace="0 seconds")
    joined = given.sales.join(large, near).select(left="left.quantity", right="right.quantity")
    joined.to(given.names("pairs"))


def per_city(given: Inputs) -> None:
    given.table.group_by("city").count(store="per_city")


def foreign(given: Inputs) -> None:
    latest = given.sales.to_table(store="latest").join(given.table, on="shop", how="left")
    latest.to_stream().select(quantity="left.quantity", city="right.city").to(
        given.names("foreign")
    )


Part = Callable[[Inputs], None]
PARTS: tuple[Part, ...] = (
    in_python, closed_sessions, windows, limited, once, turns, looked_up, joined_table, pairs, per_city, foreign,
)  # fmt: skip


def every_operator(names: Names, parts: Iterable[Part] = PARTS) -> Pipeline:
    """Windows with retention, suppress, deduplicate, a processor with timers, and joins of all divisible kinds."""
    pipeline = names.pipeline()
    sales = sales_of(pipeline, names)
    shops = pipeline.global_table(names("shops"), value=Shop, key="shop")
    given = Inputs(names, sales, shops, pipeline.table(names("table"), value=Shop))
    for part in parts:
        part(given)
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


def send_round(
    running: Running, records: Iterable[tuple[str, bytes, bytes | None]], at: int
) -> None:
    """Write the records of a run, of which sales have two partitions, from a Kafka timestamp in ms on."""
    for place, (topic, key, value) in enumerate(records):
        partition = key[-1] % 2 if topic == "sales" else 0
        running.producer.produce(
            running.names(topic), value, key, partition, timestamp=at + 10 * place
        )
    assert running.producer.flush(20) == 0


def results(running: Running) -> tuple[dict[str, Any], dict[str, dict[Any, list[Any]]]]:
    """The stores, and the output records of each key in order."""
    everything = running.everything()
    outputs: dict[str, dict[Any, list[Any]]] = {}
    for topic, records in everything["outputs"].items():
        by_key = outputs.setdefault(topic.rpartition(".")[2], defaultdict(list))
        for key, value in records:
            by_key[key].append(value)
    return {name.rpartition(".")[2]: store for name, store in everything["stores"].items()}, outputs
