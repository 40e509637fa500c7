"""The nodes of a topology, as plain values; `streams` is how an author makes them."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

import msgspec
from typing_extensions import override

from sluice.topology.windows import Window


@dataclass(frozen=True, eq=False)
class Node:
    """One step. `number` is its place in the pipeline; `at` is the author's `file:line`."""

    number: int
    at: str

    @property
    def name(self) -> str:
        """The step's name in drawings and messages."""
        return f"{type(self).__name__.lower()}-{self.number}"


@dataclass(frozen=True, eq=False)
class Source(Node):
    """A topic that is read: a stream of records, or a global table (the latest value per key, on every worker)."""

    topic: str
    kind: Literal["stream", "global_table"]
    contract: type[msgspec.Struct]
    key: str | None
    event_time: str | None
    zone: str
    max_ahead_ms: int
    fields: dict[str, str] = field(default_factory=dict)

    @property
    @override
    def name(self) -> str:
        return self.topic


@dataclass(frozen=True, eq=False)
class Filter(Node):
    """Records for which `where` is true go on."""

    parent: Node
    where: str


@dataclass(frozen=True, eq=False)
class MapValues(Node):
    """The value becomes these fields, each an expression over the old ones."""

    parent: Node
    columns: dict[str, str]


@dataclass(frozen=True, eq=False)
class SelectKey(Node):
    """The record's key becomes this expression, as text."""

    parent: Node
    key: str


@dataclass(frozen=True, eq=False)
class Aggregate(Node):
    """A store: the records of each `key` (and window) aggregated into `columns`, or into one value if `scalar`."""

    parent: Node
    key: str
    window: Window | None
    store: str
    columns: dict[str, str]
    scalar: bool

    @property
    @override
    def name(self) -> str:
        return self.store


@dataclass(frozen=True, eq=False)
class TableJoin(Node):
    """A table's changes beside the global table's value for the same key: the value is `left`, `right`."""

    left: Node
    right: Source
    how: Literal["inner", "left"]


@dataclass(frozen=True, eq=False)
class Sink(Node):
    """Every record, or every change of a table, is written to `topic` as JSON."""

    parent: Node
    topic: str

    @property
    @override
    def name(self) -> str:
        return self.topic


def parents(node: Node) -> tuple[Node, ...]:
    """The nodes whose output `node` takes."""
    match node:
        case Filter() | MapValues() | SelectKey() | Aggregate() | Sink():
            return (node.parent,)
        case TableJoin(left=left, right=right):
            return (left, right)
        case _:
            return ()


def source_of(node: Node) -> Source:
    """The stream that a node's records come from."""
    while not isinstance(node, Source):
        node = parents(node)[0]
    return node
