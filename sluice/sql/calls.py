"""Finds the calls in an SQL expression, with their arguments as the author wrote them.

sqlglot parses an expression, but if it writes the parsed tree as text again, this text can have
another result: sqlglot drops the format of `to_char` and the third argument of `max_by`, and gives
`listagg` a delimiter. So parts of expressions that Spark computes are cut out of the author's text.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache

from sqlglot import exp
from sqlglot.tokenizer_core import Token, TokenType

from sluice.sql.dialect import PARSE_ERRORS, tokens_of, tree_of


@dataclass(frozen=True)
class TextPart:
    """A part of an expression's text, from position `start` up to, but excluding, `stop`.

    `text` has no spaces around it.
    """

    text: str
    start: int
    stop: int

    def tree(self) -> exp.Expr:
        """Return the parsed part."""
        return tree_of(self.text)


@dataclass(frozen=True)
class FunctionCall:
    """A call of a function, with its FILTER, WITHIN GROUP and IGNORE NULLS."""

    whole: TextPart
    function: TextPart
    """The function with its arguments, without the clauses after the closing parenthesis."""
    arguments: tuple[TextPart, ...]
    quantifier: str
    """DISTINCT, ALL, or empty."""
    nulls: str
    """IGNORE or RESPECT, or empty."""
    condition: TextPart | None
    """The condition of FILTER (WHERE ...)."""

    def tree(self) -> exp.Expr:
        """Return the parsed function."""
        tree = self.function.tree()
        if isinstance(tree, exp.IgnoreNulls | exp.RespectNulls):
            tree = tree.this
        return tree


# Aggregates that sqlglot parses as ordinary functions.
_MORE_AGGREGATES = {
    "any", "count_min_sketch", "every", "histogram_numeric", "mean", "some", "std", "try_avg",
    "try_sum", "top", "vector_avg", "vector_sum", "collect_sorted",
}  # fmt: skip


def aggregates(node: exp.Expr) -> bool:
    """Return whether a node of a parsed expression is an aggregate function."""
    if isinstance(node, exp.AggFunc):
        return True
    name = ""
    if isinstance(node, exp.Func):
        name = function_name(node)
    return name in _MORE_AGGREGATES or "_agg" in name


def function_name(function: exp.Func) -> str:
    """Return the name in lower case.

    If a function has several names, return the name that sqlglot prefers.
    """
    name = function.sql_name()
    if isinstance(function, exp.Anonymous):
        name = function.name
    return name.lower()


@cache
def aggregate_calls(text: str) -> tuple[FunctionCall, ...]:
    """Return the outermost aggregates of an expression, in order."""
    tokens, closing = _tokens(text)
    calls: list[FunctionCall] = []
    position = 0
    while position < len(tokens):
        call = _call(text, tokens, closing, position)
        if call is not None and aggregates(call.tree()):
            calls.append(call)
            while tokens[position].end + 1 != call.whole.stop:
                position += 1
        position += 1
    return tuple(calls)


def replace(text: str, parts: Sequence[tuple[TextPart, str]]) -> str:
    """Replace some parts of the text.

    `parts`: each part with its new text, in order of position.
    """
    out, end = [], 0
    for part, by in parts:
        out += [text[end : part.start], by]
        end = part.stop
    return "".join([*out, text[end:]])


@cache
def casts_to_text(text: str) -> tuple[tuple[TextPart, TextPart], ...]:
    """Return an expression's casts to STRING, each with its argument.

    These are `CAST(... AS STRING)`, `TRY_CAST(... AS STRING)` and `STRING(...)`.
    """
    tokens, closing = _tokens(text)
    casts = []
    for i, name in enumerate(tokens[:-1]):
        if tokens[i + 1].token_type is not TokenType.L_PAREN:
            continue
        close = closing[i + 1]
        whole = _part(text, name.start, tokens[close].end + 1)
        if name.text.upper() == "STRING":
            casts.append((whole, _part(text, tokens[i + 1].end + 1, tokens[close].start)))
            continue
        as_string = tokens[close - 2 : close]
        if name.text.upper() in ("CAST", "TRY_CAST") and _words(as_string, 0) == ["AS", "STRING"]:
            casts.append((whole, _part(text, tokens[i + 1].end + 1, as_string[0].start)))
    return tuple(casts)


def _tokens(text: str) -> tuple[list[Token], dict[int, int]]:
    """Return the tokens, and index of an opening bracket → index of its closing bracket."""
    tokens = tokens_of(text)
    closing: dict[int, int] = {}
    opened = []
    for i, token in enumerate(tokens):
        if token.token_type in OPENING:
            opened.append(i)
        elif token.token_type in CLOSING:
            closing[opened.pop()] = i
    return tokens, closing


OPENING = (TokenType.L_PAREN, TokenType.L_BRACKET, TokenType.L_BRACE)
CLOSING = (TokenType.R_PAREN, TokenType.R_BRACKET, TokenType.R_BRACE)


def _call(text: str, tokens: list[Token], closing: dict[int, int], at: int) -> FunctionCall | None:
    is_before_parenthesis = at + 1 in closing and tokens[at + 1].token_type is TokenType.L_PAREN
    if not is_before_parenthesis or not _word(tokens[at]).isidentifier():
        return None
    end = closing[at + 1]
    function = _part(text, tokens[at].start, tokens[end].end + 1)
    try:
        function.tree()
    # A text such as `IN (1, 2)` is not a call.
    except PARSE_ERRORS:
        return None
    first, last, quantifier, nulls = at + 2, end, "", ""
    # If `all` is a field, its token is a name instead.
    if tokens[first].token_type in (TokenType.DISTINCT, TokenType.ALL):
        quantifier = tokens[first].text.upper()
        first += 1
    if (
        last - 2 > first
        and tokens[last - 3].token_type is not TokenType.COMMA
        and _are_nulls(tokens, last - 2)
    ):
        nulls = _word(tokens[last - 2])
        last -= 2
    arguments = tuple(_arguments(text, tokens, closing, first, last))
    condition = None
    # Read the clauses after the closing parenthesis, which may come in any order.
    while True:
        following = _words(tokens, end + 1)
        if _are_nulls(tokens, end + 1):
            nulls, end = following[0], end + 2
        elif following == ["FILTER", "("]:
            condition = _part(text, tokens[end + 3].end + 1, tokens[closing[end + 2]].start)
            end = closing[end + 2]
        elif following[:1] in (["WITHIN"], ["WITHIN GROUP"]):
            opening = end + 1
            while opening not in closing:
                opening += 1
            end = closing[opening]
        else:
            break
    whole = _part(text, tokens[at].start, tokens[end].end + 1)
    return FunctionCall(whole, function, arguments, quantifier, nulls, condition)


def _are_nulls(tokens: list[Token], at: int) -> bool:
    """Return whether IGNORE NULLS or RESPECT NULLS begins at this token."""
    return _words(tokens, at) in (["IGNORE", "NULLS"], ["RESPECT", "NULLS"])


def _words(tokens: list[Token], at: int) -> list[str]:
    return [_word(token) for token in tokens[at : at + 2]]


def _word(token: Token) -> str:
    """Return a token in upper case; empty for a name in backticks, which is not a keyword."""
    if token.token_type is TokenType.IDENTIFIER:
        return ""
    return token.text.upper()


def _arguments(
    text: str,
    tokens: list[Token],
    closing: dict[int, int],
    first: int,
    last: int,
) -> Iterator[TextPart]:
    start, i = first, first
    while i <= last and start < last:
        if i == last or tokens[i].token_type is TokenType.COMMA:
            yield _part(text, tokens[start].start, tokens[i - 1].end + 1)
            start = i + 1
        # A comma inside of brackets does not end an argument.
        i = closing.get(i, i) + 1


def _part(text: str, start: int, stop: int) -> TextPart:
    return TextPart(text[start:stop].strip(), start, stop)
