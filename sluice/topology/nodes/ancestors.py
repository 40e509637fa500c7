"""Finds the nodes, sources and tables from which a node's records come."""

from __future__ import annotations

from sluice.topology.nodes.node import Node
from sluice.topology.nodes.sources import Source
from sluice.values.topic_patterns import is_pattern


def is_step_name(name: str) -> bool:
    """Return whether a name looks generated, such as `filter-3` or `filter-3.left`."""
    kind, _, rest = name.partition("-")
    number, _, _ = rest.partition(".")
    return number.isdecimal() and kind in _step_kinds()


def _step_kinds() -> set[str]:
    """Return the words with which the generated names of steps begin."""
    kinds: set[str] = set()
    waiting: list[type[Node]] = [Node]
    while waiting:
        kind = waiting.pop()
        kinds.add(kind.__name__.lower())
        waiting += kind.__subclasses__()
    return kinds


def known_name(node: Node) -> str:
    """Return the author's name of the nearest topic or store from which a node's rows come."""
    return next(step.name for step in upstream(node) if step.has_known_name)


def table_of_rows(node: Node) -> Node:
    """Return the table whose rows a node maps or filters; the node itself for any other node."""
    while node.computes_rows:
        (node,) = node.parents
    return node


def upstream(node: Node) -> tuple[Node, ...]:
    """Return the node and all nodes that feed it, each once, depth first."""
    visited: dict[Node, None] = {}
    waiting = [node]
    while waiting:
        current = waiting.pop()
        if current not in visited:
            visited[current] = None
            # The loop takes the list's last node next, so the parents are reversed to visit the
            # first parent first.
            waiting += reversed(current.parents)
    return tuple(visited)


def follows_state(node: Node) -> bool:
    """Return whether a stateful step has computed the records of a stream."""
    # A stream's source, which has no parents, has only a position in its topic.
    return any(step.is_table or (step.is_stateful and step.parents) for step in upstream(node))


def sources_of(node: Node) -> tuple[Source, ...]:
    """Return the sources that feed a node, without repeats."""
    return tuple([step for step in upstream(node) if isinstance(step, Source)])


def reads_pattern(node: Node) -> bool:
    """Return whether a node's records come from the topics that a pattern matches."""
    return any(is_pattern(source.topic) for source in sources_of(node))
