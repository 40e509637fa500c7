"""Tables that remember the earlier values of their keys, and streams that look them up by time."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from msgspec import Struct

from sluice import Pipeline, tumbling, within
from sluice.errors import TopologyError
from sluice.testing import TopologyTestDriver
from sluice.topology import Table
from tests.pipelines.conftest import Drive


class Price(Struct):
    cents: int


cuts = pytest.mark.parametrize("cut", [False, True])


def pipe(driver: TopologyTestDriver, cut: bool, *records: tuple[str, str, Any, int]) -> None:
    for topic, key, value, at in records:
        value = {"cents": value} if topic == "prices" and value is not None else value
        driver.pipe(topic, value, key=key, timestamp=at)
        if cut:
            driver.commit()


def sold(driver: TopologyTestDriver) -> list[tuple[str, int | None]]:
    """The sales, each with its price."""
    records = [(record.value["left"], record.value["right"]) for record in driver.output("priced")]
    return [(sale, price and price["cents"]) for sale, price in records]


def pipeline_of(history: str, grace: str | None = None, how: Any = "left") -> Pipeline:
    pipeline = Pipeline("prices", workers=2)
    prices = pipeline.table("prices", value=Price, versioned=history)
    pipeline.stream("sales", value=str).join(prices, how=how, grace=grace).to("priced")
    prices.to_stream().to("all_prices")
    prices.group_by("'all'").aggregate(store="sums", sum="sum(cents)", most="max(cents)")
    return pipeline


@cuts
def test_a_sale_has_the_price_of_its_time(drive: Drive, cut: bool) -> None:
    driver = drive(pipeline_of("100 ms"))
    pipe(
        driver, cut,
        ("prices", "tea", 10, 1_000), ("prices", "tea", 20, 1_050), ("sales", "tea", "between", 1_010),
        # A price that comes late is found from its time on, until the next price.
        ("prices", "tea", 15, 1_020), ("sales", "tea", "after", 1_030), ("sales", "tea", "now", 1_060),
        ("sales", "tea", "before", 999), ("prices", "tea", None, 1_080), ("sales", "tea", "deleted", 1_090),
    )  # fmt: skip
    assert sold(driver) == [
        ("between", 10),
        ("after", 15),
        ("now", 20),
        ("before", None),
        ("deleted", None),
    ]
    # Only the latest price is in the store and in aggregates, but the stream of changes has the
    # late one too.
    assert [record.value and record.value["cents"] for record in driver.output("all_prices")] == [
        10,
        20,
        15,
        None,
    ]
    assert driver.store("prices") == {}
    assert driver.store("sums") == {"all": {"sum": None, "most": None}}


@cuts
def test_steps_behind_the_changes_read_a_late_price(drive: Drive, cut: bool) -> None:
    pipeline = Pipeline("late_prices", workers=2)
    prices = pipeline.table("prices", value=Price, versioned="100 ms")
    prices.select(euros="cents / 100.0").to_stream().filter("euros IS NOT NULL").to("mapped")
    prices.filter("cents < 18").to_stream().filter("cents IS NOT NULL").to("filtered")
    prices.to_stream().group_by("cents % 10").count(store="counts")
    driver = drive(pipeline)
    pipe(
        driver,
        cut,
        ("prices", "tea", 20, 1_050),
        ("prices", "tea", 15, 1_020),
        ("prices", "tea", 40, 1_030),
    )
    assert [record.value["euros"] for record in driver.output("mapped")] == [0.2, 0.15, 0.4]
    assert [record.value["cents"] for record in driver.output("filtered")] == [15]
    assert driver.store("counts") == {"0": 2, "5": 1}


@cuts
def test_the_history_ends_but_the_latest_price_stays(drive: Drive, cut: bool) -> None:
    driver = drive(pipeline_of("100 ms"))
    pipe(
        driver, cut,
        ("prices", "tea", 10, 1_000), ("prices", "tea", 20, 1_050), ("prices", "pot", 5, 1_200),
        ("sales", "tea", "past the history", 1_040), ("sales", "tea", "latest", 1_099),
        ("prices", "tea", 12, 1_060), ("sales", "tea", "unchanged", 1_120),
    )  # fmt: skip
    assert sold(driver) == [("past the history", None), ("latest", 20), ("unchanged", 20)]
    assert driver.counts()["late/prices"] == 1, "the price at 1,060 is older than the history"


@cuts
def test_sales_wait_for_late_prices(drive: Drive, cut: bool) -> None:
    driver = drive(pipeline_of("1 second", grace="10 ms", how="inner"))
    pipe(
        driver, cut,
        ("prices", "tea", 10, 1_000), ("sales", "tea", "first", 1_010), ("sales", "pot", "early", 1_005),
        ("prices", "tea", 11, 1_009), ("prices", "pot", 5, 1_001),
    )  # fmt: skip
    assert sold(driver) == [], "no sale is 10 ms later"
    pipe(driver, cut, ("sales", "cup", "mover", 1_020), ("sales", "tea", "late", 1_004))
    assert sold(driver) == [("early", 5), ("first", 11), ("late", 10)]


@cuts
def test_an_aggregate_has_versions(drive: Drive, cut: bool) -> None:
    pipeline = Pipeline("counts", workers=2)
    visits = pipeline.stream("visits", value=str)
    counts = visits.group_by_key().versioned("1 minute").count(store="counts")
    pipeline.stream("questions", value=str).join(counts).to("answers")
    driver = drive(pipeline)
    pipe(
        driver, cut, ("visits", "home", "v", 100), ("visits", "home", "v", 200), ("questions", "home", "?", 150),
        ("questions", "home", "?", 250), ("questions", "home", "?", 50),
    )  # fmt: skip
    assert [record.value["right"] for record in driver.output("answers")] == [1, 2]
    assert driver.store("counts") == {"home": 2}


def prices(pipeline: Pipeline, **options: Any) -> Table[Price]:
    return pipeline.table("prices", value=Price, **options)


WRONG: dict[str, tuple[Callable[[Pipeline], object], str]] = {
    "grace without versions": (
        lambda p: p.stream("s", value=str).join(prices(p), grace="1 s"),
        r"join at .*: grace= needs a versioned table.*versioned=",
    ),
    "a history shorter than the grace": (
        lambda p: p.stream("s", value=str).join(prices(p, versioned="1 s"), grace="2 s"),
        r"the grace is 2 s, but the table's versions reach back only 1 s",
    ),
    "a join of streams": (
        lambda p: p.stream("s", value=str).left_join(
            p.stream("t", value=str), within("1 s"), grace="1 s"
        ),
        r"takes no on=, no mapped_key= and no grace=",
    ),
    "versions of windows": (
        lambda p: (
            p.stream("s", value=str).group_by_key().versioned("1 s").windowed_by(tumbling("1 s"))
        ),
        r"a versioned table has no windows",
    ),
    "a negative history": (
        lambda p: prices(p, versioned="-1 s"),
        r"'-1 s' at .* is not a duration",
    ),
}


@pytest.mark.parametrize("wrong", WRONG)
def test_mistakes_are_reported(wrong: str) -> None:
    define, message = WRONG[wrong]
    with pytest.raises(TopologyError, match=message):
        define(Pipeline("wrong"))
