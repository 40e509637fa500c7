"""Compares a store's entries at two snapshots, which may belong to different generations."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Literal

import msgspec

from sluice.answers import unavailable
from sluice.errors import Incomplete, TooSlow
from sluice.query.reader import Reader
from sluice.query.results import Pin
from sluice.state.model import EntryId
from sluice.state.queries.entries import Entry

_DIFF_SECONDS = 30.0
EXAMPLES = 20
"""The number of examples of each kind of difference."""
_PAGE = 5_000

Kind = Literal["changed", "missing", "added"]


@dataclass(frozen=True)
class Difference:
    """A key, or a key's window, with its values in both snapshots.

    The value is None in a snapshot without the key.
    """

    kind: Kind
    key: str
    window_start: int
    window_end: int
    before: msgspec.Raw | None
    after: msgspec.Raw | None


@dataclass
class Differences:
    """The numbers of equal and of differing entries, with examples of differences."""

    same: int = 0
    changed: int = 0
    missing: int = 0
    added: int = 0
    examples: list[Difference] = field(default_factory=list)

    def add(self, kind: Kind, old: Entry | None, new: Entry | None, most_examples: int) -> None:
        """Count a difference, and keep up to `most_examples` of each kind."""
        number = getattr(self, kind) + 1
        setattr(self, kind, number)
        entry = old or new
        if number <= most_examples and entry is not None:
            self.examples.append(Difference(kind, *entry.id, _value(old), _value(new)))


def _value(entry: Entry | None) -> msgspec.Raw | None:
    return None if entry is None else entry.value


async def compare(reader: Reader, before: Pin, after: Pin, examples: int = EXAMPLES) -> Differences:
    """Compare all entries of a store at two snapshots.

    Values are equal if their published texts are equal. Raises TooSlow after `_DIFF_SECONDS`, and
    Incomplete if a worker is unavailable.
    """
    differences = Differences()
    try:
        async with asyncio.timeout(_DIFF_SECONDS):
            async for kind, old, new in pairs(
                entries_of(reader, before), entries_of(reader, after)
            ):
                if kind is None:
                    differences.same += 1
                else:
                    differences.add(kind, old, new, examples)
    except TimeoutError:
        raise TooSlow(f"Comparing the snapshots took longer than {_DIFF_SECONDS:g} s.") from None
    return differences


async def pairs(
    before: AsyncIterator[Entry], after: AsyncIterator[Entry]
) -> AsyncIterator[tuple[Kind | None, Entry | None, Entry | None]]:
    """Pair the entries of two snapshots. Both are sorted by key and window."""
    old, new = await anext(before, None), await anext(after, None)
    while old is not None or new is not None:
        # Both snapshots are sorted by id (key and window). If the two ids differ, only one snapshot
        # has the smaller id, because all later ids of the other snapshot are larger.
        if new is None or (old is not None and old.id < new.id):
            yield "missing", old, None
            old = await anext(before, None)
        elif old is None or new.id < old.id:
            yield "added", None, new
            new = await anext(after, None)
        else:
            is_same = bytes(old.value) == bytes(new.value)
            yield None if is_same else "changed", old, new
            old, new = await anext(before, None), await anext(after, None)


async def entries_of(reader: Reader, pin: Pin) -> AsyncIterator[Entry]:
    """Yield all entries of a store, sorted. Raise Incomplete if a worker is unavailable."""
    after: EntryId | None = None
    while True:
        page = await reader.scan(pin, after=after, limit=_PAGE)
        reasons = unavailable(page.workers)
        # The entries of an unavailable worker would count as missing or as added.
        if reasons:
            raise Incomplete(f"Some workers cannot be read: {'; '.join(reasons)}")
        for entry in page.entries:
            yield entry
        if page.after is None:
            return
        after = page.after
