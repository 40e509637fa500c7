"""Finds expressions that can fail for some record, and the parts that cause the failure.

In Spark's ANSI mode, a division by zero, a failed CAST or a number out of range ends the query.
Expressions that can fail are therefore wrapped (`plan.layers.FallibleExpression`), so that a
failure rejects only its record. All other expressions are computed directly. If bytes that are not
UTF-8 are cast to text, the cast fails, too, although Spark would replace these bytes.
"""

from __future__ import annotations

from collections.abc import Iterator

from sqlglot import exp

from sluice.sql.calls import TextPart, casts_to_text, replace
from sluice.sql.dialect import tree_of
from sluice.sql.rules import reason_of
from sluice.sql.typed_expression import type_expression, type_of
from sluice.sql.types import Types
from sluice.sql.written_text import written

_DIVISIONS = exp.Div | exp.Mod | exp.IntDiv


def with_utf8_checks(text: str, types: Types) -> str:
    """Return the expression with a check for invalid UTF-8 in each cast of bytes to text.

    For such bytes, CAST fails and TRY_CAST is null.
    """
    insertions = []
    for cast, argument in casts_to_text(text):
        if _may_be_bytes(argument.tree(), types):
            prefix = "try_" if cast.text.lower().startswith("try_") else ""
            insertions += [(cast.start, f"{prefix}validate_utf8("), (cast.stop, ")")]
    parts = [(TextPart("", place, place), added) for place, added in sorted(insertions)]
    return replace(text, parts)


def may_fail(expression: str | exp.Expr, types: Types) -> bool:
    """Return whether an expression can fail for some record, given its fields' known types."""
    return type_expression(expression, types).fails


def failure_causes(text: str) -> Iterator[tuple[str, str]]:
    """Yield the parts of an expression that can fail, innermost first, each with its error message.

    Parts inside a lambda are skipped, because the lambda's names do not exist outside of it.
    """
    for node in reversed(list(tree_of(text).walk())):
        if node.find_ancestor(exp.Lambda) or isinstance(node, exp.Lambda):
            continue
        if isinstance(node, exp.If) and isinstance(node.parent, exp.Case):
            # WHEN ... THEN ... is not an expression, so it cannot be computed on its own.
            continue
        part = written(node, text)
        if isinstance(node, _DIVISIONS):
            divisor = written(node.right, text)
            yield f"1 DIV IF(({divisor}) = 0, 0, 1)", f"DIVIDE_BY_ZERO in {part}"
        if why := reason_of(node):
            yield part, f"{why} in {part}"


def _may_be_bytes(node: exp.Expr, types: Types) -> bool:
    kind = type_of(node, types)
    return kind == "BINARY" or (not kind and not isinstance(node, exp.Null))
