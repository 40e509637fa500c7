"""How a shard speaks to its database, whichever it is.

SQLAlchemy would cost more than the look-up itself, so shards use the drivers' own cursors. The SQL is the same for
both, with `?` for a value.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Literal, Protocol, TypeAlias

Row: TypeAlias = tuple[int, str, int, int, str | None]
"""cell, key, window start, window end, value: the fields of `Cell`."""

Mode: TypeAlias = Literal["read", "write", "create"]

BATCHES = """CREATE TABLE IF NOT EXISTS batches (
    batch BIGINT PRIMARY KEY, "rows" BIGINT NOT NULL, checksum TEXT NOT NULL, epoch BIGINT NOT NULL)"""
# Keys sort by code point in both databases, whatever the locale.
CELLS = """CREATE TABLE IF NOT EXISTS cells (
    cell INTEGER NOT NULL, key TEXT {collation} NOT NULL, window_start BIGINT NOT NULL, window_end BIGINT NOT NULL,
    batch BIGINT NOT NULL, value TEXT, PRIMARY KEY (cell, key, window_start, batch)) {options}"""
STATES = """CREATE TABLE IF NOT EXISTS states (
    operator INTEGER NOT NULL, key TEXT {collation} NOT NULL, batch BIGINT NOT NULL, due BIGINT, wall BIGINT,
    state {bytes},
    PRIMARY KEY (operator, key, batch)) {options}"""
STATES_DUE = "CREATE INDEX IF NOT EXISTS states_due ON states (operator, due) WHERE due IS NOT NULL"


class Driver(Protocol):
    """One connection to one shard's database; calls may come from any thread."""

    blocking: bool
    """Whether an answer may take longer than a hop to another thread."""

    def fetch(self, sql: str, values: Sequence[Any]) -> list[Any]:
        """All rows of a query, at one moment."""

    def transaction(self) -> Any:
        """A context manager: everything in it is written, or nothing."""

    def execute(self, sql: str, values: Sequence[Any] = ()) -> int:
        """Run a statement; the number of rows it touched."""

    def execute_many(self, sql: str, rows: Sequence[Sequence[Any]]) -> None:
        """Run a statement for each row of values."""

    def insert_cells(self, batch: int, rows: Iterable[Row]) -> None:
        """Write rows as versions of `batch`, as fast as the database allows."""

    def replaced(self, batch: int, rows: Sequence[Row]) -> Iterator[Row]:
        """The versions that were the newest before `batch` of the cells that `rows` change, tombstones left out."""

    def check(self) -> None:
        """Raise StateError if the database's own structures are damaged; reads all of it."""

    def is_current(self) -> bool:
        """Whether what was opened is still what stands at the shard's address."""

    def is_sealed(self) -> bool:
        """Whether the shard was moved away; asked within a transaction, it stays so until its end."""

    def seal(self, sealed: bool) -> None:
        """Say that the shard was moved away, or that it was not."""

    def close(self) -> None:
        """Close the connection."""
