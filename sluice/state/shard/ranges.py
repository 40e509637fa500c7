"""Ranges of state rows for scans, and their SQL conditions."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import Any, Self

from sluice.state.model import EntryId


@dataclass(frozen=True)
class RowRange:
    """The state rows that a scan covers.

    It covers keys from `first` to `last`, or keys with a prefix, and windows whose start lies
    between two times (epoch ms). All bounds are inclusive.
    """

    first: str | None = None
    last: str | None = None
    prefix: str = ""
    start_from: int | None = None
    start_to: int | None = None

    @classmethod
    def of_key(cls, key: str, start_from: int | None = None, start_to: int | None = None) -> Self:
        """Return all windows of one key."""
        return cls(first=key, last=key, start_from=start_from, start_to=start_to)


EVERYTHING = RowRange()


def conditions(within: RowRange, after: EntryId | None) -> tuple[str, list[Any]]:
    """Return SQL conditions for the rows of a range after `after`, and their parameters."""
    first = max(within.first or "", within.prefix)
    sql, values = "", list[Any]()

    def add(condition: str, *bounds: Any) -> None:
        nonlocal sql
        sql += f" AND {condition}"
        values.extend(bounds)

    if after is not None and after[0] >= first:
        # The page begins inside the range, so the start of the range needs no condition.
        add("(c.key, c.window_start, c.window_end) > (?, ?, ?)", *after)
    elif first and within.last != first:
        add("c.key >= ?", first)
    if within.last is not None:
        # For a single key, `=` lets the database return the windows in index order; `<=` would not.
        if within.last == first:
            add("c.key = ?", within.last)
        else:
            add("c.key <= ?", within.last)
    end_of_prefix = _after_prefix(within.prefix)
    if end_of_prefix is not None:
        add("c.key < ?", end_of_prefix)
    if within.start_from is not None:
        add("c.window_start >= ?", within.start_from)
    if within.start_to is not None:
        add("c.window_start <= ?", within.start_to)
    return sql, values


def _after_prefix(prefix: str) -> str | None:
    """Return the text that sorts right after all texts with this prefix, or None."""
    for index in range(len(prefix) - 1, -1, -1):
        code = ord(prefix[index])
        if code < sys.maxunicode:
            # Surrogates are not characters, so U+E000 follows U+D7FF.
            following = 0xE000 if code == 0xD7FF else code + 1
            return prefix[:index] + chr(following)
    return None
