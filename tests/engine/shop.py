"""Contracts and pipelines of the engine's tests.

Spark's Python workers import the contracts from here.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Literal

import msgspec
from msgspec import Struct, field

from sluice import Decimal2, Pipeline, tumbling
from sluice.topology import GroupedStream, Stream

GRACE = tumbling("60 seconds", grace="15 seconds")


class Sale(Struct):
    """A sale in a shop."""

    shop: str
    amount: Decimal2
    at: datetime
    quantity: int = 1


class Shop(Struct):
    """A shop and its city."""

    shop: str
    city: str


class Line(Struct, rename="kebab"):
    item_no: int
    price: Decimal2


class Bill(Struct, rename={"bill_no": "bill-no", "from_": "from"}):
    """A contract with names that need quotes in SQL."""

    bill_no: int
    from_: str
    lines: list[Line]
    tags: dict[str, int]
    kind: Literal["a", "b"]
    note: str | None = None
    best: Line | None = field(default=None)


class Amount(Struct):
    n: int


@dataclass(frozen=True)
class Names:
    """A test's own pipeline and topics."""

    prefix: str

    def __call__(self, name: str) -> str:
        """The topic that the test calls `name`."""
        return f"{self.prefix}.{name}"

    def pipeline(self, **how: Any) -> Pipeline:
        """A pipeline of this test."""
        return Pipeline(self.prefix, **({"workers": 2} | how))


Build = Callable[[Names], Pipeline]


def sales_of(pipeline: Pipeline, names: Names) -> Stream[Sale]:
    return pipeline.stream(names("sales"), value=Sale, key="shop", event_time="at")


def by_shop(pipeline: Pipeline, names: Names) -> GroupedStream[Sale]:
    return sales_of(pipeline, names).group_by("shop")


def shop(names: Names) -> Pipeline:
    """Counts and sums per shop, also in windows, joined with each shop's city, and a copy of every sale."""
    pipeline = names.pipeline()
    sales = sales_of(pipeline, names)
    shops = pipeline.global_table(names("shops"), value=Shop, key="shop")
    sales.select("shop", "amount").to(names("copies"))
    groups = sales.group_by("shop")
    groups.count(store="n")
    total = groups.aggregate(store="total", n="count(*)", amount="sum(amount)")
    total.join(shops).select(shop="_key", amount="left.amount", city="right.city").to(
        names("with_city")
    )
    total.join(shops, how="left").select(amount="left.amount", city="right.city").to(
        names("with_any_city")
    )
    groups.windowed_by(GRACE).count(store="n_window")
    return pipeline


def simple_shop(names: Names) -> Pipeline:
    """Counts per shop and a copy of every sale: for tests that need no more of `shop`, whose batches take longer."""
    pipeline = names.pipeline()
    sales = sales_of(pipeline, names)
    sales.select("shop", "amount").to(names("copies"))
    sales.group_by("shop").count(store="n")
    return pipeline


def sums(names: Names) -> Pipeline:
    """One operator: the last amount and the sum of each key."""
    pipeline = names.pipeline(workers=1)
    amounts = pipeline.stream(names("amounts"), value=Amount)
    amounts.group_by_key().aggregate(store="sums", last="last(n)", sum="sum(n)")
    return pipeline


def sale(shop: str, amount: float | str = 1, at: str = "08:00:00", **more: Any) -> bytes:
    """The JSON of a sale on 5 December 2022."""
    return msgspec.json.encode(
        {"shop": shop, "amount": msgspec.Raw(str(amount).encode())} | more | {"at": moment(at)}
    )


def moment(at: str) -> str:
    return at if "T" in at else f"2022-12-05T{at}"


def millis(at: str) -> int:
    """Milliseconds of a UTC time."""
    return int(datetime.fromisoformat(f"{moment(at)}+00:00").timestamp() * 1000)


def address(shop: str, city: str) -> bytes:
    return msgspec.json.encode({"shop": shop, "city": city})


class Item(Struct):
    n: int


def copied(names: Names) -> Pipeline:
    """A pipeline that counts the items of each key, and copies them."""
    pipeline = Pipeline(names.prefix, workers=1)
    items = pipeline.stream(names("items"), value=Item)
    items.group_by_key().count(store="n")
    items.to(names("copies"))
    return pipeline
