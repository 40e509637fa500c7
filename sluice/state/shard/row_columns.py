"""State rows as columns: lists of Python values, as databases take them.

A list for each column takes a fraction of the time of a tuple for each row.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from typing import Self

import msgspec

from sluice.state.shard.row_tuples import DigestedRow, RowId


class RowIds(msgspec.Struct, frozen=True, array_like=True):
    """The ids of the state rows of a page, in lists of equal length."""

    group_ids: list[int]
    keys: list[str]
    window_starts: list[int]
    window_ends: list[int]

    def __post_init__(self) -> None:
        # A state server gets these lists from its clients, so they may be wrong.
        _require_equal_lengths(self.group_ids, self.keys, self.window_starts, self.window_ends)

    def __len__(self) -> int:
        return len(self.keys)

    def __iter__(self) -> Iterator[RowId]:
        return zip(self.group_ids, self.keys, self.window_starts, self.window_ends, strict=True)

    def pairs(self) -> Iterator[tuple[int, str]]:
        """Yield the group and the key of each row."""
        return zip(self.group_ids, self.keys, strict=True)

    def at(self, places: Sequence[int]) -> Self:
        """Return the ids at these places in the page."""
        return type(self)(
            [self.group_ids[place] for place in places],
            [self.keys[place] for place in places],
            [self.window_starts[place] for place in places],
            [self.window_ends[place] for place in places],
        )


class RowColumns(msgspec.Struct, frozen=True, array_like=True):
    """A page of state rows with their digests. The lists are of equal length."""

    ids: RowIds
    values: list[str | None]
    """None for a tombstone."""
    digests: list[int]
    """The digest of a tombstone is 0."""

    def __post_init__(self) -> None:
        _require_equal_lengths(self.ids.keys, self.values, self.digests)

    def __len__(self) -> int:
        return len(self.values)

    def __iter__(self) -> Iterator[DigestedRow]:
        ids = self.ids
        return zip(
            ids.group_ids,
            ids.keys,
            ids.window_starts,
            ids.window_ends,
            self.values,
            self.digests,
            strict=True,
        )

    def with_needed_tombstones(self, stored: Collection[int]) -> Self:
        """Return the page without the tombstones of rows that the shard does not have.

        `stored` are the places in the page of the rows that the shard has.
        """
        if None not in self.values:
            return self
        places = [
            place for place, value in enumerate(self.values) if value is not None or place in stored
        ]
        return type(self)(
            self.ids.at(places),
            [self.values[place] for place in places],
            [self.digests[place] for place in places],
        )


def _require_equal_lengths(*columns: Sequence[object]) -> None:
    if len({len(column) for column in columns}) > 1:
        raise ValueError("The columns of a page differ in length.")
