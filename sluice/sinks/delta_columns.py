"""The columns of a Delta Lake table, as Arrow types, and how a JSON value becomes a column's value."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import pyarrow as pa

from sluice.sinks import column_checks

_FITS = {
    "whole number": ("whole number", "decimal", "float"), "decimal": ("decimal",), "float": ("float", "decimal"),
}  # fmt: skip
"""Kind of a field → the kinds of columns that can hold all or most of its values. A kind that is
not listed fits only columns of the same kind."""

_SPARK = {
    pa.int8(): "TINYINT", pa.int16(): "SMALLINT", pa.int32(): "INT", pa.int64(): "BIGINT", pa.string(): "STRING",
    pa.float64(): "DOUBLE", pa.float32(): "FLOAT", pa.bool_(): "BOOLEAN", pa.date32(): "DATE", pa.binary(): "BINARY",
    pa.timestamp("us", tz="UTC"): "TIMESTAMP", pa.timestamp("us"): "TIMESTAMP_NTZ",
}  # fmt: skip


def kind_of(type_: pa.DataType) -> str:
    """The kind of a type; an empty text if Sluice cannot write columns of this type."""
    is_ = pa.types
    kinds = {
        "whole number": is_.is_signed_integer, "decimal": is_.is_decimal, "float": is_.is_floating,
        "Boolean": is_.is_boolean, "text": is_.is_string, "date": is_.is_date32, "timestamp": is_.is_timestamp,
        "binary": is_.is_binary, "array": is_.is_list, "map": is_.is_map, "struct": is_.is_struct,
    }  # fmt: skip
    return next((kind for kind, matches in kinds.items() if matches(type_)), "")


def fits(field: pa.DataType, column: pa.DataType) -> bool:
    """Whether a column can hold all or most values of a field."""
    kind = kind_of(field)
    if kind_of(column) not in _FITS.get(kind, (kind,)):
        return False
    if kind == "array":
        return fits(field.value_type, column.value_type)
    if kind == "map":
        return fits(field.key_type, column.key_type) and fits(field.item_type, column.item_type)
    if kind == "struct":
        parts = {part.name: part.type for part in column}
        return all(part.name in parts and fits(part.type, parts[part.name]) for part in field)
    return True


@dataclass(frozen=True)
class DeltaColumn:
    """A column of a Delta table. Implements `Column`: the encoded values are Python values for Arrow."""

    name: str
    arrow: pa.DataType
    required: bool = False
    """Whether the column is NOT NULL."""
    most: int | None = None
    """The largest number of characters, of a VARCHAR or CHAR."""
    partitions: bool = False
    """Whether the table is partitioned by the column."""

    @property
    def type(self) -> str:
        """The type, for messages: Spark SQL's name, or Arrow's name for a nested type."""
        if self.most is not None:
            return f"VARCHAR({self.most})"
        return _SPARK.get(self.arrow, str(self.arrow).replace("decimal128", "DECIMAL"))

    @property
    def is_text(self) -> bool:
        """Whether this is a text column. A key that is a number is written to it as text."""
        return kind_of(self.arrow) == "text"

    def encode(self, json: bytes) -> Any:
        """The column's value for a JSON value.

        Raises ValueError, which names the column, if the value does not fit.
        """
        with column_checks.column(self.name, self.type, json):
            value = column_checks.length(self._encode(column_checks.decode(json)), self.most)
            if self.partitions and value == "":
                raise ValueError(
                    "is empty, which a column that partitions the table stores as null"
                )
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
            return lambda value: column_checks.integer(value, bound)
        case "decimal":
            return lambda value: column_checks.decimal(value, type_.precision, type_.scale)
        case "float":
            return column_checks.double if type_.bit_width == 64 else column_checks.single
        case "timestamp":
            return lambda value: column_checks.timestamp(value, has_zone=type_.tz is not None)
        case "array":
            item = _encoder(type_.value_field)
            return lambda value: [item(each) for each in _of(list, value, "an array")]
        case "map":
            of_key, of_item = _encoder(type_.key_field), _encoder(type_.item_field)
            return lambda value: [
                (of_key(k), of_item(each)) for k, each in _of(dict, value, "an object").items()
            ]
        case "struct":
            parts = {part.name: _encoder(part) for part in type_}
            return lambda value: _struct(parts, _of(dict, value, "an object"))
        case kind:
            return _SIMPLE[kind]


_SIMPLE: dict[str, Callable[[Any], Any]] = {
    "Boolean": column_checks.boolean, "text": column_checks.text, "date": column_checks.day,
    "binary": column_checks.binary,
}  # fmt: skip


def _of(type_: type, value: Any, what: str) -> Any:
    if type(value) is not type_:
        raise ValueError(f"is not {what}")
    return value


def _struct(parts: dict[str, Callable[[Any], Any]], value: dict[str, Any]) -> dict[str, Any]:
    # Without this check, the value of a field that the column does not have would be lost.
    if unknown := value.keys() - parts.keys():
        raise ValueError(f"has a field {min(unknown)}, which the column does not have")
    return {name: encode(value.get(name)) for name, encode in parts.items()}
