"""Suppress: hold a table's updates back until their window closes, or until a time limit.

Its rows are the emissions of the operator before it: the same keys, `before` and `after` as of the row that caused them
(with several partitions: the stream time that all have reached, since no partition may add to a window that is out).
"""

from __future__ import annotations

from bisect import bisect_left, insort
from dataclasses import dataclass
from typing import Any, Literal

import msgspec

from sluice.errors import BufferFull
from sluice.operators.base import Output, Row, Window

NO_WINDOW: Window = (-1, -1)


class Waiting(msgspec.Struct, array_like=True):
    """The latest update of a key and window."""

    since: int
    """What its time is reckoned from: the window's end, or the time of the first update that waits."""
    value: str | None
    time: int
    old: str | None = None
    """What whoever comes next has seen last, if it subtracts."""


State = dict[Window, Waiting]


Entry = tuple[int, str, Window, int]
"""What an update's time is reckoned from, its key and window, its bytes."""


class Buffer(msgspec.Struct, array_like=True):
    """What waits in one worker over all keys, the oldest first: needed only where there is a limit to it."""

    entries: list[Entry] = []
    bytes: int = 0

    @property
    def records(self) -> int:
        """How many updates wait."""
        return len(self.entries)

    def add(self, since: int, key: str, window: Window, size: int) -> None:
        """An update waits."""
        insort(self.entries, (since, key, window, size))
        self.bytes += size

    def remove(self, since: int, key: str, window: Window) -> None:
        """It waits no longer, if it still did."""
        at = bisect_left(self.entries, (since, key, window, 0))
        if at < len(self.entries) and self.entries[at][:3] == (since, key, window):
            self.bytes -= self.entries.pop(at)[3]

    def pop_oldest(self) -> tuple[str, Window]:
        """Let go of the update that has waited longest; its key and window."""
        _, key, window, size = self.entries.pop(0)
        self.bytes -= size
        return key, window

    def forget(self, horizon: int) -> None:
        """Let go of what has waited long enough: it comes out with its key's next row, or when the batch is closed."""
        while self.entries and self.entries[0][0] <= horizon:
            self.pop_oldest()


@dataclass(frozen=True)
class Limit:
    """How much may wait in one worker; None: as much as there is."""

    records: int | None = None
    bytes: int | None = None
    when_full: Literal["emit_early", "shut_down"] = "emit_early"

    @property
    def buffer(self) -> Buffer | None:
        """An empty buffer to count in, if there is a limit."""
        return None if self.records is self.bytes is None else Buffer()

    def exceeded(self, buffer: Buffer) -> bool:
        """Whether more waits than may."""
        return (self.records is not None and buffer.records > self.records) or (
            self.bytes is not None and buffer.bytes > self.bytes
        )


class Suppress:
    """Until a window closes: one result for it once stream time reaches its end + `wait`, and no tombstones.

    Until a time limit: the latest value once stream time is `wait` after the first update that waits.
    `wait`: ms; the limit, or the window's grace (a session's grace + gap).

    A full buffer that emits early lets go of the oldest updates of all keys; those of another key than the one at hand
    come out with that key's next row, or when the host closes the keys in `called`. One that shuts down is noticed in
    `check`, which the host calls when a batch has been closed: what is due then no longer counts.
    """

    state_type: Any = State
    drops_null_values = False

    def __init__(
        self,
        until: Literal["window_close", "time_limit"],
        wait: int,
        limit: Limit | None = None,
        *,
        retracts: bool = False,
    ) -> None:
        self.until_close = until == "window_close"
        self.wait = wait
        self.limit = limit or Limit()
        self.retracts = retracts
        self.shared = self.limit.buffer
        self.called: dict[str, set[Window]] = {}
        """Keys and windows that are to come out before they are due."""

    def begin(self) -> State:
        """Nothing waits."""
        return {}

    def process(self, state: State, row: Row, out: Output) -> None:
        """Hold the update back, and send what is due by now."""
        if row.key is None:
            out.count("null_key")
            return
        self.close(state, row.key, row.before, out)
        window = row.window or NO_WINDOW
        waiting = state.get(window)
        if waiting is None:
            old = row.value if row.old else None
            state[window] = waiting = Waiting(self._since(row), None, row.time, old)
        if not row.old:
            waiting.value, waiting.time = row.value, row.time
        self._hold(row.key, window, waiting)
        if not row.old:
            self.close(state, row.key, row.after, out)
            self._make_room(state, row, out)

    def due(self, state: State) -> int | None:
        """When the first update has waited long enough."""
        return min(waiting.since for waiting in state.values()) + self.wait if state else None

    def close(
        self, state: State, key: str | None, closed: int, out: Output, reached: tuple[int, int] = (-1, -1)
    ) -> None:
        """Send what has waited long enough, or is called, the oldest first."""
        horizon = closed - self.wait
        called = self.called.pop(key, ()) if key is not None else ()
        due = [window for window, waiting in state.items() if waiting.since <= horizon or window in called]
        due.sort(key=lambda window: state[window].since)
        for window in due:
            self._send(state, key, window, out)

    def is_empty(self, state: State) -> bool:
        """Whether nothing waits."""
        return not state

    def check(self) -> None:
        """Say so if more waits than may and the author wants the run to end then.

        Raises BufferFull.
        """
        if self.shared and self.limit.when_full == "shut_down" and self.limit.exceeded(self.shared):
            limit = f"{self.limit.records or 'any number of'} updates, {self.limit.bytes or 'any number of'} bytes"
            held = f"{self.shared.records} updates of {self.shared.bytes} bytes"
            raise BufferFull(f"A suppress step holds back {held}; it may hold {limit}.")

    def _since(self, row: Row) -> int:
        return row.window[1] if self.until_close and row.window else row.time

    def _hold(self, key: str, window: Window, waiting: Waiting) -> None:
        if self.shared is not None:
            self.shared.remove(waiting.since, key, window)
            self.shared.add(waiting.since, key, window, len(key.encode()) + len((waiting.value or "").encode()))

    def _make_room(self, state: State, row: Row, out: Output) -> None:
        """Let go of the oldest updates of all keys while the buffer is too full."""
        if self.shared is None or self.limit.when_full != "emit_early":
            return
        self.shared.forget(row.after - self.wait)
        while self.limit.exceeded(self.shared):
            key, window = self.shared.pop_oldest()
            if key == row.key:
                self._send(state, key, window, out)
            else:
                self.called.setdefault(key, set()).add(window)

    def _send(self, state: State, key: str | None, window: Window, out: Output) -> None:
        waiting = state.pop(window)
        if self.shared is not None and key is not None:
            self.shared.remove(waiting.since, key, window)
        bounds = None if window == NO_WINDOW else window
        if waiting.value is None and self.until_close:
            return
        if self.retracts and waiting.old is not None:
            out.emit(key, waiting.old, waiting.time, window=bounds, old=True)
        out.emit(key, waiting.value, waiting.time, window=bounds)
