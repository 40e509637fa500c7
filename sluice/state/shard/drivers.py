"""How a shard speaks to its database, whichever it is.

SQLAlchemy would cost more than the look-up itself, so shards use the drivers' own cursors. The SQL is the same for
both, with `?` for a value.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Literal, Protocol, TypeAlias

from sluice.errors import DamagedState

Row: TypeAlias = tuple[int, str, int, int, str | None]
"""state row, key, window start, window end, value: the fields of `State row`."""

Mode: TypeAlias = Literal["read", "write", "create"]

FORMAT = 2
"""Of a shard's tables: a shard of another format is refused."""

_TABLES = (
    # One row: who may write, and how many rows the other tables have.
    """CREATE TABLE IF NOT EXISTS shard (
        format INTEGER PRIMARY KEY, epoch BIGINT NOT NULL, state_rows BIGINT NOT NULL, states BIGINT NOT NULL)""",
    f"INSERT INTO shard (format, epoch, state_rows, states) VALUES ({FORMAT}, 0, 0, 0) ON CONFLICT DO NOTHING",
    # Batches of state rows bear the number -1, those of states that of their operator.
    """CREATE TABLE IF NOT EXISTS batches (
        operator INTEGER NOT NULL, batch BIGINT NOT NULL, "rows" BIGINT NOT NULL, checksum TEXT NOT NULL,
        PRIMARY KEY (operator, batch))""",
    # Keys sort by code point in both databases, whatever the locale. A digest is that of the rest of its row.
    """CREATE TABLE IF NOT EXISTS state_rows (
        group_id INTEGER NOT NULL, key VARCHAR {collation} NOT NULL, window_start BIGINT NOT NULL,
        window_end BIGINT NOT NULL, batch BIGINT NOT NULL, value TEXT, digest BIGINT NOT NULL,
        PRIMARY KEY (group_id, key, window_start, batch)) {options}""",
    # `shared` tells the one state of all keys from that of a key: no key of a record can name it.
    """CREATE TABLE IF NOT EXISTS states (
        operator INTEGER NOT NULL, shared INTEGER NOT NULL, key VARCHAR {collation} NOT NULL, batch BIGINT NOT NULL,
        due BIGINT, wall BIGINT, state {bytes}, digest BIGINT NOT NULL,
        PRIMARY KEY (operator, shared, key, batch)) {options}""",
    "CREATE INDEX IF NOT EXISTS states_due ON states (operator, due) WHERE due IS NOT NULL",
)


def tables(**dialect: str) -> list[str]:
    """The statements that make a shard's tables where they are missing."""
    return [statement.format(**dialect) if "{" in statement else statement for statement in _TABLES]


PROBE = "SELECT format FROM shard LEFT JOIN (SELECT 1 FROM state_rows, states, batches LIMIT 0) AS there ON true"
"""The shard's format; fails unless all tables of a shard are there."""


def demand_format(found: Sequence[Any]) -> None:
    """Raise DamagedState unless PROBE found the format of this version of Sluice."""
    if [*found] != [(FORMAT,)]:
        raise DamagedState("The shard has the format of another version of Sluice, or none.")


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

    def execute_many(self, sql: str, rows: Sequence[Sequence[Any]]) -> int:
        """Run a statement for each row of values; the number of rows that all of them touched."""

    def insert(self, table: str, columns: Sequence[str], rows: Iterable[Sequence[Any]]) -> None:
        """Write rows into a table, as fast as the database allows."""

    def replaced(self, batch: int, rows: Sequence[Row]) -> Iterator[tuple[Any, ...]]:
        """The versions that were the newest before `batch` of the state rows that `rows` change, tombstones left out.

        Each is a row and its digest.
        """

    def check(self) -> None:
        """Raise StateError if the database's own structures are damaged; reads all of it."""

    def is_current(self) -> bool:
        """Whether what was opened is still what stands at the shard's address."""

    def is_sealed(self) -> bool:
        """Whether the shard was moved away. Within a transaction, the answer holds until its end."""

    def seal(self, sealed: bool) -> None:
        """Say that the shard was moved away, or that it was not."""

    def close(self) -> None: ...
