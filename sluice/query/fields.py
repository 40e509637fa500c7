"""Checks fields against the type of stored values, so that a misspelled field is an error."""

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
    """Raise UnknownField if the type of the store's values has no field at `path`.

    Does not check values of unknown type, or keys of a map. The error names `parameter`.
    """
    kind = store.value
    names = names_of(path)
    for number, name in enumerate(names):
        rest = ".".join(names[number:])
        # Accept any name: it may be a key of a map, or the type of an old store's values is
        # unknown.
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
    """Return the fields of a struct with their types, and no fields for any other type.

    Returns None if the text is not a type.
    """
    fields = struct_fields(ddl.strip())
    is_type = all(fields.values()) if fields else _OTHER_TYPE.match(ddl)
    return fields if is_type else None


_OTHER_TYPE = re.compile(r"\s*[a-z]+\s*([<(].*[>)])?\s*$", re.IGNORECASE | re.DOTALL)
