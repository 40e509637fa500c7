"""Checks fields against the Spark SQL type of stored values: a misspelled field is an error, not a missing value."""

from __future__ import annotations

import re

from sluice.errors import QueryError
from sluice.state.model import StoreInfo

_SHOWN = 100
_TOKEN = re.compile(r"`((?:[^`]|``)+)`|([<>(),:])|([^<>(),:`\s]+)")


class UnknownField(QueryError):
    """The store's values do not have the field."""

    status = 422
    title = "Unknown field"


def demand_field(store: StoreInfo, parameter: str, path: str) -> None:
    """Raise UnknownField, which names the parameter, if the type of the store's values has no field at `path`.

    Does not check values of unknown type, or keys of a map.
    """
    kind = store.value
    names = path.split(".") if path else []
    for number, name in enumerate(names):
        rest = ".".join(names[number:])
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
                    next_step = f"{'.'.join(names[:number])} has the type {kind}, which has no fields."
            if dotted := next((field for field in fields if "." in field and f"{rest}.".startswith(f"{field}.")), None):
                next_step = f"A dot leads to a nested field: rename the field {dotted!r} in the pipeline to query it."
            raise UnknownField(
                f"{parameter}: the values of store {store.name!r} have no field {path[:_SHOWN]!r}.", next_step=next_step
            )
        kind = fields[name]


def _fields(ddl: str) -> dict[str, str] | None:
    """The fields of a struct with their types; empty for any other type. None if the text is not a type."""
    if not (inner := re.fullmatch(r"\s*struct\s*<(.*)>\s*", ddl, re.IGNORECASE | re.DOTALL)):
        return {} if re.match(r"\s*[a-z]+\s*([<(].*[>)])?\s*$", ddl, re.IGNORECASE | re.DOTALL) else None
    fields: dict[str, str] = {}
    name, begin, depth = None, 0, 0
    for token in _TOKEN.finditer(inner[1] + ","):
        quoted, sign, plain = token.groups()
        if depth == 0 and name is None and sign is None:
            name, begin = quoted.replace("``", "`") if quoted is not None else plain, token.end()
        elif sign in ("<", "("):
            depth += 1
        elif sign in (">", ")"):
            depth -= 1
        elif sign == "," and depth == 0:
            kind = inner[1][begin : token.start()].strip()
            if name is None or not kind.startswith(":"):
                return None
            fields[name], name = kind[1:].strip(), None
    return fields
