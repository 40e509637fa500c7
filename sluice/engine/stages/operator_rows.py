"""One operator's rows in a batch. Sorts and divides them, and turns them into objects."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import repeat
from typing import Any, Self

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from sluice.engine.batch.accounting import boolean_mask
from sluice.engine.batch.row_schemas import (
    SORT_KEY,
    Position,
    ranks,
    sorted_indices,
    stable_order,
    taken,
)
from sluice.engine.batch.stream_time import BEFORE_ALL
from sluice.engine.stages.timeline import Timeline
from sluice.operators.base import Row
from sluice.operators.columns import KeyedRows, LazyColumns
from sluice.state.model import NO_WINDOW
from sluice.support.arrays import Indices, Mask, Times

COLUMNS = (
    "key",
    "value",
    "time",
    "side",
    "old",
    "before",
    "after",
    "window_start",
    "window_end",
    "foreign",
    "headers",
    *SORT_KEY,
    "undecided",
)
"""The columns that operators read, and those by which the task finds a record's outcome."""
_OF_OBJECTS = tuple(name for name in COLUMNS if name not in ("before", "after", "undecided"))
"""The columns from which objects are made."""
_ROWS_AT_ONCE = 1_000
"""Number of rows that become Python objects at once: few enough to be still in the CPU's cache when
they are processed."""
_KEYED_ROWS_AT_ONCE = 50_000
"""About this many rows of many keys are processed at once, and then freed together with their
states and results."""
_BEFORE_ALL = (BEFORE_ALL, BEFORE_ALL)


@dataclass(frozen=True)
class OperatorRows:
    """Rows of one operator, in the order in which the operator processes them."""

    columns: Mapping[str, pa.Array]
    """The columns of `COLUMNS`, without stream times."""
    stream_times: Mapping[str, Times]
    """The stream times `before` and `after` each row, and for a join also `left` and `right`; see
    `Row`."""
    _part_of: tuple[Self, Indices] | None = None
    """Set if these rows are a part of other rows, and each column is made when it is first read:
    the other rows, and the indices of these rows in them."""

    @classmethod
    def of(cls, batches: list[dict[str, pa.Array]], timeline: Timeline | None) -> Self:
        """Return the rows of these batches, unsorted.

        Takes the columns out of the batches, to free their memory early.

        `timeline` gives the stream times if the rows have none.
        """
        columns: dict[str, pa.Array] = {}
        for name in COLUMNS:
            columns[name] = pa.concat_arrays([batch[name] for batch in batches])
            for batch in batches:
                del batch[name]
        given: dict[str, Times] = {}
        for name in ("before", "after"):
            given[name] = np.asarray(pc.fill_null(columns.pop(name), BEFORE_ALL))
        if timeline is None:
            return cls(columns, given)
        position_columns = {name: columns[name] for name in ("side", *SORT_KEY)}
        return cls(columns, timeline.stream_times(pa.table(position_columns)))

    @classmethod
    def of_results(cls, emitted: pa.RecordBatch) -> Self:
        """Convert the results of an operator to rows of the operator that gets them directly."""
        columns: dict[str, pa.Array] = {}
        for name in COLUMNS:
            if name not in ("before", "after"):
                columns[name] = emitted.column(name)
        return cls(columns, {})

    def __len__(self) -> int:
        if self._part_of is None:
            return len(self.columns["key"])
        return len(self._part_of[1])

    def values_at(self, name: str, indices: Indices) -> pa.Array:
        """Return the values of a column at some rows, without making the whole column."""
        if self._part_of is None:
            return taken(self.columns[name], pa.array(indices))
        rows, places = self._part_of
        return taken(rows.columns[name], pa.array(places[indices]))

    def keys(self, side: int | None = None) -> list[str]:
        """Return the distinct keys of all rows, or of the rows of one side.

        The keys are sorted, because the shard stores neighbouring keys close to each other.
        """
        if side is None:
            texts = self.key_texts
        else:
            texts = _different_texts(
                self.columns["key"].filter(pc.equal(self.columns["side"], side))
            )
        different: list[str] = texts.to_pylist()
        return different

    @cached_property
    def key_texts(self) -> pa.Array:
        """The distinct keys of all rows, sorted."""
        return _different_texts(self.columns["key"])

    @property
    def sides(self) -> list[int]:
        """The numbers of the operator's inputs from which the rows come, sorted."""
        sides: list[int] = pc.unique(self.columns["side"]).sort().to_pylist()
        return sides

    def where(self, chosen: Mask) -> Self:
        """Return the chosen rows."""
        return self._take(np.flatnonzero(chosen))

    def part_where(self, chosen: Mask) -> Self:
        """Like `where`, but each column is made when it is first read."""
        indices = np.flatnonzero(chosen)
        if self._part_of is None:
            return self._part(indices)
        rows, places = self._part_of
        return rows._part(places[indices])

    def in_order(self) -> Self:
        """Return the rows sorted by position."""
        return self._take(self._order())

    def last_of_keys(self) -> Self:
        """Return the last row of each key, by position.

        Leaves out old values, and keeps all rows without a key.
        """
        order = self._order()
        codes = self.columns["key"].dictionary_encode()
        numbers = np.asarray(pc.fill_null(codes.indices, -1))[order]
        is_new = ~np.asarray(self.columns["old"].to_numpy(zero_copy_only=False))[order]
        of_keys = is_new & (numbers >= 0)
        last = np.full(len(codes.dictionary), -1)
        # If an index occurs several times, NumPy keeps the last value, which is the last row.
        last[numbers[of_keys]] = order[of_keys]
        return self._take(np.concatenate((last[last >= 0], order[numbers < 0])))

    def by_key(self) -> Iterator[tuple[KeyedRows | None, Self]]:
        """Yield the rows sorted by key and then by position, in parts with all rows of their keys.

        Yields each part as KeyedRows and as OperatorRows. The rows without a key come last, only as
        OperatorRows. Most operators read only few columns of their rows, so each column of a part
        is made when it is first read.
        """
        key_ranks = ranks(pa.chunked_array([self.columns["key"]]))
        order = self._order()
        order = order[stable_order(key_ranks[order])]
        sorted_ranks = key_ranks[order]
        starts = np.append(np.flatnonzero(np.diff(sorted_ranks, prepend=-1)), len(self))
        keyed_count = len(self) - self.columns["key"].null_count
        starts = starts[starts <= keyed_count]
        first = 0
        while first < len(starts) - 1:
            enough = np.searchsorted(starts, starts[first] + _KEYED_ROWS_AT_ONCE)
            end = min(max(int(enough), first + 1), len(starts) - 1)
            part = self._part(order[starts[first] : starts[end]])
            yield part.keyed(starts[first : end + 1] - starts[first]), part
            first = end
        if keyed_count < len(self):
            yield None, self._part(order[keyed_count:])

    def starts_of_keys(self) -> Indices:
        """Return the first index of each key in the rows sorted by key, and the number of rows."""
        keys = self.columns["key"]
        count = len(self)
        is_first = np.ones(count + 1, np.bool_)
        is_first[1:count] = boolean_mask(pc.not_equal(keys.slice(0, count - 1), keys.slice(1)))
        return np.flatnonzero(is_first)

    def keyed(self, starts: Indices) -> KeyedRows:
        """Return the sorted rows as KeyedRows. `starts` means the same as in KeyedRows."""
        keys = self.values_at("key", starts[:-1]).to_pylist()
        return KeyedRows(keys, starts, self.columns, self.stream_times)

    def _order(self) -> Indices:
        """Return the indices that sort the rows by position."""
        return sorted_indices(pa.table({name: self.columns[name] for name in SORT_KEY}))

    def _take(self, indices: Indices) -> Self:
        places = pa.array(indices)
        columns = {name: taken(column, places) for name, column in self.columns.items()}
        stream_times = {name: times[indices] for name, times in self.stream_times.items()}
        return type(self)(columns, stream_times)

    def _part(self, indices: Indices) -> Self:
        """Like `_take`, but each column is made when it is first read."""
        places = pa.array(indices)
        columns = LazyColumns(self.columns.keys(), lambda name: taken(self.columns[name], places))
        stream_times = LazyColumns(
            self.stream_times.keys(), lambda name: self.stream_times[name][indices]
        )
        return type(self)(columns, stream_times, (self, indices))

    def rows(self) -> Iterator[tuple[Position, Row]]:
        """Yield the rows as objects, each with its position."""
        for begin in range(0, len(self), _ROWS_AT_ONCE):
            columns: dict[str, list[Any]] = {}
            for name in _OF_OBJECTS:
                columns[name] = _values(self.columns[name].slice(begin, _ROWS_AT_ONCE))
            times: dict[str, list[int]] = {}
            for name, of_rows in self.stream_times.items():
                times[name] = of_rows[begin : begin + _ROWS_AT_ONCE].tolist()
            latest: Iterable[tuple[int, int]] = repeat(_BEFORE_ALL)
            if "left" in times:
                latest = zip(times["left"], times["right"], strict=True)
            positions = zip(columns["sequence"], columns["origin"], columns["path"], strict=True)
            rows = map(
                Row,
                columns["key"],
                columns["value"],
                columns["time"],
                times["before"],
                times["after"],
                columns["side"],
                columns["old"],
                self._windows(columns),
                latest,
                columns["foreign"],
                columns["headers"],
            )
            yield from zip(positions, rows, strict=True)

    @staticmethod
    def _windows(columns: Mapping[str, Sequence[Any]]) -> Iterable[tuple[int, int] | None]:
        starts, ends = columns["window_start"], columns["window_end"]
        if starts.count(NO_WINDOW) == len(starts):
            return repeat(None)
        windows: list[tuple[int, int] | None] = []
        for window in zip(starts, ends, strict=True):
            windows.append(None if window[0] == NO_WINDOW else window)
        return windows


def _different_texts(column: pa.Array) -> pa.Array:
    """Return the distinct texts of a column, sorted, without null."""
    return pc.drop_null(pc.unique(column)).sort()


def _values(column: pa.Array) -> list[Any]:
    """Return the column's values.

    A column of nulls, such as the headers in most batches, is not converted one by one.
    """
    count = len(column)
    values: list[Any] = [None] * count
    if column.null_count < count:
        values = column.to_pylist()
    return values
