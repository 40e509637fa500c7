"""Decides which nodes are operators, and why.

An operator must get each key's records in order. An aggregate that is not an operator is
combinable: tasks aggregate the records that they read, in any order, and the shards add up the
tasks' results. An aggregate is combinable if its result does not depend on the order of the
records, it reads records directly, and later steps need only its last change in a batch.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache

from sluice.plan.combinable import why_not_combinable
from sluice.plan.node_steps import topics_of
from sluice.topology import nodes
from sluice.topology.graph import Graph
from sluice.values.windows import CountWindow, CustomWindow, TimeWindow


def children(pipeline: Graph, node: nodes.Node) -> list[nodes.Node]:
    """Return the nodes that take this node's output."""
    return [child for child in pipeline.nodes if node in child.parents]


def is_operator(pipeline: Graph, node: nodes.Node) -> bool:
    """Return whether a node is an operator, which gets each key's records in order."""
    return node.number in _operators(pipeline).reasons


def is_or_follows_operator(pipeline: Graph, node: nodes.Node) -> bool:
    """Return whether this node or an upstream node is an operator."""
    return node.number in _operators(pipeline).after


def combinable_aggregates(pipeline: Graph) -> list[nodes.Aggregate]:
    """Return the aggregates of a pipeline that are not operators."""
    combinable: list[nodes.Aggregate] = []
    for node in pipeline.nodes_of(nodes.Aggregate):
        if not is_operator(pipeline, node):
            combinable.append(node)
    return combinable


def why_operator(pipeline: Graph, node: nodes.Node) -> str:
    """Return the reason why a node is an operator, for `sluice explain`."""
    reasons = _operators(pipeline).reasons
    return reasons.get(node.number, "merges streams from before and after a stateful step")


@dataclass(frozen=True)
class _Operators:
    reasons: Mapping[int, str]
    """Number of each operator's node → why it takes records in order."""
    after: frozenset[int]
    """The numbers of the operators' nodes and of all nodes downstream of them."""


def _operators(pipeline: Graph) -> _Operators:
    """Return the operators of the whole pipeline.

    A part of a pipeline must have the same operators as the whole, because it must give the same
    results.
    """
    return _operators_of(pipeline.whole, len(pipeline.whole.nodes))


@lru_cache(maxsize=16)
def _operators_of(pipeline: Graph, size: int) -> _Operators:
    """Return the operators of a pipeline.

    The result is cached until the number of nodes changes.
    """
    reasons: dict[int, str] = {}
    after: set[int] = set()
    for node in pipeline.nodes:
        follows_operator = any(parent.number in after for parent in node.parents)
        reason = _why(pipeline, node, follows_operator=follows_operator)
        if reason:
            reasons[node.number] = reason
        if reason or follows_operator:
            after.add(node.number)
    return _Operators(reasons, frozenset(after))


def _why(pipeline: Graph, node: nodes.Node, *, follows_operator: bool) -> str:
    """Return why a node is an operator; empty if it is not."""
    if isinstance(node, nodes.Aggregate):
        return _why_aggregate(pipeline, node, follows_operator=follows_operator)
    if node.needs_last_change_only and not follows_operator:
        # The left side of a join with a global table is a group, and the driver joins the group's
        # changes with the table.
        return ""
    return node.operator_reason


def _why_aggregate(pipeline: Graph, node: nodes.Aggregate, *, follows_operator: bool) -> str:
    """Return why an aggregate is an operator; empty if it is combinable."""
    window = node.window
    # `sluice explain` shows these texts. Each is a reason why the order of records matters.
    if node.python is not None:
        return "Python functions need records in order"
    if node.history_ms is not None:
        return "its table has versions"
    if isinstance(node, nodes.Cogroup):
        return "adds the records of several streams in order"
    if isinstance(window, CountWindow):
        return "counts each key's records in order"
    if isinstance(window, CustomWindow):
        return "a Python function gives the windows of each record"
    if window is not None and (len(topics_of(node)) > 1 or nodes.reads_pattern(node)):
        return "windows over several topics close when all topics have reached their end"
    if window is not None and not isinstance(window, TimeWindow):
        return f"{str(window).split('(')[0]} windows depend on the records"
    if node.subtracts:
        return "subtracts a table's old values"
    if follows_operator:
        return "follows a step that needs each key's records in order"
    if pipeline.keeps_headers(node.store):
        return "its store keeps the headers of records"
    if reason := why_not_combinable(node):
        return reason
    if not _need_last_change_only(pipeline, children(pipeline, node)):
        return "a later step needs every change"
    return ""


def _need_last_change_only(pipeline: Graph, steps: Iterable[nodes.Node]) -> bool:
    """Return whether a table's changes go only to topics.

    Only maps and joins with global tables may be in between.
    """
    for step in steps:
        if not step.needs_last_change_only:
            return False
        if not _need_last_change_only(pipeline, children(pipeline, step)):
            return False
    return True
