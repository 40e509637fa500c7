"""Writes the rows of batches to tables of a PostgreSQL database, each batch in one transaction.

The table `sluice_batches` in the connection's default schema has a row per pipeline: the writer's
epoch, and the last batch with its numbers of rows. Every transaction updates this row. The row also
lists the pipeline's tables: no other pipeline may write to them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import msgspec
import psycopg
import structlog
from psycopg import IsolationLevel
from psycopg.conninfo import conninfo_to_dict
from psycopg.sql import SQL, Composable, Composed, Identifier, Literal

from sluice.errors import BatchDiffers, EngineError, LeaseError, SettingsError, sentence
from sluice.sinks.postgres_columns import PostgresColumn, created_type, fits, tells_keys_apart
from sluice.sinks.target import BatchId, Published, Row, Rows, Target, Written, written_rows
from sluice.state.fencing import next_epoch
from sluice.state.postgres_connection import SESSION, connect, set_settings
from sluice.values.sink_tables import PostgresTable, connection_variable

log = structlog.get_logger()

BATCHES = "sluice_batches"
_CREATE_BATCHES = SQL(
    "CREATE TABLE IF NOT EXISTS {} (pipeline text PRIMARY KEY, epoch bigint NOT NULL, generation "
    "integer, batch bigint, begun bigint, rows jsonb, tables text[], written_at timestamp with "
    "time zone)"
).format(Identifier(BATCHES))
_BEFORE_RELEASE = SQL(
    "SELECT 1 FROM pg_attribute WHERE attrelid = {}::regclass AND attname = 'job' AND NOT "
    "attisdropped"
).format(Literal(BATCHES))
_SETTINGS = {
    **SESSION,
    "lock_timeout": "60s",
    "timezone": "UTC",
    # If a driver is paused while it holds locks, PostgreSQL must end its transaction before the
    # `lock_timeout` of other drivers.
    "idle_in_transaction_session_timeout": "30s",
}
_NO_TABLES = {"v": "view", "m": "materialized view", "f": "foreign table"}


@dataclass(frozen=True)
class PostgresTarget(Target):
    """A table of a database to which a pipeline writes."""

    table: PostgresTable

    @property
    def created(self) -> dict[str, str]:
        """The columns with the PostgreSQL types that Sluice would give them.

        An unknown type is an empty text.
        """
        types: dict[str, str] = {}
        for name, kind in self.wanted.items():
            default = "text" if name == self.table.key else ""
            types[name] = self.table.types.get(name) or created_type(kind) or default
        return types

    @property
    def declared(self) -> tuple[PostgresColumn, ...]:
        """The columns of the table if Sluice creates it."""
        return tuple(PostgresColumn(name, kind) for name, kind in self.created.items())

    @property
    def name(self) -> Identifier:
        return Identifier(*self.table.name.split("."))


@dataclass
class PostgresTables:
    """The tables of one database to which a pipeline writes.

    Implements `TableSink`. Each call opens its own connection. Between batches, no connection is
    open.
    """

    connection: str
    url: str = field(repr=False)
    pipeline: str
    targets: Sequence[PostgresTarget]
    epoch: int = 0
    columns: Mapping[str, tuple[PostgresColumn, ...]] = field(default_factory=dict)
    formerly: Sequence[str] = ()
    """The former names of the pipeline. The row of a former name becomes the row of the
    pipeline."""
    _newest: BatchId | None = field(default=None, init=False)
    """The database's last batch that this writer has read or written."""

    def begin(self, published: Published | None) -> None:
        """Create or check the tables, and fence off earlier writers.

        Raises EngineError if another pipeline writes one of the tables.
        """
        # `fence` uses a separate transaction, which ends at once. An earlier writer that waits for
        # the pipeline's row therefore fails before the checks below have ended.
        self.fence()
        with self._transaction("Checking the tables") as database:
            newest, written = self._newest_batch(database)
            columns: dict[str, tuple[PostgresColumn, ...]] = {}
            for target in self.targets:
                output = target.output
                columns[output] = _create_or_check(database, target, written.get(output))
            self.columns = columns
            self._claim(database)
        self._newest = newest
        if published is not None and self._lacks(published):
            raise self._incomplete_error(published.batch, "the pipeline ran without these tables")

    def _lacks(self, published: Published) -> bool:
        """Return whether the database's last batch is older than the batch published last."""
        outputs = {target.output for target in self.targets}
        has_tables = not published.outputs.isdisjoint(outputs)
        if self._newest is None:
            return has_tables
        if self._newest.generation == published.batch.generation:
            return self._newest.number < published.batch.number
        # A rebuild renumbers the batches in a new generation and writes no rows. So its batches
        # cannot be compared with an earlier generation's batches. A batch that a run has written is
        # in the database, unless its tables were added to the pipeline later.
        is_written = published.is_written and has_tables
        return is_written and self._newest.generation < published.batch.generation

    def _incomplete_error(self, expected: BatchId, otherwise: str) -> EngineError:
        """Return the error for a database whose last batch is older than the batch `expected`."""
        end = "have no batch"
        if self._newest is not None:
            end = f"end at batch {self._newest.snapshot}"
        return EngineError(
            f"The tables of {self.pipeline} in the database of {self.connection} {end}, but batch "
            f"{expected.snapshot} is written. Possible causes: the database has lost its newest "
            "commits, for example in a fail-over to a replica that lagged; it is another database; "
            f"or {otherwise}.",
            next_step=(
                "Restore the database. To continue without the missing rows: "
                f"UPDATE {BATCHES} SET generation = {expected.generation}, "
                f"batch = {expected.number}, begun = 0, rows = '{{}}' "
                f"WHERE pipeline = '{self.pipeline}'."
            ),
        )

    def _claim(self, database: psycopg.Connection) -> None:
        """Record the pipeline's tables in the database.

        Raises EngineError if two outputs or two pipelines write to the same table.
        """
        # This lock makes pipelines begin one after the other. If two pipelines began at the same
        # time, neither would see the other pipeline's tables.
        database.execute("SELECT pg_advisory_xact_lock(hashtext(%s))", [BATCHES])
        writers: dict[str, PostgresTarget] = {}
        for target in self.targets:
            name = _qualified(database, target)
            other = writers.setdefault(name, target)
            if other is not target:
                raise EngineError(
                    f"The outputs {other.output} ({other.at}) and {target.output} ({target.at}) "
                    f"both write to the table {name}.",
                    next_step="Merge the streams, and write to the table once.",
                )
        taken = database.execute(
            SQL(
                "SELECT pipeline, name FROM {}, unnest(tables) AS name WHERE pipeline <> %s AND "
                "name = ANY(%s)"
            ).format(Identifier(BATCHES)),
            [self.pipeline, [*writers]],
        ).fetchone()
        if taken is not None:
            pipeline, name = taken
            raise EngineError(
                f"The pipeline {pipeline} already writes the table {name} ({writers[name].at}). "
                "Each would replace the other's rows.",
                next_step=(
                    f"Give one of them another table. If {pipeline} no longer writes it: "
                    f"UPDATE {BATCHES} SET tables = array_remove(tables, '{name}') "
                    f"WHERE pipeline = '{pipeline}'."
                ),
            )
        database.execute(
            SQL("UPDATE {} SET tables = %s WHERE pipeline = %s").format(Identifier(BATCHES)),
            [[*writers], self.pipeline],
        )

    def fence(self) -> None:
        """Take the next epoch. Earlier writers can then no longer commit."""
        with self._transaction("Taking over the tables") as database:
            if database.execute("SELECT to_regclass(%s)", [BATCHES]).fetchone() == (None,):
                database.execute(_CREATE_BATCHES)
            elif database.execute(_BEFORE_RELEASE).fetchone() is not None:
                raise EngineError(
                    f"The table {BATCHES} in the database of {self.connection} is from before the "
                    "first release of Sluice.",
                    next_step=f"Drop the table: DROP TABLE {BATCHES}. The next runs write all "
                    "rows again.",
                )
            if self.formerly:
                # Rename the row, so that a driver that still uses the former name finds no row.
                database.execute(
                    SQL(
                        "UPDATE {0} SET pipeline = %s WHERE pipeline = ANY(%s) "
                        "AND NOT EXISTS (SELECT 1 FROM {0} WHERE pipeline = %s)"
                    ).format(Identifier(BATCHES)),
                    [self.pipeline, [*self.formerly], self.pipeline],
                )
            database.execute(
                SQL(
                    "INSERT INTO {} (pipeline, epoch) VALUES (%s, 0) ON CONFLICT DO NOTHING"
                ).format(Identifier(BATCHES)),
                [self.pipeline],
            )
            self.epoch = next_epoch(self._locked_epoch(database))
            database.execute(
                SQL("UPDATE {} SET epoch = %s WHERE pipeline = %s").format(Identifier(BATCHES)),
                [self.epoch, self.pipeline],
            )

    def write(self, batch: BatchId, rows: Mapping[str, Rows]) -> dict[str, int]:
        """Write a batch's rows. `rows`: output → its rows.

        Returns the number of rows written and deleted per output.
        """
        with self._transaction("Writing the tables") as database:
            newest, written = self._newest_batch(database)
            self._require_unchanged(newest)
            # If the database's last batch is this batch, the driver that wrote it ended before it
            # published the snapshot.
            if newest != batch:
                written = {}
            now = {target.output: written_rows(rows[target.output]) for target in self.targets}
            self._require_same(batch, written, now)
            # Copy the rows to temporary tables before locking the pipeline's row. A driver that is
            # paused here then does not block other drivers.
            merges: list[Composed] = []
            for number, target in enumerate(self.targets):
                if target.output not in written:
                    merges += self._copy_rows(database, number, target, rows[target.output])
            # `_require_epoch` ends this driver if another driver has taken over. Otherwise, it
            # locks the pipeline's row: no other driver can take over before this transaction has
            # ended.
            self._require_epoch(database)
            for merge in merges:
                database.execute(merge)
            # If the batch was written to a table before, keep the count of the rows written then.
            now |= written
            database.execute(
                SQL(
                    "UPDATE {} SET generation = %s, batch = %s, begun = %s, rows = %s, written_at "
                    "= now() WHERE pipeline = %s"
                ).format(Identifier(BATCHES)),
                [*batch, msgspec.json.encode(now).decode(), self.pipeline],
            )
        self._newest = batch
        if written:
            log.info("rows were written already", connection=self.connection, batch=batch.snapshot)
        counts: dict[str, int] = {}
        for output, of_output in now.items():
            counts[output] = of_output.count
        return counts

    def _require_unchanged(self, newest: BatchId | None) -> None:
        """Raise EngineError if the database has lost the batch that this writer wrote last."""
        expected, self._newest = self._newest, newest
        if expected is None:
            return
        if newest is None or newest[:2] < expected[:2]:
            raise self._incomplete_error(expected, "another program has changed them")

    def _require_same(
        self,
        batch: BatchId,
        written: Mapping[str, Written],
        now: Mapping[str, Written],
    ) -> None:
        """Raise BatchDiffers unless a repeated batch has the rows that were written."""
        differences: list[str] = []
        for output in now:
            if output in written:
                difference = written[output].difference(output, now[output])
                if difference:
                    differences.append(difference)
        if differences:
            raise BatchDiffers.of(self.pipeline, batch.number, differences)

    def _copy_rows(
        self, database: psycopg.Connection, number: int, target: PostgresTarget, rows: Rows
    ) -> Iterator[Composed]:
        """Copy rows to temporary tables, and yield statements that merge these into the target."""
        columns = self.columns[target.output]
        # The lock prevents changes of the table's columns until the transaction ends.
        database.execute(SQL("LOCK TABLE {} IN ACCESS SHARE MODE").format(target.name))
        if _require_fitting_columns(database, target) != columns:
            raise EngineError(
                f"The columns of the table {target.output} ({target.at}) changed during the run.",
                next_step=_NEXT_STEP,
            )
        names = [Identifier(column.name) for column in columns]
        identity = names[: len(target.identity)]
        with _at(target):
            if rows.deleted:
                deleted = Identifier(f"sluice_deleted_{number}")
                _copy(database, deleted, target, identity, rows.deleted)
                same = SQL(" AND ").join(map(SQL("t.{0} = d.{0}").format, identity))
                yield SQL("DELETE FROM {} t USING {} d WHERE {}").format(target.name, deleted, same)
            if rows.written:
                new = Identifier(f"sluice_new_{number}")
                _copy(database, new, target, names, rows.written)
                changes = [*map(SQL("{0} = EXCLUDED.{0}").format, names[len(identity) :])]
                # If all columns identify the row, an existing row is already equal.
                action: Composable = SQL("NOTHING")
                if changes:
                    action = SQL("UPDATE SET {}").format(_list(changes))
                yield SQL("INSERT INTO {} ({}) SELECT {} FROM {} ON CONFLICT ({}) DO {}").format(
                    target.name, _list(names), _list(names), new, _list(identity), action
                )

    def _newest_batch(
        self,
        database: psycopg.Connection,
    ) -> tuple[BatchId | None, dict[str, Written]]:
        """Return the newest batch in the database, and the rows that it wrote to each table.

        If there is no batch yet, return None and no rows.
        """
        row = database.execute(
            SQL("SELECT generation, batch, begun, rows FROM {} WHERE pipeline = %s").format(
                Identifier(BATCHES)
            ),
            [self.pipeline],
        ).fetchone()
        if row is None or row[0] is None:
            return None, {}
        return BatchId(*row[:3]), msgspec.convert(row[3], dict[str, Written])

    def _require_epoch(self, database: psycopg.Connection) -> None:
        """Lock the pipeline's row until the transaction ends.

        Raises LeaseError if another driver has taken over.
        """
        if self._locked_epoch(database) != self.epoch:
            raise LeaseError(
                "This driver has lost its lease and can no longer write the tables in the "
                f"database of {self.connection}: another driver has begun to write them.",
                next_step="Wait until the other driver has finished.",
            )

    def _locked_epoch(self, database: psycopg.Connection) -> int:
        """Lock the pipeline's row until the transaction ends.

        Return its epoch; 0 if it has no row.
        """
        row = database.execute(
            SQL("SELECT epoch FROM {} WHERE pipeline = %s FOR UPDATE").format(Identifier(BATCHES)),
            [self.pipeline],
        ).fetchone()
        return 0 if row is None else int(row[0])

    @contextmanager
    def _transaction(self, doing: str) -> Iterator[psycopg.Connection]:
        """Yield a transaction. Raise EngineError for the database's errors."""
        try:
            with connect(self.url, application_name=f"sluice.{self.pipeline}") as database:
                # The address may lead to a connection pooler, such as PgBouncer, which gives each
                # transaction another connection. So neither settings nor prepared statements may
                # outlast the transaction.
                database.isolation_level = IsolationLevel.READ_COMMITTED
                database.prepare_threshold = None
                set_settings(database, _SETTINGS, of_transaction=True)
                yield database
        except psycopg.Error as error:
            raise EngineError(
                f"{doing} in the database of {self.connection} failed: {_reason(error)}",
                next_step=_NEXT_STEP,
            ) from None


_NEXT_STEP = (
    "Nothing from the batch was published. Remove the cause, then run again: the next run repeats "
    "the batch."
)


@contextmanager
def _at(target: PostgresTarget) -> Iterator[None]:
    try:
        yield
    except psycopg.Error as error:
        raise EngineError(
            f"The rows for {target.output} ({target.at}) were not written: {_reason(error)}",
            next_step=_NEXT_STEP,
        ) from None


def _reason(error: psycopg.Error) -> str:
    """Return the database's message with its detail, on one line.

    A message never contains the password.
    """
    sentences: list[str] = []
    for text in (
        error.diag.message_primary or str(error),
        error.diag.message_detail,
        error.diag.context,
    ):
        if text:
            sentences.append(sentence(" ".join(text.split())))
    return " ".join(sentences)[:500]


def _copy(
    database: psycopg.Connection,
    name: Identifier,
    target: PostgresTarget,
    columns: Sequence[Identifier],
    rows: Sequence[Row],
) -> None:
    """Copy rows to a new temporary table with the target's column types, but no constraints."""
    database.execute(
        SQL("CREATE TEMPORARY TABLE {} ON COMMIT DROP AS SELECT {} FROM {} WITH NO DATA").format(
            name, _list(columns), target.name
        )
    )
    with database.cursor().copy(SQL("COPY {} FROM STDIN").format(name)) as copy:
        for row in rows:
            copy.write_row(row)


def _list(items: Sequence[Composable]) -> Composed:
    return SQL(", ").join(items)


def _create_or_check(
    database: psycopg.Connection, target: PostgresTarget, written: Written | None
) -> tuple[PostgresColumn, ...]:
    """Create a table if it is missing, and return its columns.

    `written` are the number and the checksum of the last batch's rows, or None if no batch has
    written the table. Raises EngineError if the table does not fit the rows.
    """
    with _at(target):
        name = target.name.as_string(database)
        if database.execute("SELECT to_regclass(%s)", [name]).fetchone() == (None,):
            if written is not None:
                raise EngineError(
                    f"The table {target.output} ({target.at}) is gone, with the rows of earlier "
                    "batches.",
                    next_step=(
                        f"Restore the table. To continue with an empty table: UPDATE {BATCHES} "
                        f"SET rows = rows - '{target.output}', and then run again."
                    ),
                )
            _create(database, target)
        return _require_fitting_columns(database, target)


def _create(database: psycopg.Connection, target: PostgresTarget) -> None:
    unknown = [name for name, kind in target.created.items() if not kind]
    if unknown:
        raise EngineError(
            f"The table {target.output} ({target.at}) does not exist, and the types of its columns "
            f"{', '.join(unknown)} are unknown.",
            next_step=f'Give the types: types={{"{unknown[0]}": "text"}}. Or create the table.',
        )
    definitions: list[Composable] = []
    for name, kind in target.created.items():
        definitions.append(SQL("{} {}").format(Identifier(name), SQL(kind)))
    identity = [*map(Identifier, target.identity)]
    definitions.append(SQL("PRIMARY KEY ({})").format(_list(identity)))
    database.execute(SQL("CREATE TABLE {} ({})").format(target.name, _list(definitions)))
    log.info("table created", table=target.output)


class _TableColumn(NamedTuple):
    """The description of a table's column in the database."""

    type: str
    required: bool
    """Whether the column is NOT NULL."""
    oid: int
    """PostgreSQL's number of the type."""
    is_exact: bool
    """Whether the column's collation never treats different texts as equal."""
    is_filled: bool
    """Whether PostgreSQL gives the column a value if a row has none for it."""


def _require_fitting_columns(
    database: psycopg.Connection,
    target: PostgresTarget,
) -> tuple[PostgresColumn, ...]:
    """Return the columns that the pipeline writes.

    Raises an EngineError that lists all problems of the table.
    """
    table = target.name.as_string(database)
    columns: dict[str, _TableColumn] = {}
    for name, *values in database.execute(
        "SELECT attname, format_type(atttypid, atttypmod), attnotnull, atttypid::bigint, "
        "coalesce((SELECT collisdeterministic FROM pg_collation c WHERE c.oid = attcollation), "
        "true), atthasdef OR attidentity <> '' OR attgenerated <> '' FROM pg_attribute WHERE "
        "attrelid = to_regclass(%s) AND attnum > 0 AND NOT attisdropped",
        [table],
    ):
        columns[name] = _TableColumn(*values)
    problems: list[str] = []
    for name, spark in target.wanted.items():
        if name not in columns:
            identifier = Identifier(name).as_string()
            kind = target.created[name] or "TYPE"
            problems.append(
                f"it has no column {name} (ALTER TABLE {table} ADD {identifier} {kind})"
            )
        else:
            problems += _problem_of_column(database, target, name, spark, columns[name])
    for name, column in columns.items():
        if column.required and not column.is_filled and name not in target.wanted:
            problems.append(
                f"the column {name} is NOT NULL without a default, but the pipeline does not write "
                "it"
            )
    identity = [*target.identity]
    relation = _NO_TABLES.get(_kind(database, table))
    if relation is not None:
        problems.append(
            f"it is a {relation}, and only a table can have the primary key that writing needs"
        )
    elif {*identity} <= columns.keys() and not _is_unique(database, table, identity):
        names = _list([*map(Identifier, identity)]).as_string(database)
        problems.append(
            f"its rows are not unique by {names} (ALTER TABLE {table} ADD PRIMARY KEY ({names}))"
        )
    if problems:
        raise EngineError(
            f"The table {target.output} ({target.at}) does not fit: {'; '.join(problems)}.",
            next_step="Change the table, or what the pipeline writes. Nothing was read.",
        )
    fitting: list[PostgresColumn] = []
    for name in target.wanted:
        column = columns[name]
        is_key = name in target.identity
        fitting.append(PostgresColumn(name, column.type, is_key=is_key, required=column.required))
    return tuple(fitting)


def _problem_of_column(
    database: psycopg.Connection,
    target: PostgresTarget,
    name: str,
    spark: str,
    column: _TableColumn,
) -> list[str]:
    """Return why an existing column does not fit a field of this type, as a list of one reason.

    The list is empty if the column fits.
    """
    declared = target.table.types.get(name)
    if declared is not None and not _is_type(database, declared, column.oid):
        return [f"the column {name} is {column.type}, not {declared}"]
    if not fits(spark, column.type):
        return [f"the column {name} is {column.type}, but the field is {spark}"]
    # If two different keys were equal in the database, the row of one would replace the row of the
    # other.
    if name in target.identity and not (column.is_exact and tells_keys_apart(column.type)):
        table, identifier = target.name.as_string(database), Identifier(name).as_string()
        return [
            f"the column {name} is {column.type}, in which different keys can be equal "
            f'(ALTER TABLE {table} ALTER {identifier} TYPE text COLLATE "C")'
        ]
    return []


def _qualified(database: psycopg.Connection, target: PostgresTarget) -> str:
    """Return an existing table's name with its schema, in the database's own spelling."""
    row = database.execute(
        "SELECT format('%%I.%%I', nspname, relname) FROM pg_class JOIN pg_namespace n ON n.oid = "
        "relnamespace WHERE pg_class.oid = to_regclass(%s)",
        [target.name.as_string(database)],
    ).fetchone()
    assert row is not None
    return str(row[0])


def _is_type(database: psycopg.Connection, declared: str, oid: int) -> bool:
    statement = SQL("SELECT to_regtype({})::oid::bigint").format(Literal(declared))
    return database.execute(statement).fetchone() == (oid,)


def _kind(database: psycopg.Connection, table: str) -> str:
    row = database.execute(
        "SELECT relkind::text FROM pg_class WHERE oid = to_regclass(%s)", [table]
    ).fetchone()
    assert row is not None
    return str(row[0])


def _is_unique(database: psycopg.Connection, table: str, columns: Sequence[str]) -> bool:
    """Return whether the table has a primary key or a unique index of exactly these columns."""
    # ON CONFLICT cannot use an index that is partial, deferrable or on an expression.
    indexes: Any = database.execute(
        "SELECT (SELECT array_agg(attname::text) FROM pg_attribute WHERE attrelid = indrelid AND "
        "attnum = ANY(indkey)) FROM pg_index WHERE indrelid = to_regclass(%s) AND indisunique "
        "AND indisvalid AND indpred IS NULL AND indexprs IS NULL AND indimmediate AND "
        "indnkeyatts = indnatts",
        [table],
    ).fetchall()
    return any(sorted(names) == sorted(columns) for (names,) in indexes)


def checked_url(connection: str, url: str) -> str:
    """Return the URL of a connection.

    Raises SettingsError, without the URL, if libpq cannot parse it.
    """
    try:
        conninfo_to_dict(url)
    except psycopg.ProgrammingError:
        raise SettingsError(
            f"The URL of connection {connection!r} cannot be parsed.",
            next_step=(
                f"Set {connection_variable(connection)} to "
                "postgresql://USER:PASSWORD@HOST:PORT/DATABASE."
            ),
        ) from None
    return url
