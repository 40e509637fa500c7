"""Names the times up to which windows have closed; lists the windows that end between two times."""

from __future__ import annotations

from collections.abc import Iterator

from sluice.values.calendar_windows import CalendarWindow
from sluice.values.windows import Bounds, TimeWindow

ANNOUNCED = ":announced"
"""Prefix of the name of a stream time: for a store in `announce_windows`, the time up to which the
store's windows are closed."""

ANNOUNCED_FROM = ":announced_from"
"""Prefix of the name of a stream time: the time after which a generation announces the store's
windows. This is the stream time before the first batch that announces windows, or -1 if that is the
generation's very first batch."""


def windows_ending(window: TimeWindow, after: int, until: int) -> Iterator[Bounds]:
    """Yield the windows that end after `after` and at or before `until`, sorted by their end.

    Windows without a record are included.
    """
    if isinstance(window, CalendarWindow):
        number = window.period_at(max(after, 0)) - window.periods
        while True:
            start, end = window.start_of(number), window.start_of(number + window.periods)
            if end > until:
                return
            if end > after and window.exists(number):
                yield start, end
            number += 1
    every = window.every_ms
    first = (after - window.size_ms) // every + 1
    start = max(first, 0) * every
    while start + window.size_ms <= until:
        yield start, start + window.size_ms
        start += every
