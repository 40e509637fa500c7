"""Merged streams of which one is ahead of the other."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec import Struct

from sluice import Pipeline
from sluice.errors import TopologyError
from tests.pipelines.conftest import Drive


class Payment(Struct):
    account: str
    amount: int


class Balance:
    """Emits an account's total after each payment."""

    def init(self, context: Any) -> None:
        self.context = context

    def process(self, record: Any) -> None:
        store = self.context.store("sum")
        store.put("sum", store.get("sum", 0) + record.value.amount)
        self.context.forward(record.key, Payment("all", store.get("sum")))

    def on_timer(self, timer: Any) -> None: ...


def test_merged_records_and_results_are_in_order_of_time(drive: Drive) -> None:
    pipeline = Pipeline("accounts", workers=2)
    paid, cash = (pipeline.stream(topic, value=Payment) for topic in ("paid", "cash"))
    balances = paid.process(Balance, stores={"sum": (int, None)}, returns=Payment).output
    merged = cash.merge(balances, paid.filter("amount > 100"))
    merged.to("merged")
    cash.merge(paid).to("received")
    merged.select(twice="amount * 2").group_by_key().aggregate(
        store="twice", last="last(twice)", n="count(*)"
    )
    driver = drive(pipeline)
    for time, (topic, amount) in enumerate(
        (("cash", 1), ("paid", 2), ("cash", 3), ("paid", 104), ("cash", 5))
    ):
        driver.pipe(topic, {"account": topic, "amount": amount}, key="k", timestamp=time)
    driver.pipe("cash", {"account": "cash", "amount": 6}, timestamp=9)
    seen = [(record.key, *record.value.values()) for record in driver.read("merged")]
    paid_late = [("k", "all", 106), ("k", "paid", 104)]
    assert [row for row in seen if row not in paid_late] == [
        ("k", "cash", 1), ("k", "all", 2), ("k", "cash", 3), ("k", "cash", 5), (None, "cash", 6),
    ]  # fmt: skip
    assert sorted(seen[3:5]) == paid_late, "both results are from the same record"
    assert driver.store("twice") == {"k": {"last": 10, "n": 6}}
    assert [record.value["amount"] for record in driver.read("received")] == [1, 2, 3, 104, 5, 6]


def test_streams_of_values_of_two_types_are_not_merged(drive: Drive) -> None:
    pipeline = Pipeline("mixed", workers=1)
    paid = pipeline.stream("paid", value=Payment)
    sums = (
        paid.group_by_key()
        .aggregate(store="sums", amount="sum(amount)", account="max(account)")
        .to_stream()
    )
    sums.merge(paid.select("account", amount="CAST(amount AS STRING)")).to("merged")
    with pytest.raises(
        TopologyError,
        match=r"merge at test_merge.py:60: one stream has values of type .*amount:bigint",
    ) as raised:
        drive(pipeline)
    assert "CAST" in raised.value.next_step


def test_a_record_arrives_once_per_path_through_merges_and_flat_maps(drive: Drive) -> None:
    pipeline = Pipeline("ways", workers=1)
    paid = pipeline.stream("paid", value=Payment)
    some = paid.filter("amount > 4").merge(paid.filter("amount < 7"))
    twice = paid.map_values("amount").merge(paid.flat_map_values("array(amount, amount)"))
    for name, ways in {
        "two": some,
        "three": some.merge(paid),
        "six": some.merge(paid).merge(some, paid),
    }.items():
        ways.to(name)
        ways.group_by_key().count(store=f"{name}_counts")
    twice.merge(paid.map_values("amount")).group_by_key().count(store="flat")
    driver = drive(pipeline)
    driver.pipe("paid", {"account": "a", "amount": 6}, "k")
    results = {
        name: (driver.store(f"{name}_counts")["k"], len(driver.read(name)))
        for name in ("two", "three", "six")
    }
    assert results == {"two": (2, 2), "three": (3, 3), "six": (6, 6)}
    assert driver.store("flat") == {"k": 4}


class Numbered(Struct):
    n: int
    key: str = ""


@pytest.mark.parametrize("stateful", [False, True])
def test_children_come_in_the_order_of_their_declaration_whatever_the_order_of_a_merge(
    drive: Drive, *, stateful: bool
) -> None:
    pipeline = Pipeline("twice", workers=2)
    numbers = pipeline.stream("numbers", value=Numbered)
    larger = numbers.select(n="n + 100", key="key")
    merged = numbers.merge(larger)
    merged.to("merged")
    if stateful:
        merged.group_by_key().aggregate(store="all", n="collect_list(n)")
    driver = drive(pipeline)
    driver.pipe("numbers", Numbered(1), key="k")
    assert [record.value["n"] for record in driver.output("merged")] == [101, 1]
    if stateful:
        assert driver.store("all") == {"k": {"n": [101, 1]}}


def test_a_join_with_a_global_table_does_not_send_records_to_the_end_of_the_line(
    drive: Drive,
) -> None:
    pipeline = Pipeline("twice", workers=2)
    numbers = pipeline.stream("numbers", value=Numbered)
    names = pipeline.global_table("names", value=Numbered)
    joined = numbers.join(names, on="key").select(n="left.n + right.n", key="left.key")
    numbers.merge(joined).group_by_key().aggregate(store="all", n="collect_list(n)")
    driver = drive(pipeline)
    driver.pipe("names", Numbered(100), key="other")
    driver.pipe("numbers", Numbered(1, "other"), key="k")
    assert driver.store("all") == {"k": {"n": [101, 1]}}


def test_a_repartitioned_stream_keeps_records_without_a_key_for_a_left_join(drive: Drive) -> None:
    pipeline = Pipeline("repartitioned", workers=2)
    dropping, keeping = (
        pipeline.stream(topic, value=Payment).repartition(2) for topic in ("dropping", "keeping")
    )
    balances = pipeline.table("balances", value=Payment)
    dropping.select("amount").join(balances).to("joined")
    keeping.select("amount").left_join(balances).to("left_joined")
    dropping.to("dropped")
    keeping.to("kept")
    driver = drive(pipeline)
    for topic in ("dropping", "keeping"):
        driver.pipe(topic, Payment("x", 1), None)
    sent = {
        topic: len(driver.read(topic)) for topic in ("joined", "left_joined", "dropped", "kept")
    }
    assert sent == {"joined": 0, "left_joined": 1, "dropped": 0, "kept": 1}
