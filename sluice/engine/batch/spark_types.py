"""Writes PySpark's types as text from which Spark can parse them again."""

from __future__ import annotations

from pyspark.sql import types as spark
from pyspark.sql.pandas.types import from_arrow_schema

from sluice.engine.batch.row_batches import ROW_BATCHES
from sluice.values.sql_text import quoted

ROW_BATCH_TYPE = from_arrow_schema(ROW_BATCHES)
"""The columns of row batches. If this was DDL, Spark would load its parser, which delays a run's
first record."""


def ddl(kind: spark.DataType) -> str:
    """Return `simpleString`, with field names in backticks where Spark's parser needs them."""
    match kind:
        case spark.StructType(fields=fields):
            texts = [f"{quoted(field.name)}:{ddl(field.dataType)}" for field in fields]
            return f"struct<{','.join(texts)}>"
        case spark.ArrayType(elementType=element):
            return f"array<{ddl(element)}>"
        case spark.MapType(keyType=key, valueType=value):
            return f"map<{ddl(key)},{ddl(value)}>"
        case _:
            return kind.simpleString()
