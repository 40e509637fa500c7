"""Pipelines that `make lint` checks with mypy: their types are right, except in lines that say which error mypy finds.

mypy also reports a line that says so and has no error.
"""

from __future__ import annotations

import re

from msgspec import Struct

from sluice import (
    Change,
    Context,
    GroupedStream,
    Pipeline,
    Record,
    Stream,
    Table,
    Timer,
    ValueContext,
    Windowed,
    debezium,
    debezium_key,
    tumbling,
    within,
)


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


class Growth:
    def init(self, context: ValueContext) -> None:
        self.context = context

    def process(self, record: Record[int, Windowed[str]]) -> None:
        self.context.forward(record.value, time=record.key.start_ms)

    def on_timer(self, timer: Timer[Windowed[str]]) -> None:
        self.context.forward(timer.key.end_ms)


async def score(order: Order) -> int:
    return order.amount


def score_all(orders: list[Order]) -> list[int]:
    return [order.amount for order in orders]


async def score_text(order: str) -> int:
    return len(order)


def right(pipeline: Pipeline, orders: Stream[Order]) -> None:
    large: Stream[Order] = orders.filter(lambda order: order.amount > 3).filter(
        lambda key, order: key != order.item
    )
    lines: Stream[Line] = large.map_values(
        lambda order: Line(order.item, order.amount / 2), returns=Line
    )
    keyed: Stream[Line] = lines.map(lambda line: (line.item, line), returns=Line)
    items: Stream[str] = keyed.flat_map_values(lambda key, line: [line.item], returns=str)
    items.to("items")
    by_item = orders.group_by(lambda order: order.item)
    sums: Table[int] = by_item.aggregate(int, lambda n, order: n + order.amount, store="n")
    sums_of_batches: Table[int] = by_item.aggregate_batch(
        int, lambda n, several: n + len(several), store="b"
    )
    sums.join(sums_of_batches)
    windows = orders.group_by_key().windowed_by(tumbling("1 minute"))
    count: Table[int] = windows.count(store="per_minute")
    count.to("counts")
    growth: Stream[int] = (
        count.to_stream().process_values(Growth, stores={"count": int}, returns=int).output
    )
    growth.to("growth")
    largest: Table[Order] = orders.group_by_key().reduce(
        lambda a, b: max(a, b, key=lambda o: o.amount), store="largest"
    )
    largest.to("largest")
    columns = orders.select("item", shop={"id": "item"}).filter(
        lambda value: value["shop"]["id"] != ""
    )
    columns.to_table(store="s")
    totals: Stream[int] = orders.process(Sums, stores={"total": int}, returns=int).output
    scores: Stream[int] = orders.call(score, returns=int, otherwise=0)
    scores_of_lists: Stream[int] = orders.call(score_all, returns=int, size=50)
    scores_of_batches: Stream[int] = orders.map_batch(score_all, returns=int)
    totals.merge(scores).merge(scores_of_lists).merge(scores_of_batches)
    orders.join(lines, within("1 minute")).foreach(lambda pair: print(pair["left"]))
    changes = debezium(OrderChange)
    captured: Stream[Change[Order]] = pipeline.stream(
        "captured", value=changes, key=debezium_key, nulls="keep"
    )
    captured_orders: Table[Order] = captured.apply_changes(
        store="captured_orders", check_old="count"
    )
    captured_orders.to("captured_orders")
    matching: Stream[Order] = pipeline.stream(
        re.compile("orders_.*"), value=Order, key=["item", "amount"], max_topics=9
    )
    stamped: Stream[Order] = matching.with_time("timestamp_millis(amount)").with_headers(
        {"item": "item"}
    )
    grouped: GroupedStream[Order] = stamped.group_by(["item", "amount"])
    grouped.count(store="grouped")


def wrong(pipeline: Pipeline, orders: Stream[Order]) -> None:
    orders.filter(lambda order: order.amuont > 3)  # type: ignore[attr-defined]
    orders.filter(lambda key, order: order.amuont > 3)  # type: ignore[misc, arg-type]
    orders.map_values(lambda order: order.item, returns=int)  # type: ignore[arg-type, return-value]
    orders.map_values(lambda order: order.amuont, returns=int)  # type: ignore[attr-defined]
    orders.map_values(lambda o: o.amount, returns=int).filter(lambda n: n.item)  # type: ignore[attr-defined]
    orders.call(score_text, returns=int)  # type: ignore[arg-type]
    orders.call(score, returns=str)  # type: ignore[arg-type]
    orders.map_batch(score, returns=int)  # type: ignore[arg-type]
    orders.flat_map_values(lambda order: order.amount)  # type: ignore[arg-type, return-value]
    orders.group_by_key().aggregate(int, lambda n, o: n + o.amuont, store="n")  # type: ignore[attr-defined]
    orders.group_by_key().aggregate_batch(int, lambda n, o: n + o.amount, store="n")  # type: ignore[attr-defined]
    orders.group_by_key().reduce(lambda order, other: order.amount, store="n")  # type: ignore[arg-type, return-value]
    pipeline.stream("lines", value=Line).process(Sums)  # type: ignore[arg-type]
    orders.select("item").filter(lambda value: value.item)  # type: ignore[attr-defined]
    orders.filter("amount > 3", on_error="ignore")  # type: ignore[call-overload]
    orders.join(orders)  # type: ignore[call-overload]
