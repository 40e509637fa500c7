"""Tables: the latest value of every key."""

from __future__ import annotations

from typing import Any

import msgspec

from sluice.operators.base import Output, Row, Timeless


class LatestValue(msgspec.Struct, array_like=True):
    """A key's latest value and its time in ms."""

    value: str | None = None
    time: int = -1


class Latest(Timeless):
    """A table of a topic's records. A key's last record wins, regardless of its time; a null value deletes the key.

    `retracts`: the next operator subtracts or compares old values, so the old value is sent before the new value.
    """

    state_type: Any = LatestValue

    def __init__(self, *, retracts: bool = False) -> None:
        self.retracts = retracts

    def new_state(self) -> LatestValue:
        return LatestValue()

    def process(self, state: LatestValue, row: Row, out: Output) -> None:
        """Replace the key's value: offset order wins, even if the row's time is earlier."""
        # Kafka Streams drops a table's records without a key.
        if row.key is None:
            out.count("null_key")
            return
        # The state has the old value.
        if row.old:
            return
        if self.retracts and state.value is not None:
            out.emit(row.key, state.value, row.time, old=True)
        state.value, state.time = row.value, row.time
        # Kafka Streams passes a tombstone on even if the key has no value.
        out.emit(row.key, row.value, row.time)

    def is_empty(self, state: LatestValue) -> bool:
        return state.value is None
