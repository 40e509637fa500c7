"""The nodes of a pipeline under construction, and the names of topics and stores that it uses."""

from __future__ import annotations

import copy
import re
from collections.abc import Collection
from dataclasses import replace
from typing import Any, Self, TypeVar

from sluice.errors import TopologyError
from sluice.topology import arguments, nodes
from sluice.topology.source_line import source_line
from sluice.values.topic_patterns import is_pattern, matches

_NAME = re.compile(r"(?!\.{1,2}$)[A-Za-z0-9_.-]{1,249}")

_UNIQUE = {
    "answers": 'Name the answers of one step: answers="scores".',
    "store": "Give each store its own name.",
    "cycle": "Merge the streams, and write to the topic once.",
    "table": "Merge the streams, and write to the table once.",
    "topic": "Read a topic once and use its stream or table again. To write several streams to a "
    "topic, merge them and write once. To write to a topic that the pipeline reads, write "
    "to(..., cycle=True).",
}
"""Kind of name → the advice for an author who uses the same name in two steps of a pipeline."""

N = TypeVar("N", bound=nodes.Node)


class Graph:
    """Collects the nodes that the methods of streams and tables add."""

    def __init__(self, name: str, on_error: nodes.OnError) -> None:
        arguments.require_choice(f"{name} at {source_line()}", "on_error", on_error, nodes.OnError)
        self.name = name
        self.on_error: nodes.OnError = on_error
        self.keep_headers: bool | frozenset[str] = False
        """Whether all stores keep the headers of records, or the names of the stores that do."""
        self.nodes: list[nodes.Node] = []
        self.whole: Graph = self
        """The pipeline of which this pipeline is a part; this pipeline itself if it is not a
        part."""
        self._claimed: dict[tuple[str, str], str] = {}

    def add(self, node_type: type[N], *, on_error: nodes.OnError | None = None, **values: Any) -> N:
        """Create a node with these values and append it."""
        policy = self.on_error if on_error is None else on_error
        where = f"{self.name} at {source_line()}"
        arguments.require_choice(where, "on_error", policy, nodes.OnError)
        node = node_type(number=len(self.nodes), at=source_line(), on_error=policy, **values)
        self.nodes.append(node)
        return node

    def nodes_of(self, node_type: type[N]) -> list[N]:
        """Return the nodes of a type, in the order in which they were added."""
        return [node for node in self.nodes if isinstance(node, node_type)]

    def keeps_headers(self, store: str | None) -> bool:
        """Return whether a store keeps the headers of the records that last changed its rows."""
        if isinstance(self.keep_headers, bool):
            return self.keep_headers
        return store in self.keep_headers

    def part(self, names: Collection[str]) -> Self:
        """Return a pipeline of only these steps and stores, and of everything upstream of these."""
        pending = [node for node in self.nodes if node.name in names]
        kept: set[nodes.Node] = set()
        while pending:
            node = pending.pop()
            kept.add(node)
            pending += node.parents
        part = copy.copy(self)
        part.nodes = [node for node in self.nodes if node in kept]
        return part

    def without(self, names: Collection[str]) -> Self:
        """Return the pipeline without these steps and stores.

        Also leaves out all steps after them, and the stateless steps whose results no remaining
        step uses.
        """
        left_out = {node for node in self.nodes if node.name in names}
        for node in self.nodes:
            if not left_out.isdisjoint(node.parents):
                left_out.add(node)
        # Stateful steps stay even if nothing follows them, because their stores can be queried. The
        # loop goes from the last node to the first, so that it leaves out whole chains of unused
        # steps.
        for node in reversed(self.nodes):
            following = [child for child in self.nodes if node in child.parents]
            if following and left_out.issuperset(following) and not node.is_stateful:
                left_out.add(node)
        rest = copy.copy(self)
        rest.nodes, rest.whole = [], rest
        numbered: dict[nodes.Node, nodes.Node] = {}
        for node in self.nodes:
            if node not in left_out:
                # Nodes come after their inputs, so the inputs have their new numbers already.
                renumbered = replace(node, number=len(rest.nodes))
                numbered[node] = renumbered.with_parents(numbered)
                rest.nodes.append(numbered[node])
        return rest

    def claim(self, kind: str, name: str) -> None:
        """Reserve a name for a topic, a store or a database's table (`kind`).

        Raises TopologyError if the pipeline already uses the name, or if the name is not valid.
        """
        pattern_advice = ""
        if kind == "topic":
            pattern_advice = ' Pass a pattern of topics as re.compile("...").'
        if kind != "table" and (not isinstance(name, str) or not _NAME.fullmatch(name)):
            raise TopologyError(
                f"{name!r} at {source_line()} is not a valid {kind} name.",
                next_step=f"Use letters, digits, '_', '-', '.'.{pattern_advice}",
            )
        if kind == "store" and nodes.is_step_name(name):
            raise TopologyError(
                f"{self.name}: store {name!r} at {source_line()} looks like a generated step name.",
                next_step=f"Choose another name, such as {name.replace('-', '_')!r}.",
            )
        if (kind, name) in self._claimed:
            earlier = self._claimed[kind, name]
            raise TopologyError(
                f"{self.name}: {kind} {name!r} at {source_line()} is already used at {earlier}.",
                next_step=_UNIQUE[kind],
            )
        if kind == "topic":
            for claimed, pattern in self._claimed:
                if claimed == "topic" and is_pattern(pattern) and matches(pattern, name):
                    raise self._matched_twice(
                        pattern, name, source_line(), self._claimed[claimed, pattern]
                    )
        self._claimed[kind, name] = source_line()

    def claim_pattern(self, pattern: str) -> None:
        """Reserve all topics that a pattern matches.

        Raises TopologyError if a step uses one of them already.
        """
        for (kind, name), at in self._claimed.items():
            if kind == "topic" and (name == pattern or matches(pattern, name)):
                raise self._matched_twice(pattern, name, at, source_line())
        self._claimed["topic", pattern] = source_line()

    def _matched_twice(self, pattern: str, name: str, used: str, at: str) -> TopologyError:
        return TopologyError(
            f"{self.name}: the pattern {pattern} at {at} matches {name}, "
            f"which is already used at {used}.",
            next_step="Leave the topic out of the pattern, for example with "
            f"(?!{re.escape(name)}$) at its beginning.",
        )
