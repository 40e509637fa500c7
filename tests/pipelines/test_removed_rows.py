"""Rows that a table's filter or a tombstone removes: null values for every step behind, as in Kafka Streams."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec import Struct

from sluice import Context, Pipeline, Record, Stream, session, tumbling
from tests.pipelines.conftest import Drive


class Reading(Struct):
    value: int | None
    city: str | None


class Echo:
    def init(self, context: Context) -> None:
        self.context = context

    def process(self, record: Record[Reading]) -> None:
        self.context.forward(record.key, describe(record.value))


def describe(reading: Reading | None) -> str:
    return "removed" if reading is None else f"read {reading.value}"


def describe_twice(reading: Reading | None) -> list[str]:
    return [describe(reading)] * 2


def is_there(reading: Reading | None) -> bool:
    return reading is not None


def key_of(key: str | None, reading: Reading | None) -> str:
    return f"{key}, {describe(reading)}"


READINGS: list[tuple[str | None, int | None]] = [
    ("a", 1),
    ("a", 5),
    ("b", 4),
    ("a", 2),
    ("b", None),
    ("b", 6),
]
"""Keys and values; a null value is a tombstone."""
A, B = "a", "b"

STREAMS: dict[str, list[tuple[str, Any]]] = {
    "plain": [(A, None), (A, 5), (B, 4), (A, None), (B, None), (B, 6)],
    "with a value": [(A, 5), (B, 4), (B, 6)],
    "without a value": [(A, None), (A, None), (B, None)],
    "by a function": [(A, 5), (B, 4), (B, 6)],
    "selected": [(A, {"n": 5}), (B, {"n": 4}), (B, {"n": 6})],
    "selected nulls": [(A, {"n": None, "m": 0}), (A, {"n": 5, "m": 5}), (B, {"n": 4, "m": 4}),
                       (A, {"n": None, "m": 0}), (B, {"n": None, "m": 0}), (B, {"n": 6, "m": 6})],
    "mapped": [(A, None), (A, 5), (B, 4), (A, None), (B, None), (B, 6)],
    "rekeyed": [("a -", None), ("a 5", 5), ("b 4", 4), ("a -", None), ("b -", None), ("b 6", 6)],
    "elements": [(A, None), (A, 5), (B, 4), (A, None), (B, None), (B, 6)],
    "described": [(A, "removed"), (A, "read 5"), (B, "read 4"), (A, "removed"), (B, "removed"), (B, "read 6")],
    "described twice": [(A, "removed"), (A, "removed"), (A, "read 5"), (A, "read 5"), (B, "read 4"), (B, "read 4"),
                        (A, "removed"), (A, "removed"), (B, "removed"), (B, "removed"), (B, "read 6"), (B, "read 6")],
    "rekeyed by a function": [("a, removed", None), ("a, read 5", 5), ("b, read 4", 4), ("a, removed", None),
                              ("b, removed", None), ("b, read 6", 6)],
    "processed": [(A, "removed"), (A, "read 5"), (B, "read 4"), (A, "removed"), (B, "removed"), (B, "read 6")],
    "merged": [(A, 1), (A, 5), (B, 4), (A, 2), (B, 6)],
    "merged maps": [(A, {"n": 5}), (B, {"n": 4}), (B, {"n": 6})],
    "of a mapped table": [(A, {"n": 7}), (B, {"n": 6}), (B, {"n": 8})],
    "filtered twice": [(A, {"n": 5})],
    "of a value": [(A, 5), (B, 4), (B, 6)],
    "having": [(A, 1), (B, 4)],
    "having of a count": [(A, 1), (B, 1)],
    "having of a sum": [(A, 1), (B, 4)],
    "of sessions": [("b", {"n": 1}), ("b", {"n": 2}), ("b", {"n": 3})],
    "joined": [(A, [5, 1]), (B, [6, 4])],
}  # fmt: skip
"""What Kafka Streams sends for the readings of at least 3, whose other rows are removed."""


def streams(pipeline: Pipeline) -> dict[str, Stream[Any]]:
    """The streams of `STREAMS`, each from the table of readings."""
    readings = pipeline.table("readings", value=Reading)
    kept = readings.filter("value >= 3")
    changes, others = kept.to_stream(), readings.filter_not("value >= 3").to_stream()
    there = changes.filter("value IS NOT NULL")
    by_key = readings.to_stream().group_by_key()
    summed = by_key.aggregate(store="sums", total="sum(value)")
    shown = by_key.aggregate(store="shown", total="coalesce(sum(value), 0)")
    counted = by_key.windowed_by(session("1 hour")).aggregate(store="sessions", n="0 + count(*)")
    there.group_by("'all'").aggregate(store="all", n="count(*)", total="sum(value)")
    changes.select(n="value").group_by_key().aggregate(
        store="selected", n="count(*)", total="sum(n)"
    )
    changes.group_by_key().windowed_by(tumbling("1 hour")).count(store="hours")
    changes.to_table(store="restored")
    kept.group_by("city").aggregate(store="cities", n="count(*)", total="sum(value)")
    kept.select(inverse="8 div (value - 2)").to_stream().filter("inverse IS NOT NULL").to(
        "inverses"
    )
    return {
        "plain": changes,
        "with a value": there,
        "without a value": changes.filter("value IS NULL"),
        "by a function": changes.filter(is_there),
        "selected": there.select(n="value"),
        "selected nulls": changes.select(n="value", m="coalesce(value, 0)"),
        "mapped": changes.map_values("value"),
        "rekeyed": changes.select_key("concat(_key, ' ', coalesce(CAST(value AS STRING), '-'))"),
        "elements": changes.flat_map_values("array(value)"),
        "described": changes.map_values(describe, returns=str),
        "described twice": changes.flat_map_values(describe_twice, returns=str),
        "rekeyed by a function": changes.select_key(key_of),
        "processed": changes.process(Echo, returns=str).output,
        "merged": changes.merge(others).filter("value IS NOT NULL"),
        "merged maps": there.select(n="value").merge(others.filter("value > 2").select(n="value")),
        "of a mapped table": kept.select(n="coalesce(value, 0) + 2").to_stream().filter("n IS NOT NULL"),
        "filtered twice": kept.filter("city = 'Ulm'").to_stream().filter("value IS NOT NULL").select(n="value"),
        "of a value": readings.map_values("value").filter("value >= 3").to_stream().filter("value IS NOT NULL"),
        "having": summed.filter("total < 6").to_stream().filter("total IS NOT NULL").map_values("total"),
        "having of a count": by_key.count(store="counts").filter("value < 2").to_stream().filter("value > 0"),
        "having of a sum": shown.filter("total < 6").to_stream().filter("total IS NOT NULL").map_values("total"),
        "of sessions": counted.filter("_key = 'b'").to_stream().filter("n IS NOT NULL"),
        "joined": there.join(summed).map_values("array(left.value, right.total)"),
    }  # fmt: skip


@pytest.mark.parametrize("size", [4, pytest.param(1, marks=pytest.mark.heavy)])
def test_a_row_that_a_filter_removes_is_null_for_every_later_step(drive: Drive, size: int) -> None:
    pipeline = Pipeline("removed", workers=1)
    topics = {name: name.replace(" ", "_") for name in STREAMS}
    for name, stream in streams(pipeline).items():
        stream.to(topics[name])
    driver = drive(pipeline)
    for number, (key, value) in enumerate(READINGS):
        city = "Ulm" if key == A else "Bern"
        driver.pipe(
            "readings",
            None if value is None else {"value": value, "city": city},
            key,
            timestamp=number,
        )
        if (number + 1) % size == 0:
            driver.commit()
    sent = {
        name: [(record.key, plain(record.value)) for record in driver.read(topics[name])]
        for name in STREAMS
    }
    assert sent == STREAMS
    assert driver.store("all") == {"all": {"n": 3, "total": 15}}
    assert driver.store("selected") == {A: {"n": 3, "total": 5}, B: {"n": 3, "total": 10}}
    assert [count for _, count in sorted(driver.store("hours").items())] == [3, 3]
    assert driver.store("restored") == {B: {"value": 6, "city": "Bern"}}
    assert driver.store("cities") == {"Ulm": {"n": 0, "total": None}, "Bern": {"n": 1, "total": 6}}
    assert [record.value for record in driver.read("inverses")] == [
        {"inverse": 2},
        {"inverse": 4},
        {"inverse": 2},
    ]
    assert driver.dead_letters() == []


def plain(value: Any) -> Any:
    return value["value"] if isinstance(value, dict) and "value" in value else value
