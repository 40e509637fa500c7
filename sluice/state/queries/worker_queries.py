"""The queries that a worker executes over its shard. A worker on another host gets them as JSON."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Generic, TypeAlias, TypeVar

import msgspec

from sluice.state.model import NO_WINDOW, EntryId, StateRow
from sluice.state.queries.aggregates import Aggregates, Group, largest, number_at
from sluice.state.queries.entries import (
    Entry,
    EntryWithHeaders,
    entry_with_headers,
    store_value,
)
from sluice.state.shard.local_shard import FEW_KEYS, LocalShard
from sluice.state.shard.ranges import RowRange
from sluice.state.time_limits import check_deadline

T = TypeVar("T")

_PAGE = 5_000
"""How many state rows are read at once. The query's time limit is checked after each read."""


class Query(msgspec.Struct, Generic[T], frozen=True, tag=True):
    """A query over the values in `store_column` of one group's state rows, as of a batch."""

    group_id: int
    store_column: int
    as_of: int

    @property
    def is_quick(self) -> bool:
        """Whether the query takes only microseconds in a SQLite file."""
        return False

    def execute(self, shard: LocalShard) -> T:
        """Return the result for one shard. Raise StateError if the shard cannot be read."""
        raise NotImplementedError

    def entries(self, state_rows: list[StateRow], *, with_headers: bool = False) -> list[Entry]:
        """Return the entries from the state rows that hold a value of the store.

        `with_headers`: whether the store keeps headers.
        """
        entries: list[Entry] = []
        if with_headers:
            for row in state_rows:
                if (entry := entry_with_headers(row)) is not None:
                    entries.append(entry)
            return entries
        for row in state_rows:
            value = store_value(self.store_column, row.value)
            if value is not None:
                entries.append(Entry(row.key, row.window_start, row.window_end, value))
        return entries


class Value(Query[msgspec.Raw | None], frozen=True, tag=True):
    """The value of one key."""

    key: str

    @property
    def is_quick(self) -> bool:
        return True

    def execute(self, shard: LocalShard) -> msgspec.Raw | None:
        return store_value(self.store_column, shard.get(self.group_id, self.key, self.as_of))


class Values(Query[dict[str, msgspec.Raw]], frozen=True, tag=True):
    """The values of several keys. Omits keys without a value."""

    keys: list[str]

    @property
    def is_quick(self) -> bool:
        return len(self.keys) <= FEW_KEYS

    def execute(self, shard: LocalShard) -> dict[str, msgspec.Raw]:
        values: dict[str, msgspec.Raw] = {}
        for key, row in shard.get_many(self.group_id, self.keys, self.as_of).items():
            value = store_value(self.store_column, row)
            if value is not None:
                values[key] = value
        return values


class WithHeaders(Query[list[Entry]], frozen=True, tag=True):
    """The entries of several keys of a store that keeps headers. Omits keys without a value."""

    keys: list[str]

    @property
    def is_quick(self) -> bool:
        return len(self.keys) <= FEW_KEYS

    def execute(self, shard: LocalShard) -> list[Entry]:
        rows = shard.get_many(self.group_id, self.keys, self.as_of)
        state_rows: list[StateRow] = []
        for key, row in rows.items():
            state_rows.append(StateRow(self.group_id, key, NO_WINDOW, NO_WINDOW, row))
        return self.entries(state_rows, with_headers=True)


class Scan(Query[list[Entry]], frozen=True, tag=True):
    """A page of entries sorted by key and window, starting after `after`."""

    within: RowRange
    after: EntryId | None
    limit: int
    with_headers: bool = False
    """Whether the store keeps headers."""

    def execute(self, shard: LocalShard) -> list[Entry]:
        """Read the page.

        State rows without a value of this store do not count towards the limit.
        """
        entries: list[Entry] = []
        size = min(self.limit, _PAGE)
        pages = _pages(self, shard, self.within, self.after, size, with_headers=self.with_headers)
        for page in pages:
            entries += page[: self.limit - len(entries)]
            if len(entries) == self.limit:
                break
        return entries


class Count(Query[int], frozen=True, tag=True):
    within: RowRange

    def execute(self, shard: LocalShard) -> int:
        if self.store_column == 0:
            # Only the values of the first store can be counted by the database: each is at the
            # beginning of a row's JSON array, where SQL finds it.
            return shard.count(self.group_id, self.as_of, self.within)
        return sum(len(page) for page in _pages(self, shard, self.within))


class Aggregate(Query[list[Group]], frozen=True, tag=True):
    """The aggregates of a field per group."""

    within: RowRange
    field: str
    group_by: str

    def execute(self, shard: LocalShard) -> list[Group]:
        """Aggregate the entries.

        Raise QueryError if a field does not hold a number or there are too many groups.
        """
        aggregates = Aggregates(self.field, self.group_by)
        for page in _pages(self, shard, self.within):
            aggregates.add(page)
        return aggregates.groups()


class Top(Query[list[Entry]], frozen=True, tag=True):
    """The entries with the largest or smallest numbers in a field."""

    within: RowRange
    field: str
    limit: int
    smallest: bool
    with_headers: bool = False
    """Whether the store keeps headers."""

    def execute(self, shard: LocalShard) -> list[Entry]:
        """Return the entries that have the field, the largest or the smallest number first.

        Raise QueryError if a field is not a number.
        """
        top: list[Entry] = []
        for page in _pages(self, shard, self.within, with_headers=self.with_headers):
            candidates = [entry for entry in page if number_at(entry, self.field) is not None]
            top = largest(top + candidates, self.field, self.limit, smallest=self.smallest)
        return top


class Changed(Query[list[EntryId]], frozen=True, tag=True):
    """The keys and windows of the rows that changed after batch `since`, up to `as_of`."""

    since: int
    limit: int

    def execute(self, shard: LocalShard) -> list[EntryId]:
        return shard.changed_keys(self.group_id, self.since, self.as_of, self.limit)


AnyQuery: TypeAlias = Value | Values | WithHeaders | Scan | Count | Aggregate | Top | Changed

RESULTS: dict[str, msgspec.json.Decoder[object]] = {
    "Value": msgspec.json.Decoder(msgspec.Raw | None),
    "Values": msgspec.json.Decoder(dict[str, msgspec.Raw]),
    "WithHeaders": msgspec.json.Decoder(list[EntryWithHeaders]),
    "Scan": msgspec.json.Decoder(list[EntryWithHeaders]),
    "Count": msgspec.json.Decoder(int),
    "Aggregate": msgspec.json.Decoder(list[Group]),
    "Top": msgspec.json.Decoder(list[EntryWithHeaders]),
    "Changed": msgspec.json.Decoder(list[EntryId]),
}
"""Name of a query's class → decoder of its result from a state server."""


def _pages(
    query: Query[T],
    shard: LocalShard,
    within: RowRange,
    after: EntryId | None = None,
    size: int = _PAGE,
    *,
    with_headers: bool = False,
) -> Iterator[list[Entry]]:
    """Yield all entries of the range, page by page."""
    while True:
        state_rows = shard.scan(query.group_id, query.as_of, within, after=after, limit=size)
        yield query.entries(state_rows, with_headers=with_headers)
        if len(state_rows) < size:
            return
        after = state_rows[-1].entry_id
        check_deadline()
