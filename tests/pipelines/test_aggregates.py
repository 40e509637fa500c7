"""Aggregate functions have the results of Spark's functions with the same names, in every place of a pipeline."""

from __future__ import annotations

import random
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import pytest
from msgspec import Struct
from pyspark.sql import SparkSession
from pyspark.sql import functions as F  # noqa: N812

from sluice import Decimal2, Pipeline, hopping, session, tumbling
from sluice.sql.parsed_expression import parse
from tests.pipelines.conftest import Drive
from tests.unit.sql.spark_arguments import ACCEPTED, COLUMNS
from tests.unit.sql.test_function_arguments import refusal


class Sample(Struct):
    n: int | None
    d: Decimal2 | None
    x: float | None
    s: str | None
    b: bool | None


NUMBERS = (
    "avg",
    "stddev",
    "stddev_pop",
    "var_samp",
    "variance",
    "var_pop",
    "skewness",
    "kurtosis",
    "std",
    "mean",
)
AGGREGATES = (
    *(f"{name}({column})" for name in NUMBERS for column in "ndx"),
    *(f"{name}({column})" for name in ("min", "max", "sum") for column in "ndx"), "min(s)", "max(s)", "max(b)",
    "count(*)", "count(s)", "count(n, s)", "count_if(n > 3)", "count(DISTINCT s)", "approx_count_distinct(s)",
    "bool_and(b)", "bool_or(b)", "every(b)", "some(b)", "bit_and(n)", "bit_or(n)", "bit_xor(n)",
    "max_by(s, d)", "min_by(n, s)", "max_by(n, b) FILTER (WHERE n = 4)",
    "median(n)", "percentile(d, 0.1)", "percentile(x, array(0.25, 0.5, 1.0))", "approx_percentile(n, 0.5)",
    "approx_percentile(d, array(0.0, 0.3, 1.0))", "corr(n, x)", "covar_pop(n, d)", "covar_samp(d, x)",
    "sum(d) / count(*)", "stddev(n) FILTER (WHERE b) + 1", "sort_array(collect_set(s))", "sort_array(collect_list(n))",
    "sort_array(array_agg(s))", "any(b)",
)  # fmt: skip
EVERY_KIND = {f"c{number}": text for number, text in enumerate(AGGREGATES)}
KEYS = ("many", "nulls", "one", "equal")


def samples() -> list[tuple[str, Sample]]:
    """Values of four keys, without two y that are equal and largest, where Spark's max_by may return any x."""
    chance = random.Random(7)
    rows = [
        (
            "many",
            Sample(
                n,
                Decimal(d).scaleb(-2),
                chance.uniform(-9, 9),
                chance.choice("abcde"),
                chance.random() < 0.5,
            ),
        )
        for n, d in zip(
            chance.sample(range(-20, 40), 30), chance.sample(range(-999, 999), 30), strict=True
        )
    ]
    rows += [
        ("many", Sample(None, None, 2.5, None, None)),
        ("one", Sample(4, Decimal("1.10"), 0.1, "z", True)),
    ]
    rows += [("nulls", Sample(None, None, None, None, None))] * 2
    return [*rows, *[("equal", Sample(5, Decimal("2.00"), 0.1, "e", False))] * 3]


def expected(spark: SparkSession) -> dict[str, dict[str, Any]]:
    """Key → what Spark's functions return."""
    kinds = "key STRING, n BIGINT, d DECIMAL(12,2), x DOUBLE, s STRING, b BOOLEAN"
    rows = [(key, sample.n, sample.d, sample.x, sample.s, sample.b) for key, sample in samples()]
    columns = [F.expr(text).alias(name) for name, text in EVERY_KIND.items()]
    spark.conf.set(
        "spark.sql.ansi.enabled", "false"
    )  # corr divides by zero, which is an error in ANSI mode
    try:
        grouped = spark.createDataFrame(rows, kinds).groupBy("key").agg(*columns).collect()
    finally:
        spark.conf.set("spark.sql.ansi.enabled", "true")
    return {row["key"]: {name: row[name] for name in EVERY_KIND} for row in grouped}


def alike(found: Any, wanted: Any) -> bool:
    if found is None or wanted is None:
        return found is wanted
    if isinstance(wanted, float | Decimal):
        return bool(found == pytest.approx(float(wanted), rel=1e-9, abs=1e-12))
    if isinstance(wanted, list):
        return len(found) == len(wanted) and all(map(alike, found, wanted))
    return bool(found == wanted)


def differences(
    found: dict[str, Any], wanted: dict[str, dict[str, Any]]
) -> dict[tuple[str, str], Any]:
    """Key and aggregate → the result, and what it should be."""
    return {
        (key, text): (found[key][name], wanted[key][name])
        for key in wanted
        for name, text in EVERY_KIND.items()
        if not alike(found[key][name], wanted[key][name])
    }


def test_every_aggregate_works_everywhere_as_in_spark(drive: Drive, spark: SparkSession) -> None:
    pipeline = Pipeline("everywhere", workers=2)
    stream = pipeline.stream("samples", value=Sample)
    stream.group_by_key().aggregate(EVERY_KIND, store="plain")
    stream.group_by_key().windowed_by(hopping("10 s", advance="5 s", grace="1 minute")).aggregate(
        EVERY_KIND, store="hopping"
    )
    stream.group_by_key().windowed_by(session("5 s", grace="1 minute")).aggregate(
        EVERY_KIND, store="sessions"
    )
    behind = stream.select("n", "d", "x", "s", "b", number="_offset").deduplicate(
        "number", within="1 day"
    )
    behind.group_by_key().aggregate(EVERY_KIND, store="behind")
    driver = drive(pipeline)
    for number, (key, sample) in enumerate(samples()):
        # The second record is a session of its own until the third one joins it with the first.
        driver.pipe(
            "samples", sample, key, timestamp=(8_000, 1_000, 4_500)[number] if number < 3 else 5_000
        )
        if number % 20 == 1:
            driver.commit()
    wanted = expected(spark)
    for name in ("plain", "behind"):
        assert differences(driver.store(name), wanted) == {}
    assert (
        differences({key: value for (key, *_), value in driver.store("sessions").items()}, wanted)
        == {}
    )
    assert {key for key, *_ in driver.store("hopping")} == {*KEYS}
    assert driver.dead_letters() == []


def test_the_state_does_not_depend_on_the_batches(drive: Drive) -> None:
    """Also of sketches that are no longer exact, and of windows that share values."""
    columns = {
        "distinct": "approx_count_distinct(n)", "texts": "approx_count_distinct(s)",
        "parts": "approx_percentile(x, array(0.01, 0.5, 0.99))", "most": "mode(s)", "deviation": "stddev(x)",
    }  # fmt: skip
    chance = random.Random(3)
    rows = [
        Sample(
            chance.randrange(3_000), None, chance.gauss(5, 100), f"t{chance.randrange(900)}", None
        )
        for _ in range(4_000)
    ]

    def results(name: str, cut: int) -> tuple[Any, Any]:
        pipeline = Pipeline(name, workers=1)
        pipeline.stream("samples", value=Sample).group_by_key().aggregate(columns, store="of")
        driver = drive(pipeline)
        for number, row in enumerate(rows):
            driver.pipe("samples", row, "ab"[number % 2])
            if number % cut == cut - 1:
                driver.commit()
        return driver.store("of"), driver._run.storage.checksums(driver._run.batch)

    whole = results("whole", len(rows))
    assert results("parts", 1_300) == whole
    of_a = whole[0]["a"]
    exact = {
        "distinct": len({row.n for row in rows[::2]}),
        "texts": len({row.s for row in rows[::2]}),
    }
    assert {name: of_a[name] for name in exact} == pytest.approx(exact, rel=0.05)
    values = sorted(row.x for row in rows[::2] if row.x is not None)
    assert of_a["parts"] == pytest.approx([values[19], values[999], values[1_979]], rel=0.01)


class Order(Struct):
    shop: str
    amount: Decimal2
    n: int
    tags: list[str] = []


class Shop(Struct):
    shop: str
    city: str


def beside(name: str) -> Pipeline:
    """Aggregates that are added up in any order, beside and before operators, with outputs of all kinds."""
    pipeline = Pipeline(name, workers=3)
    orders, shops = (
        pipeline.stream("orders", value=Order),
        pipeline.global_table("shops", value=Shop, key="shop"),
    )
    by_shop = orders.group_by("shop")
    by_shop.count(store="n").to("n_out")
    totals = by_shop.aggregate(
        store="total", total="sum(amount)", most="max(n)", big="count(*) FILTER (WHERE n > 5)"
    )
    totals.join(shops, how="left").select(total="left.total", city="right.city").to("located")
    windows = by_shop.windowed_by(tumbling("10 s", grace="2 s"), late="late_orders")
    windows.count(store="windows").to("windows_out")
    windows.aggregate(store="means", mean="avg(amount)", middle="median(n)").to(
        "means_out", emit="latest"
    )
    by_shop.windowed_by(session("5 s")).count(store="sessions")
    orders.join(shops, on="shop").to("joined")
    orders.flat_map_values("tags").group_by("value").count(store="tags")
    return pipeline


ORDERS = [
    ("a", "1.10", 3, ["x"], 1_000), ("b", "2.00", 7, [], 2_000), ("a", "0.90", 6, ["x", "y"], 11_000),
    ("a", "5.00", 1, ["y"], 13_000), ("b", "1.00", 2, ["x"], 3_000), ("a", "9.99", 2, ["z"], 500),
]  # fmt: skip


@pytest.mark.parametrize("cut", [1, 4, 6])
def test_aggregates_are_added_up_beside_operators_whatever_the_batches(
    drive: Drive, cut: int
) -> None:
    driver = drive(beside("beside"))
    driver.pipe("shops", {"shop": "a", "city": "Oslo"})
    for number, (shop, amount, n, tags, time) in enumerate(ORDERS):
        driver.pipe(
            "orders",
            {"shop": shop, "amount": amount, "n": n, "tags": tags},
            key=shop,
            timestamp=time,
        )
        if number % cut == cut - 1:
            driver.commit()
    assert driver.store("n") == {"a": 4, "b": 2}
    assert driver.store("total") == {
        "a": {"total": 16.99, "most": 6, "big": 1}, "b": {"total": 3.0, "most": 7, "big": 1},
    }  # fmt: skip
    assert driver.store("windows") == {
        ("a", 0, 10_000): 1,
        ("b", 0, 10_000): 1,
        ("a", 10_000, 20_000): 2,
    }
    assert driver.store("means")["a", 10_000, 20_000] == {"mean": 2.95, "middle": 3.5}
    assert driver.store("sessions").keys() == {
        ("a", 1_000, 1_000),
        ("a", 11_000, 13_000),
        ("b", 2_000, 2_000),
    }
    assert driver.store("tags") == {"x": 3, "y": 2, "z": 1}
    finals = {
        topic: {record.key: record.value for record in driver.output(topic)}
        for topic in ("n_out", "located")
    }
    assert finals == {
        "n_out": {"a": 4, "b": 2},
        "located": {"a": {"total": 16.99, "city": "Oslo"}, "b": {"total": 3.0, "city": None}},
    }
    assert {record.headers["window_start"] for record in driver.output("windows_out")} == {
        "0",
        "10000",
    }
    assert {record.headers["window_start"] for record in driver.output("means_out")} == {
        "0",
        "10000",
    }
    assert [(record.key, record.timestamp) for record in driver.output("late_orders")] == [
        ("b", 3_000),
        ("a", 500),
    ]
    assert len(driver.output("joined")) == 4
    counts = driver.counts()
    assert (counts["read"], counts["applied"], counts["late/windows"], counts["late/means"]) == (
        7,
        7,
        2,
        2,
    )
    assert driver.dead_letters() == []


class Place(Struct):
    x: str


class OfEachType(Struct):
    key: str
    text: str | None = None
    whole: int | None = None
    share: float | None = None
    flag: bool | None = None
    at: datetime | None = None
    day: date | None = None
    data: bytes | None = None
    words: list[str] | None = None
    sizes: dict[str, int] | None = None
    place: Place | None = None


TYPED = {name: name for name in OfEachType.__struct_fields__}
TYPED |= {
    "small": "CAST(whole AS INT)",
    "amount": "CAST(whole AS DECIMAL(10, 2))",
    "counts": "array(whole)",
}
VALUES_OF_EACH_TYPE = [
    OfEachType(
        "a", "x", 3, 1.5, True, datetime(2024, 1, 1, tzinfo=UTC), date(2024, 1, 2), b"b", ["a"], {"z": 1}, Place("q")
    ),
    OfEachType("a"),
    OfEachType(
        "a", "y", 2, 0.5, False, datetime(2023, 1, 1, 1, tzinfo=UTC), date(2023, 1, 2), b"a", [], {}, Place("p")
    ),
]  # fmt: skip


NOT_OF_TABLES = ("first", "last", "any_value", "approx", "percentile_approx", "bit_")
"""The beginnings of the names of aggregates that cannot subtract the old value of a table's row."""


def test_each_aggregate_of_each_type_is_refused_or_computed(drive: Drive) -> None:
    expressions = ["top({}, 2)", "collect_sorted({})", "percentile({}, array(0.1, 0.9))"]
    for of_spark in ACCEPTED.values():
        expressions += [text for text in of_spark if parse(text.replace("{}", "text")).aggregates]
    every = [text.replace("{}", column) for text in expressions for column in COLUMNS]
    of_stream = {f"c{number}": text for number, text in enumerate(every) if not refusal(text)}
    of_table = {
        name: text for name, text in of_stream.items() if not text.startswith(NOT_OF_TABLES)
    }
    assert len(of_stream) > 300
    pipeline = Pipeline("types", workers=1)
    stream = pipeline.stream("stream", value=OfEachType).select(TYPED)
    stream.group_by("key").aggregate(of_stream, store="of_stream")
    table = pipeline.table("table", value=OfEachType).select(TYPED)
    table.group_by("key").aggregate(of_table, store="of_table")
    driver = drive(pipeline)
    for number, value in enumerate(VALUES_OF_EACH_TYPE):
        driver.pipe("stream", value, key="a", timestamp=number)
        driver.pipe("table", value, key=f"{number}", timestamp=number)
    assert driver.dead_letters() == []
    computed, of_rows = driver.store("of_stream")["a"], driver.store("of_table")["a"]
    assert {of_table[name]: of_rows[name] for name in of_table} == {
        of_table[name]: computed[name] for name in of_table
    }
