"""The interface between a shard and its database, SQLite or PostgreSQL.

SQLAlchemy would cost more than a look-up itself, so shards use the database drivers' cursors. Both
databases run the same SQL, with `?` as the placeholder.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from types import MappingProxyType
from typing import Any, Literal, Protocol, TypeAlias

from sluice.state.shard.row_columns import RowIds
from sluice.state.shard.row_tuples import StoredRow

Mode: TypeAlias = Literal["read", "write", "create"]
"""How a shard is opened. `create` also allows writes, and creates the shard if it does not
exist."""

NO_CONSTANTS: Mapping[str, int] = MappingProxyType({})


class Driver(Protocol):
    """A connection to a shard's database. May be called from any thread."""

    blocking: bool
    """Whether a query may take so long that the event loop must run it in another thread."""

    def fetch(self, sql: str, values: Sequence[Any]) -> list[Any]:
        """Run a query, and return all of its rows. They come from one state of the database."""

    def transaction(self) -> AbstractContextManager[None]:
        """Return a context manager whose block's writes are committed or rolled back together."""

    def hold(self) -> None:
        """Let all later reads see the database as it is now, until `hold` or `release` is called.

        This saves time, because a read then takes and releases no locks. Do nothing if the driver
        is `blocking`.
        """

    def release(self) -> None:
        """Let each later read see the newest state of the database again.

        Do nothing if `hold` has not been called.
        """

    def pinned(self) -> AbstractContextManager[None]:
        """Return a context manager whose block reads the database as of its beginning."""

    def execute(self, sql: str, values: Sequence[Any] = ()) -> int:
        """Run a statement. Return the number of affected rows."""

    def execute_many(self, sql: str, rows: Sequence[Sequence[Any]]) -> int:
        """Run a statement for each row of values. Return the total number of affected rows."""

    def insert(
        self,
        table: str,
        columns: Sequence[str],
        rows: Iterable[Sequence[Any]],
        constants: Mapping[str, int] = NO_CONSTANTS,
    ) -> None:
        """Insert rows into a table in the fastest way that the database offers.

        `constants`: column → the number that all rows have in this column.
        """

    def versions_before(self, batch: int, ids: RowIds) -> Iterator[StoredRow]:
        """Yield each state row's newest version before `batch`, with its digest.

        Omit tombstones.
        """

    def newest_windows(self, keys: Collection[tuple[int, str]]) -> dict[tuple[int, str], int]:
        """Return group and key → the largest window start of the key's state rows, of any batch.

        Omit keys without rows.
        """

    def check_integrity(self) -> None:
        """Read the whole database. Raise StateError if its internal structures are damaged."""

    def has_table(self, name: str) -> bool:
        """Return whether the shard has this table.

        Some tables are created when they are first needed.
        """

    def is_current(self) -> bool:
        """Return whether the opened shard is still at its address, not replaced or deleted."""

    def is_sealed(self) -> bool:
        """Return whether the shard is sealed. Runs cannot write to a sealed shard.

        Within a transaction, the answer holds until the transaction's end.
        """

    def seal(self, sealed: bool) -> None:
        """Mark the shard as sealed, or remove the mark."""

    def close(self) -> None: ...
