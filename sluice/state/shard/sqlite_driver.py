"""A shard in its own SQLite file, accessed through the standard library."""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import chain, islice
from pathlib import Path
from threading import RLock
from typing import Any

from typing_extensions import override

from sluice.errors import DamagedState, SluiceError, StateError
from sluice.state.database import BUSY_SECONDS, first_line, prepare_to_write
from sluice.state.shard.database_driver import NO_CONSTANTS, Driver, Mode
from sluice.state.shard.row_columns import RowIds
from sluice.state.shard.row_tuples import StoredRow
from sluice.state.shard.schema import PROBE, require_format, tables
from sluice.state.time_limits import acquire, is_over, too_slow
from sluice.support.file_identity import file_identity
from sluice.support.file_modes import close_database, close_folders, make_file, make_folder

_BEFORE = """WITH wanted (group_id, key, window_start, window_end) AS (VALUES {rows})
    SELECT s.group_id, s.key, s.window_start, s.window_end, s.value, s.digest
    FROM wanted AS w CROSS JOIN state_rows AS s ON s.group_id = w.group_id AND s.key = w.key
        AND s.window_start = w.window_start AND s.window_end = w.window_end AND s.batch = (
            SELECT max(n.batch) FROM state_rows AS n WHERE n.group_id = w.group_id AND n.key = w.key
            AND n.window_start = w.window_start AND n.window_end = w.window_end AND n.batch < ?)
    WHERE s.value IS NOT NULL"""
_NEWEST_WINDOWS = """WITH wanted (group_id, key) AS (VALUES {rows})
    SELECT group_id, key, (
        SELECT max(s.window_start) FROM state_rows AS s WHERE s.group_id = w.group_id
        AND s.key = w.key)
    FROM wanted AS w"""
_CACHE_KB = 16_000
"""How much of a shard a writer keeps in memory.

With SQLite's 2 MB, inserting sorted rows takes 7 % more CPU time, because a large batch writes some
pages several times."""
_ROWS_AT_ONCE = 100
"""The number of rows that one statement reads or inserts. A statement for each row would take
several times as long."""

_GENERATION = re.compile(r"g\d+")
_LOCKED_SECONDS = 3.0
"""How long a reader waits for a program that has locked the whole file. Sluice's writers never lock
the whole file."""
_STEPS = 20_000
"""SQLite checks a query's deadline whenever its virtual machine has run this many steps, every few
milliseconds."""


class SqliteDriver(Driver):
    """A shard in its own file."""

    blocking = False

    def __init__(self, path: Path, mode: Mode, *, durable: bool = True) -> None:
        self._path = path
        # Allow one query or transaction per connection at a time. SQLite holds its own lock while
        # it calls the progress handler, which needs Python's global lock. A second thread that
        # holds Python's global lock and waits for SQLite's lock would deadlock.
        self._lock = RLock()
        with self._errors():
            if mode == "create":
                make_folder(path.parent)
                make_file(path)
            self._connection = self._connect({"read": "ro", "write": "rw", "create": "rwc"}[mode])
            if mode == "read":
                self._connection.set_progress_handler(is_over, _STEPS)
            else:
                prepare_to_write(self._connection, durable=durable)
                self._connection.execute(f"PRAGMA cache_size=-{_CACHE_KB}")
            if mode == "create":
                self._create()
            # An empty file is a valid database to SQLite, but not a shard.
            require_format(self._connection.execute(PROBE).fetchall())
            close_database(path)
            if _GENERATION.fullmatch(path.parent.name):
                # These two folders are the generation's and the pipeline's own, so other users need
                # no access.
                close_folders(path.parent, levels=2)
            self._identity = file_identity(path)

    def _create(self) -> None:
        names = self._connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")
        tables_there = {name for (name,) in names}
        if "state_rows" in tables_there and "shard" not in tables_there:
            # The shard has lost its table `shard`. A new table would hide the damage, so raise the
            # error: `require_format` always raises it if it gets no rows.
            require_format(())
        for statement in tables(collation="", options="WITHOUT ROWID", bytes="BLOB"):
            self._connection.execute(statement)

    def _connect(self, mode: str) -> sqlite3.Connection:
        address = f"{self._path.absolute().as_uri()}?mode={mode}"
        patience = _LOCKED_SECONDS if mode == "ro" else BUSY_SECONDS
        return sqlite3.connect(
            address, uri=True, timeout=patience, isolation_level=None, check_same_thread=False
        )

    @override
    def fetch(self, sql: str, values: Sequence[Any]) -> list[Any]:
        acquire(self._lock)
        try:
            # This is `_errors` written out: a context manager would add a microsecond or more to
            # each look-up.
            return self._connection.execute(sql, values).fetchall()
        except (sqlite3.Error, OSError) as error:
            raise self._as_ours(error) from error
        finally:
            self._lock.release()

    @override
    @contextmanager
    def transaction(self) -> Iterator[None]:
        with self._lock, self._errors():
            self._connection.execute("BEGIN IMMEDIATE")
            try:
                yield
                self._connection.execute("COMMIT")
            except BaseException:
                # After some errors, such as a full disk, SQLite has rolled back already.
                if self._connection.in_transaction:
                    self._connection.execute("ROLLBACK")
                raise

    @override
    @contextmanager
    def pinned(self) -> Iterator[None]:
        with self._lock, self._errors():
            self._connection.execute("BEGIN")
            try:
                # The first read of a transaction decides which state all of its reads see.
                self._connection.execute(PROBE).fetchall()
                yield
            finally:
                self._connection.execute("ROLLBACK")

    @override
    def hold(self) -> None:
        with self._lock, self._errors():
            self._end_hold()
            self._connection.execute("BEGIN")

    @override
    def release(self) -> None:
        with self._lock, self._errors():
            self._end_hold()

    def _end_hold(self) -> None:
        if self._connection.in_transaction:
            self._connection.execute("ROLLBACK")

    @override
    def execute(self, sql: str, values: Sequence[Any] = ()) -> int:
        return self._connection.execute(sql, values).rowcount

    @override
    def execute_many(self, sql: str, rows: Sequence[Sequence[Any]]) -> int:
        return max(self._connection.executemany(sql, rows).rowcount, 0)

    @override
    def insert(
        self,
        table: str,
        columns: Sequence[str],
        rows: Iterable[Sequence[Any]],
        constants: Mapping[str, int] = NO_CONSTANTS,
    ) -> None:
        marks = ", ".join([*["?"] * len(columns), *map(str, constants.values())])
        insert_one = f"INSERT INTO {table} ({', '.join((*columns, *constants))}) VALUES ({marks})"
        insert_many = insert_one + f", ({marks})" * (_ROWS_AT_ONCE - 1)
        cursor, width = self._connection.cursor(), len(columns)
        for values in _values_of_rows(rows, width):
            if len(values) == _ROWS_AT_ONCE * width:
                cursor.execute(insert_many, values)
            else:
                begins = range(0, len(values), width)
                cursor.executemany(insert_one, [values[at : at + width] for at in begins])

    @override
    def versions_before(self, batch: int, ids: RowIds) -> Iterator[StoredRow]:
        cursor = self._connection.cursor()
        for values in _values_of_rows(ids, 4):
            sql = _BEFORE.format(rows=", ".join(["(?, ?, ?, ?)"] * (len(values) // 4)))
            yield from cursor.execute(sql, [*values, batch])

    @override
    def newest_windows(self, keys: Collection[tuple[int, str]]) -> dict[tuple[int, str], int]:
        cursor = self._connection.cursor()
        newest: dict[tuple[int, str], int] = {}
        for values in _values_of_rows(keys, 2):
            sql = _NEWEST_WINDOWS.format(rows=", ".join(["(?, ?)"] * (len(values) // 2)))
            for group_id, key, start in cursor.execute(sql, values):
                if start is not None:
                    newest[group_id, key] = start
        return newest

    @override
    def check_integrity(self) -> None:
        with self._errors():
            (problem,) = self._connection.execute("PRAGMA integrity_check(1)").fetchone()
        if problem != "ok":
            raise DamagedState(f"The shard is damaged: {problem}.")

    @override
    def has_table(self, name: str) -> bool:
        return bool(
            self.fetch("SELECT 1 FROM sqlite_master WHERE type = 'table' AND name = ?", (name,))
        )

    @override
    def is_current(self) -> bool:
        return file_identity(self._path) == self._identity

    @override
    def is_sealed(self) -> bool:
        return bool(self.fetch("PRAGMA user_version", ())[0][0])

    @override
    def seal(self, sealed: bool) -> None:
        with self.transaction():
            self._connection.execute(f"PRAGMA user_version = {sealed:d}")

    @override
    def close(self) -> None:
        with self._lock:
            self._connection.close()

    @contextmanager
    def _errors(self) -> Iterator[None]:
        try:
            yield
        except (sqlite3.Error, OSError) as error:
            raise self._as_ours(error) from error

    def _as_ours(self, error: sqlite3.Error | OSError) -> SluiceError:
        if isinstance(error, sqlite3.OperationalError) and is_over():
            return too_slow()
        kind = DamagedState if self._is_damage(error) else StateError
        return kind(f"The shard cannot be used: {first_line(error)}")

    def _is_damage(self, error: sqlite3.Error | OSError) -> bool:
        """Return whether the error means damage, and not, for example, that the disk is full."""
        if isinstance(error, FileNotFoundError):
            return True
        code = getattr(error, "sqlite_errorcode", None)
        if code in (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_IOERR_SHORT_READ):
            return True
        # SQLite reports this error if the file does not exist, but also if this process has too
        # many files open.
        if code == sqlite3.SQLITE_CANTOPEN:
            return not self._path.exists()
        return code == sqlite3.SQLITE_ERROR and "no such" in str(error)


def _values_of_rows(rows: Iterable[Sequence[Any]], width: int) -> Iterator[list[Any]]:
    """Yield the values of the rows in lists, one for each statement. A row has `width` values."""
    values = chain.from_iterable(rows)
    while of_statement := [*islice(values, _ROWS_AT_ONCE * width)]:
        yield of_statement
