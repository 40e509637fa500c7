"""Parsing Spark SQL without Spark: fields, aggregates, and replacing columns."""

from __future__ import annotations

import pytest
from sqlglot import exp

from sluice.errors import TopologyError
from sluice.sql.aggregate_expressions import SplitAggregate, require_supported, split_aggregate
from sluice.sql.dialect import tree_of
from sluice.sql.parsed_expression import parse, reference
from sluice.sql.typed_expression import type_expression
from sluice.values.aggregate_calls import AggregateFunction

READS = {
    "amount > 1": {"amount"},
    "address.city = 'a' AND address.zip <> zip": {"address", "zip"},
    "items[0].amount": {"items"},
    "`weird name` + 1": {"weird name"},
    "transform(items, i -> i.amount * rate)": {"items", "rate"},
    "aggregate(items, 0, (acc, x) -> acc + x.amount)": {"items"},
    "exists(items, amount -> amount.amount > amount.floor)": {"items"},
    "'amount' || \"shop\"": set(),
    "amount = 'shop -- amount'": {"amount"},
    "date_trunc('DAY', at) + INTERVAL 15 SECONDS": {"at"},
    "timestampdiff(MINUTE, start, stop)": {"start", "stop"},
    "extract(hour FROM at)": {"at"},
    "CASE WHEN a THEN b ELSE c END": {"a", "b", "c"},
    "CAST(a AS DECIMAL(10,2)) <=> b::int": {"a", "b"},
    "a RLIKE '^x' OR a LIKE 'b%'": {"a"},
    "named_struct('a', b)": {"b"},
    "count(DISTINCT a, b) FILTER (WHERE c > 1)": {"a", "b", "c"},
    "1 + 1": set(),
}


@pytest.mark.parametrize("text", READS)
def test_an_expression_reads_these_fields(text: str) -> None:
    assert parse(text).fields == READS[text]


POINTED = {
    "amount > 1 OR amount < -1": "s0_amount > 1 OR s0_amount < -1",
    "address.city || city": "s0_address.city || n1_city",
    "transform(items, amount -> amount.amount * amount)": "transform(s0_items, amount -> amount.amount * amount)",
    "transform(items, i -> i.amount * amount)": "transform(s0_items, i -> i.amount * s0_amount)",
    "amount = 'amount'": "s0_amount = 'amount'",
    "`amount`": "s0_amount",
    "`weird name`.amount": "s0_weird.amount",
    "  amount\n+ amount ": "  s0_amount\n+ s0_amount ",
    "named_struct('amount', amount)": "named_struct('amount', s0_amount)",
    "ünï = 'ü' AND amount > 1": "s0_uni = 'ü' AND s0_amount > 1",
    "struct(amount, address.city, city AS town)": "struct(s0_amount AS amount, s0_address.city, n1_city AS town)",
    "struct(`weird name`, amount + 1)": "struct(s0_weird AS `weird name`, s0_amount + 1)",
    "transform(items, i -> struct(i, amount))": "transform(s0_items, i -> struct(i, s0_amount AS amount))",
}


@pytest.mark.parametrize("text", POINTED)
def test_only_columns_are_replaced(text: str) -> None:
    columns = {
        "amount": "s0_amount",
        "address": "s0_address",
        "city": "n1_city",
        "items": "s0_items",
    }
    columns |= {"weird name": "s0_weird", "ünï": "s0_uni"}
    assert parse(text).on(columns) == POINTED[text]


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("amount", "amount"),
        ("order-id", "`order-id`"),
        ("case", "`case`"),
        ("a`b", "`a``b`"),
        ("a.b", "`a.b`"),
        ("1", "`1`"),
    ],
)
def test_a_field_of_any_name_can_be_referred_to(name: str, text: str) -> None:
    assert reference(name) == text
    assert parse(text).names == ((name, 0, len(text)),)


AGGREGATES = """\
    any any_value approx_count_distinct array_agg avg bool_and bool_or collect_list collect_set count count_if every
    first last kurtosis max mean median min mode skewness some std stddev stddev_pop sum try_avg try_sum variance
"""


@pytest.mark.parametrize("name", AGGREGATES.split())
def test_aggregates_are_distinguished_from_other_functions(name: str) -> None:
    assert parse(f"{name}(amount)").aggregates
    assert parse(f"1 + {name.upper()}(amount)").aggregates


@pytest.mark.parametrize(
    "text",
    ["amount", "upper(shop)", "greatest(a, b)", "array_max(items)", "'count(*)'", "size(items)"],
)
def test_other_functions_do_not_aggregate(text: str) -> None:
    assert not parse(text).aggregates


WRITTEN: dict[str, tuple[str, list[AggregateFunction]]] = {
    "sum(a + b) / count(*)": ("a0 / a1", [("sum", "a + b", ()), ("count", None, ())]),
    "max(to_char(a, '99')) FILTER ( WHERE b IN (1, 2) )": (
        "a0",
        [("max", "IF(b IN (1, 2), to_char(a, '99'), NULL)", ())],
    ),
    "count(*) FILTER (WHERE a > 0) + count(*)": (
        "a0 + a1",
        [("count", "IF(a > 0, TRUE, NULL)", ()), ("count", None, ())],
    ),
    "count(DISTINCT struct(a, b))": ("a0", [("count_distinct", "struct(a, b)", ())]),
    "if(sum(a) > 1, top(a, 3)[0], -sum(a))": (
        "if(a0 > 1, a1[0], -a0)",
        [("sum", "a", ()), ("top", "a", (3,))],
    ),
    "first(a, true) || first(a IGNORE NULLS) || first(a) ignore nulls": (
        "a0 || a0 || a0",
        [("first", "a", ())],
    ),
    "sum(ALL `c d`)": ("a0", [("sum", "`c d`", ())]),
    "count(a, b) + count_if(a > 0)": (
        "a0 + a1",
        [
            ("count", "IF((a) IS NOT NULL AND (b) IS NOT NULL, TRUE, NULL)", ()),
            ("count", "IF(a > 0, TRUE, NULL)", ()),
        ],
    ),
    "max_by(a, b) FILTER (WHERE c)": (
        "a0",
        [("max_by", "named_struct('x', IF(c, a, NULL), 'y', IF(c, b, NULL))", ())],
    ),
    "corr(a, b + 1)": (
        "a0",
        [("corr", "named_struct('x', CAST(a AS DOUBLE), 'y', CAST(b + 1 AS DOUBLE))", ())],
    ),
    "std(a) / mean(a)": ("a0 / a1", [("stddev_samp", "a", ()), ("avg", "a", ())]),
    "percentile(a, array(0.25, 0.9))[0] - median(a)": (
        "a0[0] - a1",
        [("percentiles", "a", (0.25, 0.9)), ("percentile", "a", (0.5,))],
    ),
    "approx_percentile(a, 1)": ("a0", [("approx_percentile", "a", (1.0,))]),
    "sum(all) + min(distinct) + sum(ALL all)": (
        "a0 + a1 + a0",
        [("sum", "all", ()), ("min", "distinct", ())],
    ),
    "first(nulls) || first(ignore) || first(nulls IGNORE NULLS)": (
        "a0 || a1 || a0",
        [("first", "nulls", ()), ("first", "ignore", ())],
    ),
    "max_by(ignore, nulls)": ("a0", [("max_by", "named_struct('x', ignore, 'y', nulls)", ())]),
}


@pytest.mark.parametrize("text", WRITTEN)
def test_aggregates_are_split_up_as_the_author_wrote_them(text: str) -> None:
    outer, functions = WRITTEN[text]
    parts = split_aggregate(text)
    assert isinstance(parts, SplitAggregate)
    assert (parts.text, [*parts.functions]) == (outer, functions)


@pytest.mark.parametrize(
    "text",
    ["avg(DISTINCT a)", "first(a) RESPECT NULLS", "listagg(a)", "max_by(a, b, 2)", "max_by(a)", "percentile(a, 2)",
     "percentile(a, b)", "percentile(a, 0.5, b)", "try_sum(a)", "hll_sketch_agg(a)",
     "percentile_cont(0.5) WITHIN GROUP (ORDER BY a) FILTER (WHERE b)"],
)  # fmt: skip
def test_an_aggregate_that_sluice_does_not_have_is_named(text: str) -> None:
    assert split_aggregate(f"1 + {text} - sum(c)") == text


@pytest.mark.parametrize(
    ("text", "advice"),
    [
        ("listagg(a, ',')", "array_join(collect_list(x), ',')"),
        ("1 + try_sum(a)", "Use sum"),
        ("max_by(a, b, 2)", "top(y, 3)"),
        ("percentile(a, 1.5)", "from 0 to 1"),
        ("percentile_cont(0.5) WITHIN GROUP (ORDER BY a)", "Use percentile(x, 0.5)"),
        ("approx_count_distinct(a, 0.01)", "Use approx_count_distinct(x)"),
        ("first(a) RESPECT NULLS", "which ignore nulls"),
        ("histogram_numeric(a, 5)", "approx_percentile"),
        ("count_min_sketch(a, 0.1, 0.9, 1)", "Use approx_count_distinct, approx_percentile, avg, "),
    ],
)
def test_an_unsupported_aggregate_is_refused_with_what_to_use_instead(
    text: str, advice: str
) -> None:
    with pytest.raises(TopologyError, match="is not supported") as refused:
        require_supported(text, "store n")
    assert advice in refused.value.next_step


@pytest.mark.parametrize(
    "text",
    [
        "", "  ", "a b c", "sum(", "a ==", "a, b", "a # b", "a) OR (b", "SELECT a", "(SELECT a)", "DROP TABLE a",
        "a IN (SELECT b)", "EXISTS (SELECT 1)", "a AS b", "a -- b", "/* a */ b", "a.*", "*", "sum(a) OVER (ORDER BY b)",
        "INSERT INTO a VALUES (1)", "SET a = b", "a; b",
    ],
)  # fmt: skip
def test_only_single_expressions_are_accepted(text: str) -> None:
    with pytest.raises(TopologyError) as refused:
        parse(text)
    assert repr(text) in refused.value.detail


def test_an_error_names_its_column() -> None:
    with pytest.raises(TopologyError, match=r"\(column 12\)"):
        parse("amount + 1 )")


@pytest.mark.parametrize(
    ("text", "quotes"),
    [
        ("a.not > 1", "a.`not` > 1"),
        ("a.select", "a.`select`"),
        ("CASE WHEN from THEN 1 END", "CASE WHEN `from` THEN 1 END"),
    ],
)
def test_an_error_suggests_backticks_for_keywords(text: str, quotes: str) -> None:
    with pytest.raises(TopologyError) as refused:
        parse(text)
    assert refused.value.next_step.endswith(quotes)
    assert parse(quotes).fields


def test_an_error_without_a_keyword_suggests_no_backticks() -> None:
    with pytest.raises(TopologyError) as refused:
        parse("(a + b")
    assert refused.value.next_step == "Correct the expression at this column."


def test_a_function_within_unhex_is_not_taken_for_a_part_of_a_path() -> None:
    assert type_expression("unhex(hex(name))", {"name": "STRING"}).type == "BINARY"


@pytest.mark.parametrize(
    ("text", "grouped"),
    [
        ("a | b & c", "a | (b & c)"), ("a & b | c", "(a & b) | c"), ("a ^ b & c", "a ^ (b & c)"),
        ("a | b ^ c", "a | (b ^ c)"), ("a & b << c", "a & (b << c)"), ("a << b + c", "a << (b + c)"),
        ("a || b + c", "(a || b) + c"), ("a + b || c", "(a + b) || c"), ("a = b < c", "(a = b) < c"),
        ("a < b = c", "(a < b) = c"), ("a = b & c", "a = (b & c)"), ("a = b IS NULL", "(a = b) IS NULL"),
        ("a = b IN (c)", "(a = b) IN (c)"), ("a = b LIKE c", "(a = b) LIKE c"), ("a LIKE b = c", "a LIKE (b = c)"),
        ("a BETWEEN b AND c = d", "a BETWEEN b AND (c = d)"), ("NOT a = b", "NOT (a = b)"),
        ("NOT a AND b", "(NOT a) AND b"), ("a OR b AND c", "a OR (b AND c)"), ("-a * b", "(-a) * b"),
        ("a - b - c", "(a - b) - c"), ("a IS DISTINCT FROM b = c", "a IS DISTINCT FROM (b = c)"),
        ("~a COLLATE UTF8_LCASE", "~(a COLLATE UTF8_LCASE)"), ("a NOT LIKE b || c", "a NOT LIKE (b || c)"),
    ],
)  # fmt: skip
def test_operators_have_the_order_of_spark(text: str, grouped: str) -> None:
    assert without_parentheses(text) == without_parentheses(grouped)


def without_parentheses(text: str) -> exp.Expr:
    tree: exp.Expr = tree_of(text).transform(lambda node: node.unnest())
    return tree


@pytest.mark.parametrize(
    "text", ["a IN (1) = b", "a IS NULL IS NULL", "a = NOT b", "a < < b", "a LIKE 'x' LIKE 'y'"]
)
def test_a_predicate_within_an_operation_needs_parentheses(text: str) -> None:
    with pytest.raises(TopologyError, match=r"is not a Spark SQL expression \(column \d+\)"):
        parse(text)


@pytest.mark.parametrize(
    "text", ["-1::STRING", "DATE '2026-01-01'::STRING", "x = -1[0]", "TIMESTAMP '2026-01-01'.x"]
)
def test_what_reads_on_after_a_constant_needs_parentheses(text: str) -> None:
    with pytest.raises(
        TopologyError, match=r"continues directly after the constant .* Put it in parentheses"
    ):
        parse(text)


TYPES_OF_SPARK = [
    "STRING", "INT", "LONG", "DECIMAL", "DECIMAL(38,38)", "DEC(3)", "NUMERIC(5, 2)", "VARCHAR(3)", "CHARACTER(3)",
    "TIME(3)", "ARRAY<ARRAY<ARRAY<INT>>>", "MAP<STRING, ARRAY<STRUCT<`a b`: INT, c DECIMAL(5,1) NOT NULL>>>",
    "STRUCT<a: INT COMMENT 'x'>", "INTERVAL YEAR TO MONTH", "INTERVAL DAY", "INTERVAL", "TIMESTAMP_NTZ", "VARIANT",
]  # fmt: skip
OTHER_TYPES = [
    "TEXT", "UUID", "VARCHAR", "STRING(3)", "INT(3)", "TIMESTAMP(3)", "DECIMAL(39)", "DECIMAL(38,39)", "DECIMAL()",
    "DECIMAL(5,2,1)", "ARRAY", "ARRAY<VARCHAR>", "ARRAY<DECIMAL(50,1)>", "MAP<INT>", "MAP<INT,INT,INT>", "INT[]",
    "STRUCT", "TIME(7)", "INTERVAL WEEK", "INTERVAL MONTH TO YEAR", "BIGINT UNSIGNED", "STRING COLLATE UTF8_LCASE",
]  # fmt: skip


@pytest.mark.parametrize("kind", TYPES_OF_SPARK)
def test_a_cast_converts_to_types_of_spark(kind: str) -> None:
    for text in (f"CAST(a AS {kind})", f"a::{kind}", f"TRY_CAST(a AS {kind}) IS NULL"):
        assert parse(text).fields == {"a"}


@pytest.mark.parametrize("kind", OTHER_TYPES)
def test_a_cast_to_another_type_is_refused(kind: str) -> None:
    for text in (
        f"CAST(a AS {kind})",
        f"CAST(a::{kind} AS STRING)",
        f"TRY_CAST(a AS {kind}) IS NULL",
    ):
        with pytest.raises(
            TopologyError,
            match=r"is not a type of Spark SQL|not a Spark SQL expression|without a value",
        ):
            parse(text)
