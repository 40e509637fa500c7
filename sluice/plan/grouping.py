"""Plans combinable aggregates: groups of stores that share state rows, and outputs after them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from sluice.plan.aggregation_groups import (
    AggregationGroup,
    ChangeSink,
    Combinable,
    Lookup,
    Select,
    StoreColumn,
)
from sluice.plan.combinable import CombinableFunction, combinable_function
from sluice.plan.definitions import step_definition, upstream_definition
from sluice.plan.job_columns import JobColumns
from sluice.plan.node_steps import LateSinks, sink_of, topics_of
from sluice.plan.scope import Scope
from sluice.plan.scopes import Scopes, shape_columns
from sluice.plan.steps import GlobalTableInput
from sluice.sql.fallible import failure_causes, may_fail, with_utf8_checks
from sluice.sql.parsed_expression import parse
from sluice.topology import nodes
from sluice.values.record_metadata import CHANGE_METADATA, METADATA
from sluice.values.sql_text import named_struct, value_if
from sluice.values.windows import TimeWindow


def plan_groups(
    scopes: Scopes,
    aggregates: Sequence[nodes.Aggregate],
    late_sinks: LateSinks,
) -> tuple[AggregationGroup, ...]:
    """Return the groups of these combinable aggregates."""
    groups: dict[tuple[Any, ...], list[nodes.Aggregate]] = {}
    for node in aggregates:
        state_rows_shared = (
            node.parent.number,
            node.key,
            node.window,
            node.late,
            node.retention_ms,
        )
        # A record that fails in one store must still count in other stores. So the stores of a
        # group must fail for the same records.
        failing_together = (node.on_error, _fallible_arguments(node))
        groups.setdefault((*state_rows_shared, *failing_together), []).append(node)
    planned: list[AggregationGroup] = []
    for members in groups.values():
        planned.append(_group(scopes, members, late_sinks))
    return tuple(planned)


def _functions(node: nodes.Aggregate) -> dict[str, CombinableFunction]:
    """Return the columns of the store, each with the combinable function that computes it."""
    types = node.parent.result_types | METADATA
    functions = {}
    for name, text in node.columns.items():
        function = combinable_function(text, types)
        assert function is not None
        functions[name] = function
    return functions


def _arguments(members: Sequence[nodes.Aggregate]) -> list[str]:
    """Return the arguments of the aggregates' functions, without duplicates."""
    arguments: dict[str, None] = {}
    for node in members:
        for function in _functions(node).values():
            if function.argument is not None:
                arguments[function.argument] = None
    return list(arguments)


def _fallible_arguments(node: nodes.Aggregate) -> tuple[str, ...]:
    """Return the arguments of an aggregate that can fail."""
    types = node.parent.result_types | METADATA
    return tuple(sql for sql in _arguments([node]) if may_fail(sql, types))


def _group(
    scopes: Scopes,
    members: list[nodes.Aggregate],
    late_sinks: LateSinks,
) -> AggregationGroup:
    first, columns = members[0], scopes.columns
    parent = first.parent.number
    scope = scopes.after(first.parent)
    arguments = _arguments(members)
    texts = {"key": first.key}
    for number, sql in enumerate(arguments):
        texts[f"argument{number}"] = sql
    scope, sqls = columns.guard(scope, first, first.parent, texts, key="key")
    condition = columns.row_condition(scope)

    def output_column(letter: str, sql: str) -> str:
        return columns.output_column(scope, f"{letter}{parent}", sql, first.number)

    passed = output_column("n", condition)
    key = output_column("k", value_if(condition, sqls["key"]))
    inputs: dict[str, str] = {}
    for number, sql in enumerate(arguments):
        inputs[sql] = output_column("i", sqls[f"argument{number}"])
    null = ""
    if scope.is_null != "false":
        null = output_column("z", scope.is_null)
    assert first.window is None or isinstance(first.window, TimeWindow)
    store_columns: list[StoreColumn] = []
    for node in members:
        store_columns.append(_store_column(node, inputs))
    group = AggregationGroup(
        number=first.number,
        topics=topics_of(first),
        passed=passed,
        key=key,
        grouped_by=first.key,
        window=first.window,
        store_columns=tuple(store_columns),
        null=null,
        late=late_sinks.claim(first.late),
        retention_ms=first.retention_ms,
    )
    if group.late is not None:
        _add_late_columns(columns, scope, group, condition, group.late.number)
    return group


def _add_late_columns(
    columns: JobColumns,
    scope: Scope,
    group: AggregationGroup,
    condition: str,
    step: int,
) -> None:
    columns.add_output_column(group.late_key, columns.read(scope, "_key"), step)
    columns.add_output_column(group.late_value, columns.json(scope, condition), step)


def _store_column(node: nodes.Aggregate, inputs: Mapping[str, str]) -> StoreColumn:
    """Return a store of a group. `inputs` maps each function's argument to the job's column."""
    columns = []
    for name, function in _functions(node).items():
        column = None if function.argument is None else inputs[function.argument]
        columns.append((name, Combinable(function.name, column)))
    definition = f"{upstream_definition(node)} > {step_definition(node)}"
    return StoreColumn(node.store, node.number, tuple(columns), node.scalar, definition)


def change_sink(
    sink: nodes.Sink,
    chain: Sequence[nodes.Node],
    groups: Sequence[AggregationGroup],
    tables: Sequence[GlobalTableInput],
) -> ChangeSink:
    """Return the output after a group.

    `chain` has the nodes from the group's aggregate to the sink.
    """
    aggregate = chain[0]
    assert isinstance(aggregate, nodes.Aggregate)
    group, store_column = _place_of(aggregate.store, groups)
    tables_by_number = {table.source.number: table for table in tables}
    steps: list[Lookup | Select] = []
    columns = shape_columns(aggregate.result_shape, "v")
    for node in chain[1:]:
        if isinstance(node, nodes.Join):
            steps.append(Lookup(tables_by_number[node.right.number], node.how))
            columns = shape_columns(node.result_shape, "v")
        elif isinstance(node, nodes.Select):
            steps.append(_select(node, columns))
            columns = shape_columns(node.result_shape, "v")
    return ChangeSink(
        sink_of(sink),
        group,
        store_column,
        tuple(steps),
        scalar=aggregate.scalar and not steps,
    )


def _place_of(store: str, groups: Sequence[AggregationGroup]) -> tuple[int, int]:
    """Return the number of the group that has a store, and the store's index in the group."""
    for group in groups:
        for index, store_column in enumerate(group.store_columns):
            if store_column.store == store:
                return group.number, index
    raise AssertionError(f"{store} is in no group")


def _select(node: nodes.Select, columns: Mapping[str, str]) -> Select:
    """Return a `select` step after a group.

    It reads the fields in `columns` and the change's metadata.
    """
    columns = dict(columns) | dict(zip(CHANGE_METADATA, CHANGE_METADATA, strict=True))
    types = node.parent.result_types | CHANGE_METADATA
    fields: dict[str, str] = {}
    errors: list[tuple[str, str]] = []
    for name, text in node.columns.items():
        text_checked = with_utf8_checks(text, types)
        fields[name] = parse(text_checked).on(columns)
        if may_fail(text_checked, types):
            for part, why in failure_causes(text_checked):
                errors.append((parse(part).on(columns), why))
    return Select(named_struct(fields), node.number, tuple(errors))
