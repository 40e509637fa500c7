"""Tasks over Arrow batches, and Spark SQL types as Arrow types, without a Spark session."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache, reduce
from typing import TypeAlias

import pyarrow as pa

from sluice.values.sql_types import element_type, map_value_type, struct_fields

Task: TypeAlias = Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]
"""The Python function of a Spark task, which takes and yields record batches."""

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
}


@dataclass(frozen=True)
class Chain:
    """Chains several tasks: each takes the batches that the previous one yields."""

    tasks: tuple[Task, ...]

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        return reduce(lambda made, task: task(made), self.tasks, batches)


@cache
def arrow_type(sql: str) -> pa.DataType:
    """The Arrow type of a DDL type as written by `contracts.fields`. Raises ValueError for another type."""
    if sql in _SIMPLE:
        return _SIMPLE[sql]
    if match := re.fullmatch(r"DECIMAL\((\d+), ?(\d+)\)", sql):
        return pa.decimal128(int(match[1]), int(match[2]))
    if element := element_type(sql):
        return pa.list_(arrow_type(element))
    if of_values := map_value_type(sql):
        return pa.map_(pa.string(), arrow_type(of_values))
    if fields := struct_fields(sql):
        return pa.struct([(name, arrow_type(kind)) for name, kind in fields.items()])
    raise ValueError(f"{sql} has no Arrow type")
