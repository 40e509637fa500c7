"""Aggregations over sessions, which end when a key has no record for longer than a gap.

`SessionAggregate._add_row` merges sessions.
"""

from __future__ import annotations

from sluice.operators.aggregation.aggregate import Aggregation, Windows
from sluice.operators.aggregation.calculation import Calculation
from sluice.operators.base import Output, Row
from sluice.operators.lateness import WindowLateness
from sluice.values.windows import SessionWindow


class SessionAggregate(Aggregation):
    """One aggregate per key and session. A result's time is the session's end. Null values are processed.

    A record that is at most a gap away from two sessions merges them: tombstones are sent for both, then the result of
    the merged session. Results have no headers, as in Kafka Streams.
    """

    def __init__(
        self,
        calculation: Calculation,
        window: SessionWindow,
        *,
        retracts: bool = False,
    ) -> None:
        super().__init__(calculation, retracts=retracts)
        self.window = window
        self.lateness = WindowLateness(window)

    def _add_row(self, state: Windows, row: Row, out: Output) -> None:
        """Merge the row and all sessions near it into one session, and send the changes."""
        key = row.key
        # Kafka Streams drops records without a key, but counts those without a value in sessions.
        if key is None:
            out.count("null_key")
            return
        near = self._sessions_near(state, row)
        start = end = row.time
        for session in near:
            start = min(start, session)
            end = max(end, state[session][0])
        # Kafka Streams judges the merged session: a record that an open session takes in is not late.
        if self.lateness.is_late(end, row.after):
            out.count("late")
            out.send_late()
            return
        # Results of sessions have no headers in Kafka Streams.
        out.headers = None
        aggregate = self.calculation.new_aggregate()
        for session in near:
            session_end, session_aggregate = state.pop(session)
            window = session, session_end
            if self.retracts:
                old_result = self.calculation.result(session_aggregate)
                out.emit(key, old_result, session_end, window=window, old=True)
            # A result's key includes the session's bounds: if the bounds change, a tombstone deletes the old key.
            if window != (start, end):
                out.emit(key, None, session_end, window=window)
            aggregate = self.calculation.merge(key, aggregate, session_aggregate)
        aggregate = self.calculation.add(key, aggregate, self.calculation.read(row.value))
        state[start] = end, aggregate
        out.emit(key, self.calculation.result(aggregate), end, window=(start, end))

    def _sessions_near(self, state: Windows, row: Row) -> list[int]:
        """The starts of the sessions at most a gap away from the row, in order, without closed sessions."""
        # The state may still have closed sessions: which ones depends on where batches end.
        last_closed_end = self.lateness.last_closed_end(row.before)
        earliest_end = max(row.time - self.window.gap_ms, last_closed_end + 1)
        latest_start = row.time + self.window.gap_ms
        near: list[int] = []
        for start, (end, _) in state.items():
            if start <= latest_start and end >= earliest_end:
                near.append(start)
        return sorted(near)

    def due(self, state: Windows) -> int | None:
        if not state:
            return None
        return self.lateness.closes_at(min(end for end, _ in state.values()))

    def close(
        self,
        state: Windows,
        key: str | None,
        closed: int,
        out: Output,
        latest_of_sides: tuple[int, int] = (-1, -1),
    ) -> None:
        """Forget the sessions that no later record can join."""
        last_closed_end = self.lateness.last_closed_end(closed)
        for start, (end, _) in [*state.items()]:
            if end <= last_closed_end:
                del state[start]
