"""Aggregations without windows and over tumbling or hopping windows.

The state of a key is a dict: window → the time of the window's aggregate, and the aggregate. The
dict identifies a window by its start (0 for an aggregation without windows), or by its bounds if
the end does not follow from the start. A result's time is the largest time of its records.

An author's function removes an aggregate by returning None. The state then no longer has the
window, so the window's next record begins a new aggregate.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, islice
from typing import Any, Generic, Self, TypeVar

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from typing_extensions import override

from sluice.operators.aggregation.calculation import Calculation
from sluice.operators.aggregation.column_functions import ColumnFunctions
from sluice.operators.aggregation.last_results import (
    LastResults,
    Windows,
    last_results_of_keys,
)
from sluice.operators.aggregation.window_bounds import bounds_of_all, ends_of
from sluice.operators.aggregation.window_ranges import WindowRanges
from sluice.operators.base import Output, Row
from sluice.operators.columns import (
    BatchTimeline,
    KeyedRows,
    KeyStates,
    Results,
    RowFailedError,
    validity,
    with_old_values,
)
from sluice.operators.lateness import WindowLateness, last_forgotten
from sluice.operators.operator import BatchOfOperator, Operator
from sluice.support.arrays import Indices, Times
from sluice.values.windows import AnyWindow, Bounds, TimeWindow

T = TypeVar("T")
S = TypeVar("S")


class TableGroup(msgspec.Struct, Generic[T], array_like=True):
    """The state of one group of rows in the aggregation of a table."""

    windows: dict[int, tuple[int, T]]
    """0 → the time of the aggregate, and the aggregate. As in a state without windows, 0 is the
    only key."""
    instead: dict[str, str | None]
    """Row key → an earlier value of the row. The aggregate still includes this value, because the
    attempt to replace it with the row's current value has failed."""


class BaseAggregation(Operator[S]):
    """Base class of all aggregations.

    `sends_old_values`: a later step subtracts old values, so the replaced row is sent before each
    result. `only_last`: only the last result of a batch matters for each window; `end_keys` sends
    it. `only_changes`: a result that equals the window's previous result does not matter, and is
    not sent.
    """

    def __init__(
        self,
        calculation: Calculation,
        *,
        sends_old_values: bool = False,
        only_last: bool = False,
        only_changes: bool = False,
    ) -> None:
        self.calculation = calculation
        self.sends_old_values = sends_old_values
        self.only_last = only_last
        self.only_changes = only_changes
        self._windows_added_to: dict[Any, int] = {}
        """Used if `only_last`: the windows to which the current row has been added → the times of
        their results."""

    def _add_to_window(
        self,
        state: Windows,
        start: int | Bounds,
        window: Bounds | None,
        row: Row,
        out: Output,
        copied: Any = None,
        forgotten: tuple[int, Any] | None = None,
    ) -> None:
        """Add the row's value to the window's aggregate and send the result.

        `start` identifies the window in the state. A new window starts with the aggregate `copied`
        from another window, if given. A window that has been `forgotten` begins again: its result
        replaces the row of the forgotten window, and is counted as `restarted`.
        """
        assert row.key is not None
        calculation = self.calculation
        stored = state.get(start)
        replaced = forgotten if stored is None else stored
        old = None
        if replaced is not None and self.sends_old_values:
            old = calculation.result(replaced[1])
        if stored is None:
            time = row.time
            if copied is None:
                aggregate = calculation.new_aggregate()
            else:
                aggregate = copied
            if forgotten is not None:
                out.count("restarted")
        else:
            stored_time, aggregate = stored
            time = max(stored_time, row.time)
        aggregate = calculation.add(row.key, aggregate, calculation.read(row.value))
        if aggregate is not None:
            state[start] = time, aggregate
        elif stored is not None:
            del state[start]
        if self.only_last:
            # The result is sent only at the end of the batch. But if it cannot be written as JSON,
            # fail now, while this record can still be rejected.
            calculation.check(aggregate)
            self._windows_added_to[start] = time
            return
        result = calculation.result(aggregate)
        if self.only_changes and stored is not None and result == old:
            return
        # As in Kafka Streams, the old value has the time of the new value.
        if old is not None:
            out.emit(row.key, old, time, window=window, old=True)
        out.emit(row.key, result, time, window=window)

    def _restore(self, state: Windows, before: Windows) -> None:
        """Restore the state to the calculation's last `keep_changes`."""
        # The engine refers to this dictionary, so change the dictionary instead of making a new
        # one.
        state.clear()
        for start, (time, aggregate) in before.items():
            state[start] = time, self.calculation.undo_changes(aggregate)


class Aggregation(BaseAggregation[Windows]):
    """An aggregation of a stream. A row that fails does not change the state."""

    def __init__(
        self,
        calculation: Calculation,
        *,
        sends_old_values: bool = False,
        only_last: bool = False,
        only_changes: bool = False,
    ) -> None:
        super().__init__(
            calculation,
            sends_old_values=sends_old_values,
            only_last=only_last,
            only_changes=only_changes,
        )
        self.state_type: Any = dict[int, tuple[int, calculation.kind]]  # type: ignore[name-defined]
        self._changed: dict[tuple[str, Any], int] = {}
        """The keys and windows whose result `end_keys` has to send → the times of the results."""

    def new_state(self) -> Windows:
        return {}

    def process(self, state: Windows, row: Row, out: Output) -> None:
        # A shallow copy is enough: an addition either replaces the aggregate, or changes it in a
        # way that the calculation can undo.
        before = state.copy()
        self.calculation.keep_changes()
        out.hold()
        try:
            self._add_row(state, row, out)
        except BaseException as error:
            self._windows_added_to.clear()
            self._restore(state, before)
            out.reject(error, row.key, self.calculation.rejected(row.value), row.time)
        else:
            out.release()
            if self._windows_added_to:
                for start, time in self._windows_added_to.items():
                    self._changed[row.key, start] = time  # type: ignore[index]  # a row without a key is not added
                self._windows_added_to.clear()

    def _add_row(self, state: Windows, row: Row, out: Output) -> None:
        raise NotImplementedError

    @override
    def end_keys(self, states: Mapping[str, Windows], out: Output) -> None:
        """Send the last result of every window that has changed, if `only_last`.

        The engine calls this before `close`, which may drop the windows.
        """
        for (key, start), time in self._changed.items():
            # The last row may have removed the window.
            _, aggregate = states[key].get(start, (time, None))
            out.emit(key, self.calculation.result(aggregate), time, window=self._bounds(start))
        self._changed.clear()

    def _bounds(self, start: int) -> Bounds | None:
        return None

    def is_empty(self, state: Windows) -> bool:
        return not state


@dataclass(frozen=True)
class Additions:
    """Values to add to windows, sorted by key and window, and then in the order of their rows."""

    order: Indices
    """For each addition, its place in the order of rows."""
    rows: Indices
    """The row of each addition."""
    windows: WindowRanges
    """The windows, with the ranges of their additions."""

    @classmethod
    def of(cls, rows: KeyedRows, added: Indices, starts: Times, ends: Times) -> Self:
        """Return the additions of rows to windows with these bounds.

        `added` are the numbers of the rows, in order.
        """
        keys = rows.key_numbers[added]
        order = np.lexsort((starts, keys))
        keys, starts, ends = keys[order], starts[order], ends[order]
        begins = np.diff(keys, prepend=-1) != 0
        begins[1:] |= np.diff(starts) != 0
        first = np.flatnonzero(begins)
        windows = WindowRanges(
            keys[first], starts[first], ends[first], first, np.append(first[1:], len(order))
        )
        return cls(order, added[order], windows)


class SpreadAggregation(Aggregation):
    """An aggregation in which the windows of a record depend on no other record.

    So the values of many keys and windows can be added at once, window by window.
    """

    def _takes_columns(self, rows: KeyedRows) -> bool:
        """Return whether the aggregation can process all these rows together."""
        raise NotImplementedError

    def _additions(self, rows: KeyedRows) -> tuple[Additions, Results]:
        """Return the values to add to windows, and `Results` of only dropped and late rows."""
        raise NotImplementedError

    def _last_in_columns(self, states: KeyStates[Windows], rows: KeyedRows) -> Results | None:
        """Return the rows' last results, if SQL functions can compute them regardless of order."""
        return None

    def process_columns(
        self, states: KeyStates[Windows], rows: KeyedRows, timeline: BatchTimeline | None
    ) -> Results | None:
        """Process all rows at once.

        Returns None if the rows must be processed one by one. Raises RowFailedError if a function
        fails. The caller then processes the rows one by one, and rejects only a row that fails.
        """
        if not self._takes_columns(rows):
            return None
        self.calculation.keep_changes()
        try:
            if self.only_last:
                last = self._last_in_columns(states, rows)
            else:
                last = None
            if last is not None:
                return last
            additions, dropped = self._additions(rows)
            if not len(additions.rows):
                return dropped
            results = self._add(states, rows, additions)
            return replace(results, dropped=dropped.dropped, late=dropped.late)
        except KeyboardInterrupt:
            raise
        except BaseException as error:
            raise RowFailedError from error

    def _add(self, states: KeyStates[Windows], rows: KeyedRows, additions: Additions) -> Results:
        """Add the values of each window, one after the other.

        Returns the result after each value or, if `only_last`, the last result of each window.
        """
        calculation, windows = self.calculation, additions.windows
        event_times = rows.times[additions.rows].tolist()
        texts = rows.columns["value"].take(pa.array(additions.rows)).to_pylist()
        results: list[str | None] = []
        times: list[int] = []
        changed: list[tuple[int, Any]] = []
        replaced: list[str | None] = []
        begins: list[int] = []
        for number, start, first, behind in windows.tuples():
            stored = states[number].get(start)
            if stored is None:
                time, aggregate = event_times[first], calculation.new_aggregate()
            else:
                time, aggregate = stored
            if self.sends_old_values:
                replaced.append(None if stored is None else calculation.result(aggregate))
            texts_of_window = texts[first:behind]
            wanted_results = None if self.only_last else results
            aggregate, begin = calculation.add_all(
                rows.keys[number], aggregate, texts_of_window, wanted_results
            )
            begins.append(first + begin)
            times_of_window = event_times[first:behind]
            if self.only_last:
                # If the aggregate has begun again after a removal, its time ignores the records
                # before the removal.
                latest = max(times_of_window[begin:])
                if not begin:
                    latest = max(time, latest)
                times.append(latest)
            elif begin:
                times += _times_with_removals(times_of_window, results[first:], time)
            else:
                times += islice(accumulate(times_of_window, max, initial=time), 1, None)
            if self.sends_old_values:
                replaced += results[first:-1]
            changed.append((times[-1], aggregate))
        self._set_windows(states, additions, changed, np.array(begins, np.intp))
        if self.only_last:
            aggregates = [aggregate for _, aggregate in changed]
            return self._last_results(additions, calculation.results(aggregates), times)
        each = self._each_result(additions, results, times)
        if self.sends_old_values:
            return self._replacing(each, pa.array(replaced, pa.string()))
        return each

    def _each_result(
        self, additions: Additions, results: Sequence[str | None], times: Sequence[int]
    ) -> Results:
        """Return the results of all additions.

        The results of a row follow each other, even if they belong to different windows.
        """
        windows = additions.windows
        in_order = np.argsort(additions.order)
        counts = windows.behind - windows.first
        starts, ends = np.repeat(windows.starts, counts), np.repeat(windows.ends, counts)
        return Results(
            additions.rows[in_order],
            pa.array(results, pa.string()).take(pa.array(in_order)),
            np.array(times, np.int64)[in_order],
            windows=self._bounds_of_results(starts, ends, in_order),
        )

    def _last_results(
        self, additions: Additions, results: Sequence[str | None], times: Sequence[int]
    ) -> Results:
        """Return the last result of each window, in the order of the windows' last rows."""
        windows = additions.windows
        last_rows = additions.rows[windows.behind - 1]
        in_order = np.argsort(last_rows, kind="stable")
        return Results(
            last_rows[in_order],
            pa.array(results, pa.string()).take(pa.array(in_order)),
            np.array(times, np.int64)[in_order],
            # Like the results of `end_keys`, these results come from no single record, so they have
            # no headers.
            headers=pa.nulls(len(windows), pa.string()),
            windows=self._bounds_of_results(windows.starts, windows.ends, in_order),
        )

    def _replacing(self, new: Results, replaced: pa.Array) -> Results:
        """Insert, before each new result, the result that it replaces."""
        is_sent = np.ones(len(new.rows), np.bool_)
        if self.only_changes:
            is_sent = ~np.asarray(pc.fill_null(pc.equal(new.values, replaced), False))
        sent = pa.array(np.flatnonzero(is_sent))
        changes = Results(new.rows[is_sent], new.values.take(sent), new.times[is_sent])
        replaced = replaced.take(sent)
        return replace(with_old_values(changes, replaced, validity(replaced)), dropped=new.dropped)

    @staticmethod
    def _set_windows(
        states: KeyStates[Windows],
        additions: Additions,
        aggregates: Sequence[tuple[int, Any]],
        begins: Indices,
    ) -> None:
        """Set the time and the aggregate of each window, in the order in which the windows begin.

        `begins`: for each aggregate, the place of the addition with which it begins.
        """
        windows = additions.windows
        numbers, starts = windows.keys.tolist(), windows.starts.tolist()
        has_begun_anew = (begins > windows.first).tolist()
        for place in np.argsort(additions.rows[begins], kind="stable").tolist():
            state, start, timed = states[numbers[place]], starts[place], aggregates[place]
            # A window that begins again becomes the last window in the state, so remove it first.
            if has_begun_anew[place] or timed[1] is None:
                state.pop(start, None)
            if timed[1] is not None:
                state[start] = timed

    def _bounds_of_results(
        self, starts: Times, ends: Times, order: Indices
    ) -> tuple[Times, Times] | None:
        """Return the bounds of the results' windows, given the windows of the sorted additions.

        Return None without windows.
        """
        return starts[order], ends[order]


def _times_with_removals(
    event_times: Sequence[int], results: Sequence[str | None], time: int
) -> list[int]:
    """Return the time of each result of a window.

    After a removal, the next result has the time of its own record.

    `time`: the time of the aggregate before the first result.
    """
    times: list[int] = []
    for event_time, result in zip(event_times, results, strict=True):
        time = max(time, event_time)
        times.append(time)
        if result is None:
            time = -1
    return times


class Aggregate(SpreadAggregation):
    """One aggregate per key of a stream.

    With `history_ms`, the table is versioned: a record is late, and not added, if the time of its
    result would be more than `history_ms` before stream time.
    """

    def __init__(
        self,
        calculation: Calculation,
        *,
        history_ms: int | None = None,
        sends_old_values: bool = False,
        only_last: bool = False,
        only_changes: bool = False,
    ) -> None:
        super().__init__(
            calculation,
            sends_old_values=sends_old_values,
            only_last=only_last,
            only_changes=only_changes,
        )
        self.history_ms = history_ms

    def _add_row(self, state: Windows, row: Row, out: Output) -> None:
        # As in Kafka Streams, drop records without a value. Most windowed aggregations do not drop
        # them.
        if row.key is None or row.value is None:
            out.count("null_key" if row.key is None else "null_value")
        elif self.history_ms is not None and _is_past(
            self._time_of(state, row), row.after, self.history_ms
        ):
            out.count("late")
            out.send_late()
        else:
            self._add_to_window(state, 0, None, row, out)

    def _takes_columns(self, rows: KeyedRows) -> bool:
        return self.history_ms is None

    @override
    def _last_in_columns(self, states: KeyStates[Windows], rows: KeyedRows) -> Results | None:
        functions = ColumnFunctions.of(self.calculation, in_order=True)
        if functions is None:
            return None
        return last_results_of_keys(functions, states, rows)

    def _additions(self, rows: KeyedRows) -> tuple[Additions, Results]:
        # As in Kafka Streams, drop records without a value.
        given, nothing = np.flatnonzero(rows.has_value), np.array([], np.int64)
        dropped = {"null_value": np.flatnonzero(~rows.has_value)}
        # Without windows, all records of a key count as one window, whose bounds do not matter.
        bounds = np.zeros(len(given), np.int64)
        no_results = Results(nothing, pa.array([], pa.string()), nothing, dropped=dropped)
        return Additions.of(rows, given, bounds, bounds), no_results

    def _bounds_of_results(self, starts: Times, ends: Times, order: Indices) -> None:
        return None

    def _time_of(self, state: Windows, row: Row) -> int:
        """Return the time of the result that includes the row."""
        if state:
            return max(state[0][0], row.time)
        return row.time


def _is_past(time: int, stream_time: int, history_ms: int) -> bool:
    return time <= last_forgotten(stream_time, history_ms)


class TableAggregate(BaseAggregation[TableGroup[Any]]):
    """One aggregate per group of a table's rows: old values are subtracted and new values added.

    If subtracting or adding fails, neither takes effect: the aggregate still includes the old
    value, although the table's row has the new value or is deleted. When the row next changes, the
    value that the aggregate includes is subtracted.
    """

    takes_changes = True

    def __init__(
        self, calculation: Calculation, *, sends_old_values: bool = False, only_last: bool = False
    ) -> None:
        super().__init__(calculation, sends_old_values=sends_old_values, only_last=only_last)
        self.state_type: Any = TableGroup[calculation.kind]  # type: ignore[name-defined]

    def new_state(self) -> TableGroup[Any]:
        return TableGroup({}, {})

    def process(self, state: TableGroup[Any], row: Row, out: Output) -> None:
        if row.old:
            self._change(state, row, None, out)
        else:
            self._change(state, None, row, out)

    @override
    def change(self, state: TableGroup[Any], old: Row, new: Row, out: Output) -> None:
        """Subtract the old value of a row and add its new value."""
        self._change(state, old, new, out)

    def _change(
        self, state: TableGroup[Any], old: Row | None, new: Row | None, out: Output
    ) -> None:
        before = state.windows.copy()
        self.calculation.keep_changes()
        row = new or old
        assert row is not None
        subtracted = state.instead.pop(_table_key(row), None if old is None else old.value)
        added = None if new is None else new.value
        out.hold()
        try:
            # A row without a group key belongs to no group, so there is no aggregate to update.
            if row.key is None:
                if subtracted is not None or added is not None:
                    out.count("null_key")
            else:
                self._update(state.windows, row.key, row.time, subtracted, added, out)
        except BaseException as error:
            self._restore(state.windows, before)
            if subtracted is not None or added is not None:
                state.instead[_table_key(row)] = subtracted
            out.reject(error, row.key, row.value, row.time)
        else:
            out.release()

    def _update(
        self,
        state: Windows,
        key: str,
        time: int,
        subtracted: str | None,
        added: str | None,
        out: Output,
    ) -> None:
        """Subtract `subtracted`, add `added`, and send one result for both changes."""
        if self.sends_old_values and 0 in state:
            old = self.calculation.result(state[0][1])
        else:
            old = None
        changed = self._changed(state.get(0), key, time, subtracted, added)
        if changed is None:
            # As in Kafka Streams, if a row leaves a removed group, another tombstone is sent for
            # the group.
            if subtracted is not None:
                out.emit(key, None, time)
            return
        time, aggregate = changed
        if aggregate is None:
            state.pop(0, None)
        else:
            state[0] = changed
        if old is not None:
            out.emit(key, old, time, old=True)
        out.emit(key, self.calculation.result(aggregate), time)

    def _changed(
        self,
        held: tuple[int, Any] | None,
        key: str,
        time: int,
        subtracted: str | None,
        added: str | None,
    ) -> tuple[int, Any] | None:
        """Return the time and the aggregate of a group after a change.

        Return None if the change has no effect.

        `held` is the group's time and aggregate before the change; None if the group has none. An
        aggregate that a function has removed contains no row's value, so no old value is subtracted
        from it later.
        """
        calculation = self.calculation
        if added is None and (held is None or subtracted is None):
            return None
        if held is None:
            aggregate = calculation.new_aggregate()
        else:
            held_time, aggregate = held
            time = max(held_time, time)
            if subtracted is not None:
                aggregate = calculation.subtract(key, aggregate, calculation.read(subtracted))
        if added is not None:
            aggregate = calculation.add(key, aggregate, calculation.read(added))
        return time, aggregate

    def process_columns(
        self, states: KeyStates[TableGroup[Any]], rows: KeyedRows, timeline: BatchTimeline | None
    ) -> Results | None:
        """Process all rows at once.

        Returns None if a change has failed in an earlier batch. Raises RowFailedError if a change
        fails. The caller then processes the rows one by one, and rejects only a change that fails.
        """
        if any(state.instead for state in states):
            return None
        self.calculation.keep_changes()
        try:
            return self._change_all(states, rows)
        except KeyboardInterrupt:
            raise
        except BaseException as error:
            raise RowFailedError from error

    def _change_all(self, states: Sequence[TableGroup[Any]], rows: KeyedRows) -> Results:
        """Make all changes, one after the other."""
        calculation = self.calculation
        results: list[tuple[int, str | None, int, bool]] = []
        """For each result: the row, the value, the time, and whether the value is old."""
        values, times, starts = (
            rows.columns["value"].to_pylist(),
            rows.times.tolist(),
            rows.starts.tolist(),
        )
        is_old, is_replaced = rows.is_old.tolist(), rows.is_replaced.tolist()
        for key, state, begin, end in zip(rows.keys, states, starts[:-1], starts[1:], strict=True):
            held = state.windows.get(0)
            last_cause, replaced = -1, None
            time, aggregate = held or (-1, None)
            for row in range(begin, end):
                if is_replaced[row]:
                    replaced = values[row]
                    continue
                if self.sends_old_values and held is not None:
                    old = calculation.result(held[1])
                else:
                    old = None
                if is_old[row]:
                    subtracted, added = values[row], None
                else:
                    subtracted, added = replaced, values[row]
                replaced = None
                changed = self._changed(held, key, times[row], subtracted, added)
                if changed is None:
                    if subtracted is not None and not self.only_last:
                        results.append((row, None, times[row], False))
                    continue
                last_cause, (time, aggregate) = row, changed
                held = None if aggregate is None else changed
                if self.only_last:
                    # If the result cannot be written as JSON, fail here, although it is sent only
                    # at the end of the batch.
                    calculation.check(aggregate)
                    continue
                if old is not None:
                    results.append((row, old, time, True))
                results.append((row, calculation.result(aggregate), time, False))
            if last_cause >= 0:
                if held is None:
                    state.windows.pop(0, None)
                else:
                    state.windows[0] = held
                if self.only_last:
                    results.append((last_cause, calculation.result(aggregate), time, False))
        if results:
            causes, texts, result_times, old_results = zip(*results, strict=True)
        else:
            causes, texts, result_times, old_results = ((), (), (), ())
        return Results(
            np.array(causes, np.intp),
            pa.array(texts, rows.columns["value"].type),
            np.array(result_times, np.int64),
            np.array(old_results, np.bool_),
        )

    def is_empty(self, state: TableGroup[Any]) -> bool:
        return not state.windows and not state.instead


def _table_key(row: Row) -> str:
    """Return the row's key in its table; `row.key` is the group's key."""
    return row.foreign or ""


class WindowAggregation(Aggregation):
    """An aggregation over windows of any kind."""

    window: AnyWindow

    def __init__(
        self,
        calculation: Calculation,
        window: AnyWindow,
        *,
        sends_old_values: bool = False,
        only_last: bool = False,
        only_changes: bool = False,
    ) -> None:
        super().__init__(
            calculation,
            sends_old_values=sends_old_values,
            only_last=only_last,
            only_changes=only_changes,
        )
        self.window = window
        self.lateness = WindowLateness(window)
        self._last_results_matter = only_last
        self._results_are_passed_on = False
        self._closed = -1
        self._in_columns = LastResults.of(window, self.lateness, calculation, self.expires_at)

    @override
    def begin_batch(self, batch: BatchOfOperator) -> None:
        self._last_results_matter = batch.only_last
        self._results_are_passed_on = batch.has_listeners
        self._closed = batch.closed

    @property
    @override
    def takes_columns(self) -> bool:
        is_last = self._last_results_matter and not self.sends_old_values
        return is_last and self._in_columns is not None

    @override
    def process_columns(
        self, states: KeyStates[Windows], rows: KeyedRows, timeline: BatchTimeline | None
    ) -> Results | None:
        if self._in_columns is None or not self.takes_columns:
            return None
        return self._in_columns.process(
            states, rows, self._closed, with_headers=self._results_are_passed_on
        )

    def expires_at(self, start: Any, time: Any) -> Any:
        """Return the stream time from which no record can need a window's aggregate any more.

        `time` is the time of the aggregate. The times may be arrays.
        """
        raise NotImplementedError

    def bounds_of(self, start: int, time: int) -> Bounds:
        """Return the bounds of a window in the state; `time` is the time of its aggregate."""
        raise NotImplementedError

    def due(self, state: Windows) -> int | None:
        return min(
            [self.expires_at(start, time) for start, (time, _) in state.items()], default=None
        )

    def close(
        self,
        state: Windows,
        key: str | None,
        closed: int,
        out: Output,
        latest_of_sides: tuple[int, int] = (-1, -1),
    ) -> None:
        """Forget the windows that no later record can need."""
        expired = [
            start for start, (time, _) in state.items() if self.expires_at(start, time) <= closed
        ]
        for start in expired:
            del state[start]


class WindowedAggregate(WindowAggregation, SpreadAggregation):
    """One aggregate per key and window, for windows whose bounds depend only on time.

    Records with a null value are aggregated, too.

    A record is counted as `late` once for each window for which it is late. A window of cogrouped
    streams that begins again (see `_last_forgotten_end`) is counted as `restarted`.
    """

    window: TimeWindow

    def __init__(
        self,
        calculation: Calculation,
        window: TimeWindow,
        *,
        sends_old_values: bool = False,
        only_last: bool = False,
        only_changes: bool = False,
    ) -> None:
        super().__init__(
            calculation,
            window,
            sends_old_values=sends_old_values,
            only_last=only_last,
            only_changes=only_changes,
        )

    def _bounds(self, start: int) -> Bounds:
        return start, self.window.end_of(start)

    def bounds_of(self, start: int, time: int) -> Bounds:
        return self._bounds(start)

    def _add_row(self, state: Windows, row: Row, out: Output) -> None:
        """Add the row's value to each open window that contains its time, the earliest first."""
        # As in Kafka Streams, drop records without a key, but aggregate records without a value.
        if row.key is None:
            out.count("null_key")
            return
        last_closed_end = self.lateness.last_closed_end(row.after)
        last_forgotten_end = self._last_forgotten_end(row)
        windows = self.window.bounds_of(row.time)
        late = 0
        # As in Kafka Streams, decide for each window whether the record is late: if windows
        # overlap, it may be late only for the earlier windows.
        for window in windows:
            if window[1] > last_closed_end:
                forgotten = None
                if window[1] <= last_forgotten_end:
                    forgotten = state.pop(window[0], None)
                self._add_to_window(state, window[0], window, row, out, forgotten=forgotten)
            else:
                late += 1
        if late:
            out.count("late", late)
            if late == len(windows):
                out.send_late()

    @override
    def process_columns(
        self, states: KeyStates[Windows], rows: KeyedRows, timeline: BatchTimeline | None
    ) -> Results | None:
        if self.takes_columns:
            return WindowAggregation.process_columns(self, states, rows, timeline)
        return SpreadAggregation.process_columns(self, states, rows, timeline)

    def _takes_columns(self, rows: KeyedRows) -> bool:
        # With several cogrouped streams, windows may begin again (see `_last_forgotten_end`), so
        # process the rows one by one.
        return not self.sends_old_values and "left" not in rows.stream_times

    def _additions(self, rows: KeyedRows) -> tuple[Additions, Results]:
        starts, ends, contain = bounds_of_all(self.window, rows.times)
        # As in Kafka Streams, decide for each of the overlapping windows whether a record is late
        # for it.
        is_late = contain & (
            ends <= self.lateness.last_closed_end(rows.stream_times["after"])[:, None]
        )
        is_open = contain & ~is_late
        late, added = np.nonzero(is_late)[0], np.nonzero(is_open)[0]
        nothing = np.array([], np.int64)
        dropped = Results(
            nothing,
            pa.array([], pa.string()),
            nothing,
            dropped={"late": late},
            late=np.flatnonzero(is_late.any(axis=1) & ~is_open.any(axis=1)),
        )
        return Additions.of(rows, added, starts[is_open], ends[is_open]), dropped

    def _last_forgotten_end(self, row: Row) -> int:
        """Return the latest end of the forgotten windows.

        If another cogrouped stream is far ahead of the row's stream, the row may belong to a
        forgotten window without being late for it. The window then begins again with the row.
        """
        latest = row.latest_of_sides[0]
        if latest < 0:
            return latest
        # In Kafka Streams, the store keeps each window for its size plus its grace. The store's
        # time is the start of its latest window, which may come from any of the streams.
        latest_start, _ = self.window.bounds_of(latest)[-1]
        last_end: int = self.lateness.last_closed_end(latest_start)
        return last_end

    def expires_at(self, start: Any, time: Any) -> Any:
        return self.lateness.closes_at(ends_of(self.window, start))

    @override
    def due(self, state: Windows) -> int | None:
        if not state:
            return None
        # The window that begins first also ends first.
        first_end = self.window.end_of(min(state))
        due: int = self.lateness.closes_at(first_end)
        return due
