"""Stores that keep headers: what their rows have, and what stays the same for other steps."""

from __future__ import annotations

import random
from typing import Any

import pytest
from msgspec import Struct

from sluice import (
    Context,
    Headers,
    Pipeline,
    Record,
    Timer,
    hopping,
    last_records,
    session,
    sliding,
    tumbling,
    within,
)
from sluice.errors import TopologyError
from sluice.plan import plan
from sluice.testing import TopologyTestDriver
from tests.pipelines.conftest import Drive


class Order(Struct):
    id: int
    amount: int = 0


def traces(driver: TopologyTestDriver, store: str) -> dict[Any, str | None]:
    """The trace of each row of a store."""
    return {key: each.text("trace") for key, each in driver.store_headers(store).items()}


def pipe(driver: TopologyTestDriver, *records: tuple[str, str, Any, int], by_one: bool) -> None:
    """Write records: topic, key, value and time. The trace of each record is its number."""
    for number, (topic, key, value, time) in enumerate(records, start=1):
        order = None if value is None else {"id": value}
        driver.pipe(topic, order, key=key, timestamp=time, headers={"trace": str(number)})
        if by_one:
            driver.commit()


BY_ONE = pytest.mark.parametrize("by_one", [False, True], ids=["one batch", "a batch per record"])


@BY_ONE
def test_only_the_named_stores_keep_headers(drive: Drive, by_one: bool) -> None:
    pipeline = Pipeline("some", workers=2, keep_headers=["counts", "kept"])
    orders = pipeline.stream("orders", value=Order, nulls="keep")
    grouped = orders.filter("id IS NOT NULL").group_by_key()
    grouped.count(store="counts")
    grouped.count(store="plain")
    orders.to_table(store="kept")
    orders.to_table(store="other")
    driver = drive(pipeline)
    records = [("orders", "a", 1, 0), ("orders", "b", 2, 1), ("orders", "a", 3, 2)]
    pipe(driver, *records, ("orders", "b", None, 3), by_one=by_one)
    assert driver.store("counts") == driver.store("plain") == {"a": 2, "b": 1}
    assert driver.store("kept") == driver.store("other") == {"a": {"id": 3, "amount": 0}}
    assert (traces(driver, "counts"), traces(driver, "kept")) == ({"a": "3", "b": "2"}, {"a": "3"})
    for store in ("plain", "other"):
        with pytest.raises(TopologyError, match=f"Store '{store}' of some keeps no headers"):
            driver.store_headers(store)


def test_the_headers_are_kept_as_they_are(drive: Drive) -> None:
    pipeline = Pipeline("exact", workers=1, keep_headers=True)
    pipeline.stream("orders", value=Order).to_table(store="latest")
    pairs = [
        ("twice", b"1"),
        ("bytes", b"\xff"),
        ("none", None),
        ("twice", b"2"),
        ("é", b"\n"),
    ]
    driver = drive(pipeline)
    driver.pipe("orders", {"id": 1}, key="a", headers=[*pairs, ("sluice.redriven", b"1")])
    driver.pipe("orders", {"id": 1}, key="b", headers={"sluice.redriven": "1"})
    driver.pipe("orders", {"id": 1}, key="c")
    headers = driver.store_headers("latest")
    assert headers == {"a": Headers(pairs), "b": Headers(), "c": Headers()}


@BY_ONE
def test_a_value_that_stays_the_same_gets_new_headers(drive: Drive, by_one: bool) -> None:
    pipeline = Pipeline("same", workers=2, keep_headers=True)
    orders = pipeline.table("orders", value=Order)
    largest = orders.group_by("'all'").aggregate(store="largest", id="max(id)")
    largest.group_by("'all'").aggregate(store="sums", sum="sum(id)")
    driver = drive(pipeline)
    records = [("orders", "a", 5, 0), ("orders", "b", 2, 1), ("orders", "a", 5, 2)]
    pipe(driver, *records, by_one=by_one)
    assert driver.store("sums") == {"all": {"sum": 5}}
    for store in ("largest", "sums"):
        assert traces(driver, store) == {"all": "3"}
    assert traces(driver, "orders") == {"a": "3", "b": "2"}


@BY_ONE
def test_tables_with_headers_replace_rows_as_other_tables_do(drive: Drive, by_one: bool) -> None:
    """A table's operator reads the row that a change replaces from its store."""
    pipeline = Pipeline("replaced", workers=2, keep_headers=["orders"])
    orders = pipeline.table("orders", value=Order)
    orders.group_by("id").count(store="sizes")
    driver = drive(pipeline)
    records = [("orders", "a", 1, 0), ("orders", "b", 1, 1), ("orders", "a", 2, 2)]
    pipe(driver, *records, ("orders", "b", None, 3), by_one=by_one)
    assert driver.store("sizes") == {"1": 0, "2": 1}
    assert traces(driver, "orders") == {"a": "3"}


@BY_ONE
def test_global_tables_with_headers_are_looked_up_as_others_are(drive: Drive, by_one: bool) -> None:
    pipeline = Pipeline("looked-up", workers=2, keep_headers=["places"])
    places = pipeline.global_table("places", value=Order)
    counts = pipeline.stream("orders", value=Order).group_by_key().count(store="counts")
    counts.join(places).select(id="right.id", n="left").to("counted")
    pipeline.stream("visits", value=Order).join(places, on="_key").select(id="right.id").to(
        "visited"
    )
    driver = drive(pipeline)
    records = [("places", "a", 1, 0), ("orders", "a", 5, 1), ("visits", "a", 6, 2)]
    records += [("places", "a", 2, 3), ("orders", "a", 7, 4), ("places", "b", 3, 5)]
    pipe(driver, *records, by_one=True)
    driver.pipe("places", None, key="b")
    assert [record.value for record in driver.output("counted")] == [
        {"id": 1, "n": 1},
        {"id": 2, "n": 2},
    ]
    assert [record.value for record in driver.output("visited")] == [{"id": 1}]
    assert driver.store("places") == {"a": {"id": 2, "amount": 0}}
    assert traces(driver, "places") == {"a": "4"}


@BY_ONE
def test_versions_expired_rows_and_suppressed_tables_keep_headers(
    drive: Drive, by_one: bool
) -> None:
    pipeline = Pipeline("tables", workers=2, keep_headers=True)
    orders = pipeline.stream("orders", value=Order)
    orders.to_table(store="versions", versioned="1 minute")
    orders.to_table(store="expiring", expires_after="10 ms")
    held = orders.group_by_key().reduce(lambda one, other: other, store="last")
    held.suppress_until_time_limit("10 ms").to_stream().to_table(store="held")
    windows = orders.group_by_key().windowed_by(tumbling("10 ms"))
    windows.count(store="windows").suppress_until_window_closes().to_stream().select_key(
        "_key"
    ).to_table(store="closed")
    driver = drive(pipeline)
    records = [("orders", "a", 1, 5), ("orders", "a", 2, 3), ("orders", "b", 3, 6)]
    pipe(driver, *records, ("orders", "c", 4, 40), by_one=by_one)
    # The second record of `a` is late for the version, but not for the other tables.
    assert traces(driver, "versions") == {"a": "1", "b": "3", "c": "4"}
    assert traces(driver, "expiring") == {"c": "4"}
    assert traces(driver, "last") == {"a": "2", "b": "3", "c": "4"}
    assert traces(driver, "held") == traces(driver, "closed") == {"a": "2", "b": "3"}
    assert traces(driver, "windows") == {
        ("a", 0, 10): "2",
        ("b", 0, 10): "3",
        ("c", 40, 50): "4",
    }


class Keeper:
    """Stores each amount with headers, and at the end of a minute without headers."""

    def init(self, context: Context) -> None:
        self.context = context

    def process(self, record: Record[Order]) -> None:
        store = self.context.store("kept")
        store.put("own", record.value.id)
        store.put("given", record.value.id, headers={"trace": f"given {record.value.id}"})
        if record.value.id < 0:
            raise ValueError("negative")
        self.context.schedule("end", record.time + 60)

    def on_timer(self, timer: Timer) -> None:
        store = self.context.store("kept")
        self.context.forward(timer.key, len(store.headers("given")) + len(store.headers("none")))
        store.put("own", 0)


@BY_ONE
def test_a_processor_stores_headers_with_its_values(drive: Drive, by_one: bool) -> None:
    pipeline = Pipeline("processor", workers=2, keep_headers=True)
    orders = pipeline.stream("orders", value=Order)
    orders.process(Keeper, stores={"kept": (int, "1 hour")}, returns=int).output.to("out")
    driver = drive(pipeline)
    records = [("orders", "a", 1, 0), ("orders", "a", -2, 1), ("orders", "b", 3, 2)]
    pipe(driver, *records, ("orders", "c", 4, 70), by_one=by_one)
    # The failed record of `a` has changed nothing. The timers of `a` and `b` have fired.
    headers = {
        key: {name: each.text("trace") for name, each in of_key.items()}
        for key, of_key in driver.store_headers("kept").items()
    }
    assert headers == {
        "a": {"given": "given 1"},
        "b": {"given": "given 3"},
        "c": {"given": "given 4", "own": "4"},
    }
    assert driver.store("kept")["a"] == {"given": 1, "own": 0}
    assert [record.value for record in driver.output("out")] == [1, 1]


class Wrong:
    """Stores headers in a store that keeps none."""

    def init(self, context: Context) -> None:
        self.context = context

    def process(self, record: Record[Order]) -> None:
        store = self.context.store("plain")
        if record.value.id:
            store.put("x", 1, headers={"a": "b"})
        else:
            store.headers("x")


def test_a_store_that_keeps_no_headers_refuses_them(drive: Drive) -> None:
    pipeline = Pipeline("wrong", workers=1)
    orders = pipeline.stream("orders", value=Order)
    orders.process(Wrong, stores={"plain": int}, returns=int).output.to("out")
    driver = drive(pipeline)
    for number in (0, 1):
        driver.pipe("orders", {"id": number}, key="a")
    details = [letter.headers["sluice.detail"] for letter in driver.dead_letters()]
    assert len(details) == 2
    for detail in details:
        assert "keeps no headers; create the pipeline with keep_headers=['plain']" in detail


def test_sessions_keep_no_headers(drive: Drive) -> None:
    pipeline = Pipeline("sessions", workers=1, keep_headers=True)
    orders = pipeline.stream("orders", value=Order).group_by_key()
    orders.windowed_by(session("5 ms")).count(store="visits")
    driver = drive(pipeline)
    pipe(driver, ("orders", "a", 1, 0), ("orders", "a", 1, 3), by_one=False)
    assert driver.store_headers("visits") == {("a", 0, 3): Headers()}


@pytest.mark.parametrize("keep_headers", ["counts", b"counts", 1, [1], None])
def test_keep_headers_is_a_choice_or_names(keep_headers: Any) -> None:
    with pytest.raises(TopologyError, match=r"must be True, False, or a list of stores"):
        Pipeline("wrong", keep_headers=keep_headers)


def test_keep_headers_names_stores_of_the_pipeline() -> None:
    pipeline = Pipeline("unknown", keep_headers=["count"])
    pipeline.stream("orders", value=Order).group_by_key().count(store="counts")
    with pytest.raises(TopologyError, match=r"'count', which does not exist.*Its stores: counts"):
        plan(pipeline)


def test_an_aggregate_with_headers_takes_records_in_order() -> None:
    reasons = {}
    for keep_headers in (False, True):
        pipeline = Pipeline("reasons", keep_headers=keep_headers)
        pipeline.stream("orders", value=Order).group_by_key().count(store="counts")
        reasons[keep_headers] = [operator.reason for operator in plan(pipeline).job.operators]
    assert reasons == {False: [], True: ["its store keeps the headers of records"]}


def every_table(keep_headers: bool) -> Pipeline:
    """Aggregates, windows, joins and tables, each with a store."""
    pipeline = Pipeline("every", workers=3, keep_headers=keep_headers)
    orders = pipeline.stream("orders", value=Order, nulls="keep")
    prices = pipeline.stream("prices", value=Order)
    by_key = orders.group_by_key()
    by_key.aggregate(store="sums", sum="sum(id)", most="max(id)")
    by_key.windowed_by(hopping("10 ms", advance="5 ms"), emit="window_close").count(store="hops")
    by_key.windowed_by(sliding("10 ms")).count(store="slides")
    by_key.windowed_by(last_records(3)).count(store="lasts")
    windows = by_key.windowed_by(tumbling("10 ms", grace="5 ms")).count(store="windows")
    windows.group_by("_key").aggregate(store="of_windows", sum="sum(value)")
    latest, priced = orders.to_table(store="latest"), prices.to_table(store="prices")
    latest.join(priced).to_stream().to_table(store="pairs")
    latest.left_join(priced, on="CAST(id AS STRING)").to_stream().to_table(store="foreign")
    latest.group_by("id").count(store="sizes")
    orders.left_join(latest).to_table(store="looked_up")
    orders.outer_join(prices, within("5 ms", grace="3 ms")).to("joined")
    orders.merge(prices).to_table(store="merged")
    return pipeline


def results(
    seed: int, *, keep_headers: bool, share: float
) -> tuple[dict[str, Any], dict[str, Any], list[Any]]:
    """The rows, their headers and the joined records, with a commit after this share of the records."""
    chance, cuts = random.Random(seed), random.Random(seed + 1)
    partitions = {"orders": 2, "prices": 2}
    with TopologyTestDriver(every_table(keep_headers), partitions=partitions) as driver:
        time = 0
        for number in range(24):
            time = max(0, time + chance.randint(-3, 8))
            topic = chance.choice(["orders", "orders", "prices"])
            value = None
            if topic == "prices" or chance.random() < 0.85:
                value = {"id": chance.randint(0, 3)}
            key, partition = chance.choice("abc"), chance.randint(0, 1)
            headers = {"trace": str(number)}
            driver.pipe(topic, value, key=key, timestamp=time, headers=headers, partition=partition)
            if cuts.random() < share:
                driver.commit()
        stores = [operator.store for operator in plan(driver.pipeline).job.operators]
        names = sorted({*filter(None, stores), "sums"})
        rows = {name: driver.store(name) for name in names}
        headers_of_rows: dict[str, Any] = {}
        if keep_headers:
            headers_of_rows = {name: driver.store_headers(name) for name in names}
        joined = [(each.key, each.value, each.headers) for each in driver.output("joined")]
        return rows, headers_of_rows, joined


@pytest.mark.parametrize("seed", [0, pytest.param(1, marks=pytest.mark.heavy)])
def test_kept_headers_depend_on_no_batch_and_change_no_value(seed: int) -> None:
    together = results(seed, keep_headers=True, share=0)
    for share in (0.2, 1):
        assert results(seed, keep_headers=True, share=share) == together
    rows, headers, joined = together
    for name, of_rows in rows.items():
        assert of_rows.keys() == headers[name].keys()
        assert all(each.text("trace") for each in headers[name].values())
    other_rows, _, other_joined = results(seed, keep_headers=False, share=0.2)
    assert rows == other_rows
    # Only the headers of unmatched records differ.
    assert [record[:2] for record in joined] == [record[:2] for record in other_joined]
    matched = [record for record in joined if None not in record[1].values()]
    assert matched == [record for record in other_joined if None not in record[1].values()]
