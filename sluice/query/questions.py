"""What can be asked of one worker: values that travel as JSON, each with its own way to be answered from a shard."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Generic, TypeAlias, TypeVar

import msgspec

from sluice.query.answers import Entry, store_column
from sluice.query.combine import Group, Groups, figure, largest
from sluice.state.deadlines import demand_time
from sluice.state.model import StateRow
from sluice.state.shard.ranges import Range
from sluice.state.shard.shard import FEW_KEYS, Shard

T = TypeVar("T")

QUERY_SECONDS = 10.0
"""How long a question to a worker may take, from when it is asked: what waits for its turn waits within it."""

_PAGE = 5_000


class Question(msgspec.Struct, Generic[T], frozen=True, tag=True):
    """One question about the value in `slot` of the state rows of one group, at batch `as_of`."""

    group_id: int
    store_column: int
    as_of: int

    @property
    def is_quick(self) -> bool:
        """Whether it takes a few microseconds in a shard that is a file."""
        return False

    def answer(self, shard: Shard) -> T:
        """Look it up; StateError if the shard cannot be read."""
        raise NotImplementedError

    def entries(self, state_rows: list[StateRow]) -> list[Entry]:
        """The state rows that hold a value of the store."""
        return [
            Entry(one.key, one.window_start, one.window_end, value)
            for one in state_rows
            if (value := store_column(self.store_column, one.value)) is not None
        ]


class Value(Question[msgspec.Raw | None], frozen=True, tag=True):
    """The value of one key."""

    key: str

    @property
    def is_quick(self) -> bool:
        """It is."""
        return True

    def answer(self, shard: Shard) -> msgspec.Raw | None:
        """Look it up."""
        return store_column(self.store_column, shard.get(self.group_id, self.key, self.as_of))


class Values(Question[dict[str, msgspec.Raw]], frozen=True, tag=True):
    """The values of several keys; keys without one are left out."""

    keys: list[str]

    @property
    def is_quick(self) -> bool:
        """As long as there are few keys."""
        return len(self.keys) <= FEW_KEYS

    def answer(self, shard: Shard) -> dict[str, msgspec.Raw]:
        """Look them up."""
        found = shard.get_many(self.group_id, self.keys, self.as_of)
        return {
            key: value for key, text in found.items() if (value := store_column(self.store_column, text)) is not None
        }


class Scan(Question[list[Entry]], frozen=True, tag=True):
    """A page of entries, sorted by key and window start, from right after the key and window start `after`."""

    within: Range
    after: tuple[str, int] | None
    limit: int

    def answer(self, shard: Shard) -> list[Entry]:
        """Read the page; entries without a value of the store do not count for the limit."""
        found: list[Entry] = []
        for page in _pages(self, shard, self.within, self.after, min(self.limit, _PAGE)):
            found += page[: self.limit - len(found)]
            if len(found) == self.limit:
                break
        return found


class Count(Question[int], frozen=True, tag=True):
    """How many entries there are."""

    within: Range

    def answer(self, shard: Shard) -> int:
        """Count them."""
        if self.store_column == 0:
            return shard.count(self.group_id, self.as_of, self.within)
        return sum(len(page) for page in _pages(self, shard, self.within))


class Combine(Question[list[Group]], frozen=True, tag=True):
    """The entries' figures, added up by group."""

    within: Range
    field: str
    group_by: str

    def answer(self, shard: Shard) -> list[Group]:
        """Add them up; QueryError if a field holds no number, or there are too many groups."""
        groups = Groups(self.field, self.group_by)
        for page in _pages(self, shard, self.within):
            groups.add(page)
        return groups.found()


class Top(Question[list[Entry]], frozen=True, tag=True):
    """The entries with the largest figures, or with the smallest."""

    within: Range
    field: str
    limit: int
    smallest: bool

    def answer(self, shard: Shard) -> list[Entry]:
        """Find them, the first first; entries without the field are left out. QueryError if it holds no number."""
        found: list[Entry] = []
        for page in _pages(self, shard, self.within):
            some = [one for one in page if figure(one, self.field) is not None]
            found = largest(found + some, self.field, self.limit, smallest=self.smallest)
        return found


class Changed(Question[list[tuple[str, int]]], frozen=True, tag=True):
    """Keys and window starts that were changed by the batches after `since`, up to `as_of`, in order."""

    since: int
    limit: int

    def answer(self, shard: Shard) -> list[tuple[str, int]]:
        """Look them up."""
        return shard.changed(self.group_id, self.since, self.as_of, self.limit)


AnyQuestion: TypeAlias = Value | Values | Scan | Count | Combine | Top | Changed

ANSWERS: dict[str, msgspec.json.Decoder[object]] = {
    "Value": msgspec.json.Decoder(msgspec.Raw | None),
    "Values": msgspec.json.Decoder(dict[str, msgspec.Raw]),
    "Scan": msgspec.json.Decoder(list[Entry]),
    "Count": msgspec.json.Decoder(int),
    "Combine": msgspec.json.Decoder(list[Group]),
    "Top": msgspec.json.Decoder(list[Entry]),
    "Changed": msgspec.json.Decoder(list[tuple[str, int]]),
}
"""How the answer to each kind of question is read after its way."""


def _pages(
    asked: Question[T], shard: Shard, within: Range, after: tuple[str, int] | None = None, size: int = _PAGE
) -> Iterator[list[Entry]]:
    """All entries, page by page, for as long as a query may take."""
    while True:
        state_rows = shard.scan(asked.group_id, asked.as_of, within, after=after, limit=size)
        yield asked.entries(state_rows)
        if len(state_rows) < size:
            return
        after = state_rows[-1].key, state_rows[-1].window_start
        demand_time()
