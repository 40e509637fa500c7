"""Aggregations over sessions: values of a group that follow each other within a gap, however far they reach."""

from __future__ import annotations

from dataclasses import dataclass

from sluice.operators.aggregation.aggregate import Aggregation, State
from sluice.operators.aggregation.calculation import Calculation
from sluice.operators.base import Output, Row


@dataclass(frozen=True)
class Session:
    """Sessions `[first, last]`, both inclusive; a value belongs to a session at most `gap` ms away."""

    gap: int
    grace: int = 0


class SessionAggregate(Aggregation):
    """An aggregate for each group and session; a result's time is the session's end. Null values are processed.

    A value that comes near two sessions makes one of them: the old ones get tombstones, then the merged one is sent.
    It is late if even the session it would be in ends before stream time - grace - gap. A session that stream time has
    left that far behind, or farther, is closed: no value after that is near it.
    """

    def __init__(self, calculation: Calculation, window: Session, *, retracts: bool = False) -> None:
        super().__init__(calculation, retracts=retracts)
        self.window = window

    def _take(self, state: State, row: Row, out: Output) -> None:
        """Merge the sessions within the gap with the value."""
        key = row.key
        if key is None:
            out.count("null_key")
            return
        gap = self.window.gap
        earliest = max(row.time - gap, row.before - gap - self.window.grace + 1)
        near = sorted(start for start in state if start <= row.time + gap and state[start][0] >= earliest)
        start = min(near[0], row.time) if near else row.time
        end = max(row.time, *[state[one][0] for one in near]) if near else row.time
        if end < row.after - self.window.grace - gap:
            out.count("late")
            return
        aggregate = self.calculation.begin()
        for one in near:
            old_end, old = state.pop(one)
            self._send_old(key, (one, old_end), (start, end), old, out)
            aggregate = self.calculation.merge(key, aggregate, old)
        aggregate = self.calculation.add(key, aggregate, self.calculation.read(row.value))
        state[start] = end, aggregate
        out.emit(key, self.calculation.result(aggregate), end, window=(start, end))

    def _send_old(self, key: str, old: tuple[int, int], new: tuple[int, int], aggregate: object, out: Output) -> None:
        if self.retracts:
            out.emit(key, self.calculation.result(aggregate), old[1], window=old, old=True)
        if old != new:
            out.emit(key, None, old[1], window=old)

    def due(self, state: State) -> int | None:
        """When the earliest session closes."""
        return min(end for end, _ in state.values()) + self.window.gap + self.window.grace if state else None

    def close(
        self, state: State, key: str | None, closed: int, out: Output, reached: tuple[int, int] = (-1, -1)
    ) -> None:
        """Forget the sessions that are closed."""
        last_closed = closed - self.window.gap - self.window.grace
        for start in [start for start, (end, _) in state.items() if end <= last_closed]:
            del state[start]
