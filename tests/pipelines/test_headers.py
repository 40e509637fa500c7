"""Output records have the headers of the record that caused them, as in Kafka Streams."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec import Struct

from sluice import (
    Context,
    Headers,
    Pipeline,
    Record,
    Serde,
    Timer,
    ValueContext,
    session,
    tumbling,
    within,
)
from sluice.errors import TopologyError
from sluice.testing import TopologyTestDriver
from tests.pipelines.conftest import Drive


class Order(Struct):
    id: int
    amount: int


def traces(driver: TopologyTestDriver, topic: str) -> list[tuple[Any, Any]]:
    """The key and the trace of each record of a topic."""
    return [(record.key, record.headers.get("trace")) for record in driver.output(topic)]


def fails(value: Any) -> bytes:
    raise ValueError("no bytes")


@pytest.mark.parametrize("in_spark", [False, True], ids=["on Arrow", "in Spark SQL"])
def test_stateless_steps_keep_headers(drive: Drive, in_spark: bool) -> None:
    pipeline = Pipeline("traced", workers=2)
    orders = pipeline.stream("orders", value=Order)
    orders.filter("amount > 10").to("large")
    orders.map_values("amount").to("amounts", value=str)
    orders.through("checked").select("id").to("ids")
    orders.to("unwritable", value=Serde(dict, encode=fails))
    windows = orders.group_by_key().windowed_by(tumbling("10 ms"), late="late")
    windows.count(store="counts").to("counts")
    topics = ["large", "amounts", "checked", "ids", "late"]
    if in_spark:
        orders.select(share="100 / amount").to("shares")
        orders.flat_map(lambda order: [(str(order.id), order), ("all", order)], returns=Order).to(
            "twice"
        )
        orders.flat_map_values("array(id, amount)").to("elements")
        topics += ["shares", "twice", "elements"]
    driver = drive(pipeline)
    own = {
        "trace": "1",
        "sluice.redriven": "1",
        "window_start": "mine",
        "bytes": b"\xff",
        "none": None,
    }
    driver.pipe("orders", {"id": 1, "amount": 99}, key="k", timestamp=50)
    driver.pipe("orders", {"id": 2, "amount": 20}, key="k", timestamp=5, headers=own)
    driver.pipe("orders", {"id": 3, "amount": 0}, key="k", timestamp=60, headers={"trace": "3"})
    kept = {name: value for name, value in own.items() if name != "sluice.redriven"}
    for topic in topics:
        (record, *_) = [
            record for record in driver.output(topic) if record.headers.get("trace") == "1"
        ]
        assert record.headers == kept, topic
    assert traces(driver, "large") == [("k", None), ("k", "1")]
    if in_spark:
        assert traces(driver, "twice") == [
            ("1", None),
            ("all", None),
            ("2", "1"),
            ("all", "1"),
            ("3", "3"),
            ("all", "3"),
        ]
        assert [trace for _, trace in traces(driver, "elements")] == [
            None,
            None,
            "1",
            "1",
            "3",
            "3",
        ]
    assert {record.headers.get("trace") for record in driver.output("counts")} == {None}
    letters = [letter.headers for letter in driver.dead_letters()]
    by_reason = [(headers["sluice.reason"], headers.get("trace")) for headers in letters]
    failed = [("processing", "3")] if in_spark else []
    assert sorted(by_reason, key=str) == sorted(
        [*failed, ("not_encoded", None), ("not_encoded", "1"), ("not_encoded", "3")], key=str
    )


class Alarm:
    """Sends each amount, and 0 five ms of stream time later."""

    def init(self, context: Context) -> None:
        self.context = context

    def process(self, record: Record[Order]) -> None:
        self.context.forward(record.key, record.value.amount)
        self.context.schedule("end", record.time + 5)

    def on_timer(self, timer: Timer) -> None:
        self.context.forward(timer.key, 0, to="output")


@pytest.mark.parametrize("by_one", [False, True], ids=["one batch", "a batch per record"])
def test_operators_that_see_records_in_order_keep_headers(drive: Drive, by_one: bool) -> None:
    pipeline = Pipeline("operators", workers=2)
    orders, prices = pipeline.stream("orders", value=Order), pipeline.stream("prices", value=Order)
    places = pipeline.table("places", value=Order)
    keyed = orders.group_by_key()
    keyed.reduce(lambda one, other: other, store="last").to("reduced")
    windows = keyed.windowed_by(tumbling("10 ms"))
    amounts = windows.aggregate(
        int, lambda total, order: total + order.amount, store="amounts", returns=int
    )
    amounts.to("windows")
    amounts.suppress_until_window_closes().to("closed")
    keyed.windowed_by(session("10 ms")).count(store="visits").to("sessions")
    orders.left_join(prices, within("5 ms")).to("priced")
    orders.left_join(places).select(id="left.id").to("placed")
    places.group_by("id").aggregate(store="sums", sum="sum(amount)").to("sums")
    orders.process(Alarm, returns=int).output.to("alarms")
    driver = drive(pipeline)
    records = [
        ("places", "k", 0, "place"), ("orders", "k", 1, "one"), ("prices", "k", 2, "price"), ("orders", "j", 3, "two"),
        ("places", "k", 4, "moved"), ("orders", "j", 4, "three"), ("orders", "z", 40, "forty"),
        ("orders", "z", 80, None),
    ]  # fmt: skip
    for number, (topic, key, time, trace) in enumerate(records):
        headers = None if trace is None else {"trace": trace}
        driver.pipe(
            topic, {"id": number // 4, "amount": 1}, key=key, timestamp=time, headers=headers
        )
        if by_one:
            driver.commit()
    orders_only = [("k", "one"), ("j", "two"), ("j", "three"), ("z", "forty"), ("z", None)]
    assert traces(driver, "reduced") == orders_only
    assert traces(driver, "windows") == orders_only
    assert traces(driver, "placed") == orders_only
    assert sorted(traces(driver, "closed")) == [("j", "three"), ("k", "one"), ("z", "forty")]
    assert {trace for _, trace in traces(driver, "sessions")} == {None}
    assert traces(driver, "sums") == [("0", "place"), ("0", "moved"), ("1", "moved")]
    sent, ended = (
        [r.headers.get("trace") for r in driver.output("alarms") if r.value == is_sent]
        for is_sent in (1, 0)
    )
    assert (sent, set(ended)) == ([trace for _, trace in orders_only], {None})
    # An unmatched record has the headers of the record that has advanced stream time.
    unmatched = [
        (r.key, r.headers.get("trace")) for r in driver.output("priced") if r.value["right"] is None
    ]
    matched = [
        (r.key, r.headers.get("trace"))
        for r in driver.output("priced")
        if r.value["right"] is not None
    ]
    assert matched == [("k", "price")]
    assert unmatched == [("j", "forty"), ("j", "forty"), ("z", None)]


class Stamped:
    """Numbers the orders of each amount in a header, moves `trace` to `origin`, and sets the time to 7 ms."""

    def init(self, context: ValueContext) -> None:
        self.context = context

    def process(self, record: Record[Order]) -> None:
        numbers = self.context.store("numbers")
        numbers.put("last", numbers.get("last", 0) + 1)
        headers = record.headers.set("number", str(numbers.get("last"))).add("key", record.key)
        if "trace" in headers:
            headers = headers.remove("trace").set("origin", record.headers.get("trace"))
        self.context.forward(record.value.id, time=7, headers=headers)


def test_a_value_processor_keeps_the_key_and_changes_headers_and_time(drive: Drive) -> None:
    pipeline = Pipeline("stamps", workers=2)
    orders = pipeline.stream("orders", value=Order)
    stamped = orders.process_values(Stamped, stores={"numbers": int}, by="amount", returns=int)
    stamped.output.filter("value < 9").to("stamped")
    # A step that knows nothing of headers passes the new ones on.
    stamped.output.group_by_key().reduce(max, store="largest").to("largest")
    driver = drive(pipeline)
    sent: list[tuple[str | None, int, list[tuple[str, str | None]]]] = [
        ("a", 1, [("trace", "x"), ("trace", "y")]), (None, 2, []), ("b", 3, [("other", None)]),
    ]  # fmt: skip
    for key, number, headers in sent:
        driver.pipe("orders", {"id": number, "amount": 5}, key, timestamp=50, headers=headers)
        driver.commit()
    assert [(record.key, record.value, record.timestamp) for record in driver.output("stamped")] == [
        ("a", 1, 7), (None, 2, 7), ("b", 3, 7),
    ]  # fmt: skip
    headers_by_record = [
        (("number", "1"), ("key", "a"), ("origin", "y")),
        (("number", "2"), ("key", None)),
        (("other", None), ("number", "3"), ("key", "b")),
    ]
    assert [record.header_pairs for record in driver.output("stamped")] == headers_by_record
    first, _, third = headers_by_record
    assert [record.header_pairs for record in driver.output("largest")] == [first, third]
    assert driver.store("numbers") == {"5": {"last": 3}}


class Bad:
    """Sends a header that is neither text nor bytes."""

    def init(self, context: Context) -> None:
        self.context = context

    def process(self, record: Record[Order]) -> None:
        self.context.forward(record.key, 1, headers={"amount": record.value.amount})  # type: ignore[arg-type]

    def on_timer(self, timer: Timer) -> None: ...


def test_wrong_headers_and_the_wrong_kind_of_processor_are_errors(drive: Drive) -> None:
    pipeline = Pipeline("wrong")
    orders = pipeline.stream("orders", value=Order)
    with pytest.raises(TopologyError, match="init of Bad takes a Context, but gets a ValueContext"):
        orders.process_values(Bad)  # type: ignore[arg-type]
    with pytest.raises(
        TopologyError, match="init of Stamped takes a ValueContext, but gets a Context"
    ):
        orders.process(Stamped)  # type: ignore[arg-type]
    with pytest.raises(TopologyError, match="a timer belongs to no record"):
        orders.process_values(Bad, by="amount")  # type: ignore[arg-type]
    orders.process(Bad, returns=int).output.to("bad")
    driver = drive(pipeline)
    driver.pipe("orders", {"id": 1, "amount": 2}, "k")
    (letter,) = driver.dead_letters()
    assert letter.headers["sluice.detail"] == (
        "TypeError: header 'amount': the value must be str, bytes or None, not int"
    )


def test_headers_are_values() -> None:
    headers = Headers([("a", "1"), ("b", b"2"), ("a", None)])
    assert headers.get("a") is None
    assert headers.text("b") == "2"
    assert headers.get("c") is None
    assert list(headers.set("a", "9")) == [("b", b"2"), ("a", b"9")]
    assert headers == Headers.of_json(headers.json())
    assert Headers().json() is None
    assert len(headers) == 3
