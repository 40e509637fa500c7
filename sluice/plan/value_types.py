"""Spark SQL types of expressions, derived from the declared types and the text, without Spark."""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import reduce
from weakref import WeakKeyDictionary

from sqlglot import exp

from sluice.topology import nodes
from sluice.topology.calls import aggregates
from sluice.values.dialect import text_of, tree_of
from sluice.values.records import METADATA
from sluice.values.shapes import Shape
from sluice.values.sql_types import struct_fields

Types = Mapping[str, str]
"""Name → type; empty if unknown."""

NUMBERS = ("BIGINT", "INT", "DOUBLE", "DECIMAL")
_DIGITS_OF = {"BIGINT": (20, 0), "INT": (10, 0)}
_TEXTS = exp.Concat | exp.DPipe | exp.Upper | exp.Lower | exp.Trim
_COUNTS = exp.Count | exp.Length | exp.ArraySize
_CONDITIONS = exp.Predicate | exp.And | exp.Or | exp.Not | exp.Boolean
MOST_DIGITS = 38


def type_of(text: str, types: Types) -> str:
    """The type of an expression over fields of these types; empty if unknown."""
    return kind_of(tree_of(text), types)


def kind_of(tree: exp.Expr, types: Types) -> str:
    """Like `type_of`, for a parsed expression."""
    match tree:
        case exp.Filter() | exp.Paren() | exp.Neg() | exp.Abs() | exp.Min() | exp.Max() | exp.First() | exp.Last():
            return kind_of(tree.this, types)
        case exp.Column():
            return _field(tree, types)
        case exp.Literal():
            return _literal(tree)
        case exp.Cast():
            return text_of(tree.to).upper().replace(" ", "")
        case exp.Coalesce():
            return _one_of([tree.this, *tree.expressions], types)
        case exp.If():
            return _one_of([tree.args["true"], tree.args.get("false") or exp.null()], types)
        case exp.Case():
            branches = [branch.args["true"] for branch in tree.args["ifs"]]
            return _one_of([*branches, tree.args.get("default") or exp.null()], types)
        case exp.Add() | exp.Sub() | exp.Mul() | exp.Div() | exp.Mod() | exp.IntDiv():
            return _calculated(tree, types)
        case exp.Sum():
            return _sum(kind_of(tree.this, types))
        case exp.Avg():
            kind = kind_of(tree.this, types)
            return kind and ("DECIMAL(38,18)" if kind.startswith("DECIMAL") else "DOUBLE")
    if isinstance(tree, _TEXTS):
        return "STRING"
    if isinstance(tree, _COUNTS):
        return "BIGINT"
    return "BOOLEAN" if isinstance(tree, _CONDITIONS) else ""


def types_after(node: nodes.Node) -> dict[str, str]:
    """The fields after a node, with their types."""
    return shape_after(node).fields


def shape_after(node: nodes.Node) -> Shape:
    """The shape of the values after a node."""
    if node not in _SHAPES:
        _SHAPES[node] = _shape_after(node)
    return _SHAPES[node]


_SHAPES: WeakKeyDictionary[nodes.Node, Shape] = WeakKeyDictionary()
"""Cache, because every step needs the types of all steps before it."""


def _shape_after(node: nodes.Node) -> Shape:
    match node:
        case nodes.Source(shape=shape) | nodes.Apply(shape=shape) | nodes.Branch(shape=shape):
            return shape
        case nodes.FlatMapValues(shape=shape):
            return shape
        case nodes.Transform(fields=fields):
            return Shape(fields)
        case nodes.Select(parent=parent, columns=columns):
            return Shape(_types_of(columns, parent))
        case nodes.MapValues(parent=parent, value=value):
            return Shape.single(type_of(value, types_after(parent) | METADATA))
        case nodes.Merge(streams=streams):
            first, *rest = map(shape_after, streams)
            alike = {
                name: kind if all(other.fields.get(name) == kind for other in rest) else ""
                for name, kind in first.fields.items()
            }
            return Shape(alike, first.scalar)
        case nodes.Aggregate(python=python) if python is not None:
            return python.shape
        case nodes.Aggregate(parent=parent, columns=columns, scalar=scalar):
            made = _types_of(columns, parent)
            return Shape.single(*made.values()) if scalar else Shape(made)
        case nodes.Filter() | nodes.SelectKey() | nodes.ToStream() | nodes.ToTable() | nodes.Suppress():
            return shape_after(node.parent)
        case nodes.Deduplicate(parent=parent):
            return shape_after(parent)
        case nodes.Join(left=left, right=right):
            return Shape({"left": _whole(shape_after(left)), "right": _whole(shape_after(right))})
        case _:
            return Shape({})


def _types_of(columns: Mapping[str, str], parent: nodes.Node) -> dict[str, str]:
    types = types_after(parent) | METADATA
    return {name: type_of(text, types) for name, text in columns.items()}


def _whole(shape: Shape) -> str:
    """The type of a value; empty if the type of a field is unknown."""
    return shape.kind if all(shape.fields.values()) else ""


def _field(column: exp.Column, types: Types) -> str:
    first, *rest = (part.name for part in column.parts)
    kind = types.get(first, "")
    for name in rest:
        kind = struct_fields(kind).get(name, "")
    return kind


def _literal(literal: exp.Literal) -> str:
    if literal.is_string:
        return "STRING"
    text = literal.name
    if re.fullmatch(r"\d+", text):
        return "BIGINT" if int(text) < 2**63 else ""
    if match := re.fullmatch(r"(\d*)\.(\d*)", text):
        return f"DECIMAL({max(1, len(match[1].lstrip('0')) + len(match[2]))},{len(match[2])})"
    return "DOUBLE"


def _one_of(branches: list[exp.Expr], types: Types) -> str:
    """The common type of an expression's branches; an integer literal fits any numeric type."""
    # Each branch's type once: a branch may itself have branches, with branches of their own.
    typed = [(branch, kind_of(branch, types)) for branch in branches if not isinstance(branch, exp.Null)]
    kinds = {kind for _, kind in typed}
    if len(kinds) > 1:
        literals = [(literal, kind) for literal, kind in typed if isinstance(literal, exp.Literal)]
        kinds = {kind for branch, kind in typed if not isinstance(branch, exp.Literal)} or kinds
        if not all(kind.startswith(NUMBERS) for kind in kinds) or any(
            literal.is_string or kind != "BIGINT" for literal, kind in literals
        ):
            return ""
    return kinds.pop() if len(kinds) == 1 else ""


def _calculated(tree: exp.Binary, types: Types) -> str:
    left, right = kind_of(tree.left, types), kind_of(tree.right, types)
    if not left.startswith(NUMBERS) or not right.startswith(NUMBERS):
        return ""
    if "DOUBLE" in (left, right):
        return "DOUBLE"
    if not (left.startswith("DECIMAL") or right.startswith("DECIMAL")):
        return "DOUBLE" if isinstance(tree, exp.Div) else "BIGINT"
    precision, scale = _result_digits(tree, left, right) or (MOST_DIGITS, 6)
    return f"DECIMAL({min(precision, MOST_DIGITS)},{min(scale, MOST_DIGITS)})"


def decimal_digits(tree: exp.Binary, types: Types) -> tuple[int, int] | None:
    """Precision and scale that fit every result of this decimal operation; None for divisions and other types."""
    return _result_digits(tree, kind_of(tree.left, types), kind_of(tree.right, types))


def _result_digits(tree: exp.Binary, *kinds: str) -> tuple[int, int] | None:
    if not any(kind.startswith("DECIMAL") for kind in kinds) or not all(
        kind.startswith(("DECIMAL", *_DIGITS_OF)) for kind in kinds
    ):
        return None
    (p1, s1), (p2, s2) = _digits(tree.left, kinds[0]), _digits(tree.right, kinds[1])
    match tree:
        case exp.Add() | exp.Sub():
            scale = max(s1, s2)
            return max(p1 - s1, p2 - s2) + scale + 1, scale
        case exp.Mul():
            return p1 + p2 + 1, s1 + s2
        case _:
            return None


def _digits(node: exp.Expr, kind: str) -> tuple[int, int]:
    """Precision and scale of a number as a decimal; an integer literal has only as many digits as its text."""
    if kind in _DIGITS_OF:
        return (len(node.name), 0) if isinstance(node, exp.Literal) else _DIGITS_OF[kind]
    return precision_and_scale(kind)


def precision_and_scale(kind: str) -> tuple[int, int]:
    """Precision and scale of a DECIMAL type."""
    digits = [int(number) for number in re.findall(r"\d+", kind)]
    return (digits[0], digits[1]) if len(digits) == 2 else (10, 0) if not digits else (digits[0], 0)


def _sum(kind: str) -> str:
    if not kind.startswith("DECIMAL"):
        return kind
    precision, scale = precision_and_scale(kind)
    return f"DECIMAL({min(precision + 10, MOST_DIGITS)},{scale})"


def functions_of(tree: exp.Expr) -> list[exp.Expr]:
    """The outermost aggregate functions of an expression, each with its FILTER."""
    if isinstance(tree, exp.Filter) or aggregates(tree):
        return [tree]
    return reduce(lambda functions, child: functions + functions_of(child), tree.iter_expressions(), list[exp.Expr]())
