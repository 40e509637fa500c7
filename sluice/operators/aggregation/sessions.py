"""Aggregations over sessions, which end when a key has no record for longer than a gap."""

from __future__ import annotations

from sluice.operators.aggregation.aggregate import Aggregation, State
from sluice.operators.aggregation.calculation import Calculation
from sluice.operators.base import Output, Row
from sluice.values.windows import SessionWindow


class SessionAggregate(Aggregation):
    """One aggregate per key and session. A result's time is the session's end. Null values are processed.

    A record that is at most a gap away from two sessions merges them: tombstones are sent for both, then the result of
    the merged session. As in Kafka Streams, a record is not late if its session, after merging, closes at the current
    stream time, although no later record can join this session. Results have no headers, as there.
    """

    def __init__(self, calculation: Calculation, window: SessionWindow, *, retracts: bool = False) -> None:
        super().__init__(calculation, retracts=retracts)
        self.window = window

    def _take(self, state: State, row: Row, out: Output) -> None:
        key = row.key
        if key is None:
            out.count("null_key")
            return
        gap = self.window.gap_ms
        earliest = max(row.time - gap, self.window.last_closed(row.before) + 1)
        near = sorted(start for start in state if start <= row.time + gap and state[start][0] >= earliest)
        start = min(near[0], row.time) if near else row.time
        end = max(row.time, *[state[session][0] for session in near]) if near else row.time
        if end < self.window.last_closed(row.after):
            out.count("late")
            out.send_late()
            return
        out.headers = None
        aggregate = self.calculation.begin()
        for session in near:
            old_end, old = state.pop(session)
            window = session, old_end
            if self.retracts:
                out.emit(key, self.calculation.result(old), old_end, window=window, old=True)
            if window != (start, end):
                out.emit(key, None, old_end, window=window)
            aggregate = self.calculation.merge(key, aggregate, old)
        aggregate = self.calculation.add(key, aggregate, self.calculation.read(row.value))
        state[start] = end, aggregate
        out.emit(key, self.calculation.result(aggregate), end, window=(start, end))

    def due(self, state: State) -> int | None:
        return self.window.closes_at(min(end for end, _ in state.values())) if state else None

    def close(
        self, state: State, key: str | None, closed: int, out: Output, reached: tuple[int, int] = (-1, -1)
    ) -> None:
        last_closed = self.window.last_closed(closed)
        for start in [start for start, (end, _) in state.items() if end <= last_closed]:
            del state[start]
