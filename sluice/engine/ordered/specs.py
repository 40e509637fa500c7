"""What a task needs to know of ordered operators: what feeds them, and whose stream time they go by."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Self

from sluice.plan import Edge, Job, Ordered
from sluice.topology import nodes
from sluice.values.windows import SlidingWindow


@dataclass(frozen=True)
class EdgeSpec:
    """What making rows needs to know of one side of an operator."""

    name: str
    side: int
    topics: tuple[str, ...]
    valued: bool
    """A record without a value does not move stream time, as one without a key never does."""
    foreign: bool

    @classmethod
    def of(cls, edge: Edge, node: nodes.Node) -> Self:
        """The same feed, without what only the driver needs."""
        valued = isinstance(node, nodes.Join) or (
            isinstance(node, nodes.Aggregate) and (node.window is None or isinstance(node.window, SlidingWindow))
        )
        topics = tuple(source.topic for source in edge.sources)
        return cls(edge.name, edge.side, topics, valued, edge.foreign is not None)


@dataclass(frozen=True)
class OperatorSpec:
    """What making rows needs to know of an operator. `sides` feed it records; `joint`: they share stream time."""

    number: int
    name: str
    topics: tuple[str, ...]
    sides: tuple[EdgeSpec, ...]
    joint: bool
    clocked: bool
    """Something of it waits for stream time."""
    clock: str
    """Whose stream time it goes by: its own name, or that of the operator whose results it takes as they come."""

    @classmethod
    def of(cls, operator: Ordered) -> Self:
        """The same operator, without what only the driver needs."""
        sides = tuple(EdgeSpec.of(edge, operator.node) for edge in operator.edges if edge.stage == 0)
        joint = isinstance(operator.node, nodes.Join) and operator.node.kind == "stream-stream"
        topics = tuple(source.topic for source in operator.sources)
        clocked = is_clocked(operator.node)
        return cls(operator.number, operator.name, topics, sides, joint, clocked, operator.name)

    def time_name(self, side: int) -> str:
        """The name of a side's stream time."""
        return f"{self.clock}.{side}" if self.joint else self.clock


def specs_of(job: Job) -> tuple[OperatorSpec, ...]:
    """What the feeder and the stages need to know of a job's operators."""
    names = {one.number: one.name for one in job.operators}
    clocks = {one.number: names[one.inline] for one in job.operators if one.inline is not None}
    waited_for = {one.inline for one in job.operators}
    specs = []
    for one in job.operators:
        spec = OperatorSpec.of(one)
        clocked = spec.clocked or one.number in waited_for
        specs.append(replace(spec, clocked=clocked, clock=clocks.get(one.number, spec.name)))
    return tuple(specs)


def is_clocked(node: nodes.Node) -> bool:
    """Whether something of an operator waits for stream time though no record comes."""
    match node:
        case nodes.Aggregate(window=window):
            return window is not None
        case nodes.Join(kind=kind):
            return kind == "stream-stream"
        case nodes.Suppress() | nodes.Process() | nodes.Deduplicate():
            return True
        case _:
            return False
