"""Gives each part of an expression its type, and finds the parts that can fail or need Spark."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import cached_property

from sqlglot import exp

from sluice.sql.dialect import text_of, tree_of
from sluice.sql.result_types import path_type, result_type
from sluice.sql.rules import (
    RULES,
    Rule,
    RuleKey,
    Signature,
    is_plain_time,
    json_of,
    json_problem,
    path_element,
    rule_key,
    rule_of,
)
from sluice.sql.types import VOID, Types, holds_void
from sluice.values.json_limits import shortened
from sluice.values.sql_types import is_complete, struct_fields

JSON_VALUE = "(the JSON of a value)"
"""The `key` of an expression that `value_json` has made. No function has this name."""
PATH_ELEMENT = "(the index of an element in a path)"
"""The `key` of an expression that `row_order.element_sql` has made."""
_LONGEST = 80


@dataclass(frozen=True, eq=False)
class TypedExpression:
    """An expression with its type and the types of its parts."""

    node: exp.Expr
    key: RuleKey
    """The key of the expression's rule in the table."""
    signature: Signature
    parts: tuple[TypedExpression, ...]
    """The arguments of the expression."""

    @property
    def type(self) -> str:
        """The Spark SQL type of the result; an empty text if the type is unknown."""
        return self.signature.type

    @property
    def operands(self) -> tuple[str, ...]:
        """The types to which the arguments are converted."""
        return self.signature.operands or ()

    @cached_property
    def fails(self) -> bool:
        """Whether a record's values can make the expression fail, or give NaN or infinity."""
        return self.signature.fails or any(part.fails for part in self.parts)

    @cached_property
    def why_spark(self) -> str:
        """The first part that only Spark computes; empty if Arrow computes the expression."""
        for part in self.parts:
            if part.why_spark:
                return part.why_spark
        if self.signature.operands is not None:
            return ""
        return self.signature.problem or shortened(text_of(self.node), _LONGEST)

    @cached_property
    def columns(self) -> frozenset[str]:
        """The columns that the expression reads."""
        if isinstance(self.node, exp.Column):
            return frozenset({self.node.parts[0].name})
        return frozenset[str]().union(*(part.columns for part in self.parts))


def type_expression(expression: str | exp.Expr, types: Types) -> TypedExpression:
    """Find the types of an expression and of its parts, given the types of the columns."""
    node = tree_of(expression) if isinstance(expression, str) else expression
    if isinstance(node, exp.Column):
        return _column(node, types)
    if isinstance(node, exp.Substring) and (value := json_of(node)) is not None:
        return _json_value(node, type_expression(value, types))
    if isinstance(node, exp.Unhex) and (position := path_element(node)) is not None:
        part = type_expression(position, types)
        operands = None
        if part.type == "INT":
            operands = ("INT",)
        return TypedExpression(node, PATH_ELEMENT, Signature("BINARY", operands), (part,))
    rule = rule_of(node)
    parts = tuple(type_expression(part, types) for part in rule.arguments(node))
    if isinstance(node, _COMPARISONS):
        parts = _with_times(parts)
    typed = _equivalent(node, parts) or _by_rule(node, rule, parts)
    if typed.type:
        return typed

    def type_in(body: exp.Expr, variables: Types) -> str:
        return type_expression(body, {**types, **variables}).type

    kind = result_type(node, [part.type for part in parts], type_in)
    return replace(typed, signature=replace(typed.signature, type=kind, operands=None))


def _by_rule(node: exp.Expr, rule: Rule, parts: tuple[TypedExpression, ...]) -> TypedExpression:
    signature = rule.resolve(node, _complete_types(parts))
    if (
        isinstance(node, exp.Dot | exp.Bracket)
        and _unwrapped(parts[0]).key in _CONSTRUCTORS
        and parts[0].fails
    ):
        # Spark's optimizer replaces `struct(a, b).a` by `a` and does not compute `b`, so `b` cannot
        # fail. Arrow would compute `b`, which could fail. So only Spark computes this expression.
        signature = Signature(signature.type, None, signature.fails)
    return TypedExpression(node, rule_key(node), signature, parts)


def _complete_types(parts: Iterable[TypedExpression]) -> tuple[str, ...]:
    """Return the types of parts for a rule; empty for an object with a field of unknown type."""
    types: list[str] = []
    for part in parts:
        types.append(part.type if is_complete(part.type) else "")
    return tuple(types)


_COMPARISONS = (
    exp.EQ | exp.NEQ | exp.GT | exp.GTE | exp.LT | exp.LTE | exp.NullSafeEQ | exp.In | exp.Between
)


def _with_times(parts: tuple[TypedExpression, ...]) -> tuple[TypedExpression, ...]:
    """Return the sides of a comparison.

    If times are compared with constant texts, the texts are cast to times.
    """
    texts: list[TypedExpression] = []
    kinds: set[str] = set()
    for part in parts:
        if isinstance(part.node, exp.Literal) and part.type == "STRING":
            texts.append(part)
        elif part.type != VOID:
            kinds.add(part.type)
    kind = ""
    if len(kinds) == 1:
        kind = kinds.pop()
    if not texts or not all(is_plain_time(text.node.name, kind) for text in texts):
        return parts
    sides = []
    for part in parts:
        if part in texts:
            cast = exp.Cast(this=part.node.copy(), to=exp.DataType.build(kind))
            part = TypedExpression(cast, exp.Cast, Signature(kind, ("STRING",)), (part,))
        sides.append(part)
    return tuple(sides)


def _unwrapped(expression: TypedExpression) -> TypedExpression:
    """Return the expression without parentheses around it."""
    while expression.key is exp.Paren:
        (expression,) = expression.parts
    return expression


_CONSTRUCTORS = (exp.Struct, exp.Array, exp.VarMap)


def _equivalent(node: exp.Expr, parts: tuple[TypedExpression, ...]) -> TypedExpression | None:
    """Return the expression by which Spark replaces a node, such as an IF for `nullif(a, b)`.

    Return None if there is none.
    """

    def build(kind: type[exp.Expr], *parts: TypedExpression) -> TypedExpression:
        signature = RULES[kind].resolve(kind(), _complete_types(parts))
        return TypedExpression(node, kind, signature, parts)

    def is_null(part: TypedExpression) -> TypedExpression:
        operands = None
        if part.type:
            operands = (part.type,)
        return TypedExpression(node, exp.Is, Signature("BOOLEAN", operands), (part,))

    match node:
        case exp.Between():
            value, low, high = parts
            return build(exp.And, build(exp.GTE, value, low), build(exp.LTE, value, high))
        case exp.Case() if node.this is not None:
            value, *rest = parts
            count = len(node.args["ifs"])
            conditions = [build(exp.EQ, value, option) for option in rest[:count]]
            return build(exp.Case, *conditions, *rest[count:])
        case exp.Nullif():
            value, other = parts
            return build(exp.If, build(exp.EQ, value, other), _NULL, value)
        case exp.Nvl2() if len(parts) == 3:
            value, if_valid, if_null = parts
            return build(exp.If, is_null(value), if_null, if_valid)
        case exp.Is() if isinstance(node.expression, exp.Boolean):
            return build(exp.NullSafeEQ, *parts)
        case exp.Anonymous() if len(parts) == 1 and node.name.lower() in ("isnull", "isnotnull"):
            condition = is_null(parts[0])
            if node.name.lower() == "isnull":
                return condition
            return build(exp.Not, condition)
    return None


_NULL = TypedExpression(exp.Null(), exp.Null, Signature(VOID, ()), ())


def type_of(expression: str | exp.Expr, types: Types) -> str:
    """Return the Spark SQL type of an expression over columns of these types.

    Return an empty text if the type is unknown, or if the result is always null.
    """
    kind = structure_of(expression, types)
    if is_complete(kind):
        return kind
    return ""


def structure_of(expression: str | exp.Expr, types: Types) -> str:
    """Do the same as `type_of`, but also for an object with fields of unknown type."""
    kind = type_expression(expression, types).type
    return "" if holds_void(kind) else kind


def _column(node: exp.Column, types: Types) -> TypedExpression:
    first, *rest = (part.name for part in node.parts)
    kind = types.get(first, "")
    is_in_objects = True
    for name in rest:
        is_in_objects = is_in_objects and name in struct_fields(kind)
        kind = path_type(kind, [name])
    # Only Spark reads a field of each object in a list.
    operands = None
    if is_complete(kind) and is_in_objects:
        operands = ()
    return TypedExpression(node, exp.Column, Signature(kind, operands), ())


def _json_value(node: exp.Substring, value: TypedExpression) -> TypedExpression:
    """Return the expression for the JSON of a value, as made by `value_json`."""
    problem, operands = "", None
    if value.type:
        problem = json_problem(value.type)
    if value.type and not problem:
        operands = (value.type,)
    signature = Signature("STRING", operands, fails=True, problem=problem)
    return TypedExpression(node, JSON_VALUE, signature, (value,))
