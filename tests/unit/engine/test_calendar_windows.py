"""Windows of a time zone, held against plain arithmetic with zoneinfo."""

from __future__ import annotations

import pickle
from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sluice import CalendarWindow, hopping, tumbling
from sluice.engine.combine.windowing import assign_windows
from sluice.values.calendar_windows import Period
from sluice.values.windows import Bounds, TimeWindow

BERLIN, NEW_YORK, APIA = map(ZoneInfo, ("Europe/Berlin", "America/New_York", "Pacific/Apia"))
HOUR = 3_600_000
ZONES = (
    "UTC",
    "Europe/Berlin",
    "America/New_York",
    "Asia/Kathmandu",
    "Australia/Lord_Howe",  # the clocks change by half an hour
    "America/Sao_Paulo",  # until 2019, they changed at midnight
    "America/Havana",  # midnight comes twice
    "Pacific/Apia",  # skipped 30 December 2011
    "Africa/Monrovia",  # 44.5 minutes behind UTC until 1972
)


def ms(zone: ZoneInfo, *time: int) -> int:
    """The instant at a time on the clocks of a zone; the first such instant if there are two."""
    return round(datetime(*time, tzinfo=zone).timestamp() * 1_000)  # type: ignore[misc, arg-type]


def window_of(window: TimeWindow, time: int) -> Bounds:
    (bounds,) = window.bounds_of(time)
    return bounds


def hours(bounds: Bounds) -> float:
    return (bounds[1] - bounds[0]) / HOUR


@pytest.mark.parametrize(
    ("day", "length"), [((2026, 3, 28), 24), ((2026, 3, 29), 23), ((2026, 10, 25), 25)]
)
def test_a_day_is_an_hour_shorter_or_longer_when_the_clocks_change(
    day: tuple[int, int, int], length: int
) -> None:
    days = tumbling("1 day", zone="Europe/Berlin")
    begin = ms(BERLIN, *day)
    for time in (begin, begin + 2 * HOUR, begin + length * HOUR - 1):
        assert window_of(days, time) == (begin, begin + length * HOUR)
    assert window_of(days, begin + length * HOUR)[0] == begin + length * HOUR


def test_a_business_day_from_six_in_the_evening() -> None:
    days = tumbling("1 day", zone="Europe/Berlin", offset="18 hours")
    assert window_of(days, ms(BERLIN, 2026, 3, 29, 12)) == (
        ms(BERLIN, 2026, 3, 28, 18),
        ms(BERLIN, 2026, 3, 29, 18),
    )
    assert hours(window_of(days, ms(BERLIN, 2026, 3, 29, 12))) == 23
    assert window_of(days, ms(BERLIN, 2026, 7, 1, 18))[0] == ms(BERLIN, 2026, 7, 1, 18)


def test_weeks_begin_on_monday_and_an_offset_moves_them_to_sunday() -> None:
    wednesday = ms(NEW_YORK, 2026, 11, 4, 9)
    assert window_of(tumbling("1 week", zone="America/New_York"), wednesday) == (
        ms(NEW_YORK, 2026, 11, 2),
        ms(NEW_YORK, 2026, 11, 9),
    )
    from_sunday = tumbling("1 week", zone="America/New_York", offset="6 days")
    assert window_of(from_sunday, wednesday)[0] == ms(NEW_YORK, 2026, 11, 1)
    assert hours(window_of(from_sunday, wednesday)) == 7 * 24 + 1, "summer time ends on that Sunday"


def test_months_quarters_and_fiscal_years() -> None:
    time = ms(BERLIN, 2028, 2, 29, 23, 59)
    months, quarters, years = (
        tumbling(size, zone="Europe/Berlin") for size in ("1 month", "3 months", "1 year")
    )
    assert window_of(months, time) == (ms(BERLIN, 2028, 2, 1), ms(BERLIN, 2028, 3, 1))
    assert window_of(quarters, time) == (ms(BERLIN, 2028, 1, 1), ms(BERLIN, 2028, 4, 1))
    assert window_of(years, time) == (ms(BERLIN, 2028, 1, 1), ms(BERLIN, 2029, 1, 1))
    from_april = tumbling("1 year", zone="Europe/Berlin", offset="3 months")
    assert window_of(from_april, time) == (ms(BERLIN, 2027, 4, 1), ms(BERLIN, 2028, 4, 1))
    months_from_noon = tumbling("1 month", zone="Europe/Berlin", offset="12 hours")
    assert window_of(months_from_noon, ms(BERLIN, 2028, 3, 1, 11))[0] == ms(BERLIN, 2028, 2, 1, 12)


def test_shifts_of_eight_hours_follow_the_clocks() -> None:
    shifts = tumbling("8 hours", zone="Europe/Berlin", offset="6 hours")
    night = window_of(shifts, ms(BERLIN, 2026, 10, 25, 1))
    assert night == (ms(BERLIN, 2026, 10, 24, 22), ms(BERLIN, 2026, 10, 25, 6))
    assert hours(night) == 9


def test_the_last_seven_days_begin_anew_each_day() -> None:
    week = hopping("7 days", advance="1 day", zone="Europe/Berlin")
    windows = week.bounds_of(ms(BERLIN, 2026, 3, 29, 12))
    assert [start for start, _ in windows] == [ms(BERLIN, 2026, 3, day) for day in range(23, 30)]
    assert [hours(window) for window in windows] == [167] * 7


def test_an_offset_alone_counts_in_utc() -> None:
    assert window_of(tumbling("1 hour", offset="15 minutes"), 20 * HOUR) == (
        19 * HOUR + HOUR // 4,
        20 * HOUR + HOUR // 4,
    )


def test_the_day_that_samoa_skipped_has_no_window() -> None:
    days = tumbling("1 day", zone="Pacific/Apia")
    before, after = ms(APIA, 2011, 12, 29, 12), ms(APIA, 2011, 12, 31)
    assert window_of(days, before) == (ms(APIA, 2011, 12, 29), after)
    assert window_of(days, after) == (after, ms(APIA, 2012, 1, 1))
    two_days = hopping("2 days", advance="1 day", zone="Pacific/Apia")
    assert [start for start, _ in two_days.bounds_of(after)] == [after], (
        "a window from the 30th would begin then, too"
    )


def test_short_windows_that_the_clocks_skip_do_not_exist() -> None:
    half_hours = hopping("30 minutes", advance="15 minutes", zone="Europe/Berlin")
    at_three = ms(BERLIN, 2026, 3, 29, 3)
    quarter = HOUR // 4
    # The clocks skip the hour from two to three.
    assert half_hours.bounds_of(at_three - 1) == [
        (at_three - 2 * quarter, at_three),
        (at_three - quarter, at_three),
    ]
    assert half_hours.bounds_of(at_three + 5) == [(at_three, at_three + 2 * quarter)]
    assert half_hours.end_of(at_three - quarter) == at_three


def test_a_window_can_begin_before_1970() -> None:
    assert window_of(tumbling("1 day", zone="Europe/Berlin"), 0) == (-HOUR, 23 * HOUR)
    assert window_of(tumbling("1 year", zone="America/New_York"), 0) == (
        ms(NEW_YORK, 1969, 1, 1),
        5 * HOUR,
    )
    assert window_of(tumbling("1 month"), -1)[0] == ms(ZoneInfo("UTC"), 1969, 12, 1)


def test_a_window_can_end_after_the_last_year_of_python() -> None:
    start, end = window_of(tumbling("1 year", zone="Europe/Berlin"), ms(BERLIN, 9999, 12, 31))
    assert (start, (end - start) / (24 * HOUR)) == (ms(BERLIN, 9999, 1, 1), 365)


def test_windows_survive_pickling() -> None:
    days = tumbling("1 day", zone="Europe/Berlin")
    window_of(days, 0)
    assert pickle.loads(pickle.dumps(days)) == days


windows = st.builds(
    CalendarWindow,
    period=st.builds(Period, st.sampled_from([HOUR // 4, HOUR, 6 * HOUR, 24 * HOUR, 72 * HOUR]))
    | st.builds(Period, st.integers(1, 4), st.sampled_from(["week", "month", "year"])),
    zone=st.sampled_from(ZONES),
    offset=st.builds(Period, st.integers(0, 7).map(lambda number: number * 450_000)),
    grace_ms=st.sampled_from([0, 5_000]),
    periods=st.integers(1, 3),
)
# Near the changes of the clocks of 1972, 2011, 2018 and 2026, and anywhere.
moments = st.sampled_from(
    [
        ms(ZoneInfo("UTC"), *day)
        for day in (
            (1970, 1, 1),
            (1972, 1, 7),
            (2011, 12, 30),
            (2018, 11, 4),
            (2026, 3, 29),
            (2026, 10, 25),
        )
    ]
).flatmap(lambda day: st.integers(day, day + 30 * HOUR)) | st.integers(
    0, ms(ZoneInfo("UTC"), 2100, 1, 1)
)


def starts_by_definition(window: CalendarWindow, near: int) -> list[int]:
    """The starts of all periods around a time, from local dates and zoneinfo."""
    zone, period = ZoneInfo(window.zone), window.period
    shift = timedelta(milliseconds=window.offset.ms)
    today = datetime.fromtimestamp(near / 1_000, UTC).replace(tzinfo=None)
    if period.months:
        month = ((today.year - 1970) * 12 + today.month - 1) // period.months * period.months
        numbers = [month + number * period.months for number in range(-5, 6)]
        clocks = [datetime(1970 + number // 12, number % 12 + 1, 1) for number in numbers]
    else:
        first = datetime(1970, 1, 5) if period.unit == "week" else datetime(1970, 1, 1)
        length = timedelta(milliseconds=period.ms)
        number = (today - first) // length
        # The clocks of a zone are at most 26 hours from UTC, or skip a day.
        reach = 5 + 80 * HOUR // period.ms
        clocks = [first + each * length for each in range(number - reach, number + reach)]
    starts = [round((clock + shift).replace(tzinfo=zone).timestamp() * 1_000) for clock in clocks]
    # A period that begins at a time which the clocks skip begins later, but not after the periods
    # that follow it.
    return [min(starts[place:]) for place in range(len(starts))]


@given(windows, moments)
def test_windows_are_those_of_plain_arithmetic(window: CalendarWindow, time: int) -> None:
    starts = starts_by_definition(window, time)
    periods = len(starts) - window.periods
    expected = [
        (starts[number], starts[number + window.periods])
        for number in range(periods)
        if starts[number] < starts[number + 1]
        and starts[number] <= time < starts[number + window.periods]
    ]
    assert window.bounds_of(time) == expected
    assert [window.end_of(start) for start, _ in expected] == [end for _, end in expected]


@given(windows, st.lists(moments, min_size=1, max_size=30))
def test_arrays_of_times_have_the_same_windows(window: CalendarWindow, times: list[int]) -> None:
    counted = assign_windows(np.array(times), window, -1)
    stream_time, expected = -1, []
    for row, time in enumerate(times):
        stream_time = max(stream_time, time)
        open_windows = [
            bounds for bounds in window.bounds_of(time) if bounds[1] + window.grace_ms > stream_time
        ]
        expected += [(row, start, end) for start, end in open_windows]
    assert (
        list(
            zip(counted.rows.tolist(), counted.starts.tolist(), counted.ends.tolist(), strict=True)
        )
        == expected
    )
