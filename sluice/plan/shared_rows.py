"""Finds edges with the same rows. Each such row then travels to its worker only once.

A record of a table changes the table's store, and the joins of the table. The rows for the store
and for the joins have the same key, so the same worker gets them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from operator import attrgetter

from sluice.plan.planned_operators import Edge, PlannedOperator, SharedRows

_content = attrgetter("topics", "key", "values", "is_null", "foreign", "scalar", "is_json")
"""The fields of an edge that must be equal in two edges whose rows have the same columns."""


def share_rows(operators: Sequence[PlannedOperator]) -> tuple[PlannedOperator, ...]:
    """Return the operators.

    Edges with the same rows share the rows of the edge into the earliest stage.
    """
    edges: list[Edge] = []
    # Later stages get the rows from the earlier stage, whose edge they share.
    for operator in sorted(operators, key=lambda operator: operator.stage):
        for edge in operator.edges:
            if _may_share(operator, edge):
                edges.append(edge)
    shared: dict[str, SharedRows] = {}
    for number, edge in enumerate(edges):
        for earlier in edges[:number]:
            if earlier.column not in shared and _has_rows_for(earlier, edge):
                needs_key = earlier.passed != edge.passed
                shared[edge.column] = SharedRows(earlier.target, earlier.side, needs_key)
                break
    sharing: list[PlannedOperator] = []
    for operator in operators:
        own: list[Edge] = []
        for edge in operator.edges:
            own.append(replace(edge, shares=shared.get(edge.column)))
        sharing.append(replace(operator, edges=tuple(own)))
    return tuple(sharing)


def _may_share(operator: PlannedOperator, edge: Edge) -> bool:
    """Return whether an edge's rows come from records and could serve other operators, too."""
    # Rows with stream times belong to one operator, and so do rows with an aggregate's arguments,
    # because of the arguments' types.
    is_timed = operator.has_own_stream_time
    has_one_path = edge.constant_path is not None
    return (
        edge.stage == 0 and has_one_path and not (is_timed or edge.has_arguments or edge.is_copied)
    )


def _has_rows_for(earlier: Edge, edge: Edge) -> bool:
    """Return whether all rows of `edge` are rows of `earlier`."""
    if _content(earlier) != _content(edge):
        return False
    # Steps after a table leave out the records without a key. The table's own edge counts them.
    return edge.passed in (earlier.passed, f"({earlier.passed} AND {earlier.key} IS NOT NULL)")
