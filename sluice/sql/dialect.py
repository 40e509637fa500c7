"""The dialect in which sqlglot parses the author's expressions: text to tree and tokens, and back."""

from __future__ import annotations

from functools import cache

import sqlglot
from sqlglot import exp
from sqlglot.dialects.spark import Spark
from sqlglot.tokenizer_core import Token

UNTRANSLATED = frozenset({"date_format"})
"""Functions whose arguments sqlglot would change if it knew these functions. `SparkSQL` makes it
forget them."""


class SparkSQL(Spark):
    """Spark's SQL, in which `'it''s'` is a text with a quote. For sqlglot, these are two texts."""

    class Tokenizer(Spark.Tokenizer):
        """Reads a doubled quote as one quote."""

        STRING_ESCAPES = [*Spark.Tokenizer.STRING_ESCAPES, "'", '"']  # noqa: RUF012

    class Parser(Spark.Parser):  # type: ignore[valid-type, misc]
        """Leaves the formats of times as the author wrote them.

        sqlglot would translate formats, and could write two different formats as the same format.
        """

        FUNCTIONS = {  # noqa: RUF012
            name: of
            for name, of in Spark.Parser.FUNCTIONS.items()
            if name.lower() not in UNTRANSLATED
        }


@cache
def tree_of(text: str) -> exp.Expr:
    """Return the parsed expression.

    It is cached, so copy it before changing it. Raises the errors of `sqlglot.parse_one`.
    """
    return sqlglot.parse_one(text, dialect=SparkSQL)


def tokens_of(text: str) -> list[Token]:
    """Return the tokens of an expression, with their places in the text. Raises SqlglotError."""
    return SparkSQL().tokenize(text)


def text_of(tree: exp.Expr) -> str:
    """SQL for a parsed expression, for messages and types.

    It may compute other results than the author's text.
    """
    return tree.sql(dialect=SparkSQL)
