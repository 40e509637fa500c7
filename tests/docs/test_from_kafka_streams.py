"""The Python code of "From Kafka Streams to Sluice" is one pipeline; build and run it."""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from typing import Any

import pytest
from pyspark.sql import SparkSession

from sluice.plan import plan
from sluice.testing import TopologyTestDriver
from sluice.topology import Pipeline
from sluice.topology.loading.pipeline_import import load_file
from tests.docs.pages import read

PAGE = "docs/from-kafka-streams.md"
_ROW = re.compile(r"^\| (?:.* )?\| `(.+)` \|$")


def code() -> str:
    """The page's Python code in order: blocks and the right columns of tables."""
    lines, block = [], False
    for line in read(PAGE).splitlines():
        if line.startswith("```"):
            block = line == "```python"
        elif block:
            lines.append(line)
        elif found := _ROW.match(line):
            lines.append(found[1])
    return "\n".join(lines) + "\n"


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Pipeline:
    file = tmp_path_factory.mktemp("pipelines") / "page.py"
    file.write_text(code())
    return load_file(file)


@pytest.fixture(scope="module")
def warehouse(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The URL of the database in which the page looks items up."""
    file = tmp_path_factory.mktemp("warehouse") / "warehouse.db"
    with closing(sqlite3.connect(file)) as database:
        database.executescript(
            "CREATE TABLE items (name TEXT, place TEXT); INSERT INTO items VALUES ('tea', 'top shelf')"
        )  # fmt: skip
    return f"sqlite:///{file}"


@pytest.fixture(scope="module")
def driver(
    page: Pipeline, session: SparkSession | None, warehouse: str
) -> Iterator[TopologyTestDriver]:
    """The page's pipeline, with a few records of each topic."""
    with TopologyTestDriver(page, spark=session, connections={"warehouse": warehouse}) as driver:
        for shop, city, floors in (("s1", "Pune", 2), ("s2", "Pune", 1), ("s3", "Goa", 3)):
            driver.pipe("shops", {"city": city, "floors": floors}, key=shop, timestamp=0)
        driver.pipe("cities", "a city", key="tea")
        for key, note in (("s1", "quiet"), ("s1", "rain"), ("Goa", "sun")):
            driver.pipe("notes", note, key=key, timestamp=1_000)
        for key, item, amount, tags in (
            ("s1", "tea", 5, ["hot", "wet"]),
            ("s1", "pot", 20, []),
            ("s3", "tea", 7, []),
        ):
            driver.pipe(
                "sales", {"item": item, "amount": amount, "tags": tags}, key=key, timestamp=5_000
            )
        driver.pipe("rows", "a,b", key="r")
        for second in (0, 2, 59):
            driver.pipe("clicks", {"page": "home", "at": f"2026-01-01T00:00:{second:02}"})
        driver.pipe("clicks", {"page": "home", "at": "2026-01-01T00:01:15"})
        yield driver


def records(driver: TopologyTestDriver, topic: str) -> list[tuple[str | None, Any]]:
    return [(record.key, record.value) for record in driver.output(topic)]


def test_every_row_of_the_tables_is_in_the_pipeline(page: Pipeline) -> None:
    _, *tables = read(PAGE).split("\n| Kafka Streams | Sluice |\n")
    rows = [
        line
        for table in tables
        for line in table.partition("\n\n")[0].splitlines()
        if "---" not in line
    ]
    assert rows
    assert [row for row in rows if not _ROW.match(row)] == []
    written = {*plan(page).job.outputs}
    routed = " ".join(re.findall(r"\.route\(.*\[(.*)\]\)", code()))
    assert written == {
        *re.findall(r'\.(?:to|through)\(\s*"(\w+)"', code()),
        *re.findall(r"\w+", routed),
    }


def test_topics(driver: TopologyTestDriver) -> None:
    assert records(driver, "notes_copied") == [("s1", "quiet"), ("s1", "rain"), ("Goa", "sun")]
    assert records(driver, "notes_copied_too")[0] == ("note s1", "quiet")
    assert [value["amount"] for _, value in records(driver, "sales_dear")] == [20]
    assert [value["amount"] for _, value in records(driver, "sales_cheap")] == [5, 7]
    assert [record.partition for record in driver.output("sales_spread")] == [5, 20, 7]
    assert records(driver, "rows_copied") == [("r", b"a,b")]
    assert records(driver, "shop_changes")[-1] == ("s3", {"city": "Goa", "floors": 3})


def test_stateless_steps(driver: TopologyTestDriver) -> None:
    pot = [("s1", {"item": "pot", "amount": 20, "tags": []})]
    assert records(driver, "large") == records(driver, "large_too") == pot
    assert records(driver, "cheap") == records(driver, "small")
    assert [value["item"] for _, value in records(driver, "small")] == ["tea", "tea"]
    assert records(driver, "doubled")[0] == ("s1", {"item": "tea", "double": 10})
    assert records(driver, "amounts") == [("s1", 5), ("s1", 20), ("s3", 7)]
    assert records(driver, "lengths") == [("s1", 3), ("s1", 3), ("s3", 3)]
    assert records(driver, "by_item")[1] == ("pot", {"shop": "s1", "amount": 20})
    assert records(driver, "by_item_too") == [("tea", 5), ("pot", 20), ("tea", 7)]
    assert records(driver, "tags") == records(driver, "tags_too") == [("s1", "hot"), ("s1", "wet")]
    assert records(driver, "tagged") == [("hot", "s1"), ("wet", "s1")]
    assert [key for key, _ in records(driver, "sales_by_item")] == ["tea", "pot", "tea"]
    assert (
        len(records(driver, "seen"))
        == len(records(driver, "repartitioned"))
        == len(records(driver, "sales_checked"))
        == 3
    )
    assert records(driver, "largest") == []
    assert {value for _, value in records(driver, "merged")} == {
        "quiet",
        "rain",
        "sun",
        "hot",
        "wet",
    }


def test_tables(driver: TopologyTestDriver) -> None:
    assert driver.store("newest_note") == {"s1": "rain", "Goa": "sun"}
    assert driver.store("cities") == {"tea": "a city"}
    assert records(driver, "shop_changes_per_batch") == records(driver, "shop_changes")
    assert [key for key, value in records(driver, "tall_shops") if value] == ["s1", "s3"]
    assert driver.store("shops_in_city") == {"Pune": 2, "Goa": 1}
    assert driver.store("floors_in_city") == {"Pune": {"floors": 3}, "Goa": {"floors": 3}}
    assert driver.store("floors_too") == {"Pune": 3, "Goa": 3}
    driver.pipe("shops", {"city": "Goa", "floors": 4}, key="s1")
    driver.pipe("shops", None, key="s2")
    assert driver.store("shops_in_city") == {"Pune": 0, "Goa": 2}
    assert driver.store("floors_too") == {"Pune": 0, "Goa": 7}
    insert = {"kind": "insert", "old": None, "new": {"city": "Pune", "floors": 2}}
    assert records(driver, "shop_history")[0] == ("s1", insert)
    ((shop, move),) = records(driver, "moved_shops")
    assert (shop, move["before"], move["after"]) == ("s1", "Pune", "Goa")
    assert driver.store("shops_opened_and_closed")["Pune"] == {"opened": 2, "closed": 1}


def test_aggregations(driver: TopologyTestDriver) -> None:
    assert driver.store("sales_count") == {"s1": 2, "s3": 1}
    assert driver.store("joined") == {"s1": "quiet-rain", "Goa": "sun"}
    assert driver.store("amount") == {"s1": 25, "s3": 7}
    assert driver.store("amount_too") == driver.store("amount")
    assert driver.store("amounts")["s1"] == {"sum": 25, "least": 5, "most": 20, "mean": 12.5}
    assert driver.store("lists")["s1"] == {
        "all": ["tea", "pot"],
        "different": ["tea", "pot"],
        "dearest": [20, 5],
    }


def test_windows(driver: TopologyTestDriver) -> None:
    assert sorted(driver.store("per_minute").values()) == [1, 3]
    assert sorted(driver.store("per_overlapping_minute").values()) == [1, 2, 2, 3]
    assert sorted(driver.store("per_slide").values()) == [1, 1, 1, 1, 2]
    assert list(driver.store("visits").values()) == [4]
    assert list(driver.store("per_second").values()) == [1, 1, 1, 1]
    assert records(driver, "moving_mean") == [
        ("s1", {"mean": 5}),
        ("s1", {"mean": 12.5}),
        ("s3", {"mean": 7}),
    ]
    assert records(driver, "complete_dozens") == []
    ((key, count),) = records(driver, "per_closed_minute")
    assert (key, count) == ("home", 3), "the last click ended the grace of the first window"
    marks = [(each.headers["window_result"], each.value) for each in driver.output("clicks_so_far")]
    assert marks == [("early", 3), ("final", 3)], (
        "the click at 59 s, which sent the early result, is in it"
    )
    hour = 3_600_000
    assert driver.store("sales_per_day")["s1", -7 * hour, 17 * hour] == 2, (
        "from six in the evening in Berlin"
    )
    assert len(driver.store("sales_of_seven_days")) == 2 * 7
    assert driver.store("takings_per_month")["s1", -hour, (31 * 24 - 1) * hour] == {"sum": 25}
    ((shop, april, _), total), *_ = sorted(driver.store("takings_per_year").items())
    assert (shop, april, total) == ("s1", -275 * 24 * hour - hour, {"sum": 25})


def test_windows_as_values(driver: TopologyTestDriver) -> None:
    assert [best["views"] for best in driver.store("best_page").values()] == [3, 1]
    assert records(driver, "labels")[-1] == ("home", "home had 1 views in the minute from 00:01")
    assert records(driver, "views_by_text")[-1] == ("home 00:01", 1)
    assert sorted(driver.store("updates_of_each_window").values()) == [1, 3]
    assert records(driver, "compared_views")[-1] == ("home", {"same": True})
    (first, *_) = driver.output("views_with_json_keys")
    assert first.key == '{"key":"home","start":1767225600000,"end":1767225660000}'


def test_joins(driver: TopologyTestDriver) -> None:
    assert ("s1", {"item": "tea", "note": "rain"}) in records(driver, "sale_with_note")
    assert len(records(driver, "sale_with_note")) == 4
    assert {value["right"] and "found" for _, value in records(driver, "sale_or_note")} >= {"found"}
    assert records(driver, "sale_in_city") == [
        ("s1", {"item": "tea", "city": "Pune"}),
        ("s1", {"item": "pot", "city": "Pune"}),
        ("s3", {"item": "tea", "city": "Goa"}),
    ]
    assert [value["right"] for _, value in records(driver, "item_is_a_city")] == [
        "a city",
        "a city",
    ]
    assert [value["right"] for _, value in records(driver, "item_is_perhaps_a_city")] == [
        "a city",
        None,
        "a city",
    ]
    assert ("s1", {"left": {"city": "Pune", "floors": 2}, "right": "rain"}) in records(
        driver, "shop_and_note"
    )
    assert ("s3", {"left": {"city": "Goa", "floors": 3}, "right": "sun"}) in records(
        driver, "shop_and_citys_note"
    )
    assert ("Goa", {"left": None, "right": "sun"}) in records(driver, "shop_or_note")
    assert records(driver, "scores") == [("s1", 5), ("s1", 20), ("s3", 7)]
    places = [
        value["right"] and value["right"]["place"] for _, value in records(driver, "sale_of_item")
    ]
    assert places == ["top shelf", None, "top shelf"]


def test_processors(driver: TopologyTestDriver) -> None:
    assert records(driver, "running") == [("s1", 5), ("s1", 25), ("s3", 7)]
    assert [value["item"] for _, value in records(driver, "new_items")] == ["tea", "pot"]
    assert records(driver, "traced") == [("s1", 5), ("s1", 20), ("s3", 7)]
    assert {record.timestamp for record in driver.output("traced")} == {4_999}
    assert records(driver, "floors") == [("s1", [2, 2]), ("s1", [2, 2]), ("s3", [3, 2])]
    driver.pipe("sales", {"item": "cup", "amount": 1}, key="s3", timestamp=5_000 + 3_600_000)
    assert records(driver, "quiet") == [("s1", "an hour without a sale")], (
        "the other key's sale postponed its timer"
    )
