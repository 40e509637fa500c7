"""Which pipelines compute their stateless steps on Arrow, and why the others need Spark SQL."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec import Struct
from sqlglot import exp

from sluice import Decimal2, Pipeline
from sluice.plan import explain, plan
from sluice.plan.arrow_support import why_spark
from sluice.sql.arrow_evaluation import COMPUTED
from sluice.sql.arrow_to_json import java_text
from sluice.sql.rules import RULES
from sluice.sql.typed_expression import JSON_VALUE, PATH_ELEMENT, type_expression

TYPES = {
    "text": "STRING",
    "whole": "BIGINT",
    "small": "INT",
    "amount": "DECIMAL(12,2)",
    "share": "DOUBLE",
    "flag": "BOOLEAN",
    "tags": "ARRAY<STRING>",
    "place": "STRUCT<city: STRING, zip: BIGINT>",
}


class Sale(Struct):
    shop: str
    amount: Decimal2
    number: int
    share: float


def why(*, where: str = "", double: bool = False, **columns: str) -> str:
    """The reason for a pipeline that filters, selects, writes to a topic and counts."""
    pipeline = Pipeline("p")
    sales = pipeline.stream("sales", value=Sale)
    if where:
        sales = sales.filter(where)
    if columns:
        sales.select(columns).to("selected")
    if double:
        sales.map_values(twice).to("doubled")  # a value of an unknown type
    sales.group_by("shop").count(store="sales_count")
    return why_spark(plan(pipeline).job)


def twice(value: Any) -> Any:
    return [value, value]


def test_simple_steps_and_those_that_can_fail_run_on_arrow() -> None:
    assert (
        why(where="amount > 10 AND shop LIKE 'a%'", marked="shop || '!'", more="amount * 2") == ""
    )
    assert (
        why(
            where="share > 0.5 AND CAST(shop AS INT) > 1",
            half="CAST(number / 2 AS INT)",
            next="number + 1",
        )
        == ""
    )


@pytest.mark.parametrize(
    ("step", "part"),
    [
        ({"where": "share > CAST(shop AS FLOAT)"}, "CAST(shop AS FLOAT)"),
        ({"name": "soundex(shop)"}, "SOUNDEX(shop)"),
        ({"where": "soundex(shop) = 'a' OR CAST(shop AS INT) > 1"}, "SOUNDEX(shop)"),
        (
            {"double": True},
            ": the type of the results is unknown",
        ),
        ({"rough": "CAST(share AS FLOAT)"}, "CAST(share AS FLOAT)"),
    ],
)
def test_the_first_part_that_needs_spark_is_named(step: dict[str, Any], part: str) -> None:
    assert part.lower() in why(**step).lower()


def test_ordered_operators_take_records_from_arrow_unless_a_step_needs_spark() -> None:
    pipeline = Pipeline("p")
    sales = pipeline.stream("sales", value=Sale)
    sales.select("shop", "amount").group_by("shop").reduce(lambda a, b: a, store="last")
    assert why_spark(plan(pipeline).job) == ""
    sales.group_by("soundex(shop)").reduce(lambda a, b: a, store="last_share")
    assert why_spark(plan(pipeline).job).endswith("SOUNDEX(shop)")


def test_explain_says_where_the_steps_run() -> None:
    pipeline = Pipeline("p")
    pipeline.stream("sales", value=Sale).filter("soundex(shop) > 'a'").group_by("shop").count(
        store="sales_count"
    )
    assert "  steps   by Spark SQL: filter at " in explain(plan(pipeline))
    pipeline = Pipeline("q")
    pipeline.stream("sales", value=Sale).group_by("shop").count(store="sales_count")
    assert "  steps   on Arrow, in the tasks that read" in explain(plan(pipeline))


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("1", "INT"),
        ("3000000000", "BIGINT"),
        ("10.50", "DECIMAL(4,2)"),
        ("IF(flag, small, 3000000000)", "BIGINT"),
        ("amount + amount", "DECIMAL(13,2)"),
        ("amount * 100", "DECIMAL(16,2)"),
        ("place.city", "STRING"),
        ("IF(flag, amount, 0)", "DECIMAL(12,2)"),
        ("CASE text WHEN 'a' THEN 1 END", "INT"),
        ("small + whole", "BIGINT"),
        ("whole / 2", "DOUBLE"),
        ("TRY_CAST(text AS DECIMAL(10, 2))", "DECIMAL(10,2)"),
        ("1e3", "DOUBLE"),
        ("whole IN (1, 2, NULL)", "BOOLEAN"),
        ("flag = (whole = 1) = flag", "BOOLEAN"),
        ("small | 1 & 3", "INT"),
        ("named_struct('a', text, 'b', amount)", "STRUCT<a: STRING, b: DECIMAL(12,2)>"),
    ],
)
def test_types_of_expressions(text: str, expected: str) -> None:
    expression = type_expression(text, TYPES)
    assert (expression.type, expression.why_spark) == (expected, "")


@pytest.mark.parametrize(
    "text",
    [
        "missing",
        "place.street",
        "text = 1",
        "initcap(text)",
        "tags[whole]",
        "text LIKE 'a\\\\%'",
        "share DIV whole",
        "CAST(share AS STRING)",
        "named_struct('a', 1, 'a', 2)",
        "to_json(named_struct('a', 1))",
        "substring(text, whole)",
        "text RLIKE 'a|b'",
        "split(text, '[,;]|x')",
        "named_struct('a', 1 / whole).a",
        "concat(text, share)",
    ],
)
def test_expressions_that_need_spark(text: str) -> None:
    assert type_expression(text, TYPES).why_spark


def test_each_rule_that_arrow_can_follow_has_a_function() -> None:
    only_typed = {
        exp.Avg, exp.Between, exp.Count, exp.DataType, exp.DataTypeParam, exp.Filter, exp.First, exp.Identifier,
        exp.Lambda, exp.Last, exp.Max, exp.Min, exp.PropertyEQ, exp.Star, exp.Sum, exp.Var, "validate_utf8",
        "get_json_object",
    }  # fmt: skip
    assert COMPUTED - {JSON_VALUE, PATH_ELEMENT} == RULES.keys() - only_typed


def test_a_double_is_json_as_java_writes_it() -> None:
    numbers = [
        0.0,
        -0.0,
        1.0,
        0.001,
        0.00099,
        9999999.0,
        1e7,
        123456789.125,
        -1e-5,
        2e23,
        5e-324,
        1.7976931348623157e308,
    ]
    assert [java_text(number) for number in numbers] == [
        "0.0", "-0.0", "1.0", "0.001", "9.9E-4", "9999999.0", "1.0E7", "1.23456789125E8", "-1.0E-5", "2.0E23",
        "4.9E-324", "1.7976931348623157E308",
    ]  # fmt: skip


@pytest.mark.parametrize(
    "text",
    ["transform(xs, x -> -x)", "filter(xs, x -> abs(x) > 1)", "transform(xs, x -> CAST(x AS STRING))",
     "aggregate(xs, 0, (a, x) -> a + x)", "transform(xs, x -> x[0])"],
)  # fmt: skip
def test_the_body_of_a_lambda_needs_spark(text: str) -> None:
    expression = type_expression(text, {"xs": "ARRAY<INT>"})
    assert "->" in expression.why_spark
    assert expression.fails
