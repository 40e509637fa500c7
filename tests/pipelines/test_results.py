"""A function's result that Spark would read back as null, or rounded, becomes a dead letter of the step."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime, timedelta, timezone
from decimal import Decimal
from typing import Any

import pytest
from msgspec import Struct

from sluice import Context, Decimal2, Pipeline, Record
from tests.pipelines.conftest import Drive


class Given(Struct):
    kind: str


class Price(Struct):
    price: Decimal2
    at: datetime | None = None
    pages: dict[str, int] = {}


RESULTS: dict[str, Any] = {
    "fine": Price(Decimal("1.50")),
    "a dict": {"price": "1.50"},
    "too large": Price(Decimal("12345678901234.50")),
    "too exact": Price(Decimal("1.239")),
    "too late": Price(Decimal(1), datetime(9999, 12, 31, 23, tzinfo=timezone(timedelta(hours=-5)))),
    "long name": Price(Decimal(1), pages={"k" * 50_001: 1}),
}


def price(given: Given) -> Price:
    return RESULTS[given.kind]  # type: ignore[no-any-return]


def prices(given: Given) -> Iterator[Price]:
    yield RESULTS[given.kind]


def amount(given: Given) -> Decimal:
    return RESULTS[given.kind].price if given.kind.startswith("too") else Decimal(2)


def untyped(given: Given) -> Any:
    untyped = {
        "too large": Decimal("1" * 39),
        "too exact": Decimal("0." + "1" * 1_001),
        "too late": [[[2]]],
    }
    return untyped.get(given.kind, RESULTS[given.kind])


def start() -> Price:
    return Price(Decimal(0))


def newest(so_far: Price, given: Given) -> Price:
    return price(given)


class Pricing:
    def init(self, context: Context) -> None:
        self.context = context

    def process(self, record: Record[Given]) -> None:
        self.context.forward(record.key, price(record.value))


@pytest.mark.spark
def test_results_that_spark_cannot_read_exactly_are_dead_letters(drive: Drive) -> None:
    pipeline = Pipeline("prices", workers=1)
    given = pipeline.stream("given", value=Given)
    given.map_values(price, returns=Price).to("mapped")
    given.flat_map_values(prices, returns=Price).to("several")
    given.map_values(amount, returns=Decimal2).to("amounts")
    given.map_values(untyped).to("untyped")
    given.process(Pricing, returns=Price).output.to("processed")
    given.process(Pricing, returns=Price).output.select("price", "pages").to("selected")
    totals = given.group_by_key().aggregate(start, newest, store="totals", returns=Price)
    totals.select(price="price").to("aggregated")
    driver = drive(pipeline)
    for kind in RESULTS:
        driver.pipe("given", {"kind": kind}, key=kind, timestamp=0)
    whole: dict[str, Any] = {"price": 1.5, "at": None, "pages": {}}
    expected = {
        "mapped": {"fine": whole, "a dict": whole},
        "several": {"fine": whole, "a dict": whole},
        "processed": {"fine": whole, "a dict": whole},
        "selected": {kind: {"price": 1.5, "pages": {}} for kind in ("fine", "a dict")},
        "aggregated": {"fine": {"price": 1.5}, "a dict": {"price": 1.5}},
        "amounts": {"fine": 2, "a dict": 2, "too late": 1, "long name": 2},
    }
    for topic, values in expected.items():
        assert {output.key: output.value for output in driver.output(topic)} == values, topic
    assert driver.store("totals") == {"fine": whole, "a dict": whole}
    assert {output.key for output in driver.output("untyped")} == {"fine", "a dict", "too late"}
    failed = {name: count for name, count in driver.counts().items() if name.startswith("failed/")}
    assert sorted(failed.values()) == [2, 3, 4, 4, 4, 4, 4]
    details = {letter.headers["sluice.detail"] for letter in driver.dead_letters()}
    assert "ValueError: $.price: 12345678901234.50 is not a decimal(12,2)" in details
    assert max(map(len, details)) < 200


def test_a_time_outside_the_years_that_json_can_name_violates_the_contract(drive: Drive) -> None:
    pipeline = Pipeline("visits", workers=1)
    pipeline.stream("visits", value=Price).to("out")
    driver = drive(pipeline)
    driver.pipe("visits", '{"price": 1, "at": "9999-12-31T23:59:59-05:00"}', key="a", timestamp=0)
    driver.pipe("visits", '{"price": 1, "at": "9999-12-31T23:59:59Z"}', key="b", timestamp=1)
    assert [(output.key, output.value["at"]) for output in driver.output("out")] == [
        ("b", "9999-12-31T23:59:59.000000Z")
    ]
    assert [letter.headers["sluice.reason"] for letter in driver.dead_letters()] == ["contract"]
