"""Checks of the columns that an author's values give a table outside Kafka."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from sluice.errors import TopologyError
from sluice.topology import arguments
from sluice.values.json_text import JSON_FIELD
from sluice.values.sink_tables import POSITION, WINDOW, DeltaTable, OutputTable
from sluice.values.sql_types import names_within

_TYPES_OF_KEYS = ("STRING", "BIGINT", "INT", "SMALLINT", "TINYINT")


def require_table_columns(
    where: str, table: OutputTable, fields: Mapping[str, str], *, is_windowed: bool
) -> None:
    """Raise TopologyError unless the table can have columns for the key and for these fields."""
    _require_known_types(where, fields)
    _require_free_names(where, table, fields, is_windowed=is_windowed)
    _require_possible_names(where, table, fields)
    if unknown := sorted({*table.types} - {*fields} - {table.key}):
        identity = table.identity_columns(is_windowed=is_windowed)
        columns = ", ".join([*identity, *fields])
        raise TopologyError(
            f"{where}: types= has a type for {unknown[0]!r}, but the columns are {columns}.",
            next_step="Correct the name in types=, or leave it out.",
        )
    if table.key is not None:
        _require_type_of_key(where, table.key, fields.get(table.key, "STRING"))


def _require_known_types(where: str, fields: Mapping[str, str]) -> None:
    # A table's columns must be known before its first row is written.
    if not fields:
        raise TopologyError(
            f"{where}: the fields of the value are unknown, so the columns are unknown, too.",
            next_step="Declare the type of the value with returns=, "
            "or choose fields with select(...).",
        )
    for name, kind in fields.items():
        if JSON_FIELD in kind:
            raise TopologyError(
                f"{where}: {name} has values of type Any, for which a table has no column.",
                next_step=f"Write their JSON as text: select(..., {name}='{name}.{JSON_FIELD}').",
            )


def _require_free_names(
    where: str, table: OutputTable, fields: Mapping[str, str], *, is_windowed: bool
) -> None:
    """Raise TopologyError if two columns have the same name for the table."""
    names = [*fields]
    own = {*POSITION}
    if table.key is not None:
        names = [table.key, *fields]
        if is_windowed:
            own |= WINDOW.keys()
    for name in names:
        if table.folded_name(name) in own:
            raise TopologyError(
                f"{where}: the column name {name} is reserved for Sluice.",
                next_step="Use another name, for example with select(...).",
            )
    if twins := arguments.first_twins(names, table.folded_name):
        raise TopologyError(
            f"{where}: the columns {' and '.join(twins)} differ only in case, "
            "which the table ignores.",
            next_step="Give the key's column another name.",
        )


def _require_possible_names(where: str, table: OutputTable, fields: Mapping[str, str]) -> None:
    names: Iterable[str] = fields
    # In a Delta table, nested fields keep their names, so these are checked, too. PostgreSQL gets
    # nested values as JSON.
    if isinstance(table, DeltaTable):
        names = names_within(fields)
    for name in names:
        if why := table.refusal(name):
            raise TopologyError(
                f"{where}: the table cannot have a column named {name!r}: {why}.",
                next_step="Give it another name with select(...).",
            )


def _require_type_of_key(where: str, key: str, kind: str) -> None:
    # A field is compared with the record's key as text, so each value of the field must have
    # exactly one text.
    if kind and not kind.startswith(_TYPES_OF_KEYS):
        raise TopologyError(
            f"{where}: the field {key} is {kind}, and so cannot be compared with the record's key.",
            next_step="Give the key's column another name.",
        )
