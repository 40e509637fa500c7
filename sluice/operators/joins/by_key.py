"""Joins by key of two tables, or of a stream with a table.

A result is `{"left": LEFT_VALUE, "right": RIGHT_VALUE}`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from sluice.operators.base import AHEAD, LEFT, RIGHT, Output, Row
from sluice.operators.columns import (
    BatchTimeline,
    KeyedRows,
    KeyStates,
    Results,
    take_or,
    validity,
    with_old_values,
)
from sluice.operators.operator import Operator
from sluice.support.arrays import Indices, Mask, Times

How = Literal["inner", "left", "outer"]


def joined(left: str | None, right: str | None, more: str = "") -> str:
    """Return the JSON text of a join's result.

    `more` is the text of further fields. Each field begins with a comma.
    """
    # Both values are JSON texts, so they need not be decoded.
    left_json = "null" if left is None else left
    right_json = "null" if right is None else right
    return f'{{"left":{left_json},"right":{right_json}{more}}}'


def joined_texts(left: pa.Array, right: pa.Array, *more: str | pa.Array) -> pa.Array:
    """Return the JSON texts of a join's results.

    `more`: further fields as text, in parts that are joined row by row.
    """
    sides = '{"left":', pc.fill_null(left, "null"), ',"right":', pc.fill_null(right, "null")
    return pc.binary_join_element_wise(*sides, *more, "}", "")


class TablePair(msgspec.Struct, array_like=True):
    """The values of both tables for a key."""

    left: str | None = None
    left_time: int = -1
    right: str | None = None
    right_time: int = -1

    def put(self, side: int, value: str | None, time: int) -> None:
        """Replace or remove the value of a side."""
        if side == RIGHT:
            self.right, self.right_time = value, time
        else:
            self.left, self.left_time = value, time


class TableJoin(Operator[TablePair]):
    """Joins two tables by key.

    A change of either side sends a result with the larger time of both sides.

    A key has a result in an inner join while both sides have a value, in a left join while the left
    side has a value, and in an outer join while either side has a value. `filtered`: for each side,
    whether its table is filtered.

    If both sides depend on one table, the join gets some changes twice: early and in their turn
    (see `AHEAD`). Even for such changes, unlike in Kafka Streams, the old value of a result is the
    previously sent result.
    """

    state_type: Any = TablePair

    def __init__(
        self,
        how: How,
        *,
        sends_old_values: bool = False,
        filtered: tuple[bool, bool] = (False, False),
    ) -> None:
        self.how = how
        self.sends_old_values = sends_old_values
        self.filtered = filtered
        self._ahead: dict[tuple[str, int], tuple[str | None, int]] = {}
        """Key and side → value and time of a change that arrived early, with AHEAD, and has not yet
        arrived again as LEFT or RIGHT."""
        self._sent_ahead: dict[str, str | None] = {}
        """Key → the last result, if it was computed with a change in `_ahead`. The state does not
        contain this change yet."""

    def new_state(self) -> TablePair:
        return TablePair()

    def process(self, state: TablePair, row: Row, out: Output) -> None:
        if row.key is None:
            if row.side < AHEAD:
                out.count("null_key")
            return
        if row.old:
            return
        # The time of a deleted value is -1, and therefore never the larger time of both sides.
        time = -1 if row.value is None else row.time
        changed = row.value, time
        if row.side >= AHEAD:
            self._ahead[row.key, row.side - AHEAD] = changed
            return
        if self._ahead:
            self._ahead.pop((row.key, row.side), None)
        # If the change deletes a row that never passed the filter, Kafka Streams' filter sends
        # nothing to the join.
        replaced = state.right if row.side == RIGHT else state.left
        if row.value is None and replaced is None and self.filtered[row.side]:
            # The state now contains this change, so the result that was sent is the state's result.
            self._sent_ahead.pop(row.key, None)
            return
        if row.key in self._sent_ahead:
            old = self._sent_ahead.pop(row.key)
        else:
            old = self._result(state)
        if self._ahead:
            pair = self._pair_in_stores(state, row)
        else:
            pair = state
        for values in (state, pair):
            values.put(row.side, *changed)
        new = self._result(pair)
        if pair is not state:
            self._sent_ahead[row.key] = new
        if old is None and new is None and not self._sends_tombstone(pair, row.side, replaced):
            return
        # As in Kafka Streams, the result or tombstone has the larger time of both sides.
        time = max(row.time, pair.left_time, pair.right_time)
        if self.sends_old_values and old is not None:
            out.emit(row.key, old, time, old=True)
        out.emit(row.key, new, time)

    def process_columns(
        self, states: KeyStates[TablePair], rows: KeyedRows, timeline: BatchTimeline | None
    ) -> Results | None:
        if self._ahead or (rows.sides >= AHEAD).any():
            return None
        is_new = ~rows.is_old
        stored_left = [(state.left, state.left_time) for state in states]
        stored_right = [(state.right, state.right_time) for state in states]
        left = _SideOfRows(rows, is_new & (rows.sides == LEFT), stored_left)
        right = _SideOfRows(rows, is_new & (rows.sides == RIGHT), stored_right)
        sides = left, right
        had_result = self._has_result(left.had_value, right.had_value)
        has_result = self._has_result(left.has_value, right.has_value)
        # A row sends nothing in the same cases as in `process`.
        sends_tombstone = np.where(rows.sides == RIGHT, left.has_value, right.has_value)
        if self.how == "left":
            sends_tombstone &= rows.sides == LEFT
        sent = is_new & (had_result | has_result | sends_tombstone)
        for side, of_side in enumerate(sides):
            if self.filtered[side]:
                sent &= (rows.sides != side) | rows.has_value | of_side.had_value
        rows_sent = np.flatnonzero(sent)
        times = np.maximum.reduce([rows.times, left.times, right.times])[rows_sent]
        new_values = _where(
            has_result[rows_sent], joined_texts(left.after(rows_sent), right.after(rows_sent))
        )
        results = Results(rows_sent, new_values, times)
        if self.sends_old_values:
            old_values = joined_texts(left.before(rows_sent), right.before(rows_sent))
            results = with_old_values(results, old_values, had_result[rows_sent])
        for number, value, time in left.changes():
            states[number].left, states[number].left_time = value, time
        for number, value, time in right.changes():
            states[number].right, states[number].right_time = value, time
        return results

    def _has_result(self, has_left: Mask, has_right: Mask) -> Mask:
        """Return a mask of the rows with a result, given whether each side of each row has a value.

        `_result` has the same rules, for a single row.
        """
        match self.how:
            case "inner":
                return has_left & has_right
            case "left":
                return has_left
            case "outer":
                return has_left | has_right

    def _pair_in_stores(self, state: TablePair, row: Row) -> TablePair:
        """Return the values that the stores of both sides contain in Kafka Streams.

        The other side's store already contains a change that this join got early, with AHEAD.
        """
        assert row.key is not None
        other = LEFT if row.side == RIGHT else RIGHT
        ahead = self._ahead.get((row.key, other))
        if ahead is None:
            return state
        if other == LEFT:
            return TablePair(*ahead, state.right, state.right_time)
        return TablePair(state.left, state.left_time, *ahead)

    def _sends_tombstone(self, state: TablePair, side: int, replaced: str | None) -> bool:
        """Return whether a change of this side sends a tombstone.

        Called only if there is no result before and after the change. As in Kafka Streams, an inner
        join sends a tombstone if the other side has a value. An outer join, and a left join for its
        left side, also send one if the change has `replaced` a value. For its right side, a left
        join sends no tombstone.
        """
        other = state.left if side == RIGHT else state.right
        if self.how == "inner":
            return other is not None
        return (self.how == "outer" or side == LEFT) and (other is not None or replaced is not None)

    def is_empty(self, state: TablePair) -> bool:
        return state.left is None and state.right is None

    def _result(self, state: TablePair) -> str | None:
        left, right = state.left, state.right
        match self.how:
            case "inner":
                has_result = left is not None and right is not None
            case "left":
                has_result = left is not None
            case "outer":
                has_result = left is not None or right is not None
        if has_result:
            return joined(left, right)
        return None


class _SideOfRows:
    """The value and time that one side of a join has before and after each row."""

    def __init__(
        self, rows: KeyedRows, of_side: Mask, stored: Sequence[tuple[str | None, int]]
    ) -> None:
        self._rows = rows
        self._stored_values = [value for value, _ in stored]
        self._before, self._after = rows.last_before(of_side), rows.last_up_to(of_side)
        self._last = rows.last_of_keys(of_side)
        # The time of a deleted value is -1, and therefore never the larger time of both sides.
        times = np.where(rows.has_value, rows.times, -1)
        self._times = np.concatenate((times, np.array([time for _, time in stored], np.int64)))
        has_value = np.array([value is not None for value in self._stored_values], bool)
        self._has_value = np.concatenate((rows.has_value, has_value))

    @property
    def had_value(self) -> Mask:
        return self._has_value[self._places(self._before)]

    @property
    def has_value(self) -> Mask:
        return self._has_value[self._places(self._after)]

    @property
    def times(self) -> Times:
        """The time of the side's value after each row; -1 if the side has no value."""
        return self._times[self._places(self._after)]

    def before(self, chosen: Indices) -> pa.Array:
        """Return the value before each chosen row."""
        return self._values(self._before[chosen], chosen)

    def after(self, chosen: Indices) -> pa.Array:
        """Return the value after each chosen row."""
        return self._values(self._after[chosen], chosen)

    def changes(self) -> list[tuple[int, str | None, int]]:
        """For each key that the rows have changed, return its number, last value and last time."""
        keys = np.flatnonzero(self._last >= 0)
        last = self._last[keys]
        values = self._rows.columns["value"].take(pa.array(last)).to_pylist()
        return list(zip(keys.tolist(), values, self._times[last].tolist(), strict=True))

    def _places(self, indices: Indices) -> Indices:
        """Return places in an array that holds all rows' values, and then all states' values.

        The place of a row is its index. The index -1 means the state of the row's key.
        """
        return np.where(indices >= 0, indices, len(self._rows) + self._rows.key_numbers)

    def _values(self, indices: Indices, chosen: Indices) -> pa.Array:
        return take_or(
            self._rows.columns["value"],
            indices,
            self._stored_values,
            self._rows.key_numbers[chosen],
        )


def _where(chosen: Mask, values: pa.Array) -> pa.Array:
    """Return the values, with null in place of those that are not chosen."""
    return pc.if_else(pa.array(chosen), values, None)


class TableValue(msgspec.Struct, array_like=True):
    """The table's value for a key."""

    value: str | None = None


class StreamTableJoin(Operator[TableValue]):
    """Joins each record of a stream with the table's current value for its key.

    `mapped`: a row's key is computed by an expression, and the record's own key is in `foreign`. In
    a left join, records without a key get a null right side. `mapped_key` is the name of a third
    field of the results, with the key that was looked up.
    """

    state_type: Any = TableValue

    def __init__(self, how: How, *, mapped: bool = False, mapped_key: str | None = None) -> None:
        self.how = how
        self.mapped = mapped
        self.mapped_key = None if mapped_key is None else _json(mapped_key)

    def new_state(self) -> TableValue:
        return TableValue()

    def process(self, state: TableValue, row: Row, out: Output) -> None:
        # Only stream records send results. A change of the table affects only later stream records.
        if row.side == RIGHT:
            if row.key is None:
                out.count("null_key")
            elif not row.old:
                state.value = row.value
        # Kafka Streams drops stream records without a value; an inner join also drops records
        # without a key, because they match nothing.
        elif row.value is None or (row.key is None and self.how == "inner"):
            out.count("null_value" if row.key is not None else "null_key")
        elif state.value is not None or self.how == "left":
            key = row.foreign if self.mapped else row.key
            # The looked-up key has no window, but the record's own key may have a window.
            if self.mapped_key is None:
                more = ""
            else:
                more = f",{self.mapped_key}:{_json(row.key)}"
            value = joined(row.value, state.value, more)
            out.emit(key, value, row.time, window=row.window)

    def process_columns(
        self, states: KeyStates[TableValue], rows: KeyedRows, timeline: BatchTimeline | None
    ) -> Results:
        of_table = (rows.sides == RIGHT) & ~rows.is_old
        of_stream = rows.sides != RIGHT
        stored = [state.value for state in states]
        table_values = take_or(
            rows.columns["value"], rows.last_before(of_table), stored, rows.key_numbers
        )
        has_result = of_stream & rows.has_value
        if self.how == "inner":
            has_result &= validity(table_values)
        sent = np.flatnonzero(has_result)
        taken = pa.array(sent)
        more: tuple[str | pa.Array, ...] = ()
        if self.mapped_key is not None:
            keys = pa.array([_json(key) for key in rows.keys], pa.string())
            more = (f",{self.mapped_key}:", keys.take(pa.array(rows.key_numbers[sent])))
        values = joined_texts(rows.columns["value"].take(taken), table_values.take(taken), *more)
        last = rows.last_of_keys(of_table)
        changed = np.flatnonzero(last >= 0)
        last_values = rows.columns["value"].take(pa.array(last[changed])).to_pylist()
        for number, value in zip(changed.tolist(), last_values, strict=True):
            states[number].value = value
        dropped = {"null_value": np.flatnonzero(of_stream & ~rows.has_value)}
        if not self.mapped:
            return Results(sent, values, rows.times[sent], dropped=dropped)
        starts = np.asarray(rows.columns["window_start"].take(taken))
        ends = np.asarray(rows.columns["window_end"].take(taken))
        own_keys = rows.columns["foreign"].take(taken)
        return Results(
            sent, values, rows.times[sent], keys=own_keys, windows=(starts, ends), dropped=dropped
        )

    def is_empty(self, state: TableValue) -> bool:
        return state.value is None


def _json(text: str | None) -> str:
    return msgspec.json.encode(text).decode()
