"""Stateless steps on Arrow give the results of Spark SQL, for random expressions and values, including nulls."""

from __future__ import annotations

from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import pyarrow as pa
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pyspark.sql import SparkSession

from sluice.engine.steps.arrow_steps import ArrowSteps
from sluice.plan import Column
from sluice.sql.arrow_types import arrow_type
from sluice.sql.typed_expression import type_expression
from sluice.values.sql_text import literal, struct_json, value_json

Strategy = st.SearchStrategy[str]

COLUMNS = {
    "text": "STRING",
    "other": "STRING",
    "whole": "BIGINT",
    "small": "INT",
    "amount": "DECIMAL(12,2)",
    "rate": "DECIMAL(9,4)",
    "flag": "BOOLEAN",
    "at": "TIMESTAMP",
    "day": "DATE",
    "place": "STRUCT<city: STRING, zip: BIGINT>",
    "lines": "ARRAY<STRUCT<item: STRING, price: DECIMAL(12,2)>>",
    "tags": "ARRAY<STRING>",
}
TEXTS = st.sampled_from(
    [
        "",
        "a",
        "ab",
        "A",
        "b%",
        "_",
        "ä",
        "日本",
        "😀",
        'say "x"',
        "it's",
        "back\\slash",
        "line\nbreak",
        "\x01",
        "\x7f",
    ]
)
WHOLE = st.integers(-(2**63), 2**63 - 1) | st.integers(-3, 3)
CENTS = st.integers(-(10**12) + 1, 10**12 - 1) | st.integers(-200, 200)
TIMES = st.datetimes(datetime(1, 1, 1), datetime(9999, 12, 31), timezones=st.just(UTC))


def amounts(scale: int, largest: int) -> st.SearchStrategy[Decimal]:
    return st.integers(-largest, largest).map(lambda number: Decimal(number).scaleb(-scale))


VALUES: dict[str, st.SearchStrategy[Any]] = {
    "text": TEXTS,
    "other": TEXTS,
    "whole": WHOLE,
    "small": st.integers(-(2**31), 2**31 - 1) | st.integers(-3, 3),
    "amount": amounts(2, 10**12 - 1) | amounts(2, 300),
    "rate": amounts(4, 10**9 - 1) | amounts(4, 30_000),
    "flag": st.booleans(),
    "at": TIMES,
    "day": st.dates(date(1, 1, 1), date(9999, 12, 31)),
    "place": st.fixed_dictionaries({"city": st.none() | TEXTS, "zip": st.none() | WHOLE}),
    "lines": st.lists(
        st.none()
        | st.fixed_dictionaries(
            {"item": st.none() | TEXTS, "price": st.none() | amounts(2, 10**6)}
        ),
        max_size=3,
    ),
    "tags": st.lists(st.none() | TEXTS, max_size=3),
}
ROWS = st.lists(
    st.fixed_dictionaries({name: st.none() | values for name, values in VALUES.items()}),
    min_size=1,
    max_size=12,
)
NUMBERS = ("BIGINT", "INT", "DECIMAL(12,2)", "DECIMAL(9,4)")
COMPARED = (("STRING",), ("BOOLEAN",), ("TIMESTAMP",), ("DATE",), NUMBERS)
PATTERNS = st.text("ab%_ä😀\n", max_size=4).map(literal)


def with_doubled_quotes(text: str) -> str:
    return "'" + text.replace("\\", "\\\\").replace("'", "''") + "'"


def columns(of: str) -> list[str]:
    names = [name for name, named in COLUMNS.items() if named == of]
    return names + {"STRING": ["place.city"], "BIGINT": ["place.zip"]}.get(of, [])


def leaves(of: str) -> Strategy:
    found: Strategy = st.sampled_from(columns(of))
    match of:
        case "STRING":
            found |= TEXTS.map(literal) | TEXTS.map(with_doubled_quotes)
        case "INT":
            found |= st.integers(0, 2**31 - 1).map(str)
        case "BIGINT":
            found |= st.integers(2**31, 2**63 - 1).map(str)
        case "BOOLEAN":
            found |= st.sampled_from(["true", "false"])
        case "DECIMAL(12,2)" | "DECIMAL(9,4)":
            found |= st.sampled_from(["1.50", "0.5", "0.05", ".25", "12345678901.1"])
    return found


@st.composite
def expressions(draw: st.DrawFn, of: str, depth: int = 3) -> str:
    """A random expression of a type."""
    if depth == 0 or draw(st.integers(0, 3)) == 0:
        return draw(leaves(of))

    def some(wanted: str) -> str:
        return draw(expressions(wanted, depth - 1))

    forms = [
        "if",
        "case",
        "coalesce",
        "guard",
        *{"BOOLEAN": 6 * ["condition"], "STRING": 4 * ["text"]}.get(of, []),
    ]
    match draw(st.sampled_from(forms)):
        case "if":
            return f"IF({some('BOOLEAN')}, {some(of)}, {some(of)})"
        case "guard":
            return f"IF({some('BOOLEAN')}, {some(of)}, NULL)"
        case "case":
            return f"CASE WHEN {some('BOOLEAN')} THEN {some(of)} WHEN {some('BOOLEAN')} THEN {some(of)} ELSE NULL END"
        case "coalesce":
            return f"coalesce({some(of)}, {some(of)})"
        case "text":
            number = draw(st.sampled_from([*NUMBERS, "BOOLEAN"]))
            value = draw(
                st.sampled_from(
                    ["text", "whole", "amount", "flag", "at", "day", "place", "lines", "tags"]
                )
            )
            fields = f"named_struct('a', {some('STRING')}, 'b c', {some(number)}, 'd\"', {value})"
            return draw(
                st.sampled_from(
                    [
                        f"concat({some('STRING')}, {some('STRING')}, {some('STRING')})",
                        f"({some('STRING')} || {some('STRING')})",
                        f"CAST({some(number)} AS STRING)",
                        struct_json(fields),
                        value_json(value),
                    ]
                )
            )
        case _:
            return draw(conditions(depth))


@st.composite
def conditions(draw: st.DrawFn, depth: int) -> str:
    """A random condition."""
    group = draw(st.sampled_from(COMPARED))

    def some() -> str:
        return draw(expressions(draw(st.sampled_from(group)), depth - 1))

    def condition() -> str:
        return draw(expressions("BOOLEAN", depth - 1))

    any_type = draw(st.sampled_from(sorted(COLUMNS)))
    match draw(
        st.sampled_from(
            ["compare", "compare", "calculate", "in", "between", "null", "like", "and", "not"]
        )
    ):
        case "compare":
            sign = draw(st.sampled_from(["=", "!=", "<", "<=", ">", ">=", "<=>"]))
            return f"({some()} {sign} {some()})"
        case "calculate":
            return f"({draw(calculations())} > {some() if group == NUMBERS else 'amount'})"
        case "in":
            return f"({some()} IN ({some()}, {some()}, {draw(st.sampled_from(['NULL', some()]))}))"
        case "between":
            return f"({some()} BETWEEN {some()} AND {some()})"
        case "null":
            return f"({any_type} IS {draw(st.sampled_from(['', 'NOT ']))}NULL)"
        case "like":
            no = draw(st.sampled_from(["", "NOT "]))
            return f"({draw(expressions('STRING', depth - 1))} {no}LIKE {draw(PATTERNS)})"
        case "not":
            return f"(NOT {condition()})"
        case _:
            return f"({condition()} {draw(st.sampled_from(['AND', 'OR']))} {condition()})"


@st.composite
def calculations(draw: st.DrawFn) -> str:
    """A sum, difference, product or negative of decimals."""
    left, right = (
        draw(st.sampled_from(["amount", "rate", "whole", "small", "7", "100", "0.050"]))
        for _ in range(2)
    )
    sign = draw(st.sampled_from(["+", "-", "*"]))
    return draw(
        st.sampled_from(
            [
                f"(amount {sign} {right})",
                f"({left} {sign} rate)",
                "-amount",
                f"CAST({left} AS DECIMAL(20, 0))",
            ]
        )
    )


def texts(count: int) -> st.SearchStrategy[list[str]]:
    kinds = st.sampled_from(
        [
            "BOOLEAN",
            "BOOLEAN",
            "STRING",
            "STRING",
            "BIGINT",
            "INT",
            "DECIMAL(12,2)",
            "TIMESTAMP",
            "DATE",
        ]
    )
    one = kinds.flatmap(expressions) | calculations()
    return st.lists(one, min_size=count, max_size=count)


def _is_for_arrow(sql: str) -> bool:
    return not type_expression(sql, COLUMNS).why_spark


@settings(suppress_health_check=list(HealthCheck), max_examples=settings().max_examples // 5)
@given(rows=ROWS, sqls=texts(20))
def test_random_expressions_have_the_same_results_on_arrow_and_in_spark(
    spark: SparkSession, rows: list[dict[str, Any]], sqls: list[str]
) -> None:
    table = pa.Table.from_pylist(
        rows, pa.schema([(name, arrow_type(of)) for name, of in COLUMNS.items()])
    )
    (batch,) = table.combine_chunks().to_batches()
    on_arrow = {f"c{place}": sql for place, sql in enumerate(sqls) if _is_for_arrow(sql)}
    steps = ArrowSteps(
        (tuple(Column(name, sql, None) for name, sql in on_arrow.items()),),
        COLUMNS,
        {},
        pa.schema([]),
    )
    found = steps.columns(batch)
    frame = spark.createDataFrame(table, ", ".join(f"{name} {of}" for name, of in COLUMNS.items()))
    expected = frame.selectExpr(*(f"{sql} AS {name}" for name, sql in on_arrow.items())).toArrow()
    for name, sql in on_arrow.items():
        assert found[name].to_pylist() == expected.column(name).to_pylist(), sql
        assert found[name].type == expected.column(name).type, sql
