"""Tables: the latest value of every key, in the order of its records."""

from __future__ import annotations

from typing import Any

import msgspec

from sluice.operators.base import Output, Row, Timeless


class Held(msgspec.Struct, array_like=True):
    """The value that a key has."""

    value: str | None = None
    time: int = -1


class Latest(Timeless):
    """A table of a topic's records: the last one wins, whatever its time; a null value deletes the key.

    `retracts`: whoever comes next subtracts or compares, so send an old value before the new one.
    """

    state_type: Any = Held
    drops_null_values = False

    def __init__(self, *, retracts: bool = False) -> None:
        self.retracts = retracts

    def begin(self) -> Held:
        """No value."""
        return Held()

    def process(self, state: Held, row: Row, out: Output) -> None:
        """Take the new value for the old one. A tombstone for a key that has none changes nothing."""
        if row.key is None:
            out.count("null_key")
            return
        if row.old or (row.value is None and state.value is None):
            return
        if self.retracts and state.value is not None:
            out.emit(row.key, state.value, row.time, old=True)
        state.value, state.time = row.value, row.time
        out.emit(row.key, row.value, row.time)

    def is_empty(self, state: Held) -> bool:
        """Whether the key has no value."""
        return state.value is None
