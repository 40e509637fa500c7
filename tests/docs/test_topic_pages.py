"""The Python code of each topic page is one pipeline; build it, and run it with a few records."""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from sluice.plan import plan
from sluice.testing import TopologyTestDriver
from sluice.topology import Pipeline
from sluice.topology.loading.pipeline_import import load_file
from tests.docs.pages import read, steps

PAGES = ("aggregations", "errors", "joins", "tables", "time", "topics", "windows")
HOUR = 3_600_000

Run = Callable[..., TopologyTestDriver]


def load(name: str, folder: Path) -> Pipeline:
    """The pipeline of all Python blocks of a page, in order."""
    file = folder / f"{name}_page.py"
    file.write_text("\n".join(step.commands for step in steps(read(f"docs/{name}.md"), "python")))
    return load_file(file)


@pytest.fixture
def run(session: SparkSession | None, tmp_path: Path) -> Iterator[Run]:
    """Start a test driver with the pipeline of a page."""
    with ExitStack() as drivers:

        def start(name: str, **options: Any) -> TopologyTestDriver:
            driver = TopologyTestDriver(load(name, tmp_path), spark=session, **options)
            return drivers.enter_context(driver)

        yield start


def records(driver: TopologyTestDriver, topic: str) -> list[tuple[str | None, Any]]:
    return [(record.key, record.value) for record in driver.output(topic)]


@pytest.mark.parametrize("name", PAGES)
def test_a_page_has_a_picture_and_a_pipeline(name: str, tmp_path: Path) -> None:
    page = read(f"docs/{name}.md")
    assert re.search(r"^!\[|^```mermaid$", page, re.MULTILINE), "a picture"
    assert plan(load(name, tmp_path)).job.outputs


def test_windows(run: Run) -> None:
    driver = run("windows")
    for second in (0, 2, 59):
        driver.pipe("clicks", {"page": "home", "at": f"2026-01-01T00:00:{second:02}"})
    driver.pipe("clicks", {"page": "home", "at": "2026-01-01T00:01:15"})
    for shop, amount in (("s1", 5), ("s1", 20), ("s3", 7)):
        driver.pipe("sales", {"item": "tea", "amount": amount}, key=shop, timestamp=5_000)

    assert sorted(driver.store("per_minute").values()) == [1, 3]
    assert sorted(driver.store("per_hop").values()) == [1, 2, 2, 3]
    assert sorted(driver.store("per_slide").values()) == [1, 1, 1, 1, 2]
    assert list(driver.store("visits").values()) == [4]
    assert list(driver.store("per_second").values()) == [1, 1, 1, 1]
    assert records(driver, "per_final_minute") == records(driver, "per_closed_minute")
    assert records(driver, "per_closed_minute") == [("home", 3)]
    marks = [(each.headers["window_result"], each.value) for each in driver.output("clicks_so_far")]
    assert marks == [("early", 3), ("final", 3)]
    means = [("s1", {"mean": 5}), ("s1", {"mean": 12.5}), ("s3", {"mean": 7})]
    assert records(driver, "moving_mean") == means
    assert records(driver, "complete_dozens") == []
    assert driver.store("sales_per_day")["s1", -7 * HOUR, 17 * HOUR] == 2
    assert len(driver.store("sales_of_seven_days")) == 2 * 7
    assert driver.store("takings_per_month")["s1", -HOUR, (31 * 24 - 1) * HOUR] == {"sum": 25}
    ((shop, april, _), total), *_ = sorted(driver.store("takings_per_year").items())
    assert (shop, april, total) == ("s1", -275 * 24 * HOUR - HOUR, {"sum": 25})


def test_windows_as_values(run: Run) -> None:
    driver = run("windows")
    for time in ("00:00:00", "00:00:02", "00:00:59", "00:01:15"):
        driver.pipe("clicks", {"page": "home", "at": f"2026-01-01T{time}"})
    assert [best["views"] for best in driver.store("best_page").values()] == [3, 1]
    assert records(driver, "labels")[-1] == ("home", "home had 1 views in the minute from 00:01")
    assert records(driver, "views_by_text")[-1] == ("home 00:01", 1)
    (first, *_) = driver.output("views_with_json_keys")
    assert first.key == '{"key":"home","start":1767225600000,"end":1767225660000}'


def test_the_clicks_of_the_time_page_are_late_as_its_table_says(run: Run) -> None:
    driver = run("time")
    page = read("docs/time.md")
    table = re.findall(r"^\| (08:\d\d:\d\d) \| (08:\d\d:\d\d) \| (.*) \|$", page, re.MULTILINE)
    assert len(table) == 5
    for event_time, _, result in table:
        driver.pipe("clicks", {"page": "home", "at": f"2026-01-01T{event_time}"})
        late = len(driver.read("late_visits"))
        assert late == (1 if result.startswith("late") else 0), event_time
    assert driver.counts()["late/visits"] == 1
    assert [value for _, value in records(driver, "final_visits")] == [2]


def test_joins(run: Run, tmp_path: Path) -> None:
    file = tmp_path / "warehouse.db"
    with closing(sqlite3.connect(file)) as database:
        database.execute("CREATE TABLE items (name TEXT, place TEXT)")
        database.execute("INSERT INTO items VALUES ('tea', 'top shelf')")
        database.commit()
    driver = run("joins", connections={"warehouse": f"sqlite:///{file}"})
    for shop, city, floors in (("s1", "Pune", 2), ("s3", "Goa", 3)):
        driver.pipe("shops", {"city": city, "floors": floors}, key=shop, timestamp=0)
    driver.pipe("cities", "a city", key="tea")
    driver.pipe("prices", {"cents": 150}, key="tea", timestamp=0)
    for place, note in (("s1", "quiet"), ("s1", "rain"), ("Goa", "sun")):
        driver.pipe("notes", note, key=place, timestamp=1_000)
    for shop, item in (("s1", "tea"), ("s1", "pot"), ("s3", "tea")):
        driver.pipe("sales", {"item": item, "amount": 5}, key=shop, timestamp=5_000)
    driver.pipe("sales", {"item": "cup", "amount": 1}, key="s4", timestamp=60_000)

    assert len(records(driver, "sale_with_note")) == 4
    assert records(driver, "sale_in_city")[0] == ("s1", {"item": "tea", "city": "Pune"})
    assert [key for key, _ in records(driver, "item_is_a_city")] == ["s1", "s3"]
    assert ("s3", {"left": {"city": "Goa", "floors": 3}, "right": "sun"}) in records(
        driver, "shop_and_citys_note"
    )
    assert records(driver, "priced_sales")[0] == ("tea", {"amount": 5, "cents": 150})
    assert records(driver, "sale_and_note")[-1] == ("s1", {"item": "pot", "note": "rain"})
    places = [value["right"] and value["right"]["place"] for _, value in records(driver, "sale_of_item")]  # fmt: skip
    assert places == ["top shelf", None, "top shelf", None]


def test_tables(run: Run) -> None:
    driver = run("tables")
    for shop, city, floors in (("s1", "Pune", 2), ("s2", "Pune", 1), ("s3", "Goa", 3)):
        driver.pipe("shops", {"city": city, "floors": floors}, key=shop, timestamp=0)
    assert driver.store("shops_in_city") == {"Pune": 2, "Goa": 1}
    assert [key for key, value in records(driver, "tall_shops") if value] == ["s1", "s3"]

    driver.pipe("shops", {"city": "Goa", "floors": 4}, key="s1")
    driver.pipe("shops", None, key="s2")
    assert driver.store("shops_in_city") == {"Pune": 0, "Goa": 2}
    insert = {"kind": "insert", "old": None, "new": {"city": "Pune", "floors": 2}}
    assert records(driver, "shop_history")[0] == ("s1", insert)
    ((moved, move),) = records(driver, "moved_shops")
    assert (moved, move["before"], move["after"]) == ("s1", "Pune", "Goa")
    assert driver.store("shops_opened_and_closed")["Pune"] == {"opened": 2, "closed": 1}

    change = {"op": "c", "before": None, "after": {"city": "Goa", "floors": 1}}
    driver.pipe("db.public.shops", change, key='{"id": 7}')
    assert driver.store("captured_shops_in_city") == {"Goa": 1}

    driver.pipe("offers", {"price": 5, "valid_until": "2026-01-01T08:00:00"}, key="a", timestamp=0)
    driver.pipe("offers", {"price": 6}, key="b", timestamp=1_767_258_000_000)
    assert records(driver, "valid_offers") == [("a", 5), ("a", None), ("b", 6)]


def test_aggregations(run: Run) -> None:
    driver = run("aggregations")
    for shop, item, amount in (("s1", "tea", 5), ("s1", "pot", 20), ("s3", "tea", 7)):
        driver.pipe("sales", {"item": item, "amount": amount}, key=shop, timestamp=5_000)
    for note in ("quiet", "rain"):
        driver.pipe("notes", note, key="s1")
    driver.pipe("clicks", {"page": "tea", "at": "2026-01-01T00:00:00"})
    driver.pipe("shops", {"city": "Pune", "floors": 2}, key="s1")

    assert driver.store("sales_count") == {"s1": 2, "s3": 1}
    assert driver.store("amounts")["tea"] == {"sum": 12, "least": 5, "most": 7, "mean": 6}
    assert driver.store("lists")["s1"]["dearest"] == [20, 5]
    assert driver.store("joined") == {"s1": "quiet-rain"}
    assert driver.store("amount") == driver.store("amount_too") == {"s1": 25, "s3": 7}
    assert [value for _, value in records(driver, "every_update")] == [1, 1, 2]
    assert driver.store("activity")["tea"] == {"clicks": 1, "events": 3, "sold": 12}
    assert driver.store("floors_in_city") == {"Pune": 2}


def test_errors(run: Run) -> None:
    driver = run("errors")
    driver.pipe("sales", b"no JSON")
    driver.pipe("sales", {"item": "tea", "amount": 6, "pieces": 2})
    driver.pipe("sales", {"item": "pot", "amount": 6, "pieces": 0})
    assert [value for _, value in records(driver, "prices")] == [{"item": "tea", "price": 3}]
    assert [letter.headers["sluice.reason"] for letter in driver.dead_letters()] == ["processing"]


def test_topics(run: Run) -> None:
    driver = run("topics")
    for item, amount, tags in (("tea", 5, ["hot", "wet"]), ("pot", 20, [])):
        sale = {"item": item, "amount": amount, "tags": tags}
        driver.pipe("sales", sale, key="s1", headers={"trace": "ab"})
    driver.pipe("notes", "quiet", key="s1")
    driver.pipe("jobs", {"steps_left": 2}, key="j")
    driver.commit()

    assert [value["item"] for _, value in records(driver, "large")] == ["pot"]
    assert [value["amount"] for _, value in records(driver, "sales_dear")] == [20]
    assert [record.partition for record in driver.output("sales_spread")] == [5, 20]
    assert records(driver, "notes_with_other_keys") == [("note s1", "quiet")]
    assert {value for _, value in records(driver, "merged")} == {"quiet", "hot", "wet"}
    assert [record.headers["trace"] for record in driver.output("traced_sales")] == ["AB", "AB"]
    assert records(driver, "jobs_done") == [("j", {"steps_left": 0})]
