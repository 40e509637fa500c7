"""PostgreSQL tables as destinations of a pipeline's output."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import KW_ONLY, dataclass, field

from sluice.errors import TopologyError

POSITION = {"_topic": "text", "_partition": "integer", "_offset": "bigint", "_row": "bigint"}
"""The columns that identify an appended row, with their types: its source record, and its number among that record's
rows."""

WINDOW = {"window_start": "timestamp with time zone", "window_end": "timestamp with time zone"}
"""The columns of the rows of a windowed table that, together with the key, identify a row."""

_PART = r"[A-Za-z_][A-Za-z0-9_]{0,62}"
_TABLE = re.compile(rf"({_PART}\.)?{_PART}")
_CONNECTION = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,99}")
_TYPE = re.compile(r"[A-Za-z][A-Za-z0-9_ ]*(\(\d+( *, *\d+)?\))?[A-Za-z ]*(\[\])?")


@dataclass(frozen=True)
class PostgresTable:
    """A table in PostgreSQL, for `to(...)`. Each batch is written exactly once, in one transaction of the database.

    With `key`, the column with this name holds the record's key, and the table has one row per key (and window): a
    record replaces its key's row, and a null value deletes it. Without `key`, which only streams allow, every record
    appends a row; the columns `_topic`, `_partition`, `_offset` and `_row` say from which source record it comes.

    `name` is the table, such as `"totals"` or `"shop.totals"`. `connection` is the name of an Airflow connection, or of
    the environment variable `SLUICE_CONNECTION_NAME` with the database's URL. `types` gives the PostgreSQL types of
    columns, such as `{"total": "numeric(12,2)"}`, if Sluice creates the table and they should not follow from the
    fields' types.
    """

    name: str
    _: KW_ONLY
    connection: str
    key: str | None = None
    types: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for what, value, pattern, example in (
            ("table", self.name, _TABLE, "shop.totals"),
            ("connection", self.connection, _CONNECTION, "warehouse"),
            ("column", self.key, re.compile(_PART), "order_id"),
            *(("type", kind, _TYPE, "numeric(12,2)") for kind in self.types.values()),
        ):
            if value is not None and not (isinstance(value, str) and pattern.fullmatch(value)):
                raise TopologyError(
                    f"PostgresTable: {value!r} is not a valid name of a {what}.",
                    next_step=f'Write for example "{example}".',
                )

    @property
    def output(self) -> str:
        """The name in counts, audits and messages. No topic can have it, because of the colon."""
        return f"{self.connection}:{self.name}"

    def identity(self, *, is_windowed: bool) -> dict[str, str]:
        """The columns that identify a row, with their types; the type of the key's column is empty."""
        if self.key is None:
            return POSITION
        return {self.key: "", **(WINDOW if is_windowed else {})}


def connection_variable(connection: str) -> str:
    """The environment variable with the URL of a connection's database."""
    return "SLUICE_CONNECTION_" + re.sub("[^A-Z0-9]", "_", connection.upper())
