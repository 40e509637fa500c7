"""Tables outside Kafka as destinations of a pipeline's output: in PostgreSQL, and in Delta Lake."""

from __future__ import annotations

import posixpath
import re
from collections.abc import Mapping
from dataclasses import KW_ONLY, dataclass, field
from typing import TypeAlias

from sluice.errors import TopologyError
from sluice.support.masking import secrets_of_url

POSITION = {"_topic": "STRING", "_partition": "INT", "_offset": "BIGINT", "_row": "BIGINT"}
"""The columns that identify an appended row, with their Spark SQL types: the position of its source
record, and the row's number among the rows of that record."""

WINDOW = {"window_start": "TIMESTAMP", "window_end": "TIMESTAMP"}
"""The columns that, together with the key, identify a row of a windowed table."""

_PART = r"[A-Za-z_][A-Za-z0-9_]{0,62}"
TABLE_NAME = re.compile(rf"({_PART}\.)?{_PART}")
CONNECTION_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,99}")
_MOST_BYTES = 63
_SYSTEM_COLUMNS = {"tableoid", "xmin", "cmin", "xmax", "cmax", "ctid"}
_NOT_IN_DELTA = " ,;{}()\n\t="
_LOCATION = re.compile(r"([a-z][a-z0-9+.-]*:)?/[^\s`'\"\\?#*{}\[\]]*[^\s`'\"\\?#*{}\[\]/]")
_FILE_SYSTEM = re.compile("[a-z][a-z0-9+.-]*:(//[^/]*)?")
_SPARK_TYPE = re.compile(
    r"STRING|BIGINT|INT|SMALLINT|TINYINT|DOUBLE|FLOAT|BOOLEAN|DATE|TIMESTAMP|TIMESTAMP_NTZ|BINARY|"
    r"DECIMAL\(\d+, ?\d+\)"
)
_TYPE = re.compile(r"[A-Za-z][A-Za-z0-9_ ]*(\(\d+( *, *\d+)?\))?[A-Za-z ]*(\[\])?")


@dataclass(frozen=True)
class PostgresTable:
    """A table in PostgreSQL, for `to(...)`.

    Each batch is written exactly once, in one transaction of the database.

    With `key="shop"`, the column `shop` holds the record's key, and the table has one row per key
    (or per key and window). A record replaces the row of its key, and a record with a null value
    deletes the row. If `key` is not given, every record of a stream appends a row. The columns
    `_topic`, `_partition`, `_offset` and `_row` say from which source record the row comes. A
    `Table` of the pipeline cannot be written without `key`.

    `name` is the table, such as `"totals"` or `"shop.totals"`. `connection` is the name of an
    Airflow connection. Without Airflow, Sluice reads the database's URL from the environment
    variable `SLUICE_CONNECTION_NAME`, where `NAME` is the connection's name in capital letters.
    `types` gives the PostgreSQL types of columns, such as `{"total": "numeric(12,2)"}`, for a table
    that Sluice creates. All other columns get their types from the fields.
    """

    name: str
    _: KW_ONLY
    connection: str
    key: str | None = None
    types: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        _require_match(self, "table", self.name, TABLE_NAME, "shop.totals")
        _require_match(self, "connection", self.connection, CONNECTION_NAME, "warehouse")
        _require_column_name(self, self.key)
        for kind in self.types.values():
            _require_match(self, "type", kind, _TYPE, "numeric(12,2)")

    @property
    def output(self) -> str:
        """The table's name in counts and messages, such as `warehouse:shop.totals`."""
        return f"{self.connection}:{self.name}"

    @property
    def destination(self) -> str:
        """The name of the database: one transaction per batch writes its tables."""
        return self.connection

    @property
    def place(self) -> str:
        """The place of the table, for messages."""
        return f"in {self.connection}"

    def refusal(self, name: str) -> str:
        """Return why no column in PostgreSQL can have this name.

        Return an empty text if a column can have it.
        """
        if name in _SYSTEM_COLUMNS:
            return "every table of PostgreSQL has a system column of this name"
        if "\0" in name:
            return "PostgreSQL's names cannot contain NUL"
        # PostgreSQL truncates longer names, so two of them could become one.
        if len(name.encode()) > _MOST_BYTES:
            return f"PostgreSQL's names have at most {_MOST_BYTES} bytes"
        return ""

    def folded_name(self, name: str) -> str:
        """Return the folded name. All spellings of a column's name have the same folded name."""
        return name

    def identity_columns(self, *, is_windowed: bool) -> dict[str, str]:
        """Return the columns that identify a row, each with its Spark SQL type.

        The type of the key's column is an empty text, because it depends on the value's fields.
        """
        return _identity_columns(self.key, is_windowed)


@dataclass(frozen=True)
class DeltaTable:
    """A Delta Lake table, for `to(...)`.

    Each batch is written exactly once, in one transaction of the table.

    `name` is the table's location: a folder as an absolute path or as a URI, such as
    `"s3a://lake/shop/totals"`. Spark must be able to write there.

    With `key="shop"`, the column `shop` holds the record's key, and the table has one row per key
    (or per key and window). A record replaces the row of its key, and a record with a null value
    deletes the row. If `key` is not given, every record of a stream appends a row. The columns
    `_topic`, `_partition`, `_offset` and `_row` say from which source record the row comes. A
    `Table` of the pipeline cannot be written without `key`.

    `types` gives the Spark SQL types of columns, such as `{"total": "DECIMAL(12,2)"}`, for a table
    that Sluice creates. All other columns get their types from the fields.
    """

    name: str
    _: KW_ONLY
    key: str | None = None
    types: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        _require_match(self, "location", self.name, _LOCATION, "s3a://lake/shop/totals")
        # Logs and errors show the location, so a password in it would be shown, too.
        if any(secrets_of_url(self.name)):
            raise TopologyError(
                "DeltaTable: a location must not contain a password.",
                next_step="Give Spark the credentials of the file system in SLUICE_SPARK_CONF.",
            )
        match = _FILE_SYSTEM.match(self.name)
        file_system = ""
        if match:
            file_system = match[0]
        path = posixpath.normpath("/" + self.name.removeprefix(file_system).lstrip("/"))
        normal = path
        if file_system not in ("file:", "file://"):
            normal = file_system + path
        if normal != self.name:
            raise TopologyError(
                f"DeltaTable: {self.name!r} is another way to write {normal!r}.",
                next_step=f"Write {normal!r}. Otherwise, two outputs could be the same table.",
            )
        _require_column_name(self, self.key)
        for kind in self.types.values():
            _require_match(self, "type", kind, _SPARK_TYPE, "DECIMAL(12,2)")

    @property
    def output(self) -> str:
        """The table's name in counts and messages, such as `delta:s3a://lake/shop/totals`."""
        return f"delta:{self.name}"

    @property
    def destination(self) -> str:
        """The name of this table: one transaction per batch writes it."""
        return self.output

    @property
    def place(self) -> str:
        """The place of the table, for messages."""
        return "in Delta Lake"

    def refusal(self, name: str) -> str:
        """Return why no column in Delta Lake can have this name.

        Return an empty text if a column can have it.
        """
        signs = [sign for sign in name if sign in _NOT_IN_DELTA]
        if signs:
            return f"names in Delta Lake cannot contain {signs[0]!r}"
        return ""

    def folded_name(self, name: str) -> str:
        """Return the folded name. All spellings of a column's name have the same folded name."""
        return name.lower()

    def identity_columns(self, *, is_windowed: bool) -> dict[str, str]:
        """Return the columns that identify a row, each with its Spark SQL type.

        The type of the key's column is an empty text, because it depends on the value's fields.
        """
        return _identity_columns(self.key, is_windowed)


def _require_column_name(table: OutputTable, name: str | None) -> None:
    if name is not None and not (isinstance(name, str) and name):
        raise TopologyError(
            f"{type(table).__name__}: {name!r} is not the name of a column.",
            next_step="Pass the name as a str.",
        )
    if name is not None and (why := table.refusal(name)):
        raise TopologyError(
            f"{type(table).__name__}: {name!r} is not a valid name of a column: {why}.",
            next_step="Choose another name.",
        )


OutputTable: TypeAlias = PostgresTable | DeltaTable
"""A table outside Kafka to which a pipeline writes."""


def _require_match(
    table: OutputTable,
    what: str,
    value: str | None,
    pattern: re.Pattern[str],
    example: str,
) -> None:
    if value is not None and not (isinstance(value, str) and pattern.fullmatch(value)):
        raise TopologyError(
            f"{type(table).__name__}: {value!r} is not a valid name of a {what}.",
            next_step=f'Write for example "{example}".',
        )


def _identity_columns(key: str | None, is_windowed: bool) -> dict[str, str]:
    if key is None:
        return POSITION
    if is_windowed:
        return {key: "", **WINDOW}
    return {key: ""}


def connection_variable(connection: str) -> str:
    """Return the environment variable with the URL of a connection's database."""
    return "SLUICE_CONNECTION_" + re.sub("[^A-Z0-9]", "_", connection.upper())
