"""Holds back a table's updates until their window closes, or until a time limit.

The operator's rows are the results of the previous operator, with the same keys. Suppress uses the
stream time of the previous operator. In three cases, it has its own stream time instead:

- after a join, because many of the join's rows cause no result;
- after another suppress step, because the rows that the other step holds back do not advance stream
  time;
- after a table whose rows expire, because a row of any key can delete this key's row.

Stream time here is the time that all partitions have reached, because no partition may update a
window after the window's result has been sent.

If the aggregate before this step keeps each window until it closes, `suppressed_windows` sends the
results from the aggregate's state. `early_results` also sends results of open windows.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Collection
from dataclasses import dataclass
from typing import Any, Literal

import msgspec
import numpy as np
import pyarrow as pa
from typing_extensions import override

from sluice.errors import BufferFull
from sluice.operators.base import Output, Row
from sluice.operators.columns import (
    NO_ROWS,
    BatchTimeline,
    KeyedRows,
    KeyStates,
    ReleasedResults,
    Results,
)
from sluice.operators.lateness import closes_at, last_closed_end
from sluice.operators.operator import Operator, Releasing
from sluice.support.arrays import Indices, Mask, Times
from sluice.values.record_metadata import Until
from sluice.values.windows import Bounds

NO_WINDOW: Bounds = (-1, -1)


class Waiting(msgspec.Struct, array_like=True):
    """The latest update of a key and window."""

    since: int
    """Start of the waiting time: the window's end, or the time of the first update held back."""
    value: str | None
    time: int
    old: str | None = None
    """The value before the first update held back, which is the last value sent. It is sent as the
    old value if a later step needs old values."""
    headers: str | None = None
    """The headers of the record that caused the latest update; None if the result gets the headers
    of the record that closes the window."""


WaitingUpdates = dict[Bounds, Waiting]


BufferedUpdate = tuple[int, str, Bounds, int]
"""An update's `since`, key, window and size in bytes."""


class Buffer(msgspec.Struct, array_like=True):
    """The waiting updates of all keys of one worker, the oldest first.

    Used only if the step has a limit.
    """

    entries: list[BufferedUpdate] = []
    bytes: int = 0

    @property
    def records(self) -> int:
        return len(self.entries)

    def insert(self, since: int, key: str, window: Bounds, size: int) -> None:
        insort(self.entries, (since, key, window, size))
        self.bytes += size

    def remove(self, since: int, key: str, window: Bounds) -> None:
        """Remove the update if it is in the buffer."""
        at = bisect_left(self.entries, (since, key, window, 0))
        if at < len(self.entries) and self.entries[at][:3] == (since, key, window):
            self.bytes -= self.entries.pop(at)[3]

    def pop_oldest(self) -> tuple[str, Bounds]:
        _, key, window, size = self.entries.pop(0)
        self.bytes -= size
        return key, window

    def forget(self, horizon: int) -> None:
        """Remove the updates whose `since` is at most `horizon`.

        These updates are due: `Suppress` sends them when the engine closes their keys.
        """
        while self.entries and self.entries[0][0] <= horizon:
            self.pop_oldest()


@dataclass(frozen=True)
class BufferLimit:
    """Limits of one worker's buffer; None means unlimited."""

    records: int | None = None
    bytes: int | None = None
    when_full: Literal["emit_early", "shut_down"] = "emit_early"

    @property
    def buffer(self) -> Buffer | None:
        if self.records is self.bytes is None:
            return None
        return Buffer()

    def exceeded(self, buffer: Buffer) -> bool:
        if self.records is not None and buffer.records > self.records:
            return True
        return self.bytes is not None and buffer.bytes > self.bytes


def released_windows(
    key_texts: pa.Array,
    numbers: Indices,
    due: Times,
    windows: tuple[Times, Times],
    times: Times,
    values: pa.Array,
    headers: pa.Array | None,
) -> ReleasedResults:
    """Return the results of windows that close. `numbers` are the numbers of the windows' keys.

    `headers` are None if each result gets the headers of the record that closes the window.
    """
    # Sort the results by position, because the driver then sorts them faster. They are already
    # sorted by key.
    order = np.argsort(due, kind="stable")
    due, in_order, (starts, ends) = due[order], pa.array(order), windows
    if headers is not None:
        headers = headers.take(in_order)
    return ReleasedResults(
        key_texts,
        numbers[order],
        due,
        due,
        np.zeros(len(order), np.intp),
        times[order],
        values.take(in_order),
        (starts[order], ends[order]),
        headers,
    )


class Suppress(Operator[Any]):
    """Holds back a key's results, and sends at most one of them per window or time limit.

    If the step waits until a window closes, it sends one result per window once stream time reaches
    the window's end + `wait_ms`, and no tombstones. The result has the headers of the window's last
    update or, with `window_final`, of the record that closes the window.

    If the step waits until a time limit, it sends the latest value once stream time is `wait_ms`
    after the time of the first update that it holds back.

    `wait_ms`: the time limit, or how long a window stays open after its end: the grace, or for
    sessions grace + gap.
    `filtered`: the table is filtered, so the deletion of a row that the filter never passed is not
    an update.

    If the buffer is full, `emit_early` sends the oldest updates of all keys. If such an update does
    not belong to the current row's key, it is sent with the next row of its key, or when the engine
    closes the keys in `sent_early`. With `shut_down`, the engine calls `require_room` after it has
    sent all updates that are due, so only later updates count towards the limit.
    """

    state_type: Any = WaitingUpdates
    processes_due = True

    def __init__(
        self,
        until: Until,
        wait_ms: int,
        limit: BufferLimit | None = None,
        *,
        sends_old_values: bool = False,
        filtered: bool = False,
    ) -> None:
        self.until_close = until != "time_limit"
        self.is_final = until == "window_final"
        self.wait_ms = wait_ms
        self.limit = limit or BufferLimit()
        self.sends_old_values = sends_old_values
        self.filtered = filtered
        self.shared = self.limit.buffer
        self.sent_early: dict[str, set[Bounds]] = {}
        """Key → the windows whose updates are sent before they are due, because the buffer was
        full."""
        self._replaced: str | None = None
        """The old value of the next update, which `process` has already received as a separate
        row."""

    def new_state(self) -> WaitingUpdates:
        return {}

    def process(self, state: WaitingUpdates, row: Row, out: Output) -> None:
        """Hold back the row's update, and send the updates that are due."""
        # Kafka Streams drops updates without a key.
        if row.key is None:
            out.count("null_key")
            return
        if row.old:
            self._replaced = row.value
            return
        replaced, self._replaced = self._replaced, None
        # The row deletes a row that never passed the filter, so there is no update.
        if self.filtered and row.value is replaced is None:
            return
        self.close(state, row.key, row.before, out)
        window = row.window or NO_WINDOW
        waiting = state.get(window)
        if waiting is None:
            # The time limit starts with the first held-back update. Later updates do not prolong
            # it.
            if self.until_close and row.window:
                since = row.window[1]
            else:
                since = row.time
            state[window] = waiting = Waiting(since, None, row.time, replaced)
        waiting.value = row.value
        waiting.time = row.time
        if not self.is_final:
            waiting.headers = row.headers
        if self.shared is not None:
            size = len(row.key.encode()) + len((waiting.value or "").encode())
            # The update replaces the buffered update of the same key and window, which may have
            # another size.
            self.shared.remove(waiting.since, row.key, window)
            self.shared.insert(waiting.since, row.key, window, size)
        self.close(state, row.key, row.after, out)
        self._make_room(state, row, out)

    @property
    @override
    def takes_last_results(self) -> bool:
        # The rows of other operators may have several results of a window, of which only the last
        # one before the window closes is final. So these rows are processed one by one.
        return self.until_close and self.shared is None and not self.sends_old_values

    def process_columns(
        self, states: KeyStates[Any], rows: KeyedRows, timeline: BatchTimeline | None
    ) -> Results | None:
        """Send the results of windows that close in this batch, and hold back all other results.

        The rows are the last results of their windows.
        """
        if timeline is None or not self.takes_last_results:
            return None
        ends = np.asarray(rows.columns["window_end"])
        due = closes_at(ends, self.wait_ms)
        is_closed = due <= timeline.closed_after
        has_state = np.zeros(len(rows.keys), np.bool_)
        has_state[[number for number, _ in states.existing()]] = True
        is_kept = ~is_closed & self._must_keep(rows)
        # A result that is sent now, or a tombstone, also removes the result that an earlier batch
        # has held back.
        self._hold(states, rows, np.flatnonzero(is_kept | has_state[rows.key_numbers]), is_kept)
        sent = np.flatnonzero(is_closed & rows.has_value)
        taken = pa.array(sent)
        starts = np.asarray(rows.columns["window_start"])
        headers = None if self.is_final else rows.columns["headers"].take(taken)
        released = released_windows(
            rows.key_texts,
            rows.key_numbers[sent],
            due[sent],
            (starts[sent], ends[sent]),
            rows.times[sent],
            rows.columns["value"].take(taken),
            headers,
        )
        return Results(NO_ROWS, pa.array([], pa.string()), NO_ROWS, released=released)

    def _keep(self, state: Any, window: Bounds, waiting: Waiting | None) -> None:
        """Hold back a window's result. If `waiting` is None, forget the window's earlier result."""
        if waiting is None:
            state.pop(window, None)
        else:
            state[window] = waiting

    def _must_keep(self, rows: KeyedRows) -> Mask:
        """Return a mask of the results that the state keeps while their windows are open."""
        return rows.has_value

    def _hold(
        self, states: KeyStates[Any], rows: KeyedRows, changed: Indices, is_kept: Mask
    ) -> None:
        """Keep the results of the changed rows, or forget the earlier results of their windows."""
        taken = pa.array(changed)
        columns = [rows.key_numbers[changed].tolist(), is_kept[changed].tolist()]
        for name in ("window_start", "window_end", "value", "time", "headers"):
            columns.append(rows.columns[name].take(taken).to_pylist())
        for number, kept, start, end, value, time, headers in zip(*columns, strict=True):
            waiting = None
            if kept:
                kept_headers = None if self.is_final else headers
                waiting = Waiting(end, value, time, None, kept_headers)
            self._keep(states[number], (start, end), waiting)

    @property
    @override
    def releasing(self) -> Releasing:
        return Releasing()

    @override
    def keys_sent_early(self) -> Collection[str]:
        # If its buffer is full, a step sends its oldest updates, of any key, before they are due.
        return sorted(self.sent_early)

    def due(self, state: WaitingUpdates) -> int | None:
        if not state:
            return None
        return closes_at(min(waiting.since for waiting in state.values()), self.wait_ms)

    def close(
        self,
        state: WaitingUpdates,
        key: str | None,
        closed: int,
        out: Output,
        latest_of_sides: tuple[int, int] = (-1, -1),
    ) -> None:
        """Send the due updates, and those that a full buffer sends early, the oldest first."""
        horizon = last_closed_end(closed, self.wait_ms)
        if key is not None:
            sent_early = self.sent_early.pop(key, ())
        else:
            sent_early = ()
        due: list[Bounds] = []
        for window, waiting in state.items():
            if waiting.since <= horizon or window in sent_early:
                due.append(window)
        # As in Kafka Streams, the earlier window is first among updates of the same time.
        due.sort(key=lambda window: (state[window].since, window))
        for window in due:
            self._send(state, key, window, out)

    def is_empty(self, state: WaitingUpdates) -> bool:
        return not state

    @override
    def require_room(self) -> None:
        """Raise BufferFull if the limit is exceeded and `when_full` is `shut_down`."""
        if self.shared and self.limit.when_full == "shut_down" and self.limit.exceeded(self.shared):
            most_records = self.limit.records or "any number of"
            most_bytes = self.limit.bytes or "any number of"
            limit = f"{most_records} updates, {most_bytes} bytes"
            held = f"{self.shared.records} updates of {self.shared.bytes} bytes"
            raise BufferFull(f"A suppress step holds back {held}; its limit is {limit}.")

    def _make_room(self, state: WaitingUpdates, row: Row, out: Output) -> None:
        """Send the oldest updates of all keys while the buffer exceeds its limit."""
        if self.shared is None or self.limit.when_full != "emit_early":
            return
        # Updates that are due leave the buffer now. They do not count towards its limit.
        self.shared.forget(last_closed_end(row.after, self.wait_ms))
        while self.limit.exceeded(self.shared):
            key, window = self.shared.pop_oldest()
            # `state` belongs to the row's key. For another key, the engine calls `close`, which
            # sends the updates in `sent_early`.
            if key == row.key:
                self._send(state, key, window, out)
            else:
                self.sent_early.setdefault(key, set()).add(window)

    def _send(self, state: WaitingUpdates, key: str | None, window: Bounds, out: Output) -> None:
        waiting = state.pop(window)
        if self.shared is not None and key is not None:
            self.shared.remove(waiting.since, key, window)
        bounds = None if window == NO_WINDOW else window
        if not self.is_final:
            out.headers = waiting.headers
        # As in Kafka Streams, the final result of a window is never a tombstone.
        if waiting.value is None and self.until_close:
            return
        if self.sends_old_values and waiting.old is not None:
            out.emit(key, waiting.old, waiting.time, window=bounds, old=True)
        out.emit(key, waiting.value, waiting.time, window=bounds)
