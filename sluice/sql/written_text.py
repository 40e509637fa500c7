"""The author's text of a part of an expression, for errors: sqlglot would write `date_sub` as `DATE_ADD`."""

from __future__ import annotations

from collections.abc import Iterator

from sqlglot import exp
from sqlglot.tokenizer_core import TokenType

from sluice.sql.dialect import PARSE_ERRORS, text_of, tokens_of, tree_of


def written(node: exp.Expr, text: str) -> str:
    """The text from which sqlglot has made a part of the expression `text`; SQL made from the part if it has no text.

    If sqlglot has added the part to the argument of a function, as in `days * -1`, this is the text of the argument.
    """
    span = _span(node, text)
    if span is not None and _is_made_from(node, span):
        return span
    own = text_of(node)
    if _without_spaces(own) in _without_spaces(text):
        return own
    arguments = [part for part in node.iter_expressions() if isinstance(part, exp.Column)]
    is_made_up = isinstance(node, exp.Mul | exp.TsOrDsToDate) and len(arguments) == 1
    return written(arguments[0], text) if is_made_up else own


def written_name(node: exp.Expr, text: str) -> str:
    """The name of a function in lower case, or the text of an operator with its operands, as the author wrote it."""
    start, stop = node.meta.get("start"), node.meta.get("end")
    if isinstance(node, exp.Func) and start is not None and stop is not None:
        return text[start : stop + 1].lower()
    if isinstance(node, exp.If):
        return "CASE" if isinstance(node.parent, exp.Case) else "if"
    return "cast" if isinstance(node, exp.Cast) else written(node, text)


def _span(node: exp.Expr, text: str) -> str | None:
    """The text from the first to the last token of a part, without operators and parentheses around it."""
    spans = [*_spans(node, text)]
    if not spans:
        return None
    return text[min(start for start, _ in spans) : max(stop for _, stop in spans)]


def _spans(node: exp.Expr, text: str) -> Iterator[tuple[int, int]]:
    for part in node.walk():
        if "start" in part.meta:
            start, stop = part.meta["start"], part.meta["end"] + 1
            yield start, _end_of_call(text, stop) if isinstance(part, exp.Func) else stop


def _end_of_call(text: str, start: int) -> int:
    """The end of the parentheses that follow the name of a function, which ends at `start`."""
    depth = 0
    for token in tokens_of(text):
        if token.start >= start:
            depth += (token.token_type is TokenType.L_PAREN) - (token.token_type is TokenType.R_PAREN)
            if depth == 0:
                return token.end + 1 if token.token_type is TokenType.R_PAREN else start
    return start


def _is_made_from(node: exp.Expr, text: str) -> bool:
    try:
        return tree_of(text) == node
    except PARSE_ERRORS:
        return False


def _without_spaces(text: str) -> str:
    return "".join(text.split()).lower()
