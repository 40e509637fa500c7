"""The windows that end within a time."""

from __future__ import annotations

from datetime import datetime
from zoneinfo import ZoneInfo

import pytest

from sluice.values.calendar_windows import CalendarWindow, Period
from sluice.values.closed_windows import windows_ending
from sluice.values.windows import Window

HOUR = 3_600_000
DAY = 24 * HOUR
BERLIN = "Europe/Berlin"


@pytest.mark.parametrize(
    ("after", "until", "starts"),
    [
        (0, HOUR - 1, []),
        (0, HOUR, [0]),
        (HOUR, HOUR, []),
        (HOUR, 3 * HOUR, [HOUR, 2 * HOUR]),
        (HOUR - 1, 2 * HOUR + 1, [0, HOUR]),
        (-5, HOUR, [0]),
    ],
)
def test_tumbling_windows_end_after_one_time_and_until_another(
    after: int, until: int, starts: list[int]
) -> None:
    windows = [*windows_ending(Window(HOUR), after, until)]
    assert windows == [(start, start + HOUR) for start in starts]


def test_hopping_windows_follow_their_advance() -> None:
    windows = [*windows_ending(Window(HOUR, advance_ms=HOUR // 2), HOUR, 2 * HOUR)]
    assert windows == [(HOUR // 2, 3 * HOUR // 2), (HOUR, 2 * HOUR)]


def test_the_days_of_a_zone_follow_its_clocks() -> None:
    berlin = ZoneInfo(BERLIN)

    def midnight(day: int) -> int:
        return round(datetime(2026, 3, day, tzinfo=berlin).timestamp() * 1_000)

    days = CalendarWindow(Period(DAY), BERLIN)
    windows = [*windows_ending(days, midnight(28), midnight(31))]
    assert windows == [(midnight(day), midnight(day + 1)) for day in (28, 29, 30)]
    assert windows[1][1] - windows[1][0] == 23 * HOUR, "summer time begins"


def test_a_day_that_the_clocks_skip_has_no_window() -> None:
    apia = ZoneInfo("Pacific/Apia")

    def midnight(day: int) -> int:
        return round(datetime(2011, 12, day, tzinfo=apia).timestamp() * 1_000)

    days = CalendarWindow(Period(DAY), "Pacific/Apia")
    windows = [*windows_ending(days, midnight(28), midnight(31) + DAY)]
    assert len(windows) == 3
    assert len({*windows}) == 3


def test_hopping_windows_of_a_zone_include_those_that_began_before() -> None:
    days = CalendarWindow(Period(DAY), "UTC", periods=7)
    windows = [*windows_ending(days, 20 * DAY, 22 * DAY)]
    assert windows == [(14 * DAY, 21 * DAY), (15 * DAY, 22 * DAY)]
