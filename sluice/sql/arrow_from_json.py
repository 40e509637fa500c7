"""JSON that operators have written as Arrow values, with the same result as Spark's `from_json`."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, date, datetime
from decimal import Decimal
from functools import cache
from typing import Any, TypeAlias

import msgspec
import pyarrow as pa

Convert: TypeAlias = Callable[[Any], Any]

_decode = msgspec.json.Decoder(float_hook=Decimal).decode
_encode = msgspec.json.Encoder(decimal_format="number").encode


def array_of_json(texts: pa.Array, kind: pa.DataType) -> pa.Array:
    """Values of a type from their JSON. A null text is a null."""
    convert = _conversion(kind)
    values = [None if text is None else convert(_decode(text)) for text in texts.to_pylist()]
    return pa.array(values, kind)


@cache
def _conversion(kind: pa.DataType) -> Convert:
    """The function that converts a decoded JSON value to a value that Arrow takes for a type."""
    if pa.types.is_struct(kind):
        fields = [(field.name, _conversion(field.type)) for field in kind]
        return lambda value: None if value is None else {name: of(value.get(name)) for name, of in fields}
    if pa.types.is_list(kind):
        element = _conversion(kind.value_type)
        return lambda value: None if value is None else [element(each) for each in value]
    if pa.types.is_map(kind):
        item = _conversion(kind.item_type)
        return lambda value: None if value is None else [(name, item(each)) for name, each in value.items()]
    simple = _simple(kind)
    return lambda value: None if value is None else simple(value)


def _simple(kind: pa.DataType) -> Convert:
    if pa.types.is_decimal(kind):
        return Decimal
    if pa.types.is_floating(kind):
        return float
    if pa.types.is_timestamp(kind):
        return _time if kind.tz else datetime.fromisoformat
    if pa.types.is_date(kind):
        return date.fromisoformat
    return _text if pa.types.is_string(kind) else lambda value: value


def _text(value: Any) -> str:
    """A text unchanged, and any other value as its JSON, as Spark reads a STRING from JSON."""
    return value if isinstance(value, str) else _encode(value).decode()


def _time(text: str) -> datetime:
    return datetime.fromisoformat(text).astimezone(UTC)
