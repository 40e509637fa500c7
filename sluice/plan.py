"""A topology becomes jobs: each is one streaming query that the engine can run without knowing the topology.

Every expression of the author is turned into Spark SQL over the job's own columns:

- `s3_amount`: field `amount` of the value decoded by source 3; `_key`, `_topic`, ... as in `expressions.METADATA`;
- `n5`: whether a record passed node 5; `n7_total`: field `total` that node 7 made;
  signs that a column's name cannot have are spelt out: field `order-id` is `s3_order_x2d_id`;
- `k5_0`: the first key by which records that passed node 5 are grouped; `o9_key`, `o9_value`: output of sink 9.

Columns come in layers, each computed from the ones before, so that a step is computed once however many follow it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from sluice.errors import TopologyError
from sluice.topology import nodes
from sluice.topology.expressions import CHANGE_METADATA, METADATA, mergeable, parse, quoted
from sluice.topology.pipeline import Pipeline
from sluice.topology.windows import Window

TO_JSON = "to_json({}, map('ignoreNullFields', 'false'))"


@dataclass(frozen=True)
class Slot:
    """One store of a family: the aggregates whose values make the store's value."""

    store: str
    columns: tuple[tuple[str, str], ...]
    """Name and aggregate, over the job's columns."""
    scalar: bool


@dataclass(frozen=True)
class Family:
    """The stores that share filter, key and window: their values stand together in one cell per key and window."""

    number: int
    at: nodes.Aggregate
    passed: str
    """Column: whether a record counts here."""
    key: str
    """Column: the record's key here, as text."""
    window: Window | None
    inputs: tuple[str, ...]
    """Columns that the aggregates read."""
    slots: tuple[Slot, ...]

    @property
    def name(self) -> str:
        """For messages and stream times: the first store's name."""
        return self.slots[0].store


@dataclass(frozen=True)
class TableInput:
    """A global table: its latest values are a family of their own, on every worker."""

    source: nodes.Source
    family: int


@dataclass(frozen=True)
class StreamSink:
    """Each record that passed is written to the topic; columns `o{number}_key`, `o{number}_value`."""

    number: int
    topic: str


@dataclass(frozen=True)
class Lookup:
    """A step of a table's changes: the value becomes `{left, right}`, right from a global table by key."""

    table: TableInput
    how: str


@dataclass(frozen=True)
class Select:
    """A step of a table's changes: the value becomes this expression over `_key` and `v`."""

    sql: str


@dataclass(frozen=True)
class TableSink:
    """Each change of a store is written to the topic, after `steps`."""

    topic: str
    family: int
    slot: int
    steps: tuple[Lookup | Select, ...]
    scalar: bool


@dataclass(frozen=True)
class Job:
    """One streaming query: topics in, cells and output records out, one cut per batch."""

    pipeline: Pipeline
    name: str
    streams: tuple[nodes.Source, ...]
    tables: tuple[TableInput, ...]
    fields: Mapping[int, tuple[str, ...]]
    """Source number → the fields of its value that anything reads."""
    metadata: tuple[str, ...]
    """Which of `_key`, `_topic`, ... anything reads."""
    layers: tuple[tuple[tuple[str, str], ...], ...]
    families: tuple[Family, ...]
    stream_sinks: tuple[StreamSink, ...]
    table_sinks: tuple[TableSink, ...]

    @property
    def topics(self) -> tuple[str, ...]:
        """Every topic the job reads."""
        return tuple(source.topic for source in (*self.streams, *(table.source for table in self.tables)))

    @property
    def outputs(self) -> tuple[str, ...]:
        """Every topic the job writes, dead letters left out."""
        return (*(sink.topic for sink in self.stream_sinks), *(sink.topic for sink in self.table_sinks))


@dataclass(frozen=True)
class Plan:
    """The jobs of a pipeline."""

    pipeline: Pipeline
    jobs: tuple[Job, ...]

    def job(self, name: str) -> Job:
        """The job of that name; TopologyError lists those there are."""
        found = next((job for job in self.jobs if job.name == name), None)
        if found is None:
            names = ", ".join(job.name for job in self.jobs)
            raise TopologyError(
                f"Pipeline {self.pipeline.name!r} has no job {name!r}.", next_step=f"There are: {names}."
            )
        return found


@dataclass
class _Draft:
    """A job while it is being put together."""

    pipeline: Pipeline
    layers: dict[int, list[tuple[str, str]]] = field(default_factory=dict)
    used: dict[int, dict[str, None]] = field(default_factory=dict)
    metadata: set[str] = field(default_factory=set)
    envs: dict[int, _Env] = field(default_factory=dict)
    sources: dict[str, tuple[int, str]] = field(default_factory=dict)
    """Column → the source and the field of its value that it holds."""


@dataclass(frozen=True)
class _Env:
    """What is known after a node: how deep its columns are, the condition to get here, and where each field stands."""

    depth: int
    passed: str
    columns: Mapping[str, str]


def plan(pipeline: Pipeline) -> Plan:
    """Cut the topology into as few jobs as its operators allow: all of today's operators share one."""
    draft = _Draft(pipeline)
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


def _families(draft: _Draft) -> list[Family]:
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
        for text in dict.fromkeys(text for slot in family.slots for _, text in slot.columns):
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


def _family(draft: _Draft, number: int, members: list[nodes.Aggregate]) -> Family:
    first = members[0]
    env = _env(draft, first.parent)
    passed = _column(draft, env.depth + 1, f"n{first.parent.number}", env.passed)
    key = f"IF({env.passed}, CAST({_sql(draft, env, first.key)} AS STRING), NULL)"
    key = _column(draft, env.depth + 1, f"k{first.parent.number}", key)
    slots = tuple(
        Slot(node.store, tuple((name, _sql(draft, env, text)) for name, text in node.columns.items()), node.scalar)
        for node in members
    )
    reads = {name for node in members for text in node.columns.values() for name in parse(text).fields}
    inputs = tuple(sorted({env.columns[name] for name in reads}))
    return Family(number, first, passed, key, first.window, inputs, slots)


def _env(draft: _Draft, node: nodes.Node) -> _Env:
    if node.number not in draft.envs:
        draft.envs[node.number] = _make_env(draft, node)
    return draft.envs[node.number]


def _make_env(draft: _Draft, node: nodes.Node) -> _Env:
    match node:
        case nodes.Source():
            columns = {name: column_name(f"s{node.number}", name) for name in node.fields}
            columns |= {name: name for name in METADATA}
            draft.sources |= {columns[name]: (node.number, name) for name in node.fields}
            if node.key is not None:
                columns["_key"] = f"key{node.number}"
                draft.used.setdefault(node.number, {})[node.key] = None
                _add(draft, 1, columns["_key"], f"CAST({columns[node.key]} AS STRING)")
            return _Env(1, f"(_source <=> {node.number})", columns)
        case nodes.Filter(parent=parent, where=where):
            env = _env(draft, parent)
            condition = f"coalesce({env.passed} AND ({_sql(draft, env, where)}), false)"
            _add(draft, env.depth + 1, f"n{node.number}", condition)
            return _Env(env.depth + 1, f"n{node.number}", env.columns)
        case nodes.MapValues(parent=parent, columns=texts):
            return _map(draft, node, _env(draft, parent), texts)
        case nodes.SelectKey(parent=parent, key=key):
            env = _env(draft, parent)
            _add(
                draft,
                env.depth + 1,
                f"key{node.number}",
                f"IF({env.passed}, CAST({_sql(draft, env, key)} AS STRING), NULL)",
            )
            return _Env(env.depth + 1, env.passed, {**env.columns, "_key": f"key{node.number}"})
        case _:
            raise AssertionError(f"{node.name} is not a stateless step")


def _map(draft: _Draft, node: nodes.Node, env: _Env, texts: Mapping[str, str]) -> _Env:
    columns = {name: env.columns[name] for name in METADATA}
    for name, text in texts.items():
        sql = _sql(draft, env, text)
        if sql in env.columns.values():
            columns[name] = sql
        else:
            columns[name] = column_name(f"n{node.number}", name)
            # Guarded: an expression is not evaluated for records that a filter before it took out.
            _add(draft, env.depth + 1, columns[name], f"IF({env.passed}, {sql}, NULL)")
    return _Env(env.depth + 1, env.passed, columns)


def _sql(draft: _Draft, env: _Env, text: str) -> str:
    """`text` over the job's columns; the fields it reads are noted as used."""
    expression = parse(text)
    return expression.on({name: _read(draft, env, name) for name in expression.fields})


def _read(draft: _Draft, env: _Env, name: str) -> str:
    """The column of a field, which is noted as used."""
    column = env.columns[name]
    if column in METADATA:
        draft.metadata.add(column)
    elif column in draft.sources:
        number, of_source = draft.sources[column]
        draft.used.setdefault(number, {})[of_source] = None
    return column


def column_name(prefix: str, field: str) -> str:
    """The job's column for a field, a name that needs no quotes in SQL."""
    return f"{prefix}_{re.sub('[^A-Za-z0-9_]', lambda sign: f'_x{ord(sign[0]):x}_', field)}"


def _text(name: str) -> str:
    """`name` as a literal of Spark SQL."""
    return "'" + name.replace("\\", "\\\\").replace("'", "\\'") + "'"


def _add(draft: _Draft, depth: int, name: str, sql: str) -> None:
    draft.layers.setdefault(depth, []).append((name, sql))


def _column(draft: _Draft, depth: int, name: str, sql: str) -> str:
    """The column that holds `sql`, made once however often it is asked for."""
    if sql.isidentifier():
        return sql
    names = draft.layers.setdefault(depth, [])
    made = next((column for column, text in names if text == sql), None)
    if made is None:
        made = f"{name}_{len(names)}"
        names.append((made, sql))
    return made


def _sinks(
    draft: _Draft, families: list[Family], tables: tuple[TableInput, ...]
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


def _stream_sink(draft: _Draft, sink: nodes.Sink) -> StreamSink:
    env = _env(draft, sink.parent)
    names = [name for name in env.columns if name not in METADATA]
    value = ", ".join(f"{_text(name)}, {_read(draft, env, name)}" for name in names)
    json = TO_JSON.format(f"named_struct({value})")
    _add(draft, env.depth + 1, f"o{sink.number}_key", f"IF({env.passed}, {_read(draft, env, '_key')}, NULL)")
    _add(draft, env.depth + 1, f"o{sink.number}_value", f"IF({env.passed}, {json}, NULL)")
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
                f"{_text(name)}, {parse(text).on(columns | _TABLE)}" for name, text in node.columns.items()
            )
            steps.append(Select(f"named_struct({made})"))
            columns = {name: f"v.{quoted(name)}" for name in node.columns}
    return TableSink(sink.topic, family.number, slot, tuple(steps), scalar=store.scalar and not steps)


_TABLE = {name: name for name in CHANGE_METADATA}


def explain(plan: Plan) -> str:
    """The jobs in words: what each reads, holds and writes, and why it is a job."""
    lines = [f"pipeline {plan.pipeline.name}: {len(plan.jobs)} job, {plan.pipeline.workers} workers"]
    for job in plan.jobs:
        lines.append(f"job {job.name}: one streaming query, {len(job.families)} cell families in one stateful operator")
        lines += [f"  reads   {source.topic} as {source.contract.__name__}" for source in job.streams]
        lines += [f"  reads   {table.source.topic} as a global table, on every worker" for table in job.tables]
        for family in job.families:
            window = f", {family.window}" if family.window else ""
            lines.append(f"  holds   by {family.at.key}{window}: {', '.join(slot.store for slot in family.slots)}")
        lines += [f"  writes  {topic}" for topic in (*job.outputs, plan.pipeline.dead_letters)]
    return "\n".join(lines)
