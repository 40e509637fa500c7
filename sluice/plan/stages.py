"""Cuts a topology into stages. Plans the operators, which need each key's records in order, and their edges.

An operator's stage follows the stages of all its inputs. Before each stage, rows are shuffled by
key; the operators of a stage run in the same tasks.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from sluice.errors import TopologyError
from sluice.operators.aggregation.aggregate_functions import SUBTRACTABLE
from sluice.operators.base import AHEAD, DEFAULT_OUTPUT, LEFT, READ, RIGHT
from sluice.plan.cogroups import EACH_RECORD, slots_of
from sluice.plan.definitions import step_definition, upstream_definition
from sluice.plan.fields_read import left_fields_read
from sluice.plan.layers import Column, Transformation
from sluice.plan.node_steps import LateSinks, topics_of
from sluice.plan.operator_actions import (
    action_of,
    joins_versions,
    metadata_sql,
    metadata_texts,
    needs_old_values,
    requires_value,
    waits_for_close,
)
from sluice.plan.operator_nodes import children, is_operator, is_or_follows_operator, why_operator
from sluice.plan.operator_parameters import Process
from sluice.plan.planned_operators import COGROUPED, STORE, Edge, PlannedOperator
from sluice.plan.scope import Scope
from sluice.plan.scopes import Scopes
from sluice.plan.shared_rows import share_rows
from sluice.sql.aggregate_expressions import SplitAggregate, split_aggregate
from sluice.topology import nodes
from sluice.topology.graph import Graph
from sluice.values.aggregate_calls import AggregateFunction
from sluice.values.sql_text import literal, named_struct, struct_json
from sluice.values.windowed_keys import windowed_key_sql


class StagePlanner:
    """Assigns a pipeline's operators to stages, and collects the edges into operators, stores and sinks."""

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
        candidates = [node for node in self.pipeline.nodes if self._may_be_operator(node)]
        self._sending_old_values = {
            node.number for node in candidates if _sends_old_values(self.pipeline, node)
        }
        """The numbers of the nodes that send the old value of each change, because later steps need it."""
        self._nodes: list[nodes.Node] = []
        for node in candidates:
            # A topic's table without a store needs no operator: its rows are the topic's records.
            # But if a later step needs old values, an operator stores the rows, and sends them.
            if node.number in self._sending_old_values or not _is_only_for_old(node):
                self._nodes.append(node)

    def add_operators(self) -> None:
        """Create the operators, each after its inputs, and the edges into their stores."""
        for node in self._nodes:
            # Only streams from different stages need an operator that sorts their records. A merge
            # of streams of one stage is a stateless step.
            if isinstance(node, nodes.Merge):
                stages = {self.scopes.after(stream).stage for stream in node.streams}
                if len(stages) == 1:
                    continue
            self.operators.append(self._operator(node))
        self._require_different_hashes()
        for operator in self.operators:
            if operator.store is not None:
                node = self.pipeline.whole.nodes[operator.number]
                self.edges.append(self._edge(node, STORE, self.scopes.after(node, old=True), node))

    def add_sink(self, node: nodes.Sink) -> None:
        """Add the edge into a sink after an operator."""
        self.edges.append(self._edge(node, LEFT, self.scopes.after(node.parent), node.parent))

    def add_peek(self, node: nodes.Apply) -> None:
        """Call a function after an operator.

        The edge's condition reads the function's result, which is always null, to make Spark call
        the function.
        """
        scope = self.scopes.after(node)
        edge = self._edge(node, LEFT, scope, node)
        passed = f"({scope.passed} AND r{node.number}.value IS NOT NULL)"
        self._edge_scopes[edge.column] = replace(scope, passed=passed)
        self.edges.append(edge)

    def finished(self) -> tuple[tuple[PlannedOperator, ...], tuple[Edge, ...]]:
        """The operators, and the edges into stores and sinks, with their conditions. Call this when all columns exist.

        The condition of an edge depends on all steps of its stage that turn a record into several
        rows.
        """
        self._add_values()
        chained_to = {operator.chained_to for operator in self.operators}
        others_wait = {
            each.chained_to for each in self.operators if not each.sends_only_final_results
        }
        operators = []
        by_number = {operator.number: operator for operator in self.operators}
        for operator in self.operators:
            before = None if operator.chained_to is None else by_number[operator.chained_to]
            results = {operator.result}
            if isinstance(operator.action, Process):
                results = {output.column for output in operator.action.outputs.values()}
            clock = operator.name if before is None else before.name
            finished = replace(
                operator,
                edges=tuple(map(self._with_condition, operator.edges)),
                clock=clock,
                waits_for_close=operator.waits_for_close or operator.number in chained_to,
                only_windows_wait=operator.number in chained_to
                and operator.number not in others_wait,
                reads_windows=before is not None and before.keeps_waiting_windows(operator),
                columns_read=frozenset(results & self.columns.results_read),
            )
            operators.append(finished)
        return share_rows(operators), tuple(map(self._with_condition, self.edges))

    def _add_values(self) -> None:
        """Add the values of edges that pass them on: structs with only the fields that later steps read.

        So tasks neither read nor pass on the other fields. No state has these values, so the fields
        may change.
        """
        # Later edges first, because an edge of a later operator reads fields of an earlier one's
        # results.
        for at in reversed(range(len(self.operators))):
            operator = self.operators[at]
            edges: list[Edge] = []
            for edge in operator.edges:
                if edge.column in self._without_value:
                    scope = self._edge_scopes[edge.column]
                    read = left_fields_read(self._texts_after(operator), operator.result)
                    names = [name for name in scope.fields if read is None or name.lower() in read]
                    columns = {name: scope.columns[name] for name in names or scope.fields[:1]}
                    edge = replace(
                        edge, values=(self.columns.value(replace(scope, columns=columns)),)
                    )
                edges.append(edge)
            self.operators[at] = replace(operator, edges=tuple(edges))

    def _texts_after(self, operator: PlannedOperator) -> Iterator[str]:
        """All SQL that may read the operator's results."""
        for layer in self.columns.layers_of(operator.stage):
            if isinstance(layer, Transformation):
                yield from (sql for _, sql in layer.inputs)
                continue
            for column in layer:
                if isinstance(column, Column):
                    yield column.sql
                else:
                    yield from (
                        column.passed,
                        *column.columns,
                        *(cause for cause, _ in column.causes),
                    )
        for failure in self.columns.failures():
            if failure.stage == operator.stage:
                yield from (failure.error, failure.once, failure.key, failure.value)
        for edge in (*(edge for each in self.operators for edge in each.edges), *self.edges):
            if operator.number in edge.results_of:
                yield from (edge.key, edge.is_null, edge.foreign or "", *edge.values, *edge.path)
                yield from (self._edge_scopes[edge.column].passed, edge.unchanged_result or "")

    def _may_be_operator(self, node: nodes.Node) -> bool:
        """Whether a node is an operator, or merges streams that may come from different stages."""
        if isinstance(node, nodes.Merge) and is_or_follows_operator(self.pipeline, node):
            return True
        return is_operator(self.pipeline, node)

    def _operator(self, node: nodes.Node) -> PlannedOperator:
        chained_to = self._chained_to(node)
        functions = _aggregate_functions(self.pipeline, node)
        if chained_to is None:
            edges = self._input_edges(node, functions)
            stage = max(edge.stage for edge in edges) + 1
        else:
            edges = []
            stage = chained_to.stage
            self.scopes.chained.add(node.number)
        self.scopes.operator_stages[node.number] = stage
        timed_by_topics, is_timed_by_rows = self._timing(node) if stage > 1 else ((), True)
        late = self.late_sinks.claim(node.late) if isinstance(node, nodes.Aggregate) else None
        return PlannedOperator(
            step=self.columns.steps[node.number],
            stage=stage,
            action=action_of(node, functions),
            edges=tuple(edges),
            # The rows of the tables that a processor reads do not advance the processor's stream
            # time.
            topics=topics_of(node.parent if isinstance(node, nodes.Process) else node),
            sends_old_values=node.number in self._sending_old_values,
            chained_to=None if chained_to is None else chained_to.number,
            clock=node.name,
            waits_for_close=waits_for_close(node),
            store=getattr(node, "store", None),
            by_window=nodes.is_keyed_by_window(node),
            grouped_by=getattr(node, "key", "_key"),
            window=nodes.window_of_store(node),
            late=late,
            upstream_definition=upstream_definition(node),
            reason=why_operator(self.pipeline, node),
            definition=step_definition(node),
            timed_by_topics=timed_by_topics,
            is_timed_by_rows=is_timed_by_rows,
            reads_pattern=nodes.reads_pattern(node),
        )

    def _timing(self, node: nodes.Node) -> tuple[tuple[str, ...], bool]:
        """The topics that advance the stream time of a processor's timers, and whether its rows advance it, too.

        In Kafka Streams, a processor has the stream time of its task, which advances with every
        record that the task reads, even if the record does not reach the processor. Records of
        another task come through a repartition topic. Sluice has no such topic, so only those
        records advance stream time that reach the processor.
        """
        # Every worker gets a report of all records that advance stream time, so without timers, the
        # processor's rows have to do.
        if not isinstance(node, nodes.Process) or not hasattr(node.processor, "on_timer"):
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
            for number, parent in enumerate(nodes.parents(step)):
                if _is_copied_to_tasks(step, number):
                    continue
                if self._comes_from_another_task(step, number, parent):
                    comes_from_another_task = True
                else:
                    waiting.append(parent)
        return tuple(topics), comes_from_another_task or not topics

    def _comes_from_another_task(self, step: nodes.Node, number: int, parent: nodes.Node) -> bool:
        """Whether the records of a step's input come from another task than the step's results."""
        match step:
            case nodes.SetMetadata(time=str()):
                # The step's results have other times than the records of the topic.
                return True
            case nodes.Join(kind="foreign-key"):
                # The task of the left table looks rows up in the task of the right table.
                return number > 0
            case _:
                return _is_rekeyed(step, _side_of(step, number), self.scopes.after(parent))

    def _chained_to(self, node: nodes.Node) -> PlannedOperator | None:
        """The operator of the same stage that passes its results directly to this node, if any."""
        # A chained operator uses the stream time of the operator before it. A suppress step needs a
        # stream time of its own after a join, because many of the join's rows cause no result,
        # after another suppress step, because the rows that this step holds back do not advance it,
        # and after a table whose rows expire, because a row of any key can delete this key's row.
        if not isinstance(node, nodes.Suppress) or isinstance(
            node.parent, nodes.Join | nodes.Suppress
        ):
            return None
        if isinstance(node.parent, nodes.ToTable) and node.parent.expiry is not None:
            return None
        for operator in self.operators:
            if operator.number == node.parent.number and operator.chained_to is None:
                return operator
        return None

    def _input_edges(self, node: nodes.Node, functions: Sequence[AggregateFunction]) -> list[Edge]:
        """The edges into an operator."""
        edges = []
        for number, parent in enumerate(nodes.parents(node)):
            side = _side_of(node, number)
            scope = self.scopes.after(parent, old=self._takes_old_values(node, side))
            if isinstance(node, nodes.ToTable | nodes.Changes):
                scope = self.scopes.null_as_missing(scope)
            edges.append(self._edge(node, side, scope, parent, functions))
            if _reads_other_sides_store(node, side):
                edges.append(self._edge(node, AHEAD + side, scope, parent))
        return edges

    def _edge(
        self,
        node: nodes.Node,
        side: int,
        before: Scope,
        parent: nodes.Node,
        functions: Sequence[AggregateFunction] | None = None,
    ) -> Edge:
        """An edge from the scope `before`, which is after `parent`, into a side of a node."""
        is_aggregate = isinstance(node, nodes.Aggregate) and node.python is None and side != STORE
        is_of_processor = isinstance(node, nodes.Process) and side == LEFT
        key_text = _key_expression(node, side)
        texts = {} if key_text is None else {"key": key_text}
        if is_aggregate and functions is not None:
            for number, argument in enumerate(_arguments(node, side, functions)):
                if argument is not None:
                    texts[f"argument{number}"] = argument
        expires_at = _expires_at(node, side)
        if expires_at is not None:
            texts["expires"] = expires_at
        if isinstance(node, nodes.SetMetadata):
            texts |= metadata_texts(node)
        elif isinstance(node, nodes.ChangedRows):
            texts |= {"kind": "kind", "old": "old", "new": "new"}
        scope, sqls = self.columns.guard(before, node, parent, texts, key="key")
        own_key = self.columns.read(before, "_key")
        key = sqls.get("key", own_key)
        if nodes.is_keyed_by_window(node) and side != STORE and side < READ:
            key = windowed_key_sql(key)
        foreign = None if key_text is None else self._edge_foreign(node, before, own_key, sqls)
        if expires_at is not None:
            foreign = f"CAST({sqls['expires']} AS STRING)"
        is_passed_on = _is_passed_on(node, side)
        has_fields = is_passed_on and not scope.scalar and scope.unchanged_result is None
        values = (
            ()
            if has_fields
            else self._edge_values(scope, sqls, functions if is_aggregate else None)
        )
        is_null, is_json = self.columns.read_null(scope), False
        if isinstance(node, nodes.Cogroup) and side != STORE:
            is_json = node.python is not None
            # Windows also aggregate null values. The edge therefore carries an object with the
            # number of the record's stream and its value, which may be null.
            values = self._cogrouped_values(scope, side, values, is_json=is_json)
            is_null = is_null if requires_value(node, side) else "false"
        scalar, unchanged_result = (
            scope.scalar,
            None if is_aggregate or is_json else scope.unchanged_result,
        )
        if isinstance(node, nodes.ChangedRows):
            # The operator passes the new row on. In a deletion, the new row is null.
            values, is_null = (sqls["new"],), f"({is_null} OR {sqls['new']} IS NULL)"
            scalar, unchanged_result = node.shape.scalar, None
        scope = self._scope_into(node, side, scope, parent)
        edge = Edge(
            target=node.number,
            side=side,
            stage=scope.stage,
            topics=topics_of(parent),
            passed="",
            key=key,
            values=values,
            is_null=is_null,
            foreign=foreign,
            scalar=scalar,
            unchanged_result=unchanged_result,
            is_json=is_json,
            has_arguments=is_aggregate,
            has_old_values=self._takes_old_values(node, side),
            leaves_out_nulls=_leaves_out_nulls(node, side),
            is_passed_on=is_passed_on,
            requires_key=not is_of_processor,
            requires_value=requires_value(node, side),
            # In Kafka Streams, every record that a task reads advances the time of punctuators.
            counts_every_record=is_of_processor and scope.stage == 0,
            is_copied=isinstance(node, nodes.Process) and not is_of_processor,
            path=scope.path,
            rekeyed=_is_rekeyed(node, side, scope),
            results_of=scope.results_of,
            takes_latest=_takes_latest(node, side, parent),
        )
        self._edge_scopes[edge.column] = scope
        if has_fields:
            self._without_value.add(edge.column)
        return edge

    def _edge_foreign(
        self,
        node: nodes.Node,
        before: Scope,
        own_key: str,
        sqls: Mapping[str, str],
    ) -> str | None:
        """SQL of the column `foreign` of an edge into a node that computes a key.

        The column has the record's own key, except in these edges: in an edge into an aggregate of
        a stream, it has the value of a late record; into a step that sets metadata, the new time
        and headers; into a step that applies changes, the kind and the old row of a change. `sqls`
        has the SQL of the node's expressions by name.
        """
        if isinstance(node, nodes.SetMetadata):
            return metadata_sql(node, sqls)
        if isinstance(node, nodes.ChangedRows):
            return struct_json(named_struct({"kind": sqls["kind"], "old": sqls["old"]}))
        if isinstance(node, nodes.Aggregate) and not nodes.is_table(node.parent):
            return None if node.late is None else self.columns.json(before)
        # Of these operators, a row's own key includes its window. The other operators read
        # `Row.window`.
        if (
            isinstance(node, nodes.Aggregate | nodes.Process)
            and nodes.window_of(node.parent) is not None
        ):
            return windowed_key_sql(own_key)
        return own_key

    def _edge_values(
        self,
        scope: Scope,
        sqls: Mapping[str, str],
        functions: Sequence[AggregateFunction] | None,
    ) -> tuple[str, ...]:
        """SQL of an edge's values: the arguments of an aggregate's functions, or the value."""
        if functions is not None:
            return tuple(sqls.get(f"argument{number}", "NULL") for number in range(len(functions)))
        return ("value",) if scope.unchanged_result is not None else (self.columns.value(scope),)

    def _cogrouped_values(
        self,
        scope: Scope,
        side: int,
        values: tuple[str, ...],
        *,
        is_json: bool,
    ) -> tuple[str, ...]:
        """SQL of a cogrouped stream's values: the arguments, or JSON of the stream's number and the record's value."""
        if is_json:
            return (
                f"concat('[{side - COGROUPED},', coalesce({self.columns.json(scope)}, 'null'), ']')",
            )
        is_null = self.columns.read_null(scope)
        if is_null == "false":
            return values
        return tuple(
            value if value in ("NULL", EACH_RECORD) else f"IF({is_null}, NULL, {value})"
            for value in values
        )

    def _scope_into(self, node: nodes.Node, side: int, scope: Scope, parent: nodes.Node) -> Scope:
        """The scope, with the path that its rows have when they go into a side of a node."""
        match node:
            case nodes.Process():
                reads_store = side != LEFT
            case nodes.Join(kind="stream-table"):
                reads_store = side == RIGHT
            case nodes.Join():
                reads_store = side >= AHEAD
            case _:
                reads_store = False
        if reads_store:
            return replace(scope, path=self._path_into_store(scope, parent))
        # An edge into the node's own store is not counted as a branch.
        if parent is node:
            return scope
        number = side - COGROUPED if isinstance(node, nodes.Cogroup) else side
        return self.scopes.for_branch(scope, parent, node, number)

    def _path_into_store(self, scope: Scope, table: nodes.Node) -> tuple[str, ...]:
        """The path of rows that a node reads from a table's store. `scope`: after the table.

        In Kafka Streams, the store is updated before the change goes to any step after the table,
        but after the steps that were declared before the store.
        """
        while nodes.computes_rows(table):
            (table,) = nodes.parents(table)
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
        # Operators send a table's old value as a row of its own, which
        # only some of the next steps take.
        if edge.stage and not edge.has_old_values:
            passed += " AND NOT old"
        if edge.leaves_out_nulls:
            passed += f" AND NOT {edge.is_null}"
        return replace(edge, passed=passed)

    def _takes_old_values(self, node: nodes.Node, side: int) -> bool:
        """Whether a side of the node takes the old values of its input table, perhaps only to pass them on."""
        sends_old_values = node.number in self._sending_old_values
        match node:
            case nodes.Suppress() if sends_old_values:
                return side == LEFT
            case _:
                return side == LEFT and needs_old_values(node, nodes.parents(node)[0])

    def _require_different_hashes(self) -> None:
        """Raise TopologyError if two processors' stores have the same group number, which is a hash of the name."""
        groups: Counter[int | None] = Counter()
        for operator in self.operators:
            groups.update(store.group_id for store in operator.stores.values())
        for operator in self.operators:
            for name, store in operator.stores.items():
                if groups[store.group_id] > 1:
                    raise TopologyError(
                        f"{self.pipeline.name}: process at {operator.step.at}: the name of store "
                        f"{name!r} has the same hash as the name of another store.",
                        next_step="Rename the store.",
                    )


def _sends_old_values(pipeline: Graph, node: nodes.Node) -> bool:
    """Whether the node sends the old value of each change, because a later step needs it."""
    # As in Kafka Streams, the final result of a window has no old value.
    if nodes.only_adds(node):
        return False
    for child in children(pipeline, node):
        if needs_old_values(child, node):
            return True
        if _passes_on_old_values(child) and _sends_old_values(pipeline, child):
            return True
    return False


def _passes_on_old_values(node: nodes.Node) -> bool:
    """Whether the results of a node have old values that come from the old values of its input table."""
    return nodes.computes_rows(node) or isinstance(node, nodes.Suppress)


def _is_only_for_old(node: nodes.Node) -> bool:
    """Whether the node is needed only if a later step needs old values."""
    return isinstance(node, nodes.ToTable) and node.store is None


def _reads_other_sides_store(node: nodes.Node, side: int) -> bool:
    """Whether a join's other side depends on the table that this side maps or filters.

    In Kafka Streams, both sides read this table's store, which is updated before any step after the
    table.
    """
    if not isinstance(node, nodes.Join) or node.kind != "table-table":
        return False
    own, other = (node.left, node.right) if side == LEFT else (node.right, node.left)
    while nodes.computes_rows(own):
        (own,) = nodes.parents(own)
    return own in nodes.upstream(other)


def _is_copied_to_tasks(node: nodes.Node, number: int) -> bool:
    """Whether every worker gets all rows of the node's input with this number."""
    match node:
        case nodes.Join(right=nodes.Source(kind="global_table")):
            return number > 0
        case nodes.Process():
            return number > 0
        case _:
            return False


def _side_of(node: nodes.Node, number: int) -> int:
    """The side of the rows that come from the node's input with this number."""
    match node:
        case nodes.Cogroup():
            return COGROUPED + number
        case nodes.Process() if number > 0:
            return READ + number - 1
        case _:
            return number


def _key_expression(node: nodes.Node, side: int) -> str | None:
    """The expression for the key of the node's input; None for the record's key."""
    match node:
        case nodes.Cogroup(parts=parts) if side >= COGROUPED:
            return parts[side - COGROUPED].key
        case nodes.Aggregate(key=key) if side == LEFT:
            return key
        case nodes.Join(on=on) if side == LEFT:
            return on
        case nodes.StreamOperator(by=by):
            return by
        case nodes.Process(by=by) if side == LEFT:
            return by
        case _:
            return None


def _expires_at(node: nodes.Node, side: int) -> str | None:
    """SQL of the time at which the row of a table's record expires, epoch ms; None if records have no such time."""
    if isinstance(node, nodes.ToTable) and side == LEFT and node.expiry is not None:
        return node.expiry.at_ms
    return None


def _is_passed_on(node: nodes.Node, side: int) -> bool:
    """Whether a side of a node is a stream that is joined with a table, without waiting for versions of the table."""
    is_join = isinstance(node, nodes.Join) and node.kind == "stream-table"
    return is_join and side == LEFT and not joins_versions(node)


def _leaves_out_nulls(node: nodes.Node, side: int) -> bool:
    """Whether an edge into an aggregate of a table leaves out null values.

    There is nothing to subtract for a row that did not exist, and nothing to add for a row that is
    deleted or filtered out.
    """
    return isinstance(node, nodes.Aggregate) and side == LEFT and nodes.is_table(node.parent)


def _takes_latest(node: nodes.Node, side: int, table: nodes.Node) -> bool:
    """Whether an edge leaves out a versioned table's updates that are earlier than their key's latest update.

    As in Kafka Streams, only a stream of the table's changes, and a join of a stream with the
    table's versions, get such updates.
    """
    if nodes.history_of(table) is None:
        return False
    if isinstance(node, nodes.Sink):
        # An earlier update must not replace a database's row, or a key's latest change in a batch.
        return node.emit == "latest"
    return side == STORE or side >= READ or nodes.is_table(node) or isinstance(node, nodes.Changes)


def _is_rekeyed(node: nodes.Node, side: int, scope: Scope) -> bool:
    """Whether the node's input has a new key, so that Kafka Streams would send it through a repartition topic."""
    match node:
        case nodes.Cogroup(parts=parts) if side >= COGROUPED:
            return parts[side - COGROUPED].key != "_key" or scope.rekeyed
        case nodes.Aggregate(parent=parent, key=key) if side == LEFT:
            # Kafka Streams sends a grouped table through a repartition topic
            # even if the key stays the same.
            if nodes.is_table(parent) or key != "_key" or scope.rekeyed:
                return True
            # If the window is removed from a windowed key, the result is a new key.
            return nodes.window_of(parent) is not None and not node.by_window
        # Every task of Kafka Streams has the whole global table, so the join needs no repartition
        # topic.
        case nodes.Join() if nodes.joins_global_table(node):
            return False
        case nodes.Join(on=on):
            return scope.rekeyed or (side == LEFT and on is not None)
        case nodes.ToTable() if side == LEFT:
            return scope.rekeyed
        case _:
            return False


def _aggregate_functions(pipeline: Graph, node: nodes.Node) -> tuple[AggregateFunction, ...]:
    """The functions in an aggregate's columns. Raises TopologyError if a function cannot subtract old values."""
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
        if nodes.is_table(node.parent) and name not in SUBTRACTABLE:
            raise TopologyError(
                f"{pipeline.name}: aggregate into {node.store!r} at {node.at}: {name} cannot "
                "subtract a table's old value.",
                next_step=f"Use {', '.join(sorted(SUBTRACTABLE))}, or Python functions that add and subtract.",
            )
    return tuple(functions)


def _arguments(
    node: nodes.Node,
    side: int,
    functions: Sequence[AggregateFunction],
) -> list[str | None]:
    """The SQL of each function's argument on an edge into an aggregate; None for a function without an argument."""
    if isinstance(node, nodes.Cogroup):
        return [slot.arguments.get(side - COGROUPED) for slot in slots_of(node)]
    return [argument for _, argument, _ in functions]
