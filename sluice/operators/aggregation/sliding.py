"""Aggregations over sliding windows: a window ends at each record, and one starts after each."""

from __future__ import annotations

from typing import Any

from sluice.operators.aggregation.aggregate import WindowAggregation
from sluice.operators.aggregation.calculation import Calculation
from sluice.operators.aggregation.last_results import Windows
from sluice.operators.base import Output, Row
from sluice.values.windows import SlidingWindow


class SlidingAggregate(WindowAggregation):
    """One aggregate per key and distinct window. Null values are dropped.

    As in Kafka Streams, a record at the time t has two windows. Its own window is `[t - size, t]`.
    The next window is `[t + 1, t + 1 + size]`, and exists only if it contains later records. If t <
    size, the record's own window would begin before 0, so all such records share the window `[0,
    size]`.

    A new window begins as a copy of an existing window that has the same records. A window for
    which the record is late is neither created nor changed.
    """

    window: SlidingWindow

    def __init__(
        self,
        calculation: Calculation,
        window: SlidingWindow,
        *,
        sends_old_values: bool = False,
    ) -> None:
        super().__init__(calculation, window, sends_old_values=sends_old_values)
        self._forgotten: Windows = {}
        """The windows that were forgotten before the current row."""

    def _add_row(self, state: Windows, row: Row, out: Output) -> None:
        # As in Kafka Streams, sliding windows drop records without a value, but other windows
        # aggregate them.
        if row.key is None or row.value is None:
            out.count("null_key" if row.key is None else "null_value")
            return
        time, size = row.time, self.window.size_ms
        # A record that is late for the latest window that contains it is late for all its windows.
        if self.lateness.is_late(time + size, row.after):
            out.count("late")
            out.send_late()
            return
        self._forgotten = self._forgotten_windows(state, row)
        for start in self._forgotten:
            del state[start]
        # The starts of the windows that contain this record, or another record that can share a
        # window with this record; the latest start first.
        near = [start for start in state if time - 2 * size <= start <= time + 1]
        starts = sorted(near, reverse=True)
        next_window = self._next_window(state, starts, time)
        if time < size:
            is_counted = self._add_to_first(state, starts, row, out, next_window)
        else:
            is_counted = self._add_to_own(state, starts, row, out)
            self._create_next(state, row, out, next_window)
        if not is_counted:
            out.count("late")
            out.send_late()
        # Forgotten windows that have not begun again still have rows, which a later result may
        # replace.
        for start, window in self._forgotten.items():
            state.setdefault(start, window)

    def _forgotten_windows(self, state: Windows, row: Row) -> Windows:
        """Return windows that were forgotten because another cogrouped stream is far ahead.

        If the row is not late for such a window, the window begins again with the row.
        """
        latest, size = row.latest_of_sides[0], self.window.size_ms
        if latest < 0:
            return {}
        # In Kafka Streams, the store keeps windows for twice their size plus the grace. The store's
        # time is the start of its latest window. That window begins between the latest record and
        # one size before it, depending on the records of all keys. Here, assume that the latest
        # window begins one size before the latest record: the fewest windows are then forgotten.
        last_end = latest - 2 * size - self.window.grace_ms
        return {start: window for start, window in state.items() if start + size <= last_end}

    def _next_window(self, state: Windows, starts: list[int], time: int) -> tuple[int, Any] | None:
        """Return the time and the aggregate of a new window right after `time`.

        Return None if the window would be empty, or already exists.
        """
        if time < self.window.size_ms:
            earliest = 0
        else:
            earliest = time - self.window.size_ms + 1
        containing = next((start for start in starts if earliest <= start <= time), None)
        if containing is None or time + 1 in state:
            return None
        latest, aggregate = state[containing]
        # Without records after `time`, the next window would be empty.
        if latest <= time:
            return None
        return latest, self.calculation.copy(aggregate)

    def _create_next(
        self,
        state: Windows,
        row: Row,
        out: Output,
        next_window: tuple[int, Any] | None,
    ) -> None:
        """Create the window right after the record, if `_next_window` has returned it."""
        if next_window is not None:
            start = row.time + 1
            state[start] = next_window
            latest, aggregate = next_window
            window = start, start + self.window.size_ms
            if self.sends_old_values and start in self._forgotten:
                out.emit(
                    row.key,
                    self.calculation.result(self._forgotten[start][1]),
                    latest,
                    window=window,
                    old=True,
                )
            out.emit(row.key, self.calculation.result(aggregate), latest, window=window)

    def _add_to_own(self, state: Windows, starts: list[int], row: Row, out: Output) -> bool:
        """Add a record to all windows that contain it: its own, which ends at it, and later ones.

        Returns whether the record was added to any window; if not, it is late. `starts` has the
        starts of nearby windows, the latest first.
        """
        own = row.time - self.window.size_ms
        has_own = own in state
        preceding = next((start for start in starts if start < own), None)
        previous = state[own][0] if has_own else None
        """The time of the last record before the row; None if no such record is stored."""
        copied = None
        if preceding is not None and (previous is None or previous < row.time):
            previous = state[preceding][0]
            # The row's own window also contains the records of the preceding window, so copy the
            # preceding window's aggregate.
            if not has_own and previous >= own:
                copied = self.calculation.copy(state[preceding][1])
        # The window right after the previous record may not exist yet: the row is then the first
        # record in that window.
        begins_next = (
            previous is not None and own <= previous < row.time and previous + 1 not in state
        )
        containing = [start for start in starts if own <= start <= row.time]
        is_counted = self._add_to_each(state, containing, row, out)
        if begins_next:
            assert previous is not None
            is_counted |= self._add_to_each(state, [previous + 1], row, out)
        if not has_own and self._add_to_each(state, [own], row, out, copied):
            is_counted = True
            # If the row's own window starts right after the previous record, Kafka Streams sends
            # the window's result twice. This matters to a later step that counts updates.
            if previous == own - 1:
                self._send_again(state, own, row, out)
        return is_counted

    def _send_again(self, state: Windows, start: int, row: Row, out: Output) -> None:
        """Send the result of the row's own window once more."""
        # An author's function may have removed the window.
        time, aggregate = state.get(start, (row.time, None))
        result = self.calculation.result(aggregate)
        window = start, start + self.window.size_ms
        if self.sends_old_values and result is not None:
            out.emit(row.key, result, time, window=window, old=True)
        out.emit(row.key, result, time, window=window)

    def _add_to_first(
        self,
        state: Windows,
        starts: list[int],
        row: Row,
        out: Output,
        next_window: tuple[int, Any] | None,
    ) -> bool:
        """Add a record whose time is less than the size of windows.

        The record's own window would begin before 0, so all these records share the window that
        begins at 0. Returns whether the record was added to any window; if not, it is late.

        The results of the windows are sent in the same order as in Kafka Streams. The order matters
        to a later step that does not distinguish the windows.
        """
        if 0 in state:
            previous = state[0][0]
        else:
            previous = row.time
        # The window right after the previous record may not exist yet: the row is then the first
        # record in that window.
        begins_next = previous < row.time and previous + 1 not in state
        containing = [start for start in reversed(starts) if 0 < start <= row.time]
        is_counted = self._add_to_each(state, containing, row, out)
        self._create_next(state, row, out, next_window)
        if begins_next:
            last_starts = [previous + 1, 0]
        else:
            last_starts = [0]
        return self._add_to_each(state, last_starts, row, out) or is_counted

    def _add_to_each(
        self,
        state: Windows,
        starts: list[int],
        row: Row,
        out: Output,
        copied: Any | None = None,
    ) -> bool:
        """Add the row's value to each window for which the row is not late.

        Returns whether there is any such window.
        """
        size = self.window.size_ms
        last_closed = self.lateness.last_closed_end(row.after) - size
        is_added = False
        for start in starts:
            if start > last_closed:
                self._add_to_window(
                    state,
                    start,
                    (start, start + size),
                    row,
                    out,
                    copied,
                    self._forgotten.get(start),
                )
                is_added = True
        return is_added

    def expires_at(self, start: Any, time: Any) -> Any:
        # A record reads windows that start at most two sizes before it, and may copy such a window
        # into the next window, which ends one size after the record. A window is therefore needed
        # for three sizes after its start.
        return self.lateness.closes_at(start + 3 * self.window.size_ms)
