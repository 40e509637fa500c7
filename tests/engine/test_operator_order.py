"""Spark reads operators in the same order as Sluice, and neither reads more than the other."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from sqlglot import exp

from sluice.errors import TopologyError
from sluice.sql.dialect import SparkSQL, tree_of
from sluice.sql.parsed_expression import parse

OPERATORS = [
    "*", "/", "%", "DIV", "+", "-", "||", "<<", ">>", "&", "^", "|", "=", "==", "<>", "!=", "<", "<=", ">", ">=", "<=>",
    "AND", "OR", "LIKE", "NOT LIKE", "RLIKE", "IS DISTINCT FROM", "IS NOT DISTINCT FROM",
]  # fmt: skip
PREFIXES = ["-", "~", "NOT ", "- -", "NOT NOT "]
SUFFIXES = [
    " IS NULL", " IS NOT NULL", " IS TRUE", " IN (b, c)", " NOT IN (b)", " BETWEEN b AND c", " NOT BETWEEN b AND c",
    "[0]", ".f", "::INT",
]  # fmt: skip
FIELDS = ["a", "b", "c", "d", "all", "e.f", "pi()", "'t'", "(a + b)", "upper(a)"]
REFUSED = {"a::INT[0]"}
"""Expressions that Spark reads and Sluice refuses, because sqlglot would read the type of a
list."""
IN_PARENTHESES = (
    exp.Binary | exp.Not | exp.Neg | exp.BitwiseNot | exp.In | exp.Between | exp.Cast | exp.Bracket
)


def expressions(count: int) -> list[str]:
    """Each operator before and after each other one, and longer expressions made at random."""
    texts = [f"a {first} b {second} c" for first in OPERATORS for second in OPERATORS]
    for operator in OPERATORS:
        texts += [f"{prefix}a {operator} b" for prefix in PREFIXES]
        texts += [f"a {operator} {prefix}b" for prefix in PREFIXES]
        texts += [f"a {operator} b{suffix}" for suffix in SUFFIXES]
        texts += [f"a{suffix} {operator} b" for suffix in SUFFIXES]
    texts += [f"{prefix}a{suffix}" for prefix in PREFIXES for suffix in SUFFIXES]
    texts += [f"a{first}{second}" for first in SUFFIXES for second in SUFFIXES]
    chance = random.Random(1)
    for _ in range(count):
        parts: list[str] = []
        for _ in range(chance.randint(3, 6)):
            prefix, suffix = (
                chance.choice([*PREFIXES, *[""] * 20]),
                chance.choice([*SUFFIXES, *[""] * 30]),
            )
            parts += [f"{prefix}{chance.choice(FIELDS)}{suffix}", chance.choice(OPERATORS)]
        texts.append(" ".join(parts[:-1]))
    return texts


class Written(SparkSQL):
    """Writes operators as operators. sqlglot would write some of them as functions."""

    class Generator(SparkSQL.Generator):  # type: ignore[valid-type, misc]
        """Writes shifts as operators."""

        TRANSFORMS = {  # noqa: RUF012
            **SparkSQL.Generator.TRANSFORMS,
            exp.BitwiseLeftShift: lambda self, node: self.binary(node, "<<"),
            exp.BitwiseRightShift: lambda self, node: self.binary(node, ">>"),
        }


def with_parentheses(text: str) -> str | None:
    """The expression with parentheses around each of its parts; None if Sluice refuses it."""
    try:
        tree = tree_of(parse(text).text).copy()
    except TopologyError:
        return None
    for node in [*tree.walk()]:
        # Spark changes the order within chains of AND and of OR, which does not matter.
        is_in_chain = isinstance(node, exp.Connector) and type(node) is type(node.parent)
        if isinstance(node, IN_PARENTHESES) and node.parent is not None and not is_in_chain:
            parentheses = exp.Paren()
            node.replace(parentheses)
            parentheses.set("this", node)
    return tree.sql(dialect=Written)


def reading_of(parse_in_spark: Callable[[str], str], text: str) -> str | None:
    """Spark's tree, in which parentheses are not to be seen; None if Spark refuses the expression."""
    try:
        return parse_in_spark(text)
    except PySparkException:
        return None


@pytest.mark.parametrize("every", [5, pytest.param(1, marks=pytest.mark.heavy)])
def test_parentheses_change_nothing_for_spark(spark: SparkSession, every: int) -> None:
    parser = spark._jsparkSession.sessionState().sqlParser()

    def parse_in_spark(text: str) -> str:
        tree = str(parser.parseExpression(text).toString()).lower()
        # The tree of sqlglot has no IS NOT NULL.
        return tree.replace("not isnull(", "isnotnull(")

    wrong: list[str] = []
    refused: list[str] = []
    for text in expressions(300)[::every]:
        ours, expected = with_parentheses(text), reading_of(parse_in_spark, text)
        if ours is None and expected is not None and "'not" not in expected:
            refused.append(text)
        elif ours is not None and reading_of(parse_in_spark, ours) != expected:
            wrong.append(f"{text}: Sluice reads {ours}, Spark {expected}")
    assert wrong == []
    # In other places, Spark reads NOT as a field, which needs backticks in Sluice.
    assert {*refused} <= REFUSED
