"""Aggregations over sessions, which end when a key has no record for longer than a gap.

`SessionAggregate._add_row` merges sessions.
"""

from __future__ import annotations

from typing import Any

from sluice.operators.aggregation.aggregate import WindowAggregation
from sluice.operators.aggregation.calculation import Calculation
from sluice.operators.aggregation.last_results import Windows
from sluice.operators.base import Output, Row
from sluice.operators.lateness import closes_at, last_closed_end
from sluice.values.windows import Bounds, SessionWindow


class SessionAggregate(WindowAggregation):
    """One aggregate per key and session. A result's time is the session's end.

    Records with a null value are aggregated, too.

    A record that is at most a gap away from two sessions merges them: tombstones are sent for both,
    then the result of the merged session. Results have no headers, as in Kafka Streams.
    `retention_ms`: for this long after the end of a closed session, a record can still join the
    session if the record is not late for the merged session. By default, no record can join a
    closed session.
    """

    window: SessionWindow

    def __init__(
        self,
        calculation: Calculation,
        window: SessionWindow,
        *,
        sends_old_values: bool = False,
        retention_ms: int | None = None,
    ) -> None:
        super().__init__(calculation, window, sends_old_values=sends_old_values)
        self._kept_ms = max(self.lateness.open_ms, retention_ms or 0)

    def _add_row(self, state: Windows, row: Row, out: Output) -> None:
        """Merge the row and all sessions near it into one session, and send the changes."""
        key = row.key
        # As in Kafka Streams, drop records without a key, but aggregate records without a value.
        if key is None:
            out.count("null_key")
            return
        near = self._sessions_near(state, row)
        start = end = row.time
        for session in near:
            start = min(start, session)
            end = max(end, state[session][0])
        # As in Kafka Streams, the end of the merged session decides whether the record is late: a
        # record that joins an open session is not late.
        if self.lateness.is_late(end, row.after):
            out.count("late")
            out.send_late()
            return
        # As in Kafka Streams, results of sessions have no headers.
        out.headers = None
        # As in Kafka Streams, a session that gets a record is deleted and sent again, even if the
        # record does not change the session's bounds. If all records of the session have the same
        # time, it is not deleted: the new result replaces its row.
        is_deleted = (start, end) != (row.time, row.time)
        aggregate = self.calculation.new_aggregate()
        for session in near:
            session_end, session_aggregate = state.pop(session)
            window = session, session_end
            if self.sends_old_values:
                old_result = self.calculation.result(session_aggregate)
                out.emit(key, old_result, session_end, window=window, old=True)
            if is_deleted:
                out.emit(key, None, session_end, window=window)
            aggregate = self.calculation.merge(key, aggregate, session_aggregate)
        aggregate = self.calculation.add(key, aggregate, self.calculation.read(row.value))
        # The new session may have the bounds of a forgotten session. Its result then replaces that
        # session's row.
        forgotten = state.pop(start, None)
        if forgotten is not None and forgotten[0] == end and self.sends_old_values:
            out.emit(key, self.calculation.result(forgotten[1]), end, window=(start, end), old=True)
        if aggregate is not None:
            state[start] = end, aggregate
        out.emit(key, self.calculation.result(aggregate), end, window=(start, end))

    def _sessions_near(self, state: Windows, row: Row) -> list[int]:
        """Return the starts of sessions at most a gap away from the row, in order.

        Leaves out forgotten sessions.
        """
        # The state may still contain closed sessions, depending on where batches end. So skip
        # sessions that are to be forgotten. If streams are cogrouped, the stream that is furthest
        # ahead closes
        # sessions for all streams: records of the other streams cannot join these sessions.
        last_end = last_closed_end(max(row.before, row.latest_of_sides[0]), self._kept_ms)
        earliest_end = max(row.time - self.window.gap_ms, last_end + 1)
        latest_start = row.time + self.window.gap_ms
        near: list[int] = []
        for start, (end, _) in state.items():
            if start <= latest_start and end >= earliest_end:
                near.append(start)
        return sorted(near)

    def bounds_of(self, start: int, time: int) -> Bounds:
        return start, time

    def expires_at(self, start: Any, time: Any) -> Any:
        return closes_at(time, self._kept_ms)
