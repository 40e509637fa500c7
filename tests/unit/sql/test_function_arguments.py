"""Every function is refused with a wrong argument when a file is loaded, or Spark accepts the argument."""

from __future__ import annotations

from collections import defaultdict

import pytest

from sluice.errors import TopologyError
from sluice.sql.aggregate_expressions import require_supported
from sluice.sql.expression_checks import require_valid
from sluice.sql.parsed_expression import parse
from sluice.sql.typed_expression import type_expression
from tests.unit.sql.spark_arguments import ACCEPTED, COLUMNS

COMPUTED_BY_SPARK_ALONE = {
    "{}.x": "counts words",
    "date_trunc({}, at)": "counts words sizes place",
    "flatten({})": "counts words",
    "overlay({} PLACING 'a' FROM 1)": "data counts words sizes place",
    "map({}, 1)": "sizes",
    "element_at({}, 1)": "sizes",
}
"""Wrong arguments that only Spark's analysis finds."""
KEPT_BY_SLUICE = {"collect_set({})": "sizes"}
"""Arguments that Sluice's own functions take, and Spark's do not."""
NUMBERS_ONLY = (
    "sum({})", "avg({})", "mean({})", "median({})", "stddev({})", "stddev_samp({})", "stddev_pop({})", "std({})",
    "variance({})", "var_samp({})", "var_pop({})", "skewness({})", "kurtosis({})", "percentile({}, 0.5)",
    "approx_percentile({}, 0.5)", "percentile_approx({}, 0.5)", "corr({}, share)", "corr(share, {})",
    "covar_samp({}, share)", "covar_samp(share, {})", "covar_pop({}, share)", "covar_pop(share, {})",
)  # fmt: skip
STRICTER = {
    **dict.fromkeys(NUMBERS_ONLY, "text at day"),
    **dict.fromkeys(
        ("bool_and({})", "bool_or({})", "every({})", "some({})", "any({})", "count_if({})"), "text"
    ),
    **dict.fromkeys(
        ("min({})", "max({})", "max_by(small, {})", "min_by(small, {})"), "data counts words place"
    ),
    "shuffle({})": "counts words",
    "to_timestamp({})": "flag data",
}
"""Arguments that Sluice refuses, although Spark accepts them. Bytes in place of texts are refused,
too."""


def refusal(expression: str) -> str:
    """Why the expression is refused when a file is loaded; empty if it is not refused."""
    try:
        parsed = parse(expression)
        require_valid(expression, COLUMNS, "here")
        if parsed.aggregates:
            require_supported(expression, "here")
    except TopologyError as error:
        return str(error) if error.next_step else f"{error} (without a next step)"
    return ""


def test_each_function_is_refused_with_wrong_arguments_and_no_others() -> None:
    accepted, refused = defaultdict(list), defaultdict(list)
    for of_spark, expressions in ACCEPTED.items():
        for expression in expressions:
            for column in COLUMNS:
                why = refusal(expression.replace("{}", column))
                assert "without a next step" not in why
                if column not in of_spark.split() and not why:
                    accepted[expression].append(column)
                if (
                    column in of_spark.split()
                    and why
                    and "uses data, which is BINARY, as text" not in why
                ):
                    refused[expression].append(column)
    left_to_spark = {expression: " ".join(columns) for expression, columns in accepted.items()}
    assert left_to_spark == COMPUTED_BY_SPARK_ALONE | KEPT_BY_SLUICE
    for expression, columns in refused.items():
        assert {*columns} <= {*STRICTER[expression].split()}, expression


@pytest.mark.parametrize(
    ("expression", "says"),
    [
        ("stddev(text)", "stddev needs a number, but text is STRING. .*CAST"),
        ("corr(share, flag)", "corr needs a number, but flag is BOOLEAN"),
        ("percentile(at, 0.5)", "percentile needs a number, but at is TIMESTAMP"),
        ("bit_and(share)", "bit_and needs a whole number, but share is DOUBLE"),
        ("bool_and(whole)", "bool_and needs a condition, but whole is BIGINT. Write a comparison"),
        ("count_if(text)", "count_if needs a condition, but text is STRING"),
        ("max(data)", "max needs a value with an order, but data is BINARY"),
        ("count(*) FILTER (WHERE whole)", "needs a condition, but whole is BIGINT"),
        ("IF(whole, 1, 2)", "if needs a condition, but whole is BIGINT"),
        ("CASE WHEN text THEN 1 END", "CASE needs a condition, but text is STRING"),
        ("year(whole)", "year needs a date or a time, but whole is BIGINT. .*timestamp_millis"),
        ("day = 1", "day = 1 needs a value like DATE, but 1 is INT"),
        (
            "at + 1",
            r"at \+ 1 needs an interval, but 1 is INT. Write for example at \+ INTERVAL 1 HOUR",
        ),
        ("text + text", r"needs a number, but text is STRING. To join texts, write concat\(a, b\)"),
        ("words['a']", r"needs a value like INT, but 'a' is STRING"),
        ("round(share, small)", r"round needs a constant number of places, but small is INT"),
    ],
)
def test_a_wrong_argument_is_named_with_what_is_needed(expression: str, says: str) -> None:
    with pytest.raises(TopologyError, match=says):
        require_valid(expression, COLUMNS, "here")


@pytest.mark.parametrize(
    "expression",
    [
        "at + INTERVAL 1 DAY", "day + 1", "at - at", "coalesce(sizes, sizes)", "sizes['a'] + 1", "place = place",
        "map('k', place)['k'].x",
        "parse_json(text):x", "CAST(whole AS FLOAT) * 2", "element_at(counts, -1)", "concat(counts, counts)",
        "array()", "coalesce(NULL, whole)",
        "CASE text WHEN 'a' THEN whole END", "NULL + 1", "soundex(unknown_type)", "transform(words, w -> upper(w))",
        "transform(words, w -> sha2(CAST(w AS STRING), 256))", "filter(counts, c -> c > 1)",
    ],
)  # fmt: skip
def test_what_may_be_right_is_not_refused(expression: str) -> None:
    require_valid(expression, {**COLUMNS, "unknown_type": ""}, "here")
    type_expression(expression, COLUMNS)
