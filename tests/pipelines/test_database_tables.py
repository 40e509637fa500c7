"""Tables outside Kafka as outputs, in the test driver: rows, deletions, positions, and values that do not fit."""

from __future__ import annotations

import json
from datetime import datetime

import pytest
from msgspec import Struct

from sluice import Decimal2, DeltaTable, Pipeline, PostgresTable, session, tumbling
from sluice.errors import EngineError
from sluice.testing import TopologyTestDriver


class Sale(Struct):
    """A sale in a shop."""

    shop: str
    amount: int
    price: Decimal2
    at: datetime
    tags: list[str] = []


def sale(shop: str, amount: int = 1, price: str = "9.99", minute: int = 0) -> str:
    fields = {
        "shop": shop,
        "amount": amount,
        "at": f"2026-01-01T08:{minute:02}:00Z",
        "tags": [shop, "x"],
    }
    return json.dumps(fields)[:-1] + f', "price": {price}}}'


TRACED = {"trace": "1", "window_start": "mine", "_offset": None}
"""Headers of a record. Topics get them, and no table does."""


def shops() -> Pipeline:
    pipeline = Pipeline("shops")
    sales = pipeline.stream("sales", value=Sale, key="shop", event_time="at")
    totals = sales.group_by("shop").aggregate(
        store="totals", orders="count(*)", revenue="sum(price)"
    )
    totals.to(PostgresTable("shop.totals", connection="warehouse", key="shop"))
    sales.group_by("shop").windowed_by(tumbling("1 minute")).count(store="per_minute").to(
        PostgresTable("per_minute", connection="warehouse", key="shop")
    )
    sales.select("shop", "amount", "price", "at", "tags").to(
        PostgresTable("sales", connection="warehouse")
    )
    small = {"amount": "smallint"}
    sales.select("amount").to(PostgresTable("small", connection="other", types=small))
    totals.to(DeltaTable("/lake/totals", key="shop"))
    sales.select("amount", "price", "at", "tags").to(
        DeltaTable("/lake/sales", types={"amount": "SMALLINT"})
    )
    return pipeline


def test_tables_get_the_records_that_a_topic_would_get() -> None:
    with TopologyTestDriver(shops()) as driver:
        driver.pipe("sales", sale("a", 1), headers=TRACED)
        driver.pipe("sales", sale("b", 40_000, minute=1), headers=TRACED)
        driver.pipe("sales", sale("a", 3, "0.01", minute=1))
        totals = {row.key: row.value for row in driver.read("warehouse:shop.totals")}
        assert totals == {"a": {"orders": 2, "revenue": 10}, "b": {"orders": 1, "revenue": 9.99}}
        windows = [
            (row.key, int(row.headers["window_start"]) // 60_000 % 60, row.value)
            for row in driver.read("warehouse:per_minute")
        ]
        assert sorted(windows) == [("a", 0, 1), ("a", 1, 1), ("b", 1, 1)]
        assert [row.value["tags"] for row in driver.read("warehouse:sales")] == [
            ["a", "x"],
            ["b", "x"],
            ["a", "x"],
        ]
        assert [row.value for row in driver.read("other:small")] == [{"amount": 1}, {"amount": 3}]
        assert {row.key: row.value for row in driver.read("delta:/lake/totals")} == totals
        assert [row.value["tags"] for row in driver.read("delta:/lake/sales")] == [
            ["a", "x"],
            ["a", "x"],
        ]
        letters = {
            letter.headers["sluice.output"]: letter.headers for letter in driver.dead_letters()
        }
        assert letters.keys() == {"other:small", "delta:/lake/sales"}
        assert {headers["sluice.reason"] for headers in letters.values()} == {"not_encoded"}
        assert (
            letters["other:small"]["sluice.detail"]
            == "column amount (smallint): is out of range: 40000"
        )
        assert (
            letters["delta:/lake/sales"]["sluice.detail"]
            == "column amount (SMALLINT): is out of range: 40000"
        )
        assert (
            driver.counts()["unwritten/other:small"]
            == driver.counts()["unwritten/delta:/lake/sales"]
            == 1
        )
        driver.pipe("sales", sale("a"))
        (row,) = driver.read("warehouse:shop.totals")
        assert (row.key, row.value["orders"]) == ("a", 3)


def test_deletions_of_an_ordered_table() -> None:
    """A session that grows deletes its shorter window, and a table's tombstone deletes its row."""
    pipeline = Pipeline("sessions")
    sales = pipeline.stream("sales", value=Sale, key="shop", event_time="at")
    sessions = sales.group_by("shop").windowed_by(session("2 minutes")).count(store="n")
    sessions.to(PostgresTable("sessions", connection="warehouse", key="shop"))
    latest = pipeline.table("stock", value=str, store="stock_now")
    latest.to(PostgresTable("stock", connection="warehouse", key="shop"))
    with TopologyTestDriver(pipeline) as driver:
        driver.pipe("sales", sale("a"), headers=TRACED)
        driver.pipe("stock", "12", key="a", headers=TRACED)
        assert [row.value for row in driver.read("warehouse:sessions")] == [1]
        assert [row.value for row in driver.read("warehouse:stock")] == ["12"]
        driver.pipe("sales", sale("a", minute=1))
        driver.pipe("stock", "13", key="a")
        driver.pipe("stock", None, key="a")
        assert sorted(
            (row.value is None, row.value) for row in driver.read("warehouse:sessions")
        ) == [
            (False, 2),
            (True, None),
        ]
        assert [(row.key, row.value) for row in driver.read("warehouse:stock")] == [("a", None)]


@pytest.mark.parametrize("ordered", [False, True])
def test_positions_of_appended_rows(ordered: bool) -> None:
    pipeline = Pipeline("positions")
    sales = pipeline.stream("sales", value=Sale, key="shop", event_time="at")
    before = sales.deduplicate("amount", within="1 hour") if ordered else sales
    before.flat_map_values("tags").to(PostgresTable("tags", connection="warehouse"))
    with TopologyTestDriver(pipeline) as driver:
        driver.pipe("sales", sale("a", 1), headers=TRACED)
        driver.pipe("sales", "{broken")
        driver.pipe("sales", sale("b", 2))
        driver.commit()
        driver.pipe("sales", sale("c", 3))
        assert [row.value for row in driver.read("warehouse:tags")] == [*"axbxcx"]
        kept = driver._run.output.records["warehouse:tags"]
        places = [
            tuple(row[name] for name in ("_topic", "_partition", "_offset", "_row")) for row in kept
        ]
        assert places == [("sales", 0, offset, row) for offset in (0, 2, 3) for row in (0, 1)]


def test_on_error_fail_ends_the_run() -> None:
    pipeline = Pipeline("failing")
    sales = pipeline.stream("sales", value=Sale, key="shop", event_time="at")
    sales.select("amount").to(
        PostgresTable("small", connection="other", types={"amount": "smallint"}), on_error="fail"
    )
    with TopologyTestDriver(pipeline) as driver:
        driver.pipe("sales", sale("a", 40_000))
        with pytest.raises(
            EngineError, match=r"does not fit: column amount \(smallint\): is out of range: 40000"
        ):
            driver.commit()
