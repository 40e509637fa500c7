"""Pipelines whose stream time goes on by the clock while their topics are silent."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from sluice import Pipeline, tumbling, within
from sluice.errors import TopologyError
from sluice.testing import TopologyTestDriver

MINUTE = 60_000
NOON = 1_700_006_400_000
"""A full hour, at which the records' times and the driver's clock begin."""

Drive = Callable[..., TopologyTestDriver]


@pytest.fixture
def drive() -> Iterator[Drive]:
    """Makes a driver of a pipeline, all of whose topics have a number of partitions."""
    drivers: list[TopologyTestDriver] = []

    def make(pipeline: Pipeline, partitions: int = 1) -> TopologyTestDriver:
        topics = dict.fromkeys(pipeline.topics, partitions)
        drivers.append(TopologyTestDriver(pipeline, clock=NOON, partitions=topics))
        return drivers[-1]

    yield make
    for driver in drivers:
        driver.__exit__(None, None, None)


def pipeline_of_minutes(**options: Any) -> Pipeline:
    """Counts the clicks of each minute, and then the minutes of each hour."""
    pipeline = Pipeline("minutes", **options)
    clicks = pipeline.stream("clicks", value=str)
    pipeline.stream("other", value=str).to("others")
    minutes = (
        clicks.group_by_key()
        .windowed_by(tumbling("1 minute"), emit="window_close")
        .count(store="minutes")
    )
    minutes.to("of_minutes")
    hours = (
        minutes.to_stream()
        .select_key("'all'")
        .group_by_key()
        .windowed_by(tumbling("1 hour"), emit="window_close")
    )
    hours.count(store="hours").to("of_hours")
    return pipeline


def values(driver: TopologyTestDriver, topic: str) -> list[Any]:
    return [record.value for record in driver.read(topic)]


def test_windows_close_in_silence(drive: Drive) -> None:
    driver = drive(pipeline_of_minutes(advance_when_idle="30 seconds"))
    driver.pipe("clicks", "home", key="ann", timestamp=NOON + 10_000)
    driver.commit()
    # The window ends 50 s after the click, and the click's time goes on 30 s after it.
    driver.advance(79_999)
    assert values(driver, "of_minutes") == []
    driver.advance(1)
    assert values(driver, "of_minutes") == [1]
    # The hour begins to wait when the minute's result has come.
    driver.advance(59 * MINUTE)
    assert values(driver, "of_hours") == [1]


def test_one_long_silence_gives_the_same_results(drive: Drive) -> None:
    driver = drive(pipeline_of_minutes(advance_when_idle="30 seconds"))
    driver.pipe("clicks", "home", key="ann", timestamp=NOON + 10_000)
    driver.advance(5 * 3_600_000)
    assert values(driver, "of_minutes") == [1]
    assert values(driver, "of_hours") == [1], "the result of the minute is not late for its hour"
    assert driver.counts().get("late/hours") is None


def test_windows_wait_without_the_option(drive: Drive) -> None:
    driver = drive(pipeline_of_minutes(idle_timeout="1 second"))
    driver.pipe("clicks", "home", key="ann", timestamp=NOON)
    driver.advance(5 * 3_600_000)
    assert values(driver, "of_minutes") == []


def test_another_topic_may_have_records_meanwhile(drive: Drive) -> None:
    driver = drive(pipeline_of_minutes(advance_when_idle="30 seconds"))
    driver.pipe("clicks", "home", key="ann", timestamp=NOON)
    for _ in range(8):
        driver.advance(10_000)
        driver.pipe("other", "tick", timestamp=NOON)
        driver.commit()
    assert values(driver, "of_minutes") == []
    driver.advance(10_000)
    assert values(driver, "of_minutes") == [1]


def test_records_after_the_silence_are_judged_by_the_time_that_has_passed(drive: Drive) -> None:
    driver = drive(pipeline_of_minutes(advance_when_idle="30 seconds"))
    driver.pipe("clicks", "home", key="ann", timestamp=NOON)
    driver.advance(10 * MINUTE)
    driver.pipe("clicks", "late", key="ann", timestamp=NOON + 8 * MINUTE)
    driver.pipe("clicks", "in time", key="ann", timestamp=NOON + 9 * MINUTE + 30_000)
    driver.advance(MINUTE + 30_000)
    assert values(driver, "of_minutes") == [1, 1]
    assert driver.counts()["late/minutes"] == 1


def test_silent_partitions_go_on_from_the_latest_record(drive: Drive) -> None:
    driver = drive(pipeline_of_minutes(advance_when_idle="30 seconds", workers=2), partitions=3)
    driver.pipe("clicks", "home", key="ann", timestamp=NOON, partition=0)
    driver.pipe("clicks", "home", key="bob", timestamp=NOON + 2 * MINUTE, partition=1)
    driver.commit()
    assert values(driver, "of_minutes") == [], "ann's window waits for the third partition"
    driver.advance(31_000)
    assert values(driver, "of_minutes") == [1]
    driver.advance(MINUTE)
    assert values(driver, "of_minutes") == [1]


@pytest.mark.parametrize("partitions", [1, 2])
def test_unmatched_records_are_sent_in_silence(drive: Drive, partitions: int) -> None:
    pipeline = Pipeline("orders", workers=2, advance_when_idle="5 seconds")
    orders, payments = pipeline.stream("orders", value=str), pipeline.stream("payments", value=str)
    orders.left_join(payments, within("1 minute")).to("paid")
    driver = drive(pipeline, partitions)
    driver.pipe("orders", "book", key="1", timestamp=NOON)
    driver.pipe("orders", "pen", key="2", timestamp=NOON + 1_000, partition=partitions - 1)
    driver.pipe("payments", "card", key="2", timestamp=NOON + 2_000)
    driver.commit()
    assert values(driver, "paid") == [{"left": "pen", "right": "card"}]
    driver.advance(2 * MINUTE)
    assert values(driver, "paid") == [{"left": "book", "right": None}]


@pytest.mark.parametrize("partitions", [1, 2])
def test_unmatched_records_of_a_key_are_sent_one_after_the_other(
    drive: Drive, partitions: int
) -> None:
    pipeline = Pipeline("orders", workers=2, advance_when_idle="5 seconds")
    orders, payments = pipeline.stream("orders", value=str), pipeline.stream("payments", value=str)
    orders.left_join(payments, within("1 second")).to("paid")
    driver = drive(pipeline, partitions)
    for number in range(10):
        at, partition = NOON + number * 200, number % partitions
        driver.pipe("orders", str(number), key="1", timestamp=at, partition=partition)
        driver.pipe("payments", "card", key="another", timestamp=at, partition=partition)
    driver.commit()
    sent = [value["left"] for value in values(driver, "paid")]
    for _ in range(10):
        driver.advance(1_000)
        sent += [value["left"] for value in values(driver, "paid")]
    assert sent == [str(number) for number in range(10)]


def test_time_limits_and_timers_pass_in_silence(drive: Drive) -> None:
    pipeline = Pipeline("limits", advance_when_idle="5 seconds")
    clicks = pipeline.stream("clicks", value=str)
    clicks.group_by_key().count(store="clicks_of_key").suppress_until_time_limit("1 minute").to(
        "limited"
    )
    clicks.process(Quiet, outputs={"quiet": str})["quiet"].to("quiet", value=str)
    driver = drive(pipeline)
    driver.pipe("clicks", "home", key="ann", timestamp=NOON)
    driver.commit()
    driver.advance(65_000)
    assert values(driver, "limited") == [1]
    assert values(driver, "quiet") == []
    driver.advance(3_600_000)
    assert values(driver, "quiet") == ["ann is quiet"]


@pytest.mark.parametrize("partitions", [1, 2])
def test_results_do_not_depend_on_how_often_runs_begin(drive: Drive, partitions: int) -> None:
    pipeline = pipeline_of_minutes(advance_when_idle="5 seconds", workers=2)
    clicks = pipeline.stream("more_clicks", value=str)
    clicks.outer_join(pipeline.stream("answers", value=str), within("7 seconds")).to("answered")
    clicks.to_table(store="clicked", expires_after="12 seconds").to("clicked_changes")
    results = []
    for run_every in (150_000, 7_500, 3_000):
        chance = random.Random(partitions)
        driver = drive(pipeline, partitions)
        for part in range(3):
            now = NOON + part * 150_000
            for topic in sorted(chance.choices(("clicks", "more_clicks", "answers"), k=6)):
                at, partition = now + chance.randrange(3_000), chance.randrange(partitions)
                driver.pipe(
                    topic, "value", key=chance.choice("xyz"), timestamp=at, partition=partition
                )
            for _ in range(0, 150_000, run_every):
                driver.advance(run_every)
        topics = ("of_minutes", "of_hours", "answered", "clicked_changes")
        outputs = [
            (topic, each.key, str(each.value), each.timestamp)
            for topic in topics
            for each in driver.read(topic)
        ]
        results.append(sorted(outputs, key=str))
    assert results[0] == results[1] == results[2]


class Quiet:
    """Reports a key without a record for an hour."""

    def init(self, context: Any) -> None:
        self.context = context

    def process(self, record: Any) -> None:
        self.context.schedule("hour", record.time + 3_600_000)

    def on_timer(self, timer: Any) -> None:
        self.context.forward(timer.key, f"{timer.key} is quiet", to="quiet")


def test_the_clock_of_a_test_only_advances(drive: Drive) -> None:
    driver = drive(pipeline_of_minutes())
    with pytest.raises(TopologyError, match="cannot advance by -1 ms"):
        driver.advance(-1)


def test_the_silence_has_a_length() -> None:
    with pytest.raises(TopologyError, match="advance_when_idle"):
        Pipeline("wrong", advance_when_idle="0 s")
