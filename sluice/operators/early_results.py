"""Sends early results of open windows from time to time, then the final result of each window."""

from __future__ import annotations

from typing import Any, Literal

import msgspec
from typing_extensions import override

from sluice.operators.base import Output, Row
from sluice.operators.lateness import closes_at
from sluice.operators.suppress import NO_WINDOW, Suppress
from sluice.values.headers import Headers
from sluice.values.windows import Bounds

RESULT_HEADER = "window_result"
"""The name of the header that tells whether a result is early or final."""


class HeldResult(msgspec.Struct, array_like=True):
    """The latest result of an open window."""

    end: int
    value: str | None
    time: int
    since: int | None
    """Event time of the first change that has not been sent; None if the latest result has been
    sent."""
    sent: str | None = None
    """The value that was sent last."""


HeldResults = dict[Bounds, HeldResult]


class EarlyResults(Suppress):
    """Sends a window's result `early_ms` after its first unsent change, and when it is final.

    An early result is sent only if it differs from the result that was sent last for the window.
    The final result is always sent. The old value of a result is the value that was sent last. When
    a session grows, it gets new bounds, and its old window is deleted. For a deleted window, a
    tombstone is sent if any of the window's results has been sent.
    """

    state_type: Any = HeldResults

    def __init__(self, wait_ms: int, early_ms: int, *, sends_old_values: bool = False) -> None:
        super().__init__("window_final", wait_ms, sends_old_values=sends_old_values)
        self.early_ms = early_ms

    @property
    @override
    def takes_last_results(self) -> bool:
        return False

    @override
    def new_state(self) -> HeldResults:  # type: ignore[override]
        return {}

    @override
    def process(self, state: HeldResults, row: Row, out: Output) -> None:  # type: ignore[override]
        """Hold back the row's result, and send the results that are due."""
        if row.key is None:
            out.count("null_key")
            return
        # The old value of a result is the value that was sent last, so skip the aggregate's old
        # value.
        if row.old:
            return
        self.close(state, row.key, row.before, out)
        window = row.window or NO_WINDOW
        if (held := state.get(window)) is None:
            state[window] = held = HeldResult(window[1], None, row.time, row.time)
        held.value, held.time = row.value, row.time
        if held.since is None:
            held.since = row.time
        self.close(state, row.key, row.after, out)

    @override
    def due(self, state: HeldResults) -> int | None:  # type: ignore[override]
        return min(map(self._due, state.values()), default=None)

    def _due(self, held: HeldResult) -> int:
        closing = closes_at(held.end, self.wait_ms)
        if held.since is None:
            return closing
        return min(closing, closes_at(held.since, self.early_ms))

    @override
    def close(  # type: ignore[override]
        self,
        state: HeldResults,
        key: str | None,
        closed: int,
        out: Output,
        latest_of_sides: tuple[int, int] = (-1, -1),
    ) -> None:
        """Send the results that are due, the oldest first."""
        due = [window for window, held in state.items() if self._due(held) <= closed]
        due.sort(key=lambda window: (self._due(state[window]), window))
        for window in due:
            held = state[window]
            if closes_at(held.end, self.wait_ms) <= closed:
                del state[window]
                self._send_result(key, window, held, "final", out)
            else:
                held.since = None
                if held.value != held.sent:
                    self._send_result(key, window, held, "early", out)
                    held.sent = held.value

    def _send_result(
        self,
        key: str | None,
        window: Bounds,
        held: HeldResult,
        mark: Literal["early", "final"],
        out: Output,
    ) -> None:
        # A deleted window needs no tombstone if none of its results has been sent.
        if held.value is None and held.sent is None:
            return
        headers = out.headers
        out.headers = Headers.of_json(headers).set(RESULT_HEADER, mark).json()
        if self.sends_old_values and held.sent is not None:
            out.emit(key, held.sent, held.time, window=window, old=True)
        out.emit(key, held.value, held.time, window=window)
        out.headers = headers
