"""Makes the scope after each node of a topology, and adds the node's columns to the job."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from sluice.plan.cogroups import column_of, slots_of, types_of
from sluice.plan.job_columns import JobColumns, column_name
from sluice.plan.layers import Column, Transformation
from sluice.plan.node_steps import source_number
from sluice.plan.operator_nodes import children
from sluice.plan.planned_operators import result_column
from sluice.plan.scope import Scope
from sluice.plan.steps import PythonFunction, Step
from sluice.sql.aggregate_expressions import SplitAggregate, split_aggregate
from sluice.sql.parsed_expression import parse
from sluice.sql.typed_expression import type_of
from sluice.topology import nodes
from sluice.topology.graph import Graph
from sluice.values import row_order
from sluice.values.aggregate_calls import AggregateFunction
from sluice.values.record_metadata import MAPPED_KEY, METADATA, TEXT_FIELD
from sluice.values.references import Reference, reference
from sluice.values.shapes import Shape
from sluice.values.sql_text import literal, quoted, value_if
from sluice.values.topic_patterns import is_pattern
from sluice.values.windowed_keys import windowed_key_sql

_VALUE_IS_NULL = "(value IS NULL)"
_OFFSET_BITS = 40
_RESULT_METADATA = {
    "_key": "key",
    "_timestamp": "timestamp_millis(time)",
    "_partition": f"CAST((origin >> {_OFFSET_BITS}) & 8191 AS INT)",
    "_offset": f"(origin & {2**_OFFSET_BITS - 1})",
    "_window_start": "timestamp_millis(nullif(window_start, -1))",
    "_window_end": "timestamp_millis(nullif(window_end, -1))",
}
"""Metadata of an operator's result → SQL that reads the metadata.

Partition and offset belong to the record that caused the result.
"""


class Scopes:
    """Makes the scopes of a pipeline's nodes. Each scope is made on first use."""

    def __init__(self, pipeline: Graph, steps: tuple[Step, ...]) -> None:
        self.pipeline = pipeline
        self.columns = JobColumns(pipeline, steps)
        self.operator_stages: dict[int, int] = {}
        """Number of an operator's node → its stage. A node is planned as an operator before its
        scope is made."""
        self.chained: set[int] = set()
        """The numbers of operators that get another operator's results directly, in the same
        stage."""
        self._scopes: dict[tuple[int, bool], Scope] = {}

    def after(self, node: nodes.Node, *, old: bool = False) -> Scope:
        """Return the scope after a node. Adds the node's columns on first use.

        `old` matters only for a topic's table, which has two scopes. If `old` is true, the rows
        come from the operator that stores the table, and include replaced old values. The results
        of any other operator include old values if a later step needs them.
        """
        old = old and _is_topic_table(node)
        if (node.number, old) not in self._scopes:
            self._scopes[node.number, old] = self._made(node, old=old)
        return self._scopes[node.number, old]

    def for_branch(
        self,
        scope: Scope,
        parent: nodes.Node,
        child: nodes.Node,
        side: int = 0,
    ) -> Scope:
        """Return the scope of the parent's output for the input `side` of a child.

        If the parent has several children, the scope's path contains the number of this child.
        """
        inputs = []
        for node in self.pipeline.whole.nodes:
            for number, input_node in enumerate(node.parents):
                if input_node is parent:
                    inputs.append((node.number, number))
        if len(inputs) <= 1:
            return scope
        turn = inputs.index((child.number, side))
        path = (*scope.path, row_order.turn_sql(turn))
        return replace(scope, path=path, turns=(*scope.turns, turn))

    def null_as_missing(self, scope: Scope) -> Scope:
        """Return the scope in which a value that is the JSON `null` counts as missing.

        If the values are objects, returns `scope` itself.
        """
        if not scope.scalar:
            return scope
        if scope.unchanged_result is not None:
            is_null = "value = 'null'"
        else:
            is_null = f"{self.columns.read(scope, TEXT_FIELD)} IS NULL"
        before = self.columns.read_null(scope)
        if before != "false":
            is_null = f"{before} OR {is_null}"
        return replace(scope, is_null=f"({is_null})")

    def _made(self, node: nodes.Node, *, old: bool) -> Scope:
        # The rows of most tables of topics are the topic's records. But only the operator knows
        # which of a versioned table's records are late, and which rows expire.
        if isinstance(node, nodes.ToTable) and not old and node.has_rows_of_records:
            return self._table_rows(self.after(node.parent))
        if node.number in self.operator_stages:
            return self._operator_results(node)
        match node:
            case nodes.Source():
                return self._source(node)
            case nodes.Merge(streams=streams):
                scopes = []
                for side, stream in enumerate(streams):
                    scopes.append(self.for_branch(self.after(stream), stream, node, side))
                return self._merged(node, scopes)
            case nodes.Branch(parent=process):
                branch = self.for_branch(self.after(process), process, node)
                return self._processor_output(node, branch)
            case _:
                (parent,) = node.parents
                return self._step(node, self.for_branch(self.after(parent, old=old), parent, node))

    def _step(self, node: nodes.Node, scope: Scope) -> Scope:
        """Return the scope after a stateless step."""
        match node:
            case nodes.Filter():
                return self._filtered(node, scope)
            case nodes.Select(columns=texts):
                return self._mapped(node, scope, texts)
            case nodes.MapValues(value=text):
                mapped = self._mapped(node, scope, {TEXT_FIELD: text})
                return self._with_shape(mapped, mapped.columns[TEXT_FIELD], node.result_shape)
            case nodes.SelectKey(parent=parent, key=key):
                scope, sqls = self.columns.guard(scope, node, parent, {"key": key}, key="key")
                return self._rekeyed(node, scope, value_if(scope.passed, sqls["key"]))
            case nodes.FlatMapValues(parent=parent, items=items, shape=shape):
                scope, sqls = self.columns.guard(scope, node, parent, {"items": items})
                elements = self._elements(node, scope, sqls["items"], shape)
                return self._with_shape(elements, f"x{node.number}", shape)
            case nodes.Apply():
                return self._applied(node, scope)
            case nodes.Transform():
                return self._transformed(node, scope)
            case nodes.ToStream():
                # Leave out old values, because streams have none. Only stages after stage 0 have
                # old values, because only operators send them.
                if scope.stage:
                    scope = replace(scope, passed=f"({scope.passed} AND NOT old)")
                return scope
            case _:
                raise AssertionError(f"{node.name} is not a stateless step")

    def _with_shape(self, scope: Scope, column: str, shape: Shape) -> Scope:
        """Return the scope whose value is in a column.

        The JSON `null` counts as a missing value, even if values are objects.
        """
        before = self.columns.read_null(scope)
        if before == "false":
            is_null = f"{column} IS NULL"
        else:
            is_null = f"{before} OR {column} IS NULL"
        columns = scope.metadata | shape_columns(shape, column)
        return replace(scope, columns=columns, scalar=shape.scalar, is_null=f"({is_null})")

    # -- Records of sources

    def _source(self, node: nodes.Source) -> Scope:
        columns = self.columns.register_source(node) | dict(zip(METADATA, METADATA, strict=True))
        if node.key is not None:
            columns["_key"] = f"key{node.number}"
        is_null = "_null" if node.nulls == "keep" else "false"
        return Scope(0, 1, self._is_of_source(node), columns, node.shape.scalar, is_null)

    def _is_of_source(self, node: nodes.Source) -> str:
        """Return SQL of the condition that a record comes from a source."""
        number = source_number(self.pipeline, node)
        if not is_pattern(node.topic):
            return f"(_source <=> {number})"
        return f"coalesce(_source >= {number} AND _source < {number + node.most_topics}, false)"

    def _table_rows(self, scope: Scope) -> Scope:
        """Return the scope of a table's records, without records that have no key."""
        scope = self.null_as_missing(scope)
        # As in Kafka Streams, drop a table's records that have no key, and count them.
        key = self.columns.read(scope, "_key")
        return replace(scope, passed=f"({scope.passed} AND {key} IS NOT NULL)")

    # -- Results of operators

    def _operator_results(self, node: nodes.Node) -> Scope:
        """Return the scope after an operator.

        The value is a single column. The engine determines its type.
        """
        passed = f"(emitted AND target <=> {node.number})"
        results_of = frozenset({node.number})
        stage = self.operator_stages[node.number]
        scope = Scope(stage, 0, passed, _RESULT_METADATA, results_of=results_of)
        column = result_column(node.number)
        # A chained suppress step sends the values of the operator before it.
        producer = node
        while producer.number in self.chained:
            (producer,) = producer.parents
        expressions = None
        if isinstance(producer, nodes.Aggregate):
            expressions = result_expressions(producer)
        if isinstance(producer, nodes.Aggregate) and expressions is not None:
            scope = self._aggregate_columns(
                producer,
                scope,
                column,
                expressions,
                is_chained=producer is not node,
            )
        else:
            scope = _with_value_in(column, scope, producer.result_shape)
            scope = self.columns.register_results(replace(scope, unchanged_result=column), column)
        return replace(scope, is_null=_VALUE_IS_NULL, rekeyed=self._has_new_key(producer))

    def _aggregate_columns(
        self,
        node: nodes.Aggregate,
        scope: Scope,
        column: str,
        expressions: ResultExpressions,
        *,
        is_chained: bool,
    ) -> Scope:
        """Return the scope after an aggregate with columns computed from functions' results."""
        results: dict[str, str] = {}
        for number, call in enumerate(expressions.functions):
            results[call] = f"{column}.a{number}"
        scope = self.columns.register_results(
            replace(scope, columns=results | _RESULT_METADATA),
            column,
        )
        scope = replace(scope, is_null=_VALUE_IS_NULL)
        condition = self.columns.evaluation_condition(scope, node)
        # A chained suppress step sends results of an aggregate. Failures of their columns are
        # reported for the aggregate, so do not report them again.
        scope, columns = self.columns.guard_if(
            condition,
            scope,
            node,
            expressions.types,
            dict(expressions.columns),
            reported=not is_chained,
        )
        if node.scalar:
            columns = {TEXT_FIELD: next(iter(columns.values()))}
        scope = replace(scope, columns=columns | _RESULT_METADATA, scalar=node.scalar)
        return self.columns.null_removed_rows(scope)

    def _processor_output(self, node: nodes.Branch, scope: Scope) -> Scope:
        column = result_column(node.parent.number, list(node.parent.returns).index(node.output))
        scope = replace(scope, passed=f"({scope.passed} AND output = {literal(node.output)})")
        return self.columns.register_results(_with_value_in(column, scope, node.shape), column)

    def _has_new_key(self, node: nodes.Node) -> bool:
        """Return whether the operator, or a step before it in its stage, may change the key."""
        if not node.keeps_keys:
            return True
        return any(self.after(parent).rekeyed for parent in node.passes_on_keys_of)

    # -- Stateless steps

    def _filtered(self, node: nodes.Filter, scope: Scope) -> Scope:
        if isinstance(node, nodes.Repartition) and _feeds_left_join(self.pipeline.whole, node):
            return scope
        scope, sqls = self.columns.guard(scope, node, node.parent, {"where": node.where})
        condition, name = sqls["where"], f"n{node.number}"
        if node.is_table:
            # If a row no longer passes the filter, delete it from the filtered table.
            return self._without_rows(node, scope, f"NOT coalesce({condition}, false)")
        sql = f"coalesce({scope.passed} AND ({condition}), false)"
        return replace(self._next_layer_with(scope, Column(name, sql, node.number)), passed=name)

    def _without_rows(self, node: nodes.Node, scope: Scope, is_removed: str) -> Scope:
        """Return the scope of a table's rows without those for which `is_removed` (SQL) is true."""
        name = f"n{node.number}"
        sql = f"({self.columns.read_null(scope)} OR {is_removed})"
        scope = self._next_layer_with(scope, Column(name, sql, node.number))
        return self.columns.null_removed_rows(replace(scope, is_null=name))

    def _rekeyed(self, node: nodes.Node, scope: Scope, sql: str) -> Scope:
        name = f"key{node.number}"
        scope = self._next_layer_with(scope, Column(name, sql, node.number))
        return replace(scope, columns={**scope.columns, "_key": name}, rekeyed=True)

    def _mapped(
        self,
        node: nodes.Select | nodes.MapValues,
        scope: Scope,
        texts: Mapping[str, str],
    ) -> Scope:
        columns = scope.metadata
        scope, sqls = self.columns.guard(scope, node, node.parent, texts)
        # Do not compute the expressions for records that an earlier filter removed.
        condition = self.columns.evaluation_condition(scope, node.parent)
        for name, sql in sqls.items():
            # A field that is passed on unchanged needs no new column.
            if sql in scope.columns.values():
                columns[name] = sql
            else:
                columns[name] = column_name(f"n{node.number}", name)
                column = Column(columns[name], value_if(condition, sql), node.number, field=name)
                self.columns.add(scope.stage, scope.depth + 1, column)
        # Mapping turns a stream's null value into an object; in a table,
        # a null value remains a deletion.
        is_null = scope.is_null if node.is_table else "false"
        return replace(
            scope,
            depth=scope.depth + 1,
            columns=columns,
            scalar=False,
            is_null=is_null,
            unchanged_result=None,
        )

    def _elements(self, node: nodes.Node, scope: Scope, items: str, shape: Shape) -> Scope:
        """Return the scope with a row for each array element.

        Steps of the stage that do not follow this step take only the rows whose position is 0 or
        null, which is one row per record.
        """
        name, depth = f"x{node.number}", self.columns.next_layer(scope.stage)
        self.columns.add_explosion(scope.stage, depth, name, value_if(scope.passed, items), node)
        return replace(
            scope, depth=depth, passed=f"({name}_pos IS NOT NULL)",
            columns=scope.metadata | shape_columns(shape, name), scalar=shape.scalar,
            is_null="false", unchanged_result=None, exploded=(*scope.exploded, node.number),
            path=(*scope.path, row_order.element_sql(f"{name}_pos")),
        )  # fmt: skip

    def _applied(self, node: nodes.Apply, scope: Scope) -> Scope:
        """Add the call of a Python function, as an SQL function that takes key and value as JSON.

        The function returns JSON or an error.
        """
        takes, returns = reference(node.takes), reference(node.returns)
        function = PythonFunction(
            node.number,
            Reference(node.function),
            node.gives,
            takes,
            returns,
            node.batch,
        )
        # A table's function may be planned twice: for the topic's records, and for the old and new
        # rows from the table's operator.
        if function not in self.columns.functions:
            self.columns.functions.append(function)
        key = self.columns.read(scope, "_key")
        if node.parent.key_window is not None:
            key = windowed_key_sql(key)
        name = f"r{node.number}"
        self.columns.register_failure(scope, node, f"{name}.error")
        depth, condition = self.columns.call_depth(scope)
        of_table = node.is_table
        if of_table:
            condition = f"({condition} AND NOT {self.columns.read_null(scope)})"
        call = f"python_{node.number}({condition}, {key}, {self.columns.json(scope, condition)})"
        self.columns.add(scope.stage, depth, Column(name, call, node.number))
        after = replace(scope, depth=depth, passed=f"({scope.passed} AND {name}.error IS NULL)")
        match node.gives:
            case "nothing":
                return after
            case "condition" if of_table:
                return self._without_rows(
                    node, after, f"NOT coalesce({name}.value = 'true', false)"
                )
            case "value" if of_table:
                results = replace(self._function_results(node, after, name), is_null=scope.is_null)
                return self._without_rows(node, results, f"coalesce({name}.value, 'null') = 'null'")
            case "condition":
                passed = f"coalesce({after.passed} AND {name}.value = 'true', false)"
                return replace(after, passed=passed)
            case "key":
                return self._rekeyed(node, after, f"{name}.key")
            case "mapped_key":
                return replace(after, columns={**after.columns, MAPPED_KEY: f"{name}.key"})
            case "values" | "records":
                items = self._elements(node, after, f"{name}.items", Shape.single())
                return self._function_results(node, items, f"x{node.number}")
            case _:
                return self._function_results(node, after, name)

    def _function_results(self, node: nodes.Apply, scope: Scope, result: str) -> Scope:
        """Return the scope after a function: with its value, and with its key if it returns one."""
        name = result_column(node.number)
        scope = self._next_layer_with(
            scope,
            Column(name, node.shape.value_sql(f"{result}.value"), node.number),
        )
        metadata = scope.metadata
        scope = _with_value_in(name, scope, node.shape)
        fields = shape_columns(node.shape, name)
        if node.gives in ("record", "records"):
            metadata["_key"] = f"{result}.key"
            scope = replace(scope, rekeyed=True)
        return replace(scope, columns=fields | metadata)

    def _transformed(self, node: nodes.Transform, scope: Scope) -> Scope:
        """Add a layer for a function of the whole DataFrame, with its input and output columns."""
        depth = self.columns.next_layer(scope.stage)
        inputs: list[tuple[str, str]] = []
        for name in scope.fields:
            inputs.append((name, value_if(scope.passed, self.columns.read(scope, name))))
        columns: dict[str, str] = {}
        outputs: list[tuple[str, str, str]] = []
        doubles: list[str] = []
        for name, kind in node.fields.items():
            columns[name] = column = column_name(f"n{node.number}", name)
            outputs.append((name, column, kind))
            if "DOUBLE" in kind:
                doubles.append(column)
        transformation = Transformation(
            node.number,
            Reference(node.function),
            node.at,
            tuple(inputs),
            tuple(outputs),
        )
        self.columns.add_transformation(scope.stage, depth, transformation)
        after = replace(
            scope,
            depth=depth,
            columns=scope.metadata | columns,
            scalar=False,
            is_null="false",
            unchanged_result=None,
        )
        # A DataFrame can compute NaN and infinity, which do not exist in JSON.
        if doubles:
            return self.columns.guard_results(after, node, doubles, scope)
        return after

    def _merged(self, node: nodes.Node, scopes: Sequence[Scope]) -> Scope:
        """Return the scope with a row for each merged stream that contains the record."""
        first = scopes[0]
        # An earlier step may have turned a record into several rows. For a merged stream that does
        # not follow this step, only the first of these rows counts. A layer cannot find the first
        # row among rows that it makes itself, so the merge gets a new layer.
        depth = self.columns.next_layer(first.stage)
        # As in Kafka Streams, if a step has several children, the child that was declared first is
        # processed first, with all steps that follow it.
        sides = sorted(range(len(scopes)), key=lambda side: scopes[side].turns)
        numbers: list[str] = []
        for side in sides:
            numbers.append(value_if(self.columns.row_condition(scopes[side]), str(side)))
        streams = f"m{node.number}_ways"
        column = Column(streams, f"array_compact(array({', '.join(numbers)}))", node.number)
        self.columns.add(first.stage, depth, column)
        any_rekeyed = any(scope.rekeyed for scope in scopes)
        record = replace(
            first,
            depth=depth,
            passed="true",
            exploded=(),
            path=(),
            rekeyed=any_rekeyed,
        )
        rows = self._elements(node, record, streams, Shape.single())
        # The array has the numbers of streams, so each row gets the number of one stream.
        number = f"x{node.number}"
        columns = self._columns_by_stream(node, scopes, number, rows.depth + 1)
        is_null = f"null{node.number}"
        nulls_of_streams = dict(enumerate(map(self.columns.read_null, scopes)))
        nulls = _by_stream(number, nulls_of_streams)
        null_column = Column(is_null, f"coalesce({nulls}, false)", node.number)
        self.columns.add(first.stage, rows.depth + 1, null_column)
        exploded: dict[int, None] = {}
        results_of: frozenset[int] = frozenset()
        paths = {}
        for side, scope in enumerate(scopes):
            exploded |= dict.fromkeys(scope.exploded)
            results_of |= scope.results_of
            paths[side] = row_order.path_sql("X''", scope.path, rekeyed=False)
        exploded[node.number] = None
        return replace(
            rows, depth=rows.depth + 1, columns=columns, scalar=first.scalar, is_null=is_null,
            exploded=tuple(exploded), path=(_by_stream(number, paths),),
            turns=scopes[sides[0]].turns, results_of=results_of,
        )  # fmt: skip

    def _columns_by_stream(
        self,
        node: nodes.Node,
        scopes: Sequence[Scope],
        number: str,
        depth: int,
    ) -> dict[str, str]:
        """Return the columns of merged streams.

        A row has the values of the stream whose number is in the column `number`.
        """
        first = scopes[0]
        columns = {}
        for field in first.columns:
            # Columns that Sluice adds, such as a window's bounds, are not in all streams.
            sqls: dict[int, str] = {}
            for side, scope in enumerate(scopes):
                if field in scope.columns:
                    sqls[side] = scope.columns[field]
            if len(set(sqls.values())) == 1:
                columns[field] = first.columns[field]
                continue
            for scope in scopes:
                self.columns.read(scope, field)
            columns[field] = column_name(f"n{node.number}", field)
            column = Column(columns[field], _by_stream(number, sqls), node.number, field=field)
            self.columns.add(first.stage, depth, column)
        return columns

    def _next_layer_with(self, scope: Scope, column: Column) -> Scope:
        """Add a column to the next layer. Returns the scope in which the column can be read."""
        self.columns.add(scope.stage, scope.depth + 1, column)
        return replace(scope, depth=scope.depth + 1)


def _feeds_left_join(pipeline: Graph, node: nodes.Node) -> bool:
    """Return whether a node's records reach a left or outer join, even those without a key."""
    for child in children(pipeline, node):
        if (
            isinstance(child, nodes.Join)
            and child.kind == "stream-table"
            and child.left is not node
        ):
            continue  # A record of the table only becomes a row, and is not joined itself.
        keeps_all = isinstance(child, nodes.Join) and child.how != "inner" and not child.is_table
        if keeps_all or _feeds_left_join(pipeline, child):
            return True
    return False


def _is_topic_table(node: nodes.Node) -> bool:
    """Return whether a node is a table of a stream's latest values, perhaps mapped and filtered."""
    while node.computes_rows:
        (node,) = node.parents
    return isinstance(node, nodes.ToTable) and node.has_rows_of_records


def _with_value_in(column: str, scope: Scope, shape: Shape) -> Scope:
    """Return the scope whose value is in a column."""
    return replace(
        scope, columns=shape_columns(shape, column) | _RESULT_METADATA, scalar=shape.scalar,
        is_null=f"({column} IS NULL)", unchanged_result=None,
    )  # fmt: skip


def _by_stream(number: str, sqls: Mapping[int, str]) -> str:
    """Return SQL that chooses, by the number in column `number`, the SQL of one merged stream."""
    parts = [f"CASE {number}"]
    for side, sql in sqls.items():
        parts.append(f"WHEN {side} THEN {sql}")
    return " ".join((*parts, "END"))


def shape_columns(shape: Shape, value: str) -> dict[str, str]:
    """Return the fields of a shape, each with the SQL that reads it from a value."""
    if shape.scalar:
        return {TEXT_FIELD: value}
    return {name: f"{value}.{quoted(name)}" for name in shape.fields}


@dataclass(frozen=True)
class ResultExpressions:
    """The computation of an aggregate's columns from the results of its functions."""

    functions: tuple[str, ...]
    """The author's text for each function, which is the name of its result in `columns`."""
    types: Mapping[str, str]
    """The type of each function's result; an empty text if the type is unknown."""
    columns: tuple[tuple[str, str], ...]
    """Name and expression of each column."""


def result_expressions(node: nodes.Aggregate) -> ResultExpressions | None:
    """Return how an aggregate's columns are computed.

    Return None if each column is just a function's result, or if Python computes the columns.
    """
    if node.python is not None:
        return None
    if isinstance(node, nodes.Cogroup):
        return _cogroup_expressions(node)
    types = node.parent.result_types | METADATA
    functions: dict[AggregateFunction, str] = {}
    columns = []
    for name, text in node.columns.items():
        split = split_aggregate(text)
        assert isinstance(split, SplitAggregate)
        for function, call in zip(split.functions, split.calls, strict=True):
            functions.setdefault(function, call)
        results: dict[str, str] = {}
        for number, function in enumerate(split.functions):
            results[f"a{number}"] = quoted(functions[function])
        columns.append((name, parse(split.text).on_results(results)))
    if _are_results(columns, functions.values()):
        return None
    result_types: dict[str, str] = {}
    for call in functions.values():
        result_types[call] = type_of(call, types)
    return ResultExpressions(tuple(functions.values()), result_types, tuple(columns))


def _cogroup_expressions(node: nodes.Cogroup) -> ResultExpressions | None:
    """Do the same as `result_expressions` for a cogrouped aggregate.

    Its columns share no functions.
    """
    columns: list[tuple[str, str]] = []
    types: dict[str, str] = {}
    for name in node.columns:
        results: dict[str, str] = {}
        for slot in slots_of(node):
            if slot.column == name:
                number = len(results)
                result = f"{name}: {number}"
                types[result] = type_of(slot.call, types_of(node, name))
                results[f"a{number}"] = quoted(result)
        columns.append((name, parse(column_of(node, name).text).on_results(results)))
    if _are_results(columns, types):
        return None
    return ResultExpressions(tuple(types), types, tuple(columns))


def _are_results(columns: Iterable[tuple[str, str]], results: Iterable[str]) -> bool:
    """Return whether each column is just a function's result. If so, no expression is computed."""
    return [text for _, text in columns] == [*map(quoted, results)]
