"""The Spark SQL types of the fields after each node, from declared types and expressions."""

from __future__ import annotations

from collections.abc import Mapping
from weakref import WeakKeyDictionary

from sluice.sql.typed_expression import structure_of, type_of
from sluice.topology import nodes
from sluice.values.record_metadata import CHANGE_METADATA, METADATA
from sluice.values.shapes import Shape
from sluice.values.sql_types import element_type, is_complete


def types_after(node: nodes.Node) -> dict[str, str]:
    """Return the fields after a node, with their types."""
    return shape_after(node).fields


def shape_after(node: nodes.Node) -> Shape:
    """Return the shape of the values after a node."""
    if node not in _SHAPES:
        _SHAPES[node] = _shape_after(node)
    return _SHAPES[node]


def shape_of_expression(text: str, types: Mapping[str, str]) -> Shape:
    """Return the shape of an expression's results: its type decides whether SQL after it reads fields, or a single value."""
    return _shape_of_type(structure_of(text, types))


def shape_of_elements(text: str, types: Mapping[str, str]) -> Shape:
    """Return the shape of the elements of an expression that is an array."""
    return _shape_of_type(element_type(structure_of(text, types)))


def _shape_of_type(kind: str) -> Shape:
    shape = Shape.of_kind(kind)
    complete = {
        name: of_field if is_complete(of_field) else "" for name, of_field in shape.fields.items()
    }
    return Shape(complete, shape.scalar)


_SHAPES: WeakKeyDictionary[nodes.Node, Shape] = WeakKeyDictionary()
"""Every step needs the types of all steps before it: without this cache, planning n steps takes n²
computations."""


def _shape_after(node: nodes.Node) -> Shape:
    match node:
        case (
            nodes.Source()
            | nodes.Apply()
            | nodes.Branch()
            | nodes.FlatMapValues()
            | nodes.Call()
            | nodes.ChangedRows()
        ):
            return node.shape
        case nodes.Transform(fields=fields):
            return Shape(fields)
        case nodes.Select(parent=parent, columns=columns):
            return Shape(_types_of(columns, parent))
        case nodes.MapValues(parent=parent, value=value):
            return shape_of_expression(value, types_after(parent) | METADATA | CHANGE_METADATA)
        case nodes.Merge(streams=streams):
            return _common_shape(list(map(shape_after, streams)))
        case nodes.Aggregate(python=python) if python is not None:
            return python.shape
        case nodes.Cogroup(parts=parts):
            types: dict[str, str] = {}
            for part in reversed(parts):
                types |= _types_of(part.columns, part.parent)
            return Shape({name: types[name] for name in node.columns})
        case nodes.Aggregate(parent=parent, columns=columns, scalar=scalar):
            types = _types_of(columns, parent)
            return Shape.single(*types.values()) if scalar else Shape(types)
        case (
            nodes.Filter()
            | nodes.SelectKey()
            | nodes.ToStream()
            | nodes.ToTable()
            | nodes.Suppress()
        ):
            return shape_after(node.parent)
        case nodes.Lookup(parent=parent, row=of_table):
            return Shape({"left": _whole(shape_after(parent)), "right": of_table.kind})
        case nodes.StreamOperator(parent=parent):
            return shape_after(parent)
        case nodes.Changes(parent=parent):
            row = _whole(shape_after(parent))
            return Shape({"kind": "STRING", "old": row, "new": row})
        case nodes.Join(left=left, right=right, mapped_key=mapped_key):
            # If one field's type is unknown, so is the type of the whole side.
            sides = {"left": _whole(shape_after(left)), "right": _whole(shape_after(right))}
            return Shape(sides if mapped_key is None else {**sides, mapped_key: "STRING"})
        case _:
            return Shape({})


def _types_of(columns: Mapping[str, str], parent: nodes.Node) -> dict[str, str]:
    types = types_after(parent) | METADATA | CHANGE_METADATA
    return {name: type_of(text, types) for name, text in columns.items()}


def _common_shape(shapes: list[Shape]) -> Shape:
    """Return the shape of merged streams.

    A field whose type differs between the streams has an unknown type.
    """
    first, *others = shapes
    fields = {}
    for name, kind in first.fields.items():
        kinds = {other.fields.get(name) for other in others}
        fields[name] = kind if kinds <= {kind} else ""
    return Shape(fields, first.scalar)


def _whole(shape: Shape) -> str:
    """Return the type of a value; an empty text if the type of any field is unknown."""
    return shape.kind if is_complete(shape.kind) else ""
