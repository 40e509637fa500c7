"""Functions that define windows of event time."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Literal, TypeVar

from sluice.errors import TopologyError
from sluice.topology import arguments
from sluice.topology.author_functions import require_callable
from sluice.topology.durations import (
    CALENDAR_SIZE,
    DIGITS,
    UNITS,
    Duration,
    milliseconds,
    within_limit,
)
from sluice.topology.source_line import source_line
from sluice.values.calendar_windows import CalendarWindow, Period
from sluice.values.phrases import duration_text
from sluice.values.references import Reference
from sluice.values.windows import (
    AnyWindow,
    CountWindow,
    CustomWindow,
    JoinWindow,
    SessionWindow,
    SlidingWindow,
    TimeWindow,
    Window,
)

Size = Duration
"""A duration, or a number of weeks, months or years, such as `"1 week"`, `"3 months"` or `"1
year"`."""

_SHORTEST_MONTH_DAYS = 28
_MOST_YEARS = 1_000
"""The longest window by a time zone's clocks, in years. A window of 2,000 years that contains 1970,
for example, could begin before the year 1, which Python's datetimes cannot express."""


def tumbling(
    size: Size,
    grace: Duration = "0 s",
    *,
    zone: str | None = None,
    offset: Size = "0 s",
) -> TimeWindow:
    """Define adjacent windows of `size`.

    A record is late if stream time has reached its window's end + `grace`.

    With a `zone`, such as "Europe/Berlin", windows begin and end by the zone's clocks, so a day has
    23 or 25 hours when the clocks change. `size` can also be in months, years, or weeks, which
    begin on Monday. `offset` moves the starts of all windows: the windows of `tumbling("1 day",
    zone="Europe/Berlin", offset="18 hours")` begin at six in the evening.
    """
    period, shift, grace_ms = _period(size), _period(offset), milliseconds(grace)
    if zone is None and period.unit == "ms" and not shift.count:
        return _valid(Window(period.ms, grace_ms), "size", period.ms)
    zone = "UTC" if zone is None else zone
    return _valid_calendar(CalendarWindow(period, zone, shift, grace_ms))


def hopping(
    size: Size,
    *,
    advance: Size,
    grace: Duration = "0 s",
    zone: str | None = None,
    offset: Size = "0 s",
) -> TimeWindow:
    """Define windows of `size`, with a new window every `advance`.

    A record can be late for only some of its windows.

    `zone` and `offset` mean the same as in `tumbling`. With `zone` or `offset`, `size` must be a
    multiple of `advance`.
    """
    length, period = _period(size), _period(advance)
    shift, grace_ms = _period(offset), milliseconds(grace)
    where = f"hopping({length}, every {period}) at {source_line()}"
    _require_length(where, "size", length.count)
    _require_length(where, "advance", period.count)
    if zone is None and length.unit == period.unit == "ms" and not shift.count:
        if period.ms > length.ms:
            raise TopologyError(
                f"{where}: the advance is longer than the size, so "
                "records between two windows would be in no window.",
                next_step=f"Make the advance at most {length}.",
            )
        window = Window(length.ms, grace_ms, period.ms)
        _require_few_windows(window, window.overlap)
        return _valid(window, "size", length.ms)
    # A size in days cannot be a multiple of an advance in months, because months differ in length.
    whole, part = (length.months, period.months) if period.months else (length.ms, period.ms)
    if whole < part or whole % part:
        raise TopologyError(
            f"{where}: the size must be a multiple of the advance.",
            next_step='Write for example hopping("7 days", advance="1 day", zone="Europe/Berlin").',
        )
    zone = "UTC" if zone is None else zone
    windows = CalendarWindow(period, zone, shift, grace_ms, whole // part)
    _require_few_windows(windows, windows.periods)
    return _valid_calendar(windows)


_MOST_OVERLAPPING = 100_000
"""The maximum number of windows that a record may be in. If a record is in more windows, a batch
does not fit into memory, and the author has probably written a wrong unit."""


def _require_few_windows(window: TimeWindow, overlapping: int) -> None:
    if overlapping > _MOST_OVERLAPPING:
        raise TopologyError(
            f"{window} at {source_line()}: each record would be in {overlapping:,} windows.",
            next_step="Make the advance longer; "
            f"at most {_MOST_OVERLAPPING:,} windows can overlap.",
        )


def sliding(size: Duration, grace: Duration = "0 s") -> SlidingWindow:
    """Define windows that slide over time.

    A key has one window for each different set of its records that fits into a range of length
    `size`. With a size of 0, the records of a window have the same time.
    """
    size_ms = milliseconds(size)
    return _valid(SlidingWindow(size_ms, milliseconds(grace)), "size", size_ms, least=0)


def session(gap: Duration, grace: Duration = "0 s") -> SessionWindow:
    """Define sessions of activity: a key's records at most `gap` apart are in the same session.

    A record within `gap` of two sessions merges them into one. With a gap of 0, the
    records of a session have the same time.
    """
    gap_ms = milliseconds(gap)
    return _valid(SessionWindow(gap_ms, milliseconds(grace)), "gap", gap_ms, least=0)


def custom_windows(
    function: Callable[[int], Iterable[tuple[int, int]]], grace: Duration = "0 s"
) -> CustomWindow:
    """Define windows that a function of your own computes from each record's event time.

    The function gets the event time in epoch ms and returns pairs `(start, end)` with `start <=
    time < end`. It must return the same windows for the same time, and a start must always have the
    same end. A record without a window is counted in `no_window/STORE`. Windows close like tumbling
    windows.
    """
    where = f"custom_windows at {source_line()}"
    require_callable(where, function, "time")
    window = CustomWindow(Reference(function), milliseconds(grace))
    _require_grace(where, window.grace_ms)
    return window


def every_records(number: int) -> CountWindow:
    """Define windows of `number` records: a key's first `number`, the next `number`, and so on.

    The store has one result per key, of the key's newest window. Event times do not matter, so no
    record is late. With `windowed_by(..., emit="window_close")`, only complete windows have a
    result.
    """
    return _valid_count(CountWindow(number))


def last_records(number: int) -> CountWindow:
    """Define windows of the last `number` records of each key, such as for a moving average.

    Each record has a result. The state has the values of these records, and each result is computed
    from all of them. With `windowed_by(..., emit="window_close")`, a key has no result before its
    `number`-th record.
    """
    return _valid_count(CountWindow(number, slides=True))


_MOST_LAST_RECORDS = 10_000
"""The maximum number of records for `last_records`. With more records, each result would be slow to
compute, and a key's state would be large."""


def _valid_count(window: CountWindow) -> CountWindow:
    where, number = f"{window} at {source_line()}", window.records
    if not isinstance(number, int) or isinstance(number, bool) or number < 1:
        raise TopologyError(
            f"{where}: the number of records must be an int of at least 1.",
            next_step="Write for example every_records(10) or last_records(10).",
        )
    if window.slides and number > _MOST_LAST_RECORDS:
        raise TopologyError(
            f"{where}: a window of the last records has at most {_MOST_LAST_RECORDS:,} records.",
            next_step='Use a window of time, such as hopping("1 hour", advance="1 minute").',
        )
    return window


def within(
    size: Duration = "0 s",
    *,
    before: Duration | None = None,
    after: Duration | None = None,
    grace: Duration = "0 s",
) -> JoinWindow:
    """Return the window of a stream join: how far apart in event time two records may be.

    The right record may be at most `size` before or after the left record. `before` replaces `size`
    for right records before the left record, and `after` for right records after it.
    """
    if before is None:
        before = size
    if after is None:
        after = size
    window = JoinWindow(milliseconds(before), milliseconds(after), milliseconds(grace))
    where = f"{window} at {source_line()}"
    if window.before_ms + window.after_ms < 0:
        raise TopologyError(
            f"{where}: the window ends before it starts.",
            next_step='Write for example within("5 minutes"), or '
            'within(before="0 s", after="5 minutes").',
        )
    _require_grace(where, window.grace_ms)
    return window


def retention_in_ms(window: AnyWindow, retention: Duration) -> int:
    """Return the retention in ms.

    Raises TopologyError if a window would expire while it still accepts records.
    """
    retention_ms = milliseconds(retention)
    needed = window.open_ms
    if retention_ms < needed:
        raise TopologyError(
            f"The retention of {window} at {source_line()} is {duration_text(retention_ms)}, but a "
            f"window accepts records for {duration_text(needed)} after its end.",
            next_step=f"Set the retention to at least {duration_text(needed)}.",
        )
    return retention_ms


W = TypeVar("W", Window, SlidingWindow, SessionWindow)


def _valid(window: W, name: str, length_ms: int, *, least: int = 1) -> W:
    """Return the window.

    Raises TopologyError if the window's length or grace is too short. `name` names the length in
    errors.
    """
    where = f"{window} at {source_line()}"
    _require_length(where, name, length_ms, least)
    _require_grace(where, window.grace_ms)
    return window


def _require_length(where: str, name: str, length: int, least: int = 1) -> None:
    if length < least:
        limit = "above 0" if least else "at least 0"
        raise TopologyError(
            f"{where}: the {name} must be {limit}.",
            next_step=f'Write for example {name}="5 minutes".',
        )


def _require_grace(where: str, grace_ms: int) -> None:
    if grace_ms < 0:
        raise TopologyError(
            f"{where}: grace must be at least 0.",
            next_step="Write how long after its end a window accepts records, "
            'such as grace="15 seconds", or leave grace out.',
        )


def _valid_calendar(window: CalendarWindow) -> CalendarWindow:
    where = f"{window} at {source_line()}"
    period, offset = window.period, window.offset
    _require_length(where, "size", period.count)
    _require_grace(where, window.grace_ms)
    arguments.require_zone(where, window.zone)
    if period.ms % 1_000 or offset.ms % 1_000:
        raise TopologyError(
            f"{where}: windows with a zone or an offset begin at whole seconds.",
            next_step="Write the size and the offset in seconds, or leave zone and offset out.",
        )
    if offset.months and not period.months:
        raise TopologyError(
            f"{where}: an offset of months needs windows of months or years.",
            next_step='Write the offset in days or hours, such as offset="18 hours".',
        )
    shortest_ms = period.ms or period.months * _SHORTEST_MONTH_DAYS * UNITS["day"]
    if not 0 <= offset.ms < shortest_ms or offset.months >= (period.months or 1):
        raise TopologyError(
            f"{where}: the offset must be at least 0 and shorter than a window.",
            next_step='Write for example tumbling("1 day", offset="18 hours") '
            "for days that begin at 18:00.",
        )
    longest = CalendarWindow(Period(_MOST_YEARS, "year"), window.zone)
    if window.longest_ms > longest.longest_ms:
        raise TopologyError(
            f"{where} is too long. A window in a time zone has at most {_MOST_YEARS:,} years.",
            next_step="For results over all time, aggregate without windows.",
        )
    return window


def _period(size: Size) -> Period:
    """Return the size as a duration, or as a number of weeks, months or years."""
    if isinstance(size, str):
        match = CALENDAR_SIZE.fullmatch(size.strip().lower())
    else:
        match = None
    if match is None:
        return Period(milliseconds(size))
    units: dict[str, Literal["week", "month", "year"]] = {
        "week": "week",
        "month": "month",
        "year": "year",
    }
    period = Period(int(match[1][:DIGITS]), units[match[2]])
    within_limit(size, period.ms or period.months * 31 * UNITS["day"])
    return period
