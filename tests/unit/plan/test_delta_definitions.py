"""Delta tables in the DSL and the plan, the values of their columns, and the command of a run that writes them."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from msgspec import Struct

from sluice import DeltaTable, Pipeline, PostgresTable, TopologyError, tumbling
from sluice.engine.publish.target_tables import declared_columns
from sluice.errors import EngineError, SettingsError
from sluice.plan import explain, plan
from sluice.provision.jars import delta_bundle
from sluice.settings import Settings
from sluice.sinks.delta_columns import DeltaColumn, fits
from sluice.spark_submit import submission
from sluice.sql.arrow_types import arrow_type
from sluice.topology import drawing


class Sale(Struct):
    """A sale in a shop."""

    shop: str
    amount: int


@pytest.mark.parametrize(
    ("type_", "value", "held"),
    [
        ("INT", "12", 12),
        ("TINYINT", "-128", -128),
        ("BIGINT", "9223372036854775807", 2**63 - 1),
        ("DECIMAL(5,2)", "123.450", Decimal("123.45")),
        ("DOUBLE", "1.5", 1.5),
        ("FLOAT", "16777216", 16777216.0),
        ("BOOLEAN", "true", True),
        ("STRING", '"a\\u0000\\u00e9"', "a\0é"),
        ("TIMESTAMP", '"2026-01-01T10:00:00+02:00"', datetime(2026, 1, 1, 8, tzinfo=UTC)),
        ("TIMESTAMP_NTZ", '"2026-01-01T10:00:00"', datetime(2026, 1, 1, 10)),
        (
            "TIMESTAMP_NTZ",
            '"2026-01-01T10:00:00.123456000"',
            datetime(2026, 1, 1, 10, 0, 0, 123456),
        ),
        ("DATE", '"2026-01-31"', date(2026, 1, 31)),
        ("BINARY", '"AP8="', b"\0\xff"),
        ("ARRAY<BIGINT>", "[1,null]", [1, None]),
        ("MAP<STRING, BIGINT>", '{"a":1}', [("a", 1)]),
        ("STRUCT<a: BIGINT, `b c`: ARRAY<STRING>>", '{"a":1,"b c":["x"]}', {"a": 1, "b c": ["x"]}),
        ("STRUCT<a: BIGINT, b: STRING>", '{"a":1}', {"a": 1, "b": None}),
        ("INT", "null", None),
    ],
)
def test_values_that_fit(type_: str, value: str, held: Any) -> None:
    column = DeltaColumn("c", arrow_type(type_))
    assert column.encode(value.encode()) == held
    assert pa.array([column.encode(value.encode())], column.arrow).type == column.arrow


@pytest.mark.parametrize(
    ("type_", "value", "why"),
    [
        ("INT", "2147483648", "is out of range"),
        ("SMALLINT", "1.0", "is not a whole number"),
        ("INT", "true", "is not a whole number"),
        ("DECIMAL(5,2)", "1000", "is out of range"),
        ("DECIMAL(5,2)", "1.001", "has more than 2 decimal places"),
        ("DOUBLE", "9007199254740993", "has too many digits"),
        ("DOUBLE", '"-Infinity"', "is not a number"),
        ("FLOAT", "1e39", "is out of range"),
        ("BOOLEAN", "1", "is not a Boolean"),
        ("STRING", "1", "is not text"),
        ("FLOAT", "-1e-60", "is out of range"),
        ("DOUBLE", "1e-400", "is out of range"),
        ("TIMESTAMP", '"2026-01-01T08:00:00"', "has no time zone"),
        (
            "TIMESTAMP",
            '"2026-01-01T08:00:00.1234567Z"',
            "has more than 6 decimal places of a second",
        ),
        ("DATE", '"2026-02-30"', "day is out of range"),
        ("ARRAY<BIGINT>", '[1,"a"]', "is not a whole number"),
        ("ARRAY<BIGINT>", '{"a":1}', "is not an array"),
        ("MAP<STRING, BIGINT>", '{"a":1.5}', "is not a whole number"),
        ("STRUCT<a: BIGINT>", '{"a":1,"b":2}', "has a field b, which the column does not have"),
        ("STRUCT<a: BIGINT>", "[]", "is not an object"),
    ],
)
def test_values_that_do_not_fit(type_: str, value: str, why: str) -> None:
    with pytest.raises(ValueError, match=rf"^column total \(.*\): .*{why}"):
        DeltaColumn("total", arrow_type(type_)).encode(value.encode())


@pytest.mark.parametrize(
    ("type_", "value"),
    [
        (pa.string(), "null"),
        (pa.list_(pa.field("element", pa.int64(), nullable=False)), "[1,null]"),
        (pa.map_(pa.string(), pa.field("value", pa.int64(), nullable=False)), '{"a":null}'),
        (pa.struct([pa.field("a", pa.int64(), nullable=False)]), "{}"),
    ],
)
def test_missing_values_do_not_fit_types_that_require_them(type_: pa.DataType, value: str) -> None:
    with pytest.raises(ValueError, match=r"^column total \(.*\): must not be null: "):
        DeltaColumn("total", type_, required=True).encode(value.encode())


def test_a_text_may_be_as_long_as_the_column() -> None:
    column = DeltaColumn("code", pa.string(), most=3)
    assert column.encode('"äöü"'.encode()) == "äöü"
    assert column.encode(b"null") is None
    with pytest.raises(
        ValueError, match=r"^column code \(VARCHAR\(3\)\): is longer than 3 characters: \"abcd\"$"
    ):
        column.encode(b'"abcd"')


@pytest.mark.parametrize(
    ("field", "column", "does"),
    [
        ("BIGINT", "INT", True),
        ("BIGINT", "DECIMAL(20,0)", True),
        ("BIGINT", "STRING", False),
        ("STRING", "BIGINT", False),
        ("DECIMAL(12,2)", "DECIMAL(10,1)", True),
        ("DECIMAL(12,2)", "DOUBLE", False),
        ("DOUBLE", "FLOAT", True),
        ("TIMESTAMP", "TIMESTAMP_NTZ", True),
        ("ARRAY<BIGINT>", "ARRAY<INT>", True),
        ("ARRAY<BIGINT>", "ARRAY<STRING>", False),
        ("MAP<STRING, BIGINT>", "MAP<STRING, STRING>", False),
        ("STRUCT<a: BIGINT>", "STRUCT<a: INT, b: STRING>", True),
        ("STRUCT<a: BIGINT, c: INT>", "STRUCT<a: INT, b: STRING>", False),
        ("STRUCT<a: BIGINT>", "MAP<STRING, BIGINT>", False),
    ],
)
def test_types_that_fit(field: str, column: str, does: bool) -> None:
    assert fits(arrow_type(field), arrow_type(column)) is does


@pytest.mark.parametrize(
    "location",
    [
        "s3a://lake/shop/totals",
        "/lake/totals",
        "hdfs:/lake",
        "abfss://a@b.dfs.core.windows.net/t=1",
    ],
)
def test_locations(location: str) -> None:
    assert DeltaTable(location).output == f"delta:{location}"


@pytest.mark.parametrize(
    "location",
    [
        "lake/totals",
        "",
        "/",
        "s3a://lake/",
        "/a b",
        "/a`b",
        "/a'b",
        "s3a:lake",
        "/a/*",
        "s3a://k:s@lake/t",
        "s3a://k:s/t@lake/t",
    ],
)
def test_invalid_locations(location: str) -> None:
    with pytest.raises(
        TopologyError, match=r"is not a valid name of a location|must not contain a password"
    ):
        DeltaTable(location)


@pytest.mark.parametrize(
    ("location", "normal"),
    [
        ("file:/lake", "/lake"),
        ("file:///lake/a", "/lake/a"),
        ("//lake", "/lake"),
        ("/lake//a/./b/../c", "/lake/a/c"),
        ("s3a://lake/shop//totals", "s3a://lake/shop/totals"),
        ("hdfs:///lake", "hdfs:///lake"),
    ],
)
def test_a_table_has_one_location(location: str, normal: str) -> None:
    if location == normal:
        assert DeltaTable(location).name == normal
        return
    with pytest.raises(TopologyError, match=re.escape(f"is another way to write {normal!r}")):
        DeltaTable(location)


def test_an_empty_text_does_not_fit_a_column_that_partitions_the_table() -> None:
    column = DeltaColumn("shop", pa.string(), partitions=True)
    assert column.encode(b'" "') == " "
    with pytest.raises(ValueError, match="must not be empty: partition columns store '' as null"):
        column.encode(b'""')


def shops() -> Pipeline:
    pipeline = Pipeline("shops")
    sales = pipeline.stream("sales", value=Sale, key="shop")
    sales.group_by("shop").count(store="n").select(n="value").to(
        DeltaTable("s3a://lake/totals", key="shop")
    )
    sales.to(DeltaTable("s3a://lake/sales"))
    sales.select("amount").to(PostgresTable("amounts", connection="warehouse"))
    return pipeline


def test_plan_of_delta_tables() -> None:
    job = plan(shops()).job
    assert sorted(job.written_tables) == [
        "delta:s3a://lake/sales",
        "delta:s3a://lake/totals",
        "warehouse",
    ]
    assert job.connections == ("warehouse",)
    assert shops().needs_delta
    text = explain(plan(shops()))
    assert "  writes  s3a://lake/totals in Delta Lake, in one transaction per batch\n" in text
    assert "  writes  amounts in the database of warehouse, in one transaction per batch\n" in text
    assert "  loads   the jars of Delta Lake" in text
    assert "table s3a://lake/totals in Delta Lake: a row per shop" in drawing.text(shops())
    (totals,) = job.written_tables["delta:s3a://lake/totals"]
    assert [(column.name, column.type) for column in declared_columns(totals)] == [
        ("shop", "STRING"),
        ("n", "BIGINT"),
    ]


def test_errors_of_delta_tables() -> None:
    pipeline = Pipeline("shops")
    sales = pipeline.stream("sales", value=Sale, key="shop")
    with pytest.raises(
        TopologyError,
        match=r"a table's changes need a column for the key.*DeltaTable\('/lake/n', \.\.\.",
    ):
        sales.group_by("shop").count(store="n").select(n="value").to(DeltaTable("/lake/n"))
    with pytest.raises(TopologyError, match="the column name window_start is reserved for Sluice"):
        sales.group_by("shop").windowed_by(tumbling("1 minute")).count(store="windows").to(
            DeltaTable("/lake/sales", key="window_start")
        )
    with pytest.raises(TopologyError, match="is not a valid name of a type"):
        DeltaTable("/lake/sales", types={"amount": "INTERVAL"})


def test_unknown_types_have_to_be_given() -> None:
    pipeline = Pipeline("shops")
    sales = pipeline.stream("sales", value=Sale, key="shop")
    unknown = sales.select("shop", x="parse_json('1')")
    unknown.to(DeltaTable("/lake/unknown", key="shop"))
    unknown.to(DeltaTable("/lake/known", key="shop", types={"x": "DOUBLE"}))
    without, given = plan(pipeline).job.sinks
    with pytest.raises(
        EngineError,
        match=r"delta:/lake/unknown .* needs the types of its columns x, which are unknown",
    ):
        declared_columns(without)
    assert [column.type for column in declared_columns(given)] == ["STRING", "DOUBLE"]


def test_only_a_run_with_delta_tables_loads_deltas_jars(tmp_path: Path) -> None:
    folder = tmp_path / "jars" / delta_bundle()
    jars = [folder / name for name in ("delta-spark.jar", "delta-storage.jar")]
    jars[0].parent.mkdir(parents=True)
    for jar in jars:
        jar.touch()
    configuration, delta = (
        Settings.read({"SLUICE_HOME": str(tmp_path)}),
        "io.delta.sql.DeltaSparkSessionExtension",
    )
    with submission(configuration, {}, "spark://host:7077", ["shops"]) as without:
        assert without.jars == without.driver_class_path == ""
        assert "io.delta" not in json.dumps(dict(without.conf))
    own = replace(configuration, spark_conf={"spark.sql.extensions": "org.example.Own"})
    with submission(own, {}, "spark://host:7077", ["shops"], delta=True) as submitted:
        assert submitted.jars == f"{jars[0]},{jars[1]}"
        assert submitted.driver_class_path == f"{jars[0]}:{jars[1]}"
        assert (
            submitted.conf["spark.sql.extensions"]
            == "org.example.Own,io.delta.sql.DeltaSparkSessionExtension"
        )
        # The driver's session takes the extensions from SLUICE_SPARK_CONF, which it prefers to
        # spark-submit's settings.
        of_session = Settings.read(submitted.environment).spark_conf
        assert of_session["spark.sql.extensions"] == submitted.conf["spark.sql.extensions"]
        assert (
            submitted.conf["spark.sql.catalog.spark_catalog"]
            == "org.apache.spark.sql.delta.catalog.DeltaCatalog"
        )
    both = replace(configuration, spark_conf={"spark.sql.extensions": f"{delta},org.example.Own"})
    with submission(both, {}, "spark://host:7077", ["shops"], delta=True) as submitted:
        assert submitted.conf["spark.sql.extensions"] == f"{delta},org.example.Own"
    with submission(configuration, {}, "spark://host:7077", ["shops"], delta=True) as submitted:
        assert submitted.conf["spark.sql.extensions"] == delta
    with submission(own, {}, "spark://host:7077", ["shops"]) as without:
        assert (
            Settings.read(without.environment).spark_conf["spark.sql.extensions"]
            == "org.example.Own"
        )
    for jar in jars:
        jar.unlink()
    with (
        pytest.raises(
            SettingsError,
            match=r"There are no jars in .*jars/delta.*python -m sluice\.provision jars",
        ),
        submission(configuration, {}, "local[2]", ["shops"], delta=True),
    ):
        pass


@pytest.mark.parametrize("zeros", [b"0e50", b"1." + b"0" * 60, b"1" + b"0" * 42 + b"e-40"])
def test_a_decimal_that_is_accepted_can_be_written_however_many_zeros_it_has(zeros: bytes) -> None:
    type_ = pa.decimal128(12, 2)
    assert pa.array([DeltaColumn("total", type_).encode(zeros)], type_)[0].as_py() == Decimal(
        zeros.decode()
    )


@pytest.mark.parametrize("largest", [b"3.4028234663852886e38", b"-3.4028235e38"])
def test_the_largest_float_fits(largest: bytes) -> None:
    written = pa.array([DeltaColumn("size", pa.float32()).encode(largest)], pa.float32())
    assert abs(written[0].as_py()) == 3.4028234663852886e38
    with pytest.raises(ValueError, match="out of range"):
        DeltaColumn("size", pa.float32()).encode(b"3.4028236e38")
