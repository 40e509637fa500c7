"""The dialect in which sqlglot parses the author's expressions: text to tree and tokens, and back."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import cache
from typing import Any, ClassVar

import sqlglot
from sqlglot import exp
from sqlglot.dialects.dialect import DialectType
from sqlglot.dialects.spark import Spark
from sqlglot.errors import SqlglotError
from sqlglot.tokenizer_core import Token, TokenType
from typing_extensions import override

UNTRANSLATED = frozenset({"date_format", "get_json_object"})
"""Functions whose arguments sqlglot would change if it knew these functions. `SparkSQL` makes it forget them."""

PARSE_ERRORS = (SqlglotError, ArithmeticError, AssertionError, AttributeError, LookupError, TypeError, ValueError)
"""The errors that sqlglot raises for texts that are no expressions: a call like date_part() can raise any of them."""


def _noting_place(parse: Callable[[Any], exp.Expr | None]) -> Callable[[Any], exp.Expr | None]:
    """A parser of a function's arguments that also notes the place of the function's name, as sqlglot does of others.

    sqlglot calls the parser of the arguments after it has read the name and the opening parenthesis.
    """

    def parse_noting_place(parser: Any) -> exp.Expr | None:
        name = parser._tokens[parser._index - 2]
        function = parse(parser)
        return function if function is None else function.update_positions(name)

    return parse_noting_place


class SparkSQL(Spark):
    """Spark's SQL, in which `'it''s'` is a text with a quote. For sqlglot, these are two texts."""

    ORIGINAL_NAME_META_KEY = "name"

    class Tokenizer(Spark.Tokenizer):
        """Reads a doubled quote as one quote, and no commands."""

        STRING_ESCAPES = [*Spark.Tokenizer.STRING_ESCAPES, "'", '"']  # noqa: RUF012
        COMMANDS: ClassVar[set[TokenType]] = set()

    class Parser(Spark.Parser):  # type: ignore[valid-type, misc]
        """Reads expressions, and leaves the formats of times and the paths in JSON as the author wrote them.

        sqlglot would translate formats, and could write two different formats as the same format. It cannot write
        every path that it reads.
        """

        FUNCTIONS = {name: of for name, of in Spark.Parser.FUNCTIONS.items() if name.lower() not in UNTRANSLATED}  # noqa: RUF012
        FUNCTION_PARSERS = {name: _noting_place(of) for name, of in Spark.Parser.FUNCTION_PARSERS.items()}  # noqa: RUF012
        NO_PAREN_FUNCTION_PARSERS = {  # noqa: RUF012
            name: of for name, of in Spark.Parser.NO_PAREN_FUNCTION_PARSERS.items() if name in ("CASE", "IF")
        }
        # `array[0]` reads an element of the field `array`.
        ARRAY_CONSTRUCTORS: ClassVar[dict[str, type[exp.Expr]]] = {}
        # A name in backticks is never a keyword.
        TEXT_MATCH_EXCLUDED_TOKENS = Spark.Parser.TEXT_MATCH_EXCLUDED_TOKENS | {TokenType.IDENTIFIER}

        @override
        def _parse_statement(self) -> exp.Expr | None:
            is_query = bool(self._curr) and self._curr.token_type in (TokenType.SELECT, TokenType.WITH)
            tree: exp.Expr | None = self._parse_select() if is_query else self._parse_expression()
            return tree

    @override
    def tokenize(self, sql: str, dialect: DialectType = None) -> list[Token]:
        """The tokens of an expression. Words that Spark reads as names are names, also if they are keywords elsewhere.

        Spark reserves no words. From `concat(all, x)`, sqlglot would drop `all` without an error.
        """
        tokens = super().tokenize(sql, dialect)
        for place in _places_of_names(tokens):
            word = tokens[place]
            # Only backticks make a name of CASE and IF.
            is_quoted = word.token_type is TokenType.IDENTIFIER or word.text.upper() in ("CASE", "IF")
            kind = TokenType.IDENTIFIER if is_quoted else TokenType.VAR
            tokens[place] = Token(kind, word.text, word.line, word.col, word.start, word.end, word.comments)
        return tokens


CONSTANTS = frozenset({TokenType.NULL, TokenType.TRUE, TokenType.FALSE, *SparkSQL.Parser.NO_PAREN_FUNCTIONS})
"""Words that are expressions by themselves."""
_INFIX_SIGNS = frozenset(
    {
        TokenType.STAR, TokenType.SLASH, TokenType.MOD, TokenType.DPIPE, TokenType.EQ, TokenType.NEQ, TokenType.LT,
        TokenType.LTE, TokenType.GT, TokenType.GTE, TokenType.NULLSAFE_EQ, TokenType.AMP, TokenType.PIPE,
        TokenType.CARET, TokenType.ARROW, TokenType.FARROW,
    }
)  # fmt: skip
"""Operators between two operands. The signs of `_SIGNS` can also be before a single operand."""
_SIGNS = frozenset({TokenType.PLUS, TokenType.DASH})
INFIX_WORDS = frozenset(
    {
        TokenType.AND, TokenType.OR, TokenType.BETWEEN, TokenType.LIKE, TokenType.ILIKE, TokenType.RLIKE,
        TokenType.DIV, TokenType.WHEN, TokenType.THEN, TokenType.ELSE, TokenType.FROM, TokenType.ESCAPE,
    }
)  # fmt: skip
"""Words between two operands, and the words of CASE and FROM before one."""
_QUANTIFIERS = frozenset({TokenType.ALL, TokenType.DISTINCT})
_BEFORE_OPERAND = (
    _INFIX_SIGNS | _SIGNS | INFIX_WORDS | _QUANTIFIERS
    | {TokenType.L_PAREN, TokenType.L_BRACKET, TokenType.COMMA, TokenType.TILDE, TokenType.NOT, TokenType.CASE}
    | {TokenType.WHERE, TokenType.ORDER_BY}
)  # fmt: skip
"""After these tokens, an operand begins."""
_AFTER_OPERAND = (
    _INFIX_SIGNS | INFIX_WORDS
    | {TokenType.R_PAREN, TokenType.R_BRACKET, TokenType.COMMA, TokenType.DOT, TokenType.DCOLON, TokenType.L_BRACKET}
    | {TokenType.IN, TokenType.IS, TokenType.END, TokenType.ALIAS, TokenType.COLLATE, TokenType.SEMICOLON}
)  # fmt: skip
"""Before these tokens, an operand ends."""
_NESTED_TYPES = frozenset({TokenType.ARRAY, TokenType.MAP, TokenType.STRUCT, TokenType.LIST})
_NO_NAMES = frozenset({*Spark.Parser.TEXT_MATCH_EXCLUDED_TOKENS, TokenType.NUMBER, *CONSTANTS}) - {TokenType.IDENTIFIER}


def names_in(tokens: Sequence[Token]) -> list[Token]:
    """The tokens that can only be names: each is a whole operand, or the first part of a path such as `a.b`."""
    return [tokens[place] for place in _places_of_names(tokens)]


def begins_operand(before: Token) -> bool:
    """Whether an operand begins after this token."""
    return before.token_type in _BEFORE_OPERAND


def _places_of_names(tokens: Sequence[Token]) -> Iterator[int]:
    types = [token.token_type for token in tokens]
    depth_of_type = 0
    for place, (token, kind) in enumerate(zip(tokens, types, strict=True)):
        # The words within a type such as ARRAY<INT> are no names.
        if depth_of_type or (kind is TokenType.LT and place and types[place - 1] in _NESTED_TYPES):
            depth_of_type += (kind is TokenType.LT) - (kind is TokenType.GT)
            continue
        is_word = kind is TokenType.IDENTIFIER or (kind not in _NO_NAMES and token.text.isidentifier())
        if is_word and _is_operand(types, place):
            # The next word is then after a name, even if the name is a keyword elsewhere.
            types[place] = TokenType.IDENTIFIER
            yield place


def _is_operand(types: Sequence[TokenType], place: int) -> bool:
    """Whether a word stands where an operand begins, and before a token that ends an operand."""
    kind, before = types[place], types[place - 1] if place else TokenType.L_PAREN
    following = types[place + 1] if place + 1 < len(types) else TokenType.R_PAREN
    is_keyword = (kind, following) in ((TokenType.CASE, TokenType.WHEN), (TokenType.DISTINCT, TokenType.FROM))
    if before not in _BEFORE_OPERAND or is_keyword:
        return False
    # A sign and NOT can begin an operand, too: after NOT, and after DISTINCT or ALL at the beginning of a call.
    if following in _SIGNS or following is TokenType.NOT:
        if kind is TokenType.NOT:
            return before in _INFIX_SIGNS | _SIGNS
        is_first_in_call = before is TokenType.L_PAREN and place > 1 and types[place - 2] not in _BEFORE_OPERAND
        return kind not in _QUANTIFIERS or not is_first_in_call
    # `NOT IN`, `NOT LIKE` and the like are never a field `not` and an operator.
    if kind is TokenType.NOT and following in INFIX_WORDS | {TokenType.IN, TokenType.IS, TokenType.ALIAS}:
        return False
    return following in _AFTER_OPERAND


@cache
def tree_of(text: str) -> exp.Expr:
    """The parsed expression. It is cached, so copy it before changing it. Raises one of `PARSE_ERRORS`."""
    return sqlglot.parse_one(text, dialect=SparkSQL)


def is_plain_name(word: str) -> bool:
    """Whether a word can be read as a name without regard to its place."""
    try:
        tree = sqlglot.parse_one(word, dialect=Spark)
    # A word such as CASE is not an expression by itself.
    except PARSE_ERRORS:
        return False
    return isinstance(tree, exp.Column)


def tokens_of(text: str) -> list[Token]:
    """The tokens of an expression, with their places in the text. Raises SqlglotError."""
    return SparkSQL().tokenize(text)


def text_of(tree: exp.Expr) -> str:
    """SQL for a parsed expression, for messages and types. It may compute other results than the author's text."""
    return tree.sql(dialect=SparkSQL)
