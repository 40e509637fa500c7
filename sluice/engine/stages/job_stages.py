"""The stages of a job: their tasks, the columns that they pass on, and the types of values."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeAlias

from sluice.engine.batch.arrow_tasks import BatchTask, TaskOfBatch
from sluice.engine.batch.row_batches import RowBatchWriter
from sluice.engine.batch.row_schemas import OFFSET_BITS
from sluice.engine.batch.storage import Storage
from sluice.engine.stages.advances import ReportAdvances
from sluice.engine.stages.build import stage_operator
from sluice.engine.stages.driver_rows import DriverRows
from sluice.engine.stages.foreign_key_moves import ForeignKeyMoves
from sluice.engine.stages.ingest import Ingest
from sluice.engine.stages.stage_output import StageOperator
from sluice.engine.stages.stage_task import Stage
from sluice.errors import TopologyError
from sluice.operators.base import AHEAD, COGROUPED, LEFT, RIGHT
from sluice.operators.changes import Changes
from sluice.plan import Column, Edge, Job, Layers, PlannedOperator
from sluice.plan.arrow_support import on_arrow
from sluice.plan.operator_parameters import (
    AggregateParameters,
    CallParameters,
    MergeParameters,
    ProcessParameters,
    PythonAggregateParameters,
    StreamJoinParameters,
    TableJoinParameters,
    TableLookupParameters,
)
from sluice.plan.planned_operators import STORE, result_column
from sluice.sql.aggregate_types import type_of_aggregate
from sluice.values.shapes import Shape
from sluice.values.sql_text import literal, struct_json, value_json
from sluice.values.sql_types import compact, struct_fields, struct_type

assert OFFSET_BITS == 40, "the plan has SQL that reads origins"

START = "X'00'"
"""SQL for the path of a record. The paths of the record's results begin with this path."""

Kinds: TypeAlias = Callable[[Sequence[Column]], Mapping[str, str]]
"""A function from columns to their types: name → type, in the form of `sql_types.compact`."""


@dataclass(frozen=True)
class KnownTypes:
    """The types known after some of a job's stages; each stage adds types to the earlier ones."""

    job: Job
    arguments: Mapping[int, list[str]] = field(default_factory=dict)
    """Aggregate → the types of its functions' arguments."""
    results: Mapping[str, str] = field(default_factory=dict)
    """Column of an operator's results, such as `v9` → its type; an empty text if the type is
    unknown."""
    values: Mapping[tuple[int, int], str] = field(default_factory=dict)
    """Target and side of an edge → the type of the edge's values."""

    def with_edges(self, stage: int, kinds: Kinds) -> tuple[Layers, KnownTypes]:
        """Return the columns of the edges from a stage, and the types with the edges' types added.

        `kinds` returns the types of columns that are computed from the columns before the edges.
        """
        edges = self.job.edges_from(stage)
        computed: list[Column] = []
        for edge in edges:
            if edge.unchanged_result is None:
                for number, sql in enumerate(edge.values):
                    computed.append(Column(f"{edge.column}_{number}", sql, edge.target))
        # Find the types of all edges at once, because Spark analyzes the whole query again for each
        # call.
        types: Mapping[str, str] = {}
        if computed:
            types = kinds(computed)
        columns: list[Column] = []
        # The conditions form a separate layer, because the other columns read them.
        conditions: list[Column] = []
        arguments, values = dict(self.arguments), dict(self.values)
        for edge in edges:
            own: list[str] = []
            if edge.unchanged_result is None:
                for number in range(len(edge.values)):
                    own.append(types[f"{edge.column}_{number}"])
                values[edge.target, edge.side] = own[0]
            else:
                values[edge.target, edge.side] = self.results.get(edge.unchanged_result, "")
            if edge.has_arguments:
                earlier = arguments.get(edge.target, own)
                arguments[edge.target] = _argument_types(self.job, edge, earlier, own)
            conditions.append(Column(edge.column, f"({edge.passed})", edge.target))
            columns += _edge_columns(edge, own)
        layers = (tuple(conditions), tuple(columns))
        return layers, replace(self, arguments=arguments, values=values)

    def with_shared_rows(self) -> KnownTypes:
        """Add the types of the edges that share the rows of other edges."""
        values = dict(self.values)
        for operator in self.job.operators:
            for edge in operator.edges:
                if edge.shares is not None:
                    shared = values[edge.shares.target, edge.shares.side]
                    values[edge.target, edge.side] = shared
        return replace(self, values=values)

    def with_results(self, stage: int) -> KnownTypes:
        """Return these types and the types of the results of a stage's operators."""
        results = dict(self.results)
        for operator in operators_of(self.job, stage):
            results.update(self._result_types(operator, results))
        return replace(self, results=results)

    def store_types(self) -> dict[str, str]:
        """Store → the type of its values."""
        types: dict[str, str] = {}
        for operator in self.job.operators:
            if operator.store is not None:
                types[operator.store] = self.values.get((operator.number, STORE), "")
        return types

    def input_types(self) -> dict[int, str]:
        """Return operator → the types of its inputs on the sides whose values it keeps."""
        types: dict[int, str] = {}
        for operator in self.job.operators:
            of_sides: list[str] = []
            for edge in operator.edges:
                if AHEAD <= edge.side < COGROUPED or edge.is_passed_on:
                    continue
                if edge.has_arguments:
                    of_sides.append(", ".join(self.arguments[operator.number]))
                else:
                    of_sides.append(self.values[edge.target, edge.side])
            types[operator.number] = "; ".join(of_sides)
        return types

    def _result_types(
        self, operator: PlannedOperator, results: Mapping[str, str]
    ) -> Iterable[tuple[str, str]]:
        """Yield the columns of an operator's results, with their types.

        `results` are the types of the results of earlier operators.
        """
        match operator.action:
            case ProcessParameters(outputs=outputs):
                for output in outputs.values():
                    yield output.column, compact(output.shape.kind)
            case PythonAggregateParameters(shape=shape):
                yield operator.result, compact(shape.kind)
            case AggregateParameters() as aggregate:
                yield operator.result, self._aggregate_type(operator, aggregate)
            case CallParameters(shape=shape):
                yield operator.result, compact(shape.kind)
            case TableLookupParameters(row=of_table):
                record = self.values[operator.number, 0]
                kind = ""
                if record:
                    kind = f"struct<left:{record},right:{compact(of_table.kind)}>"
                yield operator.result, kind
            case StreamJoinParameters() | TableJoinParameters():
                left = self.values[operator.number, LEFT]
                right = self.values[operator.number, RIGHT]
                fields = {"left": left, "right": right}
                if isinstance(operator.action, TableJoinParameters) and operator.action.mapped_key:
                    fields[operator.action.mapped_key] = "string"
                kind = ""
                if left and right:
                    kind = compact(struct_type(fields))
                yield operator.result, kind
            case Changes():
                row = self.values[operator.number, 0]
                kind = ""
                if row:
                    kind = f"struct<kind:string,old:{row},new:{row}>"
                yield operator.result, kind
            case MergeParameters():
                kinds = [self.values[edge.target, edge.side] for edge in operator.edges]
                yield operator.result, _one_type(operator, kinds)
            case _ if operator.chained_to is not None:
                yield operator.result, results[result_column(operator.chained_to)]
            case _:
                yield operator.result, self.values[operator.number, 0]

    def _aggregate_type(self, operator: PlannedOperator, action: AggregateParameters) -> str:
        kinds = self.arguments[operator.number]
        results: list[str] = []
        for (name, _, _), kind in zip(action.functions, kinds, strict=True):
            results.append(type_of_aggregate(name, kind))
        if action.scalar and action.plain:
            return results[0]
        return compact(struct_type(dict(zip(action.result_names, results, strict=True))))


@dataclass(frozen=True)
class Stages:
    """Makes the tasks of a job's stages."""

    job: Job
    storage: Storage
    ingest: Ingest
    epoch: int
    """Epoch of the lease under which states are written."""
    shard_writer: TaskOfBatch
    """The task that writes a worker's rows to its shard."""

    def task(self, number: int, known: KnownTypes) -> Stage:
        """Return the task that runs a stage's operators, given the types before the stage."""
        job, only_stored = self.job, self.job.store_only_operators
        last_only = job.last_only_operators
        chained_to = job.operators_with_chained
        only_changes = job.operators_of_changes
        built: list[StageOperator] = []
        for operator in operators_of(job, number):
            is_read = operator.result in operator.columns_read
            built.append(
                stage_operator(
                    operator,
                    known.arguments,
                    is_read=is_read,
                    only_stored=operator.number in only_stored,
                    only_last=operator.number in last_only,
                    only_changes=operator.number in only_changes,
                    has_listeners=operator.number in chained_to,
                    connections=self.storage.connections,
                )
            )
        return Stage(
            number,
            self.ingest.stream_times,
            self.storage.side_outputs,
            self.storage.locations,
            tuple(built),
            job.edges_sharing_rows(number),
            only_stored,
            job.topics_by_source,
            self.epoch,
            self.storage.token,
        )

    def last_tasks(self, number: int) -> tuple[BatchTask | TaskOfBatch, ...]:
        """Return the tasks that run when a stage's results have become rows for their targets.

        The last of them yields row batches for the next tasks or, if it has written the shards,
        only side outputs.
        """
        report_advances = ReportAdvances.of(self.job, number)
        moves = ForeignKeyMoves.of(self.job, number)
        needed: list[BatchTask | TaskOfBatch] = []
        if report_advances.operators:
            needed.append(report_advances)
        if moves.joins:
            needed.append(moves)
        workers, side_outputs = self.job.pipeline.workers, self.storage.side_outputs
        needed.append(DriverRows.of(self.job, number, side_outputs))
        if number == self.job.stage_count and self.job.writes_in_last_stage:
            return (*needed, self.shard_writer)
        return (*needed, RowBatchWriter(workers, side_outputs, copied=self.job.copied))


def first_edges(job: Job, kinds: Kinds) -> tuple[Layers, KnownTypes]:
    """Return the columns that edges from stateless steps need, and the types known at the start."""
    layers, known = KnownTypes(job).with_edges(0, kinds)
    paths: list[Column] = []
    for edge in job.edges_from(0):
        if edge.path_column is not None:
            paths.append(Column(edge.path_column, edge.path_from(START), edge.target))
    if paths:
        layers = (*layers, tuple(paths))
    return layers, known.with_shared_rows()


def operators_of(job: Job, stage: int) -> list[PlannedOperator]:
    """Return the operators of a stage."""
    return [operator for operator in job.operators if operator.stage == stage]


def results_of(job: Job, stage: int) -> tuple[tuple[PlannedOperator, str], ...]:
    """Return the operators of a stage with the columns of their results.

    Omits results that no later expression reads.
    """
    results: list[tuple[PlannedOperator, str]] = []
    for operator in operators_of(job, stage):
        for column in sorted(operator.columns_read):
            results.append((operator, column))
    return tuple(results)


def _edge_columns(edge: Edge, kinds: list[str]) -> list[Column]:
    """Return the columns of the rows of an edge, whose values have the types `kinds`."""
    value = f"IF({edge.column} AND NOT {edge.is_null}, {_json(edge, kinds)}, NULL)"
    columns = [
        Column(edge.key_column, f"IF({edge.column}, {edge.key}, NULL)", edge.target),
        Column(edge.value_column, value, edge.target),
    ]
    if edge.foreign is not None:
        foreign = f"IF({edge.column}, {edge.foreign}, NULL)"
        columns.append(Column(edge.foreign_column, foreign, edge.target))
    return columns


def _argument_types(job: Job, edge: Edge, earlier: list[str], kinds: list[str]) -> list[str]:
    """Return the types of an aggregate's arguments. `earlier` has their types so far.

    A cogrouped stream has no type for the arguments of other streams.

    Raises TopologyError if two streams have different types for an argument.
    """
    types: list[str] = []
    for of_earlier, kind in zip(earlier, kinds, strict=True):
        if of_earlier != kind and "void" not in (of_earlier, kind):
            raise TopologyError(
                f"{job.pipeline.steps[edge.target]}: a column would add up values of the types "
                f"{of_earlier} and {kind}.",
                next_step="Convert them to the same type with CAST, or give one of the two "
                "columns another name.",
            )
        if of_earlier == "void":
            types.append(kind)
        else:
            types.append(of_earlier)
    return types


def parsed(operator: PlannedOperator, kind: str) -> str:
    """Return SQL that decodes an operator's results from JSON."""
    result = f"IF(emitted AND target = {operator.number}, value, NULL)"
    if not kind:
        return f"parse_json({result})"
    if struct_fields(kind):
        return f"from_json({result}, {literal(kind)})"
    return Shape.single(kind).value_sql(result)


def _one_type(operator: PlannedOperator, kinds: list[str]) -> str:
    """Return the common type of a merge's streams; empty if the type of any stream is unknown.

    Raises TopologyError if the types differ.
    """
    if not all(kinds):
        return ""
    first, *rest = kinds
    for other in rest:
        if _fields(other) != _fields(first):
            raise TopologyError(
                f"{operator.step}: one stream has values of type {first}, another of type {other}.",
                next_step="Convert them to the same type with CAST in select or map_values.",
            )
    return first


def _fields(kind: str) -> frozenset[tuple[str, str]]:
    """Return a struct's fields and their types, regardless of order.

    Any other type counts as one field without a name.
    """
    return frozenset((struct_fields(kind) or {"": kind}).items())


_JOINED = ", ',', "
"""The SQL between two elements in a call of SQL's `concat` that makes a JSON list."""
_WRITTEN_AS_TEXT = ("tinyint", "smallint", "int", "bigint", "boolean")


def _json(edge: Edge, kinds: list[str]) -> str:
    """Return SQL for an edge's value as JSON text."""
    if edge.unchanged_result is not None:
        return "value"
    if edge.is_json:
        return edge.values[0]
    if edge.has_arguments:
        parts = [_argument(sql, kind) for sql, kind in zip(edge.values, kinds, strict=True)]
        return f"concat('[', {_JOINED.join(parts)}, ']')"
    if edge.scalar:
        return value_json(edge.values[0])
    return struct_json(edge.values[0])


def _argument(sql: str, kind: str) -> str:
    if kind == "void":
        return "'null'"
    if kind in _WRITTEN_AS_TEXT or kind.startswith("decimal"):
        return f"coalesce(CAST({sql} AS STRING), 'null')"
    return value_json(sql)


def kinds_by_name(types: Mapping[str, str]) -> Kinds:
    """Return a function that derives the types of columns from `types`.

    `types` has the types of the columns that these columns read. The function raises
    NeedsSparkError for a column that Spark must compute.
    """

    def kinds(columns: Sequence[Column]) -> Mapping[str, str]:
        typed: dict[str, str] = {}
        for column in columns:
            typed[column.name] = compact(on_arrow(column.sql, types).type)
        return typed

    return kinds
