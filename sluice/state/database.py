"""Opens SQLite and PostgreSQL databases with the same transaction behaviour."""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache, lru_cache
from importlib import import_module
from pathlib import Path
from typing import Any

import msgspec
from sqlalchemy import (
    URL,
    Connection,
    Dialect,
    Engine,
    create_engine,
    event,
    make_url,
)
from sqlalchemy.exc import ArgumentError, DisconnectionError, SQLAlchemyError
from sqlalchemy.pool import ConnectionPoolEntry
from sqlalchemy.util import LRUCache

from sluice.errors import SettingsError, StateError, sentence
from sluice.state.time_limits import waits_limited
from sluice.support.file_identity import file_identity
from sluice.support.file_modes import close_database, make_file, make_folder
from sluice.support.masking import holds_secret

BUSY_SECONDS = 10.0
"""How long a writer waits for another writer of a SQLite database."""
LOCKED_SECONDS = 8.0
"""How long a statement waits in PostgreSQL for another program's lock."""
ANSWER_SECONDS = 9.0
"""An access to a database fails if the server has not answered after this time."""
SILENT_SECONDS = 60
"""PostgreSQL ends a transaction whose client was silent for this time, which frees its locks."""
_COMPILED_FOR_SQLITE: LRUCache[Any, Any] = LRUCache(500)
"""The compiled statements of all SQLite engines of this process."""
_POOL_SECONDS = 5
"""How long a thread waits for a free connection while other threads use all connections."""
_FILE = "file"
"""The key under which a pooled connection keeps the identity of its file."""
_WHERE_SET = "SLUICE_LEDGER sets the ledger's address, SLUICE_SHARDS the address of the shards."
"""The advice in an error about an invalid address."""


@lru_cache
def database_url(text: str) -> URL:
    """Parse a SQLAlchemy URL. The driver for PostgreSQL is always psycopg.

    The address of a SQLite file may end with `?synchronous=off`: see `is_durable`.

    Raise SettingsError if the URL is invalid. The error omits the URL, which may contain a
    password.
    """
    try:
        url = make_url(text)
    except (ArgumentError, ValueError):
        # SQLAlchemy raises ValueError for a port that is not a number.
        raise SettingsError(
            "A database's address is not a URL such as sqlite:////data/ledger.sqlite.",
            next_step=_WHERE_SET,
        ) from None
    backend = url.get_backend_name()
    if backend == "postgresql":
        # `postgres_connection` ends waits for a server that no longer answers. This works only with
        # psycopg.
        return url.set(drivername="postgresql+psycopg")
    if backend == "sqlite" and url.database:
        return url
    raise SettingsError(
        f"A database's address starts with {url.drivername!r}, which Sluice does not support.",
        next_step=f"Use sqlite:///... or postgresql://... {_WHERE_SET}",
    )


def secret_parameters(url: URL) -> dict[str, Any]:
    """Return the parameters of a URL that hold secrets, such as `sslpassword`."""
    secrets: dict[str, Any] = {}
    for name, value in url.query.items():
        if holds_secret(name, str(value)):
            secrets[name] = value
    return secrets


def is_durable(url: URL) -> bool:
    """Return whether the data in a SQLite file must survive a crash.

    The files of a test driver may be lost.
    """
    return url.query.get("synchronous") != "off"


@contextmanager
def database_errors(doing: str, seconds: float | None = ANSWER_SECONDS) -> Iterator[None]:
    """Raise database errors as StateError, which names `doing` and the cause but never the address.

    Raise StateError, too, if the server has not answered after `seconds`. Pass None for work that
    may take long.
    """
    try:
        with waits_limited(seconds):
            yield
    except SQLAlchemyError as error:
        reason = first_line(getattr(error, "orig", None) or error)
        raise StateError(f"{doing} failed: {reason}", next_step=advice(reason)) from error


def first_line(error: BaseException | str) -> str:
    """Return the first line of an error message.

    The other lines are left out, because they may repeat SQL statements and their values.
    """
    return sentence(str(error).strip().partition("\n")[0])


def advice(reason: str) -> str:
    """Return the next step if the text of PostgreSQL's error shows the cause; otherwise empty."""
    if "read-only transaction" in reason:
        return (
            "The server or its database is read-only. Use the address of the primary server, or "
            "switch default_transaction_read_only off."
        )
    if "must be owner" in reason or "permission denied for schema" in reason:
        return (
            "Only the owner of the ledger's tables creates and migrates them: open the ledger once "
            "with the owner's address in SLUICE_LEDGER, such as with sluice status."
        )
    if "permission denied for" in reason:
        return (
            "The database role in this process's SLUICE_LEDGER or SLUICE_SHARDS lacks this right. "
            "docs/security.md says which role each process needs. For example, runs, state servers "
            "and commands that change state need sluice_runs."
        )
    if "certificate" not in reason:
        return ""
    return (
        "Check that the file in sslrootcert contains the authority that signed the server's "
        "certificate, and that the certificate contains the host in the database's address."
    )


def import_dialect(address: str) -> None:
    """Import the modules for a database's address, so that forked processes need not do so.

    Raise SettingsError if the address is invalid.
    """
    url = database_url(address)
    if url.get_backend_name() == "sqlite":
        _sqlite_dialect()
    else:
        url.get_dialect().import_dbapi()


def open_engine(url: URL) -> Engine:
    """Return an engine whose transactions behave alike in PostgreSQL and in SQLite.

    SQLite gets a write-ahead log, `synchronous=FULL`, and `BEGIN IMMEDIATE` for writers.
    """
    if url.get_backend_name() != "sqlite":
        # PostgreSQL may have been restarted since a connection of the pool was last used.
        secrets = secret_parameters(url)
        engine = create_engine(
            # SQLAlchemy masks only the log-in when it shows an engine, so keep other secrets out of
            # its URL.
            url.difference_update_query(secrets),
            pool_pre_ping=True,
            pool_timeout=_POOL_SECONDS,
            hide_parameters=True,
        )
        # With psycopg's own connections, a wait for a server that is gone would never end.
        event.listen(
            engine,
            "do_connect",
            lambda _dialect, _record, _arguments, parameters: _connect(parameters | secrets),
        )
        return engine
    path = Path(url.database or "")
    try:
        make_folder(path.parent)
        make_file(path)
    except OSError as error:
        raise StateError(
            f"Cannot create the database file: {error.strerror}.",
            next_step="Check the file's folder (SLUICE_HOME, SLUICE_LEDGER or SLUICE_SHARDS): "
            "its permissions and free space.",
        ) from None
    path, durable = path.absolute(), is_durable(url)
    engine = create_engine(
        url.set(query={}),
        creator=lambda: _connect_sqlite(path),
        execution_options={"compiled_cache": _COMPILED_FOR_SQLITE},
        # An error must not show the values of its statement, such as a key that signs cursors.
        hide_parameters=True,
    )
    # SQLAlchemy makes a dialect for each engine, and caches the SQL of statements per dialect. All
    # SQLite engines share one dialect, so that a process that opens many ledgers, such as a test
    # run, compiles each statement only once.
    engine.dialect = _sqlite_dialect()
    _listen_sqlite(engine, path, durable=durable)
    return engine


def _listen_sqlite(engine: Engine, path: Path, *, durable: bool) -> None:
    """Prepare the connections of an engine, and replace those whose file was replaced.

    SQLite keeps using a file that was removed or renamed. A process would then read and write the
    old file, while others use the file in its place.
    """

    def prepare(connection: sqlite3.Connection, entry: ConnectionPoolEntry) -> None:
        _prepare_sqlite(connection, path, durable)
        entry.info[_FILE] = file_identity(path)

    def require_same_file(_: object, entry: ConnectionPoolEntry, __: object) -> None:
        identity = file_identity(path)
        if identity is None:
            raise _gone(path)
        if identity != entry.info[_FILE]:
            # With this error, SQLAlchemy opens another connection.
            raise DisconnectionError

    event.listen(engine, "connect", prepare)
    event.listen(engine, "checkout", require_same_file)
    event.listen(engine, "begin", _begin_sqlite)


def _connect_sqlite(path: Path) -> sqlite3.Connection:
    if file_identity(path) is None:
        raise _gone(path)
    # Without this mode, SQLite would create a missing file.
    address = f"{path.as_uri()}?mode=rw"
    return sqlite3.connect(address, uri=True, timeout=BUSY_SECONDS, check_same_thread=False)


def _gone(path: Path) -> StateError:
    return StateError(
        f"The ledger's file is gone: {path}.",
        next_step="Restore it from a backup: sluice restore. If it is lost for good, see what can "
        "be recovered of each pipeline: sluice recover PIPELINE --dry-run.",
    )


@cache
def _sqlite_dialect() -> Dialect:
    """Return the dialect that all SQLite engines of this process share.

    The dialect learns SQLite's version from the first connection.
    """
    engine = create_engine("sqlite://")
    engine.connect().close()
    return engine.dialect


def as_json(value: Any) -> str:
    """Return a value as JSON text for a column."""
    return msgspec.json.encode(value).decode()


@contextmanager
def transaction(engine: Engine) -> Iterator[Connection]:
    """Yield a write transaction, committed at the end of the block and rolled back on an error."""
    with engine.connect().execution_options(sluice_writes=True) as connection, connection.begin():
        yield connection


def insert_of(dialect: str) -> Callable[..., Any]:
    """Return the function `insert` of a dialect. Its statements can also update existing rows."""
    # Importing both dialects would take 25 ms, and a process needs only the dialect of its own
    # database.
    insert: Callable[..., Any] = import_module(f"sqlalchemy.dialects.{dialect}").insert
    return insert


@contextmanager
def reading(engine: Engine) -> Iterator[Connection]:
    """Yield a read transaction. All its statements see the database as its first statement does."""
    # By default, each statement in PostgreSQL sees the newest commits. In SQLite, all statements of
    # a transaction always see the same state.
    options = {}
    if engine.dialect.name == "postgresql":
        options = {"isolation_level": "REPEATABLE READ"}
    with engine.connect().execution_options(**options) as connection, connection.begin():
        yield connection


def close_file(url: str) -> None:
    """Move the write-ahead log of a SQLite database into the database's file.

    No other process may have the database open. The file can then be read on a read-only disk.
    """
    with database_errors("Closing the database"):
        engine = create_engine(database_url(url))
        with engine.connect() as connection:
            connection.exec_driver_sql("PRAGMA journal_mode=DELETE")
        engine.dispose()


def _prepare_sqlite(connection: sqlite3.Connection, path: Path, durable: bool) -> None:
    # Without this setting, Python's driver would begin transactions by itself, and only before a
    # write.
    connection.isolation_level = None
    # The first access to the file, which raises an error if the file is not a database.
    prepare_to_write(connection, durable=durable)
    close_database(path)


def _connect(parameters: dict[str, Any]) -> Any:
    # Psycopg is imported only for a connection, because importing it takes a while.
    from sluice.state.postgres_connection import connect

    session = {
        "lock_timeout": f"{LOCKED_SECONDS:g}s",
        "idle_in_transaction_session_timeout": f"{SILENT_SECONDS}s",
    }
    return connect(**parameters, session=session)


def _begin_sqlite(connection: Connection) -> None:
    writes = connection.get_execution_options().get("sluice_writes")
    # A transaction that first reads and then writes fails if another process has written in
    # between. A transaction that begins as a writer waits for the other process.
    connection.exec_driver_sql("BEGIN IMMEDIATE" if writes else "BEGIN")


def prepare_to_write(connection: sqlite3.Connection, *, durable: bool) -> None:
    """If the data must survive a crash, use a write-ahead log, and flush every commit to disk.

    Without `durable`, use faster settings, with which a crash may lose data.
    """
    if not durable:
        connection.execute("PRAGMA journal_mode=MEMORY")
        connection.execute("PRAGMA synchronous=OFF")
        return
    deadline = time.monotonic() + BUSY_SECONDS
    while True:
        try:
            connection.execute("PRAGMA journal_mode=WAL")
            break
        except sqlite3.OperationalError:
            # Switching a new file to WAL fails while another process does the same, so this process
            # tries again.
            if time.monotonic() > deadline:
                raise
            time.sleep(0.01)
    # With a write-ahead log, a weaker setting may lose the last commits when the machine loses
    # power.
    connection.execute("PRAGMA synchronous=FULL")
