"""Windows that count records, and windows of a function: a factory watches its sensors."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

import pytest
from msgspec import Struct

from sluice import Pipeline, custom_windows, every_records, last_records
from sluice.errors import TopologyError
from sluice.topology import drawing
from tests.pipelines.conftest import Drive

MINUTE = 60_000


class Reading(Struct):
    sensor: str
    celsius: int


def shift(time: int) -> list[tuple[int, int]]:
    """Two shifts of 40 minutes in each hour, and then a break in which nobody works."""
    hour, within = time // (60 * MINUTE) * 60 * MINUTE, time % (60 * MINUTE)
    if within >= 50 * MINUTE:
        return []
    start = hour if within < 25 * MINUTE else hour + 25 * MINUTE
    return [(start, start + 25 * MINUTE)]


def factory() -> Pipeline:
    pipeline = Pipeline("factory", workers=2)
    by_sensor = pipeline.stream("readings", value=Reading).group_by("sensor")
    moving = by_sensor.windowed_by(last_records(3)).aggregate(
        store="moving", mean="avg(celsius)", n="count(*)"
    )
    moving.to("moving_changes")
    threes = by_sensor.windowed_by(every_records(3), emit="window_close")
    threes.aggregate(store="threes", hottest="max(celsius)").to("threes_complete")
    by_sensor.windowed_by(every_records(3)).reduce(
        lambda hottest, new: max(hottest, new, key=lambda each: each.celsius),
        store="hottest_so_far",
    ).group_by("celsius div 10").count(store="sensors_by_tens")
    shifts = custom_windows(shift, grace="1 minute")
    by_sensor.windowed_by(shifts, retention="1 hour", emit="window_close").count(
        store="per_shift"
    ).to("shifts_closed")
    return pipeline


@pytest.mark.parametrize("cut", [False, True])
def test_windows_of_records_follow_each_sensor(drive: Drive, cut: bool) -> None:
    driver = drive(factory())
    for sensor, celsius in [
        ("oven", 10),
        ("oven", 40),
        ("ice", 1),
        ("oven", 20),
        ("oven", 30),
        ("ice", 4),
    ]:
        driver.pipe("readings", {"sensor": sensor, "celsius": celsius}, timestamp=0)
        if cut:
            driver.commit()
    assert driver.store("moving") == {"oven": {"mean": 30.0, "n": 3}, "ice": {"mean": 2.5, "n": 2}}
    means = [(record.key, record.value["mean"]) for record in driver.output("moving_changes")]
    assert [mean for key, mean in means if key == "oven"] == [10.0, 25.0, 70 / 3, 30.0]
    assert driver.store("threes") == {"oven": {"hottest": 40}}, "ice has only two readings"
    assert [(each.key, each.value) for each in driver.output("threes_complete")] == [
        ("oven", {"hottest": 40})
    ]
    assert driver.store("hottest_so_far")["oven"] == {"sensor": "oven", "celsius": 30}, (
        "the second window has begun"
    )
    assert driver.store("sensors_by_tens") == {"0": 1, "1": 0, "3": 1, "4": 0}


@pytest.mark.parametrize("cut", [False, True])
def test_shifts_of_a_function_close_like_other_windows(drive: Drive, cut: bool) -> None:
    driver = drive(factory())
    for minute in (1, 24, 26, 24, 52, 3, 61):
        driver.pipe("readings", {"sensor": "oven", "celsius": 1}, timestamp=minute * MINUTE)
        if cut:
            driver.commit()
    first, second, third = (0, 25 * MINUTE), (25 * MINUTE, 50 * MINUTE), (60 * MINUTE, 85 * MINUTE)
    assert driver.store("per_shift") == {
        ("oven", *first): 2,
        ("oven", *second): 1,
        ("oven", *third): 1,
    }
    closed = [
        (int(each.headers["window_start"]), each.value) for each in driver.output("shifts_closed")
    ]
    assert closed == [(0, 2), (25 * MINUTE, 1)]
    assert (driver.counts()["late/per_shift"], driver.counts()["no_window/per_shift"]) == (2, 1)
    driver.pipe("readings", {"sensor": "oven", "celsius": 1}, timestamp=86 * MINUTE)
    assert ("oven", *first) not in driver.store("per_shift"), "an hour after its end"


def test_a_mistake_of_the_function_is_a_dead_letter(drive: Drive) -> None:
    pipeline = Pipeline("backwards", max_failures=1.0)
    wrong = custom_windows(lambda time: [(time, time - 1) if time < 9 else (time > 5, time + 1)])
    pipeline.stream("readings", value=Reading).group_by("sensor").windowed_by(wrong).count(
        store="counts"
    )
    driver = drive(pipeline)
    driver.pipe("readings", {"sensor": "oven", "celsius": 1}, timestamp=5)
    driver.pipe("readings", {"sensor": "oven", "celsius": 1}, timestamp=9)
    backwards, without_time = [letter.headers["sluice.detail"] for letter in driver.dead_letters()]
    assert "the window function returned (5, 4) for 5" in backwards
    assert "the window function returned (True, 10) for 9" in without_time


def test_the_description_names_the_windows() -> None:
    text = drawing.text(factory())
    for window in (
        "last_records(3)",
        "every_records(3, when complete)",
        "every_records(3)",
        "custom_windows(shift, gr",
    ):
        assert window in text


def by_sensor() -> Any:
    return Pipeline("wrong").stream("readings", value=Reading).group_by("sensor")


@pytest.mark.parametrize(
    ("mistake", "message"),
    [
        (lambda sensors: every_records(0), r"the number of records must be an int of at least 1"),
        (
            lambda sensors: last_records(cast(Any, 1.5)),
            r"the number of records must be an int of at least 1",
        ),
        (lambda sensors: last_records(10_001), r"at most 10,000 records"),
        (lambda sensors: custom_windows(cast(Any, factory)), r"must take \(time\)"),
        (lambda sensors: custom_windows(shift, grace="soon"), r"'soon' at .* is not a duration"),
        (
            lambda sensors: sensors.windowed_by(every_records(3), late="late"),
            r"late=, retention= and early=",
        ),
        (
            lambda sensors: sensors.windowed_by(last_records(3), retention="1 day"),
            r"late=, retention= and early=",
        ),
        (
            lambda sensors: (
                sensors.windowed_by(every_records(3))
                .count(store="counts")
                .suppress_until_window_closes()
            ),
            r"the table is not windowed",
        ),
        (lambda sensors: sensors.windowed_by(3), r"expected a window, such as tumbling"),
    ],
)
def test_a_wrong_use_is_an_error_when_the_file_is_loaded(
    mistake: Callable[[Any], object], message: str
) -> None:
    with pytest.raises(TopologyError, match=message):
        mistake(by_sensor())
