"""The Spark SQL types of values, from declared types and expressions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from sluice.errors import TopologyError
from sluice.topology.expressions import structure_of, type_of
from sluice.topology.serdes import shape_of
from sluice.values.shapes import Shape
from sluice.values.sql_types import compact, element_type, is_complete


def shape_of_expression(text: str, types: Mapping[str, str]) -> Shape:
    """Return the shape of an expression's results.

    The expression's type decides whether later SQL reads fields or a single value.
    """
    return _shape_of_type(structure_of(text, types))


def shape_of_elements(text: str, types: Mapping[str, str]) -> Shape:
    """Return the shape of the elements of an expression that is an array."""
    return _shape_of_type(element_type(structure_of(text, types)))


def _shape_of_type(kind: str) -> Shape:
    shape = Shape.of_kind(kind)
    complete = {name: _if_complete(of_field) for name, of_field in shape.fields.items()}
    return Shape(complete, shape.scalar)


def types_of_columns(columns: Mapping[str, str], types: Mapping[str, str]) -> dict[str, str]:
    """Return the type of each expression over fields of these types."""
    return {name: type_of(text, types) for name, text in columns.items()}


def common_shape(shapes: Sequence[Shape]) -> Shape:
    """Return the shape of merged streams.

    A field whose type differs between the streams has an unknown type.
    """
    first, *others = shapes
    fields: dict[str, str] = {}
    for name, kind in first.fields.items():
        is_common = all(other.fields.get(name) == kind for other in others)
        fields[name] = kind if is_common else ""
    return Shape(fields, first.scalar)


def type_of_value(shape: Shape) -> str:
    """Return the type of a whole value; an empty text if the type of any field is unknown."""
    return _if_complete(shape.kind)


def _if_complete(kind: str) -> str:
    return kind if is_complete(kind) else ""


def declared_type(kind: Any) -> str:
    """Return the Spark SQL type of declared values, or `variant` if no SQL type corresponds."""
    if kind is Any:
        return "variant"
    try:
        sql_type = shape_of(kind).kind
    except TopologyError:
        return "variant"
    return compact(sql_type) or "variant"
