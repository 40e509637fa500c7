"""Decides whether a record is late, and when a window is closed. All operators use these rules.

`engine/batch/accounting.py` counts each late record once. `engine/stages/stage_output.py` also
counts it for each store and window for which it is late. If tasks add up the records while they
read, `engine/combine/windowing.py` does so.

*Stream time* is the largest event time so far, including late records and the current record
(`engine/batch/stream_time.py` computes it). Records are late for the same windows as in Kafka
Streams, to the millisecond:

| windows | the window is closed, and a record is late for it, when |
| --- | --- |
| tumbling, hopping, calendar: `[start, end)` | end + grace <= stream time |
| sliding: `[start, end]` | end + grace < stream time |
| session: `[start, end]` | end + gap + grace < stream time |

For a session, `end` is the end after the record has joined the session and merged it with others.
`suppress` sends the results of closed windows, and operators forget closed windows. In Kafka
Streams, a sliding window and a session are closed one millisecond before records become late for
them. In this millisecond, a record can still change a window whose final result has been sent.

The functions also take NumPy arrays of times. All times are in ms.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, overload

from sluice.values.windows import AnyWindow, JoinWindow, SessionWindow, SlidingWindow, T

if TYPE_CHECKING:
    from sluice.support.arrays import Mask, Times


class WindowLateness:
    """Tells when windows of one definition are closed, and which records are late for them."""

    def __init__(self, window: AnyWindow) -> None:
        # Sliding windows and sessions include their end, so they accept records one millisecond
        # longer.
        includes_end = isinstance(window, SlidingWindow | SessionWindow)
        self.open_ms = window.open_ms + int(includes_end)
        """The ms of stream time for which a window still accepts records after its end."""

    @overload
    def is_late(self, end: int, stream_time: int) -> bool: ...
    @overload
    def is_late(self, end: Times, stream_time: Times) -> Mask: ...
    def is_late(self, end: Any, stream_time: Any) -> Any:
        """Return whether a record is late for a window that ends at `end`."""
        return end <= self.last_closed_end(stream_time)

    @overload
    def closes_at(self, end: int) -> int: ...
    @overload
    def closes_at(self, end: Times) -> Times: ...
    def closes_at(self, end: Any) -> Any:
        """Return the stream time at which a window is closed."""
        return closes_at(end, self.open_ms)

    def last_closed_end(self, stream_time: T) -> T:
        """Return the latest end of a closed window."""
        return stream_time - self.open_ms


@overload
def closes_at(end: int, open_ms: int) -> int: ...
@overload
def closes_at(end: Times, open_ms: int) -> Times: ...
def closes_at(end: Any, open_ms: int) -> Any:
    """Return the stream time at which a window closes: `open_ms` after its end."""
    return end + open_ms


def last_closed_end(stream_time: int, open_ms: int) -> int:
    """Return the latest end of a closed window. This is the inverse of `closes_at`."""
    return stream_time - open_ms


class JoinLateness:
    """Tells when records of a stream join can no longer be matched, or are sent unmatched.

    The parameter `side` is the side of the record: LEFT or RIGHT.
    """

    def __init__(self, window: JoinWindow) -> None:
        self.ahead = window.after_ms, window.before_ms
        """The maximum number of ms by which a match may be later than the record: for a left
        record, and for a right record."""
        self._sent_after_ms = (
            window.after_ms + window.grace_ms + 1,
            window.before_ms + window.grace_ms + 1,
        )
        # Kafka Streams keeps records for before + after + grace, so if `before` or `after` is 0, it
        # forgets records one millisecond before their grace has passed.
        self._kept_ms = (
            window.after_ms + window.grace_ms + max(window.before_ms, 1),
            window.before_ms + window.grace_ms + max(window.after_ms, 1),
        )

    def expires_at(self, side: int, time: int) -> int:
        """Return the event time, in a record's own stream, at which the record expires.

        It can then no longer be matched.
        """
        return time + self._kept_ms[side]

    def last_expired(self, side: int, latest: T) -> T:
        """Return the latest time of a record that has expired, given its stream's largest time."""
        return latest - self._kept_ms[side]

    @overload
    def is_past(self, side: int, time: int, stream_time: int) -> bool: ...
    @overload
    def is_past(self, side: int, time: Times, stream_time: Times) -> Mask: ...
    def is_past(self, side: int, time: Any, stream_time: Any) -> Any:
        """Return whether the window and the grace of a new record have already passed.

        If nothing matches such a record, it is sent unmatched at once.
        """
        return self.sent_unmatched_at(side, time) <= stream_time

    @overload
    def sent_unmatched_at(self, side: int, time: int) -> int: ...
    @overload
    def sent_unmatched_at(self, side: int, time: Times) -> Times: ...
    def sent_unmatched_at(self, side: int, time: Any) -> Any:
        """Return the stream time at which an unmatched record is sent: after window and grace."""
        return time + self._sent_after_ms[side]

    def last_unmatched(self, side: int, stream_time: int) -> int:
        """Return the latest event time of the unmatched records sent by this stream time.

        This is the inverse of `sent_unmatched_at`.
        """
        return stream_time - self._sent_after_ms[side]


def forgotten_at(time: int, within_ms: int) -> int:
    """Return the stream time at which `deduplicate` or a history forgets a record.

    This stream time is more than `within_ms` after the record.
    """
    return time + within_ms + 1


def last_forgotten(stream_time: int, within_ms: int) -> int:
    """Return the latest time of forgotten records. This is the inverse of `forgotten_at`."""
    return stream_time - within_ms - 1
