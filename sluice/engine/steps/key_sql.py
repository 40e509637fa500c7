"""Makes SQL for the text of a key, with the same result as `values.keys.key_text`.

Spark writes doubles differently with each Java version, and a VARIANT may contain doubles. For a
key with such parts, the SQL converts the key to JSON, and a Python function converts the JSON to
the text.
"""

from __future__ import annotations

from pyspark.sql import SparkSession
from pyspark.sql import types as spark

from sluice.values.json_text import json_string
from sluice.values.keys import DECIMAL, key_of_json
from sluice.values.sql_text import backticked, literal

_FUNCTION = "sluice_key_of_json"


class NoKeyError(Exception):
    """Values of a type cannot be keys.

    The message names the type, and `next_step` names an alternative.
    """

    def __init__(self, message: str, next_step: str) -> None:
        super().__init__(message)
        self.next_step = next_step


def register(spark: SparkSession) -> None:
    """Register the function that the SQL of some keys calls."""
    spark.udf.register(_FUNCTION, key_of_json, "string")


def key_sql(sql: str, kind: spark.DataType) -> str:
    """Return SQL for the text of the key `sql`, which is a column or a part of a column.

    Raises NoKeyError if values of the key's type cannot be keys.
    """
    if _has_doubles(kind):
        return f"{_FUNCTION}({_json(sql, kind, marked=True)})"
    return _text(sql, kind)


def _has_doubles(kind: spark.DataType) -> bool:
    """Return whether a key may contain doubles, which Spark and Python write differently."""
    match kind:
        case spark.DoubleType() | spark.FloatType() | spark.VariantType():
            return True
        case spark.StructType():
            return any(_has_doubles(field.dataType) for field in kind.fields)
        case spark.ArrayType():
            return _has_doubles(kind.elementType)
        case spark.MapType():
            return _has_doubles(kind.valueType)
        case _:
            return False


def _text(sql: str, kind: spark.DataType, depth: int = 0) -> str:
    """Return SQL for a key without doubles. `depth` is the number of lambdas around it."""
    if isinstance(kind, spark.StructType | spark.ArrayType | spark.MapType):
        return f"IF({sql} IS NULL, NULL, {_json(sql, kind, depth)})"
    return _plain(sql, kind)


def _plain(sql: str, kind: spark.DataType) -> str:
    match kind:
        case spark.StringType():
            return sql
        # `key_text` writes no trailing zeros of a decimal.
        case spark.DecimalType() if kind.scale > 0:
            return f"trim(TRAILING '.' FROM trim(TRAILING '0' FROM CAST({sql} AS STRING)))"
        case (
            spark.YearMonthIntervalType()
            | spark.DayTimeIntervalType()
            | spark.CalendarIntervalType()
        ):
            raise NoKeyError(
                "an interval cannot be a key",
                "Convert it to a number, such as a number of seconds.",
            )
        case (
            spark.BooleanType()
            | spark.IntegralType()
            | spark.DecimalType()
            | spark.BinaryType()
            | spark.NullType()
            | spark.DateType()
            | spark.TimestampType()
            | spark.TimestampNTZType()
        ):
            return f"CAST({sql} AS STRING)"
        case _:
            raise NoKeyError(
                f"a value of type {kind.simpleString()} cannot be a key",
                "Convert it to a text.",
            )


def _json(sql: str, kind: spark.DataType, depth: int = 0, *, marked: bool = False) -> str:
    """Return SQL for a value as JSON, which is never null.

    If `marked`, decimals get a mark that distinguishes them from doubles.
    """
    match kind:
        case spark.StructType():
            return f"IF({sql} IS NULL, 'null', {_object(sql, kind, depth, marked)})"
        case spark.ArrayType():
            return f"IF({sql} IS NULL, 'null', {_list(sql, kind, depth, marked)})"
        case spark.MapType():
            return f"IF({sql} IS NULL, 'null', {_map(sql, kind, depth, marked)})"
        case spark.NullType():
            return "'null'"
        case spark.VariantType():
            return f"coalesce(to_json({sql}), 'null')"
        case spark.DoubleType() | spark.FloatType():
            return f"coalesce(CAST(CAST({sql} AS DOUBLE) AS STRING), 'null')"
        case spark.DecimalType() if marked:
            return f"coalesce(concat({_plain(sql, kind)}, {literal(DECIMAL)}), 'null')"
        case spark.BooleanType() | spark.IntegralType() | spark.DecimalType():
            return f"coalesce({_plain(sql, kind)}, 'null')"
        case spark.BinaryType():
            return _string(sql)
        case _:
            return _string(_plain(sql, kind))


def _string(sql: str) -> str:
    """Return SQL for the JSON of a text, or of bytes as base64.

    `to_json` needs an array, so put the value into an array, and cut off the array's brackets
    again.
    """
    return f"trim(BOTH '[]' FROM to_json(array({sql})))"


def _object(sql: str, kind: spark.StructType, depth: int, marked: bool) -> str:
    names: set[str] = set()
    for field in kind.fields:
        name = field.name.lower()
        if name in names:
            raise NoKeyError(
                f"a key has two fields named {name}",
                "Give them different names: struct(a.id AS a, b.id AS b).",
            )
        names.add(name)
    texts = ["'{'"]
    comma = ""
    for field in sorted(kind.fields, key=lambda field: field.name):
        value = _json(f"{sql}.{backticked(field.name)}", field.dataType, depth, marked=marked)
        texts += [literal(f"{comma}{json_string(field.name)}:"), value]
        comma = ","
    texts.append("'}'")
    return f"concat({', '.join(texts)})"


def _list(sql: str, kind: spark.ArrayType, depth: int, marked: bool) -> str:
    # The parameters of nested lambdas need different names.
    element = f"e{depth}"
    item = _json(element, kind.elementType, depth + 1, marked=marked)
    items = f"transform({sql}, {element} -> {item})"
    return f"concat('[', array_join({items}, ','), ']')"


def _map(sql: str, kind: spark.MapType, depth: int, marked: bool) -> str:
    if isinstance(kind.keyType, spark.BinaryType) or _has_doubles(kind.keyType):
        raise NoKeyError(
            "a map from doubles or bytes cannot be a key",
            "Cast the map's keys to STRING.",
        )
    entry, pair = f"e{depth}", f"p{depth}"
    name = _text(f"{entry}.key", kind.keyType, depth + 1)
    value = _json(f"{entry}.value", kind.valueType, depth + 1, marked=marked)
    named = f"named_struct('name', {name}, 'value', {value})"
    pairs = f"transform(map_entries({sql}), {entry} -> {named})"
    # Equal maps may have their entries in different orders, but they must be the same key.
    member = f"concat({_string(f'{pair}.name')}, ':', {pair}.value)"
    members = f"transform(array_sort({pairs}), {pair} -> {member})"
    return f"concat('{{', array_join({members}, ','), '}}')"
