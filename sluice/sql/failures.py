"""Find the author's expressions that can fail for some record, and the parts that cause the failure.

In Spark's ANSI mode, a division by zero, a failed CAST or a number out of range ends the query. Expressions that can
fail are therefore wrapped (`jobs.Attempt`), so that only their record fails. All others are computed directly. Text
made of bytes that are not UTF-8 fails too: Spark would replace these bytes.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import reduce

from sqlglot import exp

from sluice.sql.calls import Part, aggregate_calls, aggregates, casts_to_text, replace
from sluice.sql.dialect import text_of, tree_of
from sluice.sql.rules import reason_of
from sluice.sql.typed import type_of, typed
from sluice.sql.types import MOST_DIGITS, Types, is_decimal, is_integer, precision_and_scale

_DIVISIONS = exp.Div | exp.Mod | exp.IntDiv


def validated(text: str, types: Types) -> str:
    """The expression, so that text made of bytes that are not UTF-8 is an error, or null if it uses TRY_CAST."""
    of_bytes = [cast for cast, argument in casts_to_text(text) if _may_be_bytes(argument.tree(), types)]
    opened = [(cast.start, f"{'try_' * cast.text.lower().startswith('try_')}validate_utf8(") for cast in of_bytes]
    closed = [(cast.stop, ")") for cast in of_bytes]
    return replace(text, [(Part("", at, at), added) for at, added in sorted(opened + closed)])


def may_fail(expression: str | exp.Expr, types: Types) -> bool:
    """Whether the expression can fail for some record, given the known types of its fields."""
    return typed(expression, types).fails


def causes(text: str) -> Iterator[tuple[str, str]]:
    """The parts of an expression that can fail, innermost first, each with its error message.

    Parts inside a lambda are skipped, because the lambda's names do not exist outside of it.
    """
    for node in reversed(list(tree_of(text).walk())):
        if node.find_ancestor(exp.Lambda) or isinstance(node, exp.Lambda):
            continue
        if isinstance(node, exp.If) and isinstance(node.parent, exp.Case):
            continue  # a branch is no expression of its own
        part = text_of(node)
        if isinstance(node, _DIVISIONS):
            divisor = text_of(node.right)
            yield f"1 DIV IF(({divisor}) = 0, 0, 1)", f"DIVIDE_BY_ZERO in {part}"
        if why := reason_of(node):
            yield part, f"{why} in {part}"


def _may_be_bytes(node: exp.Expr, types: Types) -> bool:
    kind = type_of(node, types)
    return kind == "BINARY" or (not kind and not isinstance(node, exp.Null))


def without_risk(text: str, types: Types) -> tuple[str, dict[str, str]]:
    """Replace some arguments of an aggregate by names; return the new text and the expression of each name.

    Replaces arguments that can fail, and summed integers, which become decimals so that their sum cannot overflow 64
    bits.
    """
    arguments: dict[str, str] = {}
    replaced: list[tuple[Part, str]] = []
    for call in aggregate_calls(text):
        for part in (*call.arguments, *([call.condition] if call.condition else [])):
            is_summed = isinstance(call.tree(), exp.Sum) and is_integer(type_of(part.tree(), types))
            if not is_summed and (not may_fail(part.tree(), types) or not _reads(part.tree())):
                continue
            sql = f"CAST({part.text} AS DECIMAL(20, 0))" if is_summed else part.text
            named = (name for name, argument_sql in arguments.items() if argument_sql == sql)
            name = next(named, f"__argument_{len(arguments)}")
            arguments[name] = sql
            replaced.append((part, name))
    return replace(text, replaced), arguments


def _reads(tree: exp.Expr) -> bool:
    """Whether an expression reads a field. Functions such as `percentile` require constants."""
    return tree.find(exp.Column) is not None


def result_may_fail(text: str, types: Types) -> bool:
    """Whether an expression over aggregates can fail, such as `sum(a) / sum(b)`."""
    tree = tree_of(text).copy()
    kinds = {}
    for number, function in enumerate(functions_of(tree)):
        inner = function.this if isinstance(function, exp.Filter) else function
        kinds[f"a{number}"] = type_of(inner, types)
        if function is tree:
            return False
        function.replace(exp.column(f"a{number}"))
    return may_fail(tree, kinds)


def sums_depend_on_order(text: str, types: Types) -> bool:
    """Whether a sum or average in the text depends on the order of records, or can exceed a decimal's digits."""
    tree = tree_of(text)
    return any(not _adds_up(type_of(part.this, types)) for part in tree.find_all(exp.Sum, exp.Avg))


def _adds_up(kind: str) -> bool:
    if is_decimal(kind):
        return precision_and_scale(kind)[0] <= MOST_DIGITS - _SUM_DIGITS
    return is_integer(kind)


_SUM_DIGITS = 10
"""A sum has this many more digits than its argument, enough for 10^10 values."""


def functions_of(tree: exp.Expr) -> list[exp.Expr]:
    """The outermost aggregate functions of an expression, each with its FILTER."""
    if isinstance(tree, exp.Filter) or aggregates(tree):
        return [tree]
    return reduce(lambda functions, child: functions + functions_of(child), tree.iter_expressions(), list[exp.Expr]())
