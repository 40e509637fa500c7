"""Finds all results of a foreign-key join at once, for the rows of many foreign keys.

A left row *stays* at a foreign key until a newer row with the same primary key replaces or deletes
it. Its stay begins with its own arrival in the batch; if it arrived in an earlier batch, its stay
begins with the batch. A change of the right row is joined with all left rows that stay at the key
at that moment.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from sluice.operators.base import MOVED, RIGHT
from sluice.operators.columns import KeyedRows, Results, pairs_of_ranges, take_or, validity
from sluice.operators.joins.by_key import joined_texts
from sluice.operators.joins.foreign_key_state import Referred
from sluice.support.arrays import Indices, Mask, Times


@dataclass(frozen=True)
class _LeftRows:
    """Left rows and changes of left rows, unsorted. `_LeftChanges` has the same columns."""

    keys: Indices
    rows: Indices
    adds: Mask
    own_keys: pa.Array
    values: pa.Array

    @classmethod
    def of_states(cls, states: Sequence[Referred], rows: KeyedRows) -> Self:
        """Return the left rows in the states of the foreign keys."""
        keys: list[int] = []
        own_keys: list[str] = []
        values: list[str] = []
        for number, state in enumerate(states):
            keys += [number] * len(state.left)
            own_keys += state.left.keys()
            values += state.left.values()
        numbers = np.array(keys, np.intp)
        return cls(
            numbers,
            rows.starts[numbers] - 1,
            np.ones(len(numbers), np.bool_),
            pa.array(own_keys, pa.string()),
            pa.array(values, pa.string()),
        )

    @classmethod
    def of_rows(cls, rows: KeyedRows, is_left: Mask) -> Self:
        """Return the changes made by the rows of the mask `is_left`."""
        changing = np.flatnonzero(is_left & (rows.is_old | rows.has_value))
        taken = pa.array(changing)
        return cls(
            rows.key_numbers[changing],
            changing,
            ~rows.is_old[changing],
            rows.columns["foreign"].take(taken),
            rows.columns["value"].take(taken),
        )


@dataclass(frozen=True)
class _LeftChanges:
    """The changes of the left rows of all foreign keys, sorted by foreign key, own key and order.

    For a left row that was in a state before the batch, `rows` has the index before the first row
    of its foreign key.
    """

    keys: Indices
    """The number of each change's foreign key."""
    rows: Indices
    """The index of the row that makes the change."""
    adds: Mask
    """Whether the change adds or replaces the left row. Other changes remove it."""
    ends: Indices
    """The index of the next change of the same left row, or else the index after the foreign key's
    last row."""
    own_keys: pa.Array
    """The left row's own key."""
    ranks: Indices
    """Numbers with the same order as `own_keys`."""
    values: pa.Array
    """The values of the left rows."""

    @classmethod
    def of(cls, states: Sequence[Referred], rows: KeyedRows, is_left: Mask) -> Self:
        """Return the stored left rows, and the changes made by the rows of the mask `is_left`."""
        stored, changing = _LeftRows.of_states(states, rows), _LeftRows.of_rows(rows, is_left)
        keys = np.concatenate((stored.keys, changing.keys))
        changed_by = np.concatenate((stored.rows, changing.rows))
        adds = np.concatenate((stored.adds, changing.adds))
        own_keys = pa.concat_arrays([stored.own_keys, changing.own_keys])
        values = pa.concat_arrays([stored.values, changing.values])
        ranks = np.asarray(pc.rank(own_keys, tiebreaker="dense"), np.intp)
        order = np.lexsort((changed_by, ranks, keys))
        keys, ranks, changed_by = keys[order], ranks[order], changed_by[order]
        ends = rows.starts[keys + 1]
        has_next = (keys[1:] == keys[:-1]) & (ranks[1:] == ranks[:-1])
        ends[:-1][has_next] = changed_by[1:][has_next]
        in_order = pa.array(order)
        return cls(
            keys,
            changed_by,
            adds[order],
            ends,
            own_keys.take(in_order),
            ranks,
            values.take(in_order),
        )

    def stays_at(self, right_rows: Indices) -> tuple[Indices, Indices] | None:
        """Return pairs: a change that adds a left row, and a right row that comes while it stays.

        Returns None if there are too many pairs.
        """
        first = np.searchsorted(right_rows, self.rows, "right")
        end = np.where(self.adds, np.searchsorted(right_rows, self.ends), first)
        pairs = pairs_of_ranges(first, end)
        if pairs is None:
            return None
        return pairs[0], right_rows[pairs[1]]

    def store(self, states: Sequence[Referred], rows: KeyedRows) -> None:
        """Change the left rows in the states of their foreign keys."""
        is_last = self.ends == rows.starts[self.keys + 1]
        changed = np.flatnonzero(is_last & (self.rows >= rows.starts[self.keys]))
        # A state keeps its left rows in the order of their last changes.
        changed = changed[np.argsort(self.rows[changed])]
        own_keys = self.own_keys.take(pa.array(changed)).to_pylist()
        values = self.values.take(pa.array(changed)).to_pylist()
        numbers, adds = self.keys[changed].tolist(), self.adds[changed].tolist()
        for number, own_key, value, is_added in zip(numbers, own_keys, values, adds, strict=True):
            if is_added:
                states[number].put_left(own_key, value)
            else:
                states[number].left.pop(own_key, None)


@dataclass(frozen=True)
class _RightBefore:
    """For each row, the latest preceding right-hand row with the same foreign key."""

    values: pa.Array
    times: Times
    """The times of the right rows; -1 where there is no right row."""

    @classmethod
    def of(cls, states: Sequence[Referred], rows: KeyedRows, is_right: Mask) -> Self:
        """Return the right row before each row; `is_right` marks the changes of right rows."""
        last = rows.last_before(is_right)
        stored = [state.right for state in states]
        values = take_or(rows.columns["value"], last, stored, rows.key_numbers)
        times_stored = np.array([state.right_time for state in states], np.int64)
        times = np.where(last >= 0, rows.times[last], times_stored[rows.key_numbers])
        return cls(values, np.where(validity(values), times, -1))


def join_columns(
    states: Sequence[Referred], rows: KeyedRows, *, is_left_join: bool, right_filtered: bool
) -> Results | None:
    """Join all rows, and change the `states` of their foreign keys in place.

    Returns None, and changes no state, if the rows have to be processed one by one.
    """
    is_right = (rows.sides == RIGHT) & ~rows.is_old
    has_own_key = validity(rows.columns["foreign"])
    is_left = (rows.sides != RIGHT) & has_own_key
    changes, before = (
        _LeftChanges.of(states, rows, is_left),
        _RightBefore.of(states, rows, is_right),
    )
    had_right = validity(before.values)
    # `ForeignKeyJoin.process` has the same rules, for a single row.
    if right_filtered:
        joins_left = is_right & (rows.has_value | had_right)
    else:
        joins_left = is_right
    pairs = changes.stays_at(np.flatnonzero(joins_left))
    if pairs is None:
        return None
    of_left = _results_of_left(rows, before, is_left, had_right, is_left_join=is_left_join)
    of_right = _results_of_right(rows, changes, *pairs, is_left_join=is_left_join)
    # Results of the same right row are sorted by the left rows' own keys.
    ranks = np.concatenate((np.zeros(len(of_left.rows), np.intp), changes.ranks[pairs[0]]))
    causes = np.concatenate((of_left.rows, of_right.rows))
    order = np.lexsort((ranks, causes))
    changes.store(states, rows)
    _store_right(states, rows, is_right)
    return Results(
        causes[order],
        pa.concat_arrays([of_left.values, of_right.values]).take(pa.array(order)),
        np.concatenate((of_left.times, of_right.times))[order],
        keys=pa.concat_arrays([of_left.keys, of_right.keys]).take(pa.array(order)),
        dropped={"null_key": np.flatnonzero((rows.sides != RIGHT) & ~has_own_key)},
    )


def _results_of_left(
    rows: KeyedRows, before: _RightBefore, is_left: Mask, had_right: Mask, *, is_left_join: bool
) -> Results:
    """Return the results of the changes of left rows."""
    has_result = is_left & ~rows.is_old & rows.has_value & (had_right | is_left_join)
    is_moved = is_left & (rows.sides == MOVED)
    # For a deleted left row, the row with the new value sends the tombstone in a left join. In an
    # inner join, the row with the old value sends the tombstone.
    sends_tombstone = np.where(
        rows.is_old, rows.has_value & (not is_left_join), rows.has_value | is_left_join
    )
    sent = np.flatnonzero(has_result | (is_moved & sends_tombstone))
    taken = pa.array(sent)
    joined = joined_texts(rows.columns["value"].take(taken), before.values.take(taken))
    values = pc.if_else(pa.array(has_result[sent]), joined, None)
    times = np.where(rows.is_old | rows.has_value, np.maximum(rows.times, before.times), rows.times)
    return Results(sent, values, times[sent], keys=rows.columns["foreign"].take(taken))


def _results_of_right(
    rows: KeyedRows,
    changes: _LeftChanges,
    stays: Indices,
    right_rows: Indices,
    *,
    is_left_join: bool,
) -> Results:
    """Return a result for each pair of a changed right row and a left row that stays at its key."""
    left, right = pa.array(stays), pa.array(right_rows)
    joined = joined_texts(changes.values.take(left), rows.columns["value"].take(right))
    values = pc.if_else(pa.array(rows.has_value[right_rows] | is_left_join), joined, None)
    return Results(right_rows, values, rows.times[right_rows], keys=changes.own_keys.take(left))


def _store_right(states: Sequence[Referred], rows: KeyedRows, is_right: Mask) -> None:
    """Change the right rows in the states of their keys."""
    last = rows.last_of_keys(is_right)
    changed = np.flatnonzero(last >= 0)
    values, times = (
        rows.columns["value"].take(pa.array(last[changed])).to_pylist(),
        rows.times[last[changed]].tolist(),
    )
    for number, value, time in zip(changed.tolist(), values, times, strict=True):
        states[number].put_right(value, time)
