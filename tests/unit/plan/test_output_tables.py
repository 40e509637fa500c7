"""Tables of databases in the DSL and the plan, and the text of columns for JSON values."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from msgspec import Struct

from sluice import Pipeline, PostgresTable, Stream, TopologyError, tumbling
from sluice.engine.publish.target_tables import databases_of, postgres_target
from sluice.errors import SettingsError
from sluice.plan import explain, plan
from sluice.settings import Settings
from sluice.sinks.postgres_columns import PostgresColumn, created_type, fits
from sluice.topology import drawing


class Sale(Struct):
    """A sale in a shop."""

    shop: str
    amount: int
    weight: float = 0.0
    sold: bool = True


def sales_of(pipeline: Pipeline) -> Stream[Sale]:
    return pipeline.stream("sales", value=Sale, key="shop")


def table(name: str = "totals", key: str | None = None, **types: str) -> PostgresTable:
    return PostgresTable(name, connection="warehouse", key=key, types=types)


@pytest.mark.parametrize(
    ("type_", "json", "text"),
    [
        ("integer", "12", "12"),
        ("smallint", "-32768", "-32768"),
        ("bigint", "9223372036854775807", "9223372036854775807"),
        ("numeric(5,2)", "123.450", "123.45"),
        ("numeric(5,2)", "0", "0"),
        ("numeric", "1e40", "1E+40"),
        ("double precision", "1.5", "1.5"),
        ("boolean", "true", "true"),
        ("text", '"a\\n\\u00e9"', "a\né"),
        ("character varying(2)", '"ab"', "ab"),
        ("timestamp with time zone", '"2026-01-01T10:00:00+02:00"', "2026-01-01T08:00:00+00:00"),
        ("timestamp without time zone", '"2026-01-01T10:00:00+02:00"', "2026-01-01T08:00:00"),
        (
            "timestamp(3) with time zone",
            '"2026-01-01T08:00:00.123Z"',
            "2026-01-01T08:00:00.123000+00:00",
        ),
        ("date", '"2026-01-31"', "2026-01-31"),
        ("bytea", '"AP8="', "\\x00ff"),
        ("jsonb", '{"a":[1.10]}', '{"a":[1.10]}'),
        ("uuid", '"00000000-0000-0000-0000-00000000000A"', "00000000-0000-0000-0000-00000000000a"),
        ("mood", '"happy"', "happy"),
        ("integer", "null", None),
    ],
)
def test_values_that_fit(type_: str, json: str, text: str | None) -> None:
    assert PostgresColumn("c", type_).encode(json.encode()) == text


@pytest.mark.parametrize(
    ("type_", "json", "why"),
    [
        ("integer", "2147483648", "is out of range"),
        ("integer", "1.0", "is not a whole number"),
        ("integer", "true", "is not a whole number"),
        ("integer", '"1"', "is not a whole number"),
        ("numeric(5,2)", "1000", "is out of range"),
        ("numeric(5,2)", "1.001", "has more than 2 decimal places"),
        ("numeric(5)", "0.5", "has more than 0 decimal places"),
        ("numeric", '"1"', "is not a number"),
        ("numeric", '"NaN"', "is not a number"),
        ("double precision", '"-Infinity"', "is not a number"),
        ("double precision", "1e999", "is out of range"),
        ("real", "1e39", "is out of range"),
        ("boolean", "1", "is not a Boolean"),
        ("text", "1", "is not text"),
        ("text", '"a\\u0000"', "has a character U.0000"),
        ("jsonb", '"\\\\\\u0000"', "has a character U.0000"),
        ("character varying(2)", '"abc"', "is longer than 2 characters"),
        ("character", '"ab"', "is longer than 1 characters"),
        ("timestamp with time zone", '"2026-01-01T08:00:00"', "has no time zone"),
        ("timestamp with time zone", '"yesterday"', "Invalid isoformat string"),
        ("date", '"2026-02-30"', "day is out of range"),
        ("bytea", '"?"', ""),
        ("uuid", '"12"', "badly formed"),
        # PostgreSQL would round these.
        ("numeric(3,-1)", "15", "has more than -1 decimal places"),
        (
            "timestamp(0) with time zone",
            '"2026-01-01T00:00:00.6Z"',
            "has more than 0 decimal places of a second",
        ),
        (
            "timestamp(3) without time zone",
            '"2026-01-01T00:00:00.1239"',
            "has more than 3 decimal places of a second",
        ),
        ("real", "16777217", "has too many digits"),
        ("double precision", "9007199254740993", "has too many digits"),
        ("character(3)", '"a "', "ends with a blank"),
    ],
)
def test_values_that_do_not_fit(type_: str, json: str, why: str) -> None:
    with pytest.raises(
        ValueError, match=rf"^column total \({type_.replace('(', '.').replace(')', '.')}\): .*{why}"
    ):
        PostgresColumn("total", type_).encode(json.encode())


def test_a_key_that_postgresql_would_change_does_not_fit() -> None:
    key = PostgresColumn("shop", "uuid", is_key=True)
    assert (
        key.encode(b'"00000000-0000-0000-0000-00000000000a"')
        == "00000000-0000-0000-0000-00000000000a"
    )
    with pytest.raises(ValueError, match="is not written as 00000000-0000-0000-0000-00000000000a"):
        key.encode(b'"00000000-0000-0000-0000-00000000000A"')


def test_the_type_of_a_created_column_fits_its_expression() -> None:
    created = {
        kind: created_type(kind)
        for kind in ("STRING", "DECIMAL(12,2)", "TIMESTAMP", "ARRAY<STRING>", "")
    }
    assert [*created.values()] == ["text", "numeric(12,2)", "timestamp with time zone", "jsonb", ""]
    assert all(fits(kind, own) for kind, own in created.items())
    assert fits("STRING", "uuid")
    assert fits("BIGINT", "smallint")
    assert fits("", "integer")
    assert not fits("STRING", "integer")
    assert not fits("STRING", "time(0) without time zone")
    assert fits("STRING", "time without time zone")
    assert not fits("DOUBLE", "real")
    assert not fits("DOUBLE", "bigint")
    assert not fits("DECIMAL(12,2)", "double precision")
    assert not fits("ARRAY<STRING>", "text[]")


def test_the_plan_shows_tables() -> None:
    pipeline = Pipeline("shops")
    sales = sales_of(pipeline)
    sales.group_by("shop").windowed_by(tumbling("1 minute")).count(store="n").to(
        table("shop.totals", key="shop")
    )
    sales.to(table("sales"))
    planned = plan(pipeline)
    assert planned.job.outputs == ()
    assert (
        "  writes  sales, shop.totals in the database of warehouse, in one transaction per batch"
        in explain(planned)
    )
    assert "table shop.totals in warehouse: a row per shop" in drawing.text(pipeline)
    assert "table sales in warehouse: a row per record" in drawing.text(pipeline)
    sales_table, totals = [
        postgres_target(sink) for sink in planned.job.written_tables["warehouse"]
    ]
    assert [*totals.created.items()] == [
        ("shop", "text"), ("window_start", "timestamp with time zone"), ("window_end", "timestamp with time zone"),
        ("value", "bigint"),
    ]  # fmt: skip
    assert [*sales_table.created.items()] == [
        ("_topic", "text"), ("_partition", "integer"), ("_offset", "bigint"), ("_row", "bigint"), ("shop", "text"),
        ("amount", "bigint"), ("weight", "double precision"), ("sold", "boolean"),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (
            lambda s: s.to(table(key="amount"), value=str),
            "value=, key=, partition=, emit= and cycle= apply only to topics",
        ),
        (
            lambda s: s.group_by_key().count(store="n").to(table()),
            "a table's changes need a column for the key",
        ),
        (lambda s: s.to(table(key="weight")), "the field weight is DOUBLE"),
        (lambda s: s.to(table(key="_row")), "the column name _row is reserved for Sluice"),
        (
            lambda s: s.to(table(size="integer")),
            "types= has a type for 'size', but the columns are _topic",
        ),
        (
            lambda s: s.to(table("a; DROP TABLE b")),
            "'a; DROP TABLE b' is not a valid name of a table",
        ),
        (lambda s: s.to(table(amount="integer); DROP TABLE b")), "is not a valid name of a type"),
        (
            lambda s: [s.to(table("x")), s.to(table("x"))],
            "table 'warehouse:x' at .* is already used at",
        ),
    ],
)
def test_wrong_tables(build: Callable[[Stream[Sale]], object], message: str) -> None:
    with pytest.raises(TopologyError, match=message):
        build(sales_of(Pipeline("shops")))


def test_the_connection_comes_from_the_environment() -> None:
    pipeline = Pipeline("shops")
    sales_of(pipeline).to(PostgresTable("sales", connection="the-warehouse"))
    job = plan(pipeline).job
    with pytest.raises(SettingsError, match="Set SLUICE_CONNECTION_THE_WAREHOUSE to postgresql://"):
        databases_of(job, Settings.read({}))
    wrong = Settings.read(
        {"SLUICE_CONNECTION_THE_WAREHOUSE": "postgresql://me:secret@host/db?nonsense=1"}
    )
    with pytest.raises(SettingsError, match="cannot be parsed") as error:
        databases_of(job, wrong)
    assert "secret" not in str(error.value)
    right = Settings.read({"SLUICE_CONNECTION_THE_WAREHOUSE": "postgresql://me:secret@host/db"})
    assert "secret" not in repr(databases_of(job, right)) + repr(right)
    assert right.secrets == ("secret",)
