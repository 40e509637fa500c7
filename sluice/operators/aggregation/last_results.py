"""Aggregates rows in columns, if only the last result of each window matters.

The results are the same as if the operators took one row after the other. Records of a key form a
*neighbourhood* if they may share windows. If the order of a neighbourhood's records matters, the
operator processes these records one by one. The order matters in three cases:

- One of the records may belong to a window that has closed before.
- The neighbourhood has sliding windows of earlier batches. New sliding windows depend on the times
  of earlier records.
- The neighbourhood has two sessions that are at most a gap apart, but are not merged.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, Self

import numpy as np
import pyarrow as pa

from sluice.operators.aggregation.calculation import Calculation
from sluice.operators.aggregation.column_functions import ColumnFunctions, WindowAggregates
from sluice.operators.aggregation.number_columns import NumbersTooLargeError
from sluice.operators.aggregation.window_ranges import (
    Line,
    SpreadWindow,
    TooManyWindowsError,
    WindowRanges,
    are_apart,
    earliest_ends,
    neighbourhoods_of,
    reach_of,
    spread_windows,
)
from sluice.operators.columns import NO_ROWS, KeyedRows, KeyStates, Results
from sluice.operators.lateness import WindowLateness
from sluice.support.arrays import Indices, Integers, Mask, Times
from sluice.values.calendar_windows import CalendarWindow
from sluice.values.windows import AnyWindow, SessionWindow, SlidingWindow, TimeWindow, Window

FEWEST_ROWS = 100
"""Fewer rows than this are aggregated one by one, because this is faster."""

Windows = dict[Any, tuple[int, Any]]
"""The state of a key: window → the time of the window's aggregate, and the aggregate."""


@dataclass(frozen=True)
class HeldWindows:
    """The stored windows of the batch's keys: windows of earlier batches in the state."""

    keys: Integers
    """The number of each window's key."""
    starts: Integers
    times: Integers
    """The largest event time in each window's aggregate."""

    @classmethod
    def of(cls, states: KeyStates[Windows]) -> Self:
        """Return the windows in the states of the keys."""
        windows: list[tuple[int, int, int]] = []
        for key, state in states.existing():
            for start, (time, _) in state.items():
                windows.append((key, start, time))
        keys, starts, times = np.array(windows, np.int64).reshape(-1, 3).T
        return cls(keys, starts, times)


class _Continued(NamedTuple):
    """A stored window that is merged with a window of the batch."""

    key: int
    start: int
    time: int
    window: int
    """The number of the batch's window."""


@dataclass(frozen=True)
class _BatchWindows:
    """The windows of a batch's rows, with the windows of earlier batches that they continue."""

    rows: KeyedRows
    records: Indices
    """The indices of the sorted rows. The windows are ranges in this order."""
    windows: WindowRanges
    held: HeldWindows
    continued: Integers
    """For each stored window, the number of the batch's window to merge with it; -1 for none."""

    @property
    def causes(self) -> Indices:
        """Return the last row of each window."""
        return self.windows.over_ranges(np.maximum, self.records)

    @property
    def times(self) -> Times:
        """The largest event time of each window's rows."""
        return self.windows.over_ranges(np.maximum, self.rows.times[self.records])

    def aggregates(self, functions: ColumnFunctions) -> WindowAggregates:
        values = self.rows.columns["value"].take(pa.array(self.records))
        # The rows of a key are in order, so their indices are the order of the records.
        return functions.aggregates(values, self.windows, self.records)

    def continued_windows(self) -> list[_Continued]:
        held = self.held
        chosen = np.flatnonzero(self.continued >= 0)
        keys, starts = held.keys[chosen].tolist(), held.starts[chosen].tolist()
        times, windows = held.times[chosen].tolist(), self.continued[chosen].tolist()
        return [*map(_Continued, keys, starts, times, windows)]


def _merged(
    functions: ColumnFunctions,
    states: KeyStates[Windows],
    keys: Sequence[str],
    continued: Sequence[_Continued],
    aggregates: WindowAggregates,
) -> dict[int, Any]:
    """Return number → aggregate, for the batch's windows that continue stored windows.

    Changes no state: a merge may find that the operator has to process the rows one by one.
    """
    numbers = np.unique(np.array([held.window for held in continued], np.intp))
    merged = dict(zip(numbers.tolist(), aggregates.aggregates(numbers), strict=True))
    for held in continued:
        _, aggregate = states[held.key][held.start]
        merged[held.window] = functions.merge(aggregate, merged[held.window])
    return merged


def _with_texts(values: pa.Array, texts: dict[int, str | None]) -> pa.Array:
    """Return the values with some replaced: `texts` maps the places of values to new texts."""
    if not texts:
        return values
    changed = values.to_numpy(zero_copy_only=False)
    for place, text in texts.items():
        changed[place] = text
    return pa.array(changed, pa.string())


def _add(
    functions: ColumnFunctions,
    states: KeyStates[Windows],
    batch: _BatchWindows,
    is_needed: Callable[[Times, Times], Mask] | None = None,
    *,
    are_sessions: bool = False,
) -> Results:
    """Add the batch's rows to their windows, and return the last result of each window.

    `is_needed` takes the start of each window and the time of its last record, and returns a mask
    of the windows that later batches may need. A session that is merged may change its bounds: a
    tombstone then deletes its earlier result.

    Raises NumbersTooLargeError, and changes no state, if the rows have to be processed one by one.
    """
    windows, keys, causes = batch.windows, batch.windows.keys, batch.causes
    starts, ends, times = windows.starts.copy(), windows.ends.copy(), batch.times
    aggregates = batch.aggregates(functions)
    continued = batch.continued_windows()
    merged = _merged(functions, states, batch.rows.keys, continued, aggregates)
    for held in continued:
        del states[held.key][held.start]
        number = held.window
        times[number] = max(times[number], held.time)
        if are_sessions:
            starts[number] = min(starts[number], held.start)
            ends[number] = times[number]
    is_kept = np.ones(len(windows), np.bool_)
    if is_needed is not None:
        is_kept = is_needed(starts, times)
    texts: dict[int, str | None] = {}
    for number, aggregate in merged.items():
        texts[number] = functions.functions.result(aggregate)
        if is_kept[number]:
            states[int(keys[number])][int(starts[number])] = int(times[number]), aggregate
    is_kept[list(merged)] = False
    kept = np.flatnonzero(is_kept)
    columns = keys[kept].tolist(), starts[kept].tolist(), times[kept].tolist()
    for key, start, time, aggregate in zip(*columns, aggregates.aggregates(kept), strict=True):
        states[key][start] = time, aggregate
    values = _with_texts(aggregates.results(), texts)
    results = Results(causes, values, times, windows=(starts, ends))
    if are_sessions:
        results = _with_tombstones(results, continued)
    return _in_order(results)


def _in_order(results: Results) -> Results:
    """Return the results in the order of the rows that have caused them."""
    assert results.windows is not None
    order = np.argsort(results.rows, kind="stable")
    starts, ends = results.windows
    return Results(
        results.rows[order],
        results.values.take(pa.array(order)),
        results.times[order],
        windows=(starts[order], ends[order]),
    )


def _with_tombstones(results: Results, continued: Sequence[_Continued]) -> Results:
    """Return the results, preceded by tombstones for sessions whose bounds have changed."""
    assert results.windows is not None
    starts, ends = results.windows
    new_bounds = list(zip(starts.tolist(), ends.tolist(), strict=True))
    replaced: list[tuple[int, int, int]] = []
    for held in continued:
        if (held.start, held.time) != new_bounds[held.window]:
            replaced.append((int(results.rows[held.window]), held.start, held.time))
    if not replaced:
        return results
    causes, old_starts, old_ends = np.array(replaced, np.int64).T
    return Results(
        np.concatenate((causes, results.rows)),
        pa.concat_arrays([pa.nulls(len(replaced), pa.string()), results.values]),
        np.concatenate((old_ends, results.times)),
        windows=(np.concatenate((old_starts, starts)), np.concatenate((old_ends, ends))),
    )


def last_results_of_keys(
    functions: ColumnFunctions, states: KeyStates[Windows], rows: KeyedRows
) -> Results | None:
    """Add all rows to the aggregates of their keys, and return the last result of each key.

    This is for aggregations without windows. Rows without a value are dropped. Returns None, and
    changes no state, if the rows have to be processed one by one.
    """
    given = np.flatnonzero(rows.has_value)
    dropped = {"null_value": np.flatnonzero(~rows.has_value)}
    if not len(given):
        return Results(NO_ROWS, pa.array([], pa.string()), NO_ROWS, dropped=dropped)
    keys = rows.key_numbers[given]
    first = np.flatnonzero(np.diff(keys, prepend=-1))
    # Treat all records of a key as one window, whose bounds do not matter.
    bounds = np.zeros(len(first), np.int64)
    windows = WindowRanges(keys[first], bounds, bounds, first, np.append(first[1:], len(given)))
    held = HeldWindows.of(states)
    numbers = np.full(len(rows.keys), -1)
    numbers[windows.keys] = np.arange(len(windows))
    batch = _BatchWindows(rows, given, windows, held, numbers[held.keys])
    try:
        results = _add(functions, states, batch)
    except NumbersTooLargeError:
        return None
    return replace(results, windows=None, headers=_no_headers(results), dropped=dropped)


def _no_headers(results: Results) -> pa.Array:
    """Return null for the headers of each result."""
    return pa.nulls(len(results.rows), pa.string())


@dataclass(frozen=True)
class _Records:
    """Rows whose order does not matter, sorted by key and time."""

    rows: Integers
    """The indices of the rows."""
    line: Line
    places: Integers
    """The number of each record on `line`, which orders all records by key and time."""
    neighbourhoods: Integers
    """The number of each record's neighbourhood (see `neighbourhoods_of`)."""
    held: HeldWindows
    neighbourhoods_of_held: Integers

    def where(self, chosen: Mask) -> _Records:
        return replace(
            self,
            rows=self.rows[chosen],
            places=self.places[chosen],
            neighbourhoods=self.neighbourhoods[chosen],
        )

    def continued(self, windows: WindowRanges) -> Integers:
        """Return, for each stored window, the index of the records' window to merge with it.

        The index is -1 if there is no such window.
        """
        if not len(self.held.keys):
            return self.held.keys
        continued = np.full(len(self.held.keys), -1)
        if len(self.neighbourhoods_of_held):
            # If windows are sessions, all records and stored sessions of a neighbourhood become one
            # session.
            of_windows, of_held = self.neighbourhoods[windows.first], self.neighbourhoods_of_held
        else:
            of_windows = self.line.places(windows.keys, windows.starts)
            of_held = self.line.places(self.held.keys, self.held.starts)
        places = np.minimum(np.searchsorted(of_windows, of_held), len(of_windows) - 1)
        is_same = of_windows[places] == of_held
        continued[is_same] = places[is_same]
        return continued


@dataclass(frozen=True)
class LastResults:
    """Computes the last result of each window of an aggregation."""

    window: SpreadWindow
    lateness: WindowLateness
    functions: ColumnFunctions
    expires_at: Callable[[Any, Any], Any]
    """See `WindowAggregation.expires_at`."""

    @classmethod
    def of(
        cls,
        window: AnyWindow,
        lateness: WindowLateness,
        calculation: Calculation,
        expires_at: Callable[[Any, Any], Any],
    ) -> Self | None:
        """Return None if the aggregation needs the order of the records."""
        # If several records have the largest value of `max_by`, the order in which sessions merge
        # decides which of the records counts. Here, all records of a session are aggregated at
        # once, without this order. So this class does not support `max_by` and similar functions of
        # sessions.
        in_order = not isinstance(window, SessionWindow)
        functions = ColumnFunctions.of(calculation, in_order=in_order)
        if functions is None or not isinstance(window, TimeWindow | SlidingWindow | SessionWindow):
            return None
        return cls(window, lateness, functions, expires_at)

    def process(
        self, states: KeyStates[Windows], rows: KeyedRows, closed: int, *, with_headers: bool
    ) -> Results | None:
        """Aggregate all rows whose order does not matter; the other rows are left over.

        `closed`: the stream time at the end of the batch. Later batches do not need windows that
        have expired by then. `with_headers`: each result gets the headers, if any, of the record
        that last updates its window. Returns None, and changes no state, if all rows have to be
        processed one by one.
        """
        if with_headers:
            headers = rows.columns["headers"]
            with_headers = headers.null_count < len(headers)
        # The record that last updates a sliding window may be right before the window instead of in
        # it. This class does not find such a record.
        follows_updates = with_headers and isinstance(self.window, SlidingWindow)
        if len(rows) < FEWEST_ROWS or follows_updates:
            return None
        try:
            records = self._records(states, rows)
            if records is None:
                return None
            results = self._add(states, rows, records, closed)
        except (TooManyWindowsError, NumbersTooLargeError):
            return None
        # Results of sessions have no headers, as in Kafka Streams.
        if not with_headers or isinstance(self.window, SessionWindow):
            results = replace(results, headers=_no_headers(results))
        if len(records.rows) == len(rows):
            return results
        left_over = np.ones(len(rows), np.bool_)
        left_over[records.rows] = False
        return replace(results, left_over=left_over)

    def _add(
        self, states: KeyStates[Windows], rows: KeyedRows, records: _Records, closed: int
    ) -> Results:
        """Add the records to their windows, and return the last result of each window."""

        def is_needed(starts: Times, times: Times) -> Mask:
            needed: Mask = self.expires_at(starts, times) > closed
            return needed

        windows = spread_windows(self.window, records.line, records.places, records.neighbourhoods)
        continued = records.continued(windows)
        batch = _BatchWindows(rows, records.rows, windows, records.held, continued)
        are_sessions = isinstance(self.window, SessionWindow)
        return _add(self.functions, states, batch, is_needed, are_sessions=are_sessions)

    def _complete(self, rows: KeyedRows) -> Indices:
        """Return the indices of the rows that have a time and, if the windows need one, a value."""
        is_complete = rows.times >= 0
        if isinstance(self.window, SlidingWindow):
            is_complete = is_complete & rows.has_value
        return np.flatnonzero(is_complete)

    def _records(self, states: KeyStates[Windows], rows: KeyedRows) -> _Records | None:
        """Return the complete records whose order does not matter, or None."""
        complete = self._complete(rows)
        if not len(complete):
            return None
        window, times, keys = self.window, rows.times[complete], rows.key_numbers[complete]
        held = HeldWindows.of(states)
        all_times = np.concatenate((times, held.starts, held.times))
        line = Line.over(len(rows.keys), all_times, reach_of(window))
        places = line.places(keys, times)
        order = np.argsort(places, kind="stable")
        places, sorted_rows = places[order], complete[order]
        begins, ends = self._spans(line, held)
        neighbourhoods, of_held = neighbourhoods_of(places, begins, ends, reach_of(window))
        first_ends = earliest_ends(window, line, places, np.sort(np.concatenate((places, ends))))
        touches_closed = self.lateness.closes_at(first_ends) <= _latest_before(rows)[sorted_rows]
        needs_order = np.zeros(len(places) + len(of_held), np.bool_)
        needs_order[neighbourhoods[touches_closed]] = True
        match window:
            case SlidingWindow():
                needs_order[of_held] = True
            case SessionWindow():
                needs_order[of_held[are_apart(begins, ends, window.gap_ms)]] = True
            case _:  # The bounds of a window do not depend on other windows.
                pass
        records = _Records(sorted_rows, line, places, neighbourhoods, held, of_held)
        records = records.where(~needs_order[neighbourhoods])
        if not len(records.rows):
            return None
        return records

    def _spans(self, line: Line, held: HeldWindows) -> tuple[Integers, Integers]:
        """Return the places on the line at which stored windows begin, and at which they end.

        Records near a stored window are in the window's neighbourhood. Both arrays are empty for
        windows whose bounds do not depend on other windows.
        """
        starts = line.places(held.keys, held.starts)
        match self.window:
            case SessionWindow():
                return starts, line.places(held.keys, held.times)
            case SlidingWindow():
                return starts, starts
            case Window() | CalendarWindow():  # Their bounds do not depend on other windows.
                return starts[:0], starts[:0]


def _latest_before(rows: KeyedRows) -> Times:
    """Return the stream time before each row.

    Each of several cogrouped streams has its own stream time. This function returns the largest of
    their stream times, because the operator forgets windows when one of the streams is far ahead.
    """
    times = rows.stream_times
    if "left" in times:
        return np.maximum(times["before"], times["left"])
    return times["before"]
