"""Translate the author's expressions into Spark SQL over the job's columns.

Names of columns:

- `s3_amount`: field `amount` of the value decoded by source 3; `_key`, `_topic`, ... as in
  `values.record_metadata.METADATA`;
- `sk3_amount`: the text of this field as a key, unless the field is text; `key3`: the key of source 3 if it is a field;
- `n5`: whether a record passed node 5; `n7_total`: field `total` of node 7; `r8`: the result of function 8;
- `t5_0`: results of node 5's expressions that can fail; `t5_0_error`: their error;
- `v9`: the value that operator 9 emitted; `x6_pos`, `x6`: index and value of an array element in node 6;
- `k5_0`: the first key by which records that passed node 5 are grouped; `o9_key`, `o9_value`: output of sink 9.

Characters that a column name cannot contain are escaped: field `order-id` is `s3_order_x2d_id`.

Columns belong to stages: one before the first operators and one after each set of them. A stage has layers,
each computed from the previous layers, so that a step is computed only once even if several steps follow it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from sluice.plan.builder import (
    PlanBuilder,
    Scope,
    add,
    below,
    checked,
    column_name,
    column_read,
    computed,
    masked,
    may_fail_here,
    null_read,
    tried,
    tried_with,
    turned,
    without_removed,
)
from sluice.plan.jobs import Column, Transformation, result_column
from sluice.plan.steps import PythonFunction
from sluice.plan.value_types import types_after
from sluice.sql.aggregate_expressions import Parts, split_aggregate
from sluice.sql.expressions import parse
from sluice.sql.typed import type_of
from sluice.topology import nodes
from sluice.values import row_order
from sluice.values.aggregate_calls import AggregateFunction
from sluice.values.record_metadata import METADATA, RESERVED_NAMES, TEXT_FIELD
from sluice.values.references import Reference, reference
from sluice.values.shapes import Shape
from sluice.values.sql_text import literal, quoted


def scope_of(builder: PlanBuilder, node: nodes.Node, *, old: bool = False) -> Scope:
    """The scope after a node. Adds the node's columns on first use.

    With `old`, a table's rows include the old values that they replace, which requires an operator that stores them.
    Results of operators include old values if a later step needs them; only a topic's table has two scopes.
    """
    old = old and _latest(node)
    if (node.number, old) not in builder.scopes:
        builder.scopes[node.number, old] = _make_scope(builder, node, old=old)
    return builder.scopes[node.number, old]


def _latest(node: nodes.Node) -> bool:
    """Whether a node is a table of a stream's latest values, possibly mapped and filtered."""
    while isinstance(node, nodes.Filter | nodes.Select | nodes.MapValues):
        node = node.parent
    return isinstance(node, nodes.ToTable)


def _make_scope(builder: PlanBuilder, node: nodes.Node, *, old: bool) -> Scope:
    if isinstance(node, nodes.ToTable) and not old:
        return _rows(builder, scope_of(builder, node.parent))
    if node.number in builder.operators:
        return _result_scope(builder, node)
    match node:
        case nodes.Source():
            return _source_scope(builder, node)
        case nodes.Merge(streams=streams):
            scopes = [scope_of(builder, stream) for stream in streams]
            sides = enumerate(zip(scopes, streams, strict=True))
            return _merged(builder, node, [turned(builder, scope, stream, node, n) for n, (scope, stream) in sides])
        case nodes.Branch(parent=process, output=output, shape=shape):
            scope = turned(builder, scope_of(builder, process), process, node)
            column = result_column(process.number, list(process.returns).index(output))
            passed = f"({scope.passed} AND output = {literal(output)})"
            return _noted(builder, _typed(scope, column, passed, shape), column)
        case _:
            (parent,) = nodes.parents(node)
            return _step_scope(builder, node, turned(builder, scope_of(builder, parent, old=old), parent, node))


def _step_scope(builder: PlanBuilder, node: nodes.Node, scope: Scope) -> Scope:
    match node:
        case nodes.Filter(where=where):
            return _filter(builder, node, scope, where)
        case nodes.Select(columns=texts):
            return _map(builder, node, scope, texts)
        case nodes.MapValues(value=text):
            return null_scalars(builder, replace(_map(builder, node, scope, {TEXT_FIELD: text}), scalar=True))
        case nodes.SelectKey(parent=parent, key=key):
            scope, sqls = tried(builder, scope, node, parent, {"key": key}, key="key")
            return _rekeyed(builder, node, scope, f"IF({scope.passed}, {sqls['key']}, NULL)")
        case nodes.FlatMapValues(parent=parent, items=items, shape=shape):
            scope, sqls = tried(builder, scope, node, parent, {"items": items})
            return null_scalars(builder, _elements(builder, node, scope, sqls["items"], shape))
        case nodes.Apply():
            return _applied(builder, node, scope)
        case nodes.Transform():
            return _transformed(builder, node, scope)
        case nodes.ToStream():
            scope = replace(scope, rekeyed=scope.rekeyed or nodes.window_of(node.parent) is not None)
            return replace(scope, passed=f"({scope.passed} AND NOT old)") if scope.stage else scope
        case _:
            raise AssertionError(f"{node.name} is not a stateless step")


def _source_scope(builder: PlanBuilder, node: nodes.Source) -> Scope:
    columns = {name: column_name(f"s{node.number}", name) for name in node.fields}
    builder.sources |= {columns[name]: (node.number, name) for name in node.fields}
    columns |= {name: name for name in METADATA}
    if node.key is not None:
        columns["_key"] = f"key{node.number}"
    is_null = "_null" if node.nulls == "keep" else "false"
    return Scope(0, 1, f"(_source <=> {node.number})", columns, node.shape.scalar, is_null)


def null_scalars(builder: PlanBuilder, scope: Scope) -> Scope:
    """The scope in which a value that is not an object, and is null, counts as a missing value."""
    if not scope.scalar:
        return scope
    is_null = "value = 'null'" if scope.raw is not None else f"{column_read(builder, scope, TEXT_FIELD)} IS NULL"
    return replace(scope, is_null=_either(null_read(builder, scope), is_null))


def _either(condition: str, other: str) -> str:
    return f"({other})" if condition == "false" else f"({condition} OR {other})"


def _rows(builder: PlanBuilder, scope: Scope) -> Scope:
    """The scope of a table's records, without records that have no key."""
    scope = null_scalars(builder, scope)
    return replace(scope, passed=f"({scope.passed} AND {column_read(builder, scope, '_key')} IS NOT NULL)")


def _result_scope(builder: PlanBuilder, node: nodes.Node) -> Scope:
    """The scope after an operator. The value is a single column, whose type the engine determines."""
    passed = f"(emitted AND target <=> {node.number})"
    scope = Scope(builder.operators[node.number], 0, passed, RESULT_METADATA, results_of=frozenset({node.number}))
    column = result_column(node.number)
    is_inline = node.number in builder.inline
    while node.number in builder.inline:
        (node,) = nodes.parents(node)
    if isinstance(node, nodes.Aggregate) and node.python is None and (made := made_of(node)) is not None:
        functions = {call: f"{column}.a{number}" for number, call in enumerate(made.functions)}
        scope = _noted(builder, replace(scope, columns=functions | RESULT_METADATA), column)
        scope = replace(scope, is_null=_NO_VALUE)
        # What a suppress holds back has failed before it came there.
        condition, texts = computed(builder, scope, node), dict(made.columns)
        scope, columns = tried_with(builder, scope, node, made.types, texts, condition, reported=not is_inline)
        if node.scalar:
            columns = {TEXT_FIELD: next(iter(columns.values()))}
        scope = replace(scope, columns=columns | RESULT_METADATA, scalar=node.scalar)
        scope = without_removed(builder, scope)
    else:
        scope = replace(_typed(scope, column, scope.passed, result_shape(builder, node)), raw=column)
        scope = _noted(builder, scope, column)
    return replace(scope, is_null=_NO_VALUE, rekeyed=_is_rekeyed(builder, node))


def _is_rekeyed(builder: PlanBuilder, node: nodes.Node) -> bool:
    """Whether results have another key than the operator's input, or an earlier step changed the key."""
    match node:
        case nodes.Process():
            return True
        case nodes.Merge() | nodes.StreamOperator():
            return any(scope_of(builder, parent).rekeyed for parent in nodes.parents(node))
        case _:
            return False


def _noted(builder: PlanBuilder, scope: Scope, column: str) -> Scope:
    """Register the scope's fields as parts of the operator's results in `column`; return the scope."""
    builder.results |= {scope.columns[name]: column for name in scope.fields}
    if scope.is_null != "false":
        builder.results[scope.is_null] = column
    return scope


@dataclass(frozen=True)
class Made:
    """How an ordered aggregate's columns are computed from the results of its functions."""

    functions: tuple[str, ...]
    """The author's text for each function, which is the name of its result in `columns`."""
    types: Mapping[str, str]
    """The type of each function's result; empty if unknown."""
    columns: tuple[tuple[str, str], ...]
    """Name and expression of each column."""


def made_of(node: nodes.Aggregate) -> Made | None:
    """How an ordered aggregate's columns are computed; None if each column is one function's result."""
    types = types_after(node.parent) | METADATA
    functions: dict[AggregateFunction, str] = {}
    columns = []
    for name, text in node.columns.items():
        parts = split_aggregate(text)
        assert isinstance(parts, Parts)
        for function, call in zip(parts.functions, parts.calls, strict=True):
            functions.setdefault(function, call)
        results = {f"a{i}": quoted(functions[function]) for i, function in enumerate(parts.functions)}
        columns.append((name, parse(parts.text).on_results(results)))
    if [text for _, text in columns] == [*map(quoted, functions.values())]:
        return None
    return Made(tuple(functions.values()), {call: type_of(call, types) for call in functions.values()}, tuple(columns))


def _typed(scope: Scope, column: str, passed: str, shape: Shape) -> Scope:
    columns = shape_columns(shape, column) | RESULT_METADATA
    return replace(scope, passed=passed, columns=columns, scalar=shape.scalar, is_null=f"({column} IS NULL)", raw=None)


def shape_columns(shape: Shape, value: str) -> dict[str, str]:
    """Field → SQL that reads it from a value of this shape."""
    return {TEXT_FIELD: value} if shape.scalar else {name: f"{value}.{quoted(name)}" for name in shape.fields}


def result_shape(builder: PlanBuilder, node: nodes.Node) -> Shape:
    """The shape of an operator's results, without their types."""
    match node:
        case nodes.Aggregate(python=python) if python is not None:
            return python.shape
        case nodes.Aggregate(columns=columns, scalar=scalar):
            return Shape.single() if scalar else Shape(dict.fromkeys(columns, ""))
        case nodes.Join():
            return Shape({"left": "", "right": ""})
        case nodes.Process():
            return Shape.single()
        case _:
            scope = scope_of(builder, nodes.parents(node)[0])
            return Shape(dict.fromkeys(scope.fields, ""), scope.scalar)


_NO_VALUE = "(value IS NULL)"
_OFFSET_BITS = 40
RESULT_METADATA = {
    "_key": "key",
    "_timestamp": "timestamp_millis(time)",
    "_partition": f"CAST((origin >> {_OFFSET_BITS}) & 8191 AS INT)",
    "_offset": f"(origin & {2**_OFFSET_BITS - 1})",
    "_window_start": "timestamp_millis(nullif(window_start, -1))",
    "_window_end": "timestamp_millis(nullif(window_end, -1))",
}
"""Metadata of the record that led to an operator's result."""


def _filter(builder: PlanBuilder, node: nodes.Filter, scope: Scope, where: str) -> Scope:
    scope, sqls = tried(builder, scope, node, node.parent, {"where": where})
    condition, name = sqls["where"], f"n{node.number}"
    if nodes.is_table(node):
        # A row that no longer passes the filter is deleted from the filtered table.
        sql = f"({null_read(builder, scope)} OR NOT coalesce({condition}, false))"
        add(builder, scope.stage, scope.depth + 1, Column(name, sql, node.number))
        return without_removed(builder, replace(scope, depth=scope.depth + 1, is_null=name))
    sql = f"coalesce({scope.passed} AND ({condition}), false)"
    add(builder, scope.stage, scope.depth + 1, Column(name, sql, node.number))
    return replace(scope, depth=scope.depth + 1, passed=name)


def _rekeyed(builder: PlanBuilder, node: nodes.Node, scope: Scope, sql: str) -> Scope:
    column = f"key{node.number}"
    add(builder, scope.stage, scope.depth + 1, Column(column, sql, node.number))
    return replace(scope, depth=scope.depth + 1, columns={**scope.columns, "_key": column}, rekeyed=True)


def _map(builder: PlanBuilder, node: nodes.Select | nodes.MapValues, scope: Scope, texts: Mapping[str, str]) -> Scope:
    columns = {name: sql for name, sql in scope.columns.items() if name not in scope.fields}
    scope, sqls = tried(builder, scope, node, node.parent, texts)
    # Skip the expressions for records that an earlier filter removed.
    condition = computed(builder, scope, node.parent)
    for name, sql in sqls.items():
        if sql in scope.columns.values():
            columns[name] = sql
        else:
            columns[name] = column_name(f"n{node.number}", name)
            column = Column(columns[name], f"IF({condition}, {sql}, NULL)", node.number, field=name)
            add(builder, scope.stage, scope.depth + 1, column)
    # Mapping turns a stream's null value into an object; in a table, a null value remains a deletion.
    is_null = scope.is_null if nodes.is_table(node) else "false"
    return replace(scope, depth=scope.depth + 1, columns=columns, scalar=False, is_null=is_null, raw=None)


def _elements(builder: PlanBuilder, node: nodes.Node, scope: Scope, items: str, shape: Shape) -> Scope:
    """The scope with a row per array element. Other consumers of the stage take only rows whose `pos` is 0 or null."""
    name, depth = f"x{node.number}", below(builder, scope.stage)
    sql = f"posexplode_outer(IF({scope.passed}, {items}, NULL))"
    add(builder, scope.stage, depth, Column(name, sql, node.number, position=f"{name}_pos"))
    builder.explosions.setdefault(scope.stage, []).append(node.number)
    builder.explosion_depths[node.number] = depth
    builder.metadata.add("_offset")
    kept = {field: sql for field, sql in scope.columns.items() if field not in scope.fields}
    return replace(
        scope, depth=depth, passed=f"({name}_pos IS NOT NULL)", columns=kept | shape_columns(shape, name),
        scalar=shape.scalar, is_null="false", raw=None, exploded=(*scope.exploded, node.number),
        path=(*scope.path, row_order.element(f"{name}_pos")),
    )  # fmt: skip


def _merged(builder: PlanBuilder, node: nodes.Node, scopes: list[Scope]) -> Scope:
    """The scope with a row for each merged stream that contains the record."""
    first = scopes[0]
    # If an earlier step turned a record into several rows, streams that do not follow that step take only one of them.
    depth = below(builder, first.stage)
    ways = ", ".join(f"IF({masked(builder, scope)}, {number}, NULL)" for number, scope in enumerate(scopes))
    column = f"m{node.number}_ways"
    add(builder, first.stage, depth, Column(column, f"array_compact(array({ways}))", node.number))
    way = replace(first, depth=depth, passed="true", exploded=(), path=(), rekeyed=any(s.rekeyed for s in scopes))
    elements = _elements(builder, node, way, column, Shape.single())
    name = f"x{node.number}"

    def chosen(pick: Mapping[int, str]) -> str:
        cases = " ".join(f"WHEN {number} THEN {sql}" for number, sql in pick.items())
        return f"CASE {name} {cases} END"

    columns, depth = {}, elements.depth + 1
    for field_name in first.columns:
        sqls = {number: scope.columns[field_name] for number, scope in enumerate(scopes) if field_name in scope.columns}
        if len(set(sqls.values())) == 1:
            columns[field_name] = first.columns[field_name]
            continue
        for scope in scopes:
            column_read(builder, scope, field_name)
        columns[field_name] = column_name(f"n{node.number}", field_name)
        add(builder, first.stage, depth, Column(columns[field_name], chosen(sqls), node.number, field=field_name))
    is_null = f"null{node.number}"
    nulls = chosen({number: null_read(builder, scope) for number, scope in enumerate(scopes)})
    add(builder, first.stage, depth, Column(is_null, f"coalesce({nulls}, false)", node.number))
    exploded = tuple(dict.fromkeys([*(number for scope in scopes for number in scope.exploded), node.number]))
    routes = {number: row_order.sql("X''", scope.path, rekeyed=False) for number, scope in enumerate(scopes)}
    return replace(
        elements, depth=depth, columns=columns, scalar=first.scalar, is_null=is_null, exploded=exploded,
        path=(chosen(routes),), results_of=frozenset[int]().union(*(scope.results_of for scope in scopes)),
    )  # fmt: skip


def _applied(builder: PlanBuilder, node: nodes.Apply, scope: Scope) -> Scope:
    """Call a Python function as an SQL function that takes key and value as JSON and returns JSON or an error."""
    takes, returns = reference(node.takes), reference(node.returns)
    builder.functions.append(PythonFunction(node.number, Reference(node.function), node.gives, takes, returns))
    key = column_read(builder, scope, "_key")
    name = f"r{node.number}"
    may_fail_here(builder, scope, node, f"{name}.error")
    others = {
        builder.explosion_depths[number]: number
        for number in builder.explosions.get(scope.stage, ())
        if number not in scope.exploded
    }
    depth = scope.depth + 1
    while depth in others:  # in such a layer, Spark would call the function for every row of this record
        depth += 1
    once = [scope.passed, *(f"coalesce(x{number}_pos, 0) = 0" for layer, number in others.items() if layer < depth)]
    passed = f"({' AND '.join(once)})" if len(once) > 1 else scope.passed
    call = f"python_{node.number}({passed}, {key}, {scope.json(builder, passed)})"
    add(builder, scope.stage, depth, Column(name, call, node.number))
    after = replace(scope, depth=depth, passed=f"({scope.passed} AND {name}.error IS NULL)")
    match node.gives:
        case "nothing":
            return after
        case "condition":
            return replace(after, passed=f"coalesce({after.passed} AND {name}.value = 'true', false)")
        case "key":
            return _rekeyed(builder, node, after, f"{name}.key")
        case "values" | "records":
            items = _elements(builder, node, after, f"{name}.items", Shape.single())
            return _results(builder, node, items, f"x{node.number}")
        case _:
            return _results(builder, node, after, name)


def _transformed(builder: PlanBuilder, node: nodes.Transform, scope: Scope) -> Scope:
    """Add a layer for a function of the whole DataFrame, with its input and output columns."""
    depth = below(builder, scope.stage)
    given = tuple((name, f"IF({scope.passed}, {column_read(builder, scope, name)}, NULL)") for name in scope.fields)
    made = {name: column_name(f"n{node.number}", name) for name in node.fields}
    outputs = tuple((name, made[name], kind) for name, kind in node.fields.items())
    transformation = Transformation(node.number, Reference(node.function), node.at, given, outputs)
    builder.stages.setdefault(scope.stage, {})[depth] = transformation
    kept = {name: sql for name, sql in scope.columns.items() if name not in scope.fields}
    after = replace(scope, depth=depth, columns=kept | made, scalar=False, is_null="false", raw=None)
    doubles = [made[name] for name, kind in node.fields.items() if "DOUBLE" in kind]
    return checked(builder, after, node, doubles, scope) if doubles else after


def _results(builder: PlanBuilder, node: nodes.Apply, scope: Scope, result: str) -> Scope:
    """The scope after a function, with the returned value and, if the function returns it, the key."""
    column = result_column(node.number)
    add(builder, scope.stage, scope.depth + 1, Column(column, node.shape.parsed(f"{result}.value"), node.number))
    typed = _typed(replace(scope, depth=scope.depth + 1), column, scope.passed, node.shape)
    kept = {name: sql for name, sql in scope.columns.items() if name in RESERVED_NAMES}
    columns = {name: sql for name, sql in typed.columns.items() if name in typed.fields} | kept
    if node.gives in ("record", "records"):
        columns["_key"] = f"{result}.key"
        typed = replace(typed, rekeyed=True)
    return replace(typed, columns=columns)
