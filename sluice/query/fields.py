"""Checks fields against the Spark SQL type of stored values: a misspelled field is an error, not a missing value."""

from __future__ import annotations

import re

from sluice.errors import QueryError
from sluice.state.model import StoreInfo
from sluice.values.field_paths import names_of
from sluice.values.sql_types import struct_fields

_SHOWN = 100


class UnknownField(QueryError):
    """The store's values do not have the field."""

    status = 422
    title = "Unknown field"


def require_field(store: StoreInfo, parameter: str, path: str) -> None:
    """Raise UnknownField, which names the parameter, if the type of the store's values has no field at `path`.

    Does not check values of unknown type, or keys of a map.
    """
    kind = store.value
    names = names_of(path)
    for number, name in enumerate(names):
        rest = ".".join(names[number:])
        # Any name may be a key of a map, and the type of old stores is unknown.
        if kind == "" or re.match(r"map\s*<|variant$", kind, re.IGNORECASE):
            return
        fields = _fields(kind)
        if fields is None:
            return
        if name not in fields:
            next_step = f"Its fields are: {', '.join(fields)}."
            if not fields:
                next_step = "The values have no fields: omit the parameter."
                if number:
                    next_step = (
                        f"{'.'.join(names[:number])} has the type {kind}, which has no fields."
                    )
            for field in fields:
                if "." in field and f"{rest}.".startswith(f"{field}."):
                    next_step = (
                        f"A dot leads to a nested field: write the field {field!r} in backticks."
                    )
            raise UnknownField(
                f"{parameter}: the values of store {store.name!r} have no field {path[:_SHOWN]!r}.",
                next_step=next_step,
            )
        kind = fields[name]


def _fields(ddl: str) -> dict[str, str] | None:
    """The fields of a struct with their types; empty for any other type.

    None if the text is not a type.
    """
    fields = struct_fields(ddl.strip())
    if fields:
        return fields if all(fields.values()) else None
    return (
        {} if re.match(r"\s*[a-z]+\s*([<(].*[>)])?\s*$", ddl, re.IGNORECASE | re.DOTALL) else None
    )
