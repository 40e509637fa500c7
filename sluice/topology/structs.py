"""Objects as an argument of steps: a mapping from names to SQL expressions."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeAlias

from sluice.errors import TopologyError
from sluice.sql.parsed_expression import parse
from sluice.topology.source_line import source_line
from sluice.values.sql_text import named_struct

Column: TypeAlias = "str | Mapping[str, Column]"
"""An SQL expression, or the columns of a nested object by name."""


def struct(fields: Mapping[str, Column]) -> str:
    """SQL that builds an object with these fields, for use inside other SQL; nested mappings make nested objects.

    `struct({"id": "store_id", "city": "address.city"})` is `named_struct('id', store_id, 'city', address.city)`.
    """
    for column in fields.values():
        if isinstance(column, str):
            # The columns are parsed one by one, so that an error names the field's own expression.
            try:
                parse(column)
            except TopologyError as error:
                raise TopologyError(
                    f"struct at {source_line()}: {error.detail}",
                    next_step=error.next_step,
                ) from None
    return named_struct({name: column_sql(column) for name, column in fields.items()})


def column_sql(column: Column) -> str:
    return struct(column) if isinstance(column, Mapping) else column
