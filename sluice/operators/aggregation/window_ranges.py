"""Finds the windows of many records at once, as ranges of sorted records, if no record is late.

Records that are sorted by key and time stand next to each other if they belong to the same window.
`spread_windows` finds the windows of all keys together, with the same bounds as the operators that
add one record after the other.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Self, TypeAlias

import numpy as np
import numpy.typing as npt

from sluice.operators.aggregation.window_bounds import bounds_of_all
from sluice.support.arrays import Integers, Mask
from sluice.values.calendar_windows import CalendarWindow
from sluice.values.windows import SessionWindow, SlidingWindow, TimeWindow, Window

SpreadWindow: TypeAlias = TimeWindow | SlidingWindow | SessionWindow
"""The kinds of windows that `spread_windows` can find."""


_LONGEST_LINE = 1 << 62
_MOST_WINDOWS = 20_000_000


class TooManyWindowsError(Exception):
    """There are too many windows for one array, or a place (see `Line`) does not fit 64 bits.

    The caller must process the records one by one.
    """


@dataclass(frozen=True)
class Line:
    """Turns a key and a time into a number: their *place* on a line, where each key has a section.

    The sections are so far apart that windows of different keys do not overlap.
    """

    origin: int
    stretch: int

    @classmethod
    def over(cls, keys: int, times: Integers, reach: int) -> Self:
        """Return the line for this number of keys and for all times within `reach` of `times`.

        Raises TooManyWindowsError if a place would not fit 64 bits.
        """
        first, last = int(times.min()), int(times.max())
        line = cls(first - reach, last - first + 2 * reach + 1)
        if keys * line.stretch > _LONGEST_LINE or abs(line.origin) > _LONGEST_LINE:
            raise TooManyWindowsError
        return line

    def places(self, keys: npt.NDArray[np.integer[Any]], times: Integers) -> Integers:
        return keys.astype(np.int64) * self.stretch + (times - self.origin)

    def keys(self, places: Integers) -> Integers:
        return places // self.stretch

    def times(self, places: Integers) -> Integers:
        return places % self.stretch + self.origin


@dataclass(frozen=True)
class WindowRanges:
    """Windows, each with the range of its records: from `first` up to, but excluding, `behind`."""

    keys: Integers
    """The number of each window's key."""
    starts: Integers
    ends: Integers
    first: Integers
    behind: Integers

    def __len__(self) -> int:
        return len(self.keys)

    def tuples(self) -> Iterator[tuple[int, int, int, int]]:
        """Yield each window's key number, start, `first` and `behind`."""
        keys, starts = self.keys.tolist(), self.starts.tolist()
        return zip(keys, starts, self.first.tolist(), self.behind.tolist(), strict=True)

    def over_ranges(self, combine: np.ufunc, values: Integers) -> Integers:
        """Combine the values of each window's records."""
        # `reduceat` combines the values from each border to the next border: the values of a
        # window, then the values up to the next window, which are left out. A border after the last
        # value is an error, so append a value that belongs to no window.
        borders = np.stack((self.first, self.behind), axis=1).ravel()
        combined: Integers = combine.reduceat(np.append(values, 0), borders)[::2]
        return combined


def reach_of(window: SpreadWindow) -> int:
    """Return the largest distance between two neighbours, in ms.

    Two records of a key are neighbours if they can share a window, or if the windows of one record
    depend on the other record.
    """
    match window:
        case Window():
            return window.size_ms
        case CalendarWindow():
            return window.longest_ms
        case SlidingWindow():
            # A record reads windows that start up to two sizes before it, and such a window may
            # start 1 ms after an earlier record.
            return 2 * window.size_ms + 1
        case SessionWindow():
            return window.gap_ms


def neighbourhoods_of(
    places: Integers, begins: Integers, ends: Integers, reach: int
) -> tuple[Integers, Integers]:
    """Divide records and earlier windows into neighbourhoods that are more than `reach` apart.

    `places`: the sorted places of the records. The earlier windows are windows in the state: each
    begins at a place in `begins` and ends at the place in `ends` with the same index. Returns the
    number of each record's neighbourhood, and the number of each earlier window's neighbourhood.
    """
    all_begins, all_ends = np.concatenate((places, begins)), np.concatenate((places, ends))
    order = np.argsort(all_begins, kind="stable")
    all_begins, all_ends = all_begins[order], all_ends[order]
    is_first = np.zeros(len(order), np.int64)
    is_first[1:] = all_begins[1:] - np.maximum.accumulate(all_ends)[:-1] > reach
    numbers = np.empty(len(order), np.int64)
    numbers[order] = np.cumsum(is_first)
    return numbers[: len(places)], numbers[len(places) :]


def are_apart(begins: Integers, ends: Integers, gap: int) -> Mask:
    """Return a mask of the stored sessions that begin at most a gap after an earlier session's end.

    The two were not merged, because the first had closed for the partition whose record began the
    second, but not yet for all partitions. `begins` and `ends` are the places of the sessions.
    """
    apart = np.zeros(len(begins), np.bool_)
    order = np.argsort(begins, kind="stable")
    apart[order[1:]] = begins[order[1:]] - np.maximum.accumulate(ends[order])[:-1] <= gap
    return apart


def earliest_ends(window: SpreadWindow, line: Line, places: Integers, ends: Integers) -> Integers:
    """Return, for each record, a lower bound of the ends of the windows that the record may change.

    `ends`: the places on the line at which a session may end, sorted. These are the places of all
    records, and the ends of earlier sessions.
    """
    times = line.times(places)
    match window:
        case Window():
            return np.maximum(_first_starts(window, times), 0) + window.size_ms
        case CalendarWindow():
            _, window_ends, contain = bounds_of_all(window, times)
            earliest: Integers = np.where(contain, window_ends, np.iinfo(np.int64).max).min(axis=1)
            return earliest
        case SlidingWindow():
            return times
        case SessionWindow():
            return line.times(ends[np.searchsorted(ends, places - window.gap_ms)])


def spread_windows(
    window: SpreadWindow, line: Line, places: Integers, neighbourhoods: Integers
) -> WindowRanges:
    """Return the windows of the records at these sorted places. None of the records is late.

    `neighbourhoods`: the number of each record's neighbourhood (see `neighbourhoods_of`). If the
    windows are sessions, each neighbourhood is one session.
    """
    match window:
        case Window() | CalendarWindow():
            return _timed_windows(window, line, places)
        case SlidingWindow():
            return _sliding_windows(window, line, places)
        case SessionWindow():
            first = np.flatnonzero(np.diff(neighbourhoods, prepend=-1))
            behind = np.append(first[1:], len(places))
            return WindowRanges(
                line.keys(places[first]),
                line.times(places[first]),
                line.times(places[behind - 1]),
                first,
                behind,
            )


def _timed_windows(window: TimeWindow, line: Line, places: Integers) -> WindowRanges:
    if (
        len(places) * (window.overlap if isinstance(window, Window) else window.periods)
        > _MOST_WINDOWS
    ):
        raise TooManyWindowsError
    starts, ends, contain = bounds_of_all(window, line.times(places))
    keys = np.broadcast_to(line.keys(places)[:, None], starts.shape)[contain]
    start_places, chosen = np.unique(line.places(keys, starts[contain]), return_index=True)
    keys, ends = keys[chosen], ends[contain][chosen]
    first = np.searchsorted(places, start_places, "left")
    behind = np.searchsorted(places, line.places(keys, ends), "left")
    return WindowRanges(keys, line.times(start_places), ends, first, behind)


def _first_starts(window: Window, times: Integers) -> Integers:
    """Return, for each time, the start of the earliest window that contains it.

    Windows with a negative start do not exist.
    """
    every = window.every_ms
    return (times - window.size_ms + every) // every * every


def _sliding_windows(window: SlidingWindow, line: Line, places: Integers) -> WindowRanges:
    """Return, for each record, the window that ends at it, and the window right after it.

    Windows without records are left out.
    """
    size = window.size_ms
    records = np.unique(places)
    times = line.times(records)
    # All records whose time is less than `size` share the window that starts at 0.
    own = np.where(times < size, records - times, records - size)
    is_followed = np.append(records[1:] - records[:-1] <= size + 1, [False])
    starts = np.unique(np.concatenate((own, records[is_followed] + 1)))
    first = np.searchsorted(places, starts, "left")
    behind = np.searchsorted(places, starts + size, "right")
    return _from_places(size, line, starts, first, behind)


def _from_places(
    size: int, line: Line, starts: Integers, first: Integers, behind: Integers
) -> WindowRanges:
    times = line.times(starts)
    return WindowRanges(line.keys(starts), times, times + size, first, behind)
