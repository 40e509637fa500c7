"""Groups a pipeline's last steps, its sinks and peeks, by the kind of step before them."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Self

from sluice.plan.operator_nodes import children, is_operator
from sluice.topology import nodes
from sluice.topology.graph import Graph


@dataclass(frozen=True)
class Outputs:
    """The sinks of a pipeline, and the peeks whose output no later step uses."""

    of_records: Sequence[nodes.Sink]
    """Sinks that follow only stateless steps."""
    of_groups: Mapping[nodes.Sink, Sequence[nodes.Node]]
    """Sinks of combinable aggregates, each with the nodes from the aggregate to the sink."""
    of_operators: Sequence[nodes.Sink]
    peeks_at_records: Sequence[nodes.Apply]
    peeks_at_results: Sequence[nodes.Apply]
    """Peeks after operators."""

    @classmethod
    def of(cls, pipeline: Graph, combinable: Collection[nodes.Aggregate]) -> Self:
        """Return the outputs of a pipeline with these combinable aggregates."""
        of_records, of_groups, of_operators = [], {}, []
        for node in pipeline.nodes:
            if not isinstance(node, nodes.Sink) or isinstance(node, nodes.Late):
                continue
            if (chain := _chain_from_group(node, combinable)) is not None:
                of_groups[node] = chain
            elif _follows_state(pipeline, node):
                of_operators.append(node)
            else:
                of_records.append(node)
        peeks_at_records: list[nodes.Apply] = []
        peeks_at_results: list[nodes.Apply] = []
        for node in pipeline.nodes:
            if isinstance(node, nodes.Apply) and node.is_peek and not _is_used(pipeline, node):
                peeks = peeks_at_records
                if _follows_state(pipeline, node):
                    peeks = peeks_at_results
                peeks.append(node)
        return cls(of_records, of_groups, of_operators, peeks_at_records, peeks_at_results)


def _chain_from_group(
    sink: nodes.Sink,
    combinable: Collection[nodes.Aggregate],
) -> Sequence[nodes.Node] | None:
    """Return the nodes from a combinable aggregate to the sink.

    Return None if no such aggregate is upstream.
    """
    chain: list[nodes.Node] = [sink.parent]
    while chain[0].parents and chain[0] not in combinable:
        chain.insert(0, chain[0].parents[0])
    return chain if chain[0] in combinable else None


def _follows_state(pipeline: Graph, node: nodes.Node) -> bool:
    """Return whether a node gets results of an aggregation or operator, not a topic's records."""
    for parent in node.parents:
        # A topic's table is an operator, too, but the steps after it process the topic's records,
        # not the operator's results.
        is_topic_table = isinstance(parent, nodes.ToTable) and parent.has_rows_of_records
        if is_operator(pipeline, parent) and not is_topic_table:
            return True
        # An aggregate that tasks compute in part is not an operator, but its results, not records,
        # reach the steps after it.
        if isinstance(parent, nodes.Aggregate) or _follows_state(pipeline, parent):
            return True
    return False


def _is_used(pipeline: Graph, node: nodes.Node) -> bool:
    """Return whether a sink, an aggregate, an operator or a peek uses the output of a node."""
    for child in children(pipeline, node):
        if isinstance(child, nodes.Sink | nodes.Aggregate) or is_operator(pipeline, child):
            return True
        if child.is_peek or _is_used(pipeline, child):
            return True
    return False
