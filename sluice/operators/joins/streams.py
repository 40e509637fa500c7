"""A join of two streams: records of one key whose times are near each other."""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from operator import attrgetter
from typing import Any

import msgspec

from sluice.operators.base import LEFT, RIGHT, Output, Row
from sluice.operators.joins.by_key import How, joined

_NEVER = 1 << 62
_TIME = attrgetter("time")


class Record(msgspec.Struct, array_like=True):
    """A record that others may still match."""

    time: int
    value: str
    waits: bool
    """Whether it comes out unmatched if none does."""


class Side(msgspec.Struct, array_like=True):
    """The records of one stream, by time."""

    records: list[Record] = []
    waits_from: int = _NEVER
    """No record before this time waits."""


class Sides(msgspec.Struct, array_like=True):
    """Both streams' records of a key."""

    left: Side
    right: Side


class Watch(msgspec.Struct, array_like=True):
    """When to look for records without a match, over all keys: as seldom as a task of Kafka Streams does.

    It looks when stream time moves past `since` and the window of the side at hand, and remembers how far it looked. A
    record that it has passed over waits until it looks again, and a late match that comes before then still counts.
    """

    since: int = _NEVER
    looked: int = -1
    waiting: tuple[list[int], list[int]] = msgspec.field(default_factory=lambda: ([], []))
    """The times of each side's waiting records, in order."""

    def look(self, stream_time: int, overs: tuple[int, int]) -> None:
        """Let go of what waits from before `overs`, the side's times whose windows are over by stream time."""
        last = [times[-1] for times in self.waiting if times]
        for times, over in zip(self.waiting, overs, strict=True):
            del times[: bisect_left(times, over)]
        self.since = self._stopped() if all(self.waiting) else max(last, default=_NEVER)
        self.looked = stream_time

    def _stopped(self) -> int:
        """Where it stops: at the record behind the first of each side. At the same time the right ones come first."""
        left, right = self.waiting
        if left[0] >= right[0]:
            behind = left[1:2] + right[bisect_right(right, left[0]) :][:1]
            return min(behind, default=left[0])
        behind = right[1:2] + left[bisect_left(left, right[0]) :][:1]
        return min(behind, default=right[0])

    def wait(self, side: int, time: int) -> None:
        """A record waits."""
        insort(self.waiting[side], time)
        self.since = min(self.since, time)

    def matched(self, side: int, time: int) -> None:
        """A record no longer waits."""
        times = self.waiting[side]
        del times[bisect_left(times, time)]


class StreamJoin:
    """Matches when `left.time - before <= right.time <= left.time + after`; a result's time is the larger of both.

    A record can be matched until `before + after + grace` behind the largest time of its own stream. Where its side may
    go unmatched, it comes out with null once stream time has passed the end of its window (left: time + after, right:
    time + before) by more than grace; at once if stream time has passed that end when it comes, or if it has no key.
    All in ms; `JoinClock` says what `before`, `after` and `closed` are here.

    `watch` has it look for unmatched records as Kafka Streams does, where all keys share one stream time.
    """

    state_type: Any = Sides
    drops_null_values = True

    def __init__(self, how: How, before: int, after: int, grace: int) -> None:
        self.outer = how in ("left", "outer"), how == "outer"
        self.ahead = after, before
        self.grace = grace
        self.reach = before + after + grace
        self.shared: Watch | None = None

    def watch(self) -> None:
        """Look for unmatched records over all keys."""
        if self.outer[LEFT] or self.outer[RIGHT]:
            self.shared = Watch()

    def begin(self) -> Sides:
        """No records."""
        return Sides(Side(), Side())

    def process(self, state: Sides, row: Row, out: Output) -> None:
        """Match the record with those of the other side."""
        if row.value is None:
            out.count("null_key" if row.key is None else "null_value")
            return
        if row.key is None:
            if self.outer[row.side]:
                out.emit(None, self._alone(row.side, row.value), row.time)
            else:
                out.count("null_key")
            return
        self._look(row)
        self._send_unmatched(state, row.key, row.before, out)
        if row.time == row.after:
            self._send_unmatched(state, row.key, row.after, out)
        waits = False
        if not self._match(state, row.key, row, out) and self.outer[row.side]:
            waits = row.time + self.ahead[row.side] >= row.after
            if not waits:
                out.emit(row.key, self._alone(row.side, row.value), row.time)
        self._keep(state, row, waits)
        self._forget(state, row.reached)

    def _match(self, state: Sides, key: str, row: Row, out: Output) -> bool:
        side = state.left if row.side == RIGHT else state.right
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
        insort(side.records, Record(row.time, row.value, waits), key=_TIME)
        if waits:
            side.waits_from = min(side.waits_from, row.time)
            if self.shared is not None:
                self.shared.wait(row.side, row.time)

    def _look(self, row: Row) -> None:
        """Look for unmatched records of all keys, if it is time to; what is found comes out with its key's next row."""
        watch = self.shared
        if watch is None or row.time < row.after:
            return
        if watch.since < row.after - self.ahead[row.side] - self.grace:
            overs = row.after - self.ahead[LEFT] - self.grace, row.after - self.ahead[RIGHT] - self.grace
            watch.look(row.after, overs)

    def _send_unmatched(self, state: Sides, key: str | None, stream_time: int, out: Output) -> None:
        """Send the records whose window has been over for more than grace, by time, the left ones first."""
        due: list[tuple[int, int, Record]] = []
        if self.shared is not None:
            stream_time = self.shared.looked
        for number, side in enumerate((state.left, state.right)):
            over = stream_time - self.ahead[number] - self.grace
            if side.waits_from < over:
                due += [(one.time, number, one) for one in side.records if one.waits and one.time < over]
                side.waits_from = next((one.time for one in side.records if one.waits and one.time >= over), _NEVER)
        for time, number, record in sorted(due, key=lambda one: one[:2]):
            record.waits = False
            out.emit(key, self._alone(number, record.value), time)

    def _alone(self, side: int, value: str) -> str:
        return joined(value, None) if side == LEFT else joined(None, value)

    def due(self, state: Sides) -> int | None:
        """When the first record comes out unmatched, or may be out of reach."""
        times = []
        for side, ahead in zip((state.left, state.right), self.ahead, strict=True):
            if side.records:
                times += [side.waits_from + ahead + self.grace + 1, side.records[0].time + self.reach]
        return min(times) if times else None

    def close(
        self, state: Sides, key: str | None, closed: int, out: Output, reached: tuple[int, int] = (-1, -1)
    ) -> None:
        """Send the unmatched, forget what is out of reach."""
        self._send_unmatched(state, key, closed, out)
        # Only what `due` goes by as well: what is kept does not depend on which keys another record had closed.
        left, right = reached
        self._forget(state, (min(left, closed), min(right, closed)))

    def _forget(self, state: Sides, reached: tuple[int, int]) -> None:
        for side, latest in zip((state.left, state.right), reached, strict=True):
            gone = bisect_right(side.records, latest - self.reach, key=_TIME)
            if gone:
                side.records[:gone] = [one for one in side.records[:gone] if one.waits]

    def is_empty(self, state: Sides) -> bool:
        """Whether there is no record."""
        return not state.left.records and not state.right.records
