"""SQL gives a key the same text as Python does, for values of every type, and equal values have the same text."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import msgspec
import pyarrow as pa
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pyspark.sql import SparkSession
from pyspark.sql import types as spark_types
from pyspark.sql.types import _parse_datatype_string as parse_ddl

from sluice.engine.steps import key_sql
from sluice.values.keys import key_text

TEXTS = st.sampled_from(
    [
        "",
        "a",
        "ab",
        "null",
        "1",
        "x, y",
        'say "x"',
        "[b]",
        "{",
        "back\\",
        "\n\x01\x7f",
        "日本 😀",
        ".",
    ]
)
WHOLE = st.integers(-(2**63), 2**63 - 1) | st.integers(-3, 3)
DOUBLES = (
    st.floats(allow_nan=False, allow_infinity=False)
    | st.sampled_from(
        [0.0, -0.0, 1.0, 868100000.0, 1e7, 1e16, 1e22, 2e23, 8.41e21, 1e-3, 1e-5, 5e-324, 0.1 + 0.2]
    )
    | st.integers(-1_000, 1_000).map(lambda number: number / 100)
)
SINGLES = st.floats(width=32, allow_nan=False, allow_infinity=False)
TIMES = st.datetimes(datetime(1, 1, 1), datetime(9999, 12, 31), timezones=st.just(UTC)) | st.sampled_from([
    datetime(2026, 3, 29, 8, tzinfo=UTC), datetime(2026, 3, 29, 8, 0, 0, 120_000, tzinfo=UTC),
    datetime(12, 1, 1, 0, 0, 10, tzinfo=UTC),
])  # fmt: skip
DAYS = st.dates(date(1, 1, 1), date(9999, 12, 31))


def amounts(precision: int, scale: int) -> st.SearchStrategy[Decimal]:
    largest = 10**precision - 1
    units = (
        st.integers(-largest, largest) | st.integers(-300, 300) | st.sampled_from([0, 10**scale])
    )
    return units.map(
        lambda number: Decimal((int(number < 0), tuple(map(int, str(abs(number)))), -scale))
    )


def optional(strategy: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.none() | strategy


def lists(strategy: st.SearchStrategy[Any]) -> st.SearchStrategy[list[Any]]:
    return st.lists(strategy, max_size=3)


PLACES = st.fixed_dictionaries(
    {"zip": optional(WHOLE), "City": optional(TEXTS), "it's `x`": optional(st.booleans())}
)
COLUMNS: dict[str, tuple[str, pa.DataType, st.SearchStrategy[Any]]] = {
    "text": ("STRING", pa.string(), TEXTS),
    "whole": ("BIGINT", pa.int64(), WHOLE),
    "small": ("INT", pa.int32(), st.integers(-(2**31), 2**31 - 1)),
    "flag": ("BOOLEAN", pa.bool_(), st.booleans()),
    "amount": ("DECIMAL(12,2)", pa.decimal128(12, 2), amounts(12, 2)),
    "rate": ("DECIMAL(38,18)", pa.decimal128(38, 18), amounts(38, 18)),
    "points": ("DECIMAL(20,0)", pa.decimal128(20, 0), amounts(20, 0)),
    "weight": ("DOUBLE", pa.float64(), DOUBLES),
    "single": ("FLOAT", pa.float32(), SINGLES),
    "at": ("TIMESTAMP", pa.timestamp("us", "UTC"), TIMES),
    "day": ("DATE", pa.date32(), DAYS),
    "raw": ("BINARY", pa.binary(), TEXTS.map(str.encode)),
    "place": (
        "STRUCT<zip: BIGINT, City: STRING, `it's ``x```: BOOLEAN>",
        pa.struct([("zip", pa.int64()), ("City", pa.string()), ("it's `x`", pa.bool_())]),
        PLACES,
    ),
    "tags": ("ARRAY<STRING>", pa.list_(pa.string()), lists(optional(TEXTS))),
    "lines": (
        "ARRAY<STRUCT<price: DECIMAL(9,3), weight: DOUBLE, at: TIMESTAMP, raw: BINARY>>",
        pa.list_(pa.struct([
            ("price", pa.decimal128(9, 3)), ("weight", pa.float64()), ("at", pa.timestamp("us", "UTC")),
            ("raw", pa.binary()),
        ])),
        lists(optional(st.fixed_dictionaries({
            "price": optional(amounts(9, 3)), "weight": optional(DOUBLES), "at": optional(TIMES),
            "raw": optional(st.binary(max_size=4)),
        }))),
    ),
    "shares": (
        "MAP<STRING, DECIMAL(9,3)>",
        pa.map_(pa.string(), pa.decimal128(9, 3)),
        st.dictionaries(TEXTS, optional(amounts(9, 3)), max_size=3),
    ),
    "days": (
        "MAP<DATE, ARRAY<MAP<BIGINT, DOUBLE>>>",
        pa.map_(pa.date32(), pa.list_(pa.map_(pa.int64(), pa.float64()))),
        st.dictionaries(DAYS, optional(lists(st.dictionaries(WHOLE, optional(DOUBLES), max_size=2))), max_size=2),
    ),
}  # fmt: skip
JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**60), 2**60) | TEXTS
    | st.sampled_from([1.0, 868100000.0, 0.1, 1e-5, 1e300, 2.5]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXTS, inner, max_size=3),
    max_leaves=5,
)  # fmt: skip
ROWS = st.lists(
    st.fixed_dictionaries(
        {name: optional(strategy) for name, (_, _, strategy) in COLUMNS.items()} | {"json": JSON}
    ),
    min_size=8,
    max_size=30,
)


def keys_by_spark(
    spark: SparkSession, rows: Sequence[dict[str, Any]]
) -> list[dict[str, str | None]]:
    key_sql.register(spark)
    columns = {
        name: pa.array([_pairs(row[name], kind) for row in rows], kind)
        for name, (_, kind, _) in COLUMNS.items()
    }
    columns["json"] = pa.array([msgspec.json.encode(row["json"]).decode() for row in rows])
    frame = spark.createDataFrame(pa.table(columns))
    kinds = {name: parse_ddl(ddl) for name, (ddl, _, _) in COLUMNS.items()} | {
        "json": spark_types.VariantType()
    }
    frame = frame.selectExpr(*COLUMNS, "parse_json(json) AS json")
    assert {field.name: field.dataType.simpleString() for field in frame.schema} == {
        name: kind.simpleString() for name, kind in kinds.items()
    }
    texts = frame.selectExpr(
        *(f"{key_sql.key_sql(name, kind)} AS {name}" for name, kind in kinds.items())
    )
    return [row.asDict() for row in texts.collect()]


def _pairs(value: Any, kind: pa.DataType) -> Any:
    """The value with a list of pairs in place of each dict that Arrow takes as a map."""
    if value is None:
        return None
    if pa.types.is_map(kind):
        return [(key, _pairs(inner, kind.item_type)) for key, inner in value.items()]
    if pa.types.is_list(kind):
        return [_pairs(inner, kind.value_type) for inner in value]
    return value


def untyped(value: Any) -> Any:
    """The value as a function gets it without a declared type: Spark writes a whole number without a point."""
    match value:
        case float():
            return int(value) if value.is_integer() and abs(value) < 1e15 else value
        case list():
            return [untyped(inner) for inner in value]
        case dict():
            return {name: untyped(inner) for name, inner in value.items()}
    return value


@given(rows=ROWS)
@settings(max_examples=8, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])
def test_python_and_sql_give_the_same_text_and_equal_values_the_same_key(
    spark: SparkSession, rows: list[dict[str, Any]]
) -> None:
    texts = keys_by_spark(spark, rows)
    for name in (*COLUMNS, "json"):
        expected = [key_text(untyped(row[name]) if name == "json" else row[name]) for row in rows]
        assert [text[name] for text in texts] == expected
        if name == "json":  # Python calls 1, 1.0 and True equal
            continue
        for row, text in zip(rows, expected, strict=True):
            for other, other_text in zip(rows, expected, strict=True):
                assert (text == other_text) == (row[name] == other[name])
