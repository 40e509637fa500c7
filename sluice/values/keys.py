"""Makes the text of a key, which is the same in Python and in SQL.

A key is text everywhere: in Kafka, in stores and in queries. Python functions, decoders and queries
make it with `key_text`, SQL expressions with `engine.steps.key_sql`; both write the same text.
Single values have their plain text. Objects and lists are JSON without spaces, with the names of
objects in order. Two values therefore have the same text only if they are equal.
"""

from __future__ import annotations

import dataclasses
import json
import math
from base64 import b64encode
from collections.abc import Iterable
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from enum import Enum
from typing import Any
from uuid import UUID

import msgspec

from sluice.errors import QueryError, sentence
from sluice.values.json_limits import shortened
from sluice.values.json_text import json_string
from sluice.values.pydantic_models import is_model
from sluice.values.record_metadata import MOST_KEY_BYTES
from sluice.values.stored_values import plain_model


def key_text(value: Any) -> str | None:
    """Return the text of a key; None for None.

    Raises TypeError or ValueError if the value cannot be a key.
    """
    # Almost every key is a str.
    if type(value) is str or value is None:
        return value
    # Test for Enum before str and int, because an Enum may extend these.
    if isinstance(value, Enum):
        return key_text(value.value)
    if isinstance(value, bytes | bytearray):
        return bytes(value).decode()
    plain = _plain(value)
    return _json(value) if plain is None else plain


def lookup_key(value: Any) -> str:
    """Return the text of a key to look up. Raises QueryError for a value that cannot be a key."""
    try:
        text = key_text(value)
    except (TypeError, ValueError, OverflowError) as error:
        raise QueryError(f"{value!r} cannot be a key: {sentence(error)}") from None
    if text is None:
        raise QueryError("None cannot be a key.")
    return text


def _plain(value: Any) -> str | None:
    """Return the text of a single value; None for bytes, objects and lists."""
    match value:
        case str():
            # A subclass may define `__str__`.
            return str.__str__(value)
        case bool():
            return "true" if value else "false"
        case int():
            return int.__repr__(value)
        case float():
            return _float(value)
        case Decimal():
            return _decimal(value)
        case datetime():
            # Equal moments have one text, in UTC, even if they have different zones.
            zoned = value if value.tzinfo is None else value.astimezone(UTC).replace(tzinfo=None)
            return _without_zeros(zoned.isoformat(" "))
        case date():
            return value.isoformat()
        case time() if value.tzinfo is None:
            return _without_zeros(value.isoformat())
        case timedelta():
            text: str = msgspec.to_builtins(value)
            return text
        case UUID():
            return str(value)
        case _:
            return None


def _float(value: float) -> str:
    if not math.isfinite(value):
        raise ValueError(f"{value} cannot be a key")
    # Turn -0.0 into 0.0, because equal keys must have equal texts.
    return float.__repr__(value + 0.0)


def _decimal(value: Decimal) -> str:
    """Return all digits without an exponent.

    Trailing zeros are left out, because equal amounts may differ in them.
    """
    if not value.is_finite():
        raise ValueError(f"{value} cannot be a key")
    # Without an exponent, 1E+1000000 would be a text of a million digits.
    if abs(value.adjusted()) > MOST_KEY_BYTES:
        raise ValueError(f"{shortened(str(value))} has too many digits for a key")
    text = _without_zeros(f"{value:f}")
    if text == "-0":
        return "0"
    return text


def _without_zeros(number: str) -> str:
    return number.rstrip("0").rstrip(".") if "." in number else number


def _json(value: Any) -> str:
    """Return a value as JSON within a key.

    Numbers and Booleans stay JSON numbers and Booleans; bytes, dates and times become strings.
    """
    match value:
        case None:
            return "null"
        case Enum():
            return _json(value.value)
        case bytes() | bytearray():
            return json_string(b64encode(value).decode())
        case list() | tuple():
            return _list(map(_json, value))
        case set() | frozenset():
            return _list(map(_json, sorted_items(value)))
        case dict():
            return _object(value.items())
        case msgspec.Struct():
            return _object(_fields(value))
        case _ if is_model(type(value)):
            return _json(plain_model(value))
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return _object(
            (field.name, getattr(value, field.name)) for field in dataclasses.fields(value)
        )
    text = _plain(value)
    if text is None:
        raise TypeError(f"a value of type {type(value).__name__} cannot be a key")
    return text if isinstance(value, int | float | Decimal) else json_string(text)


def sorted_items(items: Iterable[Any]) -> list[Any]:
    """Return a set's items, sorted by the texts that they have as keys.

    Equal sets then have equal texts.
    """
    return sorted(items, key=_json)


def _list(items: Iterable[str]) -> str:
    return f"[{','.join(items)}]"


def _object(pairs: Iterable[tuple[Any, Any]]) -> str:
    members: dict[str, str] = {}
    for key, value in pairs:
        name = key_text(key)
        if name is None:
            raise ValueError("an object in a key has no name")
        if name in members:
            raise ValueError(f"an object in a key has two values named {name!r}")
        members[name] = _json(value)
    named_values = [f"{json_string(name)}:{members[name]}" for name in sorted(members)]
    return f"{{{','.join(named_values)}}}"


def _fields(value: msgspec.Struct) -> Iterable[tuple[str, Any]]:
    """Yield a Struct's tag and fields, by their names in JSON."""
    config = value.__struct_config__
    if config.tag_field is not None:
        yield config.tag_field, config.tag
    for name, attribute in zip(
        value.__struct_encode_fields__, value.__struct_fields__, strict=True
    ):
        yield name, getattr(value, attribute)


DECIMAL = "E+0"
"""The suffix by which `key_of_json` recognizes a decimal. No program writes this suffix after a
double."""


def key_of_json(text: str) -> str | None:
    """Return the text of a key from JSON; None for NaN and infinity.

    Numbers with a point or an exponent are doubles, unless they are marked with `DECIMAL`.
    """
    try:
        return key_text(json.loads(text, parse_float=_number))
    except ValueError:
        return None


def _number(text: str) -> float | Decimal:
    if text.endswith(DECIMAL):
        return Decimal(text)
    return float(text)
