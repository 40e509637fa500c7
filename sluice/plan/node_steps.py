"""Converts a topology's nodes to the steps, sources and sinks of a plan."""

from __future__ import annotations

from collections.abc import Collection

from sluice.errors import TopologyError
from sluice.plan.job_columns import column_name, key_column
from sluice.plan.steps import Sink, Source, SourceField, Step
from sluice.topology import nodes
from sluice.topology.graph import Graph
from sluice.values.epochs import EpochTime
from sluice.values.references import Reference, reference
from sluice.values.topic_patterns import is_pattern

MOST_SOURCES = 1_023
"""The largest number that a source may have: ten bits in a record's position."""


def step_of(node: nodes.Node) -> Step:
    """Return a node's number, name and description, for messages and counts."""
    return Step(
        node.number,
        node.name,
        node.title,
        node.detail,
        node.at,
        node.on_error,
    )


def topics_of(node: nodes.Node) -> tuple[str, ...]:
    """Return the topics from which a node's records come."""
    return tuple(source.topic for source in nodes.sources_of(node))


def source_number(pipeline: Graph, node: nodes.Source) -> int:
    """Return a source's number in the column `_source`, or for a pattern, its first topic's number.

    Topics that match a pattern have numbers after those of all steps: `most_topics` numbers for
    each pattern. Raises TopologyError if there are too few numbers.
    """
    if not is_pattern(node.topic):
        return node.number
    number = len(pipeline.whole.nodes)
    for source in pipeline.whole.nodes:
        if source is node:
            break
        if isinstance(source, nodes.Source) and is_pattern(source.topic):
            number += source.most_topics
    if number + node.most_topics > MOST_SOURCES:
        raise TopologyError(
            f"{pipeline.name}: stream {node.topic} at {node.at}: "
            f"max_topics={node.most_topics} is too large: the pipeline's steps and the topics "
            f"that its patterns may match would be more than {MOST_SOURCES} in total.",
            next_step="Write a smaller max_topics=, or divide the topics among several pipelines.",
        )
    return number


def source_of(
    node: nodes.Source,
    read: Collection[str] = (),
    keys: Collection[str] = (),
    *,
    number: int | None = None,
) -> Source:
    """Return the plan's source for a source of the topology.

    The job reads the values of the fields `read`, and the texts of the fields `keys`, which are
    keys. `number` is the number of the plan's source in the column `_source`, by default the number
    of its step.
    """
    serde, event_time, time_unit = node.serde, node.event_time, None
    if isinstance(event_time, EpochTime):
        time_unit, event_time = event_time.unit, event_time.field
    if number is None:
        number = node.number
    pattern = contract = None
    if is_pattern(node.topic):
        pattern = node.topic
    if not serde.is_text:
        contract = Reference(serde.contract)
    return Source(
        number=number,
        step=node.number,
        topic=node.topic,
        pattern=pattern,
        most_topics=node.most_topics,
        kind=node.kind,
        contract=contract,
        contract_name=serde.name,
        is_object=not node.shape.scalar,
        decode=reference(serde.decode),
        key=node.key,
        key_fields=node.key_fields,
        key_decode=reference(node.key_decode),
        event_time=event_time,
        time_unit=time_unit,
        zone=node.zone,
        max_future_skew_ms=node.max_future_skew_ms,
        nulls=node.nulls,
        on_time=node.on_time,
        on_error=node.on_error,
        types=dict(node.fields),
        fields=_fields_read(node, read, keys),
    )


def _fields_read(
    node: nodes.Source, read: Collection[str], keys: Collection[str]
) -> tuple[SourceField, ...]:
    """Return the columns of the record's key, the values of `read`, and the key texts of `keys`."""
    fields: list[SourceField] = []
    if node.key is not None:
        fields.append(SourceField(node.key, f"key{node.number}", "STRING", "record_key"))
    for name in read:
        column = column_name(f"s{node.number}", name)
        fields.append(SourceField(name, column, node.fields[name]))
    for name in keys:
        fields.append(SourceField(name, key_column(node, name), "STRING", "key_text"))
    # A text field's value and key text share a column.
    by_column = {field.column: field for field in fields}
    return tuple(by_column.values())


def sink_of(node: nodes.Sink) -> Sink:
    """Return the plan's sink for a sink of the topology."""
    types = node.parent.result_types
    columns: list[tuple[str, str]] = []
    for name, kind in node.fields.items():
        columns.append((name, types.get(name) or kind))
    return Sink(
        number=node.number,
        topic=node.topic,
        encode=reference(node.encode),
        encode_key=reference(node.encode_key),
        partition=reference(node.partition),
        emit=node.emit,
        is_windowed=node.parent.key_window is not None,
        on_error=node.on_error,
        at=node.at,
        table=node.table,
        columns=tuple(columns),
        scalar=node.scalar,
    )


class LateSinks:
    """Gives each sink of late records to the first group or operator that writes to its topic."""

    def __init__(self) -> None:
        self._claimed: set[nodes.Node] = set()

    def claim(self, late: nodes.Node | None) -> Sink | None:
        """Return the sink of the topic `late` for the first caller, None for later callers.

        Also returns None if `late` is None, because the node then has no topic for late records.
        """
        if late is None or late in self._claimed:
            return None
        self._claimed.add(late)
        assert isinstance(late, nodes.Late)
        return sink_of(late)
