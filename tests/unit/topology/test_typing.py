"""mypy accepts a valid pipeline and finds each mistake in an invalid one."""

from __future__ import annotations

import contextlib
from pathlib import Path

from mypy import api

CONTRACTS = """
import re

from msgspec import Struct

from sluice import Change, Context, GroupedStream, Pipeline, Record, Stream, Table, Timer
from sluice import debezium, debezium_key, tumbling, within


class Order(Struct):
    item: str
    amount: int


class OrderChange(Change[Order]):
    pass


class Line(Struct):
    item: str
    total: float


class Sums:
    def init(self, context: Context) -> None:
        self.context = context

    def process(self, record: Record[Order]) -> None:
        total = self.context.store("total")
        total.put("amount", total.get("amount", 0) + record.value.amount)

    def on_timer(self, timer: Timer) -> None:
        self.context.forward(timer.key, timer.time)


async def score(order: Order) -> int:
    return order.amount


def score_all(orders: list[Order]) -> list[int]:
    return [order.amount for order in orders]


async def score_text(order: str) -> int:
    return len(order)


pipeline = Pipeline("typed")
orders = pipeline.stream("orders", value=Order)
"""

RIGHT = """
large: Stream[Order] = orders.filter(lambda order: order.amount > 3).filter(lambda key, order: key != order.item)
lines: Stream[Line] = large.map_values(lambda order: Line(order.item, order.amount / 2), returns=Line)
keyed: Stream[Line] = lines.map(lambda line: (line.item, line), returns=Line)
items: Stream[str] = lines.flat_map_values(lambda key, line: [line.item], returns=str)
by_item = orders.group_by(lambda order: order.item)
sums: Table[int] = by_item.aggregate(int, lambda n, order: n + order.amount, store="n")
sums_of_batches: Table[int] = by_item.aggregate_batch(int, lambda n, several: n + len(several), store="b")
count: Table[int] = orders.group_by_key().windowed_by(tumbling("1 minute")).count(store="per_minute")
largest: Table[Order] = orders.group_by_key().reduce(lambda a, b: max(a, b, key=lambda o: o.amount), store="largest")
columns = orders.select("item", shop={"id": "item"}).filter(lambda value: value["shop"]["id"] != "").to_table(store="s")
totals: Stream[int] = orders.process(Sums, stores={"total": int}, returns=int).output
scores: Stream[int] = orders.call(score, returns=int, otherwise=0)
scores_of_lists: Stream[int] = orders.call(score_all, returns=int, size=50)
scores_of_batches: Stream[int] = orders.map_batch(score_all, returns=int)
orders.join(lines, within("1 minute")).foreach(lambda pair: print(pair["left"]))
changes = debezium(OrderChange)
captured: Stream[Change[Order]] = pipeline.stream("captured", value=changes, key=debezium_key, nulls="keep")
captured_orders: Table[Order] = captured.apply_changes(store="captured_orders", check_old="count")
matching: Stream[Order] = pipeline.stream(re.compile("orders_.*"), value=Order, key=["item", "amount"], max_topics=9)
stamped: Stream[Order] = matching.with_time("timestamp_millis(amount)").with_headers({"item": "item"})
grouped: GroupedStream[Order] = stamped.group_by(["item", "amount"])
"""

WRONG = {
    "orders.filter(lambda order: order.amuont > 3)": '"Order" has no attribute "amuont"',
    "orders.filter(lambda key, order: order.amuont > 3)": "attr-defined|call-overload|arg-type|misc",
    "orders.map_values(lambda order: order.item, returns=int)": 'expected "Callable[[Order], int | None]"',
    "orders.map_values(lambda order: order.amuont, returns=int)": '"Order" has no attribute "amuont"',
    "orders.map_values(lambda o: o.amount, returns=int).filter(lambda n: n.item)": '"int" has no attribute "item"',
    "orders.call(score_text, returns=int)": "call-overload|arg-type",
    "orders.call(score, returns=str)": "call-overload|arg-type",
    "orders.map_batch(score, returns=int)": "call-overload|arg-type",
    "orders.flat_map_values(lambda order: order.amount)": "Iterable",
    "orders.group_by_key().aggregate(int, lambda n, o: n + o.amuont, store='n')": '"Order" has no attribute "amuont"',
    "orders.group_by_key().aggregate_batch(int, lambda n, o: n + o.amount, store='n')": '"list[Order]" has no',
    "orders.group_by_key().reduce(lambda order, other: order.amount, store='n')": "Order",
    "pipeline.stream('lines', value=Line).process(Sums)": "Processor[Line]",
    "orders.select('item').filter(lambda value: value.item)": '"dict[str, Any]" has no attribute "item"',
    "orders.filter('amount > 3', on_error='ignore')": "on_error|overload",
    "orders.join(orders)": "overload",
}


ROOT = Path(__file__).parents[3]


def checked(folder: Path, **texts: str) -> dict[str, list[str]]:
    """mypy's errors for files with these texts, by file, with the configuration and the cache of `make lint`."""
    files = {name: folder / f"{name}.py" for name in texts}
    for name, file in files.items():
        file.write_text(texts[name])
    with contextlib.chdir(ROOT):
        out, errors, _ = api.run([*map(str, files.values())])
    assert not errors, errors
    lines = out.splitlines()
    return {name: [line for line in lines if line.startswith(f"{file}:")] for name, file in files.items()}


def test_mypy_accepts_valid_pipelines_and_finds_mistakes(tmp_path: Path) -> None:
    report = checked(tmp_path, valid=CONTRACTS + RIGHT, wrong=CONTRACTS + "\n".join(WRONG) + "\n")
    assert report["valid"] == []
    first = CONTRACTS.count("\n") + 1
    for number, (line, expected) in enumerate(WRONG.items(), first):
        errors = [text for text in report["wrong"] if text.startswith(f"{tmp_path / 'wrong.py'}:{number}: error")]
        assert any(part in error for part in expected.split("|") for error in errors), (line, errors, report)
