"""Aggregates a batch's records over windows in columns, where only the last result of each window matters.

The results are the same as if the operators took one record after the other. Records of a key that
may share windows are in one *neighbourhood*. If the order of a neighbourhood's records matters, the
operator processes these records one by one. There are three such cases: one of the records may
belong to a window that has closed before; the neighbourhood has sliding windows of earlier batches,
and new sliding windows depend on the times of earlier records; or it has two sessions that are at
most a gap apart, but stay apart.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Self

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from sluice.engine.batch.accounting import boolean_mask
from sluice.engine.batch.row_schemas import LAST, SORT_KEY, sorted_indices
from sluice.engine.stages.emitted_rows import emitted_rows
from sluice.engine.stages.operator_rows import OperatorRows
from sluice.engine.stages.operator_run import OperatorRun
from sluice.engine.stages.stage_output import StageOutput
from sluice.engine.stages.window_results import WindowResults, closed_rows
from sluice.operators.aggregation.aggregate import WindowAggregation, Windows
from sluice.operators.aggregation.column_functions import (
    Aggregates,
    ColumnFunctions,
    NumbersTooLargeError,
)
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
from sluice.operators.columns import KeyStates
from sluice.operators.lateness import closes_at
from sluice.operators.suppress import ClosingWindows, Suppress, Waiting
from sluice.support.arrays import Indices, Integers, Mask, Times
from sluice.values.calendar_windows import CalendarWindow
from sluice.values.windows import SessionWindow, SlidingWindow, TimeWindow, Window

FEWEST_ROWS = 100
"""Fewer rows than this are aggregated faster one by one."""


@dataclass(frozen=True)
class HeldWindows:
    """The windows of the batch's keys that the operator holds from earlier batches."""

    keys: Integers
    """The number of each window's key."""
    starts: Integers
    times: Integers
    """The largest event time in each window's aggregate."""

    @classmethod
    def of(cls, states: KeyStates[Windows]) -> Self:
        """The windows in the states of the keys."""
        windows = [
            (key, start, time)
            for key, state in states.existing()
            for start, (time, _) in state.items()
        ]
        keys, starts, times = np.array(windows, np.int64).reshape(-1, 3).T
        return cls(keys, starts, times)


@dataclass(frozen=True)
class Records:
    """Records whose order does not matter, sorted by key and time."""

    rows: Integers
    """The indices of the records in the batch."""
    key_texts: pa.Array
    """The texts of the keys, by number, in order."""
    line: Line
    places: Integers
    """The number of each record on `line`, which orders all records by key and time."""
    neighbourhoods: Integers
    """The number of each record's neighbourhood (see `neighbourhoods_of`)."""
    held: HeldWindows
    neighbourhoods_of_held: Integers

    def where(self, chosen: Mask) -> Records:
        return replace(
            self,
            rows=self.rows[chosen],
            places=self.places[chosen],
            neighbourhoods=self.neighbourhoods[chosen],
        )

    def continued(self, windows: WindowRanges) -> Integers:
        """For each held window, the index of the records' window to merge with it; -1 for none."""
        if not len(self.held.keys):
            return self.held.keys
        continued = np.full(len(self.held.keys), -1)
        if len(self.neighbourhoods_of_held):
            # A session is a whole neighbourhood, so its records and the held sessions in it are one
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
class ColumnAggregation:
    """The aggregation of an operator, and the suppress steps that get its results directly."""

    run: OperatorRun
    operator: WindowAggregation
    window: SpreadWindow
    functions: ColumnFunctions
    suppressing: Sequence[OperatorRun]

    @classmethod
    def of(cls, run: OperatorRun, suppressing: Sequence[OperatorRun]) -> Self | None:
        """The aggregation of an operator for which only last results matter.

        None if the operator needs the order of records.
        """
        operator = run.operator
        if not isinstance(operator, WindowAggregation) or operator.sends_old_values:
            return None
        # This class does the work of suppress steps itself. Any other subclass may hold back more
        # than the last result of a window.
        if any(type(each.operator) not in (Suppress, ClosingWindows) for each in suppressing):
            return None
        window = operator.window
        # If several records have the largest value of `max_by`, the order in which sessions merge
        # decides which of the records counts. This class aggregates all records of a session at
        # once, without this order. So it does not compute `max_by` and similar functions of
        # sessions.
        in_order = not isinstance(window, SessionWindow)
        functions = ColumnFunctions.of(operator.calculation, in_order=in_order)
        if functions is None or not isinstance(window, TimeWindow | SlidingWindow | SessionWindow):
            return None
        return cls(run, operator, window, functions, suppressing)

    def process(self, batch: OperatorRows, output: StageOutput) -> OperatorRows:
        """Aggregate rows. Returns the remaining rows, which the operator has to process one by one.

        The states of the rows' keys have been loaded.
        """
        table = pa.table(dict(batch.columns))
        # A result needs the headers of the record that last updates its window. For a sliding
        # window, this record may be right before the window instead of in it. This class does not
        # find such a record, so the operator processes the rows.
        follows_updates = isinstance(self.window, SlidingWindow) and self._sends_headers(table)
        if len(table) < FEWEST_ROWS or follows_updates:
            return batch
        try:
            aggregated = self._aggregate(table, batch.key_texts, _latest_before(batch), output)
        except (TooManyWindowsError, NumbersTooLargeError):
            return batch
        is_left = np.ones(len(table), np.bool_)
        is_left[aggregated] = False
        return batch.where(is_left)

    def _sends_headers(self, table: pa.Table) -> bool:
        """Whether results may have headers of records."""
        return bool(self.suppressing) and table.column("headers").null_count < len(table)

    def _aggregate(
        self, table: pa.Table, key_texts: pa.Array, before: Times, output: StageOutput
    ) -> Integers:
        """Aggregate the records whose order does not matter, and return the indices of their rows."""
        complete = self._complete(table)
        if not len(complete):
            return complete
        records = self._records(table, key_texts, complete, before)
        if not len(records.rows):
            return records.rows
        windows = spread_windows(self.window, records.line, records.places, records.neighbourhoods)
        values = table.column("value").take(pa.array(records.rows)).combine_chunks()
        # Results of sessions have no headers, as in Kafka Streams.
        has_headers = self._sends_headers(table) and not isinstance(self.window, SessionWindow)
        # Sorting takes long, and only picked values and headers depend on the order of the records.
        is_ordered = self.functions.picks or has_headers
        in_order = sorted_indices(table) if is_ordered else np.arange(len(table))
        order = _ranks(in_order)[records.rows]
        aggregates = self.functions.aggregates(values, windows, order)
        headers = pa.nulls(len(windows), pa.string())
        if has_headers:
            last_rows = in_order[windows.over_ranges(np.maximum, order)]
            headers = table.column("headers").take(pa.array(last_rows)).combine_chunks()
        results = WindowResults(
            records.key_texts,
            windows.keys,
            windows.starts,
            windows.ends,
            records.line.times(records.places[windows.behind - 1]),
            aggregates.results(),
            headers,
        )
        is_merged = self._merge_with_held(records, windows, aggregates, results, output)
        self._hold(results, aggregates, ~is_merged)
        output.add_rows(
            emitted_rows(self.run.spec.number, len(results), results.columns() | self._at_end)
        )
        for run in self.suppressing:
            _suppress(run, results, output)
        return records.rows

    def _complete(self, table: pa.Table) -> Integers:
        """The indices of the rows with a key, a time and, if it is needed, a value."""
        is_complete = boolean_mask(table.column("key").is_valid()) & (
            table.column("time").to_numpy() >= 0
        )
        if isinstance(self.window, SlidingWindow):
            is_complete &= boolean_mask(table.column("value").is_valid())
        return np.flatnonzero(is_complete)

    def _records(
        self, table: pa.Table, key_texts: pa.Array, complete: Integers, before: Times
    ) -> Records:
        """Of the rows with the indices `complete`, the records whose order does not matter."""
        window = self.window
        times = table.column("time").to_numpy()[complete]
        keys = pc.index_in(table.column("key").take(pa.array(complete)), key_texts).to_numpy()
        held = HeldWindows.of(
            KeyStates(key_texts.to_pylist(), self.run.states, self.operator.new_state)
        )
        all_times = np.concatenate((times, held.starts, held.times))
        line = Line.over(len(key_texts), all_times, reach_of(window))
        places = line.places(keys, times)
        order = np.argsort(places, kind="stable")
        places, sorted_rows = places[order], complete[order]
        begins, ends = self._spans(line, held)
        neighbourhoods, of_held = neighbourhoods_of(places, begins, ends, reach_of(window))
        first_ends = earliest_ends(window, line, places, np.sort(np.concatenate((places, ends))))
        touches_closed = self.operator.lateness.closes_at(first_ends) <= before[sorted_rows]
        needs_order = np.zeros(len(places) + len(of_held), np.bool_)
        needs_order[neighbourhoods[touches_closed]] = True
        match window:
            case SlidingWindow():
                needs_order[of_held] = True
            case SessionWindow():
                needs_order[of_held[are_apart(begins, ends, window.gap_ms)]] = True
            case _:  # the bounds of a window depend on no other window
                pass
        records = Records(sorted_rows, key_texts, line, places, neighbourhoods, held, of_held)
        return records.where(~needs_order[neighbourhoods])

    def _spans(self, line: Line, held: HeldWindows) -> tuple[Integers, Integers]:
        """The places on the line at which held windows begin, and at which they end.

        Records near a held window are in its neighbourhood. Both arrays are empty for windows whose
        bounds do not depend on other windows.
        """
        starts = line.places(held.keys, held.starts)
        match self.window:
            case SessionWindow():
                return starts, line.places(held.keys, held.times)
            case SlidingWindow():
                return starts, starts
            case Window() | CalendarWindow():  # its bounds do not depend on other windows
                return starts[:0], starts[:0]

    def _merge_with_held(
        self,
        records: Records,
        windows: WindowRanges,
        aggregates: Aggregates,
        results: WindowResults,
        output: StageOutput,
    ) -> Mask:
        """Merge windows of new records with held windows. Returns a mask of the merged windows."""
        is_merged = np.zeros(len(windows), np.bool_)
        continued = records.continued(windows)
        held = np.flatnonzero(continued >= 0)
        if not len(held):
            return is_merged
        merged = np.unique(continued[held])
        is_merged[merged] = True
        calculation = self.operator.calculation
        aggregates_of = dict(zip(merged.tolist(), aggregates.aggregates(merged), strict=True))
        keys = records.key_texts.take(pa.array(records.held.keys[held])).to_pylist()
        columns = records.held.starts[held], records.held.times[held], continued[held]
        held_windows = list(zip(keys, *(column.tolist() for column in columns), strict=True))
        are_sessions = isinstance(self.window, SessionWindow)
        # All aggregates are merged before any state changes, because a merge may find that only the
        # operator can process the records.
        for key, start, _, number in held_windows:
            _, aggregate = self.run.states[key][start]
            aggregates_of[number] = self.functions.merge(key, aggregate, aggregates_of[number])
        for key, start, time, number in held_windows:
            del self.run.states[key][start]
            results.times[number] = max(results.times[number], time)
            end = time if are_sessions else int(results.ends[number])
            for run in self.suppressing:
                run.state(key).pop((start, end), None)
            if are_sessions:
                results.starts[number] = min(results.starts[number], start)
                results.ends[number] = results.times[number]
        is_needed = self._is_needed(results)
        values = results.values.to_numpy(zero_copy_only=False)
        for number, aggregate in aggregates_of.items():
            values[number] = calculation.result(aggregate)
            if is_needed[number]:
                key = results.key_texts[results.keys[number]].as_py()
                self.run.state(key)[int(results.starts[number])] = (
                    int(results.times[number]),
                    aggregate,
                )
        results.values = pa.array(values, pa.string())
        if are_sessions:
            # A result's key includes the session's bounds: if they change, a tombstone deletes the
            # old key.
            new_bounds = list(zip(results.starts.tolist(), results.ends.tolist(), strict=True))
            replaced = [window for window in held_windows if window[1:3] != new_bounds[window[3]]]
            if replaced:
                output.add_rows(self._tombstones(replaced))
        return is_merged

    def _tombstones(self, sessions: Sequence[tuple[str, int, int, int]]) -> pa.RecordBatch:
        """Rows that delete sessions from the store, given their keys, starts and ends."""
        keys, starts, ends, _ = zip(*sessions, strict=True)
        columns = {
            "key": pa.array(keys),
            "window_start": pa.array(starts),
            "window_end": pa.array(ends),
        }
        return emitted_rows(
            self.run.spec.number,
            len(keys),
            columns | {"time": columns["window_end"]} | self._at_end,
        )

    @property
    def _at_end(self) -> dict[str, Any]:
        """The position of results that come from no record and are sent at the end of the batch."""
        return dict(zip(SORT_KEY, (LAST, self.run.spec.number, b""), strict=True))

    def _hold(self, results: WindowResults, aggregates: Aggregates, chosen: Mask) -> None:
        """Keep the aggregates of the chosen windows that later batches may need."""
        is_kept = chosen & self._is_needed(results)
        kept = np.flatnonzero(is_kept)
        keys = results.where(is_kept).texts_of_keys().to_pylist()
        times = results.starts[kept].tolist(), results.times[kept].tolist()
        for key, start, time, aggregate in zip(
            keys, *times, aggregates.aggregates(kept), strict=True
        ):
            self.run.state(key)[start] = time, aggregate

    def _is_needed(self, results: WindowResults) -> Mask:
        """Mask of the windows whose aggregates later batches may need."""
        is_needed: Mask = self.operator.expires_at(results.starts, results.times) > self.run.closed
        return is_needed


def _ranks(in_order: Indices) -> Integers:
    """The place of each row in the order of all rows, given the indices of the rows in this order."""
    ranks = np.empty(len(in_order), np.int64)
    ranks[in_order] = np.arange(len(in_order))
    return ranks


def _latest_before(batch: OperatorRows) -> Times:
    """The stream time before each row.

    Each of several cogrouped streams has its own stream time. This function returns the largest of
    their stream times, because the operator forgets windows when one of the streams is far ahead.
    """
    times = batch.stream_times
    return np.maximum(times["before"], times["left"]) if "left" in times else times["before"]


def _suppress(run: OperatorRun, results: WindowResults, output: StageOutput) -> None:
    """Send the results of windows that close in this batch, and hold back all other results."""
    suppress, timeline = run.operator, run.timeline
    assert isinstance(suppress, Suppress)
    assert timeline is not None
    due = closes_at(results.ends, suppress.wait_ms)
    is_closed = due <= timeline.closed_after
    if is_closed.any():
        output.add_rows(
            closed_rows(run.spec, suppress, timeline, results.where(is_closed), due[is_closed])
        )
    is_waiting = ~is_closed
    if isinstance(suppress, ClosingWindows):
        # The aggregate's state has the results.
        is_waiting &= boolean_mask(results.headers.is_valid())
    waiting = results.where(is_waiting)
    keys, values, headers = (
        column.to_pylist() for column in (waiting.texts_of_keys(), waiting.values, waiting.headers)
    )
    times = (column.tolist() for column in (waiting.starts, waiting.ends, waiting.times))
    for key, value, headers_of_last, start, end, time in zip(
        keys, values, headers, *times, strict=True
    ):
        if isinstance(suppress, ClosingWindows):
            suppress.keep_headers(run.state(key), (start, end), headers_of_last)
        else:
            headers_of_result = None if suppress.is_final else headers_of_last
            run.state(key)[start, end] = Waiting(end, value, time, None, headers_of_result)
