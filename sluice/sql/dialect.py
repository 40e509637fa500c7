"""The dialect in which sqlglot parses the author's expressions: text to tree and tokens, and back."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache
from typing import Any, ClassVar

import sqlglot
from sqlglot import exp
from sqlglot.dialects.dialect import DialectType
from sqlglot.dialects.spark import Spark
from sqlglot.errors import SqlglotError
from sqlglot.parser import IsPredicatePrecedence
from sqlglot.tokenizer_core import Token, TokenType
from typing_extensions import override

UNTRANSLATED = frozenset({"date_format", "get_json_object"})
"""Functions whose arguments sqlglot would change if it knew these functions. `SparkSQL` makes it forget them."""

PARSE_ERRORS = (
    SqlglotError,
    ArithmeticError,
    AssertionError,
    AttributeError,
    LookupError,
    TypeError,
    ValueError,
)
"""The errors that sqlglot raises for texts that are no expressions: a call like date_part() can raise any of them."""


_OPERATIONS: Sequence[Mapping[TokenType, type[exp.Binary]]] = (
    {
        TokenType.EQ: exp.EQ, TokenType.NEQ: exp.NEQ, TokenType.NULLSAFE_EQ: exp.NullSafeEQ, TokenType.LT: exp.LT,
        TokenType.LTE: exp.LTE, TokenType.GT: exp.GT, TokenType.GTE: exp.GTE,
    },
    {TokenType.PIPE: exp.BitwiseOr},
    {TokenType.CARET: exp.BitwiseXor},
    {TokenType.AMP: exp.BitwiseAnd},
    {TokenType.LT: exp.BitwiseLeftShift, TokenType.GT: exp.BitwiseRightShift},
    {TokenType.PLUS: exp.Add, TokenType.DASH: exp.Sub, TokenType.DPIPE: exp.DPipe},
)  # fmt: skip
"""Spark's operators between two values, from those that bind least tightly on. Those such as `*` bind most tightly."""
_SHIFTS = 4
_LEVELS = {
    sign: level for level, signs in enumerate(_OPERATIONS) if level != _SHIFTS for sign in signs
}

GIVEN = "given"
"""In the `meta` of a field's name: the author has given this name in `named_struct`."""


def _named_struct(arguments: list[exp.Expr]) -> exp.Expr:
    struct: exp.Expr = Spark.Parser.FUNCTIONS["NAMED_STRUCT"](arguments)
    for part in struct.expressions:
        part.this.meta[GIVEN] = True
    return struct


def _noting_place(parse: Callable[[Any], exp.Expr | None]) -> Callable[[Any], exp.Expr | None]:
    """A parser of a function's arguments that also notes the place of the function's name, as sqlglot does of others.

    sqlglot calls the parser of the arguments after it has read the name and the opening
    parenthesis.
    """

    def parse_noting_place(parser: Any) -> exp.Expr | None:
        name = parser._tokens[parser._index - 2]
        function = parse(parser)
        return function if function is None else function.update_positions(name)

    return parse_noting_place


class SparkSQL(Spark):
    """Spark's SQL, in which `'it''s'` is a text with a quote. For sqlglot, these are two texts."""

    class Tokenizer(Spark.Tokenizer):
        """Reads a doubled quote as one quote, and no commands."""

        STRING_ESCAPES = [*Spark.Tokenizer.STRING_ESCAPES, "'", '"']  # noqa: RUF012
        COMMANDS: ClassVar[set[TokenType]] = set()

    class Parser(Spark.Parser):  # type: ignore[valid-type, misc]
        """Reads expressions, and leaves the formats of times and the paths in JSON as the author wrote them.

        sqlglot would translate formats, and could write two different formats as the same format.
        It cannot write every path that it reads.
        """

        FUNCTIONS = {  # noqa: RUF012
            name: _named_struct if name == "NAMED_STRUCT" else of
            for name, of in Spark.Parser.FUNCTIONS.items()
            if name.lower() not in UNTRANSLATED
        }
        FUNCTION_PARSERS = {
            name: _noting_place(of) for name, of in Spark.Parser.FUNCTION_PARSERS.items()
        }  # noqa: RUF012
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
        # After IS DISTINCT FROM, there is a value.
        IS_PREDICATE_PRECEDENCE = IsPredicatePrecedence.EQUALITY
        # Only an operand of AND and OR begins with NOT.
        UNARY_PARSERS = {  # noqa: RUF012
            kind: of for kind, of in Spark.Parser.UNARY_PARSERS.items() if kind is not TokenType.NOT
        }

        @override
        def _parse_statement(self) -> exp.Expr | None:
            is_query = bool(self._curr) and self._curr.token_type in (
                TokenType.SELECT,
                TokenType.WITH,
            )
            tree: exp.Expr | None = self._parse_select() if is_query else self._parse_expression()
            return tree

        # Spark reads operators in another order than sqlglot: `a | b & c` is `a | (b & c)`, `a = b < c` is
        # `(a = b) < c`, and `a = b IN (c)` is `(a = b) IN (c)`.

        @override
        def _parse_equality(self, parse_is: bool = True) -> exp.Expr | None:
            """Parse an operand of AND and OR: NOT and an operand, or a value with at most one predicate."""
            if self._match(TokenType.NOT):
                negation: exp.Expr = self.expression(exp.Not(this=self._parse_equality()))
                return negation
            return self._parse_range()

        @override
        def _parse_range(
            self, this: exp.Expr | None = None, parse_is: bool = False
        ) -> exp.Expr | None:
            value = self._parse_bitwise() if this is None else this
            negated = self._match(TokenType.NOT)
            if not self._match_set(self.RANGE_PARSERS):
                if negated:
                    self._retreat(self._index - 1)
                return value
            predicate: exp.Expr | None = self.RANGE_PARSERS[self._prev.token_type](self, value)
            if negated:
                predicate = self._negate_range(predicate)
            return predicate

        @override
        def _parse_comparison(self, this: exp.Expr | None = None) -> exp.Expr | None:
            return self._parse_bitwise()

        @override
        def _parse_bitwise(self) -> exp.Expr | None:
            """Parse a value without AND, OR, NOT and predicates."""
            return self._parse_operation(0)

        def _parse_operation(self, loosest: int) -> exp.Expr | None:
            """Parse a value whose operators outside of parentheses bind at least as tightly as a level."""
            value: exp.Expr | None = self._parse_factor()
            while (level := self._level()) >= loosest:
                operation = _OPERATIONS[level][self._curr.token_type]
                self._advance(2 if level == _SHIFTS else 1)
                options = (
                    {"safe": not self.dialect.STRICT_STRING_CONCAT}
                    if operation is exp.DPipe
                    else {}
                )
                operand = self._parse_operation(level + 1)
                value = self.expression(operation(this=value, expression=operand, **options))
            return value

        def _level(self) -> int:
            """How tightly the operator binds that comes next, or -1 if no operator comes next."""
            sign, following = self._curr, self._next
            if sign.token_type in _OPERATIONS[_SHIFTS] and following.token_type is sign.token_type:
                # The two halves of a sign such as `<<` are two tokens.
                return _SHIFTS if following.start == sign.end + 1 else -1
            return _LEVELS.get(sign.token_type, -1)

        @override
        def _parse_unary(self) -> exp.Expr | None:
            value: exp.Expr | None = super()._parse_unary()
            while self._match(TokenType.COLLATE):
                value = self.expression(exp.Collate(this=value, expression=self._parse_id_var()))
            return value

    @override
    def to_json_path(self, path: exp.Expr | None) -> exp.Expr | None:
        """The path itself: sqlglot would log paths that it cannot read."""
        return path

    @override
    def tokenize(self, sql: str, dialect: DialectType = None) -> list[Token]:
        """The tokens of an expression. Words that Spark reads as names are names, also if they are keywords elsewhere.

        Spark reserves no words. From `concat(all, x)`, sqlglot would drop `all` without an error.
        """
        tokens = super().tokenize(sql, dialect)
        for place in _places_of_names(tokens):
            word = tokens[place]
            # Only backticks make a name of CASE and IF.
            is_quoted = word.token_type is TokenType.IDENTIFIER or word.text.upper() in (
                "CASE",
                "IF",
            )
            kind = TokenType.IDENTIFIER if is_quoted else TokenType.VAR
            tokens[place] = Token(
                kind, word.text, word.line, word.col, word.start, word.end, word.comments
            )
        return tokens


CONSTANTS = frozenset(
    {TokenType.NULL, TokenType.TRUE, TokenType.FALSE, *SparkSQL.Parser.NO_PAREN_FUNCTIONS}
)
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
_NO_NAMES = frozenset({*Spark.Parser.TEXT_MATCH_EXCLUDED_TOKENS, TokenType.NUMBER, *CONSTANTS}) - {
    TokenType.IDENTIFIER
}


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
        is_word = kind is TokenType.IDENTIFIER or (
            kind not in _NO_NAMES and token.text.isidentifier()
        )
        if is_word and _is_operand(types, place) and not _is_option_of_trim(tokens, place):
            # The next word is then after a name, even if the name is a keyword elsewhere.
            types[place] = TokenType.IDENTIFIER
            yield place


def _is_interval(types: Sequence[TokenType], place: int) -> bool:
    """Whether a constant such as `INTERVAL -'1' DAY` begins at a word."""
    if types[place] is not TokenType.INTERVAL or len(types) < place + 4:
        return False
    sign, number, unit = types[place + 1 : place + 4]
    return (
        sign in _SIGNS and number in (TokenType.STRING, TokenType.NUMBER) and unit is TokenType.VAR
    )


def _is_option_of_trim(tokens: Sequence[Token], place: int) -> bool:
    """Whether a word is the first one in `trim(BOTH FROM x)`."""
    is_option = tokens[place].text.upper() in ("BOTH", "LEADING", "TRAILING")
    return is_option and place + 1 < len(tokens) and tokens[place + 1].token_type is TokenType.FROM


def _is_in_operator(types: Sequence[TokenType], place: int) -> bool:
    """Whether a word is the last one of an operator such as NOT LIKE or IS DISTINCT FROM."""
    if place < 2:
        return False
    earlier, before, kind = types[place - 2 : place + 1]
    if kind is TokenType.FROM:
        return before is TokenType.DISTINCT and earlier in (TokenType.IS, TokenType.NOT)
    return before is TokenType.NOT and kind in INFIX_WORDS and earlier not in _BEFORE_OPERAND


def _is_operand(types: Sequence[TokenType], place: int) -> bool:
    """Whether a word stands where an operand begins, and before a token that ends an operand."""
    kind, before = types[place], types[place - 1] if place else TokenType.L_PAREN
    following = types[place + 1] if place + 1 < len(types) else TokenType.R_PAREN
    is_keyword = (kind, following) in (
        (TokenType.CASE, TokenType.WHEN),
        (TokenType.DISTINCT, TokenType.FROM),
    )
    if (
        before not in _BEFORE_OPERAND
        or is_keyword
        or _is_interval(types, place)
        or _is_in_operator(types, place)
    ):
        return False
    # A sign and NOT can begin an operand, too: after NOT, and after DISTINCT or ALL at the
    # beginning of a call.
    if following in _SIGNS or following is TokenType.NOT:
        if kind is TokenType.NOT:
            return before in _INFIX_SIGNS | _SIGNS
        is_first_in_call = (
            before is TokenType.L_PAREN and place > 1 and types[place - 2] not in _BEFORE_OPERAND
        )
        return kind not in _QUANTIFIERS or not is_first_in_call
    # `NOT IN`, `NOT LIKE` and the like are never a field `not` and an operator.
    if kind is TokenType.NOT and following in INFIX_WORDS | {
        TokenType.IN,
        TokenType.IS,
        TokenType.ALIAS,
    }:
        return False
    return following in _AFTER_OPERAND


@cache
def tree_of(text: str) -> exp.Expr:
    """The parsed expression. It is cached, so copy it before changing it. Raises one of `PARSE_ERRORS`."""
    return sqlglot.parse_one(text, dialect=SparkSQL)


@cache
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
