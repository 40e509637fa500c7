"""A table's changes as records: the kind of each change, and the row before and after it."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import Struct

from sluice import Pipeline, session, sliding, tumbling
from sluice.errors import TopologyError
from sluice.testing import TopologyTestDriver
from tests.pipelines.conftest import Drive

cuts = pytest.mark.parametrize("cut", [False, True])


class Account(Struct):
    owner: str
    balance: int


def read(driver: TopologyTestDriver, topic: str) -> list[tuple[Any, ...]]:
    return [
        (each.key, *(each.value[name] for name in ("kind", "old", "new")))
        for each in driver.output(topic)
    ]


def windows(driver: TopologyTestDriver, topic: str) -> list[tuple[Any, ...]]:
    """Window, kind, old and new value of each change."""
    return [
        (int(each.headers["window_start"]), int(each.headers["window_end"]), *each.value.values())
        for each in driver.output(topic)
    ]


def bank() -> Pipeline:
    pipeline = Pipeline("bank", workers=2)
    accounts = pipeline.table("accounts", value=Account, store="accounts_now")
    changes = accounts.changes()
    changes.to("account_changes")
    changes.filter("kind = 'update' AND new.balance < old.balance").select(
        owner="new.owner", drawn="old.balance - new.balance"
    ).to("withdrawals")
    changes.map_values(
        lambda change: f"{change['kind']} {(change['new'] or change['old'])['owner']}"
    ).to("told")
    accounts.filter("balance < 0").changes().to("overdrawn")
    accounts.group_by("owner").aggregate(store="by_owner", total="sum(balance)").changes().to(
        "owner_changes"
    )
    changes.group_by("kind").count(store="by_kind")
    return pipeline


@pytest.mark.spark
@cuts
def test_each_change_has_the_row_before_and_after_it(drive: Drive, cut: bool) -> None:
    driver = drive(bank())

    def write(key: str, owner: str | None, balance: int = 0) -> None:
        driver.pipe(
            "accounts",
            None if owner is None else {"owner": owner, "balance": balance},
            key=key,
            timestamp=0,
        )
        if cut:
            driver.commit()

    write("b", None)  # deletes a row that does not exist
    write("a", "Ann", 50)
    write("a", "Ann", -10)
    write("a", "Bob", -10)
    write("a", "Bob", 20)
    write("a", None)
    write("a", "Bob", 1)

    values = [None, ("Ann", 50), ("Ann", -10), ("Bob", -10), ("Bob", 20), None, ("Bob", 1)]
    rows = [None if value is None else {"owner": value[0], "balance": value[1]} for value in values]
    kinds = ["insert", "update", "update", "update", "delete", "insert"]
    assert read(driver, "account_changes") == [
        ("a", kind, old, new) for kind, old, new in zip(kinds, rows, rows[1:], strict=False)
    ]
    assert [each.value for each in driver.output("withdrawals")] == [{"owner": "Ann", "drawn": 60}]
    told = [each.value for each in driver.output("told")]
    assert told == [
        "insert Ann",
        "update Ann",
        "update Bob",
        "update Bob",
        "delete Bob",
        "insert Bob",
    ]
    assert read(driver, "overdrawn") == [
        ("a", "insert", None, rows[2]),
        ("a", "update", rows[2], rows[3]),
        ("a", "delete", rows[3], None),
    ], "a row that begins to pass the filter is inserted, and one that ends to is deleted"
    assert driver.store("by_kind") == {"insert": 2, "update": 3, "delete": 1}
    assert read(driver, "owner_changes")[:3] == [
        ("Ann", "insert", None, {"total": 50}),
        ("Ann", "update", {"total": 50}, {"total": -10}),
        ("Ann", "update", {"total": -10}, {"total": None}),
    ]


@cuts
def test_windows_change_each_for_itself(drive: Drive, cut: bool) -> None:
    pipeline = Pipeline("visits", workers=2)
    visits = pipeline.stream("visits", value=str).group_by_key()
    visits.windowed_by(tumbling("10 ms", grace="20 ms")).count(store="tens").changes().to(
        "tens_changes"
    )
    visits.windowed_by(session("5 ms", grace="20 ms")).count(store="sessions").changes().to(
        "session_changes"
    )
    visits.windowed_by(sliding("5 ms", grace="20 ms")).count(store="slides").changes().to(
        "slide_changes"
    )
    final = visits.windowed_by(tumbling("10 ms"), emit="window_close").count(store="final")
    final.changes().to("final_changes")
    driver = drive(pipeline)
    for time in (2, 12, 3, 7):
        driver.pipe("visits", "v", key="home", timestamp=time)
        if cut:
            driver.commit()
    assert windows(driver, "tens_changes") == [
        (0, 10, "insert", None, 1),
        (10, 20, "insert", None, 1),
        (0, 10, "update", 1, 2),
        (0, 10, "update", 2, 3),
    ]
    assert windows(driver, "session_changes") == [
        (2, 2, "insert", None, 1),
        (12, 12, "insert", None, 1),
        (2, 2, "delete", 1, None),
        (2, 3, "insert", None, 2),
        (2, 3, "delete", 2, None),
        (12, 12, "delete", 1, None),
        (2, 12, "insert", None, 4),
    ], "a session that grows is another row"
    rows: dict[tuple[int, int], int | None] = {}
    for start, end, kind, old, new in windows(driver, "slide_changes"):
        assert (kind == "insert") is ((start, end) not in rows)
        assert rows.get((start, end)) == old
        rows[start, end] = new
    assert {("home", *window): count for window, count in rows.items()} == driver.store("slides")
    assert windows(driver, "final_changes") == [(0, 10, "insert", None, 1)]


class Line(Struct):
    order: str
    amount: int


writes = st.lists(
    st.tuples(
        st.sampled_from(["orders", "lines"]), st.sampled_from("ab"), st.sampled_from([None, 1, 2])
    ),
    max_size=12,
)


@settings(max_examples=8)
@given(writes, st.sets(st.integers(0, 12)))
def test_the_changes_of_a_join_rebuild_its_table(
    written: list[tuple[str, str, int | None]], at: set[int]
) -> None:
    pipeline = Pipeline("orders")
    orders = pipeline.table("orders", value=Line, store="orders_now")
    lines = pipeline.table("lines", value=Line, store="lines_now")
    orders.left_join(lines).changes().to("joined_changes")
    orders.join(lines, on="order").changes().to("foreign_changes")
    with TopologyTestDriver(pipeline) as driver:
        model: dict[str, dict[str, Any]] = {"orders": {}, "lines": {}}
        for number, (topic, key, amount) in enumerate(written):
            row = (
                None if amount is None else {"order": "a" if amount == 1 else "b", "amount": amount}
            )
            driver.pipe(topic, row, key=key, timestamp=0)
            model[topic][key] = row
            if number in at:
                driver.commit()
        orders_now = {key: row for key, row in model["orders"].items() if row is not None}
        joined = {
            key: {"left": row, "right": model["lines"].get(key)} for key, row in orders_now.items()
        }
        by_foreign_key = {
            key: {"left": row, "right": model["lines"][row["order"]]}
            for key, row in orders_now.items()
            if model["lines"].get(row["order"]) is not None
        }
        for topic, expected in (("joined_changes", joined), ("foreign_changes", by_foreign_key)):
            rows: dict[str, Any] = {}
            for key, kind, old, new in read(driver, topic):
                assert rows.get(key) == old
                assert kind == ("insert" if old is None else "delete" if new is None else "update")
                rows[key] = new
            assert {key: row for key, row in rows.items() if row is not None} == expected


def test_a_global_table_has_no_changes() -> None:
    with pytest.raises(TopologyError, match="a global table has no changes"):
        Pipeline("global").global_table("accounts", value=Account).changes()
