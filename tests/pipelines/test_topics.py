"""Which topic and which partition a record is written to, and topics that one stream reads."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec import Struct

from sluice import Pipeline
from sluice.errors import TopologyError
from tests.pipelines.conftest import Drive


class Order(Struct):
    id: int
    region: str | None = None


def choose(order: Order) -> str:
    return f"orders_{order.region}"


@pytest.mark.parametrize("how", ["an expression", "a function"])
def test_each_record_goes_to_the_topic_that_is_chosen_for_it(drive: Drive, how: str) -> None:
    pipeline = Pipeline("routes", workers=2)
    orders = pipeline.stream("orders", value=Order)
    topic: Any = "concat('orders_', region)" if how == "an expression" else choose
    orders.route(topic, ["orders_eu", "orders_us"])
    driver = drive(pipeline)
    regions = ["eu", "us", "eu", "mars", None]
    for number, region in enumerate(regions):
        driver.pipe("orders", {"id": number, "region": region}, "k", headers={"trace": str(number)})
    written = {}
    for name in ("orders_eu", "orders_us"):
        written[name] = [(record.value["id"], record.headers["trace"]) for record in driver.output(name)]
    assert written == {"orders_eu": [(0, "0"), (2, "2")], "orders_us": [(1, "1")]}
    letters = driver.dead_letters()
    assert [letter.value["id"] for letter in letters] == [3, 4]
    assert {letter.headers["sluice.step"] for letter in letters} == {"route"}
    assert {letter.headers["sluice.detail"] for letter in letters} == {
        "ValueError: none of the topics orders_eu, orders_us was chosen for the record"
    }


def test_a_function_chooses_the_partition(drive: Drive) -> None:
    pipeline = Pipeline("partitions", workers=2)
    orders = pipeline.stream("orders", value=Order)
    orders.to("by_id", partition=lambda order: order["id"])
    orders.to("by_key", partition=lambda key, order: len(key))
    orders.group_by_key().reduce(lambda _, order: order, store="newest").to(
        "newest_by_id", partition=lambda order: order["id"]
    )
    driver = drive(pipeline)
    for number, key in ((3, "kk"), (-1, "k"), (5, None)):
        driver.pipe("orders", {"id": number}, key)
    assert [record.partition for record in driver.output("by_id")] == [3, 5]
    assert [record.partition for record in driver.output("by_key")] == [2, 1]
    assert [record.partition for record in driver.output("newest_by_id")] == [3]
    details = [letter.headers["sluice.detail"] for letter in driver.dead_letters()]
    assert len(details) == 3
    assert "ValueError: partition=-1 is not a number of a partition, from 0 on" in details


def test_one_stream_reads_several_topics(drive: Drive) -> None:
    pipeline = Pipeline("several", workers=2)
    orders = pipeline.stream(["orders_eu", "orders_us"], value=Order)
    orders.select("id", origin="_topic").to("all")
    orders.group_by("'all'").count(store="count")
    driver = drive(pipeline)
    for number, topic in enumerate(["orders_us", "orders_eu", "orders_us"]):
        driver.pipe(topic, {"id": number})
    written = [(record.value["id"], record.value["origin"]) for record in driver.output("all")]
    assert sorted(written) == [(0, "orders_us"), (1, "orders_eu"), (2, "orders_us")]
    assert driver.store("count") == {"all": 3}


def test_wrong_lists_of_topics_and_partitions_of_tables_are_errors() -> None:
    pipeline = Pipeline("wrong")
    orders = pipeline.stream("orders", value=Order)
    with pytest.raises(TopologyError, match="topics='eu' is not a list of topics"):
        orders.route("region", "eu")
    with pytest.raises(TopologyError, match="reads unknown fields: place"):
        orders.route("place", ["eu"])
    with pytest.raises(TopologyError, match="'1 \\+ 1' is INT, not the name of a topic"):
        orders.route("1 + 1", ["eu"])
    with pytest.raises(TopologyError, match=r"partition: <lambda>\(\) must take \(value\) or \(key, value\)"):
        orders.to("out", partition=lambda: 1)  # type: ignore[arg-type]
    with pytest.raises(TopologyError, match=r"stream at .*: there is no topic to read"):
        pipeline.stream([], value=Order)
    with pytest.raises(TopologyError, match=r"expected the name of a topic \(str\), got int: 1"):
        pipeline.stream([1], value=Order)  # type: ignore[list-item]
    with pytest.raises(TopologyError, match="expected a topic, or a list of topics, got int: 1"):
        pipeline.stream(1, value=Order)  # type: ignore[arg-type]
