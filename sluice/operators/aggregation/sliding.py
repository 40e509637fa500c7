"""Aggregations over sliding windows: each record has a window that ends at it, and a window that starts after it."""

from __future__ import annotations

from typing import Any

from sluice.operators.aggregation.aggregate import Aggregation, State
from sluice.operators.aggregation.calculation import Calculation
from sluice.operators.base import Output, Row
from sluice.values.windows import SlidingWindow


class SlidingAggregate(Aggregation):
    """One aggregate per key and distinct window. Null values are dropped.

    A record at t has the window `[t - size, t]`, and `[t + 1, t + 1 + size]` if that contains later records; records
    before `size` share `[0, size]`. A new window starts as a copy of an existing window with the same records. A record
    is late for a closed window, which is neither created nor changed.
    """

    def __init__(self, calculation: Calculation, window: SlidingWindow, *, retracts: bool = False) -> None:
        super().__init__(calculation, retracts=retracts)
        self.window = window

    def _take(self, state: State, row: Row, out: Output) -> None:
        if row.key is None or row.value is None:
            out.count("null_key" if row.key is None else "null_value")
            return
        time, size = row.time, self.window.size_ms
        if time + size <= self.window.last_closed(row.after):
            out.count("late")
            out.send_late()
            return
        starts = sorted((start for start in state if time - 2 * size <= start <= time + 1), reverse=True)
        after = self._seed_after(state, starts, time)
        if time < size:
            counted = self._join_first(state, starts, row, out, after)
        else:
            counted = self._join(state, starts, row, out)
            self._begin_after(state, row, out, after)
        if not counted:
            out.count("late")
            out.send_late()

    def _seed_after(self, state: State, starts: list[int], time: int) -> tuple[int, Any] | None:
        """Time and aggregate of a new window that starts right after `time`; None if it is empty or already exists."""
        first = 0 if time < self.window.size_ms else time - self.window.size_ms + 1
        holding = next((start for start in starts if first <= start <= time), None)
        if holding is None or state[holding][0] <= time or time + 1 in state:
            return None
        latest, aggregate = state[holding]
        return latest, self.calculation.copy(aggregate)

    def _begin_after(self, state: State, row: Row, out: Output, after: tuple[int, Any] | None) -> None:
        """Begin the window right after the record with what `_seed_after` has found."""
        if after is not None:
            begin = row.time + 1
            state[begin] = after
            window = (begin, begin + self.window.size_ms)
            out.emit(row.key, self.calculation.result(after[1]), after[0], window=window)

    def _join(self, state: State, starts: list[int], row: Row, out: Output) -> bool:
        """Add a record that has a window of its own, which ends at the record. Return whether any window was open.

        `starts` are the starts of nearby windows, the latest first.
        """
        own = row.time - self.window.size_ms
        has_own = own in state
        before = next((start for start in starts if start < own), None)
        previous = state[own][0] if has_own else None
        seed = None
        if before is not None and (previous is None or previous < row.time):
            previous = state[before][0]
            if not has_own and previous >= own:
                seed = self.calculation.copy(state[before][1])
        counted = self._add_each(state, [start for start in starts if own <= start <= row.time], row, out)
        if previous is not None and own <= previous < row.time and previous + 1 not in state:
            counted |= self._add_each(state, [previous + 1], row, out)
        if not has_own:
            counted |= self._add_each(state, [own], row, out, seed)
            if own in state and previous == own - 1:
                # This window also starts right after the previous record. Kafka Streams sends its result twice, which
                # is visible to a later step that counts updates.
                time, aggregate = state[own]
                out.emit(row.key, self.calculation.result(aggregate), time, window=(own, own + self.window.size_ms))
        return counted

    def _join_first(
        self, state: State, starts: list[int], row: Row, out: Output, after: tuple[int, Any] | None
    ) -> bool:
        """Add a record before `size`, which belongs to the shared window from 0. Return whether any window was open.

        Kafka Streams sends the windows in this order, which a later step sees that no longer tells them apart.
        """
        previous = state[0][0] if 0 in state else row.time
        counted = self._add_each(state, [start for start in reversed(starts) if 0 < start <= row.time], row, out)
        self._begin_after(state, row, out, after)
        first = [previous + 1] if previous < row.time and previous + 1 not in state else []
        return self._add_each(state, [*first, 0], row, out) or counted

    def _add_each(self, state: State, starts: list[int], row: Row, out: Output, seed: Any | None = None) -> bool:
        """Add the value to the windows that are open. Return whether there was an open window."""
        last_closed = self.window.last_closed(row.after) - self.window.size_ms
        starts = [start for start in starts if start > last_closed]
        for start in starts:
            self._add(state, start, (start, start + self.window.size_ms), row, out, seed)
        return bool(starts)

    def due(self, state: State) -> int | None:
        return min(state) + self._lifetime() if state else None

    def close(
        self, state: State, key: str | None, closed: int, out: Output, reached: tuple[int, int] = (-1, -1)
    ) -> None:
        for start in [start for start in state if start + self._lifetime() <= closed]:
            del state[start]

    def _lifetime(self) -> int:
        """How long after its start a window can be changed or copied to a new one, in ms of stream time."""
        return 3 * self.window.size_ms + self.window.grace_ms + 1
