"""An operator for a table whose rows expire."""

from __future__ import annotations

from typing import Any

import msgspec
from typing_extensions import override

from sluice.operators.base import Output, Row
from sluice.operators.operator import BatchOfOperator, Operator, Releasing
from sluice.values.expiry import Expiry


class ExpiringRow(msgspec.Struct, array_like=True):
    """A key's latest value, its time in ms, and when it expires."""

    value: str | None = None
    time: int = -1
    expires: int | None = None
    """The time at which the row expires, epoch ms; None for a row that does not expire."""


class ExpiringTable(Operator[ExpiringRow]):
    """A table of a topic's records, like `Latest`, whose rows expire.

    A row is deleted when it expires. The time of the deletion is the time at which the row expires.

    A record that has already expired when it arrives deletes its key's row, and is counted as
    `expired`. If rows have their own times of expiry, `Row.foreign` is this time as text, or None.
    """

    state_type: Any = ExpiringRow

    def __init__(self, expiry: Expiry, *, sends_old_values: bool = False) -> None:
        self.expiry = expiry
        self.sends_old_values = sends_old_values
        self.is_timed_by_clock = expiry.clock == "wall"
        self._now = 0

    @override
    def begin_batch(self, batch: BatchOfOperator) -> None:
        self._now = batch.now

    @property
    @override
    def releasing(self) -> Releasing:
        return Releasing(before_row=True, by_clock=self.is_timed_by_clock)

    def new_state(self) -> ExpiringRow:
        return ExpiringRow()

    def process(self, state: ExpiringRow, row: Row, out: Output) -> None:
        if row.key is None:
            out.count("null_key")
            return
        # Skip the table's old value: it is already in the state.
        if row.old:
            return
        value, expires = row.value, self._expires_at(row)
        now = self._now if self.is_timed_by_clock else row.after
        if value is not None and expires is not None and expires <= now:
            out.count("expired")
            value = None
        self._replace(state, row.key, value, row.time, out)
        state.expires = None if value is None else expires

    def _expires_at(self, row: Row) -> int | None:
        if self.expiry.after_ms is not None:
            return row.time + self.expiry.after_ms
        if row.foreign is None:
            return None
        return int(row.foreign)

    def _replace(
        self, state: ExpiringRow, key: str, value: str | None, time: int, out: Output
    ) -> None:
        if self.sends_old_values and state.value is not None:
            out.emit(key, state.value, time, old=True)
        state.value, state.time = value, time
        out.emit(key, value, time)

    def release_due(self, state: ExpiringRow) -> int | None:
        return state.expires

    def due(self, state: ExpiringRow) -> int | None:
        if self.is_timed_by_clock:
            return None
        return state.expires

    def wall_due(self, state: ExpiringRow) -> int | None:
        if self.is_timed_by_clock:
            return state.expires
        return None

    def close(
        self,
        state: ExpiringRow,
        key: str | None,
        closed: int,
        out: Output,
        latest_of_sides: tuple[int, int] = (-1, -1),
    ) -> None:
        """Delete the row if it has expired at `closed`.

        `closed` is a stream time, or with `is_timed_by_clock`, a time of the wall clock.
        """
        if key is not None and state.expires is not None and state.expires <= closed:
            expires, state.expires = state.expires, None
            self._replace(state, key, None, expires, out)

    def is_empty(self, state: ExpiringRow) -> bool:
        return state.value is None
