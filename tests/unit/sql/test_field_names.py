"""Fields with any name are read by expressions, or refused when the file is loaded, with the backticks to write."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import msgspec
import pytest
from msgspec import Struct

from sluice import DeltaTable, Pipeline, PostgresTable, Stream, TopologyError, struct
from sluice.plan.job_columns import column_name
from sluice.sql.arrow_types import arrow_type
from sluice.sql.calls import aggregate_calls
from sluice.sql.dialect import SparkSQL, tokens_of
from sluice.sql.function_names import FUNCTIONS
from sluice.sql.parsed_expression import parse, reference
from sluice.sql.spark_syntax import functions_in
from sluice.values.contracts import sql_type
from sluice.values.sink_tables import OutputTable
from sluice.values.sql_types import (
    compact,
    element_type,
    map_value_type,
    struct_fields,
    struct_type,
)

SIGNS = [
    "$schema", "order-id", "@type", "a b", "dc:creator", "flow, net", "load<5m", "x>y", "(x)", "{x}", "http.status",
    "it's", "a`b", "100%", "a/b", "#", "?", ":x", "1st", " a", "größe", "名前",
]  # fmt: skip
KEYWORDS = [
    "all", "alter", "analyze", "and", "any", "array", "as", "asc", "at", "authorization", "begin", "between",
    "binary", "both", "by", "call", "case", "cast", "char", "check", "collate", "column", "comment", "commit",
    "constraint", "create", "cross", "cube", "current_date", "current_timestamp", "current_user", "data", "date",
    "day", "declare", "default", "delete", "desc", "describe", "distinct", "div", "drop", "else", "end", "escape",
    "every", "except", "execute", "exists", "explain", "extract", "false", "fetch", "filter", "first", "following",
    "for", "foreign", "from", "full", "function", "global", "grant", "group", "grouping", "having", "hour", "if",
    "ilike", "in", "index", "inner", "insert", "int", "intersect", "interval", "into", "is", "join", "key", "last",
    "lateral", "leading", "left", "like", "limit", "list", "load", "local", "localtime", "lock", "map", "matched",
    "merge", "minus", "minute", "month", "name", "natural", "next", "no", "not", "null", "nulls", "of", "offset",
    "on", "only", "option", "or", "order", "out", "outer", "over", "overlaps", "partition", "percent", "pivot",
    "position", "primary", "qualify", "range", "rank", "read", "record", "references", "regexp", "rename", "replace",
    "reset", "right", "rlike", "role", "rollup", "row", "rows", "schema", "second", "select", "semi", "session_user",
    "set", "show", "some", "sort", "source", "start", "string", "struct", "sync", "table", "tablesample", "temp",
    "then", "time", "timestamp", "to", "top", "trailing", "transform", "trim", "true", "truncate", "type",
    "unbounded", "union", "unique", "unknown", "unpivot", "update", "use", "user", "using", "value", "values",
    "version", "view", "when", "where", "while", "window", "with", "within", "x", "year", "zone",
]  # fmt: skip


CONSTANTS = {
    "null",
    "true",
    "false",
    "current_date",
    "current_timestamp",
    "current_user",
    "session_user",
}


def stream_of(*names: str, kind: Any = int) -> Stream[Any]:
    attributes = {f"f{number}": name for number, name in enumerate(names)}
    contract = msgspec.defstruct(
        "Odd", [(each, kind) for each in attributes], rename=attributes, module=__name__
    )
    return Pipeline("names").stream("odd", value=contract)


def test_every_name_can_be_read_in_backticks() -> None:
    for name in (*SIGNS, *KEYWORDS):
        quoted = f"`{name.replace('`', '``')}`"
        for text in (f"{quoted} > 1", f"1 + {quoted}", f"abs({quoted})", reference(name)):
            assert parse(text).fields == {name}
        stream = stream_of(name)
        for made in (
            stream.select(name),
            stream.filter(f"{quoted} > 0"),
            stream.select({name: f"{quoted} + 1"}),
        ):
            assert [*made.fields] == [name]
        sums = stream.group_by(quoted).aggregate({name: f"sum({quoted})"}, store="sums")
        sums.filter(f"{quoted} > 0")
        for text in (
            f"sum({quoted})",
            f"sum({quoted}) FILTER (WHERE {quoted} > 1)",
            f"first({quoted}, true)",
        ):
            (call,) = aggregate_calls(text)
            assert (call.arguments[0].text, call.whole.text) == (quoted, text)
        stream.join(stream.filter("1 > 0").to_table(store="kept")).filter(
            f"left.{quoted} > right.{quoted}"
        )


def test_a_name_without_backticks_is_read_or_refused_with_the_backticks() -> None:
    for name in (*SIGNS, *KEYWORDS):
        stream = stream_of(name)
        joined = stream.join(
            stream.filter(f"`{name.replace('`', '``')}` > 0").to_table(store="kept")
        )
        for handle, text, read in (
            (stream, f"{name} > 1", name),
            (joined, f"left.{name} > 1", "left"),
        ):
            if (mistake := refusal(handle, text)) is None:
                assert parse(text).fields == {read}
            else:
                assert reference(name) in mistake
                assert "names: filter at test_field_names.py:" in mistake


OPERANDS = [
    "{k}", "({k})", "{k}.a", "{k}[0]", "-{k}", "NOT {k}", "concat({k}, x)", "concat(x, {k}, y)", "concat(x, {k})",
    "coalesce({k}, x)", "upper({k})", "sum({k})", "count({k})", "max_by({k}, x)", "min_by(x, {k})", "sum(DISTINCT {k})",
    "sum(x) FILTER (WHERE {k})", "{k} + x", "x - {k}", "x + {k} - 1", "{k} || x", "x DIV {k}", "{k} % x", "{k} & x",
    "{k} = x", "x <=> {k}", "{k} AND x", "x OR {k}", "{k} IS NULL", "{k} IS NOT NULL", "{k} IS DISTINCT FROM x",
    "{k} IN (x, y)", "x IN ({k}, y)", "x NOT IN ({k})", "{k} NOT IN (x)", "{k} BETWEEN x AND y",
    "x BETWEEN {k} AND y", "x BETWEEN y AND {k}", "{k} LIKE 'a'", "{k} NOT LIKE 'a'", "x RLIKE {k}",
    "CASE WHEN {k} THEN x ELSE y END", "CASE WHEN x THEN {k} ELSE y END", "CASE WHEN x THEN y ELSE {k} END",
    "CASE {k} WHEN x THEN y END", "CASE x WHEN {k} THEN y END", "CAST({k} AS STRING)", "{k}::STRING",
    "CAST({k} AS ARRAY<INT>)", "IF({k}, x, y)", "IF(x, y, {k})", "struct({k}, x)", "struct({k} AS a)", "struct(x, {k})",
    "named_struct('a', {k})", "array({k}, x)", "map('a', {k})", "map({k}, x)", "x[{k}]", "EXTRACT(DAY FROM {k})",
    "transform({k}, e -> e)", "transform(x, e -> e + {k})", "aggregate(x, 0, (a, b) -> a + {k})", "nullif({k}, x)",
    "timestampadd(DAY, 1, {k})", "date_add({k}, 1)",
    "trim(BOTH {k} FROM x)", "(x, {k})", "{k} - 1", "concat(x, {k} - 1)",
]  # fmt: skip
"""Expressions in which a word at the place of `{k}` can only be a field."""


def read_fields(text: str, known: set[str]) -> set[str] | None:
    """The fields that an expression reads; None if the expression is refused."""
    try:
        read = parse(text).fields
    except TopologyError:
        return None
    calls = {token.text.lower() for token in functions_in(tokens_of(text))}
    return {*read} if read <= known and calls <= FUNCTIONS else None


@pytest.mark.parametrize("every", [7, pytest.param(1, marks=pytest.mark.heavy)])
def test_a_word_where_only_a_field_can_be_is_read_or_refused(every: int) -> None:
    words = {
        *KEYWORDS,
        *map(str.lower, filter(str.isidentifier, SparkSQL.Tokenizer.KEYWORDS)),
        *FUNCTIONS,
    }
    for number, word in enumerate(sorted(words - CONSTANTS - {"not", "e"})):
        for operand in OPERANDS[number % every :: every]:
            text = operand.format(k=word)
            expected = {*re.findall(r"\b[xy]\b", operand), word}
            read = read_fields(text, {word, "x", "y"})
            assert read is None or read == expected, text


def test_few_words_are_refused_as_operands() -> None:
    for word in ("all", "any", "date", "interval", "values"):
        texts = [operand.format(k=word) for operand in OPERANDS if "BOTH" not in operand]
        refused = [text for text in texts if read_fields(text, {word, "x", "y"}) is None]
        assert refused == []


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("schema(x)", "calls schema, which is not a function"),
        ("upper(x) || x.trim(x)", "calls a function after a dot"),
        ("[x, 1]", r"Write array\(\.\.\.\)"),
        ("x ->> 'a'", "has the operator ->>"),
        ("x ISNULL", "has the operator ISNULL"),
        ("x IS y", "has IS, but not before NULL"),
        ("x IN y", "has IN without parentheses"),
        ("bigint '1'", r"Write CAST\('1' AS bigint\)"),
        ("CAST(x AS TEXT)", "converts to TEXT, which is not a type"),
        ("INTERVAL x DAY", "an INTERVAL that is not a constant"),
        ("(x AS y)", "names a part of it with AS"),
        ("concat(x, )", "a comma without a value"),
        ("named_struct(x)", "calls named_struct with 1 argument"),
        ("x;", "ends with a semicolon"),
        ("struct(x.*)", "contains a star"),
        ("struct(x AS)", "has AS without a name"),
        ("struct(x AS, y)", "has AS without a name"),
        ("sequence(x)", "calls sequence with 1 argument, but it takes 2 or 3 arguments"),
        ("map(x)", "calls map with 1 argument, but it takes an even number of arguments"),
        ("x IS NULL[0]", "is not a Spark SQL expression"),
        ("x IS NOT NULL.y", "is not a Spark SQL expression"),
        ("x IS NULL::INT", "is not a Spark SQL expression"),
    ],
)
def test_what_only_other_databases_read_is_refused(text: str, says: str) -> None:
    with pytest.raises(
        TopologyError, match=rf"names: select at test_field_names\.py:\d+: .*{says}"
    ):
        stream_of("x", "y", "schema").select(a=text)


def refusal(stream: Stream[Any], condition: str) -> str | None:
    try:
        stream.filter(condition)
    except TopologyError as error:
        return str(error)
    return None


def test_the_names_in_a_struct_are_checked_where_it_is_written() -> None:
    with pytest.raises(TopologyError, match=r"struct at test_field_names\.py:"):
        struct({"n": "a b"})


@pytest.mark.parametrize(
    ("columns", "mistake"),
    [
        ({"a": "1", "A": "2"}, "differ only in case"),
        ({"": "1"}, "no name"),
        ({"\ud800": "1"}, "an unpaired surrogate"),
        ({1: "1"}, r"expected the name of a column \(str\), got int: 1"),
        ({"_window_start": "1"}, "reserved"),
    ],
)
def test_columns_have_names_that_sql_can_tell_apart(columns: dict[str, str], mistake: str) -> None:
    with pytest.raises(TopologyError, match=mistake):
        stream_of("n").select(columns)
    with pytest.raises(TopologyError, match=mistake):
        stream_of("n").group_by_key().aggregate(
            {name: f"sum({text})" for name, text in columns.items()}, store="s"
        )
    if mistake != "reserved":
        with pytest.raises(TopologyError, match=mistake):
            stream_of("n").select(nested=columns)


@pytest.mark.parametrize(
    "text", ["struct(n, n)", "(n, (n))", "arrays_zip(l, l)", "struct(n AS `order-id`, `order-id`)"]
)
def test_an_object_with_two_fields_of_a_name_is_refused(text: str) -> None:
    stream = stream_of("n", "l", "order-id")
    with pytest.raises(
        TopologyError, match=r"names\.py:\d+: .* makes an object with two fields named"
    ):
        stream.select(whole=text)
    for right in (
        "(n, n + 1, 1, 1)",
        "struct(n AS a, n)",
        "(n, n) = (l, l)",
        "IF((n, n) IN ((1, 2)), 1, 2)",
    ):
        stream.select(whole=right)


def unchanged(frame: Any) -> Any:
    return frame


def test_a_frame_has_a_column_of_its_own() -> None:
    for stream, contract in ((stream_of("_row"), Inner), (stream_of("n"), Rowed)):
        with pytest.raises(TopologyError, match="no field can be named _row"):
            stream.transform(unchanged, returns=contract)


class Rowed(Struct):
    _row: int


def test_two_fields_never_share_a_column() -> None:
    names = [
        "order-id",
        "order_x2d_id",
        "order_x5f_x2d_id",
        "order_x",
        "order_xy_",
        "a_x",
        "a_x5f_x",
    ]
    assert len({column_name("s0", name) for name in names}) == len(names)
    assert column_name("s0", "order_id") == "s0_order_id"


class Inner(
    Struct, rename={"creator": "dc:creator", "flow": "flow, net", "load": "load<5m", "text": "a`b"}
):
    creator: str
    flow: list[int]
    load: dict[str, float]
    text: str


def test_the_text_of_a_type_is_read_back_whatever_its_names() -> None:
    kind = sql_type(list[Inner])
    fields = {
        "dc:creator": "STRING",
        "flow, net": "ARRAY<BIGINT>",
        "load<5m": "MAP<STRING, DOUBLE>",
        "a`b": "STRING",
    }
    assert struct_fields(element_type(kind)) == fields
    assert struct_fields(compact(kind)[len("array<") : -1]) == {
        name: compact(of) for name, of in fields.items()
    }
    assert {field.name for field in arrow_type(kind).value_type} == fields.keys()
    assert (
        compact("MAP<INT, ARRAY<STRUCT<`aB c`: DECIMAL(12, 2)>>>")
        == "map<int,array<struct<`aB c`:decimal(12,2)>>>"
    )
    assert (map_value_type("MAP<INT, STRING>"), map_value_type("STRING")) == ("STRING", "")
    assert struct_fields(struct_type({"a": "", "b": struct_type({"c": ""})})) == {
        "a": "",
        "b": "STRUCT<c: >",
    }


@pytest.mark.parametrize(
    ("table", "name", "mistake"),
    [
        (DeltaTable("/lake/t"), "flow, net", "names in Delta Lake cannot contain ','"),
        (DeltaTable("/lake/t"), "a b", "names in Delta Lake cannot contain ' '"),
        (PostgresTable("t", connection="c"), "x" * 64, "names have at most 63 bytes"),
        (PostgresTable("t", connection="c"), "ü" * 32, "names have at most 63 bytes"),
        (PostgresTable("t", connection="c"), "xmin", "has a system column of this name"),
        (PostgresTable("t", connection="c"), "a\0b", "names cannot contain NUL"),
    ],
)
def test_a_column_that_a_table_cannot_have_is_refused(
    table: OutputTable, name: str, mistake: str
) -> None:
    with pytest.raises(
        TopologyError, match=rf"to\(.*\) at test_field_names\.py:\d+: .*{mistake}.*select"
    ):
        stream_of("n").select({name: "n"}).to(table)
    with pytest.raises(TopologyError, match="not a valid name of a column"):
        replace(table, key=name)


def test_delta_ignores_the_case_of_names() -> None:
    rows = stream_of("id").to_table(store="rows")
    with pytest.raises(TopologyError, match="columns ID and id differ only in case"):
        rows.to(DeltaTable("/lake/t", key="ID"))
    rows.to(DeltaTable("/lake/t", key="id"))
    with pytest.raises(TopologyError, match="the column name _Topic is reserved for Sluice"):
        stream_of("_Topic").to(DeltaTable("/lake/t"))
    stream_of("id").to_table(store="rows").to(PostgresTable("t", connection="c", key="ID"))


def test_a_nested_field_that_delta_refuses() -> None:
    with pytest.raises(TopologyError, match="names in Delta Lake cannot contain"):
        stream_of("parts", kind=list[Inner]).to(DeltaTable("/lake/t"))
    stream_of("parts", kind=list[Inner]).to(PostgresTable("t", connection="c"))
    stream_of("order-id").to(PostgresTable("t", connection="c", key="order-id"))
