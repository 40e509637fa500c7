"""Converts Protobuf messages to plain data, and plain data to messages."""

from __future__ import annotations

from base64 import b64decode
from collections.abc import Callable
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import Any, TypeAlias

from sluice.values.avro_values import unchanged
from sluice.values.avro_written import UnwritableError
from sluice.values.json_limits import shortened
from sluice.values.proto_descriptors import is_entry, is_wrapper
from sluice.values.proto_schemas import TIMESTAMP

_1970 = datetime(1970, 1, 1, tzinfo=UTC)
Plain: TypeAlias = Callable[[Any], Any]
_BOOL, _STRING = 8, 9
"""Numbers of types in Protobuf's descriptors."""


# -- Message indexes


def read_indexes(data: bytes, at: int) -> tuple[tuple[int, ...], int]:
    """Read the message index of a value: the places of messages within messages.

    Raises ValueError.
    """
    count, at = _zigzag(data, at)
    if count == 0:
        return (0,), at
    if not 0 < count < 100:
        raise ValueError(f"the path to the value's message has an invalid length: {count}")
    places: list[int] = []
    for _ in range(count):
        place, at = _zigzag(data, at)
        places.append(place)
    return tuple(places), at


def _zigzag(data: bytes, at: int) -> tuple[int, int]:
    number, shift = 0, 0
    while True:
        if at >= len(data) or shift > 63:
            raise ValueError("the value ends within the path to its message")
        byte = data[at]
        at += 1
        number |= (byte & 0x7F) << shift
        shift += 7
        if byte < 0x80:
            return (number >> 1) ^ -(number & 1), at


# -- Values


def plain_reader(descriptor: Any) -> Plain:
    """Return the function that turns a message into plain data.

    A field with presence that the message lacks is left out.
    """
    if descriptor.full_name == TIMESTAMP:
        return _nanoseconds
    if is_wrapper(descriptor):
        return lambda message: message.value
    parts: list[tuple[str, bool, Plain | None]] = []
    for field in descriptor.fields:
        # There are no recursive messages: they are rejected when the schema is resolved. An absent
        # field with its own default, as in proto2, has this default.
        may_be_absent = field.has_presence and not field.is_repeated
        is_left_out = may_be_absent and not field.has_default_value
        parts.append((field.name, is_left_out, _part(field)))

    def read(message: Any) -> dict[str, Any]:
        values: dict[str, Any] = {}
        for name, is_left_out, convert in parts:
            if is_left_out and not message.HasField(name):
                continue
            value = getattr(message, name)
            values[name] = value if convert is None else convert(value)
        return values

    return read


def _part(field: Any) -> Plain | None:
    if field.message_type is not None and is_entry(field.message_type):
        inner = _single(field.message_type.fields_by_name["value"])
        if field.message_type.fields_by_name["key"].type != _STRING:
            value_of = inner or unchanged
            return lambda entries: {_key_text(key): value_of(entries[key]) for key in entries}
        if inner is None:
            return dict
        return lambda entries: {name: inner(value) for name, value in entries.items()}
    convert = _single(field)
    if field.is_repeated:
        return list if convert is None else lambda values: [*map(convert, values)]
    return convert


def _key_text(key: Any) -> str:
    """Return the key of a map as in JSON: a number or a bool becomes a text."""
    return str(key).lower()


def _map_key(field: Any, text: str) -> Any:
    """Parse the key of a map from its text. Raises ValueError."""
    if field.type == _STRING or not isinstance(text, str):
        return text
    if field.type == _BOOL:
        return {"true": True, "false": False}[text]
    return int(text)


def _single(field: Any) -> Plain | None:
    if field.message_type is not None:
        return plain_reader(field.message_type)
    if field.enum_type is not None:
        names = {value.number: value.name for value in reversed(field.enum_type.values)}
        # Keep a number that has no name. If the contract reads this field, it rejects the number.
        return lambda number: names.get(number, number)
    return None


def _nanoseconds(message: Any) -> int:
    return int(message.seconds) * 1_000_000_000 + int(message.nanos)


def index_bytes(classes: tuple[Any, ...], name: str) -> tuple[Any, bytes]:
    """Return a message's class and the bytes of its index: the message `name`, else the first."""
    for number, each in enumerate(classes):
        if name in (each.DESCRIPTOR.name, each.DESCRIPTOR.full_name) and number:
            return each, b"\2" + _varint(2 * number)
    return classes[0], b"\0"


def _varint(number: int) -> bytes:
    data = bytearray()
    while number > 0x7F:
        data.append(number & 0x7F | 0x80)
        number >>= 7
    data.append(number)
    return bytes(data)


def fill(message: Any, value: Any, path: str = "$") -> None:
    """Set the fields of a message to the fields of plain data. Raises UnwritableError."""
    if not isinstance(value, dict):
        raise UnwritableError(f"{path}: {shortened(str(value))} is no object")
    fields = message.DESCRIPTOR.fields_by_name
    for name, each in value.items():
        if each is None:
            continue
        if name not in fields:
            raise UnwritableError(f"{path}.{name}: the schema lacks this field of the value")
        try:
            _set(message, fields[name], each, f"{path}.{name}")
        except (TypeError, ValueError, KeyError, OverflowError) as error:
            if isinstance(error, UnwritableError):
                raise
            raise UnwritableError(f"{path}.{name}: {error}") from None


def _set(message: Any, field: Any, value: Any, path: str) -> None:
    if field.message_type is not None and is_entry(field.message_type):
        inner = field.message_type.fields_by_name["value"]
        of_key = field.message_type.fields_by_name["key"]
        entries = getattr(message, field.name)
        for text, each in value.items():
            key = _map_key(of_key, text)
            if inner.message_type is not None:
                _fill_inner(entries[key], each, f"{path}[{key}]")
            else:
                entries[key] = _scalar(inner, each, path)
    elif field.is_repeated:
        items = getattr(message, field.name)
        for number, each in enumerate(value):
            if field.message_type is not None:
                _fill_inner(items.add(), each, f"{path}[{number}]")
            else:
                items.append(_scalar(field, each, f"{path}[{number}]"))
    elif field.message_type is not None:
        inner_message = getattr(message, field.name)
        inner_message.SetInParent()
        _fill_inner(inner_message, value, path)
    else:
        setattr(message, field.name, _scalar(field, value, path))


def _fill_inner(message: Any, value: Any, path: str) -> None:
    descriptor = message.DESCRIPTOR
    if descriptor.full_name == TIMESTAMP:
        time = datetime.fromisoformat(value) if isinstance(value, str) else value
        if time.tzinfo is None:
            time = time.replace(tzinfo=UTC)
        seconds, rest = divmod((time - _1970) // timedelta(microseconds=1), 1_000_000)
        message.seconds, message.nanos = seconds, rest * 1_000
    elif is_wrapper(descriptor):
        message.value = _scalar(descriptor.fields_by_name["value"], value, path)
    else:
        fill(message, value, path)


def _digits(number: float | Decimal) -> str:
    """Format a number, without an exponent and without trailing zeros."""
    exact = number if isinstance(number, Decimal) else Decimal(repr(number))
    text = f"{exact:f}"
    if "." in text:
        text = text.rstrip("0").rstrip(".")
    return text if exact else "0"


def _scalar(field: Any, value: Any, path: str) -> Any:
    match field.type:
        case 9:
            if isinstance(value, date):
                return value.isoformat()
            if isinstance(value, int | float | Decimal) and not isinstance(value, bool):
                # A decimal is a number in plain data, but a text in Protobuf.
                return _digits(value)
            return value
        case 12 if isinstance(value, str):
            return b64decode(value, validate=True)
        case 14 if isinstance(value, str):
            if value not in field.enum_type.values_by_name:
                raise UnwritableError(f"{path}: {shortened(value)} is no {field.enum_type.name}")
            return field.enum_type.values_by_name[value].number
        case 1 | 2 if isinstance(value, Decimal | int) and not isinstance(value, bool):
            return float(value)
        case _:
            if isinstance(value, bool) and field.type != 8:
                raise UnwritableError(f"{path}: {value} is no number")
            return value
