"""Assign the operators that need each key's records in order to stages."""

from __future__ import annotations

import zlib
from collections import Counter
from collections.abc import Iterable
from dataclasses import replace

from sluice.errors import TopologyError
from sluice.operators.aggregation.aggregate_functions import SUBTRACTABLE
from sluice.operators.base import AHEAD, LEFT, RIGHT
from sluice.operators.deduplicate import Deduplicate
from sluice.plan.builder import PlanBuilder, Scope, column_read, masked, null_read, tried, turned
from sluice.plan.columns import made_of, null_scalars, scope_of
from sluice.plan.definitions import declared, step_definition, upstream_definition
from sluice.plan.jobs import STORE, Edge, PlannedOperator, result_column
from sluice.plan.node_steps import sink_of, topics_of
from sluice.plan.operator_nodes import children, is_operator, is_or_follows_operator, why_operator
from sluice.plan.operator_parameters import (
    Action,
    Aggregate,
    Latest,
    Merge,
    Process,
    ProcessorOutput,
    ProcessorStore,
    PythonAggregate,
    StreamJoin,
    Suppress,
    TableJoin,
)
from sluice.sql.aggregate_expressions import Parts, split_aggregate
from sluice.topology import nodes
from sluice.topology.pipeline import Pipeline
from sluice.topology.serdes import shape_of
from sluice.values.aggregate_calls import AggregateFunction
from sluice.values.references import Reference, reference
from sluice.values.windows import JoinWindow, SlidingWindow


class Planner:
    """Assigns a pipeline's operators to stages, and adds their columns to `builder`."""

    def __init__(self, builder: PlanBuilder) -> None:
        self.builder = builder
        self.pipeline = builder.pipeline
        self.scopes: dict[str, Scope] = {}
        """Edge's column → the scope at its start."""
        operator_nodes = [
            node for node in self.pipeline.nodes if is_operator(self.pipeline, node) or self._may_differ(node)
        ]
        self.retracting = {node.number for node in operator_nodes if self._is_retracted(node)}
        self.nodes = [
            node for node in operator_nodes if node.number in self.retracting or not self._is_only_for_old(node)
        ]
        self.operators: list[PlannedOperator] = []
        self.edges: list[Edge] = []

    def plan(self) -> None:
        """Create the operators, each after its inputs, and the edges into their stores."""
        for node in self.nodes:
            if (
                not isinstance(node, nodes.Merge)
                or len({scope_of(self.builder, stream).stage for stream in node.streams}) > 1
            ):
                self.operators.append(self._operator(node))
        numbers = Counter(store.group_id for operator in self.operators for store in operator.stores.values())
        for operator in self.operators:
            if alike := [name for name, store in operator.stores.items() if numbers[store.group_id] > 1]:
                raise TopologyError(
                    f"{self.pipeline.name}: process at {operator.step.at}: the name of store {alike[0]!r} has the same "
                    "hash as the name of another store.",
                    next_step="Rename the store.",
                )
            if operator.store is not None:
                node = self.pipeline.whole.nodes[operator.number]
                self.edges.append(self._edge(node, STORE, scope_of(self.builder, node, old=True), node))

    def sink(self, node: nodes.Sink) -> Edge:
        """Add the edge into a sink after an operator."""
        edge = self._edge(node, LEFT, scope_of(self.builder, node.parent), node.parent)
        self.edges.append(edge)
        return edge

    def peek(self, node: nodes.Apply) -> None:
        """Call a function after an operator.

        The edge's condition reads the function's result, which is always null, so that Spark computes it.
        """
        scope = scope_of(self.builder, node)
        edge = self._edge(node, LEFT, scope, node)
        self.scopes[edge.column] = replace(scope, passed=f"({scope.passed} AND r{node.number}.value IS NOT NULL)")
        self.edges.append(edge)

    def finish(self) -> tuple[tuple[PlannedOperator, ...], tuple[Edge, ...]]:
        """The operators and edges, with their conditions, which can be built only after all columns exist."""
        clocks = {operator.number: operator.name for operator in self.operators}
        waited_for = {operator.chained_to for operator in self.operators}
        operators = (
            replace(
                operator,
                edges=tuple(map(self._finished, operator.edges)),
                clock=operator.name if operator.chained_to is None else clocks[operator.chained_to],
                waits_for_close=operator.waits_for_close or operator.number in waited_for,
                columns_read=frozenset(self._results(operator)) & self.builder.results_read,
            )
            for operator in self.operators
        )
        return tuple(operators), tuple(map(self._finished, self.edges))

    @staticmethod
    def _results(operator: PlannedOperator) -> list[str]:
        if isinstance(operator.action, Process):
            return [output.column for output in operator.action.outputs.values()]
        return [operator.result]

    def _finished(self, edge: Edge) -> Edge:
        passed = masked(self.builder, self.scopes[edge.column])
        if edge.stage and not edge.has_old_values:
            passed += " AND NOT old"
        if edge.has_arguments and edge.has_old_values:
            passed += f" AND NOT {edge.is_null}"
        return replace(edge, passed=passed)

    def _may_differ(self, node: nodes.Node) -> bool:
        """Whether the node merges streams that may come from different stages."""
        return isinstance(node, nodes.Merge) and is_or_follows_operator(self.pipeline, node)

    @staticmethod
    def _is_only_for_old(node: nodes.Node) -> bool:
        """Whether the node is of use only to steps that need old values."""
        return isinstance(node, nodes.ToTable) and node.store is None

    def _operator(self, node: nodes.Node) -> PlannedOperator:
        inline = None
        # A suppress step behind a join has a stream time of its own: many of the join's rows cause no result.
        if isinstance(node, nodes.Suppress) and not isinstance(node.parent, nodes.Join):
            upstream = (operator for operator in self.operators if operator.number == node.parent.number)
            inline = next((operator for operator in upstream if operator.chained_to is None), None)
        functions = self._functions(node)
        edges = [] if inline else self._sides(node, functions)
        stage = inline.stage if inline else max(edge.stage for edge in edges) + 1
        self.builder.operators[node.number] = stage
        if inline:
            self.builder.inline.add(node.number)
        late = node.late if isinstance(node, nodes.Aggregate) else None
        late_sink = None if late is None or late in self.builder.late else sink_of(late)
        self.builder.late |= {late} if late is not None else set()
        return PlannedOperator(
            step=self.builder.steps[node.number], stage=stage, action=action_of(node, functions), edges=tuple(edges),
            topics=topics_of(node), retracts=node.number in self.retracting,
            chained_to=inline.number if inline else None,
            clock=node.name, waits_for_close=waits_for_close(node), store=getattr(node, "store", None),
            grouped_by=getattr(node, "key", "_key"), window=nodes.window_of(node), late=late_sink,
            upstream_definition=upstream_definition(node), reason=why_operator(self.pipeline, node),
            definition=step_definition(node),
        )  # fmt: skip

    def _sides(self, node: nodes.Node, functions: tuple[AggregateFunction, ...]) -> list[Edge]:
        edges = []
        for side, parent in enumerate(nodes.parents(node)):
            scope = scope_of(self.builder, parent, old=self._needs_old_values(node) and side == LEFT)
            if isinstance(node, nodes.ToTable):
                scope = null_scalars(self.builder, scope)
            edges.append(self._edge(node, side, scope, parent, functions))
            if _is_shared(node, side):
                edges.append(self._edge(node, AHEAD + side, scope, parent))
        return edges

    def _edge(
        self,
        node: nodes.Node,
        side: int,
        scope: Scope,
        parent: nodes.Node,
        functions: tuple[AggregateFunction, ...] | None = None,
    ) -> Edge:
        builder = self.builder
        arguments = isinstance(node, nodes.Aggregate) and node.python is None and side == LEFT
        texts = dict(self._key_text(node, side))
        if arguments and functions is not None:
            texts |= {f"argument{i}": text for i, (_, text, _) in enumerate(functions) if text is not None}
        before = scope
        scope, sqls = tried(builder, scope, node, parent, texts, key="key")
        key, foreign = self._key(node, before, sqls.get("key"))
        if arguments and functions is not None:
            values = tuple(sqls.get(f"argument{i}", "NULL") for i in range(len(functions)))
        else:
            values = (scope.value(builder) if scope.raw is None else "value",)
        if side >= AHEAD or (isinstance(node, nodes.Join) and node.kind == "stream-table" and side == RIGHT):
            # The join reads the table's store, which is updated before any step after the table gets the change.
            scope = replace(scope, path=())
        elif parent is not node:
            scope = turned(builder, scope, parent, node, side)
        edge = Edge(
            target=node.number, side=side, stage=scope.stage, topics=topics_of(parent), passed="", key=key,
            values=values, is_null=null_read(builder, scope), foreign=foreign, scalar=scope.scalar,
            unchanged_result=None if arguments else scope.raw, has_arguments=arguments,
            has_old_values=self._needs_old_values(node) and side == LEFT,
            requires_key=not isinstance(node, nodes.Process), requires_value=_requires_value(node), path=scope.path,
            rekeyed=_is_rekeyed(node, side, scope), results_of=scope.results_of,
        )  # fmt: skip
        self.scopes[edge.column] = scope
        return edge

    @staticmethod
    def _key_text(node: nodes.Node, side: int) -> Iterable[tuple[str, str]]:
        """Yield the expression for the key of the node's input, unless it is the record's key."""
        match node:
            case nodes.Aggregate(key=key) if side == LEFT:
                yield "key", key
            case nodes.Join(on=on) if side == LEFT and on is not None:
                yield "key", on
            case nodes.StreamOperator(by=by):
                yield "key", by

    def _key(self, node: nodes.Node, scope: Scope, made: str | None) -> tuple[str, str | None]:
        """SQL of the key of the node's input, and of the record's original key, or value for late records."""
        own = column_read(self.builder, scope, "_key")
        if made is None:
            return own, None
        if isinstance(node, nodes.Aggregate) and not nodes.is_table(node.parent):
            # Late records are written with the value that they have before the aggregate.
            return made, None if node.late is None else scope.json(self.builder)
        return made, own

    def _functions(self, node: nodes.Node) -> tuple[AggregateFunction, ...]:
        """The functions in an aggregate's columns."""
        if not isinstance(node, nodes.Aggregate) or node.python is not None:
            return ()
        functions: dict[AggregateFunction, None] = {}
        for text in node.columns.values():
            parts = split_aggregate(text)
            assert isinstance(parts, Parts)
            functions |= dict.fromkeys(parts.functions)
        wrong = [name for name, *_ in functions if nodes.is_table(node.parent) and name not in SUBTRACTABLE]
        if wrong:
            raise _no_subtraction(self.pipeline, node, wrong[0])
        return tuple(functions)

    def _is_retracted(self, node: nodes.Node) -> bool:
        """Whether any consumer of the node's results also needs the old values."""
        return any(
            (needs_retractions(child) and node is nodes.parents(child)[0])
            or (isinstance(child, _PASSING_ON_OLD_VALUES) and self._is_retracted(child))
            for child in children(self.pipeline, node)
        )

    def _needs_old_values(self, node: nodes.Node) -> bool:
        """Whether the node takes the old values of its input table; a suppress step takes them to pass them on."""
        return needs_retractions(node) or (isinstance(node, nodes.Suppress) and node.number in self.retracting)


def _is_filtered(node: nodes.Node) -> bool:
    """Whether the node holds back the updates of a filtered table, perhaps mapped before and after the filter."""
    return isinstance(node, nodes.Suppress) and _follows_filter(node.parent)


def _follows_filter(node: nodes.Node) -> bool:
    """Whether the node is a filter or a mapping of a filter's rows."""
    while isinstance(node, nodes.Select | nodes.MapValues):
        node = node.parent
    return isinstance(node, nodes.Filter)


def _is_shared(node: nodes.Node, side: int) -> bool:
    """Whether a join's other side depends on the table that this side maps or filters.

    In Kafka Streams, both sides read this table's store, which is updated before any step after the table.
    """
    if not isinstance(node, nodes.Join) or node.kind != "table-table":
        return False
    own, other = (node.left, node.right) if side == LEFT else (node.right, node.left)
    while isinstance(own, nodes.Filter | nodes.Select | nodes.MapValues):
        own = own.parent
    return own in nodes.upstream(other)


_PASSING_ON_OLD_VALUES = nodes.Filter | nodes.Select | nodes.MapValues | nodes.Suppress


_FIRST_ENTRIES = 1 << 30
_ENTRIES = (1 << 30) - 1_024


def is_of_processor(group_id: int) -> bool:
    """Whether the group number belongs to a processor's store."""
    return group_id >= _FIRST_ENTRIES


def waits_for_close(node: nodes.Node) -> bool:
    """Whether an operator can emit results without a new record, when stream time advances."""
    match node:
        case nodes.Aggregate(window=window):
            return window is not None
        case nodes.Join(kind=kind):
            return kind == "stream-stream"
        case nodes.Suppress() | nodes.Process() | nodes.StreamOperator():
            return True
        case _:
            return False


def action_of(node: nodes.Node, functions: tuple[AggregateFunction, ...]) -> Action:
    """The operator of a node, as a value of the plan."""
    match node:
        case nodes.Aggregate(python=None):
            plain = not functions or made_of(node) is None
            table = nodes.is_table(node.parent)
            return Aggregate(node.window, functions, tuple(node.columns), node.scalar, plain, table, node.retention_ms)
        case nodes.Aggregate(python=nodes.PythonAggregate() as python):
            return PythonAggregate(
                node.window, reference(python.initializer), Reference(python.adder), reference(python.subtractor),
                reference(python.merger), reference(python.takes), reference(python.returns), python.shape,
                nodes.is_table(node.parent), node.retention_ms,
            )  # fmt: skip
        case nodes.Merge():
            return Merge()
        case nodes.ToTable():
            return Latest()
        case nodes.Suppress():
            window = nodes.window_of(node)
            wait_ms = window.open_ms if node.until == "window_close" and window else node.limit_ms
            limits = node.max_records, node.max_bytes, node.when_full
            return Suppress(node.until, wait_ms, *limits, filtered=_is_filtered(node))
        case nodes.Join(kind="stream-stream", window=JoinWindow() as within):
            return StreamJoin(node.how, within)
        case nodes.Join():
            assert node.kind != "stream-stream"
            filtered = _follows_filter(node.left), _follows_filter(node.right)
            return TableJoin(node.how, node.kind, node.on is not None, filtered)
        case nodes.Deduplicate():
            return Deduplicate(node.within_ms)
        case nodes.Process():
            return _process(node)
        case _:
            raise AssertionError(f"{node.name} is not an operator")


def _process(node: nodes.Process) -> Process:
    stores = {
        # Group numbers depend only on the stores' names, because stores can be added and removed.
        name: ProcessorStore(
            Reference(kind), ttl_ms, f"map<string,{declared(kind)}>",
            _FIRST_ENTRIES + zlib.crc32(name.encode()) % _ENTRIES if node.queryable else None,
        )
        for name, (kind, ttl_ms) in node.stores.items()
    }  # fmt: skip
    outputs = {
        name: ProcessorOutput(reference(kind), result_column(node.number, number), shape_of(kind))
        for number, (name, kind) in enumerate(node.returns.items())
    }
    return Process(Reference(node.processor), stores, reference(node.takes), outputs, node.queryable)


def needs_retractions(node: nodes.Node) -> bool:
    """Whether the node needs the old values of its input table."""
    match node:
        case nodes.Aggregate(parent=parent):
            return nodes.is_table(parent)
        case nodes.Join(kind=kind):
            return kind == "foreign-key"
        case _:
            return _is_filtered(node)


def _requires_value(node: nodes.Node) -> bool:
    """Whether the node drops records without a value."""
    match node:
        case nodes.Join():
            return not nodes.is_table(node)
        case nodes.Aggregate(parent=parent, window=window):
            return not nodes.is_table(parent) and (window is None or isinstance(window, SlidingWindow))
        case _:
            return False


def _is_rekeyed(node: nodes.Node, side: int, scope: Scope) -> bool:
    """Whether the node's input has a new key, so that Kafka Streams would send it through a repartition topic."""
    match node:
        case nodes.Aggregate(parent=parent, key=key) if side == LEFT:
            return nodes.is_table(parent) or key != "_key" or scope.rekeyed
        case nodes.Join(on=on):
            return scope.rekeyed or (side == LEFT and on is not None)
        case nodes.ToTable() if side == LEFT:
            return scope.rekeyed
        case _:
            return False


def _no_subtraction(pipeline: Pipeline, node: nodes.Aggregate, function: str) -> TopologyError:
    return TopologyError(
        f"{pipeline.name}: aggregate into {node.store!r} at {node.at}: {function} cannot subtract a table's old value.",
        next_step=f"Use {', '.join(sorted(SUBTRACTABLE))}, or Python functions that add and subtract.",
    )
