"""A value has the same text as a key wherever the key is made: by SQL, a Python function, a field, in every step."""

from __future__ import annotations

import math
from collections.abc import Callable
from datetime import date, datetime
from decimal import Decimal
from enum import Enum
from typing import Annotated, Any

import pytest
from msgspec import Struct

from sluice import Context, Digits, Pipeline, Processor, Record, Serde, Stream, Table, session
from tests.pipelines.conftest import Drive


class Kind(Enum):
    HOME = "home"


class Place(Struct):
    zip: str | None
    city: str


class Order(Struct):
    day: date
    at: datetime
    kind: Kind
    price: Annotated[Decimal, Digits(10, 2)]
    paid: bool
    weight: float
    number: int
    place: Place
    tags: list[str]
    shares: dict[str, float]


ORDER = {
    "day": "2026-03-29", "at": "2026-03-29T10:00:00.5+02:00", "kind": "home", "price": 12.50, "paid": True,
    "weight": 868100000.0, "number": 7, "place": {"zip": None, "city": 'Oslo "S"'}, "tags": ["b, c", "a"],
    "shares": {"b": 1e-5, "a": 2},
}  # fmt: skip
TEXTS = {
    "day": "2026-03-29", "at": "2026-03-29 08:00:00.5", "kind": "home", "price": "12.5", "paid": "true",
    "weight": "868100000.0", "number": "7", "place": r'{"city":"Oslo \"S\"","zip":null}', "tags": '["b, c","a"]',
    "shares": '{"a":2.0,"b":1e-05}',
}  # fmt: skip
FUNCTIONS: dict[str, Callable[[Order], Any]] = {
    "day": lambda order: order.day,
    "at": lambda order: order.at,
    "kind": lambda order: order.kind,
    "price": lambda order: order.price,
    "paid": lambda order: order.paid,
    "weight": lambda order: order.weight,
    "number": lambda order: order.number,
    "place": lambda order: order.place,
    "tags": lambda order: tuple(order.tags),
    "shares": lambda order: order.shares,
}


@pytest.mark.parametrize("in_order", [False, True])
def test_fields_expressions_and_functions_make_the_same_key(drive: Drive, in_order: bool) -> None:
    pipeline = Pipeline("orders_by", workers=2)
    orders = pipeline.stream("orders", value=Order)
    for name, function in FUNCTIONS.items():
        orders.group_by(name).count(store=f"field_{name}")
        orders.group_by(f"IF(number = 7, {name}, NULL)").count(store=f"expression_{name}")
        orders.group_by(function).count(store=f"function_{name}")
    if in_order:
        orders.group_by_key().windowed_by(session("1 minute")).count(store="visits")
    driver = drive(pipeline)
    driver.pipe("orders", ORDER, key="k", timestamp=1)
    for name, text in TEXTS.items():
        stores = [driver.store(f"{made}_{name}") for made in ("field", "expression", "function")]
        assert stores == [{text: 1}] * 3
    assert driver.dead_letters() == []


class Route(Struct):
    start: str | None
    end: str | None


ROUTES = [
    ("x, y", "z"), ("X, y", "z"), ("x", "y, z"), ("ab", "c"), ("a", "bc"), ("x", None), ("x", "null"), ('x"', "y"),
    (None, None),
]  # fmt: skip


def by_both(route: Route) -> tuple[str | None, str | None]:
    return route.start, route.end


@pytest.mark.spark
@pytest.mark.parametrize("in_order", [False, True])
def test_a_struct_keeps_apart_what_other_texts_merge(drive: Drive, in_order: bool) -> None:
    pipeline = Pipeline("routes", workers=2)
    routes = pipeline.stream("routes", value=Route)
    routes.group_by("struct(start, end)").count(store="struct")
    routes.group_by("array(start, end)").count(store="array")
    routes.group_by("map('start', start, 'end', end)").count(store="map")
    routes.group_by(by_both).count(store="function")
    routes.group_by("collate(start, 'UTF8_LCASE')").count(store="collated")
    if in_order:
        routes.deduplicate("struct(start, end)", within="1 hour").group_by_key().count(
            store="distinct"
        )
    driver = drive(pipeline)
    for start, end in ROUTES * 2:
        driver.pipe("routes", {"start": start, "end": end}, key="k", timestamp=1)
    for store in ("struct", "array", "map", "function"):
        assert [*driver.store(store).values()] == [2] * len(ROUTES)
    assert driver.store("collated").keys() == {start for start, _ in ROUTES if start is not None}
    assert driver.store("array") == driver.store("function")
    assert driver.store("struct") == driver.store("map")
    assert not in_order or driver.store("distinct") == {"k": len(ROUTES)}


class Weighing(Struct):
    id: int
    weight: float
    price: Annotated[Decimal, Digits(12, 4)]


class Product(Struct):
    weight: float
    price: Annotated[Decimal, Digits(10, 2)]


class Forward(Processor[Weighing]):
    def init(self, context: Context) -> None:
        self.context = context

    def process(self, record: Record[Weighing]) -> None:
        assert record.value is not None
        self.context.forward(record.value.price, record.value.id)


def with_price(weighing: Weighing) -> tuple[Decimal, int]:
    return weighing.price.normalize(), weighing.id


def with_prices(weighing: Weighing) -> list[tuple[Decimal, int]]:
    return [with_price(weighing)]


def test_joins_find_keys_that_another_side_has_made(drive: Drive) -> None:
    pipeline = Pipeline("weighings", workers=2)
    weighings = pipeline.stream("weighings", value=Weighing)
    by_weight = pipeline.table("by_weight", value=Product, key="weight")
    by_price = pipeline.table("by_price", value=Product, key="price")
    everywhere = pipeline.global_table("everywhere", value=Product, key="weight")
    latest = pipeline.table("latest", value=Weighing, key="id")
    steps: dict[str, Stream[Any] | Table[Any]] = {
        "field": weighings.select_key("weight").join(by_weight),
        "expression": weighings.select_key("weight * 1").join(by_weight),
        "global": weighings.join(everywhere, on="weight"),
        "foreign": latest.join(by_price, on="price"),
        "map": weighings.map(with_price, returns=int).join(by_price),
        "flat_map": weighings.flat_map(with_prices, returns=int).join(by_price),
        "process": weighings.process(Forward, returns=int).output.join(by_price),
    }
    for name, joined in steps.items():
        joined.to(name)
    driver = drive(pipeline)
    cases = [(868100000.0, 1.5), (1e-5, 100), (0.0, 0.25)]
    for weight, price in cases:
        for table in ("by_weight", "by_price", "everywhere"):
            driver.pipe(table, {"weight": weight, "price": price}, key="any", timestamp=1)
    for number, (weight, price) in enumerate(cases):
        record = {"id": number, "weight": -weight if weight == 0 else weight, "price": price}
        driver.pipe("weighings", record, key="any", timestamp=2)
        driver.pipe("latest", record, key="any", timestamp=2)
    assert {name: len(driver.output(name)) for name in steps} == dict.fromkeys(steps, len(cases))
    assert set(driver.store("by_price")) == {"1.5", "100", "0.25"}


def to_weighing(data: bytes) -> Weighing:
    return Weighing(1, math.nan if data == b"nan" else -math.inf, Decimal(1))


def test_no_key_is_nan_or_infinite(drive: Drive) -> None:
    pipeline = Pipeline("weights")
    weighings = pipeline.stream("weighings", value=Serde(Weighing, decode=to_weighing))
    weighings.group_by("weight").count(store="field")
    read = pipeline.stream("read", value=Weighing)
    read.group_by("double('NaN') * weight").count(store="expression")
    read.group_by("struct(double('Infinity') AS a)").count(store="struct")
    read.group_by(lambda weighing: math.inf).count(store="function")
    driver = drive(pipeline)
    for data in (b"nan", b"-inf"):
        driver.pipe("weighings", data, key="k", timestamp=1)
    driver.pipe("read", {"id": 1, "weight": 1, "price": 1}, key="k", timestamp=1)
    assert [driver.store(name) for name in ("field", "expression", "struct", "function")] == [
        {}
    ] * 4
    assert len(driver.dead_letters()) == 3


class Customer(Struct):
    id: int | None
    city: str


def test_a_deletion_takes_its_row_from_kafkas_key_or_is_rejected(drive: Drive) -> None:
    pipeline = Pipeline("customers", workers=2)
    customers = pipeline.table("customers", value=Customer, key="id")
    customers.group_by("city").count(store="cities")
    everywhere = pipeline.global_table("everywhere", value=Customer, key="id")
    pipeline.stream("visits", value=Customer).join(everywhere, on="id").select(
        city="right.city"
    ).to("visited")
    driver = drive(pipeline)
    for topic in ("customers", "everywhere"):
        for number in range(1, 5):
            driver.pipe(
                topic, {"id": number, "city": "Oslo"}, key=f'{{"id":{number}}}', timestamp=1
            )
        driver.pipe(topic, {"id": None, "city": "Bergen"}, key="5", timestamp=1)
        for key in ('{"id":1}', '{"region":"north","id":2}', "3", '{"customer":4}', None):
            driver.pipe(topic, None, key=key, timestamp=2)
    for number in range(1, 5):
        driver.pipe("visits", {"id": number, "city": ""}, timestamp=3)
    assert [list(driver.store(store)) for store in ("customers", "everywhere")] == [["4"], ["4"]]
    assert driver.store("cities") == {"Oslo": 1}
    assert [record.value for record in driver.output("visited")] == [{"city": "Oslo"}]
    reasons = [letter.headers["sluice.reason"] for letter in driver.dead_letters()]
    assert sorted(reasons) == 2 * ["deleted_key"] + 4 * ["null_key"]
    assert driver.counts()["dead_letter/deleted_key"] == 2
