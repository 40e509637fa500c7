"""Objects as an argument of steps: a mapping from names to SQL expressions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

from sluice.errors import TopologyError
from sluice.topology import arguments
from sluice.topology.expressions import reference, require_parsed
from sluice.topology.source_line import source_line
from sluice.values.sql_text import named_struct

Column: TypeAlias = "str | Mapping[str, Column]"
"""An SQL expression, or the columns of a nested object by name."""


def struct(fields: Mapping[str, Column]) -> str:
    """Return an SQL expression that makes an object, for use in other SQL.

    `fields` maps names to expressions or mappings. `struct({"id": "store_id", "city":
    "address.city"})` is `named_struct('id', store_id, 'city', address.city)`.
    """
    for column in fields.values():
        if isinstance(column, str):
            # The columns are parsed one by one, so that an error names the field's own expression.
            try:
                require_parsed(column)
            except TopologyError as error:
                raise TopologyError(
                    f"struct at {source_line()}: {error.detail}",
                    next_step=error.next_step,
                ) from None
    return named_struct({name: column_sql(column) for name, column in fields.items()})


def column_sql(column: Column) -> str:
    if isinstance(column, Mapping):
        return struct(column)
    return column


def key_field_names(where: str, key: Any) -> tuple[str, ...]:
    """Return the fields of a key given as one name or a list of names; empty for any other key."""
    if isinstance(key, str):
        return (key,)
    if not isinstance(key, Sequence) or isinstance(key, bytes):
        return ()
    for name in key:
        arguments.require_instance(where, name, str, "the name of a field (str)")
    if len(key) < 2 or len({*key}) < len(key):
        raise TopologyError(
            f"{where}: {list(key)!r} is not a key of several fields.",
            next_step="List at least two different fields, or write the name of one field.",
        )
    return tuple(key)


def key_expression(fields: Sequence[str]) -> str | None:
    """Return the key of these fields: a field, or SQL of a struct of several fields.

    Return None without fields.
    """
    if len(fields) < 2:
        return next(iter(fields), None)
    return f"struct({', '.join(map(reference, fields))})"
