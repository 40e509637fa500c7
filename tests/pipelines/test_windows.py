"""The pipeline windows: windows of every kind, grace, suppress, and the sources of event times."""

from __future__ import annotations

import time
from collections.abc import Iterator
from datetime import datetime
from typing import Any

import pytest
from msgspec import Struct
from pyspark.sql import SparkSession

from sluice import Pipeline, hopping, session, sliding, tumbling
from sluice.errors import EngineError
from sluice.testing import TopologyTestDriver
from sluice.topology import load_pipeline
from tests.pipelines.conftest import PIPELINES, Drive
from tests.support.postgres import new_database

MINUTE = 60_000


class Event(Struct):
    """An event, and its time if the time is known."""

    name: str
    at: datetime | None = None


@pytest.fixture(scope="module")
def driver(session: SparkSession | None, server: str) -> Iterator[TopologyTestDriver]:
    """One driver for all tests: each test has its own pages and its own hour."""
    database = new_database(server) if server else ""
    with TopologyTestDriver(
        load_pipeline(PIPELINES, "windows"), spark=session, database=database
    ) as driver:
        yield driver


def ms(clock: str) -> int:
    """A time of the first day of 1970, in ms."""
    hours, minutes, seconds = clock.split(":")
    return round(1_000 * (3_600 * int(hours) + 60 * int(minutes) + float(seconds)))


def span(start: str, end: str) -> tuple[int, int]:
    return ms(start), ms(end)


def visit(driver: TopologyTestDriver, page: str, *times: str, topic: str = "visits") -> None:
    """Write visits of a page with these times; the records' timestamps are at noon."""
    for clock in times:
        driver.pipe(topic, {"page": page, "at": f"1970-01-01T{clock}"}, timestamp=ms("12:00:00"))


def stored(driver: TopologyTestDriver, store: str, page: str) -> dict[tuple[int, int], int]:
    """A page's windows and their counts."""
    return {
        (start, end): count
        for (key, start, end), count in driver.store(store).items()
        if key == page
    }


def read(driver: TopologyTestDriver, topic: str, page: str) -> list[tuple[Any, ...]]:
    """Window and value of a page's new records of a topic."""
    return [
        (int(record.headers["window_start"]), int(record.headers["window_end"]), record.value)
        for record in driver.read(topic)
        if record.key == page
    ]


def test_a_late_visit_counts_until_the_grace_of_its_window_ends(driver: TopologyTestDriver) -> None:
    eight, one_past = span("08:00:00", "08:01:00"), span("08:01:00", "08:02:00")
    visit(driver, "home", "08:00:04", "08:00:54", "08:01:05", "08:00:58", "08:01:13")
    assert stored(driver, "minutes", "home") == {eight: 3, one_past: 2}
    assert read(driver, "minutes_closed", "home") == [], (
        "at 08:01:13 the first minute is still open"
    )

    visit(driver, "cart", "08:01:15")
    assert read(driver, "minutes_closed", "home") == [(*eight, 3)], (
        "a visit of any page advances stream time"
    )

    visit(driver, "home", "08:00:59")
    assert stored(driver, "minutes", "home")[eight] == 3
    assert driver.counts()["late/minutes"] == 1
    assert [record.value["page"] for record in driver.read("visits_late")] == ["home"]
    assert read(driver, "minutes_closed", "home") == [], "a window has one result"
    assert driver.store("visits_total")["home"] == 6, "without a window nothing is late"


def test_a_visit_is_in_every_hopping_window_around_its_time(driver: TopologyTestDriver) -> None:
    visit(driver, "help", "09:00:10", "09:00:40", "09:01:05")
    assert stored(driver, "overlapping_minutes", "help") == {
        span("08:59:30", "09:00:30"): 1,
        span("09:00:00", "09:01:00"): 2,
        span("09:00:30", "09:01:30"): 2,
        span("09:01:00", "09:02:00"): 1,
    }


def test_a_sliding_window_ends_with_a_visit_or_begins_right_after_one(
    driver: TopologyTestDriver,
) -> None:
    visit(driver, "news", "10:00:36", "10:00:42", "10:01:20")
    assert stored(driver, "bursts", "news") == {
        span("10:00:06", "10:00:36"): 1,
        span("10:00:12", "10:00:42"): 2,
        span("10:00:36.001", "10:01:06.001"): 1,
        span("10:00:50", "10:01:20"): 1,
    }


def test_sessions_merge_when_a_visit_comes_between_them(driver: TopologyTestDriver) -> None:
    visit(driver, "shop", "11:00:10", "11:00:50")
    first, second = span("11:00:10", "11:00:10"), span("11:00:50", "11:00:50")
    assert stored(driver, "sessions", "shop") == {first: 1, second: 1}
    driver.read("session_changes")

    visit(driver, "shop", "11:00:30")
    merged = span("11:00:10", "11:00:50")
    assert stored(driver, "sessions", "shop") == {merged: 3}
    assert read(driver, "session_changes", "shop") == [
        (*first, None),
        (*second, None),
        (*merged, 3),
    ]
    assert read(driver, "sessions_closed", "shop") == [], (
        "a visit can join the session until 11:01:35, its end plus gap and grace"
    )

    visit(driver, "cart", "11:01:35")
    assert read(driver, "sessions_closed", "shop") == [], "at this time, too"
    visit(driver, "cart", "11:01:36")
    assert read(driver, "sessions_closed", "shop") == [(*merged, 3)]


def test_a_pages_total_is_emitted_once_a_minute_or_when_the_buffer_is_full(
    driver: TopologyTestDriver,
) -> None:
    def totals(topic: str) -> list[Any]:
        return [record.value for record in driver.read(topic) if record.key == "jobs"]

    visit(driver, "jobs", "14:00:00", "14:00:20", "14:00:59")
    assert totals("visits_total_per_minute") == []
    visit(driver, "cart", "14:01:00")
    assert totals("visits_total_per_minute") == [3], (
        "a minute after the first update, the latest total is emitted"
    )
    assert totals("visits_total_when_full") == []
    visit(driver, "help", "14:01:01")
    assert totals("visits_total_when_full") == [3], (
        "the buffer holds two updates: the oldest is emitted early"
    )


def test_a_visits_time_is_from_a_field_the_record_or_the_clock(driver: TopologyTestDriver) -> None:
    before = int(time.time() * 1_000)
    for topic in ("visits", "visits_recorded", "visits_processed"):
        visit(driver, "blog", "15:00:00", topic=topic)
    driver.advance(2 * MINUTE)
    visit(driver, "blog", "15:00:00", topic="visits_processed")
    assert stored(driver, "minutes", "blog") == {span("15:00:00", "15:01:00"): 1}
    assert stored(driver, "minutes_recorded", "blog") == {span("12:00:00", "12:01:00"): 1}
    (first, _), (second, end) = sorted(stored(driver, "minutes_processed", "blog"))
    assert before - MINUTE < first <= time.time() * 1_000
    assert first + 2 * MINUTE <= second < end == second + MINUTE, (
        "the driver's clock was advanced by two minutes"
    )


def test_the_sources_policy_for_invalid_times(drive: Drive) -> None:
    pipeline = Pipeline("timeless", workers=1)
    for policy in ("dead_letter", "skip", "clock"):
        events = pipeline.stream(
            f"events_{policy}", value=Event, event_time="at", invalid_time=policy
        )
        events.group_by_key().windowed_by(tumbling("1 s")).count(store=f"in_time_{policy}")
    driver = drive(pipeline)
    fine, none = {"name": "fine", "at": "1970-01-01T00:00:05"}, {"name": "timeless", "at": None}
    early = {"name": "early", "at": "1969-12-31T23:59:59"}
    before = time.time() * 1_000
    for policy in ("dead_letter", "skip", "clock"):
        for event in (fine, none, early):
            driver.pipe(f"events_{policy}", event, key="k", timestamp=1_000_000)
    kept = {("k", 5_000, 6_000): 1}
    assert driver.store("in_time_dead_letter") == kept
    assert [dead_letter.headers["sluice.reason"] for dead_letter in driver.dead_letters()] == [
        "event_time",
        "event_time",
    ]
    assert driver.store("in_time_skip") == kept
    assert driver.counts()["dropped/event_time"] == 2

    by_clock = driver.store("in_time_clock")
    assert by_clock.pop(("k", 5_000, 6_000)) == 1
    ((_, start, end),) = by_clock
    assert before - 1_000 < end, "the processing time, not the record's timestamp"
    assert start <= time.time() * 1_000
    assert list(by_clock.values()) == [2]


def test_an_invalid_time_can_end_the_run(drive: Drive) -> None:
    pipeline = Pipeline("strict", workers=1)
    pipeline.stream("events", value=Event, event_time="at", invalid_time="fail").to("copies")
    driver = drive(pipeline)
    driver.pipe("events", {"name": "timeless", "at": None})
    with pytest.raises(EngineError, match="events, partition 0: the event time is null"):
        driver.commit()


def test_a_full_buffer_can_end_the_run(drive: Drive) -> None:
    pipeline = Pipeline("narrow", workers=1)
    visits = pipeline.stream("visits", value=str).group_by_key().windowed_by(tumbling("60 s"))
    visits.count(store="minutes").suppress_until_window_closes(max_records=2).to("minutes_closed")
    driver = drive(pipeline)
    for key in "abc":
        driver.pipe("visits", "a visit", key=key, timestamp=0)
    with pytest.raises(EngineError, match="suppress step holds back"):
        driver.commit()


class Tick(Struct):
    """A record for the tests of late records."""

    n: int


@pytest.mark.parametrize("kind", ["added up in any order", "in order"])
def test_late_records_are_counted_and_written_to_their_own_topic(drive: Drive, kind: str) -> None:
    pipeline = Pipeline("late")
    ticks = pipeline.stream("ticks", value=Tick).filter("n > 0").group_by_key()
    windowed = ticks.windowed_by(tumbling("10 ms"), late="late_ticks")
    columns = (
        {"n": "count(*)"} if kind != "in order" else {"n": "count(*)", "all": "collect_list(n)"}
    )
    windowed.aggregate(columns, store="per_window")
    driver = drive(pipeline)
    for n, at in ((1, 5), (2, 25), (3, 7), (0, 1), (4, 29)):
        driver.pipe("ticks", {"n": n}, "a", timestamp=at)
    driver.commit()
    driver.pipe("ticks", {"n": 5}, "a", timestamp=12)
    assert [(record.key, record.value, record.timestamp) for record in driver.output("late_ticks")] == [
        ("a", {"n": 3}, 7), ("a", {"n": 5}, 12),
    ]  # fmt: skip
    assert driver.counts()["late/per_window"] == 2
    assert {key: value["n"] for key, value in driver.store("per_window").items()} == {
        ("a", 0, 10): 1,
        ("a", 20, 30): 2,
    }


def test_a_function_gives_each_result_of_its_windows_whatever_the_batches(drive: Drive) -> None:
    outputs = []
    for records_per_batch in (1, 3, 9):
        pipeline = Pipeline(f"sums_{records_per_batch}")
        ticks = pipeline.stream("ticks", value=Tick).group_by_key()
        windowed = ticks.windowed_by(
            hopping("10 ms", advance="5 ms", grace="2 ms"), late="late_ticks"
        )
        windowed.aggregate(
            int, lambda total, tick: total + tick.n, returns=int, store="sums"
        ).to_stream().to("sums")
        driver = drive(pipeline)
        for number, (key, at) in enumerate(
            [
                ("a", 1),
                ("b", 6),
                ("a", 12),
                ("b", 3),
                ("a", 7),
                ("a", 14),
                ("b", 30),
                ("a", 2),
                ("a", 21),
            ]
        ):
            driver.pipe("ticks", {"n": 10**number}, key, timestamp=at, headers={"n": str(number)})
            if (number + 1) % records_per_batch == 0:
                driver.commit()
        columns = driver.output("sums"), driver.output("late_ticks")
        outputs.append(
            [
                [(each.key, each.value, each.timestamp, each.headers) for each in of]
                for of in columns
            ]
        )
    assert outputs[0] == outputs[1] == outputs[2]
    sums, late = outputs[0]
    assert [value for _, value, _, _ in sums] == [
        1, 10, 10, 100, 100, 10100, 110100, 100100, 1000000, 1000000, 100000000,
    ]  # fmt: skip
    assert [value for _, value, _, _ in late] == [{"n": 1000}, {"n": 10000000}]


@pytest.mark.parametrize("in_order", [False, True])
def test_a_visit_is_late_once_for_each_window_however_it_is_aggregated(
    drive: Drive, in_order: bool
) -> None:
    pipeline = Pipeline("late", workers=2)
    visits = pipeline.stream("visits", value=str).group_by_key()
    if in_order:  # all aggregations of a pipeline with sessions see each key's records in order
        visits.windowed_by(session("1 second")).count(store="sessions")
    window = hopping("3 seconds", advance="2 seconds", grace="2 seconds")
    visits.windowed_by(window, late="visits_late").count(store="n")
    driver = drive(pipeline)
    for at in (1_000, 6_000, 2_500, 12_000, 2_500, 6_500, 8_500):
        driver.pipe("visits", "v", key="home", timestamp=at)
    # One window of the first 2,500, both of the second one and of 6,500, and one of 8,500.
    assert driver.counts()["late/n"] == 6
    assert [record.timestamp for record in driver.output("visits_late")] == [2_500, 6_500]


@pytest.mark.parametrize("cut", [False, True])
def test_a_sliding_window_has_one_final_result_with_the_records_at_its_end(
    drive: Drive, cut: bool
) -> None:
    pipeline = Pipeline("once", workers=1)
    numbers = pipeline.stream("numbers", value=int).group_by_key().windowed_by(sliding("10 ms"))
    numbers.aggregate(store="sums", n="sum(value)").suppress_until_window_closes().to("final")
    driver = drive(pipeline)
    for number, at in ((8, 5), (2, 8), (1, 10), (4, 10), (0, 11)):
        driver.pipe("numbers", number, "a", timestamp=at)
        if cut:
            driver.commit()
    final = [(record.headers["window_start"], record.value["n"]) for record in driver.read("final")]
    assert final == [("0", 15)]


@pytest.mark.parametrize("cut", [False, True])
def test_a_gap_or_a_size_of_zero_puts_records_of_the_same_time_together(
    drive: Drive, cut: bool
) -> None:
    pipeline = Pipeline("moments")
    clicks = pipeline.stream("clicks", value=Event).group_by_key()
    for name, window in (
        ("sessions", session("0 s", grace="2 ms")),
        ("slides", sliding("0 s", grace="2 ms")),
    ):
        clicks.windowed_by(window).count(store=name)
        clicks.windowed_by(window).aggregate(store=f"names_of_{name}", names="collect_list(name)")
        clicks.windowed_by(window, emit="window_close").count(store=f"final_{name}").to(
            f"final_{name}_out"
        )
    driver = drive(pipeline)
    for name, at in [("a", 5), ("b", 6), ("c", 5), ("d", 6), ("late", 3), ("e", 8)]:
        driver.pipe("clicks", {"name": name}, key="k", timestamp=at)
        if cut:
            driver.commit()
    for kind in ("sessions", "slides"):
        assert driver.store(kind) == {("k", 5, 5): 2, ("k", 6, 6): 2, ("k", 8, 8): 1}
        assert driver.store(f"names_of_{kind}")["k", 5, 5] == {"names": ["a", "c"]}
        assert [
            (record.value, record.timestamp) for record in driver.output(f"final_{kind}_out")
        ] == [(2, 5)]
        assert driver.counts()[f"late/{kind}"] == 1
