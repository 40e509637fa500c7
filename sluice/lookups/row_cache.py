"""The newest rows that a process has read from a table: limited in number and in age."""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from threading import Lock

Row = str | BaseException | None
"""A row as JSON, or an exception with the reason why the row cannot be used; None for a key without
a row."""


@dataclass
class RowCache:
    """Rows by key.

    Keys without a row are cached, too. Otherwise, a missing row would be read for every record.
    """

    size: int
    staleness_ms: int
    """How old a cached row may be."""
    clock: Callable[[], float] = time.monotonic
    """The time in seconds."""
    _rows: OrderedDict[str, tuple[float, Row]] = field(default_factory=OrderedDict)
    """Key → when its row was read, and the row. The most recently used row comes last."""
    _lock: Lock = field(default_factory=Lock)

    def rows(self, keys: Sequence[str]) -> tuple[dict[str, Row], list[str]]:
        """Return the cached rows of these keys, and the keys whose rows have to be read."""
        since = self.clock() - self.staleness_ms / 1_000
        cached: dict[str, Row] = {}
        missing: list[str] = []
        with self._lock:
            for key in keys:
                if key in self._rows and self._rows[key][0] > since:
                    self._rows.move_to_end(key)
                    cached[key] = self._rows[key][1]
                else:
                    missing.append(key)
        return cached, missing

    def add(self, keys: Sequence[str], rows: Mapping[str, Row], read_at: float) -> None:
        """Cache the rows of keys. `read_at` is the time of `clock` at which the rows were read.

        If there are more than `size` rows, remove those that have not been used for the longest
        time.
        """
        with self._lock:
            for key in keys:
                self._rows[key] = read_at, rows.get(key)
                self._rows.move_to_end(key)
            while len(self._rows) > self.size:
                self._rows.popitem(last=False)
