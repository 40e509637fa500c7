"""Operators for tables: the latest value of every key."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from sluice.operators.base import Output, Row
from sluice.operators.columns import (
    BatchTimeline,
    KeyedRows,
    KeyStates,
    Results,
    take_or,
    validity,
    with_old_values,
)
from sluice.operators.lateness import forgotten_at, last_forgotten
from sluice.operators.latest_value import LatestValue
from sluice.operators.operator import Operator


class Latest(Operator[LatestValue]):
    """A table of a topic's records.

    A key's last record wins, regardless of its time; a null value deletes the key.

    `sends_old_values`: a later step subtracts or compares old values, so the old value is sent
    before the new value. If it is false, the results do not depend on the states.
    """

    state_type: Any = LatestValue

    def __init__(self, *, sends_old_values: bool = False) -> None:
        self.sends_old_values = sends_old_values

    def new_state(self) -> LatestValue:
        return LatestValue()

    def process(self, state: LatestValue, row: Row, out: Output) -> None:
        """Replace the key's value with the row's value, even if the row's time is earlier."""
        # As in Kafka Streams, drop a table's records without a key.
        if row.key is None:
            out.count("null_key")
            return
        # Skip the table's old value: it is already in the state.
        if row.old:
            return
        if self.sends_old_values and state.value is not None:
            out.emit(row.key, state.value, row.time, old=True)
        state.value, state.time = row.value, row.time
        # Like Kafka Streams, pass on a tombstone even if the key has no value.
        out.emit(row.key, row.value, row.time)

    def process_columns(
        self, states: KeyStates[LatestValue], rows: KeyedRows, timeline: BatchTimeline | None
    ) -> Results:
        is_new = ~rows.is_old
        new, values = np.flatnonzero(is_new), rows.columns["value"]
        results = Results(new, values.take(pa.array(new)), rows.times[new])
        if self.sends_old_values:
            results = self._with_old_values(results, states, rows)
        last = rows.last_of_keys(is_new)
        changed = np.flatnonzero(last >= 0)
        last_values, times = (
            values.take(pa.array(last[changed])).to_pylist(),
            rows.times[last[changed]].tolist(),
        )
        for number, value, time in zip(changed.tolist(), last_values, times, strict=True):
            state = states[number]
            state.value, state.time = value, time
        return results

    @staticmethod
    def _with_old_values(new: Results, states: Sequence[LatestValue], rows: KeyedRows) -> Results:
        """Insert the old value before each result that replaces a value."""
        previous = rows.last_before(~rows.is_old)[new.rows]
        before = [state.value for state in states]
        old_values = take_or(rows.columns["value"], previous, before, rows.key_numbers[new.rows])
        return with_old_values(new, old_values, validity(old_values))

    def is_empty(self, state: LatestValue) -> bool:
        return state.value is None


LATE = "late"
"""A versioned table's output for records that are earlier than their key's latest record."""


class LatestVersion(Operator[LatestValue]):
    """A versioned table: the record with the latest event time is the row of its key.

    A record is late if it is more than `history_ms` before stream time. A record that is within
    `history_ms`, but earlier than the key's latest record, goes to the output LATE, for joins that
    look up versions. To recognize such records, the state keeps the time of a deletion for
    `history_ms`.
    """

    state_type: Any = LatestValue

    def __init__(self, history_ms: int, *, sends_old_values: bool = False) -> None:
        self.history_ms = history_ms
        self.sends_old_values = sends_old_values

    def new_state(self) -> LatestValue:
        return LatestValue()

    def process(self, state: LatestValue, row: Row, out: Output) -> None:
        if row.key is None:
            out.count("null_key")
        elif row.old:
            return
        elif row.time <= last_forgotten(row.after, self.history_ms):
            out.count("late")
            out.send_late()
        elif row.time < state.time:
            out.emit(row.key, row.value, row.time, to=LATE)
        else:
            if self.sends_old_values and state.value is not None:
                out.emit(row.key, state.value, row.time, old=True)
            state.value, state.time = row.value, row.time
            out.emit(row.key, row.value, row.time)

    def due(self, state: LatestValue) -> int | None:
        if state.value is None and state.time >= 0:
            return forgotten_at(state.time, self.history_ms)
        return None

    def close(
        self,
        state: LatestValue,
        key: str | None,
        closed: int,
        out: Output,
        latest_of_sides: tuple[int, int] = (-1, -1),
    ) -> None:
        if state.value is None and state.time <= last_forgotten(closed, self.history_ms):
            state.time = -1

    def is_empty(self, state: LatestValue) -> bool:
        return state.value is None and state.time < 0
