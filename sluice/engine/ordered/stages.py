"""The DataFrames of an ordered job's stages: rows are sent to workers, pass operators, and become columns again."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field

from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame
from pyspark.sql import types as spark
from pyspark.sql.types import _parse_datatype_string as parse_ddl

from sluice.engine.batch.arrow import Chain
from sluice.engine.batch.parcels import PARCEL_DDL, Pack, unpack
from sluice.engine.batch.rows import OFFSET_BITS, REJECTED, ROW, ROW_DDL
from sluice.engine.batch.spark_types import ddl
from sluice.engine.batch.storage import Storage
from sluice.engine.ordered.advances import Gather
from sluice.engine.ordered.build import result_type, stage_operator
from sluice.engine.ordered.foreign_keys import Moves
from sluice.engine.ordered.ingest import Ingest
from sluice.engine.ordered.routes import Routes
from sluice.engine.ordered.stage_task import Stage
from sluice.engine.steps.attempts import rejection, with_columns
from sluice.engine.steps.sql_errors import select
from sluice.errors import EngineError, TopologyError
from sluice.operators.base import AHEAD
from sluice.plan import (
    Attempt,
    Column,
    Edge,
    Failure,
    Layers,
    OrderedJob,
    OrderedOperator,
    Transformation,
)
from sluice.plan.jobs import STORE, result_column
from sluice.plan.operators import Aggregate, Merge, Process, PythonAggregate, StreamJoin, TableJoin
from sluice.settings import settings
from sluice.values.shapes import Shape
from sluice.values.sql import TO_JSON, VALUE_JSON, backticked, literal
from sluice.values.sql_types import compact, struct_type

assert OFFSET_BITS == 40, "the plan has SQL that reads origins"


def with_layers(frame: DataFrame, layers: Layers) -> DataFrame:
    """Add the columns of every layer."""
    for layer in layers:
        if isinstance(layer, Transformation):
            frame = _transformed(frame, layer)
            continue
        plain = [column for column in layer if isinstance(column, Column)]
        attempts = [column for column in layer if isinstance(column, Attempt)]
        frame = with_columns(frame, plain, attempts)
    return frame


START = "X'00'"
"""SQL of the path of a record."""

_ROW = "_row"
_OPERATION = re.compile(r"^[\s:+~'-]*(\w+)", re.MULTILINE)
_ROW_CHANGES = frozenset({
    "Aggregate", "Deduplicate", "DeduplicateWithinWatermark", "Distinct", "Except", "Expand", "Filter", "Generate",
    "GlobalLimit", "Intersect", "LocalLimit", "Offset", "Sample", "Sort", "Union",
})  # fmt: skip


def _transformed(frame: DataFrame, step: Transformation) -> DataFrame:
    """Add the columns of an author's DataFrame function."""
    argument = frame.selectExpr(f"struct(*) AS {_ROW}", *(f"{sql} AS {backticked(name)}" for name, sql in step.given))
    try:
        result = step.function.value(argument)
    except AnalysisException as error:
        raise EngineError(f"The function at {step.at} failed: {str(error).splitlines()[0]}") from error
    if not isinstance(result, DataFrame):
        raise EngineError(f"The function at {step.at} returns {type(result).__name__}, not a DataFrame.")
    used = _operations(result)
    if changes := Counter(used) - Counter(_operations(argument)):
        first = next(name for name in used if name in changes)
        raise EngineError(
            f"The function at {step.at} must keep every row and the order of the rows, but it uses {first}.",
            next_step="Filter and aggregate with the steps of the pipeline, before or after transform.",
        )
    missing = {_ROW, *(name for name, _, _ in step.made)} - set(result.columns)
    if missing:
        raise EngineError(
            f"The function at {step.at} returns a DataFrame without {', '.join(sorted(missing))}.",
            next_step="Return its argument with further columns, as withColumn does.",
        )
    for name, _, kind in step.made:
        has, declared = result.schema[name].dataType, parse_ddl(kind)
        if _family(has) != _family(declared):
            raise EngineError(
                f"The function at {step.at} returns the column {name} as {ddl(has)}, but returns= declares "
                f"{ddl(declared)}.",
                next_step="Cast the column, or declare its type.",
            )
    return result.selectExpr(f"{_ROW}.*", *(f"{backticked(name)} AS {column}" for name, column, _ in step.made))


def _family(kind: spark.DataType) -> type[spark.DataType]:
    """The type, or NumericType for all numbers."""
    return spark.NumericType if isinstance(kind, spark.NumericType) else type(kind)


def _operations(frame: DataFrame) -> list[str]:
    """The operations of a DataFrame that drop, add or sort rows, the last one first."""
    plan = frame._jdf.queryExecution().analyzed().treeString()
    return [name for name in _OPERATION.findall(plan) if name in _ROW_CHANGES]


@dataclass
class Stages:
    """Builds the DataFrames of a job's stages in sequence, and collects the types of values."""

    job: OrderedJob
    storage: Storage
    ingest: Ingest
    epoch: int
    """Epoch of the lease under which states are written."""
    arguments: dict[int, list[spark.DataType]] = field(default_factory=dict)
    types: dict[str, str] = field(default_factory=dict)
    """Column of an operator's results, such as `v9` → its DDL type; empty if unknown."""
    _values: dict[tuple[int, int], str] = field(default_factory=dict)
    """Target and side of an edge → the type of the edge's values."""

    def first_edges(self, records: DataFrame) -> Layers:
        """The columns of the edges from the stateless steps."""
        edges = self.job.feeds_of(0)
        paths = [
            Column(edge.path_column, edge.path_from(START), edge.target)
            for edge in edges
            if edge.path_column is not None
        ]
        return (*self._edges(records, edges), *([tuple(paths)] if paths else []))

    def parcels(self, ingested: DataFrame) -> DataFrame:
        """Parcels of the rows for stores and sinks, computed from parcels of the ingested rows by all stages."""
        parcels = ingested
        for number in range(1, self.job.stages + 1):
            parcels = self._through(number, parcels)
        return parcels

    def store_types(self) -> dict[str, str]:
        """Store → the type of its values."""
        return {
            operator.store: self._values.get((operator.number, STORE), "")
            for operator in self.job.operators
            if operator.store is not None
        }

    def input_types(self) -> dict[int, str]:
        """Operator → the types of its inputs on all sides."""
        return {
            operator.number: "; ".join(
                ", ".join(ddl(kind) for kind in self.arguments[operator.number])
                if edge.arguments
                else self._values[edge.target, edge.side]
                for edge in operator.edges
                if edge.side < AHEAD
            )
            for operator in self.job.operators
        }

    def _edges(self, frame: DataFrame, edges: list[Edge]) -> Layers:
        """The columns of edges; also records the types of their values."""
        values = [
            Column(f"{edge.column}_{i}", sql, edge.target)
            for edge in edges
            if edge.raw is None
            for i, sql in enumerate(edge.values)
        ]
        schema = select(frame, values).schema if values else None
        kinds = {} if schema is None else {column.name: schema[column.name].dataType for column in values}
        columns: list[Column] = []
        for edge in edges:
            own = [] if edge.raw is not None else [kinds[f"{edge.column}_{i}"] for i in range(len(edge.values))]
            if edge.arguments:
                self.arguments[edge.target] = own
            kind = ddl(own[0]) if edge.raw is None else self.types.get(edge.raw, "")
            self._values[edge.target, edge.side] = kind
            value = f"IF({edge.column} AND NOT {edge.is_null}, {_json(edge, own)}, NULL)"
            columns.append(Column(edge.key_column, f"IF({edge.column}, {edge.key}, NULL)", edge.target))
            columns.append(Column(edge.value_column, value, edge.target))
            if edge.foreign is not None:
                columns.append(Column(edge.foreign_column, f"IF({edge.column}, {edge.foreign}, NULL)", edge.target))
        return tuple(Column(edge.column, f"({edge.passed})", edge.target) for edge in edges), tuple(columns)

    def _through(self, number: int, parcels: DataFrame) -> DataFrame:
        job = self.job
        operators = [operator for operator in job.operators if operator.stage == number]
        only_stored = job.only_stored
        stage = Stage(
            number,
            self.ingest.stream_times,
            self.storage.locations,
            tuple(
                stage_operator(
                    each, self.arguments, is_read=each.result in each.read, only_last=each.number in only_stored
                )
                for each in operators
            ),
            only_stored,
            {source.number: source.topic for source in job.streams},
            self.epoch,
            settings().server_token,
        )
        for operator in operators:
            self.types |= dict(self._result_types(operator))
        shuffled = parcels.repartitionById(job.pipeline.workers, "worker")
        frame, edges = self._with_results(number, shuffled.mapInArrow(Chain((unpack, stage)).__call__, ROW_DDL))
        gather = Gather.of(job, number)
        moves = Moves.of(job, number)
        gathering = (*((gather,) if gather.operators else ()), *((moves,) if moves.joins else ()))
        last = (*gathering, Pack(job.pipeline.workers))
        routes = Routes.of(job, number)
        if routes is not None:
            return shuffled.mapInArrow(Chain((unpack, stage, routes, *last)).__call__, PARCEL_DDL)
        return self._routed(number, with_layers(frame, edges)).mapInArrow(Chain(last).__call__, PARCEL_DDL)

    def _result_types(self, operator: OrderedOperator) -> Iterable[tuple[str, str]]:
        """The columns of an operator's results, with their types."""
        match operator.action:
            case Process(outputs=outputs):
                for output in outputs.values():
                    yield output.column, compact(output.shape.kind)
            case PythonAggregate(shape=shape):
                yield operator.result, compact(shape.kind)
            case Aggregate() as aggregate:
                yield operator.result, self._aggregate_type(operator, aggregate)
            case StreamJoin() | TableJoin():
                left, right = (self._values[operator.number, side] for side in (0, 1))
                yield operator.result, f"struct<left:{left},right:{right}>" if left and right else ""
            case Merge():
                kinds = [self._values[edge.target, edge.side] for edge in operator.edges]
                yield operator.result, _one_type(operator, kinds)
            case _ if operator.inline is not None:
                yield operator.result, self.types[result_column(operator.inline)]
            case _:
                yield operator.result, self._values[operator.number, 0]

    def _aggregate_type(self, operator: OrderedOperator, action: Aggregate) -> str:
        kinds = self.arguments[operator.number]
        results = [result_type(name, kind) for (name, _, _), kind in zip(action.functions, kinds, strict=True)]
        if action.scalar and action.plain:
            return results[0]
        names = action.columns if action.plain else [f"a{i}" for i in range(len(results))]
        return compact(struct_type(dict(zip(names, results, strict=True))))

    def _with_results(self, number: int, rows: DataFrame) -> tuple[DataFrame, Layers]:
        """A stage's results as columns, with the steps after it, and the columns of the edges to the next targets."""
        edges = self.job.feeds_of(number)
        typed = [
            f"{_typed(operator, self.types[column])} AS {column}"
            for operator in self.job.operators
            if operator.stage == number
            for column in sorted(operator.read)
        ]
        frame = rows.selectExpr("*", *typed) if typed else rows
        frame = with_layers(frame, self.job.later_layers.get(number, ()))
        return frame, self._edges(frame, edges)

    def _routed(self, number: int, frame: DataFrame) -> DataFrame:
        """A row for each target of a stage's results."""
        failures = [failure for failure in self.job.failures if failure.stage == number]
        edges = self.job.feeds_of(number)
        routes = [f"IF(emitted, NULL, {_route({})})", *(f"IF({edge.column}, {_on(edge)}, NULL)" for edge in edges)]
        routes += [f"IF({failure.once}, {_rejected(failure)}, NULL)" for failure in failures]
        routed = frame.selectExpr(*_KEPT, f"inline(filter(array({', '.join(routes)}), route -> route IS NOT NULL))")
        return routed.selectExpr(*("CAST(NULL AS STRING) AS output" if name == "output" else name for name in ROW))


_ROUTED = ("target", "side", "emitted", "key", "value", "foreign", "path")
"""The columns in which the rows for the targets differ from the row of the result."""
_KEPT = [name for name in ROW if name not in (*_ROUTED, "output")]


def _typed(operator: OrderedOperator, kind: str) -> str:
    """SQL that decodes an operator's results from JSON."""
    result = f"IF(emitted AND target = {operator.number}, value, NULL)"
    if not kind:
        return f"parse_json({result})"
    if kind.lower().startswith("struct<"):
        return f"from_json({result}, {literal(kind)})"
    return Shape.single(kind).parsed(result)


def _one_type(operator: OrderedOperator, kinds: list[str]) -> str:
    """The common type of a merge's streams; empty if the type of any stream is unknown.

    Raises TopologyError if the types differ.
    """
    if not all(kinds):
        return ""
    first, *rest = map(parse_ddl, kinds)
    other = next((kind for kind in rest if _fields(kind) != _fields(first)), None)
    if other is not None:
        raise TopologyError(
            f"{operator.step}: one stream has values of type {ddl(first)}, another of type {ddl(other)}.",
            next_step="Convert them to the same type with CAST in select or map_values.",
        )
    return kinds[0]


def _fields(kind: spark.DataType) -> frozenset[tuple[str, str]]:
    """A struct's fields and their types, regardless of order; for any other type, the type without a name."""
    fields = kind.fields if isinstance(kind, spark.StructType) else [spark.StructField("", kind)]
    return frozenset((field.name, ddl(field.dataType)) for field in fields)


JOINED = ", ',', "
"""SQL between the parts of a list."""


def _json(edge: Edge, kinds: list[spark.DataType]) -> str:
    """SQL for an edge's value as JSON text."""
    if edge.raw is not None:
        return "value"
    if edge.arguments:
        parts = [_argument(sql, kind) for sql, kind in zip(edge.values, kinds, strict=True)]
        return f"concat('[', {JOINED.join(parts)}, ']')"
    return (VALUE_JSON if edge.scalar else TO_JSON).format(edge.values[0])


def _argument(sql: str, kind: spark.DataType) -> str:
    if isinstance(kind, spark.NullType):
        return "'null'"
    if isinstance(kind, spark.IntegralType | spark.DecimalType | spark.BooleanType):
        return f"coalesce(CAST({sql} AS STRING), 'null')"
    return VALUE_JSON.format(sql)


def _on(edge: Edge) -> str:
    """SQL for the row that carries a result to an edge's target."""
    return _route({
        "target": str(edge.target), "side": str(edge.side), "emitted": "false", "key": edge.key_column,
        "value": edge.value_column, "foreign": "NULL" if edge.foreign is None else edge.foreign_column,
        "path": edge.path_from("path"),
    })  # fmt: skip


def _rejected(failure: Failure) -> str:
    """SQL for the rejected row of a result for which a step fails."""
    value = rejection(failure.step.number, failure.error, failure.value)
    changed = {"target": str(REJECTED), "emitted": "false", "key": failure.key, "value": value, "foreign": "NULL"}
    return _route(changed)


def _route(changed: dict[str, str]) -> str:
    pairs = (f"'{name}', CAST({changed.get(name, f'`{name}`')} AS {ROW[name]})" for name in _ROUTED)
    return f"named_struct({', '.join(pairs)})"
