"""Tables that Python functions filter and map, compared with the same tables by SQL."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from msgspec import Struct

from sluice import Pipeline, Windowed, tumbling
from sluice.errors import TopologyError
from sluice.topology.tables import Table
from tests.pipelines.conftest import Drive


class Shop(Struct):
    city: str
    floors: int


def is_tall(shop: Shop) -> bool:
    return shop.floors > 1


def city(shop: Shop) -> str | None:
    return None if shop.city == "nowhere" else shop.city.upper()


Steps = Callable[[Table[Shop]], tuple[Table[Any], Table[Any]]]
BY: dict[str, Steps] = {
    "functions": lambda shops: (shops.filter(is_tall), shops.map_values(city, returns=str)),
    "SQL": lambda shops: (
        shops.filter("floors > 1"),
        shops.map_values("IF(city = 'nowhere', NULL, upper(city))"),
    ),
}
RECORDS: list[tuple[str, Any]] = [
    ("a", {"city": "Rome", "floors": 1}),
    ("a", {"city": "Rome", "floors": 2}),
    ("b", {"city": "Rome", "floors": 5}),
    ("b", {"city": "Pune", "floors": 3}),
    ("c", {"city": "nowhere", "floors": 4}),
    ("a", {"city": "Pune", "floors": 1}),
    ("b", None),
    ("d", None),
]


def results(drive: Drive, steps: Steps, cut: bool) -> dict[str, Any]:
    pipeline = Pipeline("shops", workers=2)
    shops = pipeline.table("shops", value=Shop)
    tall, cities = steps(shops)
    tall.to("tall")
    cities.to("cities")
    tall.changes().to("tall_changes")
    tall.group_by("city").aggregate(store="tall_in_city", shops="count(*)", floors="sum(floors)")
    cities.group_by("value").count(store="shops_in_city")
    tall.join(cities).to("joined")
    cities.left_join(tall, on="value").to("by_city")
    tall.suppress_until_time_limit("5 ms").to("held")
    driver = drive(pipeline)
    for at, (key, value) in enumerate(RECORDS):
        driver.pipe("shops", value, key=key, timestamp=at)
        if cut:
            driver.commit()
    topics = ("tall", "cities", "tall_changes", "joined", "by_city", "held")
    outputs = {
        topic: [(each.key, each.value, each.timestamp) for each in driver.output(topic)]
        for topic in topics
    }
    assert driver.dead_letters() == []
    return outputs | {name: driver.store(name) for name in ("tall_in_city", "shops_in_city")}


@pytest.mark.parametrize("cut", [False, True], ids=["one batch", "each"])
def test_functions_give_the_same_tables_as_sql(drive: Drive, cut: bool) -> None:
    by_functions = results(drive, BY["functions"], cut)
    assert by_functions == results(drive, BY["SQL"], cut)
    assert by_functions["shops_in_city"] == {"ROME": 0, "PUNE": 1}
    assert by_functions["cities"][4] == ("c", None, 4), (
        "a function that returns None deletes the row"
    )


def test_a_function_of_a_windowed_table_gets_the_window(drive: Drive) -> None:
    pipeline = Pipeline("clicks", workers=2)
    clicks = pipeline.stream("clicks", value=str).group_by_key().windowed_by(tumbling("1 minute"))

    def label(key: Windowed[str], count: int) -> str:
        return f"{key.key} {key.start:%H:%M} {count}"

    labels = (
        clicks.count(store="clicks")
        .filter(lambda key, count: count > 1)
        .map_values(label, returns=str)
    )
    labels.to("labels")
    labels.group_by("_window_start").count(store="of_minutes")
    driver = drive(pipeline)
    for at in (0, 1_000, 60_000):
        driver.pipe("clicks", "home", key="ann", timestamp=at)
    assert [record.value for record in driver.output("labels")] == [None, "ann 00:00 2", None]
    assert driver.store("of_minutes") == {"1970-01-01 00:00:00": 1}


def test_a_row_for_which_a_function_fails_changes_nothing(drive: Drive) -> None:
    pipeline = Pipeline("shops", workers=2, max_failures=1.0)
    shops = pipeline.table("shops", value=Shop)
    heights = shops.map_values(lambda shop: 12 // shop.floors, returns=int)
    heights.to("heights")
    heights.group_by("'all'").aggregate(store="all", sum="sum(value)")
    driver = drive(pipeline)
    for floors in (3, 0, 4):
        driver.pipe("shops", {"city": "Rome", "floors": floors}, key="a")
    assert [record.value for record in driver.output("heights")] == [4, 3]
    assert driver.store("all") == {"all": {"sum": 3}}
    (letter,) = driver.dead_letters()
    assert (letter.key, letter.value, letter.headers["sluice.reason"]) == (
        "a",
        {"city": "Rome", "floors": 0},
        "processing",
    )


def test_a_type_needs_a_function() -> None:
    shops = Pipeline("wrong").table("shops", value=Shop)
    with pytest.raises(TopologyError, match="returns= is only allowed with a Python function"):
        shops.map_values("city", returns=str)  # type: ignore[call-overload]
    with pytest.raises(
        TopologyError, match=r"filter at .*: <lambda>\(\) must take \(value\) or \(key, value\)"
    ):
        shops.filter(lambda: True)  # type: ignore[arg-type, misc]
