"""Finds the author's text for a part of an expression, because sqlglot may write other text."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import product

from sqlglot import exp
from sqlglot.tokenizer_core import Token, TokenType

from sluice.sql.dialect import PARSE_ERRORS, text_of, tokens_of, tree_of


def written(node: exp.Expr, text: str) -> str:
    """Return the text from which sqlglot has made a part of the expression `text`.

    If the part has no text, return SQL that is made from the part.
    If sqlglot has added the part to a function's argument, as in `days * -1`, return the argument's
    text.
    """
    for candidate in _candidates(node, text):
        if _is_made_from(node, candidate):
            return candidate
    arguments = [part for part in node.iter_expressions() if isinstance(part, exp.Column)]
    is_made_up = isinstance(node, exp.Mul | exp.TsOrDsToDate) and len(arguments) == 1
    if is_made_up:
        return written(arguments[0], text)
    return text_of(node)


def written_name(node: exp.Expr, text: str) -> str:
    """Return a function's name as the author wrote it, but in lower case.

    For an operator, return its text with the operands.
    """
    start, stop = node.meta.get("start"), node.meta.get("end")
    if isinstance(node, exp.Func) and start is not None and stop is not None:
        return text[start : stop + 1].lower()
    if isinstance(node, exp.If):
        return "CASE" if isinstance(node.parent, exp.Case) else "if"
    if isinstance(node, exp.Cast):
        return "cast"
    return written(node, text)


_MOST_TOKENS_AROUND = 3
"""The maximum number of tokens that a part has before or after its operands, such as IS NOT
NULL."""


def _candidates(node: exp.Expr, text: str) -> Iterator[str]:
    """Yield a part's possible texts: its operands, with more and more tokens around them."""
    tokens = tokens_of(text)
    place_of_start = {token.start: place for place, token in enumerate(tokens)}
    places: list[int] = []
    for part in node.walk():
        if "start" in part.meta:
            place = place_of_start[part.meta["start"]]
            places.append(place)
            if isinstance(part, exp.Func):
                places.append(_end_of_call(tokens, place))
    if not places:
        return
    for before, after in product(range(_MOST_TOKENS_AROUND + 1), repeat=2):
        first, last = min(places) - before, max(places) + after
        if first >= 0 and last < len(tokens):
            yield text[tokens[first].start : tokens[last].end + 1]


def _end_of_call(tokens: Sequence[Token], place: int) -> int:
    """Return the place of the parenthesis that ends the call whose name is at `place`."""
    depth = 0
    for end in range(place + 1, len(tokens)):
        kind = tokens[end].token_type
        depth += (kind is TokenType.L_PAREN) - (kind is TokenType.R_PAREN)
        if depth == 0:
            return end
    return place


def _is_made_from(node: exp.Expr, text: str) -> bool:
    try:
        return tree_of(text) == node
    except PARSE_ERRORS:
        return False
