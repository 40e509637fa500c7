"""Cuts a topology into stages.

Plans the operators, which need each key's records in order, and their edges.

An operator's stage follows the stages of all its inputs. Before each stage, rows are shuffled by
key; the operators of a stage run in the same tasks.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from sluice.errors import TopologyError
from sluice.operators.base import COGROUPED, DEFAULT_OUTPUT, LEFT, READ
from sluice.plan.cogroups import EACH_RECORD, slots_of
from sluice.plan.definitions import step_definition, upstream_definition
from sluice.plan.fields_read import left_fields_read
from sluice.plan.layers import Column, Transformation
from sluice.plan.node_steps import LateSinks, topics_of
from sluice.plan.operator_actions import action_of
from sluice.plan.operator_nodes import children, is_operator, is_or_follows_operator, why_operator
from sluice.plan.planned_operators import STORE, Edge, PlannedOperator
from sluice.plan.scope import Scope
from sluice.plan.scopes import Scopes
from sluice.plan.shared_rows import share_rows
from sluice.sql.aggregate_expressions import SplitAggregate, split_aggregate
from sluice.topology import nodes
from sluice.topology.graph import Graph
from sluice.values.aggregate_calls import SUBTRACTABLE, AggregateFunction
from sluice.values.sql_text import literal
from sluice.values.windowed_keys import windowed_key_sql


class StagePlanner:
    """Assigns operators to stages, and collects the edges into operators, stores and sinks."""

    def __init__(self, scopes: Scopes, late_sinks: LateSinks) -> None:
        self.scopes = scopes
        self.columns = scopes.columns
        self.pipeline = scopes.pipeline
        self.late_sinks = late_sinks
        self.operators: list[PlannedOperator] = []
        self.edges: list[Edge] = []
        """The edges into stores and sinks."""
        self._without_value: set[str] = set()
        """The columns of the edges whose value is added last, by `_add_values`."""
        self._edge_scopes: dict[str, Scope] = {}
        """Name of an edge's column → the scope at the start of the edge."""
        candidates = [*filter(self._may_be_operator, self.pipeline.nodes)]
        self._sending_old_values: set[int] = set()
        """The numbers of the nodes that send the old value of each change, because later steps need
        it."""
        for node in candidates:
            if _sends_old_values(self.pipeline, node):
                self._sending_old_values.add(node.number)
        self._nodes: list[nodes.Node] = []
        for node in candidates:
            # A topic's table without a store needs no operator: its rows are the topic's records.
            # But if a later step needs old values, an operator must store the rows and send the old
            # values.
            is_needed = not node.is_needed_for_old_values_only
            if is_needed or node.number in self._sending_old_values:
                self._nodes.append(node)

    def add_operators(self) -> None:
        """Create the operators, each after its inputs, and the edges into their stores."""
        for node in self._nodes:
            # A merge needs an operator, which sorts the records, only if the streams come from
            # different stages. Otherwise, it is a stateless step.
            if isinstance(node, nodes.Merge):
                stages = {self.scopes.after(stream).stage for stream in node.streams}
                if len(stages) == 1:
                    continue
            self.operators.append(self._operator(node))
        self._require_different_hashes()
        for operator in self.operators:
            if operator.store is not None:
                node = self.pipeline.whole.nodes[operator.number]
                results = nodes.Input(parent=node, side=STORE)
                self.edges.append(self._edge(node, results, self.scopes.after(node, old=True)))

    def add_sink(self, node: nodes.Sink) -> None:
        """Add the edge into a sink after an operator."""
        (changes,) = node.inputs
        self.edges.append(self._edge(node, changes, self.scopes.after(node.parent)))

    def add_peek(self, node: nodes.Apply) -> None:
        """Add an edge that calls a function after an operator.

        The edge's condition reads the function's result, so that Spark calls the function. The
        result is always null.
        """
        scope = self.scopes.after(node)
        edge = self._edge(node, nodes.Input(parent=node), scope)
        passed = f"({scope.passed} AND r{node.number}.value IS NOT NULL)"
        self._edge_scopes[edge.column] = replace(scope, passed=passed)
        self.edges.append(edge)

    def finished(self) -> tuple[tuple[PlannedOperator, ...], tuple[Edge, ...]]:
        """Return the operators, and the edges into stores and sinks, with their conditions.

        Call this when all columns exist.

        The condition of an edge depends on all steps of its stage that turn a record into several
        rows.
        """
        self._add_values()
        by_number: dict[int, PlannedOperator] = {}
        chained_to: set[int | None] = set()
        others_wait: set[int | None] = set()
        for operator in self.operators:
            by_number[operator.number] = operator
            chained_to.add(operator.chained_to)
            if not operator.sends_only_final_results:
                others_wait.add(operator.chained_to)
        operators = []
        for operator in self.operators:
            before = None
            clock = operator.name
            if operator.chained_to is not None:
                before = by_number[operator.chained_to]
                clock = before.name
            finished = replace(
                operator,
                edges=tuple(map(self._with_condition, operator.edges)),
                clock=clock,
                waits_for_close=operator.waits_for_close or operator.number in chained_to,
                only_windows_wait=operator.number in chained_to
                and operator.number not in others_wait,
                reads_windows=before is not None and before.keeps_waiting_windows(operator),
                columns_read=frozenset(self.columns.results_read.intersection(operator.results)),
            )
            operators.append(finished)
        return share_rows(operators), tuple(map(self._with_condition, self.edges))

    def _add_values(self) -> None:
        """Add the values of edges that operators only pass on: structs of the fields read later.

        Tasks then neither read nor pass on the other fields. No state has these values, so the
        fields may change.
        """
        # Start with the last operator, because the edges of later operators read fields of earlier
        # operators' results.
        for at in reversed(range(len(self.operators))):
            operator = self.operators[at]
            edges: list[Edge] = []
            for edge in operator.edges:
                if edge.column in self._without_value:
                    edge = replace(edge, values=(self._value_read(edge, operator),))
                edges.append(edge)
            self.operators[at] = replace(operator, edges=tuple(edges))

    def _value_read(self, edge: Edge, operator: PlannedOperator) -> str:
        """Return the value of an edge, with the fields of the results that later steps read."""
        scope = self._edge_scopes[edge.column]
        read = left_fields_read(self._texts_after(operator), operator.result)
        columns: dict[str, str] = {}
        for name in scope.fields:
            if read is None or name.lower() in read:
                columns[name] = scope.columns[name]
        if not columns:
            # A struct needs at least one field.
            first = scope.fields[0]
            columns[first] = scope.columns[first]
        return self.columns.value(replace(scope, columns=columns))

    def _texts_after(self, operator: PlannedOperator) -> Iterator[str]:
        """Yield all SQL that may read the operator's results."""
        for layer in self.columns.layers_of(operator.stage):
            if isinstance(layer, Transformation):
                for _, sql in layer.inputs:
                    yield sql
                continue
            for column in layer:
                if isinstance(column, Column):
                    yield column.sql
                else:
                    yield column.passed
                    yield from column.columns
                    for cause, _ in column.causes:
                        yield cause
        for failure in self.columns.failures():
            if failure.stage == operator.stage:
                yield from (failure.error, failure.once, failure.key, failure.value)
        edges = list(self.edges)
        for each in self.operators:
            edges += each.edges
        for edge in edges:
            if operator.number in edge.results_of:
                yield from (edge.key, edge.is_null, edge.foreign or "", *edge.values, *edge.path)
                yield from (self._edge_scopes[edge.column].passed, edge.unchanged_result or "")

    def _may_be_operator(self, node: nodes.Node) -> bool:
        """Return whether a node is an operator, or merges streams that may be of several stages."""
        if isinstance(node, nodes.Merge) and is_or_follows_operator(self.pipeline, node):
            return True
        return is_operator(self.pipeline, node)

    def _operator(self, node: nodes.Node) -> PlannedOperator:
        chained_to = self._chained_to(node)
        functions = _aggregate_functions(self.pipeline, node)
        if chained_to is None:
            edges = self._input_edges(node, functions)
            number_before = None
            stage = max(edge.stage for edge in edges) + 1
        else:
            edges = []
            number_before = chained_to.number
            stage = chained_to.stage
            self.scopes.chained.add(node.number)
        self.scopes.operator_stages[node.number] = stage
        timed_by_topics: tuple[str, ...] = ()
        is_timed_by_rows = True
        if stage > 1:
            timed_by_topics, is_timed_by_rows = self._timing(node)
        store = node.store_name
        keeps_headers = store is not None and self.pipeline.whole.keeps_headers(store)
        action = action_of(node, functions, self.pipeline.whole)
        # The rows of tables that a processor reads do not advance the processor's stream time.
        timing = node.parent if isinstance(node, nodes.Process) else node
        return PlannedOperator(
            step=self.columns.steps[node.number],
            stage=stage,
            action=action,
            edges=tuple(edges),
            topics=topics_of(timing),
            sends_old_values=node.number in self._sending_old_values,
            chained_to=number_before,
            clock=node.name,
            waits_for_close=node.waits_for_close,
            store=store,
            by_window=node.is_keyed_by_window,
            grouped_by=node.group_key,
            window=node.store_window,
            late=self.late_sinks.claim(node.late_sink),
            upstream_definition=upstream_definition(node),
            reason=why_operator(self.pipeline, node),
            definition=step_definition(node, self.pipeline.whole),
            timed_by_topics=timed_by_topics,
            is_timed_by_rows=is_timed_by_rows,
            reads_pattern=nodes.reads_pattern(node),
            keeps_headers=keeps_headers,
        )

    def _timing(self, node: nodes.Node) -> tuple[tuple[str, ...], bool]:
        """Return the topics that advance the stream time of a processor's timers.

        The second result tells whether the processor's rows advance it, too. In Kafka Streams, a
        processor has the stream time of its task, which advances with every record that the task
        reads, even if the record does not reach the processor. Records of another task come through
        a repartition topic. Sluice has no repartition topics: of another task's records, only those
        that reach the processor advance stream time.
        """
        # Every worker would get a report of each of these records. If the processor sets no timers,
        # its own rows are enough.
        if not isinstance(node, nodes.Process) or not node.sets_timers:
            return (), True
        topics: dict[str, None] = {}
        comes_from_another_task = False
        waiting, visited = [node.parent], set[nodes.Node]()
        while waiting:
            step = waiting.pop()
            if step in visited:
                continue
            visited.add(step)
            if isinstance(step, nodes.Source):
                topics[step.topic] = None
            for taken in step.inputs:
                # Every task gets all rows of these inputs, so they need no repartition topic.
                if taken.is_copied or taken.parent.is_global_table:
                    continue
                if self._comes_from_another_task(taken):
                    comes_from_another_task = True
                else:
                    waiting.append(taken.parent)
        return tuple(topics), comes_from_another_task or not topics

    def _comes_from_another_task(self, taken: nodes.Input) -> bool:
        """Return whether, in Kafka Streams, an input's rows come from another task."""
        if taken.is_from_another_task is not None:
            return taken.is_from_another_task
        return taken.is_repartitioned(rekeyed=self.scopes.after(taken.parent).rekeyed)

    def _chained_to(self, node: nodes.Node) -> PlannedOperator | None:
        """Return the operator of this stage that passes its results directly to a node, if any."""
        if not node.may_be_chained:
            return None
        (before,) = node.parents
        # A chained operator uses the stream time of the previous operator.
        if not before.lends_stream_time:
            return None
        for operator in self.operators:
            if operator.number == before.number and operator.chained_to is None:
                return operator
        return None

    def _input_edges(self, node: nodes.Node, functions: Sequence[AggregateFunction]) -> list[Edge]:
        """Return the edges into an operator."""
        edges: list[Edge] = []
        for taken in node.inputs:
            scope = self.scopes.after(taken.parent, old=self._takes_old_values(node, taken))
            if taken.null_is_missing:
                scope = self.scopes.null_as_missing(scope)
            edges.append(self._edge(node, taken, scope, functions))
        return edges

    def _edge(
        self,
        node: nodes.Node,
        taken: nodes.Input,
        before: Scope,
        functions: Sequence[AggregateFunction] = (),
    ) -> Edge:
        """Return the edge of an input of a node.

        `before` is the scope after the input's parent. `functions` are an aggregate's functions,
        whose arguments are the edge's values.
        """
        scope, sqls = self._guarded(node, taken, before, functions)
        own_key = self.columns.read(before, "_key")
        key = sqls.get("key", own_key)
        if node.is_keyed_by_window and not taken.is_copied and taken.side != STORE:
            key = windowed_key_sql(key)
        foreign = self._edge_foreign(node, taken, before, own_key, sqls)
        content = self._edge_content(node, taken, scope, sqls, functions)
        scope = self._scope_into(node, taken, scope)
        edge = Edge(
            target=node.number,
            side=taken.side,
            stage=scope.stage,
            topics=topics_of(taken.parent),
            passed="",
            key=key,
            values=content.values,
            is_null=content.is_null,
            foreign=foreign,
            scalar=content.scalar,
            unchanged_result=content.unchanged_result,
            is_json=content.is_json,
            has_arguments=taken.has_arguments,
            has_old_values=self._takes_old_values(node, taken),
            leaves_out_nulls=taken.leaves_out_nulls,
            is_passed_on=taken.is_passed_on,
            requires_key=taken.requires_key,
            requires_value=taken.requires_value,
            counts_every_record=taken.counts_every_record and scope.stage == 0,
            is_copied=taken.is_copied,
            path=scope.path,
            rekeyed=taken.is_repartitioned(rekeyed=scope.rekeyed),
            results_of=scope.results_of,
            takes_latest=_takes_latest(node, taken),
            input_number=taken.number,
        )
        self._edge_scopes[edge.column] = scope
        if taken.is_passed_on and not content.values:
            self._without_value.add(edge.column)
        return edge

    def _guarded(
        self,
        node: nodes.Node,
        taken: nodes.Input,
        before: Scope,
        functions: Sequence[AggregateFunction],
    ) -> tuple[Scope, dict[str, str]]:
        """Compute an edge's expressions.

        Returns the scope of the rows for which no expression fails, and the expressions' SQL by
        name.
        """
        texts: dict[str, str] = {}
        if taken.key is not None:
            texts["key"] = taken.key
        if taken.has_arguments:
            for number, argument in enumerate(_arguments(node, taken, functions)):
                if argument is not None:
                    texts[f"argument{number}"] = argument
        texts |= taken.expressions
        return self.columns.guard(before, node, taken.parent, texts, key="key")

    def _edge_foreign(
        self,
        node: nodes.Node,
        taken: nodes.Input,
        before: Scope,
        own_key: str,
        sqls: Mapping[str, str],
    ) -> str | None:
        """Return SQL for an edge's column `foreign`; None if the edge has no such column.

        `sqls` has the SQL of the edge's expressions by name.
        """
        match taken.foreign:
            case None:
                return None
            case "key":
                return own_key
            case "windowed_key":
                return windowed_key_sql(own_key)
            case "record":
                return self.columns.json(before)
            case "computed":
                return node.foreign_sql(sqls)

    def _edge_content(
        self,
        node: nodes.Node,
        taken: nodes.Input,
        scope: Scope,
        sqls: Mapping[str, str],
        functions: Sequence[AggregateFunction],
    ) -> _Content:
        """Return the contents of an edge's rows."""
        is_null, unchanged_result = self.columns.read_null(scope), scope.unchanged_result
        if taken.value is not None:
            # If the new value is null, the change deletes a row.
            value = sqls[taken.value]
            is_scalar = node.result_shape.scalar
            return _Content((value,), f"({is_null} OR {value} IS NULL)", is_scalar)
        if taken.is_passed_on and not scope.scalar and unchanged_result is None:
            return _Content((), is_null, scope.scalar)
        if COGROUPED <= taken.side < READ:
            # Windows also aggregate null values. The edge therefore has an object with the number
            # of the record's stream, and the record's value, which may be null.
            return self._cogrouped_content(taken, scope, sqls, functions)
        if taken.has_arguments:
            return _Content(_argument_sqls(sqls, functions), is_null, scope.scalar)
        value = "value"
        if unchanged_result is None:
            value = self.columns.value(scope)
        return _Content((value,), is_null, scope.scalar, unchanged_result)

    def _cogrouped_content(
        self,
        taken: nodes.Input,
        scope: Scope,
        sqls: Mapping[str, str],
        functions: Sequence[AggregateFunction],
    ) -> _Content:
        """Return a cogrouped stream's arguments, or JSON of its number and the record's value."""
        is_null = self.columns.read_null(scope)
        null_of_row = "false"
        if taken.requires_value:
            null_of_row = is_null
        if not taken.has_arguments:
            value = f"coalesce({self.columns.json(scope)}, 'null')"
            values = (f"concat('[{taken.number},', {value}, ']')",)
            return _Content(values, null_of_row, scope.scalar, is_json=True)
        arguments = list(_argument_sqls(sqls, functions))
        for number, argument in enumerate(arguments):
            if is_null != "false" and argument not in ("NULL", EACH_RECORD):
                arguments[number] = f"IF({is_null}, NULL, {argument})"
        return _Content(tuple(arguments), null_of_row, scope.scalar)

    def _scope_into(self, node: nodes.Node, taken: nodes.Input, scope: Scope) -> Scope:
        """Return the scope, with the path of its rows up to a node's input."""
        if taken.reads_store:
            return replace(scope, path=self._path_into_store(scope, taken.parent))
        # An edge into the node's own store is not counted as a branch.
        if taken.parent is node:
            return scope
        return self.scopes.for_branch(scope, taken.parent, node, taken.number)

    def _path_into_store(self, scope: Scope, table: nodes.Node) -> tuple[str, ...]:
        """Return the path of rows that a node reads from a table's store.

        `scope` is the scope after the table. In Kafka Streams, the store is updated after the steps
        that were declared before the store, but before the change goes to any step after the table.
        """
        table = nodes.table_of_rows(table)
        if isinstance(table, nodes.ToTable):
            records = self.scopes.for_branch(self.scopes.after(table.parent), table.parent, table)
            # If an operator stores the rows, their paths begin with the operator's results.
            if records.stage == scope.stage:
                return records.path
        return ()

    def _with_condition(self, edge: Edge) -> Edge:
        passed = self.columns.row_condition(self._edge_scopes[edge.column])
        if edge.takes_latest:
            passed += f" AND output = {literal(DEFAULT_OUTPUT)}"
        # Operators send a table's old value as a separate row, which only some of the next steps
        # take.
        if edge.stage and not edge.has_old_values:
            passed += " AND NOT old"
        if edge.leaves_out_nulls:
            passed += f" AND NOT {edge.is_null}"
        return replace(edge, passed=passed)

    def _takes_old_values(self, node: nodes.Node, taken: nodes.Input) -> bool:
        """Return whether an input has its parent's old values, perhaps only to pass them on."""
        if taken.side != LEFT:
            return False
        passes_them_on = node.passes_on_old_values and node.number in self._sending_old_values
        return node.needs_old_values or passes_them_on

    def _require_different_hashes(self) -> None:
        """Raise TopologyError if two processors' stores have the same group number.

        The number is a hash of the name.
        """
        groups: Counter[int | None] = Counter()
        for operator in self.operators:
            for store in operator.stores.values():
                groups[store.group_id] += 1
        for operator in self.operators:
            for name, store in operator.stores.items():
                if groups[store.group_id] > 1:
                    raise TopologyError(
                        f"{self.pipeline.name}: process at {operator.step.at}: the name of store "
                        f"{name!r} has the same hash as the name of another store.",
                        next_step="Rename the store.",
                    )


@dataclass(frozen=True)
class _Content:
    """The contents of an edge's rows: see the fields of `Edge` with these names."""

    values: tuple[str, ...]
    """Empty if `StagePlanner._add_values` adds the values later."""
    is_null: str
    scalar: bool
    unchanged_result: str | None = None
    is_json: bool = False


def _sends_old_values(pipeline: Graph, node: nodes.Node) -> bool:
    """Return whether the node sends the old value of each change, because a later step needs it."""
    # As in Kafka Streams, the final result of a window has no old value.
    if node.only_adds:
        return False
    for child in children(pipeline, node):
        if child.needs_old_values and child.parents[0] is node:
            return True
        if child.passes_on_old_values and _sends_old_values(pipeline, child):
            return True
    return False


def _takes_latest(node: nodes.Node, taken: nodes.Input) -> bool:
    """Return whether an edge leaves out a versioned table's updates, except each key's latest."""
    if taken.parent.history is None:
        return False
    return taken.side == STORE or taken.is_copied or node.takes_latest


def _aggregate_functions(pipeline: Graph, node: nodes.Node) -> tuple[AggregateFunction, ...]:
    """Return the functions in an aggregate's columns.

    Raises TopologyError if a function cannot subtract old values.
    """
    if not isinstance(node, nodes.Aggregate) or node.python is not None:
        return ()
    if isinstance(node, nodes.Cogroup):
        return tuple(slot.function for slot in slots_of(node))
    functions: dict[AggregateFunction, None] = {}
    for text in node.columns.values():
        split = split_aggregate(text)
        assert isinstance(split, SplitAggregate)
        functions |= dict.fromkeys(split.functions)
    for name, *_ in functions:
        if node.parent.is_table and name not in SUBTRACTABLE:
            raise TopologyError(
                f"{pipeline.name}: aggregate into {node.store!r} at {node.at}: {name} cannot "
                "subtract a table's old value.",
                next_step=f"Use {', '.join(sorted(SUBTRACTABLE))}, "
                "or Python functions that add and subtract.",
            )
    return tuple(functions)


def _arguments(
    node: nodes.Node,
    taken: nodes.Input,
    functions: Sequence[AggregateFunction],
) -> list[str | None]:
    """Return the SQL of each function's argument on an edge into an aggregate.

    Return None for a function without an argument.
    """
    if isinstance(node, nodes.Cogroup):
        return [slot.arguments.get(taken.number) for slot in slots_of(node)]
    return [argument for _, argument, _ in functions]


def _argument_sqls(
    sqls: Mapping[str, str], functions: Sequence[AggregateFunction]
) -> tuple[str, ...]:
    """Return the SQL of the arguments, given the SQL of an edge's expressions by name."""
    arguments: list[str] = []
    for number in range(len(functions)):
        arguments.append(sqls.get(f"argument{number}", "NULL"))
    return tuple(arguments)
