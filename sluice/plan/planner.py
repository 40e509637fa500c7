"""A topology becomes jobs: each is one streaming query that the engine can run without knowing the topology."""

from __future__ import annotations

from dataclasses import replace

from sluice.plan.columns import Draft, add, column_of, column_read, env_of, literal, sql_of
from sluice.plan.jobs import TO_JSON, Family, Job, Lookup, Plan, Select, Slot, StreamSink, TableInput, TableSink
from sluice.topology import nodes
from sluice.topology.expressions import CHANGE_METADATA, METADATA, mergeable, parse, quoted
from sluice.topology.pipeline import Pipeline
from sluice.topology.windows import Window


def plan(pipeline: Pipeline) -> Plan:
    """Cut the topology into as few jobs as its operators allow: all of today's operators share one."""
    draft = Draft(pipeline)
    sources = [node for node in pipeline.nodes if isinstance(node, nodes.Source)]
    families = _families(draft)
    tables = tuple(
        TableInput(source, len(families) + i) for i, source in enumerate(s for s in sources if s.kind == "global_table")
    )
    stream_sinks, table_sinks = _sinks(draft, families, tables)
    job = Job(
        pipeline=pipeline,
        name="main",
        streams=tuple(source for source in sources if source.kind == "stream"),
        tables=tables,
        fields={number: tuple(names) for number, names in draft.used.items()},
        metadata=tuple(sorted(draft.metadata)),
        layers=tuple(tuple(draft.layers[depth]) for depth in sorted(draft.layers)),
        families=tuple(families),
        stream_sinks=stream_sinks,
        table_sinks=table_sinks,
    )
    return Plan(pipeline, (job,))


def _families(draft: Draft) -> list[Family]:
    groups: dict[tuple[int, str, Window | None], list[nodes.Aggregate]] = {}
    for node in draft.pipeline.nodes:
        if isinstance(node, nodes.Aggregate):
            groups.setdefault((node.parent.number, node.key, node.window), []).append(node)
    return _guarded([_family(draft, number, members) for number, members in enumerate(groups.values())])


def _guarded(families: list[Family]) -> list[Family]:
    """The families, with aggregates that see the rows of their own families only.

    The fused operator evaluates every aggregate for every row. On rows that a filter kept from it, `sum(1 / x)` might
    fail; most of the time their columns are null there, but not those that another family reads too.
    """
    users: dict[str, list[Family]] = {}
    for family in families:
        for text in family.aggregates:
            users.setdefault(text, []).append(family)
    guarded = {text: _guard(text, mine, families) for text, mine in users.items()}
    return [
        replace(family, slots=tuple(
            replace(slot, columns=tuple((name, guarded[text]) for name, text in slot.columns)) for slot in family.slots
        ))
        for family in families
    ]  # fmt: skip


def _guard(text: str, mine: list[Family], families: list[Family]) -> str:
    if mergeable(text):
        return text  # of a bare column: nothing can fail
    reads = parse(text).fields
    shared = {name for family in families if family not in mine for name in reads.intersection(family.inputs)}
    cells = ", ".join(str(family.number) for family in mine)
    return parse(text).on({name: f"IF(cell IN ({cells}), {name}, NULL)" if name in shared else name for name in reads})


def _family(draft: Draft, number: int, members: list[nodes.Aggregate]) -> Family:
    first = members[0]
    env = env_of(draft, first.parent)
    passed = column_of(draft, env.depth + 1, f"n{first.parent.number}", env.passed)
    key = f"IF({env.passed}, CAST({sql_of(draft, env, first.key)} AS STRING), NULL)"
    key = column_of(draft, env.depth + 1, f"k{first.parent.number}", key)
    slots = tuple(
        Slot(node.store, tuple((name, sql_of(draft, env, text)) for name, text in node.columns.items()), node.scalar)
        for node in members
    )
    reads = {name for node in members for text in node.columns.values() for name in parse(text).fields}
    inputs = tuple(sorted({env.columns[name] for name in reads}))
    return Family(number, first, passed, key, first.window, inputs, slots)


def _sinks(
    draft: Draft, families: list[Family], tables: tuple[TableInput, ...]
) -> tuple[tuple[StreamSink, ...], tuple[TableSink, ...]]:
    streams, changes = [], []
    for node in draft.pipeline.nodes:
        if isinstance(node, nodes.Sink):
            chain = _table_chain(node)
            if chain is None:
                streams.append(_stream_sink(draft, node))
            else:
                changes.append(_table_sink(node, chain, families, tables))
    return tuple(streams), tuple(changes)


def _stream_sink(draft: Draft, sink: nodes.Sink) -> StreamSink:
    env = env_of(draft, sink.parent)
    names = [name for name in env.columns if name not in METADATA]
    value = ", ".join(f"{literal(name)}, {column_read(draft, env, name)}" for name in names)
    json = TO_JSON.format(f"named_struct({value})")
    add(draft, env.depth + 1, f"o{sink.number}_key", f"IF({env.passed}, {column_read(draft, env, '_key')}, NULL)")
    add(draft, env.depth + 1, f"o{sink.number}_value", f"IF({env.passed}, {json}, NULL)")
    return StreamSink(sink.number, sink.topic)


def _table_chain(sink: nodes.Sink) -> list[nodes.Node] | None:
    """The nodes from an aggregate to the sink, or None if the sink takes a stream."""
    chain: list[nodes.Node] = [sink.parent]
    while nodes.parents(chain[0]) and not isinstance(chain[0], nodes.Aggregate):
        chain.insert(0, nodes.parents(chain[0])[0])
    return chain if isinstance(chain[0], nodes.Aggregate) else None


def _table_sink(
    sink: nodes.Sink, chain: list[nodes.Node], families: list[Family], tables: tuple[TableInput, ...]
) -> TableSink:
    store = chain[0]
    assert isinstance(store, nodes.Aggregate)
    family = next(f for f in families if any(slot.store == store.store for slot in f.slots))
    slot = next(i for i, s in enumerate(family.slots) if s.store == store.store)
    columns = {"count": "v"} if store.scalar else {name: f"v.{quoted(name)}" for name in store.columns}
    steps: list[Lookup | Select] = []
    for node in chain[1:]:
        if isinstance(node, nodes.TableJoin):
            steps.append(Lookup(next(t for t in tables if t.source is node.right), node.how))
            columns = {"left": "v.left", "right": "v.right"}
        elif isinstance(node, nodes.MapValues):
            made = ", ".join(
                f"{literal(name)}, {parse(text).on(columns | _TABLE)}" for name, text in node.columns.items()
            )
            steps.append(Select(f"named_struct({made})"))
            columns = {name: f"v.{quoted(name)}" for name in node.columns}
    return TableSink(sink.topic, family.number, slot, tuple(steps), scalar=store.scalar and not steps)


_TABLE = {name: name for name in CHANGE_METADATA}
