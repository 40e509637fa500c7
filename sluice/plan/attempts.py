"""Find the author's expressions that can fail for some record, and the parts that cause the failure.

In Spark's ANSI mode, a division by zero, a failed CAST or a number out of range ends the query. Expressions that can
fail are therefore wrapped (`jobs.Attempt`), so that only their record fails. All others are computed directly. Text
made of bytes that are not UTF-8 fails too: Spark would replace these bytes.
"""

from __future__ import annotations

from collections.abc import Iterator

from sqlglot import exp

from sluice.plan.value_types import (
    MOST_DIGITS,
    NUMBERS,
    Types,
    decimal_digits,
    functions_of,
    kind_of,
    precision_and_scale,
)
from sluice.topology.calls import Part, aggregate_calls, casts_to_text, replace
from sluice.values.dialect import text_of, tree_of

_ALWAYS_SAFE = (
    exp.Column | exp.Identifier | exp.Literal | exp.Null | exp.Boolean | exp.Paren | exp.And | exp.Or | exp.Not
    | exp.Is | exp.Upper | exp.Lower | exp.Trim | exp.Length | exp.Struct | exp.PropertyEQ | exp.Concat | exp.DPipe
    | exp.Star | exp.DataType | exp.DataTypeParam | exp.Var
)  # fmt: skip
_COMPARISONS = exp.EQ | exp.NEQ | exp.GT | exp.GTE | exp.LT | exp.LTE | exp.NullSafeEQ | exp.In | exp.Between
_DIVISIONS = exp.Div | exp.Mod | exp.IntDiv
_CHOICES = exp.Coalesce | exp.If | exp.Case
_SAFE_FUNCTIONS = frozenset({"isnull", "isnotnull"})


def validated(text: str, types: Types) -> str:
    """The expression, so that text made of bytes that are not UTF-8 is an error, or null if it uses TRY_CAST."""
    of_bytes = [cast for cast, argument in casts_to_text(text) if _may_be_bytes(argument.tree(), types)]
    opened = [(cast.start, f"{'try_' * cast.text.lower().startswith('try_')}validate_utf8(") for cast in of_bytes]
    closed = [(cast.stop, ")") for cast in of_bytes]
    return replace(text, [(Part("", at, at), added) for at, added in sorted(opened + closed)])


def may_fail(text: str, types: Types) -> bool:
    """Whether the expression can fail for some record, given the known types of its fields."""
    return not _is_safe(tree_of(text), types)


def causes(text: str) -> Iterator[tuple[str, str]]:
    """The parts of an expression that can fail, innermost first, each with its error message.

    Parts inside a lambda are skipped, because the lambda's names do not exist outside of it.
    """
    tree = tree_of(text)
    for node in reversed(list(tree.walk())):
        if node.find_ancestor(exp.Lambda) or isinstance(node, exp.Lambda | _ALWAYS_SAFE):
            continue
        part = text_of(node)
        if isinstance(node, _DIVISIONS):
            divisor = text_of(node.right)
            yield f"1 DIV IF(({divisor}) = 0, 0, 1)", f"DIVIDE_BY_ZERO in {part}"
        if why := _why(node):
            yield part, f"{why} in {part}"


def _is_safe(node: exp.Expr, types: Types) -> bool:
    return _is_safe_itself(node, types) and all(_is_safe(child, types) for child in node.iter_expressions())


def _is_safe_itself(node: exp.Expr, types: Types) -> bool:
    match node:
        case exp.Cast():
            # sqlglot parses Spark's CAST as a TryCast; only TRY_CAST sets `safe`.
            if node.args.get("safe"):
                # TRY_CAST takes the texts NaN and Infinity.
                return text_of(node.to) not in ("DOUBLE", "FLOAT") or _is_widening(node, types)
            is_text = text_of(node.to) == "STRING"
            return not _may_be_bytes(node.this, types) if is_text else _is_widening(node, types)
        case exp.Anonymous():
            return node.name.lower() in _SAFE_FUNCTIONS
        case exp.Add() | exp.Sub() | exp.Mul():
            digits = decimal_digits(node, types)
            return digits is not None and digits[0] <= MOST_DIGITS
        case exp.Div() | exp.Mod() | exp.IntDiv():
            divisor = node.right
            whole = kind_of(node.left, types) in ("BIGINT", "INT")
            return whole and isinstance(divisor, exp.Literal) and divisor.is_int and int(divisor.name) != 0
        case exp.Like():
            return isinstance(node.expression, exp.Literal) and "\\" not in node.expression.name
    if isinstance(node, _COMPARISONS):
        # Spark compares a text with a number by casting the text to a number, which can fail.
        return len({_group(child, types) for child in node.iter_expressions()} - {"null"}) == 1 and (
            "" not in {_group(child, types) for child in node.iter_expressions()}
        )
    if isinstance(node, _CHOICES):
        return kind_of(node, types) != ""
    # Each branch of a CASE is an If without a type.
    return isinstance(node, _ALWAYS_SAFE) or (isinstance(node, exp.If) and isinstance(node.parent, exp.Case))


def _may_be_bytes(node: exp.Expr, types: Types) -> bool:
    kind = kind_of(node, types)
    return kind == "BINARY" or (not kind and not isinstance(node, exp.Null))


def _is_widening(node: exp.Cast, types: Types) -> bool:
    kind, to = kind_of(node.this, types), text_of(node.to)
    return (to == "DOUBLE" and kind.startswith(NUMBERS)) or (to == "DECIMAL(20, 0)" and kind in ("BIGINT", "INT"))


def _group(node: exp.Expr, types: Types) -> str:
    """`number` for numeric types, otherwise the type; empty if unknown. Types of a group can be compared safely."""
    if isinstance(node, exp.Null):
        return "null"
    kind = kind_of(node, types)
    return "number" if kind.startswith(NUMBERS) else kind


def _why(node: exp.Expr) -> str:
    name = node.name.lower() if isinstance(node, exp.Anonymous) else ""
    match node:
        case exp.Cast():
            return "" if node.args.get("safe") else "CAST_INVALID_INPUT"
        case exp.Add() | exp.Sub() | exp.Mul() | exp.Div() | exp.Mod() | exp.IntDiv() | exp.Neg() | exp.Abs():
            return "ARITHMETIC_OVERFLOW"
        case exp.Bracket():
            return "INVALID_ARRAY_INDEX"
        case exp.Anonymous() if name == "pmod":
            return "DIVIDE_BY_ZERO"
        case exp.Anonymous() if name == "validate_utf8":
            return "NOT_UTF8"
    if isinstance(node, _COMPARISONS | _CHOICES):
        return "CAST_INVALID_INPUT"
    return "NO_RESULT" if isinstance(node, exp.Func) else ""


def without_risk(text: str, types: Types) -> tuple[str, dict[str, str]]:
    """Replace some arguments of an aggregate by names; return the new text and the expression of each name.

    Replaces arguments that can fail, and summed integers, which become decimals so that their sum cannot overflow 64
    bits.
    """
    arguments: dict[str, str] = {}
    replaced: list[tuple[Part, str]] = []
    for call in aggregate_calls(text):
        for part in (*call.arguments, *([call.condition] if call.condition else [])):
            is_summed = isinstance(call.tree(), exp.Sum) and kind_of(part.tree(), types) in ("BIGINT", "INT")
            if not is_summed and (_is_safe(part.tree(), types) or not _reads(part.tree())):
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
        kinds[f"a{number}"] = kind_of(inner, types)
        if function is tree:
            return False
        function.replace(exp.column(f"a{number}"))
    return not _is_safe(tree, kinds)


def sums_depend_on_order(text: str, types: Types) -> bool:
    """Whether a sum or average in the text depends on the order of records, or can exceed a decimal's digits."""
    tree = tree_of(text)
    return any(not _adds_up(kind_of(part.this, types)) for part in tree.find_all(exp.Sum, exp.Avg))


def _adds_up(kind: str) -> bool:
    if kind.startswith("DECIMAL"):
        return precision_and_scale(kind)[0] <= MOST_DIGITS - _SUM_DIGITS
    return kind in ("BIGINT", "INT")


_SUM_DIGITS = 10
"""A sum has this many more digits than its argument, enough for 10^10 values."""
