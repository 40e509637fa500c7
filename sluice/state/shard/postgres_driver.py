"""A shard in a schema of a PostgreSQL database, through psycopg."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache
from threading import RLock
from typing import TYPE_CHECKING, Any

from sqlalchemy import URL
from typing_extensions import override

from sluice.errors import DamagedState, StateError
from sluice.state.database import advice, first_line
from sluice.state.shard.database_driver import NO_CONSTANTS, Driver, Mode
from sluice.state.shard.row_columns import RowIds
from sluice.state.shard.row_tuples import StoredRow
from sluice.state.shard.schema import PROBE, require_format, tables
from sluice.state.time_limits import check_deadline, held, seconds_left, too_slow

if TYPE_CHECKING:
    import psycopg

_BEFORE_ALL = """SELECT o.* FROM unnest(%s::integer[], %s::varchar[], %s::bigint[], %s::bigint[])
    AS n (group_id, key, window_start, window_end),
    LATERAL (SELECT group_id, key, window_start, window_end, value, digest FROM state_rows AS c
        WHERE c.group_id = n.group_id AND c.key = n.key COLLATE "C"
        AND c.window_start = n.window_start
        AND c.window_end = n.window_end AND c.batch < %s
        ORDER BY c.batch DESC LIMIT 1) AS o WHERE o.value IS NOT NULL"""
_NEWEST_WINDOWS = """SELECT n.group_id, n.key, (
        SELECT max(window_start) FROM state_rows AS c WHERE c.group_id = n.group_id
        AND c.key = n.key COLLATE "C")
    FROM unnest(%s::integer[], %s::varchar[]) AS n (group_id, key)"""

_SEALED = "sealed"
"""The comment on the table `shard` of a sealed shard."""

WRITER_SILENT_S = 60
"""PostgreSQL ends a transaction whose writer has been silent for this time.

Without this limit, a driver that was paused, or whose host is gone, would block its successors. A
successor waits for twice this time.
"""

_LOCKED_S = 3
"""How long a reader waits for a program that has locked a whole table of the shard. Sluice's
writers never lock a whole table."""
_TOLERANCE = 0.1
"""To save a round trip, the previous time limit stays in force if the new time limit differs by at
most this share."""


def escape(text: str) -> str:
    """Escape NUL, which PostgreSQL cannot store: U+0000 and U+0001 become two characters each.

    Escaping preserves the order of texts, and which texts are prefixes of others.
    """
    if "\0" in text or "\1" in text:
        return text.replace("\1", "\1\2").replace("\0", "\1\1")
    return text


def unescape(text: str) -> str:
    """Return the text that `escape` has turned into this text."""
    if "\1" not in text:
        return text
    return text.replace("\1\1", "\0").replace("\1\2", "\1")


class PostgresDriver(Driver):
    """A shard in its own schema, named by `?schema=` in the address."""

    blocking = True

    def __init__(self, url: URL, mode: Mode) -> None:
        self._url = url
        self._schema = str(url.query["schema"])
        self._patience_s = _LOCKED_S if mode == "read" else 2 * WRITER_SILENT_S
        self._lock = RLock()
        self._timeout_ms = 0
        with self._errors():
            self._connection = self._connect()
            if mode == "create":
                self._create()
            require_format(self._connection.execute(PROBE).fetchall())

    def _connect(self) -> psycopg.Connection[Any]:
        from psycopg import sql

        session = {
            "search_path": sql.Identifier(self._schema).as_string(),
            "idle_in_transaction_session_timeout": f"{WRITER_SILENT_S}s",
            "lock_timeout": f"{self._patience_s}s",
            "tcp_keepalives_idle": "30",
            "tcp_keepalives_interval": "10",
            "tcp_keepalives_count": "3",
        }
        connection = _connect(self._url, session, autocommit=True)
        dumper, loader = _key_adapters()
        connection.adapters.register_dumper(str, dumper)
        connection.adapters.register_loader("varchar", loader)
        return connection

    @contextmanager
    def _errors(self) -> Iterator[None]:
        from psycopg.errors import LockNotAvailable, UndefinedTable

        with _postgres_errors():
            try:
                yield
            except UndefinedTable:
                # PostgreSQL reports the same error to a role that may not use the schema. In this
                # case, the tables may exist, and `_require_usage` raises another error.
                self._require_usage()
                raise
            except LockNotAvailable as error:
                raise StateError(
                    f"Another program has locked the shard for {self._patience_s} seconds.",
                    next_step="Find the program, for example a driver that is paused while it "
                    "writes, and stop it.",
                ) from error

    def _require_usage(self) -> None:
        """Raise StateError if this role may not use the schema.

        PostgreSQL shows such a role no tables.
        """
        usage = """SELECT current_user FROM pg_namespace
            WHERE nspname = %s AND NOT has_schema_privilege(oid, 'USAGE')"""
        denied = self._connection.execute(usage, [self._schema]).fetchone()
        if denied is not None:
            raise StateError(
                f"The PostgreSQL role {denied[0]!r} may not use the schema {self._schema!r}, which "
                "holds the shard.",
                next_step="Grant the role USAGE on the schema and SELECT on its tables, or set "
                "SLUICE_SHARDS to an address with the role that runs the pipeline.",
            )

    def _create(self) -> None:
        from psycopg import sql

        with self._connection.transaction():
            # Concurrent `CREATE ... IF NOT EXISTS` statements collide in PostgreSQL's catalogue.
            self._connection.execute("SELECT pg_advisory_xact_lock(hashtext(%s))", [self._schema])
            self._connection.execute(
                sql.SQL("CREATE SCHEMA IF NOT EXISTS {}").format(sql.Identifier(self._schema))
            )
            if self._has("state_rows") and not self._has("shard"):
                # The shard has lost its table `shard`. A new table would hide the damage, so raise
                # the error: `require_format` always raises it if it gets no rows.
                require_format(())
            for statement in tables(collation='COLLATE "C"', options="", bytes="BYTEA"):
                self._connection.execute(statement.encode())

    def _has(self, table: str) -> bool:
        query = "SELECT to_regclass(format('%%I.%%I', %s::text, %s::text)) IS NOT NULL"
        row = self._connection.execute(query, [self._schema, table]).fetchone()
        return row is not None and bool(row[0])

    @override
    def fetch(self, sql: str, values: Sequence[Any]) -> list[Any]:
        with held(self._lock), self._errors():
            check_deadline()
            # The server may have been restarted since the last query.
            if self._connection.closed:
                self._connection, self._timeout_ms = self._connect(), 0
            self._set_statement_timeout()
            return self._connection.execute(sql.replace("?", "%s"), values).fetchall()

    def _set_statement_timeout(self) -> None:
        """Make PostgreSQL cancel the next statement at the deadline of this thread's query."""
        left = seconds_left()
        # For PostgreSQL, 0 means no limit.
        timeout_ms = 0 if left is None else max(1, int(left * 1_000))
        if abs(self._timeout_ms - timeout_ms) > timeout_ms * _TOLERANCE:
            self._connection.execute(f"SET statement_timeout = {timeout_ms:d}")
            self._timeout_ms = timeout_ms

    @override
    @contextmanager
    def transaction(self) -> Iterator[None]:
        with self._lock, self._errors():
            # The server may have been restarted since the last transaction.
            if self._connection.closed:
                self._connection = self._connect()
            with self._connection.transaction():
                yield

    @override
    def hold(self) -> None:
        pass

    @override
    def release(self) -> None:
        pass

    @override
    @contextmanager
    def pinned(self) -> Iterator[None]:
        with self._lock, self._errors(), self._connection.transaction():
            self._connection.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ, READ ONLY")
            # The first read of a transaction decides which state all of its reads see.
            self._connection.execute(PROBE)
            yield

    @override
    def execute(self, sql: str, values: Sequence[Any] = ()) -> int:
        return self._connection.execute(sql.replace("?", "%s"), values).rowcount

    @override
    def execute_many(self, sql: str, rows: Sequence[Sequence[Any]]) -> int:
        with self._connection.cursor() as cursor:
            cursor.executemany(sql.replace("?", "%s"), rows)
            return max(cursor.rowcount, 0)

    @override
    def insert(
        self,
        table: str,
        columns: Sequence[str],
        rows: Iterable[Sequence[Any]],
        constants: Mapping[str, int] = NO_CONSTANTS,
    ) -> None:
        copy_sql = f"COPY {table} ({', '.join((*columns, *constants))}) FROM STDIN"
        numbers = tuple(constants.values())
        with self._connection.cursor() as cursor, cursor.copy(copy_sql.encode()) as copy:
            for row in rows:
                copy.write_row((*row, *numbers))

    @override
    def versions_before(self, batch: int, ids: RowIds) -> Iterator[StoredRow]:
        columns = (ids.group_ids, ids.keys, ids.window_starts, ids.window_ends)
        yield from self._connection.execute(_BEFORE_ALL, (*columns, batch))

    @override
    def newest_windows(self, keys: Collection[tuple[int, str]]) -> dict[tuple[int, str], int]:
        columns = ([group_id for group_id, _ in keys], [key for _, key in keys])
        rows = self._connection.execute(_NEWEST_WINDOWS, columns)
        return {(group_id, key): start for group_id, key, start in rows if start is not None}

    @override
    def check_integrity(self) -> None:
        # Page checksums are optional in PostgreSQL. If they are on, reading every row finds damaged
        # pages.
        self.fetch("SELECT count(*), sum(length(value)) FROM state_rows", ())
        self.fetch("SELECT count(*), sum(length(state)) FROM states", ())

    @override
    def has_table(self, name: str) -> bool:
        query = "SELECT to_regclass(format('%%I.%%I', ?::text, ?::text)) IS NOT NULL"
        return bool(self.fetch(query, (self._schema, name))[0][0])

    @override
    def is_current(self) -> bool:
        return True

    @override
    def is_sealed(self) -> bool:
        query = "SELECT obj_description('shard'::regclass, 'pg_class') = %s"
        ((is_sealed,),) = self.fetch(query, (_SEALED,))
        return bool(is_sealed)

    @override
    def seal(self, sealed: bool) -> None:
        with self.transaction():
            comment = f"'{_SEALED}'" if sealed else "NULL"
            self._connection.execute(f"COMMENT ON TABLE shard IS {comment}".encode())

    @override
    def close(self) -> None:
        self._connection.close()


def _connect(
    url: URL,
    session: Mapping[str, str],
    *,
    autocommit: bool = False,
) -> psycopg.Connection[Any]:
    """Connect to the database of an address, with these settings of the session.

    The query part of the address names a schema, and may have parameters for libpq. Psycopg gets
    the address in parts, because an error about an address in one text would contain the password.
    """
    from sluice.state.postgres_connection import connect

    _, parts = url.get_dialect()().create_connect_args(url.difference_update_query(["schema"]))
    return connect(**parts, session=session, autocommit=autocommit)


def has_schema(url: URL) -> bool:
    """Return whether the schema that an address names exists."""
    with _postgres_errors(), _connect(url, {}) as connection:
        query = "SELECT to_regnamespace(quote_ident(%s)) IS NOT NULL"
        row = connection.execute(query, [str(url.query["schema"])]).fetchone()
        return row is not None and bool(row[0])


def schemas_like(url: URL, pattern: str) -> list[str]:
    """Return the names of a database's schemas that match a regular expression of PostgreSQL."""
    with _postgres_errors(), _connect(url, {}) as connection:
        query = "SELECT nspname FROM pg_namespace WHERE nspname ~ %s"
        return [name for (name,) in connection.execute(query, [pattern]).fetchall()]


def schema_sizes(url: URL, schemas: Sequence[str]) -> dict[str, int]:
    """Return the bytes of tables and indexes in each of these schemas that exists."""
    with _postgres_errors(), _connect(url, {}) as connection:
        query = """SELECT n.nspname, coalesce(sum(pg_total_relation_size(c.oid)), 0)::bigint
            FROM pg_namespace AS n LEFT JOIN pg_class AS c ON c.relnamespace = n.oid
            AND c.relkind = 'r'
            WHERE n.nspname = ANY(%s) GROUP BY n.nspname"""
        return dict(connection.execute(query, [[*schemas]]).fetchall())


def drop_schema(url: URL) -> None:
    """Remove the schema that an address names, and everything in it."""
    from psycopg import sql

    with _postgres_errors(), _connect(url, {}) as connection:
        name = sql.Identifier(str(url.query["schema"]))
        connection.execute(sql.SQL("DROP SCHEMA IF EXISTS {} CASCADE").format(name))


@cache
def _key_adapters() -> tuple[type[Any], type[Any]]:
    """Make two classes for psycopg: one escapes NUL in texts, one unescapes VARCHAR."""
    from psycopg.adapt import Buffer, Loader
    from psycopg.types.string import StrDumperUnknown

    class Escaping(StrDumperUnknown):
        def dump(self, obj: str) -> Buffer | None:
            return super().dump(escape(obj))

    class Unescaping(Loader):
        def load(self, data: Buffer) -> str:
            return unescape(bytes(data).decode())

    return Escaping, Unescaping


@contextmanager
def _postgres_errors() -> Iterator[None]:
    import psycopg
    from psycopg import errors

    try:
        yield
    except psycopg.errors.QueryCanceled as error:
        # If the thread has no deadline, somebody else has cancelled the statement.
        if seconds_left() is None:
            raise StateError(f"The shard cannot be used: {first_line(error)}") from error
        raise too_slow() from None
    except (
        errors.UndefinedTable,
        errors.UndefinedColumn,
        errors.DataCorrupted,
        errors.IndexCorrupted,
    ) as error:
        raise DamagedState(f"The shard cannot be used: {first_line(error)}") from error
    except psycopg.Error as error:
        reason = first_line(error)
        raise StateError(f"The shard cannot be used: {reason}", next_step=advice(reason)) from error
