"""Closed windows are kept for their retention."""

from __future__ import annotations

import pytest
from msgspec import Struct

from sluice import Pipeline, session, tumbling
from sluice.errors import TopologyError
from tests.pipelines.conftest import Drive

SECOND = 1_000


class Click(Struct):
    page: str


def clicks(workers: int = 2) -> Pipeline:
    pipeline = Pipeline("clicks", workers=workers)
    by_page = pipeline.stream("clicks", value=Click).group_by("page")
    minute, ten_seconds = (
        tumbling("1 minute", grace="5 seconds"),
        tumbling("10 seconds", grace="5 seconds"),
    )
    by_page.windowed_by(ten_seconds, retention="30 seconds").count(store="short")
    by_page.windowed_by(ten_seconds).count(store="for_ever")
    by_page.windowed_by(minute, retention="30 seconds").aggregate(store="longer", n="count(*)")
    visits = by_page.windowed_by(session("10 seconds", grace="5 seconds"), retention="30 seconds")
    visits.count(store="visits").to("visits_said")
    return pipeline


def test_a_window_is_kept_until_stream_time_passes_its_end_plus_retention(drive: Drive) -> None:
    driver = drive(clicks())
    for second in (1, 12, 15, 40):
        driver.pipe("clicks", {"page": "a"}, timestamp=second * SECOND)
    driver.pipe("clicks", {"page": "b"}, timestamp=41 * SECOND)
    assert ("a", 10_000, 20_000) in driver.store("short"), "its end is 21 s ago"
    assert ("a", 0, 10_000) not in driver.store("short"), "31 s ago"
    driver.pipe("clicks", {"page": "b"}, timestamp=51 * SECOND)
    assert driver.store("short") == {
        ("a", 40_000, 50_000): 1,
        ("b", 40_000, 50_000): 1,
        ("b", 50_000, 60_000): 1,
    }
    assert len(driver.store("for_ever")) == 5
    assert driver.store("longer") == {("a", 0, 60_000): {"n": 4}, ("b", 0, 60_000): {"n": 2}}
    assert driver.store("visits") == {("a", 40_000, 40_000): 1, ("b", 41_000, 51_000): 2}
    driver.pipe("clicks", {"page": "c"}, timestamp=200 * SECOND)
    assert driver.store("longer") == {("c", 180_000, 240_000): {"n": 1}}, (
        "on every worker, even without a record"
    )
    said = [
        (record.key, record.value)
        for record in driver.read("visits_said")
        if record.value is not None
    ]
    assert said[-1] == ("c", 1), "output records stay in their topic"


@pytest.mark.parametrize("cuts", [pytest.param((), marks=pytest.mark.heavy), (3, 20, 21)])
def test_retention_does_not_depend_on_the_batches(drive: Drive, cuts: tuple[int, ...]) -> None:
    driver = drive(clicks(workers=1))
    for number in range(40):
        second = number * 3 - (20 if number % 7 == 0 and number > 7 else 0)
        driver.pipe("clicks", {"page": "abc"[number % 3]}, timestamp=second * SECOND)
        if number in cuts:
            driver.commit()
    ends = {end for _, _, end in driver.store("short")}
    assert min(ends) == 90_000, "stream time is 117 s"
    assert driver.store("short") == {
        at: n for at, n in driver.store("for_ever").items() if at[2] >= 87_000
    }


@pytest.mark.parametrize("cut", [False, True])
def test_a_record_joins_a_closed_session_that_is_still_kept(drive: Drive, cut: bool) -> None:
    pipeline = Pipeline("sessions", workers=1)
    visit = session("2 ms")
    by_page = pipeline.stream("clicks", value=Click).group_by("page")
    by_page.windowed_by(visit).count(store="forgotten").to_stream().to("forgotten_said")
    by_page.windowed_by(visit, retention="1 second").count(store="kept").to_stream().to("kept_said")
    final = by_page.windowed_by(visit, retention="1 second", emit="window_close")
    final.count(store="final").to("final_said")
    driver = drive(pipeline)
    # Page b closes the session of page a. The next click on page a is less than a gap after it.
    for page, at in (("a", 7), ("b", 10), ("a", 9), ("b", 20)):
        driver.pipe("clicks", {"page": page}, timestamp=at)
        if cut:
            driver.commit()

    def said(topic: str) -> list[tuple[str, str, int | None]]:
        records = [record for record in driver.read(topic) if record.key == "a"]
        return [
            (record.headers["window_start"], record.headers["window_end"], record.value)
            for record in records
        ]

    assert said("forgotten_said") == [("7", "7", 1), ("9", "9", 1)]
    assert said("kept_said") == [("7", "7", 1), ("7", "7", None), ("7", "9", 2)]
    assert said("final_said") == [("7", "7", 1), ("7", "9", 2)]


def test_retention_cannot_be_shorter_than_grace() -> None:
    by_page = Pipeline("hasty", workers=1).stream("clicks", value=Click).group_by("page")
    with pytest.raises(
        TopologyError, match=r"is 10 s, but a window accepts records for 15 s after its end"
    ) as raised:
        by_page.windowed_by(session("10 seconds", grace="5 seconds"), retention="10 seconds")
    assert "at least 15 s" in raised.value.next_step
