"""Converts JSON that operators have written to Arrow values, as Spark's `from_json` would."""

from __future__ import annotations

from base64 import b64decode
from collections.abc import Callable
from datetime import UTC, date, datetime
from decimal import Decimal
from functools import cache
from operator import attrgetter
from typing import Any, TypeAlias

import msgspec
import pyarrow as pa

Convert: TypeAlias = Callable[[Any], Any]

_decode = msgspec.json.Decoder(float_hook=Decimal).decode
_encode = msgspec.json.Encoder(decimal_format="number").encode


def array_of_json(texts: pa.Array, kind: pa.DataType) -> pa.Array:
    """Read values of a type from their JSON. A null text is a null."""
    if (declared := _declared(kind)) is not None:
        # Decoding all texts together takes a third of the time of decoding them one by one.
        elements = ["null" if text is None else text for text in texts.to_pylist()]
        together = f"[{','.join(elements)}]"
        try:
            return _column(_decoder(declared)(together), kind)
        except msgspec.DecodeError:
            pass  # The JSON has a text where the type has none, or the other way round.
    return values_one_by_one(texts, kind)


def values_one_by_one(texts: pa.Array, kind: pa.DataType) -> pa.Array:
    """Do the same as `array_of_json`, but also for JSON that msgspec cannot decode as the type.

    This function is slower.
    """
    convert = _conversion(kind)
    values: list[Any] = []
    for text in texts.to_pylist():
        values.append(None if text is None else convert(_decode(text)))
    return pa.array(values, kind)


@cache
def _declared(kind: pa.DataType) -> Any:
    """Return the type to which msgspec decodes a column's values.

    Return None if no type of msgspec has values that Arrow accepts.
    """
    if pa.types.is_struct(kind):
        members = []
        for number, field in enumerate(kind):
            if (inner := _declared(field.type)) is None:
                return None
            # A name in JSON may be invalid in Python, so use numbered names such as f0 in Python.
            members.append(
                (f"f{number}", inner | None, msgspec.field(default=None, name=field.name))
            )
        try:
            return msgspec.defstruct("Object", members, gc=False)
        except ValueError:
            return None  # msgspec refuses names with characters that JSON escapes.
    if pa.types.is_list(kind):
        element = _declared(kind.value_type)
        is_nested = element is None or pa.types.is_nested(kind.value_type)
        if is_nested:
            return None
        return list.__class_getitem__(element | None)
    for is_kind, declared in _SIMPLE:
        if is_kind(kind):
            return declared
    return None


_SIMPLE: tuple[tuple[Callable[[pa.DataType], bool], type], ...] = (
    (pa.types.is_string, str),
    (pa.types.is_integer, int),
    (pa.types.is_floating, float),
    (pa.types.is_boolean, bool),
    (pa.types.is_decimal, Decimal),
    (pa.types.is_binary, bytes),
)
"""Each check of a column's type, with the Python type to which msgspec decodes the column's values.
Arrow accepts the decoded values unchanged."""


@cache
def _decoder(declared: Any) -> Callable[[str], list[Any]]:
    return msgspec.json.Decoder(list[declared | None]).decode


def _column(values: list[Any], kind: pa.DataType) -> pa.Array:
    """Return a column of values of the declared type."""
    if not pa.types.is_struct(kind):
        return pa.array(values, kind)
    is_null = [value is None for value in values]
    has_nulls = any(is_null)
    columns = []
    for number, field in enumerate(kind):
        read = attrgetter(f"f{number}")
        if has_nulls:
            members = [None if value is None else read(value) for value in values]
        else:
            members = list(map(read, values))
        columns.append(_column(members, field.type))
    if not columns:
        return pa.array([None if value is None else {} for value in values], kind)
    return pa.StructArray.from_arrays(columns, fields=[*kind], mask=pa.array(is_null, pa.bool_()))


@cache
def _conversion(kind: pa.DataType) -> Convert:
    """Return the function that converts decoded JSON to a value that Arrow accepts for a type."""
    if pa.types.is_struct(kind):
        fields = [(field.name, _conversion(field.type)) for field in kind]

        def convert_object(value: Any) -> Any:
            if value is None:
                return None
            return {name: convert(value.get(name)) for name, convert in fields}

        return convert_object
    if pa.types.is_list(kind):
        element = _conversion(kind.value_type)

        def convert_list(value: Any) -> Any:
            if value is None:
                return None
            return [element(each) for each in value]

        return convert_list
    if pa.types.is_map(kind):
        item = _conversion(kind.item_type)

        def convert_map(value: Any) -> Any:
            if value is None:
                return None
            return [(name, item(each)) for name, each in value.items()]

        return convert_map
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
    if pa.types.is_binary(kind):
        return b64decode
    if pa.types.is_string(kind):
        return _text
    return lambda value: value


def _text(value: Any) -> str:
    """Return a text unchanged, and any other value as JSON, as Spark reads a STRING."""
    if isinstance(value, str):
        return value
    return _encode(value).decode()


def _time(text: str) -> datetime:
    return datetime.fromisoformat(text).astimezone(UTC)
