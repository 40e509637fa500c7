"""Builders of Spark SQL text: names, literals, objects, conditions and JSON."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping


def quoted(name: str) -> str:
    """Return a field's name for use after a dot or in a type.

    There, special characters need backticks, but keywords do not.
    """
    if re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", name):
        return name
    return backticked(name)


def backticked(name: str) -> str:
    """Return `name` in backticks."""
    return f"`{name.replace('`', '``')}`"


def literal(text: str) -> str:
    """Return `text` as a literal of Spark SQL."""
    return "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"


def named_struct(fields: Mapping[str, str]) -> str:
    """Return an object with these fields, given the SQL of each."""
    pairs = [f"{literal(name)}, {sql}" for name, sql in fields.items()]
    return f"named_struct({', '.join(pairs)})"


def value_if(condition: str, sql: str) -> str:
    """Return SQL for the value where the condition is true, else null.

    Spark does not compute the value in other rows.
    """
    return f"IF({condition}, {sql}, NULL)"


def all_of(conditions: Iterable[str]) -> str:
    """Return a condition that is true if all of these conditions are true."""
    return " AND ".join(conditions)


def struct_json(sql: str) -> str:
    """Return the JSON of a struct.

    Without the option `timestampFormat`, Spark truncates times to milliseconds.
    """
    options = "'ignoreNullFields', 'false', 'timestampFormat', \"yyyy-MM-dd'T'HH:mm:ss.SSSSSSXXX\""
    return f"to_json({sql}, map({options}))"


def is_null(sql: str) -> bool:
    """Return whether an expression is the constant NULL, which has no type."""
    return sql.strip().upper() == "NULL"


def value_json(sql: str) -> str:
    """Return the JSON of any value.

    `to_json` accepts only structs, so put the value into a struct, and cut its JSON out.
    """
    # The JSON is `{"v":...}`: five characters come before the value, and one comes after it.
    wrapped = struct_json(named_struct({"v": sql}))
    return f"substring({wrapped}, 6, length({wrapped}) - 6)"


def value_of_json(text: str, kind: str) -> str:
    """Return SQL for the value of JSON that Sluice has written, given the value's Spark SQL type.

    Spark ignores the option `writer`, which tells `sql.arrow_evaluation` that the JSON is of
    exactly this type.
    """
    return f"from_json({text}, {literal(kind)}, map('writer', 'sluice'))"
