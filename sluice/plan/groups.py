"""Plan the combinable aggregates of a pipeline: groups of stores that share state rows, and the outputs after them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sluice.plan.builder import PlanBuilder, column_of, column_read, final, masked, tried
from sluice.plan.columns import scope_of, shape_columns
from sluice.plan.combinable import CombinableFunction, combinable_function
from sluice.plan.definitions import step_definition, upstream_definition
from sluice.plan.jobs import AggregationGroup, Combinable, Lookup, Select, StoreColumn, TableInput, TableSink
from sluice.plan.node_steps import sink_of, topics_of
from sluice.plan.operator_nodes import is_operator
from sluice.plan.value_types import shape_after, types_after
from sluice.sql.expressions import parse
from sluice.sql.fallible import causes, may_fail, validated
from sluice.topology import nodes
from sluice.topology.graph import Graph
from sluice.values.record_metadata import CHANGE_METADATA, METADATA
from sluice.values.sql_text import literal
from sluice.values.windows import Window


def combined(pipeline: Graph) -> list[nodes.Aggregate]:
    """The combinable aggregates of a pipeline."""
    aggregates = (node for node in pipeline.nodes if isinstance(node, nodes.Aggregate))
    return [node for node in aggregates if not is_operator(pipeline, node)]


def groups_of(builder: PlanBuilder, aggregates: Sequence[nodes.Aggregate]) -> tuple[AggregationGroup, ...]:
    """The groups of these combinable aggregates."""
    groups: dict[tuple[Any, ...], list[nodes.Aggregate]] = {}
    for node in aggregates:
        # A record that fails in one store must still count in others, so a group has only stores that fail together.
        alike = (node.parent.number, node.key, node.window, node.late, node.retention_ms, node.on_error, _risk(node))
        groups.setdefault(alike, []).append(node)
    return tuple(_group(builder, members) for members in groups.values())


def _functions(node: nodes.Aggregate) -> dict[str, CombinableFunction]:
    """Column → its function."""
    types = types_after(node.parent) | METADATA
    functions = {name: combinable_function(text, types) for name, text in node.columns.items()}
    return {name: function for name, function in functions.items() if function is not None}


def _risk(node: nodes.Aggregate) -> tuple[str, ...]:
    """The arguments of an aggregate that can fail."""
    types = types_after(node.parent) | METADATA
    arguments = dict.fromkeys(function.argument for function in _functions(node).values())
    return tuple(sql for sql in arguments if sql is not None and may_fail(sql, types))


def _group(builder: PlanBuilder, members: list[nodes.Aggregate]) -> AggregationGroup:
    first = members[0]
    parent = first.parent.number
    functions = [_functions(node) for node in members]
    arguments = dict.fromkeys(function.argument for of_store in functions for function in of_store.values())
    names = {sql: f"argument{number}" for number, sql in enumerate(arguments) if sql is not None}
    scope = scope_of(builder, first.parent)
    texts = {"key": first.key} | {name: sql for sql, name in names.items()}
    scope, sqls = tried(builder, scope, first, first.parent, texts, key="key")
    condition = masked(builder, scope)
    passed = column_of(builder, scope, f"n{parent}", condition, first.number)
    key = column_of(builder, scope, f"k{parent}", f"IF({condition}, {sqls['key']}, NULL)", first.number)
    inputs = {sql: column_of(builder, scope, f"i{parent}", sqls[name], first.number) for sql, name in names.items()}
    is_null = scope.is_null
    null = "" if is_null == "false" else column_of(builder, scope, f"z{parent}", is_null, first.number)
    window = first.window
    assert window is None or isinstance(window, Window)
    late = None if first.late is None or first.late in builder.late else sink_of(first.late)
    group = AggregationGroup(
        number=first.number, topics=topics_of(first), passed=passed, key=key, grouped_by=first.key, window=window,
        store_columns=tuple(
            _store_column(node, of_store, inputs) for node, of_store in zip(members, functions, strict=True)
        ),
        null=null, late=late, retention_ms=first.retention_ms,
    )  # fmt: skip
    if late is not None and first.late is not None:
        builder.late.add(first.late)
        final(builder, group.late_key, column_read(builder, scope, "_key"), first.late.number)
        final(builder, group.late_value, scope.json(builder, condition), first.late.number)
    return group


def _store_column(
    node: nodes.Aggregate, functions: dict[str, CombinableFunction], inputs: dict[str, str]
) -> StoreColumn:
    columns = tuple(
        (name, Combinable(function.name, None if function.argument is None else inputs[function.argument]))
        for name, function in functions.items()
    )
    return StoreColumn(
        node.store, node.number, columns, node.scalar, f"{upstream_definition(node)} > {step_definition(node)}"
    )


def table_chain(sink: nodes.Sink, aggregates: Sequence[nodes.Aggregate]) -> list[nodes.Node] | None:
    """The nodes from a combinable aggregate to the sink; None if the sink does not follow one."""
    chain: list[nodes.Node] = [sink.parent]
    while nodes.parents(chain[0]) and chain[0] not in aggregates:
        chain.insert(0, nodes.parents(chain[0])[0])
    return chain if chain[0] in aggregates else None


def table_sink(
    sink: nodes.Sink, chain: list[nodes.Node], groups: Sequence[AggregationGroup], tables: Sequence[TableInput]
) -> TableSink:
    """The output after a chain of nodes (`table_chain`)."""
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
