"""Split a topology into jobs, each one streaming query."""

from __future__ import annotations

import re
from collections.abc import Collection
from pathlib import Path
from typing import Any

from sluice.plan.builder import PlanBuilder, column_of, column_read, failures, final, masked, tried
from sluice.plan.columns import scope_of, shape_columns
from sluice.plan.jobs import (
    AggregationGroup,
    FusedJob,
    Layers,
    Lookup,
    OrderedJob,
    Plan,
    PlannedPipeline,
    Select,
    StoreColumn,
    TableInput,
    TableSink,
    Transformation,
)
from sluice.plan.lineage import does, functions_of, made_by
from sluice.plan.ordered import Planner, children, is_ordered, keeps_order
from sluice.plan.sources import sink_of, source_of, step_of, topics_of
from sluice.plan.steps import Sink
from sluice.plan.value_types import shape_after, types_after
from sluice.sql.expressions import mergeable, parse
from sluice.sql.failures import causes, may_fail, validated, without_risk
from sluice.topology import drawing, load_pipeline, nodes
from sluice.topology.pipeline import Pipeline
from sluice.values import contracts
from sluice.values.records import CHANGE_METADATA, METADATA
from sluice.values.sql import literal
from sluice.values.windows import Window


def plan(pipeline: Pipeline, only: Collection[str] = (), without: Collection[str] = ()) -> Plan:
    """Plan a pipeline as one job.

    If none of its operators needs each key's records in order, Spark aggregates them in any order. With `only`, the job
    computes only the stores and steps with these names and what they need, in the same way, and writes no output.
    `without` leaves out stores and steps with these names, and what follows them.
    """
    pipeline = pipeline.without(without) if without else pipeline
    pipeline.require_streams()
    streams = [node for node in pipeline.nodes if isinstance(node, nodes.Source) and node.kind != "global_table"]
    planned = _planned(pipeline)
    if only:
        part = pipeline.part(only)
        # Spark cannot read global tables alone.
        pipeline = part if {*streams} & {*part.nodes} else pipeline.part([*only, streams[0].name])
    aggregates = [node for node in pipeline.nodes if isinstance(node, nodes.Aggregate)]
    if aggregates and not keeps_order(pipeline):
        return Plan(planned, _fused_job(pipeline, planned, aggregates))
    return Plan(planned, _ordered_job(pipeline, planned))


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


def _fused_job(pipeline: Pipeline, planned: PlannedPipeline, fused: list[nodes.Aggregate]) -> FusedJob:
    """The job of the stores that can be computed in any order, and of all stateless outputs."""
    builder = PlanBuilder(pipeline, planned.steps)
    plain = [sink for sink in _sinks(pipeline) if not after_operators(pipeline, sink)]
    for sink in plain:
        scope_of(builder, sink.parent)
    peeks = _last_peeks(pipeline)
    for peek in peeks:
        if not after_operators(pipeline, peek):
            scope_of(builder, peek)  # adds the column that calls the function
    for node in fused:
        scope_of(builder, node.parent)
    groups = _groups(builder, fused)
    tables = _tables(pipeline, len(groups))
    table_sinks = [
        _table_sink(sink, chain, groups, tables)
        for sink in _sinks(pipeline)
        if (chain := _table_chain(sink, fused)) is not None
    ]
    stream_sinks = tuple(_stream_sink(builder, sink) for sink in plain)
    return FusedJob(
        groups=tuple(groups),
        table_sinks=tuple(table_sinks),
        stream_sinks=stream_sinks,
        state_functions=functions_of(fused),
        **_of_every_job(builder, planned, [*fused, *plain, *peeks], tables),
    )


def _ordered_job(pipeline: Pipeline, planned: PlannedPipeline) -> OrderedJob:
    """The job of the ordered operators, if there are any, and of all stateless outputs."""
    builder = PlanBuilder(pipeline, planned.steps)
    planner = Planner(builder)
    planner.plan()
    after = [sink for sink in _sinks(pipeline) if _stage(builder, sink)]
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
    operators, edges = planner.finish()
    tables = _tables(pipeline, 0)
    stream_sinks = tuple(_stream_sink(builder, sink) for sink in plain)
    if operators:
        builder.metadata.add("_offset")
    stateful = [pipeline.whole.nodes[operator.number] for operator in operators]
    late = [operator.late for operator in operators if operator.late is not None]
    return OrderedJob(
        operators=operators,
        edges=edges,
        later_layers={stage: _layers(builder, stage) for stage in builder.stages if stage},
        ordered_sinks=(*map(sink_of, after), *late),
        stream_sinks=stream_sinks,
        state_functions=functions_of(stateful),
        **_of_every_job(builder, planned, [*plain, *peeks, *stateful], tables),
    )


def _of_every_job(
    builder: PlanBuilder,
    planned: PlannedPipeline,
    ends: list[nodes.Node],
    tables: tuple[TableInput, ...],
) -> dict[str, Any]:
    """The fields of both kinds of job, after all columns exist. The job reads the sources of the nodes in `ends`."""
    read, whole = {source for node in ends for source in nodes.sources_of(node)}, builder.pipeline.whole
    streams = [
        source_of(source, builder.used.get(source.number, {}), builder.key_fields.get(source.number, ()))
        for source in _sources(builder.pipeline)
        if source in read or source.kind == "stream" or (source.kind == "table" and builder.pipeline is not whole)
    ]
    return {
        "pipeline": planned,
        "streams": tuple(streams),
        "tables": tables,
        "metadata": tuple(sorted(builder.metadata)),
        "layers": _layers(builder, 0),
        "functions": tuple(builder.functions),
        "failures": failures(builder),
    }


def _sinks(pipeline: Pipeline) -> list[nodes.Sink]:
    return [node for node in pipeline.nodes if isinstance(node, nodes.Sink) and not isinstance(node, nodes.Late)]


def after_operators(pipeline: Pipeline, node: nodes.Node) -> bool:
    """Whether a node follows an aggregation or an ordered operator, and therefore does not process single records."""
    return any(
        isinstance(parent, nodes.Aggregate)
        or (is_ordered(pipeline, parent) and not isinstance(parent, nodes.ToTable))
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
        or is_ordered(pipeline, child)
        or (isinstance(child, nodes.Apply) and child.gives == "nothing")
        or _is_used(pipeline, child)
        for child in children(pipeline, node)
    )


def _stage(builder: PlanBuilder, sink: nodes.Sink) -> int:
    """The stage before a sink; 0 if no ordered operator precedes the sink."""
    return scope_of(builder, sink.parent).stage if after_operators(builder.pipeline, sink) else 0


def _sources(pipeline: Pipeline) -> list[nodes.Source]:
    return [node for node in pipeline.nodes if isinstance(node, nodes.Source)]


def _tables(pipeline: Pipeline, groups: int) -> tuple[TableInput, ...]:
    """The global tables. Their group numbers follow the other groups' numbers.

    In ordered jobs, they are the sources' node numbers, which further steps do not change.
    """
    sources = [source for source in _sources(pipeline) if source.kind == "global_table"]
    numbers = range(groups, groups + len(sources)) if groups else [source.number for source in sources]
    return tuple(
        TableInput(source_of(source), number, contracts.sql_type(source.serde.contract))
        for source, number in zip(sources, numbers, strict=True)
    )


def _layers(builder: PlanBuilder, stage: int) -> Layers:
    layers = (layer for _, layer in sorted(builder.stages.get(stage, {}).items()))
    return tuple(layer if isinstance(layer, Transformation) else tuple(layer) for layer in layers)


def _groups(builder: PlanBuilder, fused: list[nodes.Aggregate]) -> list[AggregationGroup]:
    groups: dict[tuple[Any, ...], list[nodes.Aggregate]] = {}
    for node in fused:
        # A record that fails in one store must still count in others, so a group has only stores that fail together.
        alike = (node.parent.number, node.key, node.window, node.late, node.retention_ms, node.on_error, _risk(node))
        groups.setdefault(alike, []).append(node)
    return [_group(builder, number, members) for number, members in enumerate(groups.values())]


def _risk(node: nodes.Aggregate) -> tuple[str, ...]:
    """The arguments of an aggregate that can fail."""
    types = types_after(node.parent) | METADATA
    return tuple(sql for sql in _arguments([node]) if may_fail(sql, types))


def _arguments(members: list[nodes.Aggregate]) -> list[str]:
    """The arguments of aggregates that are computed in columns of their own, because they can fail or overflow."""
    types = types_after(members[0].parent) | METADATA
    texts = [text for node in members for text in node.columns.values()]
    return list(dict.fromkeys(sql for text in texts for sql in without_risk(text, types)[1].values()))


def _group(builder: PlanBuilder, number: int, members: list[nodes.Aggregate]) -> AggregationGroup:
    first = members[0]
    scope = scope_of(builder, first.parent)
    types = types_after(first.parent) | METADATA
    arguments = {sql: f"__argument_{i}" for i, sql in enumerate(_arguments(members))}
    texts = {"key": first.key} | {name: sql for sql, name in arguments.items()}
    scope, sqls = tried(builder, scope, first, first.parent, texts, key="key")
    condition = masked(builder, scope)
    passed = column_of(builder, scope, f"n{first.parent.number}", condition, first.number)
    key = f"IF({condition}, {sqls['key']}, NULL)"
    key = column_of(builder, scope, f"k{first.parent.number}", key, first.number)
    store_columns, inputs = [], dict[str, str]()
    for node in members:
        columns, of_store = [], dict[str, None]()
        for name, text in node.columns.items():
            safe, replaced = without_risk(text, types)
            read = {name: arguments[replaced[name]] if name in replaced else name for name in parse(safe).fields}
            for name_there in read.values():
                is_argument = name_there in arguments.values()  # a field may be called `key`
                column = sqls[name_there] if is_argument else column_read(builder, scope, name_there)
                inputs[name_there] = column_of(builder, scope, f"i{scope.stage}", column, first.number)
                of_store[inputs[name_there]] = None
            columns.append((name, parse(safe).on({field: inputs[name_there] for field, name_there in read.items()})))
        made = f"{made_by(node)} > {does(node)}"
        store_columns.append(StoreColumn(node.store, node.number, tuple(columns), node.scalar, tuple(of_store), made))
    window = first.window
    assert window is None or isinstance(window, Window)
    is_null = scope.is_null
    null = "" if is_null == "false" else column_of(builder, scope, f"z{first.parent.number}", is_null, first.number)
    texts_made = {text for store_column in store_columns for _, text in store_column.columns}
    group = AggregationGroup(
        number=number, topics=topics_of(first), passed=passed, key=key, grouped_by=first.key, window=window,
        inputs=tuple(sorted(set(inputs.values()))), store_columns=tuple(store_columns),
        mergeable={text: parts for text in sorted(texts_made) if (parts := mergeable(text)) is not None},
        null=null, late=None if first.late is None else sink_of(first.late), retention_ms=first.retention_ms,
    )  # fmt: skip
    if first.late is not None:
        final(builder, group.late_key, column_read(builder, scope, "_key"), first.late.number)
        final(builder, group.late_value, scope.json(builder, condition), first.late.number)
    return group


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


def _table_chain(sink: nodes.Sink, fused: list[nodes.Aggregate]) -> list[nodes.Node] | None:
    """The nodes from a fused aggregate to the sink; None if the sink does not follow a fused aggregate."""
    chain: list[nodes.Node] = [sink.parent]
    while nodes.parents(chain[0]) and chain[0] not in fused:
        chain.insert(0, nodes.parents(chain[0])[0])
    return chain if chain[0] in fused else None


def _table_sink(
    sink: nodes.Sink, chain: list[nodes.Node], groups: list[AggregationGroup], tables: tuple[TableInput, ...]
) -> TableSink:
    store = chain[0]
    assert isinstance(store, nodes.Aggregate)
    group = next(f for f in groups if any(store_column.store == store.store for store_column in f.store_columns))
    store_column = next(i for i, s in enumerate(group.store_columns) if s.store == store.store)
    columns = shape_columns(shape_after(store), "v")
    steps: list[Lookup | Select] = []
    for node in chain[1:]:
        if isinstance(node, nodes.Join):
            steps.append(Lookup(next(t for t in tables if t.source.number == node.right.number), node.how))
            columns = shape_columns(shape_after(node), "v")
        elif isinstance(node, nodes.Select):
            types = types_after(node.parent) | CHANGE_METADATA
            texts = {name: validated(text, types) for name, text in node.columns.items()}
            made = ", ".join(f"{literal(name)}, {parse(text).on(columns | _TABLE)}" for name, text in texts.items())
            risky = [text for text in texts.values() if may_fail(text, types)]
            blamed = [(parse(part).on(columns | _TABLE), why) for text in risky for part, why in causes(text)]
            steps.append(Select(f"named_struct({made})", node.number, tuple(blamed)))
            columns = shape_columns(shape_after(node), "v")
    return TableSink(sink_of(sink), group.number, store_column, tuple(steps), scalar=store.scalar and not steps)


_TABLE = {name: name for name in CHANGE_METADATA}
