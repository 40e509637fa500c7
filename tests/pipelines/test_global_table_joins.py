"""Joins of a stream with a global table, as Kafka Streams 4.4.0 computes them for the same records.

`RESULTS` and `LEFT_RESULTS` are what its test driver gave for a joiner that gets the stream's key
and the mapped key.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from msgspec import Struct

from sluice import Pipeline, Stream, Windowed, tumbling
from sluice.errors import TopologyError
from sluice.testing import TopologyTestDriver
from tests.pipelines.conftest import Drive

RECORDS: list[tuple[str | None, str | None]] = [
    ("k1", "a"),
    ("k2", "b"),
    (None, "a"),
    (None, "b"),
    ("k3", "-x"),
    (None, "-x"),
    ("k4", None),
    (None, None),
    ("a", "k"),
    (None, "k"),
    ("x", "d"),
]
"""Key and value. The value is the key to look up, but `-x` is mapped to no key, and `k` to the
record's own key."""
RESULTS: list[tuple[str | None, str | None, str, str | None]] = [
    ("k1", "a", "a", "A"),
    (None, "a", "a", "A"),
    ("a", "a", "k", "A"),
]
"""The stream's key, the mapped key, the left and the right value of each result of an inner
join."""
LEFT_RESULTS: list[tuple[str | None, str | None, str, str | None]] = [
    ("k1", "a", "a", "A"),
    ("k2", "b", "b", None),
    (None, "a", "a", "A"),
    (None, "b", "b", None),
    ("k3", None, "-x", None),
    (None, None, "-x", None),
    ("a", "a", "k", "A"),
    (None, None, "k", None),
    ("x", "d", "d", None),
]
IN_SQL = "CASE WHEN value LIKE '-%' THEN NULL WHEN value LIKE 'k%' THEN _key ELSE value END"


def mapped(key: str | None, value: str | None) -> str | None:
    if value is None or value.startswith("-"):
        return None
    return key if value.startswith("k") else value


def both_keys(key: str | None, value: dict[str, Any]) -> list[str | None]:
    """A joiner in Python, which sees the stream's key, the mapped key, and both values."""
    return [key, value["code"], value["left"], value["right"]]


def driven(drive: Drive, on: str | Callable[..., Any], how: Any, times: int) -> TopologyTestDriver:
    """A driver with the results of the join: computed by SQL in `sql`, by Python in `python`."""
    pipeline = Pipeline("mapped", workers=2)
    codes = pipeline.global_table("codes", value=str)
    records = pipeline.stream("records", value=str, nulls="keep")
    joined = records.join(codes, on=on, how=how, mapped_key="code")
    joined.select(of_stream="_key", of_table="code", left="left", right="right").to("sql")
    joined.map_values(both_keys, returns=list[str | None]).to("python")
    driver = drive(pipeline)
    for key, value in (("a", "A"), (None, "N"), ("d", "D"), ("d", None)):
        driver.pipe("codes", value, key=key, timestamp=1)
    for _ in range(times):
        for key, value in RECORDS:
            driver.pipe("records", value, key=key, timestamp=2)
    return driver


@pytest.mark.parametrize("times", [1, 100])
@pytest.mark.parametrize("on", [IN_SQL, mapped], ids=["expression", "function"])
@pytest.mark.parametrize(("how", "results"), [("inner", RESULTS), ("left", LEFT_RESULTS)])
def test_a_joiner_sees_the_streams_key_and_the_mapped_key(
    drive: Drive, on: str | Callable[..., Any], how: str, results: list[Any], times: int
) -> None:
    driver = driven(drive, on, how, times)
    by_sql = []
    for record in driver.read("sql"):
        by_sql.append((record.value["of_stream"], *list(record.value.values())[1:]))
        assert record.key == record.value["of_stream"]
    assert sorted(by_sql, key=str) == sorted(times * results, key=str)
    by_python = [(record.key, tuple(record.value)) for record in driver.read("python")]
    assert sorted(by_python, key=str) == sorted(
        times * [(result[0], result) for result in results], key=str
    )


class Order(Struct):
    item: str
    shop: str


class Shop(Struct):
    city: str


def test_a_mapped_key_is_a_field_like_any_other(drive: Drive) -> None:
    pipeline = Pipeline("further", workers=2)
    shops = pipeline.global_table("shops", value=Shop)
    cities = pipeline.global_table("cities", value=str)
    orders = pipeline.stream("orders", value=Order)
    joined = orders.join(shops, on=lambda order: order.shop.lower(), mapped_key="the-shop")
    of_cities = joined.left_join(cities, on="right.city", mapped_key="city")
    of_cities.select(shop="left.`the-shop`", city="city", country="right").to("countries")
    joined.group_by("`the-shop`").count(store="orders_of_shops")
    driver = drive(pipeline)
    driver.pipe("shops", {"city": "Ulm"}, key='a"b', timestamp=1)
    driver.pipe("cities", "Germany", key="Ulm", timestamp=1)
    for item in ("pen", "ink"):
        driver.pipe("orders", {"item": item, "shop": 'A"B'}, key="1", timestamp=2)
    expected = {"shop": 'a"b', "city": "Ulm", "country": "Germany"}
    assert [record.value for record in driver.read("countries")] == [expected, expected]
    assert driver.store("orders_of_shops") == {'a"b': 2}


@pytest.mark.parametrize("name", ["a.b", 'a"b', "a`b", "ü", "key", "value"])
def test_a_mapped_key_can_have_any_name(drive: Drive, name: str) -> None:
    pipeline = Pipeline("names", workers=1)
    shops = pipeline.global_table("shops", value=Shop)
    joined = pipeline.stream("orders", value=Order).left_join(shops, on="shop", mapped_key=name)
    joined.to("whole")
    joined.select(shop=f"`{name.replace('`', '``')}`").to("shops_of_orders")
    driver = drive(pipeline)
    driver.pipe("orders", {"item": "pen", "shop": "a"}, key="1")
    (whole,) = driver.read("whole")
    assert whole.value == {"left": {"item": "pen", "shop": "a"}, "right": None, name: "a"}
    assert [record.value for record in driver.read("shops_of_orders")] == [{"shop": "a"}]


def test_a_windowed_stream_keeps_its_windows(drive: Drive) -> None:
    pipeline = Pipeline("windowed", workers=1)
    shops = pipeline.global_table("shops", value=Shop)
    counts = pipeline.stream("orders", value=Order).group_by_key().windowed_by(tumbling("10 s"))

    def shop_of(key: Windowed[str], value: object) -> str:
        return f"{key.key}-{key.start.timestamp():.0f}"

    changes: Stream[Any] = counts.count(store="counts").to_stream()
    changes.join(shops, on=shop_of, mapped_key="shop").to("named")
    driver = drive(pipeline)
    driver.pipe("shops", {"city": "Ulm"}, key="1-10", timestamp=1)
    driver.pipe("orders", {"item": "pen", "shop": ""}, key="1", timestamp=12_000)
    (record,) = driver.read("named")
    assert record.key == "1"
    assert record.value == {"left": 1, "right": {"city": "Ulm"}, "shop": "1-10"}
    assert record.headers["window_start"] == "10000"


def test_a_record_without_a_key_to_look_up_becomes_a_dead_letter(drive: Drive) -> None:
    pipeline = Pipeline("failing", workers=1)
    shops = pipeline.global_table("shops", value=Shop)
    orders = pipeline.stream("orders", value=Order)
    orders.join(shops, on=lambda order: [][len(order.shop)], mapped_key="shop").to("joined")
    driver = drive(pipeline)
    driver.pipe("orders", {"item": "pen", "shop": "a"}, key="1")
    (letter,) = driver.dead_letters()
    assert letter.headers["sluice.detail"] == "IndexError: list index out of range"
    assert "mapped key" in letter.headers["sluice.step"]


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"mapped_key": "shop"}, "mapped_key= needs on="),
        ({"on": "shop", "mapped_key": "Left"}, "is the name of a side of the join"),
        ({"on": "shop", "mapped_key": "_key"}, "_key are reserved by Sluice"),
        ({"on": "shop", "mapped_key": ""}, "a column has no name"),
        ({"on": lambda a, b, c: a, "mapped_key": "k"}, r"must take \(value\) or \(key, value\)"),
    ],
)
def test_a_mapped_key_needs_a_name_and_an_expression(options: Any, error: str) -> None:
    pipeline = Pipeline("wrong", workers=1)
    shops = pipeline.global_table("shops", value=Shop)
    with pytest.raises(TopologyError, match=error):
        pipeline.stream("orders", value=Order).join(shops, **options)


def test_a_function_for_the_key_needs_a_global_table() -> None:
    pipeline = Pipeline("wrong", workers=1)
    shops = pipeline.table("shops", value=Shop)
    with pytest.raises(TopologyError, match="on= needs a global table"):
        pipeline.stream("orders", value=Order).join(shops, on=mapped)  # type: ignore[call-overload]
