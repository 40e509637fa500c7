"""Finds syntax that sqlglot accepts in expressions, but Spark rejects or reads in another way."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import chain, pairwise

from sqlglot import exp
from sqlglot.tokenizer_core import Token, TokenType

from sluice.sql.argument_counts import wrong_count
from sluice.sql.dialect import SparkSQL, tokens_of
from sluice.sql.spark_types import is_type
from sluice.sql.words_as_names import UNITS, begins_operand, is_infix_word, places_of_names
from sluice.values.sql_types import MOST_DIGITS

_STATEMENTS = exp.Query | exp.Command | exp.DDL | exp.DML | exp.Drop | exp.Set
_SIGNS = frozenset(
    {
        TokenType.L_PAREN, TokenType.R_PAREN, TokenType.L_BRACKET, TokenType.R_BRACKET,
        TokenType.COMMA, TokenType.DOT, TokenType.PLUS, TokenType.DASH, TokenType.STAR,
        TokenType.SLASH, TokenType.MOD, TokenType.DPIPE, TokenType.EQ, TokenType.NEQ, TokenType.LT,
        TokenType.LTE, TokenType.GT, TokenType.GTE, TokenType.NULLSAFE_EQ, TokenType.NOT,
        TokenType.AMP, TokenType.PIPE, TokenType.CARET, TokenType.TILDE, TokenType.ARROW,
        TokenType.FARROW, TokenType.DCOLON, TokenType.COLON,
    }
)  # fmt: skip
_FOREIGN_WORDS = frozenset({
    TokenType.GLOB, TokenType.OVERLAPS, TokenType.SIMILAR_TO, TokenType.ISNULL, TokenType.NOTNULL,
    TokenType.XOR,
})  # fmt: skip
"""Operators of other databases that are written as words."""
_TEXTS = frozenset({TokenType.STRING, TokenType.RAW_STRING})
_TYPED_TEXTS = frozenset(
    {"date", "timestamp", "timestamp_ntz", "timestamp_ltz", "time", "interval"}
)
"""The types whose constants consist of the type's name and a text, as in `DATE '2026-01-01'`."""
_WITH_LAMBDAS = frozenset(
    {"forall", "map_filter", "map_zip_with", "transform_keys", "transform_values", "zip_with"}
)
"""Functions that take lambdas and for which sqlglot has no type."""
_UNITS_IN_TEXT = rf"\s*(?:[+-]?\s*\d+(?:\.\d*)?\s+(?:{'|'.join(sorted(UNITS))})s?\s*)+"
"""A pattern for the text in `INTERVAL '1 day 2 hours'`."""
_BEFORE_OPERAND = frozenset({
    TokenType.NOT, TokenType.CASE, TokenType.DISTINCT, TokenType.ALL, TokenType.INTERVAL,
    TokenType.WHERE,
})  # fmt: skip
_BEFORE_PARENTHESES = _BEFORE_OPERAND | {
    TokenType.IN, TokenType.FILTER, TokenType.OVER, TokenType.ALIAS, TokenType.IS,
    TokenType.ORDER_BY, TokenType.ANY,
}  # fmt: skip
"""The words that can stand before parentheses without being a function's name. Where an operand
begins, only the words of `_BEFORE_OPERAND` can."""


def reason_to_refuse(text: str, tree: exp.Expr) -> str:
    """Return why a text is no Spark SQL expression over one record's fields; empty if it is one."""
    if isinstance(tree, _STATEMENTS):
        return "is a statement, not an expression"
    if isinstance(tree, exp.Alias):
        reason = (
            "names its result with AS; write the name before the expression, as in "
            "total='sum(amount)'"
        )
        return reason_not_parsed(text) or reason
    for node in tree.walk():
        if reason := _why_not_part(node):
            return reason
    tokens = tokens_of(text)
    reasons = chain(
        _foreign_signs(text, tokens),
        _foreign_types(tokens),
        _wrong_counts(tokens),
        _unread_names(tokens, tree),
    )
    return next(reasons, "")


def reason_not_parsed(text: str) -> str:
    """Return why sqlglot cannot parse a text, with advice; empty if the reason is unknown.

    Known reasons are a sign or word that is not an operator of Spark SQL, and a call with too few
    or too many arguments.
    """
    tokens = tokens_of(text)
    return next(chain(_foreign_signs(text, tokens), _wrong_counts(tokens)), "")


def functions_in(tokens: Sequence[Token]) -> Iterator[Token]:
    """Yield the names of the functions that are called."""
    types = {tokens[place].start for place in _places_of_types(tokens)}
    begins, before = True, ""
    for token, after in pairwise(tokens):
        # A word such as IN can be a function's name, but only where an operand begins.
        words = _BEFORE_OPERAND if begins else _BEFORE_PARENTHESES
        is_keyword = token.token_type in words or (not begins and is_infix_word(token))
        is_word = token.text.isidentifier() and not is_keyword and token.token_type not in _TEXTS
        is_clause = (before, token.text.upper()) == ("WITHIN", "GROUP")
        is_called = after.token_type is TokenType.L_PAREN and token.start not in types
        if is_word and is_called and not is_clause:
            yield token
        begins, before = begins_operand(token), token.text.upper()


def _why_not_part(node: exp.Expr) -> str:
    if node.comments:
        return "contains a comment; write comments in Python"
    match node:
        case exp.Query():
            return "contains a query; only expressions are allowed"
        case exp.Window():
            return "reads other records with OVER; group the stream instead"
        case exp.Parameter() | exp.Placeholder() | exp.SessionParameter():
            return "contains a parameter; a field's name with a sign needs backticks"
        case exp.Star() if not isinstance(node.parent, exp.Count):
            return "contains a star; name the fields"
        case exp.Column(this=exp.Star()):
            return "contains a star; name the fields"
        case exp.Alias() if not isinstance(node.parent, exp.Struct | exp.Tuple | exp.ArraysZip):
            return "names a part of it with AS, which is possible only in struct(...)"
        case exp.Interval() if not isinstance(node.parent, exp.Cast | exp.DataType):
            return _why_not_interval(node)
    return _why_not_operator(node) or _why_not_name(node)


def _why_not_operator(node: exp.Expr) -> str:
    match node:
        case exp.Is() if not isinstance(node.expression, exp.Null | exp.Boolean):
            return "has IS, but not before NULL, TRUE, FALSE or DISTINCT FROM; write ="
        case exp.In() if node.args.get("field") or node.args.get("unnest"):
            return "has IN without parentheses; to look into a list, write array_contains(list, x)"
        case exp.AtTimeZone():
            return "has AT TIME ZONE; write from_utc_timestamp(...) or to_utc_timestamp(...)"
        case exp.Between() if node.args.get("symmetric") is not None:
            return "has SYMMETRIC, which Spark SQL lacks; write least(...) and greatest(...)"
        case exp.Slice():
            return "reads a part of a list with a colon; write slice(list, 1, 2)"
        case exp.Bracket() if len(node.expressions) != 1:
            return "has more than one index in brackets; write one"
        case exp.Cast(this=exp.Literal(is_string=False) as number) if not _fits(
            number.name, node.to
        ):
            return (
                f"has the number {number.name}, which is too large for its type; write a smaller "
                "one, or a DECIMAL"
            )
        case exp.Cast() if node.args.get("format") is not None:
            return "has a FORMAT in CAST; write to_timestamp(...), to_date(...) or date_format(...)"
        case exp.Order() if not isinstance(node.parent, exp.WithinGroup | exp.GroupConcat):
            return "has ORDER BY; sort a list with array_sort(...)"
        case exp.Lambda() if not _takes_lambda(node.parent):
            return (
                "has -> in a function that takes no lambda; write for example "
                "transform(list, x -> ...)"
            )
        case exp.JSONExtract() if node.args.get("only_json_types") is not None:
            return "has -> outside of a function that takes a lambda; write get_json_object(...)"
        case exp.Escape() if len(node.expression.name) != 1:
            return "has an ESCAPE that is not a single character"
    return ""


def _takes_lambda(function: exp.Expr | None) -> bool:
    if isinstance(function, exp.Anonymous):
        return function.name.lower() in _WITH_LAMBDAS
    return isinstance(
        function, exp.Transform | exp.ArrayFilter | exp.ArraySort | exp.Exists | exp.Reduce
    )


def _why_not_name(node: exp.Expr) -> str:
    match node:
        case exp.Literal(is_string=False) if not _is_number_of_spark(node.name):
            return (
                f"has the number {node.name}, which is not a number of Spark SQL; write a name in "
                "backticks"
            )
        case exp.Column() if not all(isinstance(part, exp.Identifier) for part in node.parts):
            return (
                "has a number after a dot; write list[0] for an element, and backticks around a "
                "field's name"
            )
        case exp.Dot() if isinstance(node.expression, exp.Func):
            return "calls a function after a dot"
        case exp.Aliases():
            return f"calls {node.this.name}, which is not a function"
    return ""


def _why_not_interval(node: exp.Interval) -> str:
    number = node.this
    if isinstance(number, exp.Neg | exp.Paren):
        number = number.this
    if not isinstance(number, exp.Literal):
        return "has an INTERVAL that is not a constant; write for example x * INTERVAL 1 DAY"
    unit = node.args.get("unit")
    if unit is None and not re.fullmatch(_UNITS_IN_TEXT, number.name, re.IGNORECASE):
        return (
            "has an INTERVAL without a unit; write (INTERVAL 1 DAY), in parentheses before + and a "
            "constant"
        )
    if isinstance(unit, exp.Var) and unit.name.upper().removesuffix("S") not in UNITS:
        return (
            f"has an INTERVAL in {unit.name}; write it in DAY, HOUR, MINUTE or another unit of time"
        )
    return ""


_BITS = {exp.DType.TINYINT: 8, exp.DType.SMALLINT: 16, exp.DType.INT: 32, exp.DType.BIGINT: 64}


def _fits(number: str, to: exp.DataType) -> bool:
    """Return whether an integer or its negative fits a type; true if it is not an integer type."""
    bits = _BITS.get(to.this)
    return bits is None or not number.isdecimal() or int(number) <= 2 ** (bits - 1)


def _is_number_of_spark(text: str) -> bool:
    """Return whether a number fits a decimal, or a double if the number has an exponent."""
    if re.fullmatch(r"(?:\d+\.?\d*|\.\d+)[eE][+-]?\d+", text):
        return math.isfinite(float(text))
    whole, _, decimals = text.partition(".")
    return (
        f"{whole}{decimals}".isdecimal() and len(whole.lstrip("0")) + len(decimals) <= MOST_DIGITS
    )


def _foreign_signs(text: str, tokens: Sequence[Token]) -> Iterator[str]:
    """Yield a description of each sign or word that Spark SQL lacks, or reads in another way."""
    arguments = {token.end + 1 for token in functions_in(tokens)}
    before: Token | None = None
    begins_before = True
    for token, after in zip(tokens, [*tokens[1:], None], strict=True):
        kind, first = token.token_type, text[token.start]
        following = TokenType.R_PAREN
        if after is not None:
            following = after.token_type
        is_after_dot = before is not None and before.token_type is TokenType.DOT
        is_sign = not first.isalnum() and first not in "_`'\""
        match kind:
            case TokenType.SEMICOLON:
                yield "ends with a semicolon; leave it out"
            case _ if is_sign and kind not in _SIGNS:
                yield f"has the operator {token.text}, which Spark SQL lacks"
            case _ if (
                kind in _FOREIGN_WORDS and following is not TokenType.L_PAREN and not is_after_dot
            ):
                yield f"has the operator {token.text}, which Spark SQL lacks"
            case TokenType.NATIONAL_STRING:
                yield "has an N before a text; leave it out"
            case TokenType.L_BRACKET if before is None or begins_operand(before):
                yield "has a list in brackets; write array(...)"
            case TokenType.COMMA if following in (TokenType.R_PAREN, TokenType.COMMA):
                yield "has a comma without a value after it"
            case TokenType.ALIAS if following in (TokenType.R_PAREN, TokenType.COMMA):
                yield "has AS without a name after it"
            case TokenType.L_PAREN if following is TokenType.COMMA:
                yield "has a comma without a value before it"
            case TokenType.L_PAREN if (
                following is TokenType.R_PAREN and token.start not in arguments
            ):
                yield "has parentheses without a value"
            case _ if (
                before is not None and begins_before and _is_read_further(before, token, after)
            ):
                constant = text[before.start : token.end + 1]
                yield f"continues directly after the constant {constant}; put it in parentheses"
            case _ if before is not None and _is_foreign_constant(before, kind):
                yield (
                    f"has {before.text} before {token.text!r}; write "
                    f"CAST({token.text!r} AS {before.text})"
                )
        begins_before = before is None or begins_operand(before)
        before = token


def _is_foreign_constant(word: Token, following: TokenType) -> bool:
    """Return whether a word stands before a constant like a type, but Spark has no such type."""
    if word.token_type not in SparkSQL.Parser.TYPE_TOKENS or following not in (
        *_TEXTS,
        TokenType.NUMBER,
    ):
        return False
    is_interval = word.token_type is TokenType.INTERVAL
    return not is_interval and (
        following is TokenType.NUMBER or word.text.lower() not in _TYPED_TEXTS
    )


def _is_read_further(before: Token, token: Token, after: Token | None) -> bool:
    """Return whether a constant (`DATE '2026-01-01'`, `-1`) has `::`, a dot or brackets after it.

    sqlglot would apply these to the text or the number alone, without the type or the sign.
    """
    is_typed_text = token.token_type in _TEXTS and before.text.lower() in _TYPED_TEXTS
    is_negative = before.token_type is TokenType.DASH and token.token_type is TokenType.NUMBER
    # For `1L`, sqlglot has the tokens `1`, `::` and `L`, all at the same place.
    if after is None or not (is_typed_text or is_negative) or after.start == token.start:
        return False
    return after.token_type in (TokenType.DCOLON, TokenType.DOT, TokenType.L_BRACKET)


def _foreign_types(tokens: Sequence[Token]) -> Iterator[str]:
    for place in _places_of_types(tokens):
        word = tokens[place].text
        if not is_type(tokens, place):
            yield (
                f"converts to {word}, which is not a type of Spark SQL; write a type such as "
                "STRING, DECIMAL(38,2) or ARRAY<INT>"
            )


def _wrong_counts(tokens: Sequence[Token]) -> Iterator[str]:
    places = {token.start: place for place, token in enumerate(tokens)}
    for name in functions_in(tokens):
        if problem := wrong_count(tokens, places[name.start]):
            yield f"{problem}; correct the arguments, or use a Python function"


def _places_of_types(tokens: Sequence[Token]) -> Iterator[int]:
    """Yield the places of types in `CAST(... AS type)` and `...::type`, but no nested types."""
    callers: list[str] = []
    before: Token | None = None
    for place, token in enumerate(tokens):
        kind = token.token_type
        # For `1L`, sqlglot has the tokens `1`, `::` and `L`, all at the same place.
        is_converted = (
            before is not None
            and before.token_type is TokenType.DCOLON
            and before.start != token.start
        )
        is_cast = before is not None and before.token_type is TokenType.ALIAS
        if is_converted or (is_cast and callers[-1:] in (["CAST"], ["TRY_CAST"])):
            yield place
        if kind is TokenType.L_PAREN:
            caller = ""
            if before is not None:
                caller = before.text.upper()
            callers.append(caller)
        elif kind is TokenType.R_PAREN and callers:
            callers.pop()
        before = token


def _unread_names(tokens: Sequence[Token], tree: exp.Expr) -> Iterator[str]:
    """Yield each name in the text that the tree lacks. sqlglot drops some arguments."""
    read = Counter(node.name.lower() for node in tree.find_all(exp.Identifier, exp.Var))
    for place in places_of_names(tokens):
        word = tokens[place].text
        read[word.lower()] -= 1
        if read[word.lower()] < 0:
            yield f"has {word} as an argument that the function does not take"
