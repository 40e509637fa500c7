"""Converts Spark SQL types to Arrow types."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache

import pyarrow as pa

from sluice.sql.types import VOID, is_decimal
from sluice.values.sql_types import (
    element_type,
    map_key_type,
    map_value_type,
    precision_and_scale,
    struct_fields,
)

_SIMPLE = {
    "TINYINT": pa.int8(),
    "SMALLINT": pa.int16(),
    "BIGINT": pa.int64(),
    "INT": pa.int32(),
    "STRING": pa.string(),
    "DOUBLE": pa.float64(),
    "FLOAT": pa.float32(),
    "BOOLEAN": pa.bool_(),
    "BINARY": pa.binary(),
    "DATE": pa.date32(),
    "TIMESTAMP": pa.timestamp("us", tz="UTC"),
    "TIMESTAMP_NTZ": pa.timestamp("us"),
    VOID: pa.null(),
}


@cache
def arrow_type(sql: str) -> pa.DataType:
    """Return the Arrow type of a DDL type as written by `contracts.fields`.

    Raises ValueError for another type.
    """
    if sql in _SIMPLE:
        return _SIMPLE[sql]
    if is_decimal(sql):
        return pa.decimal128(*precision_and_scale(sql))
    if element := element_type(sql):
        return pa.list_(arrow_type(element))
    if of_values := map_value_type(sql):
        return pa.map_(arrow_type(map_key_type(sql)), arrow_type(of_values))
    if fields := struct_fields(sql):
        return pa.struct([(name, arrow_type(kind)) for name, kind in fields.items()])
    raise ValueError(f"{sql} has no Arrow type")


def arrow_schema(columns: Mapping[str, str]) -> pa.Schema:
    """Return the schema of columns, whose values are their DDL types."""
    return pa.schema([(name, arrow_type(sql)) for name, sql in columns.items()])


def has_arrow_type(sql: str) -> bool:
    """Return whether a type has an Arrow type. For example, VARIANT and intervals have none."""
    try:
        arrow_type(sql)
    except ValueError:
        return False
    return True
