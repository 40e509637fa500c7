"""Joins two streams: pairs records with the same key and nearby event times."""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from operator import attrgetter
from typing import Any

import msgspec

from sluice.operators.base import LEFT, RIGHT, Output, Row
from sluice.operators.joins.by_key import How, joined
from sluice.values.windows import JoinWindow

_NEVER = 1 << 62
_TIME = attrgetter("time")


class Record(msgspec.Struct, array_like=True):
    """A record that later records of the other side may match."""

    time: int
    value: str
    waits: bool
    """Whether the record must be sent unmatched if no match arrives."""


class Side(msgspec.Struct, array_like=True):
    """A key's records of one side of the join."""

    records: list[Record] = []
    """Sorted by time."""
    waits_from: int = _NEVER
    """Time of the earliest record that waits for a match."""


class Sides(msgspec.Struct, array_like=True):
    """The state of a key."""

    left: Side
    right: Side


class Watch(msgspec.Struct, array_like=True):
    """Decides when a join looks for unmatched records of all keys, with the same frequency as a Kafka Streams task.

    A search takes place when stream time passes `since` plus the window of the current record's side. A record that is
    not due then waits for the next search and can still be matched until then.
    """

    since: int = _NEVER
    looked: int = -1
    """Stream time of the last search, ms."""
    waiting: tuple[list[int], list[int]] = msgspec.field(default_factory=lambda: ([], []))
    """The times of each side's waiting records, sorted."""

    def look(self, stream_time: int, ends: tuple[int, int]) -> None:
        """Remove each side's times before `ends`: the windows of those records have ended at `stream_time`."""
        last = [times[-1] for times in self.waiting if times]
        for times, end in zip(self.waiting, ends, strict=True):
            del times[: bisect_left(times, end)]
        self.since = self._next_look() if all(self.waiting) else max(last, default=_NEVER)
        self.looked = stream_time

    def _next_look(self) -> int:
        """The time at which Kafka Streams' iteration over the remaining records stops.

        That is the time of the first record that follows the first records of both sides. Records of the right side
        sort before those of the left side with the same time.
        """
        left, right = self.waiting
        if left[0] >= right[0]:
            behind = left[1:2] + right[bisect_right(right, left[0]) :][:1]
            return min(behind, default=left[0])
        behind = right[1:2] + left[bisect_left(left, right[0]) :][:1]
        return min(behind, default=right[0])

    def wait(self, side: int, time: int) -> None:
        """Add the time of a record that waits."""
        insort(self.waiting[side], time)
        self.since = min(self.since, time)

    def matched(self, side: int, time: int) -> None:
        """Remove the time of a record that has been matched."""
        times = self.waiting[side]
        del times[bisect_left(times, time)]


class StreamJoin:
    """Matches records within a window.

    A result's time is the larger of both times. A record can be matched until the largest time of its own stream is
    `window.reach_ms` past it. On an outer side, an unmatched record is sent with null once stream time has
    passed the end of its window (left: time + after, right: time + before) by more than grace. It is sent immediately
    if stream time has already passed that end when the record arrives, or if the record has no key.

    After `watch`, the join looks for unmatched records at the same times as Kafka Streams; this needs one stream time
    for all keys.
    """

    state_type: Any = Sides

    def __init__(self, how: How, window: JoinWindow) -> None:
        self.outer = how in ("left", "outer"), how == "outer"
        self._is_outer = any(self.outer)
        self.ahead = window.after_ms, window.before_ms
        """How far ahead a match may be of a record of the left side, and of the right side, in ms."""
        self.grace, self.reach = window.grace_ms, window.reach_ms
        self.shared: Watch | None = None

    def watch(self) -> None:
        """Enable the search for unmatched records of all keys; see `Watch`."""
        if self._is_outer:
            self.shared = Watch()

    def begin(self) -> Sides:
        return Sides(Side(), Side())

    def process(self, state: Sides, row: Row, out: Output) -> None:
        if row.value is None:
            out.count("null_key" if row.key is None else "null_value")
            return
        if row.key is None:
            if self.outer[row.side]:
                out.emit(None, self._unmatched(row.side, row.value), row.time)
            else:
                out.count("null_key")
            return
        if self._is_outer:
            self._send_unmatched(state, row.key, row.before, out)
            if row.time == row.after:
                self._send_unmatched(state, row.key, row.after, out)
        waits = False
        if not self._match(state, row.key, row, out) and self.outer[row.side]:
            waits = row.time + self.ahead[row.side] >= row.after
            if not waits:
                out.emit(row.key, self._unmatched(row.side, row.value), row.time)
        self._keep(state, row, waits)
        self._forget(state, row.reached)

    def _match(self, state: Sides, key: str, row: Row, out: Output) -> bool:
        side = state.left if row.side == RIGHT else state.right
        if not side.records:
            return False
        earliest = max(row.time - self.ahead[1 - row.side], row.reached[1 - row.side] - self.reach + 1)
        first = bisect_left(side.records, earliest, key=_TIME)
        last = bisect_right(side.records, row.time + self.ahead[row.side], key=_TIME)
        for other in side.records[first:last]:
            if other.waits and self.shared is not None:
                self.shared.matched(1 - row.side, other.time)
            other.waits = False
            value = joined(row.value, other.value) if row.side == LEFT else joined(other.value, row.value)
            out.emit(key, value, max(row.time, other.time))
        return first < last

    def _keep(self, state: Sides, row: Row, waits: bool) -> None:
        if not waits and row.time <= row.reached[row.side] - self.reach:
            return
        assert row.value is not None
        side = state.right if row.side == RIGHT else state.left
        record = Record(row.time, row.value, waits)
        if not side.records or side.records[-1].time <= row.time:
            side.records.append(record)
        else:
            insort(side.records, record, key=_TIME)
        if waits:
            side.waits_from = min(side.waits_from, row.time)
            if self.shared is not None:
                self.shared.wait(row.side, row.time)

    def looks_after(self, side: int) -> int:
        """The stream time after which a record of this side triggers a search for unmatched records."""
        return _NEVER if self.shared is None else min(self.shared.since + self.ahead[side] + self.grace, _NEVER)

    def look(self, stream_time: int, side: int) -> None:
        """Look for unmatched records of all keys. The records are sent when their keys are closed."""
        assert self.shared is not None
        left, right = (stream_time - ahead - self.grace for ahead in self.ahead)
        self.shared.look(stream_time, (left, right))

    def _send_unmatched(self, state: Sides, key: str | None, stream_time: int, out: Output) -> None:
        """Send the unmatched records whose window ended more than grace ago, by time, the right side first."""
        due: list[tuple[int, int, Record]] = []
        if self.shared is not None:
            stream_time = min(stream_time, self.shared.looked)
        for number, side in enumerate((state.left, state.right)):
            end = stream_time - self.ahead[number] - self.grace
            if side.waits_from < end:
                waiting = [record for record in side.records if record.waits]
                due += [(record.time, number, record) for record in waiting if record.time < end]
                side.waits_from = next((record.time for record in waiting if record.time >= end), _NEVER)
        for time, number, record in sorted(due, key=lambda entry: (entry[0], -entry[1])):
            record.waits = False
            out.emit(key, self._unmatched(number, record.value), time, rank=2 * time + (number == LEFT))

    def _unmatched(self, side: int, value: str) -> str:
        return joined(value, None) if side == LEFT else joined(None, value)

    def release_due(self, state: Sides) -> int | None:
        """Stream time at which the next record is sent unmatched."""
        waiting = [(side.waits_from, ahead) for side, ahead in zip((state.left, state.right), self.ahead, strict=True)]
        times = [waits_from + ahead + self.grace + 1 for waits_from, ahead in waiting if waits_from != _NEVER]
        return min(times, default=None)

    def due(self, state: Sides) -> int | None:
        """Stream time at which the next record is sent unmatched or can no longer be matched."""
        due = _NEVER
        for side, ahead in ((state.left, self.ahead[LEFT]), (state.right, self.ahead[RIGHT])):
            if side.records:
                due = min(due, side.waits_from + ahead + self.grace + 1, side.records[0].time + self.reach)
        return None if due == _NEVER else due

    def close(
        self, state: Sides, key: str | None, closed: int, out: Output, reached: tuple[int, int] = (-1, -1)
    ) -> None:
        self._send_unmatched(state, key, closed, out)
        # `due` selects the keys to close by `closed` alone. Up to a later time, only the selected keys would forget
        # records.
        left, right = reached
        self._forget(state, (min(left, closed), min(right, closed)))

    def _forget(self, state: Sides, reached: tuple[int, int]) -> None:
        for side, latest in ((state.left, reached[LEFT]), (state.right, reached[RIGHT])):
            records, last = side.records, latest - self.reach
            if not records or records[0].time > last:
                continue
            if records[-1].time <= last and side.waits_from == _NEVER:
                records.clear()
            else:
                count = bisect_right(records, last, key=_TIME)
                records[:count] = [record for record in records[:count] if record.waits]

    def is_empty(self, state: Sides) -> bool:
        return not state.left.records and not state.right.records
