"""A call with too few or too many arguments is refused where the expression is read."""

from __future__ import annotations

import pytest

from sluice.errors import TopologyError
from sluice.sql.argument_counts import COUNTS
from sluice.sql.function_names import FUNCTIONS
from sluice.sql.parsed_expression import parse

pytestmark = pytest.mark.unit


@pytest.mark.parametrize(
    ("text", "mistake"),
    [
        ("date_part()", "calls date_part with no arguments, but it takes 2 arguments"),
        ("isnull()", "calls isnull with no arguments, but it takes 1 argument"),
        ("nvl(x)", "calls nvl with 1 argument, but it takes 2 arguments"),
        ("nvl(x, y, z)", "calls nvl with 3 arguments, but it takes 2 arguments"),
        ("substring(x)", "calls substring with 1 argument, but it takes 2 or 3 arguments"),
        ("coalesce()", "calls coalesce with no arguments, but it takes at least 1 argument"),
        ("pi(1)", "calls pi with 1 argument, but it takes none"),
        ("aes_encrypt(x)", "calls aes_encrypt with 1 argument, but it takes 2 to 6 arguments"),
        (
            "make_timestamp(1, 2, 3, 4)",
            "calls make_timestamp with 4 arguments, but it takes 1, 2, 3, 6 or 7 arguments",
        ),
        (
            "map('a', 1, 'b')",
            "calls map with 3 arguments, but it takes an even number of arguments",
        ),
        ("upper(concat(lower(), x))", "calls lower with no arguments"),
        ("transform(list, x -> nvl(x))", "calls nvl with 1 argument"),
        ("abs(x) > 1 AND IF(a, b) = 1", "calls IF with 2 arguments, but it takes 3 arguments"),
        ("sum(x, y)", "calls sum with 2 arguments, but it takes 1 argument"),
    ],
)
def test_a_wrong_number_of_arguments(text: str, mistake: str) -> None:
    with pytest.raises(TopologyError) as refused:
        parse(text)
    assert f"{text!r} {mistake}" in refused.value.detail
    assert refused.value.next_step == "Correct the arguments, or use a Python function."


@pytest.mark.parametrize(
    "text",
    [
        "nvl(x, ',')",
        "nvl(concat(x, y), array(1, 2)[0])",
        "trim(BOTH ' ' FROM x)",
        "substring(x FROM 1 FOR 2)",
        "position('a' IN x)",
        "overlay(x PLACING 'a' FROM 1)",
        "EXTRACT(YEAR FROM x)",
        "date_add(x, 1)",
        "dateadd(DAY, 1, x)",
        "x LIKE ANY ('a', 'b')",
        "x NOT LIKE SOME ('a', 'b')",
        "x NOT LIKE (a || b)",
        "x NOT RLIKE (a || b)",
        "x NOT BETWEEN (a) AND (b)",
        "x LIKE (a || b) AND (x > 1)",
        "x NOT IN (1, 2)",
        "x IN (1, 2)",
        "CAST(x AS ARRAY<DECIMAL(38, 2)>)",
        "nvl(x::STRUCT<a: INT, b: INT>, y)",
        "nvl(1L, 2)",
        "transform(list, (x, i) -> x + i)",
        "count(*)",
        "count(DISTINCT a, b)",
        "percentile_cont(0.5) WITHIN GROUP (ORDER BY x)",
        "first(x IGNORE NULLS)",
        "sum(x) FILTER (WHERE y > 1)",
        "current_timestamp()",
        "named_struct('a', 1, 'b', 2)",
        "CASE WHEN (a) THEN (b) ELSE least(a, b, c) END",
        "`nvl`(x, y)",
    ],
)
def test_a_right_number_of_arguments(text: str) -> None:
    parse(text)


def test_the_counts_are_those_of_known_functions() -> None:
    assert COUNTS.keys() <= FUNCTIONS
    assert len(COUNTS) > 500
