"""The interface between a shard and its database, SQLite or PostgreSQL.

SQLAlchemy would cost more than a look-up itself, so shards use the database drivers' cursors. Both databases run the
same SQL, with `?` as the placeholder.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Literal, Protocol, TypeAlias

from sluice.errors import DamagedState

Row: TypeAlias = tuple[int, str, int, int, str | None]
"""The fields of a `StateRow`: group id, key, window start, window end, value."""

RowId: TypeAlias = tuple[int, str, int]
"""The fields that identify a state row: group id, key, window start."""

StoredRow: TypeAlias = tuple[int, str, int, int, str, int]
"""The fields of a `StateRow` with a value, and its digest."""

Mode: TypeAlias = Literal["read", "write", "create"]

FORMAT = 3
"""Format of a shard's tables. Shards with another format are rejected."""

_TABLES = (
    # One row: the epoch of the newest writer, and the number of rows in the other tables.
    """CREATE TABLE IF NOT EXISTS shard (
        format INTEGER PRIMARY KEY, epoch BIGINT NOT NULL, state_rows BIGINT NOT NULL, states BIGINT NOT NULL)""",
    f"INSERT INTO shard (format, epoch, state_rows, states) VALUES ({FORMAT}, 0, 0, 0) ON CONFLICT DO NOTHING",
    # `operator` is -1 for batches of state rows, and the operator's number for batches of operator states.
    """CREATE TABLE IF NOT EXISTS batches (
        operator INTEGER NOT NULL, batch BIGINT NOT NULL, "rows" BIGINT NOT NULL, checksum TEXT NOT NULL,
        PRIMARY KEY (operator, batch))""",
    # Keys sort by code point in both databases, whatever the locale. `digest` covers the other columns of its row.
    """CREATE TABLE IF NOT EXISTS state_rows (
        group_id INTEGER NOT NULL, key VARCHAR {collation} NOT NULL, window_start BIGINT NOT NULL,
        window_end BIGINT NOT NULL, batch BIGINT NOT NULL, value TEXT, digest BIGINT NOT NULL,
        PRIMARY KEY (group_id, key, window_start, batch)) {options}""",
    # `shared` distinguishes the state that all keys share from the state of a key, so that no key can collide with it.
    """CREATE TABLE IF NOT EXISTS states (
        operator INTEGER NOT NULL, shared INTEGER NOT NULL, key VARCHAR {collation} NOT NULL, batch BIGINT NOT NULL,
        due BIGINT, wall BIGINT, state {bytes}, digest BIGINT NOT NULL,
        PRIMARY KEY (operator, shared, key, batch)) {options}""",
    "CREATE INDEX IF NOT EXISTS states_due ON states (operator, due) WHERE due IS NOT NULL",
)


def tables(**dialect: str) -> list[str]:
    """The statements that create a shard's missing tables."""
    return [statement.format(**dialect) if "{" in statement else statement for statement in _TABLES]


PROBE = "SELECT format FROM shard LEFT JOIN (SELECT 1 FROM state_rows, states, batches LIMIT 0) AS there ON true"
"""Reads the shard's format. Fails unless all tables of a shard exist."""


def demand_format(found: Sequence[Any]) -> None:
    """Raise DamagedState unless PROBE found the format of this version of Sluice."""
    if [*found] != [(FORMAT,)]:
        raise DamagedState("The shard has no format, or the format of another version of Sluice.")


class Driver(Protocol):
    """A connection to a shard's database. May be called from any thread."""

    blocking: bool
    """Whether a query may take longer than a switch to another thread."""

    def fetch(self, sql: str, values: Sequence[Any]) -> list[Any]:
        """All rows of a query, read consistently."""

    def transaction(self) -> Any:
        """A context manager whose block's writes are committed or rolled back together."""

    def hold(self) -> None:
        """Let the reads from now on see the database as it is now, until `hold` or `release` is called.

        Saves each read the locks with which it begins and ends. Does nothing if the driver is `blocking`.
        """

    def release(self) -> None:
        """Let each read see the database as it is then. Does nothing if nothing is held."""

    def pinned(self) -> Any:
        """A context manager whose block's reads all see the database as it was when the block began."""

    def execute(self, sql: str, values: Sequence[Any] = ()) -> int:
        """Run a statement. Returns the number of affected rows."""

    def execute_many(self, sql: str, rows: Sequence[Sequence[Any]]) -> int:
        """Run a statement for each row of values. Returns the total number of affected rows."""

    def insert(self, table: str, columns: Sequence[str], rows: Iterable[Sequence[Any]]) -> None:
        """Insert rows into a table in the fastest way that the database offers."""

    def replaced(self, batch: int, rows: Sequence[RowId]) -> Iterator[StoredRow]:
        """For each state row in `rows`, its newest version before `batch` and that version's digest.

        Omits tombstones.
        """

    def check(self) -> None:
        """Read the whole database. Raises StateError if its internal structures are damaged."""

    def is_current(self) -> bool:
        """Whether the opened shard is still at its address, not replaced or deleted."""

    def is_sealed(self) -> bool:
        """Whether the shard was moved away. Within a transaction, the answer holds until its end."""

    def seal(self, sealed: bool) -> None:
        """Mark the shard as moved away, or remove the mark."""

    def close(self) -> None: ...
