"""The dialect in which sqlglot turns expressions from text into trees and tokens, and back."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any, ClassVar

import sqlglot
from sqlglot import exp
from sqlglot.dialects.dialect import DialectType
from sqlglot.dialects.spark import Spark
from sqlglot.errors import SqlglotError
from sqlglot.tokenizer_core import Token, TokenType
from typing_extensions import override

from sluice.sql.operator_order import OperatorOrder
from sluice.sql.words_as_names import places_of_names

UNTRANSLATED = frozenset(
    {"date_format", "get_json_object", "from_utc_timestamp", "to_utc_timestamp"}
)
"""Functions whose arguments sqlglot would change. `SparkSQL` therefore makes sqlglot treat them as
unknown functions."""

PARSE_ERRORS = (
    SqlglotError,
    ArithmeticError,
    AssertionError,
    AttributeError,
    LookupError,
    TypeError,
    ValueError,
)
"""The errors that sqlglot raises for texts that are not expressions: a call like date_part() can
raise any of them."""

GIVEN = "given"
"""A key in the `meta` of a field's name: the author has written this name in `named_struct`."""


def _named_struct(arguments: list[exp.Expr]) -> exp.Expr:
    struct: exp.Expr = Spark.Parser.FUNCTIONS["NAMED_STRUCT"](arguments)
    for part in struct.expressions:
        part.this.meta[GIVEN] = True
    return struct


def _noting_place(parse: Callable[[Any], exp.Expr | None]) -> Callable[[Any], exp.Expr | None]:
    """Return a parser of a function's arguments that also records where the function's name is.

    For functions without such a parser, sqlglot records the place itself. sqlglot calls the parser
    of the arguments after it has read the name and the opening parenthesis.
    """

    def parse_noting_place(parser: Any) -> exp.Expr | None:
        name = parser._tokens[parser._index - 2]
        function = parse(parser)
        if function is None:
            return function
        return function.update_positions(name)

    return parse_noting_place


class SparkSQL(Spark):
    """Spark's SQL, in which `'it''s'` is one text with a quote.

    Without this dialect, sqlglot would read two texts.
    """

    class Tokenizer(Spark.Tokenizer):
        """Reads a doubled quote as one quote, and reads no commands."""

        STRING_ESCAPES = [*Spark.Tokenizer.STRING_ESCAPES, "'", '"']  # noqa: RUF012
        COMMANDS: ClassVar[set[TokenType]] = set()

    class Parser(OperatorOrder):
        """Reads expressions, but keeps formats of times and paths in JSON unchanged.

        sqlglot would translate formats, and could write two different formats as the same format.
        sqlglot cannot write every path that it can read.
        """

        FUNCTIONS = {  # noqa: RUF012
            name: _named_struct if name == "NAMED_STRUCT" else of
            for name, of in Spark.Parser.FUNCTIONS.items()
            if name.lower() not in UNTRANSLATED
        }
        FUNCTION_PARSERS = {  # noqa: RUF012
            name: _noting_place(of) for name, of in Spark.Parser.FUNCTION_PARSERS.items()
        }
        NO_PAREN_FUNCTION_PARSERS = {  # noqa: RUF012
            name: of
            for name, of in Spark.Parser.NO_PAREN_FUNCTION_PARSERS.items()
            if name in ("CASE", "IF")
        }
        # `array[0]` reads an element of the field `array`.
        ARRAY_CONSTRUCTORS: ClassVar[dict[str, type[exp.Expr]]] = {}
        # A name in backticks is never a keyword.
        TEXT_MATCH_EXCLUDED_TOKENS = Spark.Parser.TEXT_MATCH_EXCLUDED_TOKENS | {
            TokenType.IDENTIFIER
        }

        @override
        def _parse_statement(self) -> exp.Expr | None:
            is_query = bool(self._curr) and self._curr.token_type in (
                TokenType.SELECT,
                TokenType.WITH,
            )
            tree: exp.Expr | None
            if is_query:
                tree = self._parse_select()
            else:
                tree = self._parse_expression()
            return tree

    @override
    def to_json_path(self, path: exp.Expr | None) -> exp.Expr | None:
        """Return the path unchanged, because sqlglot would log paths that it cannot read."""
        return path

    @override
    def tokenize(self, sql: str, dialect: DialectType = None) -> list[Token]:
        """Return an expression's tokens. Words that Spark reads as names become names."""
        tokens = super().tokenize(sql, dialect)
        for place in places_of_names(tokens):
            word = tokens[place]
            # sqlglot reads CASE and IF as names only in backticks.
            needs_backticks = word.text.upper() in ("CASE", "IF")
            kind = TokenType.IDENTIFIER if needs_backticks else TokenType.VAR
            if word.token_type is not TokenType.IDENTIFIER:
                tokens[place] = Token(
                    kind, word.text, word.line, word.col, word.start, word.end, word.comments
                )
        return tokens


@cache
def tree_of(text: str) -> exp.Expr:
    """Return the parsed expression.

    It is cached, so copy it before changing it. Raises one of `PARSE_ERRORS`.
    """
    return sqlglot.parse_one(text, dialect=SparkSQL)


@cache
def is_plain_name(word: str) -> bool:
    """Return whether sqlglot reads a word as a name wherever the word stands."""
    try:
        tree = sqlglot.parse_one(word, dialect=Spark)
    # A word such as CASE is not an expression by itself.
    except PARSE_ERRORS:
        return False
    return isinstance(tree, exp.Column)


def tokens_of(text: str) -> list[Token]:
    """Return the tokens of an expression, with their places in the text. Raises SqlglotError."""
    return [*_tokens_of(text)]


@cache
def _tokens_of(text: str) -> tuple[Token, ...]:
    return tuple(SparkSQL().tokenize(text))


def text_of(tree: exp.Expr) -> str:
    """Return SQL for a parsed expression, for messages and types.

    This SQL may compute other results than the author's text.
    """
    return tree.sql(dialect=SparkSQL)
