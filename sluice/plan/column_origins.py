"""Finds the fields of topics from which the fields of an output are computed, for lineage."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TypeAlias

from sluice.sql.parsed_expression import parse
from sluice.topology import nodes
from sluice.topology.graph import Graph
from sluice.values.record_metadata import TEXT_FIELD

Origin: TypeAlias = tuple[str, str]
"""A topic and a field of its values."""


def column_origins(pipeline: Graph) -> dict[str, dict[str, list[Origin]]]:
    """Return output topic or table → field → the sorted origins of the field.

    Omit fields that a Python function computes, because their origins are unknown, and fields
    without an origin, such as counts.
    """
    outputs: dict[str, dict[str, list[Origin]]] = {}
    for node in pipeline.nodes:
        if not isinstance(node, nodes.Sink) or isinstance(node, nodes.Late):
            continue
        fields: dict[str, list[Origin]] = {}
        for field in node.parent.result_types:
            origins = _origins(node.parent, field)
            if origins:
                fields[field] = sorted(origins)
        outputs[node.topic] = fields
    return outputs


def _origins(node: nodes.Node, field: str) -> frozenset[Origin] | None:
    """Return the origins of a field after a node; None if they are unknown."""
    match node:
        case nodes.Source():
            if field not in node.result_types:
                return frozenset()
            return frozenset({(node.topic, field)})
        case nodes.Select(parent=parent, columns=columns):
            return _of_expression(parent, columns, field)
        case nodes.MapValues(parent=parent, value=text):
            return _of_expression(parent, {TEXT_FIELD: text}, field)
        case nodes.Cogroup() | nodes.Join():
            return None
        case nodes.Aggregate(parent=parent, columns=columns, python=None):
            if node.scalar:
                columns = _only(columns)
            return _of_expression(parent, columns, field)
        case nodes.Apply() if node.gives not in ("condition", "nothing", "key", "mapped_key"):
            return None
        case (
            nodes.Apply()
            | nodes.Filter()
            | nodes.SelectKey()
            | nodes.ToStream()
            | nodes.ToTable()
            | nodes.Suppress()
        ):
            return _origins(node.parent, field)
        case nodes.Merge(streams=streams):
            return _union(_origins(stream, field) for stream in streams)
        case _:
            return None


def _only(columns: Mapping[str, str]) -> dict[str, str]:
    """Return the only column of a value that is not an object."""
    (text,) = columns.values()
    return {TEXT_FIELD: text}


def _of_expression(
    parent: nodes.Node, columns: Mapping[str, str], field: str
) -> frozenset[Origin] | None:
    if field not in columns:
        return None
    fields_read = parse(columns[field]).fields & parent.result_types.keys()
    return _union(_origins(parent, name) for name in fields_read)


def _union(all_origins: Iterable[frozenset[Origin] | None]) -> frozenset[Origin] | None:
    union: frozenset[Origin] = frozenset()
    for origins in all_origins:
        if origins is None:
            return None
        union |= origins
    return union
