"""Windows that follow a time zone's clocks: days, weeks, months, years, or shifts of hours.

The clocks of a zone are sometimes set forward or back, so these windows differ in length: a day has
23 hours when summer time begins, and 25 when it ends. All times are in ms. An *instant* counts from
1970 in UTC; a *local* time counts from 1970 on the zone's clocks.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from functools import cached_property, lru_cache
from typing import Any, Literal
from zoneinfo import ZoneInfo

from sluice.values.phrases import counted, duration_text

_QUARTER, _DAY = 900_000, 86_400_000
_EPOCH = datetime(1970, 1, 1)
_FIRST_MONDAY = 4 * _DAY
"""5 January 1970, a local time."""
_EARLIEST = (datetime(2, 1, 1) - _EPOCH) // timedelta(milliseconds=1)
_LATEST = (datetime(9999, 12, 30) - _EPOCH) // timedelta(milliseconds=1)
"""Python's calendar has only the years 1 to 9999. For an earlier or later time, the distance from
UTC is assumed to be the same as at `_EARLIEST` or `_LATEST`."""
_MONTHS_OF_A_CYCLE, _DAYS_OF_A_CYCLE = 4_800, 146_097
"""The number of months, and of days, in 400 years. After 400 years, the calendar repeats."""


@dataclass(frozen=True)
class Period:
    """A length of time on a zone's clocks: a number of milliseconds, weeks, months or years."""

    count: int
    unit: Literal["ms", "week", "month", "year"] = "ms"

    @property
    def months(self) -> int:
        """The number of months; 0 for milliseconds and weeks, which are not counted in months."""
        match self.unit:
            case "month":
                return self.count
            case "year":
                return 12 * self.count
            case _:
                return 0

    @property
    def ms(self) -> int:
        """The length on the clocks; 0 for months and years, whose lengths differ."""
        match self.unit:
            case "ms":
                return self.count
            case "week":
                return 7 * _DAY * self.count
            case _:
                return 0

    def __str__(self) -> str:
        if self.unit == "ms":
            return duration_text(self.count)
        return counted(self.count, self.unit)


@dataclass(frozen=True)
class CalendarWindow:
    """Windows `[start, end)` of `periods` calendar periods; a window begins with each period.

    Periods of milliseconds are counted from midnight of 1 January 1970 on the zone's clocks. Weeks
    are counted from Monday, 5 January 1970; months and years from January 1970. The offset is added
    to these times. If the clocks are set forward over the beginning of a period, the period begins
    later, by as much as the clocks skip. If the clocks are set back and show the beginning twice,
    the period begins the first time. A period that the clocks skip has no window. A period never
    begins after its successor.
    """

    period: Period
    zone: str
    offset: Period = Period(0)
    grace_ms: int = 0
    periods: int = 1
    """The number of periods in a window; more than 1 for hopping windows."""

    @property
    def size_ms(self) -> None:
        """None: windows differ in length when the clocks change."""
        return

    @property
    def longest_ms(self) -> int:
        """A length that no window exceeds."""
        # The clocks of a zone are less than a day ahead of UTC or behind it, so a change moves them
        # by less than two days.
        return self.periods * (self.period.ms + self.period.months * 31 * _DAY) + 2 * _DAY

    @property
    def open_ms(self) -> int:
        """How long after its end a window accepts records, in stream time."""
        return self.grace_ms

    def bounds_of(self, time: int) -> list[tuple[int, int]]:
        """Return the windows that contain `time`, the earliest first."""
        current = self.period_at(time)
        numbers = range(current - self.periods + 1, current + 1)
        return [self._bounds(number) for number in numbers if self.exists(number)]

    def end_of(self, start: int) -> int:
        """Return the end of the window that begins at `start`."""
        return self.start_of(self.period_at(start) + self.periods)

    def period_at(self, time: int) -> int:
        """Return the number of the period that contains an instant. Numbers increase with time."""
        # This is only a first guess: the clocks may change within the quarter of an hour that
        # contains the time.
        number = self._period_of_local(time + _ahead_of_utc(self.zone, time // _QUARTER))
        while self.start_of(number + 1) <= time:
            number += 1
        while self.start_of(number) > time:
            number -= 1
        return number

    def _period_of_local(self, local: int) -> int:
        if not self.period.months:
            return (local - self._first) // self.period.ms
        day = _clock(local - self.offset.ms)
        return ((day.year - 1970) * 12 + day.month - 1 - self.offset.months) // self.period.months

    @property
    def _first(self) -> int:
        """The local time at which period 0 begins, for periods of milliseconds and of weeks."""
        if self.period.unit == "week":
            return self.offset.ms + _FIRST_MONDAY
        return self.offset.ms

    def _bounds(self, number: int) -> tuple[int, int]:
        return self.start_of(number), self.start_of(number + self.periods)

    def exists(self, number: int) -> bool:
        """Return whether the period exists: the clocks of a zone can skip a whole period."""
        # In a zone that changes its side of the date line, such as Samoa in
        # 2011, the clocks skip a whole day.
        return self.start_of(number) < self.start_of(number + 1)

    @cached_property
    def start_of(self) -> Callable[[int], int]:
        """The instant at which a period begins.

        It is cached, because all rows need the same few periods.
        """
        return lru_cache(maxsize=10_000)(self._computed_start)

    def _computed_start(self, number: int) -> int:
        local = self._local_start(number)
        # For a time that the clocks skip, `first` is the distance from UTC before the change, and
        # `second` is the distance after it. For a time that the clocks show twice, `first` is the
        # distance at the first occurrence.
        first, second = _distances(self.zone, local)
        start = local - first
        # If the clocks also skip the beginnings of the next, short periods, one of these may begin
        # before `start`. No period may begin after its successor.
        skipped = second - first
        following = number + 1
        while skipped > 0 and (later := self._local_start(following)) <= local + skipped:
            start = min(start, later - _distances(self.zone, later)[0])
            following += 1
        return start

    def _local_start(self, number: int) -> int:
        """Return the local time at which a period begins."""
        if months := self.period.months:
            return _first_of_month(number * months + self.offset.months) + self.offset.ms
        return self._first + number * self.period.ms

    def __getstate__(self) -> dict[str, Any]:
        # The cache is not pickled, because each process has its own.
        return {name: value for name, value in vars(self).items() if name != "start_of"}

    def __str__(self) -> str:
        parts = [f"zone {self.zone}", f"grace {duration_text(self.grace_ms)}"]
        if self.offset.count:
            parts.insert(1, f"offset {self.offset}")
        if self.periods == 1:
            return f"tumbling({', '.join([str(self.period), *parts])})"
        size = Period(self.period.count * self.periods, self.period.unit)
        return f"hopping({', '.join([str(size), f'every {self.period}', *parts])})"


def _first_of_month(month: int) -> int:
    """Return the local time at which a month begins; month 0 is January 1970."""
    cycle, month_of_cycle = divmod(month, _MONTHS_OF_A_CYCLE)
    year, of_year = divmod(month_of_cycle, 12)
    days = date(1970 + year, of_year + 1, 1).toordinal() - _EPOCH.toordinal()
    return (days + cycle * _DAYS_OF_A_CYCLE) * _DAY


def _clock(ms: int) -> datetime:
    """Convert ms (local, or an instant in UTC) to a naive datetime within Python's calendar."""
    return _EPOCH + timedelta(milliseconds=min(max(ms, _EARLIEST), _LATEST))


def _distances(zone: str, local: int) -> tuple[int, int]:
    """Return how far the clocks are ahead of UTC at a local time.

    Return two distances, which differ if the clocks skip the time or show it twice.
    """
    clock = _clock(local).replace(tzinfo=_zone(zone))
    return _in_ms(clock.utcoffset()), _in_ms(clock.replace(fold=1).utcoffset())


@lru_cache(maxsize=10_000)
def _ahead_of_utc(zone: str, quarter: int) -> int:
    """Return how far a zone is ahead of UTC at a time given in quarters of an hour since 1970."""
    moment = _clock(quarter * _QUARTER).replace(tzinfo=UTC)
    return _in_ms(moment.astimezone(_zone(zone)).utcoffset())


def _in_ms(offset: timedelta | None) -> int:
    assert offset is not None
    return offset // timedelta(milliseconds=1)


@lru_cache(maxsize=64)
def _zone(name: str) -> ZoneInfo:
    return ZoneInfo(name)
