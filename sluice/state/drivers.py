"""How a shard speaks to its database: SQLite through the standard library, PostgreSQL through psycopg.

SQLAlchemy would cost more than the look-up itself, so shards use the drivers' own cursors. The SQL is the same for
both, with `?` for a value.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from threading import RLock
from typing import TYPE_CHECKING, Any, Literal, Protocol, TypeAlias

from sqlalchemy import URL
from typing_extensions import override

from sluice.errors import StateError
from sluice.state.database import BUSY_SECONDS, first_line, use_wal

if TYPE_CHECKING:
    import psycopg

Row: TypeAlias = tuple[int, str, int, int, str | None]
"""cell, key, window start, window end, value: the fields of `Cell`."""

Mode: TypeAlias = Literal["read", "write", "create"]

_BATCHES = """CREATE TABLE IF NOT EXISTS batches (
    batch BIGINT PRIMARY KEY, "rows" BIGINT NOT NULL, checksum TEXT NOT NULL, epoch BIGINT NOT NULL)"""
# Keys sort by code point in both databases, whatever the locale.
_CELLS = """CREATE TABLE IF NOT EXISTS cells (
    cell INTEGER NOT NULL, key TEXT {collation} NOT NULL, window_start BIGINT NOT NULL, window_end BIGINT NOT NULL,
    batch BIGINT NOT NULL, value TEXT, PRIMARY KEY (cell, key, window_start, batch)) {options}"""

_STATES = """CREATE TABLE IF NOT EXISTS states (
    operator INTEGER NOT NULL, key TEXT {collation} NOT NULL, batch BIGINT NOT NULL, due BIGINT, wall BIGINT,
    state {bytes},
    PRIMARY KEY (operator, key, batch)) {options}"""
_STATES_DUE = "CREATE INDEX IF NOT EXISTS states_due ON states (operator, due) WHERE due IS NOT NULL"
_BEFORE = """SELECT window_end, value FROM cells WHERE cell = ? AND key = ? AND window_start = ? AND batch < ?
    ORDER BY batch DESC LIMIT 1"""
_BEFORE_ALL = """SELECT n.cell, n.key, n.window_start, o.window_end, o.value
    FROM unnest(%s::integer[], %s::text[], %s::bigint[]) AS n (cell, key, window_start), LATERAL (
        SELECT window_end, value FROM cells AS c
        WHERE c.cell = n.cell AND c.key = n.key COLLATE "C" AND c.window_start = n.window_start AND c.batch < %s
        ORDER BY c.batch DESC LIMIT 1) AS o"""


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


class SqliteDriver(Driver):
    """A shard in a file of its own."""

    blocking = False

    def __init__(self, path: Path, mode: Mode) -> None:
        self._path = path
        self._lock = RLock()  # one transaction at a time; readers of other connections go on
        with _sqlite_errors():
            if mode == "create":
                path.parent.mkdir(parents=True, exist_ok=True)
            self._connection = self._connect({"read": "ro", "write": "rw", "create": "rwc"}[mode])
            if mode != "read":
                use_wal(self._connection)
            if mode == "create":
                self._connection.execute(_BATCHES)
                self._connection.execute(_CELLS.format(collation="", options="WITHOUT ROWID"))
                self._connection.execute(_STATES.format(collation="", options="WITHOUT ROWID", bytes="BLOB"))
                self._connection.execute(_STATES_DUE)
            # An empty file is a valid database to SQLite, but not a shard.
            self._connection.execute("SELECT 1 FROM cells, batches LIMIT 1").fetchone()
            self._identity = _identity(path)

    def _connect(self, mode: str) -> sqlite3.Connection:
        address = f"{self._path.absolute().as_uri()}?mode={mode}"
        return sqlite3.connect(address, uri=True, timeout=BUSY_SECONDS, isolation_level=None, check_same_thread=False)

    @override
    def fetch(self, sql: str, values: Sequence[Any]) -> list[Any]:
        with _sqlite_errors():
            return self._connection.execute(sql, values).fetchall()

    @override
    @contextmanager
    def transaction(self) -> Iterator[None]:
        with self._lock, _sqlite_errors():
            self._connection.execute("BEGIN IMMEDIATE")
            try:
                yield
                self._connection.execute("COMMIT")
            except BaseException:
                self._connection.execute("ROLLBACK")
                raise

    @override
    def execute(self, sql: str, values: Sequence[Any] = ()) -> int:
        return self._connection.execute(sql, values).rowcount

    @override
    def execute_many(self, sql: str, rows: Sequence[Sequence[Any]]) -> None:
        self._connection.executemany(sql, rows)

    @override
    def insert_cells(self, batch: int, rows: Iterable[Row]) -> None:
        sql = f"INSERT INTO cells (cell, key, window_start, window_end, value, batch) VALUES (?, ?, ?, ?, ?, {batch:d})"
        self._connection.executemany(sql, rows)

    @override
    def replaced(self, batch: int, rows: Sequence[Row]) -> Iterator[Row]:
        cursor = self._connection.cursor()
        for cell, key, start, _, _ in rows:
            found = cursor.execute(_BEFORE, (cell, key, start, batch)).fetchone()
            if found is not None and found[1] is not None:
                yield cell, key, start, found[0], found[1]

    @override
    def check(self) -> None:
        with _sqlite_errors():
            (said,) = self._connection.execute("PRAGMA integrity_check(1)").fetchone()
        if said != "ok":
            raise StateError(f"The shard is damaged: {said}.")

    @override
    def is_current(self) -> bool:
        return _identity(self._path) == self._identity

    @override
    def is_sealed(self) -> bool:
        return bool(self.fetch("PRAGMA user_version", ())[0][0])

    @override
    def seal(self, sealed: bool) -> None:
        with self.transaction():
            self._connection.execute(f"PRAGMA user_version = {sealed:d}")

    @override
    def close(self) -> None:
        self._connection.close()


class PostgresDriver(Driver):
    """A shard in a schema of its own; `?schema=` of the address names it."""

    blocking = True

    def __init__(self, url: URL, mode: Mode) -> None:
        self._url = url.difference_update_query(["schema"])
        self._schema = str(url.query["schema"])
        self._lock = RLock()
        with _postgres_errors():
            self._connection = self._connect()
            if mode == "create":
                self._create()
            self._connection.execute("SELECT 1 FROM cells, batches LIMIT 1").fetchone()

    def _connect(self) -> psycopg.Connection[Any]:
        import psycopg
        from psycopg import sql

        address = self._url.set(drivername="postgresql").render_as_string(hide_password=False)
        connection: psycopg.Connection[Any] = psycopg.connect(address, autocommit=True, connect_timeout=5)
        connection.execute(sql.SQL("SET search_path TO {}").format(sql.Identifier(self._schema)))
        return connection

    def _create(self) -> None:
        from psycopg import sql

        with self._connection.transaction():
            # Two `CREATE ... IF NOT EXISTS` at once collide in PostgreSQL's catalogue.
            self._connection.execute("SELECT pg_advisory_xact_lock(hashtext(%s))", [self._schema])
            self._connection.execute(sql.SQL("CREATE SCHEMA IF NOT EXISTS {}").format(sql.Identifier(self._schema)))
            self._connection.execute(_BATCHES)
            self._connection.execute(_CELLS.format(collation='COLLATE "C"', options=""))
            self._connection.execute(_STATES.format(collation='COLLATE "C"', options="", bytes="BYTEA"))
            self._connection.execute(_STATES_DUE)

    @override
    def fetch(self, sql: str, values: Sequence[Any]) -> list[Any]:
        with self._lock, _postgres_errors():
            if self._connection.closed:
                self._connection = self._connect()
            return self._connection.execute(sql.replace("?", "%s"), values).fetchall()

    @override
    @contextmanager
    def transaction(self) -> Iterator[None]:
        with self._lock, _postgres_errors():
            if self._connection.closed:
                self._connection = self._connect()
            with self._connection.transaction():
                yield

    @override
    def execute(self, sql: str, values: Sequence[Any] = ()) -> int:
        return self._connection.execute(sql.replace("?", "%s"), values).rowcount

    @override
    def execute_many(self, sql: str, rows: Sequence[Sequence[Any]]) -> None:
        with self._connection.cursor() as cursor:
            cursor.executemany(sql.replace("?", "%s"), rows)

    @override
    def insert_cells(self, batch: int, rows: Iterable[Row]) -> None:
        copy_sql = "COPY cells (cell, key, window_start, window_end, value, batch) FROM STDIN"
        with self._connection.cursor() as cursor, cursor.copy(copy_sql) as copy:
            for row in rows:
                copy.write_row((*row, batch))

    @override
    def replaced(self, batch: int, rows: Sequence[Row]) -> Iterator[Row]:
        cells, keys, starts = ([row[place] for row in rows] for place in range(3))
        for row in self._connection.execute(_BEFORE_ALL, (cells, keys, starts, batch)):
            if row[4] is not None:
                yield row

    @override
    def check(self) -> None:
        # PostgreSQL's own checksums of pages are its administrator's choice; reading everything finds what they find.
        self.fetch("SELECT count(*), sum(length(value)) FROM cells", ())

    @override
    def is_current(self) -> bool:
        return True

    @override
    def is_sealed(self) -> bool:
        return False  # a database is never moved: whichever server reads it, it stays where it is

    @override
    def seal(self, sealed: bool) -> None:
        raise StateError("A shard in PostgreSQL stays where it is.")

    @override
    def close(self) -> None:
        self._connection.close()


def drop_schema(url: URL) -> None:
    """Remove the schema that an address names, and all it holds."""
    import psycopg
    from psycopg import sql

    address = url.difference_update_query(["schema"]).set(drivername="postgresql")
    with _postgres_errors(), psycopg.connect(address.render_as_string(hide_password=False)) as connection:
        name = sql.Identifier(str(url.query["schema"]))
        connection.execute(sql.SQL("DROP SCHEMA IF EXISTS {} CASCADE").format(name))


def _identity(path: Path) -> tuple[int, int] | None:
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_dev, status.st_ino


@contextmanager
def _sqlite_errors() -> Iterator[None]:
    try:
        yield
    except (sqlite3.Error, OSError) as error:
        raise StateError(f"The shard cannot be used: {first_line(error)}") from error


@contextmanager
def _postgres_errors() -> Iterator[None]:
    import psycopg

    try:
        yield
    except psycopg.Error as error:
        raise StateError(f"The shard cannot be used: {first_line(error)}") from error
