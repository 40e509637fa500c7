"""Turn a topology into a job, which is one streaming query."""

from __future__ import annotations

import re
from collections.abc import Collection
from pathlib import Path

from sluice.plan.builder import PlanBuilder, column_read, failures, final, masked
from sluice.plan.columns import scope_of
from sluice.plan.definitions import functions_of
from sluice.plan.groups import combined, groups_of, table_chain, table_sink
from sluice.plan.jobs import Job, Layers, Plan, PlannedPipeline, TableInput, Transformation
from sluice.plan.node_steps import sink_of, source_of, step_of
from sluice.plan.operator_nodes import children, is_operator
from sluice.plan.stages import Planner
from sluice.plan.steps import Sink, Source
from sluice.topology import drawing, load_pipeline, nodes
from sluice.topology.pipeline import Pipeline
from sluice.values import contracts


def plan(pipeline: Pipeline, only: Collection[str] = (), without: Collection[str] = ()) -> Plan:
    """Plan a pipeline as one job.

    With `only`, the job computes only the stores and steps with these names and what they need, in the same way, and
    writes no output. `without` leaves out stores and steps with these names, and what follows them.
    """
    pipeline = pipeline.without(without) if without else pipeline
    pipeline.require_streams()
    streams = [node for node in pipeline.nodes if isinstance(node, nodes.Source) and node.kind != "global_table"]
    planned = _planned(pipeline)
    if only:
        part = pipeline.part(only)
        # Spark cannot read global tables alone.
        pipeline = part if {*streams} & {*part.nodes} else pipeline.part([*only, streams[0].name])
    return Plan(planned, _job(pipeline, planned))


def load_plan(folder: Path, name: str, only: Collection[str] = (), without: Collection[str] = ()) -> Plan:
    """Load the pipeline with this name from a folder of pipelines' files, and plan it, or a part of it: see `plan`."""
    return plan(load_pipeline(folder, name), only, without)


# Functions that depend on the time of the batch. Those that also vary within a batch are refused.
_VARIES = re.compile(r"\b(now|curdate|(current|local|unix)_?\w*)\s*\(|\bcurrent_", re.IGNORECASE)


def _planned(pipeline: Pipeline) -> PlannedPipeline:
    steps = tuple(map(step_of, pipeline.nodes))
    return PlannedPipeline(
        name=pipeline.name,
        workers=pipeline.workers,
        idle_timeout_ms=pipeline.idle_timeout_ms,
        linger_ms=pipeline.linger_ms,
        max_failures=pipeline.max_failures,
        file=pipeline.file,
        dead_letters=pipeline.dead_letters,
        markers=pipeline.markers,
        steps=steps,
        text=drawing.text(pipeline),
        mermaid=drawing.mermaid(pipeline),
        svg=drawing.svg(pipeline),
        depends_on_clock=_VARIES.search(" ".join(step.detail for step in steps)) is not None,
    )


def _job(pipeline: Pipeline, planned: PlannedPipeline) -> Job:
    builder = PlanBuilder(pipeline, planned.steps)
    planner = Planner(builder)
    planner.plan()
    aggregates = combined(pipeline)
    chains = {sink: chain for sink in _sinks(pipeline) if (chain := table_chain(sink, aggregates)) is not None}
    after = [sink for sink in _sinks(pipeline) if sink not in chains and _stage(builder, sink)]
    for sink in after:
        planner.sink(sink)
    plain = [sink for sink in _sinks(pipeline) if not after_operators(pipeline, sink)]
    for sink in plain:
        scope_of(builder, sink.parent)
    peeks = _last_peeks(pipeline)
    for peek in peeks:
        if after_operators(pipeline, peek):
            planner.peek(peek)
        else:
            scope_of(builder, peek)  # adds the column that calls the function
    for node in aggregates:
        scope_of(builder, node.parent)
    groups = groups_of(builder, aggregates)
    operators, edges = planner.finish()
    tables = _tables(pipeline)
    stream_sinks = tuple(_stream_sink(builder, sink) for sink in plain)
    if operators:
        builder.metadata.add("_offset")
    stateful = [*aggregates, *(pipeline.whole.nodes[operator.number] for operator in operators)]
    late = [operator.late for operator in operators if operator.late is not None]
    return Job(
        pipeline=planned,
        streams=_streams(builder, [*plain, *peeks, *stateful]),
        tables=tables,
        metadata=tuple(sorted(builder.metadata)),
        layers=_layers(builder, 0),
        functions=tuple(builder.functions),
        failures=failures(builder),
        stream_sinks=stream_sinks,
        groups=groups,
        table_sinks=tuple(table_sink(sink, chain, groups, tables) for sink, chain in chains.items()),
        operators=operators,
        edges=edges,
        later_layers={stage: _layers(builder, stage) for stage in builder.stages if stage},
        operator_sinks=(*map(sink_of, after), *late),
        state_functions=functions_of(stateful),
    )


def _streams(builder: PlanBuilder, ends: list[nodes.Node]) -> tuple[Source, ...]:
    """The topics that the job reads as streams: those of the nodes in `ends`. Call it after all columns exist."""
    read, whole = {source for node in ends for source in nodes.sources_of(node)}, builder.pipeline.whole
    return tuple(
        source_of(source, builder.used.get(source.number, {}), builder.key_fields.get(source.number, ()))
        for source in _sources(builder.pipeline)
        if source in read or source.kind == "stream" or (source.kind == "table" and builder.pipeline is not whole)
    )


def _sinks(pipeline: Pipeline) -> list[nodes.Sink]:
    return [node for node in pipeline.nodes if isinstance(node, nodes.Sink) and not isinstance(node, nodes.Late)]


def after_operators(pipeline: Pipeline, node: nodes.Node) -> bool:
    """Whether a node follows an aggregation or an operator, and therefore does not process single records."""
    return any(
        isinstance(parent, nodes.Aggregate)
        or (is_operator(pipeline, parent) and not isinstance(parent, nodes.ToTable))
        or after_operators(pipeline, parent)
        for parent in nodes.parents(node)
    )


def _last_peeks(pipeline: Pipeline) -> list[nodes.Apply]:
    """The peeks whose output no later step uses."""
    peeks = [node for node in pipeline.nodes if isinstance(node, nodes.Apply) and node.gives == "nothing"]
    return [node for node in peeks if not _is_used(pipeline, node)]


def _is_used(pipeline: Pipeline, node: nodes.Node) -> bool:
    return any(
        isinstance(child, nodes.Sink | nodes.Aggregate)
        or is_operator(pipeline, child)
        or (isinstance(child, nodes.Apply) and child.gives == "nothing")
        or _is_used(pipeline, child)
        for child in children(pipeline, node)
    )


def _stage(builder: PlanBuilder, sink: nodes.Sink) -> int:
    """The stage before a sink; 0 if no operator precedes the sink."""
    return scope_of(builder, sink.parent).stage if after_operators(builder.pipeline, sink) else 0


def _sources(pipeline: Pipeline) -> list[nodes.Source]:
    return [node for node in pipeline.nodes if isinstance(node, nodes.Source)]


def _tables(pipeline: Pipeline) -> tuple[TableInput, ...]:
    """The global tables. Their group numbers are those of their sources' nodes, which further steps do not change."""
    return tuple(
        TableInput(source_of(source), source.number, contracts.sql_type(source.serde.contract))
        for source in _sources(pipeline)
        if source.kind == "global_table"
    )


def _layers(builder: PlanBuilder, stage: int) -> Layers:
    layers = (layer for _, layer in sorted(builder.stages.get(stage, {}).items()))
    return tuple(layer if isinstance(layer, Transformation) else tuple(layer) for layer in layers)


def _stream_sink(builder: PlanBuilder, node: nodes.Sink) -> Sink:
    scope = scope_of(builder, node.parent)
    passed, key = masked(builder, scope), column_read(builder, scope, "_key")
    sink = sink_of(node)
    if sink.appends:
        builder.metadata.add("_offset")
    final(builder, sink.passed, f"({passed})", node.number)
    final(builder, sink.key, f"IF({passed}, {key}, NULL)", node.number)
    final(builder, sink.value, scope.json(builder, passed), node.number)
    return sink
