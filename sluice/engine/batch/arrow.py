"""Tasks over Arrow batches, and Spark SQL types as Arrow types, without a Spark session."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache, reduce
from typing import TypeAlias

import pyarrow as pa

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
    if match := re.fullmatch(r"ARRAY<(.*)>", sql):
        return pa.list_(arrow_type(match[1]))
    if match := re.fullmatch(r"MAP<STRING, (.*)>", sql):
        return pa.map_(pa.string(), arrow_type(match[1]))
    if not sql.startswith("STRUCT<"):
        raise ValueError(f"{sql} has no Arrow type")
    inner = sql.removeprefix("STRUCT<").removesuffix(">")
    return pa.struct([(name, arrow_type(kind)) for name, kind in (_split(part) for part in _parts(inner))])


def _parts(text: str) -> list[str]:
    """Split at commas that are not inside brackets."""
    parts, depth, start = [], 0, 0
    for i, sign in enumerate(text):
        depth += (sign in "<(") - (sign in ">)")
        if sign == "," and not depth:
            parts.append(text[start:i])
            start = i + 1
    return [*parts, text[start:]]


def _split(part: str) -> tuple[str, str]:
    name, _, kind = part.strip().partition(": ")
    return name.strip("`").replace("``", "`"), kind
