"""Turns a topology into a job, which is one streaming query."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path

from sluice.plan.aggregation_groups import ChangeSink
from sluice.plan.definitions import functions_of
from sluice.plan.grouping import change_sink, plan_groups
from sluice.plan.job import Job, Plan, PlannedPipeline
from sluice.plan.node_steps import LateSinks, sink_of, source_number, source_of, step_of
from sluice.plan.operator_nodes import combinable_aggregates
from sluice.plan.outputs import Outputs
from sluice.plan.scopes import Scopes
from sluice.plan.stages import StagePlanner
from sluice.plan.steps import Expectation, GlobalTableInput, Sink, Source
from sluice.topology import drawing, load_pipeline, nodes
from sluice.topology.graph import Graph
from sluice.topology.pipeline import Pipeline
from sluice.values import contracts
from sluice.values.contract_fields import contract_fields
from sluice.values.sql_text import value_if
from sluice.values.windows import TimeWindow

_DEPENDS_ON_CLOCK = re.compile(
    r"\b(now|curdate|(current|local|unix)_?\w*)\s*\(|\bcurrent_",
    re.IGNORECASE,
)
"""Matches functions that depend on the time of the batch. (Functions that vary even within a batch
are errors.)"""


def plan(pipeline: Pipeline, only: Collection[str] = (), without: Collection[str] = ()) -> Plan:
    """Plan a pipeline as one job.

    If `only` is given, the job computes only the stores and steps with these names, and the steps
    upstream of them. It computes these exactly as the whole pipeline does, and writes no output.
    `without` leaves out the stores and steps with these names, and the steps that follow them.
    """
    pipeline.require_kept_stores()
    announced = pipeline.announced_windows
    pipeline = pipeline.without(without) if without else pipeline
    pipeline.require_streams()
    planned = _planned(pipeline, announced)
    if only:
        part = pipeline.part(only)
        # Spark cannot read global tables alone. So if a part has no other source, it also reads the
        # first stream.
        if not _stream_sources(part):
            first_stream = _stream_sources(pipeline)[0]
            part = pipeline.part([*only, first_stream.name])
        pipeline = part
    return Plan(planned, _job(pipeline, planned))


def load_plan(
    folder: Path,
    name: str,
    only: Collection[str] = (),
    without: Collection[str] = (),
) -> Plan:
    """Load a pipeline by name from a folder of files, and plan it or a part of it (see `plan`)."""
    return plan(load_pipeline(folder, name), only, without)


def _planned(pipeline: Pipeline, announced: Mapping[str, TimeWindow]) -> PlannedPipeline:
    steps = tuple(map(step_of, pipeline.nodes))
    expressions = " ".join(step.detail for step in steps)
    return PlannedPipeline(
        name=pipeline.name,
        workers=pipeline.workers,
        idle_timeout_ms=pipeline.idle_timeout_ms,
        advance_when_idle_ms=pipeline.advance_when_idle_ms,
        linger_ms=pipeline.linger_ms,
        max_failures=pipeline.max_failures,
        max_rejected=pipeline.max_rejected,
        file=pipeline.file,
        dead_letters=pipeline.dead_letters,
        markers=pipeline.markers,
        steps=steps,
        text=drawing.text(pipeline),
        svg=drawing.svg(pipeline),
        contracts=_contracts(pipeline),
        output_fields=_output_fields(pipeline),
        output_keys=_output_keys(pipeline),
        may_break=pipeline.may_break,
        depends_on_clock=_DEPENDS_ON_CLOCK.search(expressions) is not None,
        announced_windows=announced,
    )


def _contracts(pipeline: Pipeline) -> dict[str, dict[str, str]]:
    fields: dict[str, dict[str, str]] = {}
    for source in pipeline.nodes_of(nodes.Source):
        fields[source.topic] = contract_fields(source.serde.contract)
    return fields


def _output_fields(pipeline: Pipeline) -> dict[str, dict[str, str]]:
    fields: dict[str, dict[str, str]] = {}
    for sink in pipeline.nodes_of(nodes.Sink):
        fields[sink.topic] = sink.parent.result_types
    return fields


def _output_keys(pipeline: Pipeline) -> dict[str, str]:
    keys: dict[str, str] = {}
    for sink in pipeline.nodes_of(nodes.Sink):
        key = _key_of(sink.parent)
        if key and sink.parent.key_window is not None:
            key += " and its window"
        keys[sink.topic] = key
    return keys


def _key_of(node: nodes.Node) -> str:
    """Return the expression of the keys of a node's results; an empty text if it is unknown."""
    while True:
        match node:
            case nodes.SelectKey():
                return node.key
            case nodes.Aggregate():
                return node.group_key
            case nodes.Source():
                return node.key or "_key"
        if not node.keeps_keys or not node.parents:
            return ""
        node = node.parents[0]


def _job(pipeline: Pipeline, planned: PlannedPipeline) -> Job:
    aggregates = combinable_aggregates(pipeline)
    outputs = Outputs.of(pipeline, aggregates)
    scopes, late_sinks = Scopes(pipeline, planned.steps), LateSinks()

    # Cut the topology into stages. An operator's stage comes after the stages of its inputs.
    stages = StagePlanner(scopes, late_sinks)
    stages.add_operators()
    for sink in outputs.of_operators:
        stages.add_sink(sink)

    expected = pipeline.nodes_of(nodes.Expect)
    _add_columns(scopes, stages, outputs, expected, aggregates)

    groups = plan_groups(scopes, aggregates, late_sinks)
    operators, edges = stages.finished()
    stream_sinks = tuple([_stream_sink(scopes, sink) for sink in outputs.of_records])
    expectations = tuple([_expectation(scopes, node) for node in expected])
    tables = _global_tables(pipeline)
    change_sinks: list[ChangeSink] = []
    for sink, chain in outputs.of_groups.items():
        change_sinks.append(change_sink(sink, chain, groups, tables))
    late: list[Sink] = []
    stateful: list[nodes.Node] = [*aggregates]
    for operator in operators:
        stateful.append(pipeline.whole.nodes[operator.number])
        if operator.late is not None:
            late.append(operator.late)

    columns = scopes.columns
    # Operators get their rows sorted by position. A position contains the offset, so the job must
    # read offsets.
    if operators:
        columns.metadata_read.add("_offset")
    peeks = [*outputs.peeks_at_records, *outputs.peeks_at_results]
    ends = [*outputs.of_records, *peeks, *expected, *stateful]
    return Job(
        pipeline=planned,
        streams=_streams(scopes, ends),
        tables=tables,
        metadata=tuple(sorted(columns.metadata_read)),
        layers=columns.layers_of(0),
        functions=tuple(columns.functions),
        failures=tuple(columns.failures()),
        stream_sinks=stream_sinks,
        expectations=expectations,
        groups=groups,
        change_sinks=tuple(change_sinks),
        operators=operators,
        edges=edges,
        later_layers=columns.layers_after_operators(),
        operator_sinks=(*map(sink_of, outputs.of_operators), *late),
        state_functions=functions_of(stateful),
    )


def _add_columns(
    scopes: Scopes,
    stages: StagePlanner,
    outputs: Outputs,
    expected: Sequence[nodes.Expect],
    aggregates: Sequence[nodes.Aggregate],
) -> None:
    """Add the columns of all steps between operators, groups and outputs.

    Call this before the conditions of groups and outputs are made: if a step turns a record into
    several rows, groups and outputs that do not follow this step must read only one of the rows.
    """
    for end in [*outputs.of_records, *expected]:
        scopes.after(end.parent)
    for peek in outputs.peeks_at_records:
        scopes.after(peek)
    for peek in outputs.peeks_at_results:
        stages.add_peek(peek)
    for aggregate in aggregates:
        scopes.after(aggregate.parent)


def _stream_sources(pipeline: Graph) -> list[nodes.Source]:
    """Return the sources that are not global tables."""
    return [source for source in pipeline.nodes_of(nodes.Source) if source.kind != "global_table"]


def _streams(scopes: Scopes, ends: Sequence[nodes.Node]) -> tuple[Source, ...]:
    """Return the topics that the job reads as streams to compute the nodes in `ends`.

    Call this only when all columns exist.
    """
    pipeline, columns = scopes.pipeline, scopes.columns
    is_part = pipeline is not pipeline.whole
    read: set[nodes.Source] = set()
    for node in ends:
        read.update(nodes.sources_of(node))
    streams = []
    for source in pipeline.nodes_of(nodes.Source):
        if source in read or source.kind == "stream" or (source.kind == "table" and is_part):
            fields = columns.fields_read.get(source.number, ())
            key_fields = columns.key_fields_read.get(source.number, ())
            streams.append(
                source_of(source, fields, key_fields, number=source_number(pipeline, source))
            )
    return tuple(streams)


def _global_tables(pipeline: Pipeline) -> tuple[GlobalTableInput, ...]:
    """Return the global tables.

    A table's group number is its source node's number, even if steps follow the source.
    """
    tables: list[GlobalTableInput] = []
    for source in pipeline.nodes_of(nodes.Source):
        if source.kind == "global_table":
            sql_type = contracts.sql_type(source.serde.contract)
            store = source.store or source.topic
            tables.append(
                GlobalTableInput(
                    source_of(source),
                    source.number,
                    sql_type,
                    store,
                    pipeline.whole.keeps_headers(store),
                )
            )
    return tuple(tables)


def _expectation(scopes: Scopes, node: nodes.Expect) -> Expectation:
    """Return the expectation of a node. Adds the columns that it reads."""
    columns, scope = scopes.columns, scopes.after(node.parent)
    expectation = Expectation(
        node.number, node.label, node.condition, node.at_most, node.fails, node.at
    )
    reached = columns.row_condition(scope)
    # If the condition has no result for a record, it is null. This does not count as a failed step.
    _, sqls = columns.guard_if(
        reached, scope, node, node.readable_types, {"condition": node.condition}, reported=False
    )
    broken = f"({reached} AND NOT coalesce({sqls['condition']}, false))"
    columns.add_output_column(expectation.passed, f"({reached})", node.number)
    columns.add_output_column(expectation.broken, broken, node.number)
    return expectation


def _stream_sink(scopes: Scopes, node: nodes.Sink) -> Sink:
    """Return the sink of a node that follows only stateless steps.

    Adds the columns that the sink reads.
    """
    columns, scope = scopes.columns, scopes.after(node.parent)
    condition, key = columns.row_condition(scope), columns.read(scope, "_key")
    sink = sink_of(node)
    if sink.appends:
        columns.metadata_read.add("_offset")
    columns.add_output_column(sink.passed, f"({condition})", node.number)
    columns.add_output_column(sink.key, value_if(condition, key), node.number)
    columns.add_output_column(sink.value, columns.json(scope, condition), node.number)
    return sink
