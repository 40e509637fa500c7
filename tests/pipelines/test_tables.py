"""Tables that are written to a topic."""

from __future__ import annotations

import json
from collections import Counter
from datetime import datetime
from decimal import Decimal
from typing import Any, Literal

import pytest
from msgspec import Struct
from pyspark.sql import SparkSession

from sluice import Decimal2, Pipeline, Table, tumbling
from sluice.testing import TopologyTestDriver
from sluice.testing.topology_test_driver import Output
from tests.pipelines.conftest import Drive


class Shop(Struct):
    city: str
    floors: int


def test_a_tables_record_without_a_key_is_dropped(drive: Drive) -> None:
    pipeline = Pipeline("towns", workers=1)
    shops = pipeline.table("shops", value=Shop)
    shops.filter("floors > 1").to("tall")
    shops.select("city").to("cities")
    driver = drive(pipeline)
    for key in ("a", None, "b"):
        driver.pipe("shops", {"city": "Ulm", "floors": 3}, key=key)
    assert [record.key for record in driver.read("tall")] == ["a", "b"]
    assert [record.key for record in driver.read("cities")] == ["a", "b"]


class Item(Struct):
    n: int | None
    g: str | None


def test_a_tables_record_without_a_key_does_not_reach_its_changes(drive: Drive) -> None:
    pipeline = Pipeline("changes", workers=1)
    changes = pipeline.table("items", value=Item).to_stream()
    changes.to("out")
    changes.group_by("g").count(store="groups")
    driver = drive(pipeline)
    for key in ("a", None):
        driver.pipe("items", {"n": 1, "g": "x"}, key)
    assert [record.key for record in driver.read("out")] == ["a"]
    assert driver.store("groups") == {"x": 1}
    assert driver.counts()["null_key/items"] == 1


def test_a_mapped_table_is_grouped_and_joined(drive: Drive) -> None:
    pipeline = Pipeline("both", workers=1)
    names = pipeline.table("names", value=Item)
    counts = pipeline.stream("items", value=Item).group_by_key().count(store="counts")
    for name, table in (
        ("counted", counts.select(n="value", g="'all'")),
        ("given", names.select("n", "g")),
    ):
        table.group_by("g").aggregate(
            store=f"{name}_groups", n="sum(n)"
        )  # subtracts the row's old value
        table.join(names).to(f"{name}_joined")  # does not subtract
    driver = drive(pipeline)
    driver.pipe("names", {"n": 8, "g": "x"}, "a")
    driver.pipe("items", {"n": 1, "g": "x"}, "a")
    driver.commit()
    driver.pipe("names", {"n": 9, "g": "x"}, "a")
    driver.pipe("items", {"n": 1, "g": "x"}, "a")
    assert (driver.store("counted_groups"), driver.store("given_groups")) == (
        {"all": {"n": 2}},
        {"x": {"n": 9}},
    )
    assert driver.read("counted_joined")[-1].value == {
        "left": {"n": 2, "g": "all"},
        "right": {"n": 9, "g": "x"},
    }
    assert driver.read("given_joined")[-1].value["left"]["n"] == 9


@pytest.mark.parametrize(("kind", "left"), [(int, 2), (float, 2.0), (Decimal2, Decimal("2"))])
def test_a_group_has_the_sum_of_the_rows_that_are_left(drive: Drive, kind: Any, left: Any) -> None:
    pipeline = Pipeline("initial", workers=1)
    sums = (
        pipeline.stream("sales", value=kind)
        .group_by_key()
        .aggregate(store="sums", n="coalesce(sum(value), 0)")
    )
    sums.group_by("IF(n < 5, 'low', 'high')").aggregate(store="levels", n="sum(n)")
    driver = drive(pipeline)
    # In Kafka Streams, the first row of b also subtracts the initial aggregate, 0, from the low
    # level.
    for key, value in (("a", 1), ("b", 2), ("a", 9)):
        driver.pipe("sales", value, key)
    assert driver.store("levels")["low"] == {"n": left}


def test_a_first_result_leaves_no_group(drive: Drive) -> None:
    pipeline = Pipeline("groups", workers=1)
    counts = pipeline.stream("sales", value=int).group_by_key().count(store="counts")
    counts.group_by("IF(value = 0, 'none', 'some')").count(store="groups").to_stream().to(
        "groups_said"
    )
    driver = drive(pipeline)
    driver.pipe("sales", 5, "a")
    said = [(record.key, record.value) for record in driver.read("groups_said")]
    assert said == [("some", 1)], (
        "Kafka Streams deletes the group of the initial aggregate, which never had a row"
    )


def test_a_row_that_a_join_sends_no_result_for_does_not_advance_stream_time(drive: Drive) -> None:
    pipeline = Pipeline("held_joins", workers=2)
    left, right = (pipeline.table(topic, value=Item) for topic in ("left", "right"))
    for how in ("inner", "left", "outer"):
        left.join(right, how=how).suppress_until_time_limit("4 ms").to(f"{how}_held")
    driver = drive(pipeline)
    for topic, key, time in (("left", "a", 10), ("right", "a", 11), ("right", "b", 20)):
        driver.pipe(topic, {"n": 1, "g": None}, key, timestamp=time)
    assert [len(driver.read(f"{how}_held")) for how in ("inner", "left", "outer")] == [0, 0, 1]
    for topic in ("left", "right"):
        driver.pipe(topic, {"n": 1, "g": None}, "c", timestamp=30)
    assert [len(driver.read(f"{how}_held")) for how in ("inner", "left", "outer")] == [1, 1, 1]


def test_a_row_that_never_passed_a_filter_is_no_update_for_a_suppress_step(drive: Drive) -> None:
    pipeline = Pipeline("held_rows", workers=2)
    items = pipeline.table("items", value=Item)
    items.select("n").filter("n > 0").select("n").suppress_until_time_limit("4 ms").to("held")
    driver = drive(pipeline)
    for key, n, time in (("a", 1, 10), ("b", 0, 20), ("b", 0, 30)):
        driver.pipe("items", {"n": n, "g": None}, key, timestamp=time)
    assert driver.read("held") == [], "the rows of b do not even advance stream time"
    driver.pipe("items", {"n": 2, "g": None}, "c", timestamp=40)
    driver.pipe("items", {"n": 0, "g": None}, "c", timestamp=50)
    assert [(record.key, record.value) for record in driver.read("held")] == [
        ("a", {"n": 1}),
        ("c", None),
    ]


@pytest.mark.parametrize("size", [1, 3, 6])
def test_a_stream_of_a_filtered_table_has_no_deletions_of_rows_that_never_passed(
    drive: Drive, size: int
) -> None:
    pipeline = Pipeline("passed", workers=2)
    sums = pipeline.stream("sales", value=Item).group_by_key().aggregate(store="sums", n="sum(n)")
    kept = pipeline.stream("kept", value=Item).to_table(store="kept")
    tables: dict[str, Table[Any]] = {
        "of_an_aggregate": sums.filter("n > 3").select(n="n"),
        "of_a_stream": kept.filter("n > 3").select("n"),
        "of_a_topic": pipeline.table("items", value=Item).filter("n > 3").select("n"),
    }
    for name, table in tables.items():
        table.to_stream().to(name)
    driver = drive(pipeline)
    for number, (key, n, total) in enumerate(
        [("a", 1, 1), ("b", 5, 5), ("a", 3, 4), ("b", -3, 2), ("a", -3, 1), ("b", 1, 3)]
    ):
        driver.pipe("sales", {"n": n, "g": None}, key, timestamp=number)
        for topic in ("kept", "items"):
            driver.pipe(topic, {"n": total, "g": None}, key, timestamp=number)
        if (number + 1) % size == 0:
            driver.commit()
    sent = {
        name: [(record.key, record.value and record.value["n"]) for record in driver.read(name)]
        for name in tables
    }
    passed = [("b", 5), ("a", 4), ("b", None), ("a", None)]
    assert sent == {
        "of_an_aggregate": passed,
        "of_a_stream": passed,
        # Kafka Streams does not know the old rows of such a table, either.
        "of_a_topic": [("a", None), *passed, ("b", None)],
    }


def test_a_deleted_row_advances_the_stream_time_of_the_groups(drive: Drive) -> None:
    pipeline = Pipeline("held_groups", workers=2)
    items = pipeline.table("items", value=Item)
    items.group_by("g").count(store="groups").suppress_until_time_limit("4 ms").to("held")
    driver = drive(pipeline)
    driver.pipe("items", {"n": 1, "g": "x"}, "a", timestamp=60)
    driver.pipe("items", None, "a", timestamp=100)
    assert [(record.key, record.value, record.timestamp) for record in driver.read("held")] == [
        ("x", 0, 100)
    ]


def test_a_suppressed_table_subtracts_the_old_values_of_its_rows(drive: Drive) -> None:
    pipeline = Pipeline("held", workers=2)
    items, others = pipeline.table("items", value=Item), pipeline.table("others", value=Item)
    held = items.suppress_until_time_limit("0 s")
    held.group_by("g").aggregate(store="groups", c="count(*)", n="sum(n)")
    held.join(others, on="g").to("joined")
    sums = items.to_stream().group_by_key().aggregate(store="sums", n="sum(n)")
    sums.filter("n > 0").suppress_until_time_limit("0 s").group_by("'all'").aggregate(
        store="all", n="sum(n)"
    )
    driver = drive(pipeline)
    for time, (topic, key, n, g) in enumerate(
        [
            ("others", "x", 1, ""),
            ("others", "y", 2, ""),
            ("items", "a", 2, "x"),
            ("items", "a", 7, "y"),
        ]
    ):
        driver.pipe(topic, {"n": n, "g": g}, key, timestamp=time)
        driver.commit()
    driver.pipe("others", {"n": 3, "g": ""}, "x", timestamp=9)
    assert driver.store("groups") == {"x": {"c": 0, "n": None}, "y": {"c": 1, "n": 7}}
    assert [(record.value["left"]["n"], record.value["right"]["n"]) for record in driver.read("joined")] == [
        (2, 1), (7, 2),
    ], "x has no foreign key any more"  # fmt: skip
    assert driver.store("all") == {"all": {"n": 9}}


def test_a_row_that_changes_within_its_group_is_one_update_and_across_groups_two(
    drive: Drive,
) -> None:
    pipeline = Pipeline("within", workers=1)
    groups = (
        pipeline.table("items", value=Item)
        .group_by("g")
        .aggregate(store="groups", c="count(*)", n="sum(n)")
    )
    groups.to("out")
    groups.group_by("c").count(store="by_size")
    driver = drive(pipeline)
    for n, g in ((2, "x"), (7, "x"), (7, "y")):
        driver.pipe("items", {"n": n, "g": g}, "a")
    assert [(record.key, *record.value.values()) for record in driver.read("out")] == [
        ("x", 1, 2), ("x", 1, 7), ("x", 0, None), ("y", 1, 7),
    ]  # fmt: skip
    assert driver.store("by_size") == {"0": 1, "1": 1}


@pytest.mark.parametrize("size", [3, pytest.param(1, marks=pytest.mark.heavy)])
def test_steps_that_read_no_value_get_every_change(drive: Drive, size: int) -> None:
    pipeline = Pipeline("changes", workers=2)
    items, visits = pipeline.table("items", value=Item), pipeline.stream("visits", value=Item)
    tables = {"items": items, "tall": items.filter("n > 2"), "named": items.map_values("n")}
    counts = visits.group_by_key().count(store="visited")
    tables["counts"], tables["few"] = counts, counts.filter("value < 2")
    for name, table in tables.items():
        for number, key in enumerate(
            ("_key", "'all'", "concat(_key, '!')", "IF(_key = 'a', 'a', NULL)")
        ):
            table.group_by(key).count(store=f"{name}_{number}")
        changes = table.to_stream()
        changes.select(one="1").to(f"{name}_ones")
        changes.select(one="1").group_by("_key").count(store=f"{name}_changes")
    hours = visits.group_by_key().windowed_by(tumbling("1 hour")).count(store="hours")
    hours.to_stream().group_by("'all'").count(store="hour_changes")
    driver = drive(pipeline)
    for number, (topic, key, n) in enumerate([
        ("items", "a", 1), ("items", "a", 3), ("items", "b", 5), ("visits", "a", 1), ("visits", "a", 1),
        ("items", "a", None), ("items", "c", 7), ("items", "c", 0), ("visits", "b", 2),
    ]):  # fmt: skip
        driver.pipe(topic, None if n is None else {"n": n, "g": None}, key, timestamp=number)
        if (number + 1) % size == 0:
            driver.commit()
    changed = {
        "items": "aabacc",
        "tall": "aabacc",
        "named": "aabacc",
        "counts": "aab",
        "few": "aab",
    }
    rows = {"items": "bc", "tall": "b", "named": "bc", "counts": "ab", "few": "b"}
    for name in tables:
        groups = [
            {key: n for key, n in driver.store(f"{name}_{number}").items() if n}
            for number in range(4)
        ]
        together = {"all": len(rows[name])}
        own = dict.fromkeys(rows[name], 1)
        exclaimed = {f"{key}!": 1 for key in rows[name]}
        assert groups == [own, together, exclaimed, {key: 1 for key in own if key == "a"}], name
        assert "".join(record.key or "" for record in driver.read(f"{name}_ones")) == changed[name]
        assert driver.store(f"{name}_changes") == Counter(changed[name])
    assert driver.store("hour_changes") == {"all": 3}


def test_a_table_is_joined_with_a_global_table(drive: Drive) -> None:
    pipeline = Pipeline("looked_up", workers=1)
    rates = pipeline.global_table("rates", value=Item)
    pipeline.table("items", value=Item).join(rates).to("out")
    driver = drive(pipeline)
    driver.pipe("rates", {"n": 5, "g": None}, "a")
    driver.pipe("items", {"n": 2, "g": None}, "a")
    assert [record.value["right"]["n"] for record in driver.read("out")] == [5]


@pytest.mark.parametrize("cuts", [pytest.param((), marks=pytest.mark.heavy), (3,)])
@pytest.mark.parametrize("joins", ["a store", "a table"])
def test_the_last_change_of_a_global_tables_key_counts_in_any_partition(
    session: SparkSession | None, cuts: tuple[int, ...], joins: str
) -> None:
    pipeline = Pipeline("elsewhere", workers=2)
    rates = pipeline.global_table("rates", value=Item)
    if joins == "a store":
        pipeline.stream("items", value=Item).group_by_key().count(store="counts").join(rates).to(
            "out"
        )
    else:
        pipeline.table("items", value=Item).join(rates).to("out")
    with TopologyTestDriver(pipeline, spark=session, partitions={"rates": 2}) as driver:
        records = [("other", 0, 0), ("other", 0, 0), ("a", 1, 0), ("a", 2, 1)]
        for number, (key, n, partition) in enumerate(records):
            if number in cuts:
                driver.commit()
            driver.pipe("rates", {"n": n, "g": None}, key, partition=partition)
        driver.pipe("items", {"n": 0, "g": None}, "a")
        assert [record.value["right"]["n"] for record in driver.read("out")] == [2]
        assert driver.store("rates")["a"]["n"] == 2
        counts = driver.counts()
        assert (counts["read"], counts["applied"]) == (5, 5)


@pytest.mark.parametrize("cuts", [pytest.param((), marks=pytest.mark.heavy), (1, 2)])
def test_an_output_of_a_store_has_the_largest_time_of_its_records(
    drive: Drive, cuts: tuple[int, ...]
) -> None:
    pipeline = Pipeline("times", workers=2)
    rates = pipeline.global_table("rates", value=Item)
    items = pipeline.stream("items", value=Item).group_by_key()
    counts = items.count(store="counts")
    counts.to("counted")
    counts.join(rates).select(n="left").to("rated")
    items.windowed_by(tumbling("50 ms", grace="50 ms")).aggregate(store="sums", n="sum(n)").select(
        half="1 / n"
    ).to("halves")
    driver = drive(pipeline)
    driver.pipe("rates", {"n": 1, "g": None}, "a", timestamp=999)
    for number, (key, n, time) in enumerate(
        (("a", 1, 70), ("a", 1, 20), ("b", 1, 30), ("a", 0, 60))
    ):
        driver.pipe("items", {"n": n, "g": None}, key, timestamp=time)
        if number in cuts:
            driver.commit()
    last = {record.key: (record.value, record.timestamp) for record in driver.read("counted")}
    assert last == {"a": (3, 70), "b": (1, 30)}
    assert driver.read("rated")[-1] == Output("a", {"n": 3}, 70)
    halves = {
        (record.key, record.headers["window_start"]): record.timestamp
        for record in driver.read("halves")
    }
    assert halves == {("a", "0"): 20, ("b", "0"): 30, ("a", "50"): 70}


def test_a_failing_mapping_of_a_table_makes_one_dead_letter(drive: Drive) -> None:
    pipeline = Pipeline("mapped", workers=1)
    halves = pipeline.table("items", value=Item).select(half="1 / n", g="g")
    halves.group_by("g").count(store="groups")
    halves.to("out")
    driver = drive(pipeline)
    for key, n in (("a", 0), ("b", 2)):
        driver.pipe("items", {"n": n, "g": "x"}, key)
    assert [record.value["n"] for record in driver.dead_letters()] == [0]
    assert (driver.store("groups"), driver.counts()["failed/select-2"]) == ({"x": 1}, 1)
    assert [record.key for record in driver.read("out")] == ["b"]


class Visit(Struct):
    g: str | None
    n: int


Row = tuple[str, str | None, tuple[str | None, int] | None]
"""Topic, key and value."""
ROWS: list[Row] = [
    ("visits", "a", ("x", 1)),
    ("visits", "a", ("x", 2)),
    ("visits", "b", ("x", 3)),
    ("visits", "zz", None),
    ("visits", "a", ("y", 2)),
    ("places", "x", None),
    ("places", "x", (None, 7)),
    ("visits", "a", ("x", 2)),
    ("visits", "a", (None, 2)),
    ("visits", "a", ("y", 1)),
    ("visits", "b", None),
    ("places", "b", (None, 5)),
    ("visits", "b", None),
    ("visits", "c", ("y", 3)),
    ("places", "c", None),
    ("places", "y", (None, 8)),
    ("visits", "c", None),
    ("visits", "c", None),
]
KAFKA_STREAMS: dict[str, list[tuple[str, str | None]]] = {
    "fk_inner": [
        ("a", None),
        ("b", None),
        ("b", "3+7"),
        ("a", "2+7"),
        ("a", None),
        ("b", None),
        ("a", "1+8"),
        ("c", "3+8"),
        ("c", None),
    ],
    "fk_left": [
        ("a", "1+-"),
        ("a", "2+-"),
        ("b", "3+-"),
        ("a", "2+-"),
        ("b", "3+-"),
        ("b", "3+7"),
        ("a", "2+7"),
        ("a", "2+-"),
        ("a", "1+-"),
        ("b", None),
        ("c", "3+-"),
        ("a", "1+8"),
        ("c", "3+8"),
        ("c", None),
    ],
    "inner": [("b", None), ("c", None)],
    "left": [
        ("a", "1+-"),
        ("a", "2+-"),
        ("b", "3+-"),
        ("a", "2+-"),
        ("a", "2+-"),
        ("a", "2+-"),
        ("a", "1+-"),
        ("b", None),
        ("b", None),
        ("c", "3+-"),
        ("c", "3+-"),
        ("c", None),
    ],
    "outer": [
        ("a", "1+-"),
        ("a", "2+-"),
        ("b", "3+-"),
        ("a", "2+-"),
        ("x", "-+7"),
        ("a", "2+-"),
        ("a", "2+-"),
        ("a", "1+-"),
        ("b", None),
        ("b", "-+5"),
        ("b", "-+5"),
        ("c", "3+-"),
        ("c", "3+-"),
        ("y", "-+8"),
        ("c", None),
    ],
    "filter": [
        ("a", None),
        ("a", "2"),
        ("b", "3"),
        ("zz", None),
        ("a", "2"),
        ("a", "2"),
        ("a", "2"),
        ("a", None),
        ("b", None),
        ("b", None),
        ("c", "3"),
        ("c", None),
        ("c", None),
    ],
    "lf_fk_inner": [
        ("a", None),
        ("b", None),
        ("b", "3+7"),
        ("a", "2+7"),
        ("a", None),
        ("b", None),
        ("c", "3+8"),
        ("c", None),
    ],
    "lf_fk_left": [
        ("a", "2+-"),
        ("b", "3+-"),
        ("a", "2+-"),
        ("b", "3+-"),
        ("b", "3+7"),
        ("a", "2+7"),
        ("a", "2+-"),
        ("a", None),
        ("b", None),
        ("c", "3+-"),
        ("c", "3+8"),
        ("c", None),
    ],
    "lf_inner": [("c", None)],
}
"""The results of Kafka Streams 4.1.1 for the rows: key, and the numbers of both sides."""


@pytest.mark.parametrize("size", [4, len(ROWS)])
def test_joins_and_filters_send_the_tombstones_of_kafka_streams(drive: Drive, size: int) -> None:
    pipeline = Pipeline("tombstones", workers=2)
    visits, places = pipeline.table("visits", value=Visit), pipeline.table("places", value=Visit)
    tall = visits.filter("n > 1")
    tables: dict[str, Table[Any]] = {
        "fk_inner": visits.join(places, on="g"), "fk_left": visits.left_join(places, on="g"),
        "inner": visits.join(places), "left": visits.left_join(places), "outer": visits.outer_join(places),
        "filter": tall, "lf_fk_inner": tall.join(places, on="g"), "lf_fk_left": tall.left_join(places, on="g"),
        "lf_inner": tall.join(places),
    }  # fmt: skip
    for name, table in tables.items():
        table.to(name)
        table.to_stream().group_by_key().windowed_by(tumbling("1 minute")).count(
            store=f"{name}_changes"
        )
    driver = drive(pipeline)
    for number, (topic, key, value) in enumerate(ROWS):
        driver.pipe(
            topic,
            None if value is None else dict(zip("gn", value, strict=True)),
            key,
            timestamp=number,
        )
        if (number + 1) % size == 0:
            driver.commit()
    for name, expected in KAFKA_STREAMS.items():
        found = [(record.key, _numbers(record.value)) for record in driver.read(name)]
        assert found == expected, name
        changes = {key: count for (key, *_), count in driver.store(f"{name}_changes").items()}
        assert changes == Counter(key for key, _ in expected), name


def _numbers(value: Any) -> str | None:
    if value is None:
        return None
    sides = [value["left"], value["right"]] if "left" in value else [value]
    return "+".join("-" if side is None else str(side["n"]) for side in sides)


@pytest.mark.parametrize("cut", [False, True])
def test_a_join_deletes_no_row_that_only_the_initial_aggregate_would_have_had(
    drive: Drive, cut: bool
) -> None:
    """In Kafka Streams, the first result of an aggregate replaces the initial aggregate, which passes the filter."""
    pipeline = Pipeline("initial", workers=2)
    places = pipeline.table("places", value=Visit)
    sums = (
        pipeline.stream("visits", value=Visit)
        .group_by_key()
        .aggregate(store="sums", n="coalesce(sum(n), 0)")
    )
    sums.filter_not("n > 0").join(places).to("joined")
    sums.filter("n > 0").join(places).to("other")
    driver = drive(pipeline)
    for topic, n in (("places", 7), ("visits", 1), ("visits", 2)):
        driver.pipe(topic, {"g": None, "n": n}, "a", timestamp=n)
        if cut:
            driver.commit()
    assert driver.read("joined") == []
    assert [_numbers(record.value) for record in driver.read("other")] == ["1+7", "3+7"]


@pytest.mark.parametrize("cut", [False, True])
def test_a_row_that_its_mapping_has_left_is_deleted_behind_the_filter_that_it_passed(
    drive: Drive, cut: bool
) -> None:
    """A change of a row reaches the join from both sides. The first half of the change passes the filter."""
    pipeline = Pipeline("mapped", workers=2)
    rows = pipeline.table("rows", value=Visit)
    pairs = rows.outer_join(rows.select(n="n + 1"))
    pairs.filter("coalesce(right.n, 0) % 3 = 0").select(n="left.n").join(rows).to("joined")
    driver = drive(pipeline)
    for number, n in enumerate((2, None, 4)):
        driver.pipe("rows", None if n is None else {"g": None, "n": n}, "a", timestamp=number)
        if cut:
            driver.commit()
    assert [_numbers(record.value) for record in driver.read("joined")] == [
        "2+2",
        "2+2",
        "2+2",
        None,
    ]


@pytest.mark.parametrize("cut", [False, True])
def test_a_deleted_row_leaves_nothing_behind_a_filter_that_its_old_row_does_not_pass(
    drive: Drive, cut: bool
) -> None:
    """The join of the table with itself takes (2, nothing) back, which the filter has not passed, instead of (2, 2)."""
    pipeline = Pipeline("paired", workers=2)
    rows = pipeline.table("rows", value=Visit)
    pairs = rows.left_join(rows).filter("right.n IS NOT NULL").select(n="left.n")
    pairs.outer_join(rows).to("joined")
    driver = drive(pipeline)
    for number, n in enumerate((2, None)):
        driver.pipe("rows", None if n is None else {"g": None, "n": n}, "a", timestamp=number)
        if cut:
            driver.commit()
    assert [_numbers(record.value) for record in driver.read("joined")][-1] is None


@pytest.mark.parametrize("cut", [False, True])
def test_a_foreign_key_join_behind_a_time_limit_forgets_the_row_that_was_sent_before(
    drive: Drive, cut: bool
) -> None:
    """The row under `y` is never sent, but its change to `z` has it as its old value."""
    pipeline = Pipeline("held", workers=2)
    visits, places = pipeline.table("visits", value=Visit), pipeline.table("places", value=Visit)
    visits.suppress_until_time_limit("4 ms").left_join(places, on="g").to("joined")
    driver = drive(pipeline)
    for topic, key, g, n, time in (
        ("visits", "a", "x", 1, 0), ("visits", "b", "x", 7, 10), ("visits", "a", "y", 2, 20),
        ("visits", "a", "z", 3, 24), ("places", "x", None, 9, 30), ("places", "z", None, 8, 31),
    ):  # fmt: skip
        driver.pipe(topic, {"g": g, "n": n}, key, timestamp=time)
        if cut:
            driver.commit()
    results = [_numbers(record.value) for record in driver.read("joined") if record.key == "a"]
    assert results == ["1+-", "3+-", "3+8"]


class Trip(Struct):
    start: str | None
    end: str | None


class Place(Struct):
    n: int | None


TRIPS: list[tuple[str, str, Any]] = [
    ("places", "x", {"n": 1}),
    ("trips", "a", {"start": "x", "end": "x"}),
    ("trips", "b", {"start": "x", "end": "y"}),
    ("places", "y", {"n": 2}),
    ("trips", "c", {"start": "z", "end": "y"}),
    ("trips", "b", {"start": "y", "end": "x"}),
    ("trips", "d", {"start": None, "end": "y"}),
    ("trips", "a", None),
    ("places", "y", None),
    ("trips", "e", {"start": "x", "end": None}),
    ("trips", "d", {"start": "x", "end": "y"}),
    ("trips", "c", None),
    ("places", "x", {"n": 3}),
    ("trips", "e", None),
]


def joined_trips(how: str) -> dict[str, tuple[int | None, int | None]]:
    """The numbers of each trip's start and end, as two joins of the last rows give them."""
    last = {(topic, key): value for topic, key, value in TRIPS}
    places = {
        key: value["n"] for (topic, key), value in last.items() if topic == "places" and value
    }
    trips = {key: value for (topic, key), value in last.items() if topic == "trips" and value}
    numbers = {
        key: (places.get(trip["start"]), places.get(trip["end"])) for key, trip in trips.items()
    }
    return {key: pair for key, pair in numbers.items() if how == "left" or None not in pair}


@pytest.mark.parametrize("size", [5, pytest.param(1, marks=pytest.mark.heavy)])
def test_joins_by_foreign_key_follow_each_other(drive: Drive, size: int) -> None:
    pipeline = Pipeline("trips", workers=2)
    trips, places = pipeline.table("trips", value=Trip), pipeline.table("places", value=Place)
    hows: tuple[Literal["inner", "left"], ...] = ("inner", "left")
    for how in hows:
        started = trips.join(places, how=how, on="start")
        chained = started.join(places, how=how, on="left.end")
        chained.select(s="left.right.n", e="right.n").to(how)
        chained.group_by("left.left.end").count(store=f"{how}_ends")
        started.filter("left.end IS NOT NULL").join(
            places, how=how, on="left.end"
        ).to_stream().to_table(store=how)
        started.suppress_until_time_limit("0 s").group_by("left.start").count(store=f"{how}_starts")
    driver = drive(pipeline)
    for number, (topic, key, value) in enumerate(TRIPS):
        driver.pipe(topic, value, key, timestamp=number)
        if (number + 1) % size == 0:
            driver.commit()
    driver.pipe("trips", {"start": "x", "end": "x"}, "late", timestamp=100)
    for how in hows:
        expected = joined_trips(how) | {"late": (3, 3)}
        last = {record.key: record.value for record in driver.read(how)}
        assert {
            key: (row["s"], row["e"]) for key, row in last.items() if row is not None
        } == expected
        assert driver.store(how).keys() == expected.keys()
        ends = {"x": 2, "y": 1} if how == "left" else {"x": 1}
        assert {end: count for end, count in driver.store(f"{how}_ends").items() if count} == ends
        assert sum(driver.store(f"{how}_starts").values()) == (3 if how == "left" else 2)


class Address(Struct):
    city: str
    opened: datetime | None = None
    floors: int = 3
    fee: Decimal2 | None = None


def test_stores_and_streams_find_the_same_value_of_a_global_table(drive: Drive) -> None:
    """With the contract's defaults, and the pipeline's zone."""
    pipeline = Pipeline("found", workers=1, zone="Europe/Berlin")
    addresses = pipeline.global_table("addresses", value=Address)
    visits = pipeline.stream("visits", value=Shop)
    fields: dict[str, Any] = {name: f"right.{name}" for name in ("city", "opened", "floors", "fee")}
    visits.join(addresses).select(**fields).to("of_stream")
    visits.group_by_key().count(store="n").join(addresses).select(**fields).to("of_store")
    driver = drive(pipeline)
    driver.pipe("addresses", b'{"city":"Oslo","more":1}', "a")
    driver.pipe("addresses", b'{"city":"Bonn","opened":"2026-01-01T12:00:00","fee":"1.5"}', "b")
    driver.commit()
    for key in "abc":
        driver.pipe("visits", {"city": "", "floors": 0}, key)
    found = {record.key: record.value for record in driver.output("of_store")}
    assert found == {
        "a": {"city": "Oslo", "opened": None, "floors": 3, "fee": None},
        "b": {"city": "Bonn", "opened": "2026-01-01T11:00:00.000000Z", "floors": 3, "fee": 1.5},
    }
    assert found == {record.key: record.value for record in driver.output("of_stream")}


@pytest.mark.parametrize(
    "name",
    [
        "expression",
        pytest.param("function", marks=pytest.mark.spark),
        "contract",
        "object",
        "mapped",
    ],
)
def test_a_null_result_deletes_a_tables_key(drive: Drive, name: str) -> None:
    """As in Kafka Streams' `toTable` and `mapValues`: from the store, the output, and the group."""
    pipeline = Pipeline("nothing", workers=1)
    optional: dict[str, Any] = {"number": int | None, "object": Item | None}
    match name:
        case "expression":
            table: Table[Any] = (
                pipeline.stream("items", value=Item).map_values("n").to_table(store="latest")
            )
        case "function":
            table = (
                pipeline.stream("items", value=Item).map_values(_number).to_table(store="latest")
            )
        case "contract":
            table = pipeline.stream("items", value=optional["number"]).to_table(store="latest")
        case "object":
            table = pipeline.stream("items", value=optional["object"]).to_table(store="latest")
        case _:
            table = pipeline.table("items", value=Item).map_values("n")
    table.to("changes")
    table.group_by("'all'").count(store="number")
    driver = drive(pipeline)
    values: dict[str, tuple[Any, Any]] = {
        "contract": (1, None),
        "object": ({"n": 1, "g": None}, None),
    }
    some, none = values.get(name, ({"n": 1, "g": None}, {"n": None, "g": None}))
    for key, value in (("a", some), ("b", some), ("a", none), ("c", none)):
        driver.pipe("items", json.dumps(value), key)
    left = some if name == "object" else 1
    assert [(change.key, change.value) for change in driver.output("changes")] == [
        ("a", left), ("b", left), ("a", None), ("c", None),
    ]  # fmt: skip
    assert driver.store("number") == {"all": 1}
    if name != "mapped":
        assert driver.store("latest") == {"b": left}


def _number(item: Item) -> Any:
    return item.n


class Member(Struct):
    group: str
    points: int


class Changes(Struct):
    """The rows of a table that one record changes, by their keys; null deletes a row."""

    rows: dict[str, Member | None]


def add_points(total: int, member: Member) -> int:
    if member.points < 0:
        raise ValueError("negative points")
    return total + member.points


def subtract_points(total: int, member: Member) -> int:
    return total - member.points


def rows_of(change: Changes) -> list[tuple[str, Any]]:
    return list(change.rows.items())


def members() -> Pipeline:
    pipeline = Pipeline("members", workers=1)
    changes = pipeline.stream("changes", value=Changes)
    table = changes.flat_map(rows_of, returns=Member).to_table(store="members")
    groups = table.group_by("group")
    groups.count(store="sizes").to("sizes")
    groups.aggregate(int, add_points, subtract_points, store="points", returns=int).to("points")
    return pipeline


ANN_IN_A = {"ann": {"group": "A", "points": 1}}


@pytest.mark.parametrize(
    "second",
    [
        {"ann": {"group": "B", "points": 1}, "bob": {"group": "A", "points": 5}},
        {"ann": {"group": "B", "points": 1}, "bob": {"group": "A", "points": -5}},
        {"ann": None, "bob": {"group": "A", "points": 5}},
        {"ann": None, "bob": {"group": "A", "points": -5}},
        {"ann": {"group": "A", "points": 3}, "bob": {"group": "A", "points": 5}},
    ],
)
def test_a_record_that_changes_two_rows_of_a_group_does_what_two_records_do(
    drive: Drive, second: dict[str, dict[str, Any] | None]
) -> None:
    results = []
    for parts in ([second], [{key: row} for key, row in second.items()]):
        driver = drive(members())
        for rows in (ANN_IN_A, *parts):
            driver.pipe("changes", {"rows": rows}, key="x")
            driver.commit()
        outputs = [
            [(record.key, record.value) for record in driver.read(topic)]
            for topic in ("sizes", "points")
        ]
        letters = [record.headers["sluice.detail"] for record in driver.dead_letters()]
        results.append((driver.store("sizes"), driver.store("points"), outputs, letters))
    assert results[0] == results[1]
