"""Which state rows a scan is about, and how that is said in SQL."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import Any, Self


@dataclass(frozen=True)
class Range:
    """The state rows that a scan covers.

    Keys from `first` to `last`, both inclusive, or with a prefix; windows whose start lies between two times, epoch ms,
    both inclusive.
    """

    first: str | None = None
    last: str | None = None
    prefix: str = ""
    start_from: int | None = None
    start_to: int | None = None

    @classmethod
    def of_key(cls, key: str, start_from: int | None = None, start_to: int | None = None) -> Self:
        """All windows of one key."""
        return cls(first=key, last=key, start_from=start_from, start_to=start_to)


EVERYTHING = Range()


def conditions(within: Range, after: tuple[str, int] | None) -> tuple[str, list[Any]]:
    """What follows `WHERE ...` for the state rows of a range that come after a key and window start, and its values."""
    first = max(within.first or "", within.prefix)
    bounds: list[tuple[str, tuple[Any, ...]]] = []
    if after is not None and after[0] >= first:
        bounds.append(("(c.key, c.window_start) > (?, ?)", after))
    elif first and within.last != first:
        bounds.append(("c.key >= ?", (first,)))
    if within.last is not None:
        # One key is told from a range of keys: only so do its windows come in the index's order.
        bounds.append((f"c.key {'=' if within.last == first else '<='} ?", (within.last,)))
    if (end := _after_prefix(within.prefix)) is not None:
        bounds.append(("c.key < ?", (end,)))
    if within.start_from is not None:
        bounds.append(("c.window_start >= ?", (within.start_from,)))
    if within.start_to is not None:
        bounds.append(("c.window_start <= ?", (within.start_to,)))
    return "".join(f" AND {sql}" for sql, _ in bounds), [value for _, values in bounds for value in values]


def _after_prefix(prefix: str) -> str | None:
    """The least text greater than every text that begins with `prefix`; None if there is none."""
    for index in range(len(prefix) - 1, -1, -1):
        code = ord(prefix[index])
        if code < sys.maxunicode:
            # The surrogates are no characters: the one after U+D7FF is U+E000.
            return prefix[:index] + chr(0xE000 if code == 0xD7FF else code + 1)
    return None
