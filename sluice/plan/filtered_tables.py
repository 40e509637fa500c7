"""Finds the steps after a filtered table that send no deletion for a row that has never passed the filter."""

from __future__ import annotations

from sluice.topology import nodes


def needs_old_to_filter(node: nodes.Node) -> bool:
    """Whether the node takes the old values of a filtered table, to leave out deletions of rows that never passed."""
    match node:
        case nodes.Suppress(parent=table):
            return follows_filter(table)
        case nodes.ToStream(parent=table):
            return follows_filter(table) and _knows_old_values(table)
        case _:
            return False


def follows_filter(node: nodes.Node) -> bool:
    """Whether the node is a filter or a mapping of a filter's rows."""
    # As in Kafka Streams, a filtered versioned table always sends its tombstones, because they are
    # versions too.
    if nodes.history_of(node) is not None:
        return False
    while isinstance(node, nodes.Select | nodes.MapValues | nodes.Apply) and not _is_filter(node):
        node = node.parent
    return _is_filter(node)


def _is_filter(node: nodes.Node) -> bool:
    return isinstance(node, nodes.Filter) or (
        isinstance(node, nodes.Apply) and node.gives == "condition"
    )


def _knows_old_values(table: nodes.Node) -> bool:
    """Whether a table's changes contain the replaced values even if no later step asks for them.

    In Kafka Streams, the tables of topics and of foreign-key joins contain them only if the author
    names a materialized store.
    """
    match table:
        case nodes.Filter() | nodes.Select() | nodes.MapValues() | nodes.Apply() | nodes.Suppress():
            return _knows_old_values(table.parent)
        case (
            nodes.ToTable(store=None)
            | nodes.ToTable(parent=nodes.Source(kind="table"), expiry=None)
        ):
            return False
        case nodes.Join(kind="lookup"):
            return False
        case _:
            return True
