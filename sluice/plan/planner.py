"""Turn a topology into jobs, each one streaming query."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from sluice.errors import TopologyError
from sluice.plan.attempts import causes, may_fail, without_risk
from sluice.plan.builder import PlanBuilder, column_of, column_read, failures, final, masked, tried
from sluice.plan.columns import scope_of
from sluice.plan.jobs import (
    AggregationGroup,
    Job,
    Layers,
    Lookup,
    Plan,
    Select,
    StoreColumn,
    StreamSink,
    TableInput,
    TableSink,
)
from sluice.plan.ordered import Planner, children, is_ordered
from sluice.plan.value_types import types_after
from sluice.topology import nodes
from sluice.topology.expressions import parse
from sluice.topology.pipeline import Pipeline
from sluice.values.records import CHANGE_METADATA, METADATA, TEXT_FIELD
from sluice.values.sql import literal, quoted
from sluice.values.windows import Window


def plan(pipeline: Pipeline) -> Plan:
    """Plan a pipeline with as few jobs as its operators allow.

    Aggregations that Spark can compute in any order form one job. Operators that need each key's records in order form
    another, if there are any.
    """
    if not any(isinstance(node, nodes.Source) and node.kind != "global_table" for node in pipeline.nodes):
        raise TopologyError(f"{pipeline.name} reads no stream.", next_step="Add one with stream(...).")
    fused = [node for node in pipeline.nodes if isinstance(node, nodes.Aggregate) and not is_ordered(pipeline, node)]
    ordered = any(is_ordered(pipeline, node) for node in pipeline.nodes)
    if not (fused and ordered):
        return Plan(pipeline, (_job(pipeline, "main", fused, ordered=ordered, rest=True),))
    main = _job(pipeline, "main", fused, ordered=False, rest=True)
    second = _job(pipeline, "ordered", [], ordered=True, rest=False)
    second = replace(
        second,
        read_elsewhere=frozenset(second.topics).intersection(main.topics),
        tried_elsewhere=frozenset(one.column for one in second.failures) & {one.column for one in main.failures},
    )
    return Plan(pipeline, (main, second))


def _job(pipeline: Pipeline, name: str, fused: list[nodes.Aggregate], *, ordered: bool, rest: bool) -> Job:
    """A job with the fused aggregates, the ordered operators or both; with `rest`, also of all other outputs."""
    builder = PlanBuilder(pipeline)
    planner = Planner(builder)
    if ordered:
        planner.plan()
    sinks = [node for node in pipeline.nodes if isinstance(node, nodes.Sink) and not isinstance(node, nodes.Late)]
    mine = [sink for sink in sinks if ordered and _stage(builder, sink)]
    for sink in mine:
        planner.sink(sink)
    plain = [sink for sink in sinks if rest and not after_operators(pipeline, sink)]
    for sink in plain:
        scope_of(builder, sink.parent)
    peeks = _last_peeks(pipeline)
    for peek in peeks:
        if rest and not after_operators(pipeline, peek):
            scope_of(builder, peek)  # adds its column to every record
        elif ordered and after_operators(pipeline, peek):
            planner.peek(peek)
    for node in fused:
        scope_of(builder, node.parent)
    groups = _groups(builder, fused)
    operators, edges = planner.finish()
    tables = _tables(pipeline, len(groups)) if rest else ()
    table_sinks = [
        _table_sink(sink, chain, groups, tables) for sink in sinks if fused and (chain := _table_chain(sink, fused))
    ]
    stream_sinks = tuple(_stream_sink(builder, sink) for sink in plain)
    if operators:
        builder.metadata.add("_offset")
    read = {
        source for node in (*fused, *plain, *peeks, *(op.node for op in operators)) for source in nodes.sources_of(node)
    }
    streams = [source for source in _sources(pipeline) if source in read or (rest and source.kind == "stream")]
    return Job(
        pipeline=pipeline,
        name=name,
        streams=tuple(streams),
        tables=tables,
        fields={number: tuple(names) for number, names in builder.used.items()},
        key_fields={number: frozenset(names) for number, names in builder.key_fields.items()},
        metadata=tuple(sorted(builder.metadata)),
        layers=_layers(builder, 0),
        groups=tuple(groups),
        stream_sinks=stream_sinks,
        table_sinks=tuple(table_sinks),
        operators=operators,
        edges=edges,
        later_layers={stage: _layers(builder, stage) for stage in builder.stages if stage},
        functions=builder.functions,
        transforms=builder.transforms,
        attempts=builder.attempts,
        failures=failures(builder),
        ordered_sinks=(*mine, *(op.late for op in operators if op.late is not None)),
    )


def after_operators(pipeline: Pipeline, node: nodes.Node) -> bool:
    """Whether a node follows an aggregation or an ordered operator, and so does not process single records."""
    return any(
        isinstance(parent, nodes.Aggregate)
        or (is_ordered(pipeline, parent) and not isinstance(parent, nodes.ToTable))
        or after_operators(pipeline, parent)
        for parent in nodes.parents(node)
    )


def _last_peeks(pipeline: Pipeline) -> list[nodes.Apply]:
    """The functions called for their side effects whose output no later step uses."""
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
    """The stage before a sink: 0 if no ordered operator precedes it, or if it follows a fused aggregate."""
    if not after_operators(builder.pipeline, sink) or _follows_fused(builder.pipeline, sink):
        return 0
    return scope_of(builder, sink.parent).stage


def _follows_fused(pipeline: Pipeline, node: nodes.Node) -> bool:
    return any(
        (isinstance(parent, nodes.Aggregate) and not is_ordered(pipeline, parent)) or _follows_fused(pipeline, parent)
        for parent in nodes.parents(node)
    )


def _sources(pipeline: Pipeline) -> list[nodes.Source]:
    return [node for node in pipeline.nodes if isinstance(node, nodes.Source)]


def _tables(pipeline: Pipeline, groups: int) -> tuple[TableInput, ...]:
    """The global tables. Their group numbers follow those of the aggregation groups, and are not node numbers."""
    found = [source for source in _sources(pipeline) if source.kind == "global_table"]
    first = groups or len(pipeline.nodes)
    return tuple(TableInput(source, first + i) for i, source in enumerate(found))


def _layers(builder: PlanBuilder, stage: int) -> Layers:
    layers = builder.stages.get(stage, {})
    return tuple(tuple(layers[depth]) for depth in sorted(layers))


def _groups(builder: PlanBuilder, fused: list[nodes.Aggregate]) -> list[AggregationGroup]:
    groups: dict[tuple[Any, ...], list[nodes.Aggregate]] = {}
    for node in fused:
        # A record that fails for one store still counts in the others: a group contains stores that fail together.
        alike = (node.parent.number, node.key, node.window, node.late, node.retention_ms, node.on_error, _risk(node))
        groups.setdefault(alike, []).append(node)
    return [_group(builder, number, members) for number, members in enumerate(groups.values())]


def _risk(node: nodes.Aggregate) -> tuple[str, ...]:
    """The arguments of an aggregate that can fail."""
    known = types_after(node.parent) | METADATA
    return tuple(sql for sql in _arguments([node]) if may_fail(sql, known))


def _arguments(members: list[nodes.Aggregate]) -> list[str]:
    """The expressions computed before the aggregates of stores of one stream."""
    known = types_after(members[0].parent) | METADATA
    texts = [text for node in members for text in node.columns.values()]
    return list(dict.fromkeys(sql for text in texts for sql in without_risk(text, known)[1].values()))


def _group(builder: PlanBuilder, number: int, members: list[nodes.Aggregate]) -> AggregationGroup:
    first = members[0]
    scope = scope_of(builder, first.parent)
    known = types_after(first.parent) | METADATA
    arguments = {sql: f"__argument_{i}" for i, sql in enumerate(_arguments(members))}
    texts = {"key": first.key} | {name: sql for sql, name in arguments.items()}
    scope, sqls = tried(builder, scope, first, first.parent, texts, key="key")
    condition = masked(builder, scope)
    passed = column_of(builder, scope, f"n{first.parent.number}", condition)
    key = f"IF({condition}, CAST({sqls['key']} AS STRING), NULL)"
    key = column_of(builder, scope, f"k{first.parent.number}", key)
    store_columns, inputs = [], dict[str, str]()
    for node in members:
        columns = []
        for name, text in node.columns.items():
            safe, replaced = without_risk(text, known)
            read = {name: arguments[replaced[name]] if name in replaced else name for name in parse(safe).fields}
            for name_there in read.values():
                column = sqls[name_there] if name_there in sqls else column_read(builder, scope, name_there)
                inputs[name_there] = column_of(builder, scope, f"i{scope.stage}", column)
            columns.append((name, parse(safe).on({one: inputs[name_there] for one, name_there in read.items()})))
        store_columns.append(StoreColumn(node.store, tuple(columns), node.scalar))
    window = first.window
    assert window is None or isinstance(window, Window)
    null = "" if scope.is_null == "false" else column_of(builder, scope, f"z{first.parent.number}", scope.is_null)
    if first.late is not None:
        final(builder, f"late{number}_key", column_read(builder, scope, "_key"))
        final(builder, f"late{number}_value", scope.json(builder, condition))
    return AggregationGroup(
        number, first, passed, key, window, tuple(sorted(set(inputs.values()))), tuple(store_columns), null
    )


def _stream_sink(builder: PlanBuilder, sink: nodes.Sink) -> StreamSink:
    scope = scope_of(builder, sink.parent)
    passed, key = masked(builder, scope), column_read(builder, scope, "_key")
    if nodes.is_table(sink.parent):
        passed = f"({passed} AND {key} IS NOT NULL)"  # without a key, the change has no row
    final(builder, f"o{sink.number}", f"({passed})")
    final(builder, f"o{sink.number}_key", f"IF({passed}, {key}, NULL)")
    final(builder, f"o{sink.number}_value", scope.json(builder, passed))
    return StreamSink(sink.number, sink.topic, sink)


def _table_chain(sink: nodes.Sink, fused: list[nodes.Aggregate]) -> list[nodes.Node] | None:
    """The nodes from a fused aggregate to the sink; None if the sink follows none."""
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
    columns = {TEXT_FIELD: "v"} if store.scalar else {name: f"v.{quoted(name)}" for name in store.columns}
    steps: list[Lookup | Select] = []
    for node in chain[1:]:
        if isinstance(node, nodes.Join):
            steps.append(Lookup(next(t for t in tables if t.source is node.right), node.how))
            columns = {"left": "v.left", "right": "v.right"}
        elif isinstance(node, nodes.Select):
            made = ", ".join(
                f"{literal(name)}, {parse(text).on(columns | _TABLE)}" for name, text in node.columns.items()
            )
            known = types_after(node.parent) | CHANGE_METADATA
            risky = [text for text in node.columns.values() if may_fail(text, known)]
            blamed = [(parse(part).on(columns | _TABLE), why) for text in risky for part, why in causes(text)]
            steps.append(Select(f"named_struct({made})", node, tuple(blamed)))
            columns = {name: f"v.{quoted(name)}" for name in node.columns}
    return TableSink(sink.topic, group.number, store_column, tuple(steps), scalar=store.scalar and not steps)


_TABLE = {name: name for name in CHANGE_METADATA}
