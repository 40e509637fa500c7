"""Aggregations without windows and over tumbling or hopping windows.

The state of a key is a dict for all kinds of windows: from a window's start (0 without windows) to the time of its
aggregate and the aggregate. A result's time is the largest of its records' times.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from sluice.operators.aggregation.calculation import Calculation
from sluice.operators.base import FAILURES, Output, Row, Timeless, Window

State = dict[int, tuple[int, Any]]


@dataclass(frozen=True)
class Hopping:
    """Windows `[start, start + size)`, start a multiple of `advance` (tumbling: the size), all in ms."""

    size: int
    advance: int
    grace: int = 0


class Aggregation:
    """Base of all aggregations.

    `retracts`: the next operator subtracts, so the old value is sent before the new one.
    """

    drops_null_values = False

    def __init__(self, calculation: Calculation, *, retracts: bool = False) -> None:
        self.calculation = calculation
        self.retracts = retracts
        self.state_type: Any = dict[int, tuple[int, calculation.kind]]  # type: ignore[name-defined]

    def begin(self) -> State:
        return {}

    def process(self, state: State, row: Row, out: Output) -> None:
        before = state.copy()
        self.calculation.keep()
        out.hold()
        try:
            self._take(state, row, out)
        except MemoryError:
            raise
        except FAILURES as error:
            self._reject(state, before, row, error, out)
        else:
            out.release()

    def _reject(self, state: State, before: State, row: Row, error: BaseException, out: Output) -> None:
        """Restore the state from before the row and reject the row."""
        state.clear()
        state.update({start: (time, self.calculation.undo(held)) for start, (time, held) in before.items()})
        out.reject(error, row.key, row.value, row.time)

    def _take(self, state: State, row: Row, out: Output) -> None:
        raise NotImplementedError

    def is_empty(self, state: State) -> bool:
        return not state

    def _add(
        self, state: State, start: int, window: Window | None, row: Row, value: Any, out: Output, seed: Any = None
    ) -> None:
        """Add `value` to the window's aggregate and send the result. A new window begins with `seed`, if given.

        `value` is the row's value as `calculation.read` returns it.
        """
        assert row.key is not None
        calculation = self.calculation
        held = state.get(start)
        if held is None:
            old, time, aggregate = None, row.time, calculation.begin() if seed is None else seed
        else:
            time, aggregate = held
            old = calculation.result(aggregate) if self.retracts else None
            time = max(time, row.time)
        aggregate = calculation.add(row.key, aggregate, value)
        state[start] = time, aggregate
        if old is not None:
            out.emit(row.key, old, time, window=window, old=True)
        out.emit(row.key, calculation.result(aggregate), time, window=window)


class Aggregate(Timeless, Aggregation):
    """One aggregate per key. Over a table (`subtracts`), old values are subtracted and new ones added."""

    def __init__(self, calculation: Calculation, *, subtracts: bool = False, retracts: bool = False) -> None:
        super().__init__(calculation, retracts=retracts)
        self.subtracts = subtracts
        self.drops_null_values = not subtracts

    def change(self, state: State, old: Row, new: Row, out: Output) -> None:
        """Subtract a table's old value and add the new one. If either fails, neither takes effect."""
        before = state.copy()
        self.calculation.keep()
        out.hold()
        try:
            self._take(state, old, out)
            self._take(state, new, out)
        except MemoryError:
            raise
        except FAILURES as error:
            self._reject(state, before, new, error, out)
        else:
            out.release()

    def _take(self, state: State, row: Row, out: Output) -> None:
        """Add or subtract the value. A stream's null value is dropped; a table's tombstone adds nothing."""
        if row.value is None:
            if not self.subtracts:
                out.count("null_key" if row.key is None else "null_value")
        elif row.key is None:
            out.count("null_key")
        elif row.old:
            self._subtract(state, row, out)
        else:
            self._add(state, 0, None, row, self.calculation.read(row.value), out)

    def _subtract(self, state: State, row: Row, out: Output) -> None:
        held = state.get(0)
        if held is None:
            return
        assert row.key is not None
        time, aggregate = max(held[0], row.time), held[1]
        if self.retracts:
            out.emit(row.key, self.calculation.result(aggregate), time, old=True)
        aggregate = self.calculation.subtract(row.key, aggregate, self.calculation.read(row.value))
        state[0] = time, aggregate
        out.emit(row.key, self.calculation.result(aggregate), time)


class WindowedAggregate(Aggregation):
    """An aggregate per key and tumbling or hopping window. Null values are processed.

    A record is late for a window once stream time has reached the window's end + grace. It counts as `late` if it is
    late for all of its windows.
    """

    def __init__(self, calculation: Calculation, window: Hopping, *, retracts: bool = False) -> None:
        super().__init__(calculation, retracts=retracts)
        self.window = window

    def _take(self, state: State, row: Row, out: Output) -> None:
        """Add the value to every window of its time that is still open, the earliest first."""
        if row.key is None:
            out.count("null_key")
            return
        size, advance = self.window.size, self.window.advance
        start = max(0, row.time - size + advance) // advance * advance
        first_open = row.after - self.window.grace - size + 1
        value = self.calculation.read(row.value)
        late = True
        while start <= row.time:
            if start >= first_open:
                self._add(state, start, (start, start + size), row, value, out)
                late = False
            start += advance
        if late:
            out.count("late")

    def due(self, state: State) -> int | None:
        return min(state) + self.window.size + self.window.grace if state else None

    def close(
        self, state: State, key: str | None, closed: int, out: Output, reached: tuple[int, int] = (-1, -1)
    ) -> None:
        last_closed = closed - self.window.grace - self.window.size
        for start in [start for start in state if start <= last_closed]:
            del state[start]
