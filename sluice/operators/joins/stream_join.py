"""Joins two streams: pairs records with the same key and nearby event times.

Keeps each record until no other record can join it (`_forget_expired`; `JoinLateness` in
`operators/lateness.py` has the limit).
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from dataclasses import replace
from operator import attrgetter
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
from typing_extensions import override

from sluice.operators.base import LEFT, RIGHT, Output, Row
from sluice.operators.columns import BatchTimeline, KeyedRows, KeyStates, Results
from sluice.operators.joins.by_key import How, joined
from sluice.operators.joins.stored_records import (
    NEVER,
    RecordWithHeaders,
    Side,
    Sides,
    SidesWithHeaders,
    StoredRecord,
)
from sluice.operators.joins.stream_pairs import join_columns, unexpired_rows
from sluice.operators.joins.unmatched import can_match, join_outer, keys_in_order
from sluice.operators.lateness import JoinLateness
from sluice.operators.operator import BatchOfOperator, Operator, Releasing
from sluice.support.arrays import Mask
from sluice.values.windows import JoinWindow

FEWEST_ROWS = 100
"""If the join sends unmatched records, fewer rows than this are joined one by one, because this is
faster."""
_TIME = attrgetter("time")


class UnmatchedSearch(msgspec.Struct, array_like=True):
    """Decides when a join looks for unmatched records of all keys, as a Kafka Streams task does.

    A search takes place when stream time passes `since` plus the window of the current record's
    side. `since` begins as the time of the earliest waiting record, and each search sets it anew
    (see `look`). If a record is not yet due in a search, it waits for the next search, and can be
    matched meanwhile.
    """

    since: int = NEVER
    looked: int = -1
    """Stream time of the last search, ms."""
    waiting: tuple[list[int], list[int]] = msgspec.field(default_factory=lambda: ([], []))
    """The times of each side's waiting records, sorted."""

    def look(self, stream_time: int, last_unmatched: tuple[int, int]) -> None:
        """Remove each side's times up to `last_unmatched`.

        The records with these times are sent unmatched at `stream_time`.
        """
        latest = [times[-1] for times in self.waiting if times]
        for times, last in zip(self.waiting, last_unmatched, strict=True):
            del times[: bisect_right(times, last)]
        if all(self.waiting):
            self.since = self._next_look()
        else:
            self.since = max(latest, default=NEVER)
        self.looked = stream_time

    def _next_look(self) -> int:
        """Return the new `since` if both sides still have waiting records.

        In Kafka Streams, a search stops at the first record after the earliest records of both
        sides. The new `since` is the time of this record. Of records with the same time, the right
        side's records come first.
        """
        left, right = self.waiting
        if left[0] >= right[0]:
            following = left[1:2] + right[bisect_right(right, left[0]) :][:1]
            return min(following, default=left[0])
        following = right[1:2] + left[bisect_left(left, right[0]) :][:1]
        return min(following, default=right[0])

    def add_waiting(self, side: int, time: int) -> None:
        """Add the time of a record that waits for a match."""
        insort(self.waiting[side], time)
        self.since = min(self.since, time)

    def remove_matched(self, side: int, time: int) -> None:
        """Remove the time of a record that has been matched."""
        times = self.waiting[side]
        del times[bisect_left(times, time)]


class StreamJoin(Operator[Sides]):
    """Matches records within a window. `lateness` decides until when a record waits for matches.

    A result has the larger time of both records. On an outer side, a record without a match is sent
    with null for the other side, after its window and grace. It is sent immediately if it has no
    key, or if its window and grace have already passed when it arrives. A record that has been sent
    without a match is forgotten, so later records do not match it.

    If `watch` has been called, the join looks for unmatched records at the same times as Kafka
    Streams. This needs one stream time for all keys.

    With `keeps_headers`, a record that is sent unmatched has its own headers. Otherwise, it has the
    headers of the record that has advanced stream time, as in Kafka Streams.
    """

    state_type: Any = Sides

    def __init__(self, how: How, window: JoinWindow, *, keeps_headers: bool = False) -> None:
        self.outer = how in ("left", "outer"), how == "outer"
        self._is_outer = any(self.outer)
        self.keeps_headers = keeps_headers and self._is_outer
        if self.keeps_headers:
            self.state_type = SidesWithHeaders
        self.lateness = JoinLateness(window)
        self.shared: UnmatchedSearch | None = None
        self._passed = -1, -1
        """For each side, the stream time that all keys have passed by the end of the batch."""

    @override
    def begin_batch(self, batch: BatchOfOperator) -> None:
        self.end_batch_at(batch.closed, batch.latest_of_sides)
        # A Kafka Streams task searches for the unmatched records of all its keys at once, depending
        # on the task's stream time. With one partition, the join searches at the same times. With
        # several partitions, the keys of a worker have no common stream time, so each key's
        # unmatched records are sent when they are due.
        if batch.is_one_task:
            self.watch()

    @property
    @override
    def releasing(self) -> Releasing | None:
        if not self._is_outer:
            return None
        return Releasing(before_row=True, searches=None if self.shared is None else self)

    @override
    def sent_until(self, stream_time: int) -> int:
        # As in Kafka Streams, a record may be due but wait for the next search.
        if self.shared is None:
            return stream_time
        return min(stream_time, self.shared.looked)

    def end_batch_at(self, closed: int, latest_of_sides: tuple[int, int]) -> None:
        """Set the stream times at the end of the batch.

        The join then does not store records that `close` would forget.
        """
        left, right = latest_of_sides
        self._passed = min(left, closed), min(right, closed)

    def watch(self) -> None:
        """Enable the search for unmatched records of all keys; see `UnmatchedSearch`."""
        if self._is_outer:
            self.shared = UnmatchedSearch()

    def new_state(self) -> Sides:
        # Each record's type tells whether the record keeps headers.
        return Sides(Side(), Side())

    def process(self, state: Sides, row: Row, out: Output) -> None:
        # As in Kafka Streams, drop stream records without a value.
        if row.value is None:
            out.count("null_key" if row.key is None else "null_value")
            return
        if row.key is None:
            # A record without a key matches nothing. As in Kafka Streams, send it at once if its
            # side is outer.
            if self.outer[row.side]:
                out.emit(None, self._unmatched(row.side, row.value), row.time)
            else:
                out.count("null_key")
            return
        if self._is_outer:
            self._send_unmatched(state, row.key, row.before, out)
            # Before Kafka Streams matches a record, it looks for unmatched records, unless the
            # record is out of order.
            if row.time == row.after:
                self._send_unmatched(state, row.key, row.after, out)
        is_lone = not self._match(state, row.key, row, out) and self.outer[row.side]
        if is_lone and self.lateness.is_past(row.side, row.time, row.after):
            out.emit(row.key, self._unmatched(row.side, row.value), row.time)
        else:
            self._store(state, row, is_lone)
        self._forget_expired(state, row.latest_of_sides)

    @property
    @override
    def takes_columns(self) -> bool:
        # With `UnmatchedSearch`, a record that is due waits for the next search, which depends on
        # the rows of all keys.
        return self._is_outer and self.shared is None and not self.keeps_headers

    def process_columns(
        self, states: KeyStates[Sides], rows: KeyedRows, timeline: BatchTimeline | None
    ) -> Results | None:
        """Join all rows at once, if that is possible for their keys.

        In an outer join, a key's rows are left over in two cases. The first case: the rows come
        from several partitions, and a later row has an earlier stream time. The second case: a
        record of the key is already due when the batch begins, or when the record arrives.
        """
        if not self._is_outer:
            results = join_columns(self.lateness, states, rows)
            if results is not None:
                self._keep_unexpired(states, rows)
            return results
        if timeline is None or not self.takes_columns or len(rows) < FEWEST_ROWS:
            return None
        is_possible = keys_in_order(self.lateness, rows)
        is_possible &= ~self._has_due_records(states, timeline.closed_before)
        if is_possible.all():
            return self._join_outer(states, rows, timeline)
        some_rows, indices = rows.of_keys(is_possible)
        if not len(indices):
            return None
        results = self._join_outer(states.of_keys(some_rows.keys), some_rows, timeline)
        if results is None:
            return None
        left_over = ~is_possible[rows.key_numbers]
        return replace(results.of_rows(indices), left_over=left_over)

    def _has_due_records(self, states: KeyStates[Sides], closed_before: int) -> Mask:
        """Return a mask of the keys with a record that was due before the batch's first record.

        No advance of stream time in the batch causes the result of such a record.
        """
        has_due = np.zeros(len(states), np.bool_)
        for number, state in states.existing():
            due = self.release_due(state)
            has_due[number] = due is not None and due <= closed_before
        return has_due

    def _join_outer(
        self, states: KeyStates[Sides], rows: KeyedRows, timeline: BatchTimeline
    ) -> Results | None:
        """Join all rows of a left or outer join at once (see `unmatched.join_outer`)."""
        joined = join_outer(self.lateness, self.outer, states, rows, timeline.advances_until)
        if joined is None:
            return None
        records = joined.records
        can_be_matched = can_match(self.lateness, records, rows, self._passed) & ~joined.sent
        kept = np.flatnonzero(joined.waits | can_be_matched)
        for _, state in states.existing():
            state.left, state.right = Side(), Side()
        order = np.lexsort((records.order[kept], records.times[kept]))
        kept = kept[order]
        columns = (
            records.keys[kept].tolist(),
            records.sides[kept].tolist(),
            records.times[kept].tolist(),
            joined.waits[kept].tolist(),
            records.values.take(pa.array(kept)).to_pylist(),
        )
        for number, side, time, waits, value in zip(*columns, strict=True):
            of_side = states[number].right if side == RIGHT else states[number].left
            of_side.records.append(StoredRecord(time, value, waits))
            if waits:
                of_side.waits_from = min(of_side.waits_from, time)
        return replace(joined.results, released=joined.released)

    def _keep_unexpired(self, states: KeyStates[Sides], rows: KeyedRows) -> None:
        """Store the rows' records that can still be matched after their key's last row.

        Forget all stored records that can no longer be matched.
        """
        last = rows.last_of_keys(rows.has_value)
        left, right = rows.stream_times["left"], rows.stream_times["right"]
        for number, state in states.existing():
            if (index := last[number]) >= 0:
                self._forget_expired(state, (int(left[index]), int(right[index])))
        stored = unexpired_rows(self.lateness, rows, self._passed)
        values = rows.columns["value"].take(pa.array(stored)).to_pylist()
        numbers = rows.key_numbers[stored].tolist()
        sides, times = rows.sides[stored].tolist(), rows.times[stored].tolist()
        for number, side, time, value in zip(numbers, sides, times, values, strict=True):
            of_side = states[number].right if side == RIGHT else states[number].left
            insort(of_side.records, StoredRecord(time, value, False), key=_TIME)

    def _match(self, state: Sides, key: str, row: Row, out: Output) -> bool:
        """Send the results with all matching records of the other side.

        Returns whether any record matches.
        """
        other_side = 1 - row.side
        matching = state.left if row.side == RIGHT else state.right
        records = matching.records
        if not records:
            return False
        lateness = self.lateness
        earliest = max(
            row.time - lateness.ahead[other_side],
            lateness.last_expired(other_side, row.latest_of_sides[other_side]) + 1,
        )
        first = bisect_left(records, earliest, key=_TIME)
        last = bisect_right(records, row.time + lateness.ahead[row.side], key=_TIME)
        has_waited = False
        for other in records[first:last]:
            if other.waits_for_match:
                has_waited, other.waits_for_match = True, False
                if self.shared is not None:
                    self.shared.remove_matched(other_side, other.time)
            if row.side == LEFT:
                value = joined(row.value, other.value)
            else:
                value = joined(other.value, row.value)
            out.emit(key, value, max(row.time, other.time))
        if has_waited:
            waiting = (other.time for other in records if other.waits_for_match)
            matching.waits_from = next(waiting, NEVER)
        return first < last

    def _store(self, state: Sides, row: Row, waits_for_match: bool) -> None:
        """Store the row's record, if any later record of the other side can still match it."""
        if not waits_for_match and row.time <= self.lateness.last_expired(
            row.side, row.latest_of_sides[row.side]
        ):
            return
        assert row.value is not None
        side = state.right if row.side == RIGHT else state.left
        if self.keeps_headers:
            headers = row.headers if waits_for_match else None
            record: StoredRecord = RecordWithHeaders(row.time, row.value, waits_for_match, headers)
        else:
            record = StoredRecord(row.time, row.value, waits_for_match)
        # Most records arrive in the order of time, so they can be appended.
        if not side.records or side.records[-1].time <= row.time:
            side.records.append(record)
        else:
            insort(side.records, record, key=_TIME)
        if waits_for_match:
            side.waits_from = min(side.waits_from, row.time)
            if self.shared is not None:
                self.shared.add_waiting(row.side, row.time)

    def looks_after(self, side: int) -> int:
        """Return the stream time after which a record of this side starts a search.

        See `UnmatchedSearch`.
        """
        if self.shared is None or self.shared.since == NEVER:
            return NEVER
        return self.lateness.sent_unmatched_at(side, self.shared.since) - 1

    def look(self, stream_time: int) -> None:
        """Look for unmatched records of all keys.

        `close` then sends these records, key by key.
        """
        assert self.shared is not None
        last_unmatched = (
            self.lateness.last_unmatched(LEFT, stream_time),
            self.lateness.last_unmatched(RIGHT, stream_time),
        )
        self.shared.look(stream_time, last_unmatched)

    def _send_unmatched(self, state: Sides, key: str | None, stream_time: int, out: Output) -> None:
        """Send the records that no longer wait for a match, by time, the right side first."""
        due: list[tuple[int, int, StoredRecord]] = []
        if self.shared is not None:
            # As in Kafka Streams, send nothing between two searches, even if a record is due.
            stream_time = min(stream_time, self.shared.looked)
        for number, side in enumerate((state.left, state.right)):
            last = self.lateness.last_unmatched(number, stream_time)
            if side.waits_from > last:
                continue
            records = side.records
            count = bisect_right(records, last, key=_TIME)
            matched: list[StoredRecord] = []
            for record in records[:count]:
                if record.waits_for_match:
                    due.append((record.time, number, record))
                else:
                    matched.append(record)
            records[:count] = matched
            waiting = (record.time for record in records if record.waits_for_match)
            side.waits_from = next(waiting, NEVER)
        # In Kafka Streams, a store sorts the unmatched records of all keys by time and, for equal
        # times, the right side first.
        headers = out.headers
        for time, number, record in sorted(due, key=lambda entry: (entry[0], -entry[1])):
            rank = 2 * time + (number == LEFT)
            if isinstance(record, RecordWithHeaders):
                out.headers = record.headers
            out.emit(key, self._unmatched(number, record.value), time, rank=rank)
        out.headers = headers

    def _unmatched(self, side: int, value: str) -> str:
        if side == LEFT:
            return joined(value, None)
        return joined(None, value)

    def release_due(self, state: Sides) -> int | None:
        """Return the stream time at which the next record is sent unmatched.

        Return None if no record waits.
        """
        due = NEVER
        for number, side in enumerate((state.left, state.right)):
            if side.waits_from != NEVER:
                due = min(due, self.lateness.sent_unmatched_at(number, side.waits_from))
        if due == NEVER:
            return None
        return due

    def due(self, state: Sides) -> int | None:
        """Return the stream time at which the next record is sent unmatched.

        If none waits, return the time at which the next record can no longer be matched.
        """
        # A record may stay in the state after it has expired, because only later records of its own
        # side remove it. The expiry of such a record must not hide the time at which another record
        # is sent unmatched.
        sent = self.release_due(state)
        if sent is not None:
            return sent
        expire: list[int] = []
        for number, side in enumerate((state.left, state.right)):
            if side.records:
                expire.append(self.lateness.expires_at(number, side.records[0].time))
        return min(expire, default=None)

    def close(
        self,
        state: Sides,
        key: str | None,
        closed: int,
        out: Output,
        latest_of_sides: tuple[int, int] = (-1, -1),
    ) -> None:
        self._send_unmatched(state, key, closed, out)
        # The engine selects the keys to close by `closed` alone. If a later time were used here,
        # only the selected keys would forget records up to that time, and results would depend on
        # the selection.
        left, right = latest_of_sides
        self._forget_expired(state, (min(left, closed), min(right, closed)))

    def _forget_expired(self, state: Sides, latest_of_sides: tuple[int, int]) -> None:
        """Forget records that can no longer be matched, unless they must still be sent."""
        for number, side in enumerate((state.left, state.right)):
            records, last = (
                side.records,
                self.lateness.last_expired(number, latest_of_sides[number]),
            )
            if not records or records[0].time > last:
                continue
            if records[-1].time <= last and side.waits_from == NEVER:
                records.clear()
            else:
                count = bisect_right(records, last, key=_TIME)
                records[:count] = [record for record in records[:count] if record.waits_for_match]

    def is_empty(self, state: Sides) -> bool:
        return not state.left.records and not state.right.records
