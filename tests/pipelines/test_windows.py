"""Windows of every kind, grace, suppress, and where a record's time comes from."""

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
from tests.pipelines.conftest import Drive
from tests.postgres import new_database


class Event(Struct):
    """Something that happened, and when it did, if anyone knows."""

    name: str
    at: datetime | None = None


def at(clock: str) -> int:
    """A time of the first day of 1970, in ms."""
    hours, minutes, seconds = clock.split(":")
    return 1_000 * (3_600 * int(hours) + 60 * int(minutes) + int(seconds))


def seconds(*given: float) -> tuple[int, ...]:
    return tuple(int(1_000 * one) for one in given)


def windows() -> Pipeline:
    """A story for each topic: stream time belongs to a topic."""
    pipeline = Pipeline("windows", workers=1)

    by_minute = pipeline.stream("visits", value=str).group_by_key().windowed_by(tumbling("60 s", grace="15 s"))
    by_minute.count(store="minutes")
    held = by_minute.count(store="minutes_held")
    held.suppress_until_window_closes().to("minutes_closed")

    pipeline.stream("slides", value=str).group_by_key().windowed_by(sliding("5 s")).count(store="slid")
    hops = hopping("10 s", advance="5 s")
    pipeline.stream("hops", value=str).group_by_key().windowed_by(hops).count(store="hopped")

    clicks = pipeline.stream("clicks", value=str).group_by_key().windowed_by(session("5 s", grace="10 s"))
    sessions = clicks.count(store="sessions")
    sessions.to("session_changes")
    sessions.suppress_until_window_closes().to("sessions_closed")

    counted = pipeline.stream("chatter", value=str).group_by_key().count(store="said")
    counted.suppress_until_time_limit("10 s").to("said_by_then")
    counted.suppress_until_time_limit("1 hour", max_records=1).to("said_by_then_or_full")

    for policy in ("dead_letter", "skip", "clock"):
        events = pipeline.stream(f"events_{policy}", value=Event, event_time="at", invalid_time=policy)
        events.group_by_key().windowed_by(tumbling("1 s")).count(store=f"in_time_{policy}")
    return pipeline


@pytest.fixture(scope="module")
def driver(spark: SparkSession, server: str) -> Iterator[TopologyTestDriver]:
    database = new_database(server) if server else ""
    with TopologyTestDriver(windows(), spark=spark, database=database) as made:
        yield made


def read(driver: TopologyTestDriver, topic: str) -> list[tuple[Any, ...]]:
    """Key, window and value of the new records of a topic."""
    return [
        (one.key, int(one.headers["window_start"]), int(one.headers["window_end"]), one.value)
        for one in driver.read(topic)
    ]


def test_a_late_record_is_taken_until_the_windows_grace_is_over(driver: TopologyTestDriver) -> None:
    eight, one_past, two_past = at("08:00:00"), at("08:01:00"), at("08:02:00")
    for clock in ("08:00:04", "08:00:54", "08:01:05", "08:00:58", "08:01:13"):
        driver.pipe("visits", "a visit", key="page", timestamp=at(clock))
    assert driver.store("minutes") == {("page", eight, one_past): 3, ("page", one_past, two_past): 2}
    assert read(driver, "minutes_closed") == [], "at 08:01:13 the first minute is still open"

    driver.pipe("visits", "a visit", key="another page", timestamp=at("08:01:15"))
    assert read(driver, "minutes_closed") == [("page", eight, one_past, 3)], "whichever key brings the time"

    driver.pipe("visits", "a visit", key="page", timestamp=at("08:00:59"))
    assert driver.store("minutes")["page", eight, one_past] == 3
    assert driver.counts()["late/minutes"] == 1
    assert read(driver, "minutes_closed") == [], "a window has one result"
    assert driver.store("minutes_held") == driver.store("minutes")


def test_a_sliding_window_ends_with_a_record_or_begins_right_after_one(driver: TopologyTestDriver) -> None:
    for time_of in seconds(6, 7, 13):
        driver.pipe("slides", "here", key="k", timestamp=time_of)
    assert driver.store("slid") == {
        ("k", *seconds(1, 6)): 1,
        ("k", *seconds(2, 7)): 2,
        ("k", *seconds(6.001, 11.001)): 1,
        ("k", *seconds(8, 13)): 1,
    }


def test_a_record_is_in_every_hopping_window_that_holds_its_time(driver: TopologyTestDriver) -> None:
    for time_of in seconds(3, 7, 12):
        driver.pipe("hops", "here", key="k", timestamp=time_of)
    assert driver.store("hopped") == {
        ("k", *seconds(0, 10)): 2,
        ("k", *seconds(5, 15)): 2,
        ("k", *seconds(10, 20)): 1,
    }


def test_sessions_merge_when_a_record_comes_between_them(driver: TopologyTestDriver) -> None:
    driver.pipe("clicks", "click", key="k", timestamp=10_000)
    driver.pipe("clicks", "click", key="k", timestamp=18_000)
    assert driver.store("sessions") == {("k", 10_000, 10_000): 1, ("k", 18_000, 18_000): 1}
    driver.read("session_changes")

    driver.pipe("clicks", "click", key="k", timestamp=14_000)
    assert driver.store("sessions") == {("k", 10_000, 18_000): 3}
    assert read(driver, "session_changes") == [
        ("k", 10_000, 10_000, None),
        ("k", 18_000, 18_000, None),
        ("k", 10_000, 18_000, 3),
    ]
    assert read(driver, "sessions_closed") == [], "there may be more of it until 33 s: its end, the gap and the grace"

    driver.pipe("clicks", "click", key="other", timestamp=33_000)
    assert read(driver, "sessions_closed") == [("k", 10_000, 18_000, 3)]


def test_a_keys_results_come_at_most_once_in_a_time_limit(driver: TopologyTestDriver) -> None:
    def results(topic: str) -> list[tuple[str | None, Any]]:
        return [(one.key, one.value) for one in driver.read(topic)]

    for time_of in seconds(0, 4, 9):
        driver.pipe("chatter", "hello", key="a", timestamp=time_of)
    assert results("said_by_then") == []

    driver.pipe("chatter", "hello", key="b", timestamp=10_000)
    assert results("said_by_then") == [("a", 3)], "ten seconds after the first that was held back, the latest"
    assert results("said_by_then_or_full") == [("a", 3)], "only one may wait there: the oldest comes out early"


def test_a_record_without_a_valid_time_is_dealt_with_as_its_source_says(driver: TopologyTestDriver) -> None:
    fine, none = {"name": "fine", "at": "1970-01-01T00:00:05"}, {"name": "timeless", "at": None}
    early = {"name": "early", "at": "1969-12-31T23:59:59"}
    before = time.time() * 1_000
    for policy in ("dead_letter", "skip", "clock"):
        for event in (fine, none, early):
            driver.pipe(f"events_{policy}", event, key="k", timestamp=1_000_000)
    kept = {("k", 5_000, 6_000): 1}
    assert driver.store("in_time_dead_letter") == kept
    assert [one.headers["sluice.reason"] for one in driver.dead_letters()] == ["event_time", "event_time"]
    assert driver.store("in_time_skip") == kept
    assert driver.counts()["dropped/event_time"] == 2

    by_clock = driver.store("in_time_clock")
    assert by_clock.pop(("k", 5_000, 6_000)) == 1
    ((_, start, end),) = by_clock
    assert before - 1_000 < end, "the time of processing, not the record's own"
    assert start <= time.time() * 1_000
    assert list(by_clock.values()) == [2]


def test_a_source_may_end_the_run_over_an_invalid_time(drive: Drive) -> None:
    pipeline = Pipeline("strict", workers=1)
    pipeline.stream("events", value=Event, event_time="at", invalid_time="fail").to("copies")
    driver = drive(pipeline)
    driver.pipe("events", {"name": "timeless", "at": None})
    with pytest.raises(EngineError, match="events, partition 0: the event time is null"):
        driver.commit()


def test_a_full_buffer_that_may_not_send_early_ends_the_run(drive: Drive) -> None:
    pipeline = Pipeline("narrow", workers=1)
    visits = pipeline.stream("visits", value=str).group_by_key().windowed_by(tumbling("60 s"))
    visits.count(store="minutes").suppress_until_window_closes(max_records=2).to("minutes_closed")
    driver = drive(pipeline)
    for key in "abc":
        driver.pipe("visits", "a visit", key=key, timestamp=0)
    with pytest.raises(EngineError, match="suppress step holds back"):
        driver.commit()


class Tick(Struct):
    """A record of the tests of late records."""

    n: int


@pytest.mark.parametrize("kind", ["added up in any order", "in order"])
def test_late_records_are_counted_and_kept_in_a_topic_of_their_own(drive: Drive, kind: str) -> None:
    pipeline = Pipeline("late")
    ticks = pipeline.stream("ticks", value=Tick).filter("n > 0").group_by_key()
    windowed = ticks.windowed_by(tumbling(10), late="late_ticks")
    columns = {"n": "count(*)"} if kind != "in order" else {"n": "count(*)", "all": "collect_list(n)"}
    windowed.aggregate(columns, store="per_window")
    driver = drive(pipeline)
    for n, at in ((1, 5), (2, 25), (3, 7), (0, 1), (4, 29)):
        driver.pipe("ticks", {"n": n}, "a", timestamp=at)
    driver.commit()
    driver.pipe("ticks", {"n": 5}, "a", timestamp=12)
    assert [(one.key, one.value, one.timestamp) for one in driver.output("late_ticks")] == [
        ("a", {"n": 3}, 7), ("a", {"n": 5}, 12),
    ]  # fmt: skip
    assert driver.counts()["late/per_window"] == 2
    assert {key: value["n"] for key, value in driver.store("per_window").items()} == {("a", 0, 10): 1, ("a", 20, 30): 2}
