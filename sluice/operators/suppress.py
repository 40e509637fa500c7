"""Suppress: hold a table's updates back until their window closes, or until a time limit.

Its rows are the emissions of the operator before it: the same keys, `before` and `after` as of the row that caused them
(with several partitions: the stream time that all have reached, since no partition may add to a window that is out).
"""

from __future__ import annotations

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


class Buffer(msgspec.Struct, array_like=True):
    """What waits in one worker, over all keys."""

    records: int = 0
    bytes: int = 0


@dataclass(frozen=True)
class Limit:
    """How much may wait in one worker; None: as much as there is."""

    records: int | None = None
    bytes: int | None = None
    when_full: Literal["emit_early", "shut_down"] = "emit_early"

    def exceeded(self, buffer: Buffer) -> bool:
        """Whether more waits than may."""
        return (self.records is not None and buffer.records > self.records) or (
            self.bytes is not None and buffer.bytes > self.bytes
        )


class Suppress:
    """Until a window closes: one result for it once stream time reaches its end + `wait`, and no tombstones.

    Until a time limit: the latest value once stream time is `wait` after the first update that waits.
    `wait`: ms; the limit, or the window's grace (a session's grace + gap).

    A full buffer that emits early sends the oldest updates of the key at hand. One that shuts down is noticed in
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
        self.shared = Buffer()

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
        if row.old:
            if waiting is None:
                state[window] = waiting = Waiting(self._since(row), None, row.time, old=row.value)
                self._count(row.key, waiting, 1)
            return
        if waiting is None:
            state[window] = waiting = Waiting(self._since(row), row.value, row.time)
        else:
            self._count(row.key, waiting, -1)
            waiting.value, waiting.time = row.value, row.time
        self._count(row.key, waiting, 1)
        self.close(state, row.key, row.after, out)
        while state and self.limit.when_full == "emit_early" and self.limit.exceeded(self.shared):
            self._send(state, row.key, min(state, key=lambda one: state[one].since), out)

    def due(self, state: State) -> int | None:
        """When the first update has waited long enough."""
        return min(waiting.since for waiting in state.values()) + self.wait if state else None

    def close(
        self, state: State, key: str | None, closed: int, out: Output, reached: tuple[int, int] = (-1, -1)
    ) -> None:
        """Send what has waited long enough, the oldest first."""
        horizon = closed - self.wait
        due = [window for window, waiting in state.items() if waiting.since <= horizon]
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
        if self.limit.when_full == "shut_down" and self.limit.exceeded(self.shared):
            limit = f"{self.limit.records or 'any number of'} updates, {self.limit.bytes or 'any number of'} bytes"
            held = f"{self.shared.records} updates of {self.shared.bytes} bytes"
            raise BufferFull(f"A suppress step holds back {held}; it may hold {limit}.")

    def _since(self, row: Row) -> int:
        return row.window[1] if self.until_close and row.window else row.time

    def _send(self, state: State, key: str | None, window: Window, out: Output) -> None:
        waiting = state.pop(window)
        self._count(key, waiting, -1)
        bounds = None if window == NO_WINDOW else window
        if waiting.value is None and self.until_close:
            return
        if self.retracts and waiting.old is not None:
            out.emit(key, waiting.old, waiting.time, window=bounds, old=True)
        out.emit(key, waiting.value, waiting.time, window=bounds)

    def _count(self, key: str | None, waiting: Waiting, sign: int) -> None:
        self.shared.records += sign
        self.shared.bytes += sign * (len((key or "").encode()) + len((waiting.value or "").encode()))
