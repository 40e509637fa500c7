"""The columns of a PostgreSQL table, and their types. Encodes JSON values as texts."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any
from uuid import UUID

from sluice.sinks import column_checks

_CREATED = {
    "STRING": "text",
    "BIGINT": "bigint",
    "INT": "integer",
    "SMALLINT": "smallint",
    "TINYINT": "smallint",
    "DOUBLE": "double precision",
    "FLOAT": "real",
    "BOOLEAN": "boolean",
    "TIMESTAMP": "timestamp with time zone",
    "DATE": "date",
    "BINARY": "bytea",
    "ARRAY": "jsonb",
    "STRUCT": "jsonb",
    "MAP": "jsonb",
}
"""Spark SQL type without its parameters → the PostgreSQL type of a column that Sluice creates."""

_INTEGERS = {"smallint": 2**15, "integer": 2**31, "bigint": 2**63}
_TEXTS = ("text", "character varying", "character")
_JSON = ("json", "jsonb")
_TIMES = ("timestamp with time zone", "timestamp without time zone")
_WHOLE = (*_INTEGERS, "numeric", "real", "double precision")
_ACCEPTED = {
    "BIGINT": _WHOLE,
    "INT": _WHOLE,
    "SMALLINT": _WHOLE,
    "TINYINT": _WHOLE,
    "DECIMAL": ("numeric",),
    "DOUBLE": ("double precision", "numeric"),
    "FLOAT": ("double precision", "real", "numeric"),
    "BOOLEAN": ("boolean",),
    "TIMESTAMP": _TIMES,
    "DATE": ("date",),
    "BINARY": ("bytea",),
    "ARRAY": _JSON,
    "STRUCT": _JSON,
    "MAP": _JSON,
}
"""Spark SQL type without its parameters → the PostgreSQL types that can hold all or most of its
values."""
_FOLDED = {
    "citext",
    "inet",
    "cidr",
    "macaddr",
    "macaddr8",
    "json",
    "jsonb",
    "interval",
    "bit",
    "money",
    "xml",
}
"""Types whose values may be equal although their texts differ, and types whose values cannot be
compared."""
_ROUNDED = {"time without time zone", "time with time zone", "interval"}
"""Types whose values Sluice passes on as text. PostgreSQL rounds them if the column's type has a
precision."""
_NO_TEXT = {*_WHOLE, *_TIMES, "boolean", "date", "bytea", *_JSON}
"""Types that do not fit a field of type STRING."""

_NUL = "\0"


def created_type(spark: str) -> str:
    """Return the PostgreSQL type of a new column for a Spark SQL type.

    Return an empty text if the Spark type is unknown.
    """
    if spark.startswith("DECIMAL"):
        return f"numeric{spark.removeprefix('DECIMAL')}"
    return _CREATED.get(_without_parameters(spark), "")


def fits(spark: str, postgres: str) -> bool:
    """Return whether a column of a PostgreSQL type can hold values of a Spark SQL type.

    Any column can hold values of an unknown type.
    """
    kind, column_type = _without_parameters(spark), _without_parameters(postgres)
    if not kind:
        return True
    if kind == "STRING":
        is_rounded = column_type in _ROUNDED and "(" in postgres
        return column_type not in _NO_TEXT and not is_rounded
    return column_type in _ACCEPTED.get(kind, (column_type,))


def tells_keys_apart(postgres: str) -> bool:
    """Return whether different keys are always different values of a type.

    Only then does each key have its own row.
    """
    return _without_parameters(postgres) not in _FOLDED


def _without_parameters(kind: str) -> str:
    return re.sub(r"\(.*?\)|<.*", "", kind).strip()


@dataclass(frozen=True)
class PostgresColumn:
    """A column, with its type in the form of PostgreSQL's `format_type`.

    Implements `Column`: the encoded values are texts for COPY.
    """

    name: str
    type: str
    is_key: bool = False
    """Whether the column identifies a row. If it does, different values must stay different."""
    required: bool = False
    """Whether the column is NOT NULL."""

    @property
    def is_text(self) -> bool:
        """Whether this is a text column.

        A key that is a number is written to this column as text.
        """
        return self.type.startswith(("text", "char"))

    def encode(self, json: bytes) -> str | None:
        """Return the column's text for a JSON value.

        Raises ValueError, which names the column, if the value does not fit.
        """
        with column_checks.naming_column(self.name, self.type, json):
            if json != b"null":
                return self._encode(column_checks.decode(json), json)
            if self.required:
                raise ValueError("must not be null")
            return None

    @cached_property
    def _encode(self) -> Callable[[Any, bytes], str]:
        kind = _without_parameters(self.type)
        limits = [int(number) for number in re.findall(r"-?\d+", self.type)]
        if kind in _INTEGERS:
            return lambda value, _: str(column_checks.to_integer(value, _INTEGERS[kind]))
        if kind == "numeric":
            return lambda value, _: _numeric(value, *limits)
        if kind in _TEXTS:
            most = limits[0] if limits else None
            # The type "character" without a length has the length 1.
            if most is None and kind == "character":
                most = 1
            return lambda value, _: _text(value, most, keeps_blanks=kind != "character")
        if kind in _TIMES:
            return lambda value, _: _timestamp(value, *limits, has_zone=kind == _TIMES[0])
        if kind in _JSON:
            return _json
        if kind == "uuid":
            return lambda value, _: _uuid(value, only_canonical=self.is_key)
        return _ENCODERS.get(kind, _as_is)


def _numeric(value: Any, precision: int | None = None, scale: int = 0) -> str:
    if precision is not None:
        return str(column_checks.to_decimal(value, precision, scale))
    return str(column_checks.to_number(value))


def _text(value: Any, most: int | None, *, keeps_blanks: bool = True) -> str:
    column_checks.require_length(column_checks.to_text(value), most)
    if _NUL in value:
        raise ValueError("has a character U+0000, which PostgreSQL cannot store")
    if not keeps_blanks and value.endswith(" "):
        raise ValueError("ends with a blank, which this type does not keep")
    return str(value)


def _timestamp(value: Any, places: int = 6, *, has_zone: bool) -> str:
    moment = column_checks.to_timestamp(value, has_zone=has_zone)
    if moment.microsecond % 10 ** (6 - places):
        raise ValueError(f"has more than {places} decimal places of a second")
    return moment.isoformat()


def _json(_: Any, json: bytes) -> str:
    # In JSON, \u0000 stands for the character U+0000 only if an even number of backslashes comes
    # before it. If the number is odd, the last backslash is itself escaped, and the text has a
    # backslash and "u0000".
    if re.search(rb"(?<!\\)(\\\\)*\\u0000", json):
        raise ValueError("has a character U+0000, which PostgreSQL cannot store")
    return json.decode()


def _uuid(value: Any, *, only_canonical: bool) -> str:
    text = str(UUID(_text(value, None)))
    # For Sluice, two spellings of a UUID are two keys. For PostgreSQL, they are equal.
    if only_canonical and text != value:
        raise ValueError(f"is not written as {text}")
    return text


def _as_is(value: Any, json: bytes) -> str:
    """Return the text for a type, such as an enum, whose values only PostgreSQL can check."""
    return _text(value, None) if isinstance(value, str) else json.decode()


def _digits(value: Any, checked: float) -> str:
    """Return a number's original digits, rather than the digits of the float `checked`."""
    return str(value)


_ENCODERS: dict[str, Callable[[Any, bytes], str]] = {
    "double precision": lambda value, _: _digits(value, column_checks.to_double(value)),
    "real": lambda value, _: _digits(value, column_checks.to_single(value)),
    "boolean": lambda value, _: str(column_checks.to_boolean(value)).lower(),
    "date": lambda value, _: column_checks.to_date(value).isoformat(),
    "bytea": lambda value, _: f"\\x{column_checks.to_bytes(value).hex()}",
}
