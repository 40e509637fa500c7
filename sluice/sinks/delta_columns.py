"""The columns of a Delta Lake table, as Arrow types. Encodes JSON values for these columns."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import pyarrow as pa

from sluice.sinks import column_checks

_FITS = {
    "whole number": ("whole number", "decimal", "float"),
    "decimal": ("decimal",),
    "float": ("float", "decimal"),
}
"""Kind of a field → the kinds of columns that can hold all or most of its values. A kind that is
not listed fits only columns of the same kind."""

_SPARK = {
    pa.int8(): "TINYINT",
    pa.int16(): "SMALLINT",
    pa.int32(): "INT",
    pa.int64(): "BIGINT",
    pa.float32(): "FLOAT",
    pa.float64(): "DOUBLE",
    pa.bool_(): "BOOLEAN",
    pa.string(): "STRING",
    pa.binary(): "BINARY",
    pa.date32(): "DATE",
    pa.timestamp("us", tz="UTC"): "TIMESTAMP",
    pa.timestamp("us"): "TIMESTAMP_NTZ",
}
_KINDS: dict[str, Callable[[pa.DataType], bool]] = {
    "whole number": pa.types.is_signed_integer,
    "decimal": pa.types.is_decimal,
    "float": pa.types.is_floating,
    "Boolean": pa.types.is_boolean,
    "text": pa.types.is_string,
    "date": pa.types.is_date32,
    "timestamp": pa.types.is_timestamp,
    "binary": pa.types.is_binary,
    "array": pa.types.is_list,
    "map": pa.types.is_map,
    "struct": pa.types.is_struct,
}


def kind_of(type_: pa.DataType) -> str:
    """Return the kind of a type; an empty text if Sluice cannot write columns of this type."""
    for kind, is_of_kind in _KINDS.items():
        if is_of_kind(type_):
            return kind
    return ""


def fits(field: pa.DataType, column: pa.DataType) -> bool:
    """Return whether a column can hold all or most values of a field."""
    kind = kind_of(field)
    if kind_of(column) not in _FITS.get(kind, (kind,)):
        return False
    if kind == "array":
        return fits(field.value_type, column.value_type)
    if kind == "map":
        return fits(field.key_type, column.key_type) and fits(field.item_type, column.item_type)
    if kind == "struct":
        types = {inner.name: inner.type for inner in column}
        for inner in field:
            if inner.name not in types or not fits(inner.type, types[inner.name]):
                return False
    return True


@dataclass(frozen=True)
class DeltaColumn:
    """A column of a Delta table.

    Implements `Column`: the encoded values are Python values for Arrow.
    """

    name: str
    arrow: pa.DataType
    required: bool = False
    """Whether the column is NOT NULL."""
    most: int | None = None
    """The largest number of characters in a column of type VARCHAR or CHAR."""
    partitions: bool = False
    """Whether the table is partitioned by the column."""

    @property
    def type(self) -> str:
        """The type's name for messages: the name in Spark SQL or, for a nested type, in Arrow."""
        if self.most is not None:
            return f"VARCHAR({self.most})"
        return _SPARK.get(self.arrow, str(self.arrow).replace("decimal128", "DECIMAL"))

    @property
    def is_text(self) -> bool:
        """Whether this is a text column.

        A key that is a number is written to this column as text.
        """
        return kind_of(self.arrow) == "text"

    def encode(self, json: bytes) -> Any:
        """Return the column's value for a JSON value.

        Raises ValueError, which names the column, if the value does not fit.
        """
        with column_checks.naming_column(self.name, self.type, json):
            value = self._encode(column_checks.decode(json))
            column_checks.require_length(value, self.most)
            if self.partitions and value == "":
                raise ValueError("must not be empty: partition columns store '' as null")
            return value

    @cached_property
    def _encode(self) -> Callable[[Any], Any]:
        return _encoder(pa.field(self.name, self.arrow, nullable=not self.required))


def _encoder(field: pa.Field) -> Callable[[Any], Any]:
    encode, nullable = _of_value(field.type), field.nullable

    def checked(value: Any) -> Any:
        if value is not None:
            return encode(value)
        if not nullable:
            raise ValueError("must not be null")
        return None

    return checked


def _of_value(type_: pa.DataType) -> Callable[[Any], Any]:
    match kind_of(type_):
        case "whole number":
            bound = 2 ** (type_.bit_width - 1)
            return lambda value: column_checks.to_integer(value, bound)
        case "decimal":
            return lambda value: column_checks.to_decimal(value, type_.precision, type_.scale)
        case "float":
            return column_checks.to_double if type_.bit_width == 64 else column_checks.to_single
        case "timestamp":
            return lambda value: column_checks.to_timestamp(value, has_zone=type_.tz is not None)
        case "array":
            item = _encoder(type_.value_field)
            return lambda value: [item(each) for each in _of(list, value, "an array")]
        case "map":
            of_key, of_item = _encoder(type_.key_field), _encoder(type_.item_field)
            return lambda value: [
                (of_key(name), of_item(member))
                for name, member in _of(dict, value, "an object").items()
            ]
        case "struct":
            encoders = {inner.name: _encoder(inner) for inner in type_}
            return lambda value: _struct(encoders, _of(dict, value, "an object"))
        case kind:
            return _SIMPLE[kind]


_SIMPLE: dict[str, Callable[[Any], Any]] = {
    "Boolean": column_checks.to_boolean,
    "text": column_checks.to_text,
    "date": column_checks.to_date,
    "binary": column_checks.to_bytes,
}


def _of(type_: type, value: Any, description: str) -> Any:
    if type(value) is not type_:
        raise ValueError(f"is not {description}")
    return value


def _struct(encoders: dict[str, Callable[[Any], Any]], value: dict[str, Any]) -> dict[str, Any]:
    # Without this check, values of fields that the column lacks would be lost.
    unknown = value.keys() - encoders.keys()
    if unknown:
        raise ValueError(f"has a field {min(unknown)}, which the column does not have")
    return {name: encode(value.get(name)) for name, encode in encoders.items()}
