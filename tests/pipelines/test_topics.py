"""Which topic and which partition a record is written to, and topics that one stream reads."""

from __future__ import annotations

import re
from typing import Any

import pytest
from msgspec import Struct

from sluice import Headers, Pipeline, Windowed, session, tumbling, within
from sluice.errors import EngineError, InputAway, TopologyError
from sluice.plan import explain, matched_job, plan
from sluice.topology import drawing
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
        written[name] = [
            (record.value["id"], record.headers["trace"]) for record in driver.output(name)
        ]
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
    assert "ValueError: partition= must give a number of at least 0, not -1" in details


def region(key: str | None, order: Any, headers: Headers) -> int:
    return int(headers.text("region") or 7)


def test_a_function_that_chooses_the_partition_sees_the_headers(drive: Drive) -> None:
    pipeline = Pipeline("partitions", workers=2)
    orders = pipeline.stream("orders", value=Order)
    orders.to("by_region", partition=region)
    orders.with_headers({"region": "CAST(id AS STRING)"}).to("by_id", partition=region)
    newest = orders.group_by_key().reduce(lambda _, order: order, store="newest")
    newest.to("newest_by_region", partition=region)
    orders.group_by_key().count(store="count").to("counts", partition=region)
    driver = drive(pipeline)
    two = (("region", b"2"), ("region", b"3"))
    driver.pipe("orders", {"id": 4}, "a", headers=two)
    driver.pipe("orders", {"id": 5}, "b")
    driver.pipe("orders", {"id": 6}, "c", headers={"region": "north"})
    assert [record.partition for record in driver.output("by_region")] == [3, 7]
    assert [record.partition for record in driver.output("by_id")] == [4, 5, 6]
    assert [record.partition for record in driver.output("newest_by_region")] == [3, 7]
    # A count stands for many records, and has no headers.
    assert {record.partition for record in driver.output("counts")} == {7}
    rejected = [letter.headers for letter in driver.dead_letters()]
    assert [headers["region"] for headers in rejected] == ["north", "north"]
    assert all(headers["sluice.detail"].startswith("ValueError: ") for headers in rejected)


def test_a_function_that_chooses_the_partition_sees_the_window(drive: Drive) -> None:
    def start(key: Windowed[str], count: object) -> int:
        return int(key.start.timestamp())

    def start_of_header(key: object, count: object, headers: Headers) -> int:
        return int(headers.text("window_start") or -1) // 1_000

    pipeline = Pipeline("windows", workers=1)
    orders = pipeline.stream("orders", value=Order)
    counts = orders.group_by_key().windowed_by(tumbling("10 s")).count(store="count")
    counts.to("by_key", partition=start)
    counts.to("by_header", partition=start_of_header)
    counts.to("by_value", partition=lambda count: count)
    driver = drive(pipeline)
    driver.pipe("orders", {"id": 4}, "a", timestamp=21_000)
    for topic, partition in {"by_key": 20, "by_header": 20, "by_value": 1}.items():
        assert [record.partition for record in driver.output(topic)] == [partition]


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
    with pytest.raises(
        TopologyError, match=r"partition: <lambda>\(\) must take \(value\) or \(key, value\)"
    ):
        orders.to("out", partition=lambda: 1)  # type: ignore[arg-type]
    with pytest.raises(TopologyError, match=r"stream at .*: there is no topic to read"):
        pipeline.stream([], value=Order)
    with pytest.raises(TopologyError, match=r"expected the name of a topic \(str\), got int: 1"):
        pipeline.stream([1], value=Order)  # type: ignore[list-item]
    for named in ("others", ["others", "more"]):
        with pytest.raises(
            TopologyError,
            match="max_topics= limits the topics that match a pattern, but this stream",
        ):
            pipeline.stream(named, value=Order, max_topics=2)
    with pytest.raises(TopologyError, match="expected a topic, or a list of topics, got int: 1"):
        pipeline.stream(1, value=Order)  # type: ignore[arg-type]


def tenants(name: str) -> Pipeline:
    """Counts the orders of all tenants together, by the minute and in all, and joins them with the tenants' names."""
    pipeline = Pipeline(name, workers=2)
    orders = pipeline.stream(re.compile("orders_[a-z]+"), value=Order, key="region")
    orders.filter("id >= 0").select("id", origin="_topic").to("all")
    orders.group_by_key().count(store="count")
    orders.group_by_key().windowed_by(tumbling("10 ms")).count(
        store="per_window"
    ).suppress_until_window_closes().to("final")
    orders.group_by_key().reduce(lambda _, order: order, store="newest").to("newest")
    orders.map_values(lambda order: order.id * 2, returns=int).to("doubled")
    return pipeline


@pytest.mark.parametrize(
    "cuts", ["one batch", "a batch per record", "the topics come one after the other"]
)
def test_a_stream_reads_all_topics_that_match_a_pattern(drive: Drive, cuts: str) -> None:
    driver = drive(tenants("tenants"))
    records = [
        ("orders_b", 1, "eu", 1),
        ("orders_c", 2, "us", 2),
        ("orders_a", 3, "eu", 2),
        ("orders_b", 4, "eu", 12),
    ]
    for number, (topic, order, region, time) in enumerate(records):
        driver.pipe(topic, {"id": order, "region": region}, timestamp=time)
        if cuts == "a batch per record" or (cuts.startswith("the topics") and number == 0):
            driver.commit()
    written = [(record.value["id"], record.value["origin"]) for record in driver.output("all")]
    assert sorted(written) == [(1, "orders_b"), (2, "orders_c"), (3, "orders_a"), (4, "orders_b")]
    assert driver.store("count") == {"eu": 3, "us": 1}
    assert sorted((record.key, record.value) for record in driver.output("final")) == [
        ("eu", 2),
        ("us", 1),
    ]
    assert [record.value["id"] for record in driver.output("newest") if record.key == "eu"] == [
        1,
        3,
        4,
    ]
    assert sorted(record.value for record in driver.output("doubled")) == [2, 4, 6, 8]
    with pytest.raises(TopologyError, match="does not read a topic 'orders_1'"):
        driver.pipe("orders_1", {"id": 1})


def test_streams_of_two_patterns_are_joined_for_any_cut(drive: Drive) -> None:
    results: list[Any] = []
    for cut in (100, 1, 3):
        pipeline = Pipeline(f"pairs_{cut}", workers=2)
        orders = pipeline.stream(re.compile("orders_.*"), value=Order, key="region")
        bills = pipeline.stream(re.compile("bills_.*"), value=Order, key="region")
        orders.left_join(bills, within("10 ms")).select(order="left.id", bill="right.id").to(
            "pairs"
        )
        merged = orders.merge(bills).group_by_key()
        merged.windowed_by(session("5 ms")).aggregate(store="visits", ids="collect_list(id)")
        driver = drive(pipeline)
        records = [
            ("orders_b", 1, "eu", 1), ("bills_z", 2, "eu", 2), ("orders_a", 3, "eu", 3), ("orders_b", 4, "us", 11),
            ("bills_a", 5, "eu", 12), ("orders_a", 6, None, 13), ("orders_b", 7, "eu", 40), ("bills_a", 8, "us", 60),
        ]  # fmt: skip
        for number, (topic, order, region, time) in enumerate(records, 1):
            driver.pipe(topic, {"id": order, "region": region}, timestamp=time)
            if number % cut == 0:
                driver.commit()
        pairs = [
            (record.key, record.value["order"], record.value["bill"])
            for record in driver.output("pairs")
        ]
        results.append((sorted(pairs, key=repr), driver.store("visits")))
    first, *others = results
    assert ("eu", 1, 2) in first[0]
    assert ("us", 4, None) in first[0]
    assert others == [first, first]


def test_wrong_patterns_are_errors() -> None:
    pipeline = Pipeline("wrong")
    pipeline.stream("orders_eu", value=Order).to("orders_copied")
    with pytest.raises(
        TopologyError, match=r"\^orders_\.\* at .* matches orders_eu, which is already used"
    ):
        pipeline.stream(re.compile("orders_.*"), value=Order)
    with pytest.raises(TopologyError, match="matches wrong_dead_letters") as refused:
        pipeline.stream(re.compile(".*"), value=Order)
    assert "(?!wrong_dead_letters$)" in refused.value.next_step
    with pytest.raises(TopologyError, match="has flags"):
        pipeline.stream(re.compile("sales_.*", re.IGNORECASE), value=Order)
    with pytest.raises(TopologyError, match="a pattern of text, not of bytes"):
        pipeline.stream(re.compile(b"sales_.*"), value=Order)  # type: ignore[arg-type]
    with pytest.raises(
        TopologyError, match="expected a number of topics \\(int\\), got bool: True"
    ):
        pipeline.stream(re.compile("x"), value=Order, max_topics=True)
    with pytest.raises(TopologyError, match="max_topics is 0"):
        pipeline.stream(re.compile("sales_.*"), value=Order, max_topics=0)
    for read in (pipeline.table, pipeline.global_table):
        with pytest.raises(
            TopologyError, match=f"{read.__name__} at .*only a stream can read the topics"
        ):
            read(re.compile("sales_.*"), value=Order, store="sales")  # type: ignore[arg-type]
    with pytest.raises(TopologyError, match=r"'\^sales' .* is not a valid topic name") as invalid:
        pipeline.stream("^sales", value=Order)
    assert "re.compile" in invalid.value.next_step
    sales = pipeline.stream(re.compile("(?i)sales_.*"), value=Order, max_topics=2)
    with pytest.raises(TopologyError, match="matches Sales_1"):
        sales.to("Sales_1")
    job = plan(pipeline).job
    with pytest.raises(InputAway, match="No topic matches"):
        matched_job(job, (), ["orders_us", "__sales_1"])
    with pytest.raises(EngineError, match=r"3 topics match .*, but `max_topics` is 2"):
        matched_job(job, ["sales_c"], ["sales_a", "sales_b"])
    pipeline.stream(re.compile("[st]ales_.*"), value=Order)
    with pytest.raises(EngineError, match="sales_a matches two patterns"):
        matched_job(plan(pipeline).job, (), ["sales_a", "tales_b"])
    pipeline.stream(re.compile("many_.*"), value=Order, max_topics=1_000)
    with pytest.raises(TopologyError, match="max_topics=1000 is too large"):
        plan(pipeline)


def test_a_topology_shows_the_pattern_of_its_topics() -> None:
    pipeline = Pipeline("shown")
    pipeline.stream(re.compile("orders_[a-z]+"), value=Order, max_topics=7).group_by_key().count(
        store="count"
    )
    assert (
        "stream ^orders_[a-z]+: Order, event time of the record, at most 7 topics"
        in drawing.text(pipeline)
    )
    assert "reads   ^orders_[a-z]+, at most 7 topics, as Order" in explain(plan(pipeline))
