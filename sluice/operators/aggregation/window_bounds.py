"""Computes the windows of many records, as arrays, by the rules of `sluice.values.windows`."""

from __future__ import annotations

from typing import Any

import numpy as np

from sluice.support.arrays import Mask, Times
from sluice.values.calendar_windows import CalendarWindow
from sluice.values.windows import TimeWindow, Window

AllBounds = tuple[Times, Times, Mask]
"""For many times: the starts of the windows that may contain each time, the ends of these windows,
and whether each window contains the time. Each of the three is a matrix. A matrix has a row for
each time and a column for each window, the earliest window first."""


def bounds_of_all(window: TimeWindow, times: Times) -> AllBounds:
    """Return the windows that may contain each of these times; see `AllBounds`."""
    if isinstance(window, Window):
        return _of_sizes(window, times)
    return _on_calendar(window, times)


def ends_of(window: TimeWindow, starts: Any) -> Any:
    """Return the ends of the windows that begin at these times.

    `starts` is one time, or an array.
    """
    if isinstance(window, Window) or not isinstance(starts, np.ndarray):
        return window.end_of(starts)
    distinct, positions = np.unique(starts, return_inverse=True)
    ends = np.array([window.end_of(int(start)) for start in distinct], np.int64)
    return ends[positions]


def _of_sizes(window: Window, times: Times) -> AllBounds:
    every = window.every_ms
    first = (times - window.size_ms + every) // every * every
    starts = first[:, None] + np.arange(window.overlap) * every
    contain = (starts >= 0) & (starts <= times[:, None])
    return starts, starts + window.size_ms, contain


def _on_calendar(window: CalendarWindow, times: Times) -> AllBounds:
    periods = _periods_at(window, times)[:, None] + np.arange(1 - window.periods, 1)
    distinct, positions = np.unique(periods, return_inverse=True)
    positions = positions.reshape(periods.shape)
    starts = np.array([window.start_of(int(period)) for period in distinct], np.int64)
    ends = np.array(
        [window.start_of(int(period) + window.periods) for period in distinct], np.int64
    )
    contain = np.array([window.exists(int(period)) for period in distinct], bool)
    return starts[positions], ends[positions], contain[positions]


def _periods_at(window: CalendarWindow, times: Times) -> Times:
    """Return, for each time, the number of the calendar's period that contains it."""
    ordered, positions = np.unique(times, return_inverse=True)
    periods = np.empty(len(ordered), np.int64)
    begin = 0
    # Each round processes all times of one period, because a batch has few periods but many times.
    while begin < len(ordered):
        period = window.period_at(int(ordered[begin]))
        end = int(np.searchsorted(ordered, window.start_of(period + 1)))
        periods[begin:end] = period
        begin = end
    return periods[positions]
