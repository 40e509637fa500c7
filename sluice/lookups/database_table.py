"""Reads rows of a database table by their keys, many keys in one statement."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import date
from decimal import Decimal, InvalidOperation
from functools import cache, cached_property, lru_cache
from typing import Any
from uuid import UUID

import msgspec
from sqlalchemy import CHAR, Column, Engine, MetaData, Table, create_engine, select
from sqlalchemy.engine import URL
from sqlalchemy.exc import (
    DataError,
    DBAPIError,
    NoSuchModuleError,
    NoSuchTableError,
    SQLAlchemyError,
)
from sqlalchemy.pool import NullPool

from sluice.errors import EngineError, SettingsError, sentence
from sluice.lookups.connections import Connection
from sluice.lookups.row_cache import Row, RowCache
from sluice.operators.call import Rows
from sluice.operators.encoding import Declared
from sluice.support.masking import masked, secrets_of_url
from sluice.values.call_parameters import LookedUpTable
from sluice.values.stored_values import has_models


def _whole_number(key: str) -> int:
    """Return the number that a key's text stands for.

    Raises ValueError for a text such as 007: as keys, the texts 007 and 7 are different.
    """
    number = int(key)
    if str(number) != key:
        raise ValueError
    return number


_KEY_TYPES: Mapping[type, Callable[[str], Any]] = {
    str: str,
    int: _whole_number,
    Decimal: Decimal,
    UUID: UUID,
    date: date.fromisoformat,
}
"""Python type of a column's values → the function that converts a key's text to this type."""


@dataclass(frozen=True)
class DatabaseTable:
    """Reads rows of a table by the texts of their keys.

    The fields of `row_type` are the columns of a row.
    """

    table: LookedUpTable
    connection: Connection
    row_type: Any
    step: str
    """The step's name in errors."""

    def read(self, keys: Sequence[str]) -> Rows:
        """Return the rows of these keys, from the cache or in one statement.

        A row that cannot be used is replaced by an exception with the reason. Raises EngineError if
        the database refuses the table.
        """
        cached = _row_cache(self.connection, self.table, self.row_type)
        rows, missing = cached.rows(keys)
        if missing:
            # A row may change while it is being read, so its age counts from the beginning of the
            # read.
            begun = cached.clock()
            try:
                read = self._read(missing)
            except SQLAlchemyError as error:
                # The text of SQLAlchemy's error has the whole statement, so show only the error's
                # cause.
                reason = masked(_first_cause(error), secrets_of_url(self.connection.url))
                raise ConnectionError(reason) from None
            cached.add(missing, read, begun)
            rows |= read
        found: dict[str, str | BaseException] = {}
        for key, row in rows.items():
            if row is not None:
                found[key] = row
        return found

    def _read(self, keys: Sequence[str]) -> dict[str, Row]:
        """Return the rows of these keys in the database. The result omits keys without a row."""
        values: dict[str, Any] = {}
        for key in keys:
            value = self._key_value(key)
            if value is not None:
                values[key] = value
        if not values:
            return {}
        try:
            return self._rows(values)
        except (DataError, OverflowError, ValueError) as error:
            # The database refuses a key, such as a text with NUL. Read the keys in halves until
            # only the refused key is left.
            if len(values) == 1:
                return dict.fromkeys(values, LookupError(_first_cause(error)))
            middle = len(keys) // 2
            return self._read(keys[:middle]) | self._read(keys[middle:])

    def _rows(self, values: Mapping[str, Any]) -> dict[str, Row]:
        key_column = self._table.c[self.table.column]
        columns = [self._table.c[name] for name in self.table.columns]
        statement = select(key_column, *columns).where(key_column.in_([*values.values()]))
        with self._engine.connect() as database:
            rows = database.execute(statement).all()
        # The database pads the values of a CHAR column with blanks, and ignores the blanks in
        # comparisons.
        is_padded = isinstance(key_column.type, CHAR)
        wanted = {*values.values()}
        rows_by_value: dict[Any, list[Sequence[Any]]] = {}
        for column_value, *row in rows:
            value = column_value.rstrip(" ") if is_padded else column_value
            if value not in wanted:
                # The value equals none of the requested keys, so its key is unknown. The database
                # may have found the value because it ignores case, for example.
                raise self._error(
                    f"returned a row of {self.table.table} whose {self.table.column} is "
                    f"{column_value!r}, which is none of the requested keys"
                )
            rows_by_value.setdefault(value, []).append(row)
        row_by_key: dict[str, Row] = {}
        for key, value in values.items():
            if value in rows_by_value:
                row_by_key[key] = self._row(rows_by_value[value], key)
        return row_by_key

    def _row(self, rows: Sequence[Sequence[Any]], key: str) -> str | BaseException:
        """Return the only row of a key, as JSON."""
        if len(rows) > 1:
            return LookupError(
                f"{len(rows)} rows of {self.table.table} have {self.table.column} {key!r}"
            )
        row: Any = dict(zip(self.table.columns, rows[0], strict=True))
        try:
            if not has_models(self.row_type):
                row = msgspec.convert(row, self.row_type)
            return self._declared.json(row)
        except Exception as error:
            # Drop the traceback: the cache must not keep its frames in memory.
            return error.with_traceback(None)

    def _key_value(self, key: str) -> Any:
        """Convert the text of a key to a value of the key column.

        Return None if the column cannot have such a value.
        """
        try:
            return self._make_value(key)
        except (ValueError, InvalidOperation):
            return None

    @cached_property
    def _declared(self) -> Declared:
        return Declared(self.row_type)

    @cached_property
    def _engine(self) -> Engine:
        try:
            return _engine(self.connection.name, self.connection.engine_url())
        except (NoSuchModuleError, ImportError) as error:
            raise SettingsError(
                f"The database of connection {self.connection.name!r} has no driver on this host: "
                f"{sentence(error)}",
                next_step=(
                    "Install the driver's package wherever Sluice is installed, also on the hosts "
                    "of Spark's executors."
                ),
            ) from None

    @cached_property
    def _table(self) -> Table:
        """The database's description of the table.

        Raises EngineError if the table or a column is missing.
        """
        schema, _, name = self.table.table.rpartition(".")
        try:
            table = Table(
                name,
                MetaData(),
                schema=schema or None,
                autoload_with=self._engine,
                resolve_fks=False,
            )
        except NoSuchTableError:
            raise self._error(f"has no table {self.table.table}") from None
        for column in (self.table.column, *self.table.columns):
            if column not in table.c:
                raise self._error(f"has a table {self.table.table}, but no column {column} in it")
        return table

    @cached_property
    def _make_value(self) -> Callable[[str], Any]:
        column: Column[Any] = self._table.c[self.table.column]
        try:
            make = _KEY_TYPES.get(column.type.python_type)
        except NotImplementedError:
            make = None
        if make is None:
            raise self._error(
                f"has keys of type {column.type} in {self.table.table}, which Sluice cannot look up"
            )
        return make

    def _error(self, problem: str) -> EngineError:
        return EngineError(
            f"{self.step}: the database of connection {self.connection.name!r} {problem}.",
            next_step="Correct lookup(...), or the database. Then run again.",
        )


def _first_cause(error: BaseException) -> str:
    """Return the database's own error on one line, without the statement."""
    cause: BaseException = error
    if isinstance(error, DBAPIError) and error.orig is not None:
        cause = error.orig
    return " ".join(str(cause).split()) or type(cause).__name__


@cache
def _engine(connection: str, url: URL) -> Engine:
    # Each read opens and closes a connection. No connection stays open while a run waits for
    # records.
    return create_engine(url, poolclass=NullPool, hide_parameters=True)


@lru_cache(maxsize=100)
def _row_cache(connection: Connection, table: LookedUpTable, row_type: Any) -> RowCache:
    """Return the cache of a table in this process. Several batches and workers use it.

    The cached rows have been checked against `row_type` and encoded, so each row type has its own
    cache.
    """
    return RowCache(table.cached_rows, table.staleness_ms)
