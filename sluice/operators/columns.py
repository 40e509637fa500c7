"""Holds rows and results as columns, for operators that process the rows of many keys at once."""

from __future__ import annotations

from collections.abc import (
    Callable,
    Collection,
    Iterator,
    Mapping,
    MutableMapping,
    Sequence,
)
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Protocol, TypeVar, overload

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from sluice.support.arrays import Indices, Mask, Times

T = TypeVar("T")


class LazyColumns(Mapping[str, T]):
    """Columns, each of which is made when it is first read."""

    def __init__(self, names: Collection[str], make: Callable[[str], T]) -> None:
        self._names = names
        self._make = make
        self._made: dict[str, T] = {}

    def __getitem__(self, name: str) -> T:
        if name not in self._made:
            if name not in self._names:
                raise KeyError(name)
            self._made[name] = self._make(name)
        return self._made[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)


class BatchTimeline(Protocol):
    """The stream time of an operator in a batch. Results that wait for stream time need it."""

    closed_before: int
    """The stream time that all partitions had reached when the batch began."""
    closed_after: int
    """The stream time that all partitions have reached when the batch ends."""

    def advances_until(self, due: Times) -> Times:
        """Return, for each time in `due`, the number of advances until stream time reaches it."""


@dataclass(frozen=True)
class KeyedRows:
    """An operator's rows of many keys.

    The rows of a key follow each other in order, and no key is null.
    """

    keys: Sequence[str]
    """The different keys."""
    starts: Indices
    """The index of each key's first row. The last element is the number of all rows."""
    columns: Mapping[str, pa.Array]
    """The columns `key`, `value`, `foreign`, `time`, `side`, `old` and `headers` (see `Row`),
    `window_start` and `window_end` with the bounds of `Row.window`, and the columns `sequence` and
    `origin` of the rows' positions."""
    stream_times: Mapping[str, Times]
    """`before` and `after` → for each row, the stream time before and after the row. In a join of
    two streams also `left` and `right` → for each row, the side's largest event time so far."""

    def __len__(self) -> int:
        return int(self.starts[-1])

    @cached_property
    def key_numbers(self) -> Indices:
        """For each row, the index of its key in `keys`."""
        return np.repeat(np.arange(len(self.keys)), np.diff(self.starts))

    @cached_property
    def key_texts(self) -> pa.Array:
        """The different keys, as a column."""
        return self.columns["key"].take(pa.array(self.starts[:-1]))

    @cached_property
    def times(self) -> Times:
        return np.asarray(self.columns["time"].to_numpy())

    @cached_property
    def sides(self) -> npt.NDArray[np.int32]:
        return np.asarray(self.columns["side"].to_numpy())

    @cached_property
    def is_old(self) -> Mask:
        return np.asarray(self.columns["old"].to_numpy(zero_copy_only=False))

    @cached_property
    def has_value(self) -> Mask:
        return validity(self.columns["value"])

    @cached_property
    def is_replaced(self) -> Mask:
        """Mask of old values that the next row of the same key replaces (see `replaced_values`)."""
        of_last_rows = np.zeros(len(self), np.bool_)
        of_last_rows[self.starts[1:] - 1] = True
        return replaced_values(self.columns, self.is_old) & ~of_last_rows

    def last_up_to(self, chosen: Mask) -> Indices:
        """Return, for each row, the last chosen row of its key up to this row; -1 for none."""
        last = np.maximum.accumulate(np.where(chosen, np.arange(len(self)), -1))
        return np.where(last >= self.starts[self.key_numbers], last, -1)

    def last_before(self, chosen: Mask) -> Indices:
        """Return, for each row, the last chosen row of its key before this row; -1 for none."""
        last = np.concatenate(
            ([-1], np.maximum.accumulate(np.where(chosen, np.arange(len(self)), -1))[:-1])
        )
        return np.where(last >= self.starts[self.key_numbers], last, -1)

    def last_of_keys(self, chosen: Mask) -> Indices:
        """Return, for each key, the index of its last chosen row; -1 for none."""
        return self.last_up_to(chosen)[self.starts[1:] - 1]

    def of_keys(self, chosen: Mask) -> tuple[KeyedRows, Indices]:
        """Return the rows of the chosen keys, and the index of each of these rows in `self`."""
        indices = np.flatnonzero(chosen[self.key_numbers])
        places = pa.array(indices)
        keys = [self.keys[number] for number in np.flatnonzero(chosen).tolist()]
        starts = np.append(0, np.cumsum(np.diff(self.starts)[chosen]))
        columns = LazyColumns(self.columns.keys(), lambda name: self.columns[name].take(places))
        stream_times = LazyColumns(
            self.stream_times.keys(), lambda name: self.stream_times[name][indices]
        )
        return KeyedRows(keys, starts, columns, stream_times), indices


NO_ROWS: Indices = np.array([], np.intp)


@dataclass(frozen=True)
class ReleasedResults:
    """Results that are sent because stream time has advanced."""

    key_texts: pa.Array
    """The texts of the keys, by number."""
    keys: Indices
    """The number of each result's key."""
    due: Times
    """The stream time at which each result is sent."""
    ranks: Times
    """The rank of each result (see `Output.emit`)."""
    numbers: Indices
    """The number of each result among the results of its key that are due at the same time."""
    times: Times
    values: pa.Array
    windows: tuple[Times, Times] | None = None
    """The start and the end of each result's window; None without windows."""
    headers: pa.Array | None = None
    """The headers of each result, as JSON; None if each result has the headers of the record that
    has advanced stream time."""

    def texts_of_keys(self) -> pa.Array:
        """Return the text of each result's key."""
        return self.key_texts.take(pa.array(self.keys))


@dataclass(frozen=True)
class Results:
    """The effects of the rows of many keys: results in order, and rows without results."""

    rows: Indices
    """The index of the row that has caused each result, ascending."""
    values: pa.Array
    times: Times
    old: Mask | None = None
    """Mask of the results that are a table's old values; None if no result is an old value."""
    keys: pa.Array | None = None
    """None if each result has the key of its row."""
    outputs: pa.Array | None = None
    """The name of each result's output; None if all results go to the default output."""
    headers: pa.Array | None = None
    """The headers of each result, as JSON; None if each result has the headers of its row."""
    windows: tuple[Times, Times] | None = None
    """The start and the end of each result's window; None without windows."""
    dropped: Mapping[str, Indices] = field(default_factory=dict)
    """Reason → the indices of the dropped rows. A row is late once for each window for which it is
    late."""
    late: Indices = field(default_factory=lambda: NO_ROWS)
    """The indices of the rows that are late for all of their windows."""
    released: ReleasedResults | None = None
    """The results that become due in this batch, if they wait for stream time."""
    left_over: Mask | None = None
    """Mask of the rows that have to be processed one by one; None if there are none."""

    def of_rows(self, indices: Indices) -> Results:
        """Return the results with other row numbers: the row `n` becomes the row `indices[n]`."""
        dropped: dict[str, Indices] = {}
        for reason, rows in self.dropped.items():
            dropped[reason] = indices[rows]
        return replace(self, rows=indices[self.rows], dropped=dropped, late=indices[self.late])


S = TypeVar("S")


class KeyStates(Sequence[S]):
    """The states of many keys, by the numbers of the keys.

    If a key has no state, its state is made when it is first read. In a batch with many keys, most
    keys of a join or of short windows have no state, neither before the batch nor after it.
    """

    def __init__(
        self, keys: Sequence[str], states: MutableMapping[str, S], new_state: Callable[[], S]
    ) -> None:
        """Wrap `states`, which has key → state; new states are added to it."""
        self._keys = keys
        self._states = states
        self._new_state = new_state

    def __len__(self) -> int:
        return len(self._keys)

    @overload
    def __getitem__(self, at: int) -> S: ...
    @overload
    def __getitem__(self, at: slice) -> list[S]: ...
    def __getitem__(self, at: int | slice) -> S | list[S]:
        if isinstance(at, slice):
            return [self._state(key) for key in self._keys[at]]
        # These lines repeat `_state`, because calling `_state` would take twice as long.
        key = self._keys[at]
        state = self._states.get(key)
        if state is None:
            self._states[key] = state = self._new_state()
        return state

    def __iter__(self) -> Iterator[S]:
        return map(self._state, self._keys)

    def of_keys(self, keys: Sequence[str]) -> KeyStates[S]:
        """Return the states of some of the keys."""
        return KeyStates(keys, self._states, self._new_state)

    def existing(self) -> Iterator[tuple[int, S]]:
        """Return the numbers of the keys that have a state, and their states."""
        states = self._states
        return ((number, states[key]) for number, key in enumerate(self._keys) if key in states)

    def _state(self, key: str) -> S:
        state = self._states.get(key)
        if state is None:
            self._states[key] = state = self._new_state()
        return state


class RowFailedError(Exception):
    """A row has failed.

    To find the row for which an author's code fails, process the rows one by one.
    """


def validity(column: pa.Array) -> Mask:
    """Return a mask of the values that are not null."""
    return np.asarray(column.is_valid().to_numpy(zero_copy_only=False))


CHANGE_OF_ROW = ("sequence", "origin", "foreign")
"""The columns that identify a change of a table's row, for `replaced_values`."""


def replaced_values(columns: Mapping[str, pa.Array | pa.ChunkedArray], is_old: Mask) -> Mask:
    """Return a mask of the old values that the next row replaces.

    The next row must belong to the same change of a table row.
    """
    if not len(is_old):
        return is_old
    is_same = is_old[:-1] & ~is_old[1:]
    for name in CHANGE_OF_ROW:
        this, following = columns[name].slice(0, len(is_old) - 1), columns[name].slice(1)
        both_null = pc.and_(pc.is_null(this), pc.is_null(following))
        is_same &= np.asarray(
            pc.fill_null(pc.equal(this, following), both_null).to_numpy(zero_copy_only=False)
        )
    return np.append(is_same, False)


def take_or(
    column: pa.Array, indices: Indices, others: Sequence[Any], other_numbers: Indices
) -> pa.Array:
    """Return, for each index, the column's value at this index.

    If the index is -1, the value comes from `others`, at the index that `other_numbers` gives.
    """
    together = pa.concat_arrays([column, pa.array(others, column.type)])
    return together.take(pa.array(np.where(indices >= 0, indices, len(column) + other_numbers)))


_MOST_PAIRS = 2_000_000


def pairs_of_ranges(first: Indices, end: Indices) -> tuple[Indices, Indices] | None:
    """For all ranges, return pairs of the range's number and an index in the range.

    A range may end before its first index. Returns None if the pairs would need too much memory.
    """
    counts = np.maximum(end - first, 0)
    total = int(counts.sum())
    if total > _MOST_PAIRS:
        return None
    offsets = np.arange(total) - np.repeat(np.cumsum(counts) - counts, counts)
    return np.repeat(np.arange(len(counts)), counts), np.repeat(first, counts) + offsets


def with_old_values(new: Results, old_values: pa.Array, has_old: Mask) -> Results:
    """Insert old values before the results that replace them.

    `old_values` and `has_old` have an element for each result; `has_old` is the mask of the results
    that have an old value.
    """
    count = len(new.rows)
    replacing = np.flatnonzero(has_old)
    # Below, `concat_arrays` puts all old values after all new values. `order` moves each old value
    # to the place before its new value.
    order = np.argsort(np.concatenate((2 * np.arange(count) + 1, 2 * replacing)))
    values = pa.concat_arrays([new.values, old_values.take(pa.array(replacing))]).take(
        pa.array(order)
    )
    result_numbers = np.concatenate((np.arange(count), replacing))[order]
    return Results(new.rows[result_numbers], values, new.times[result_numbers], old=order >= count)
