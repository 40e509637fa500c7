"""The stages of an ordered job as Spark sees them: rows to workers, through operators, and on as columns again."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, field

from pyspark.sql import DataFrame
from pyspark.sql import types as spark
from pyspark.sql.types import _parse_datatype_string as parse_ddl

from sluice.engine.batch.rows import PLACE_BITS, REJECTED, ROW, ROW_DDL
from sluice.engine.batch.storage import Storage
from sluice.engine.ordered.build import hosted, result_type
from sluice.engine.ordered.ingest import Ingest
from sluice.engine.ordered.stage import Stage
from sluice.engine.publish.shards import OWNER
from sluice.engine.steps.attempts import rejection, with_attempt
from sluice.engine.steps.sql_errors import select
from sluice.errors import EngineError, TopologyError
from sluice.plan import TRANSFORM, Edge, Failure, Job, Layers, Ordered, Transformation
from sluice.settings import settings
from sluice.topology import nodes
from sluice.topology.serdes import fields_of
from sluice.values.records import TEXT_FIELD
from sluice.values.sql import TO_JSON, VALUE_JSON, literal, typed_json

assert PLACE_BITS == 40, "the plan reads places too"


def with_layers(frame: DataFrame, layers: Layers, job: Job) -> DataFrame:
    """The frame with the columns of every layer."""
    for layer in layers:
        if layer[0][0] == TRANSFORM:
            frame = _transformed(frame, job.transforms[int(layer[0][1])])
            continue
        plain = [(name, sql) for name, sql in layer if name not in job.attempts]
        frame = select(frame, plain, "*") if plain else frame
        for name in (name for name, _ in layer if name in job.attempts):
            frame = with_attempt(frame, name, job.attempts[name])
    return frame


_ROW = "_row"


def _transformed(frame: DataFrame, step: Transformation) -> DataFrame:
    """The frame with the columns that an author's function of it made."""
    given = frame.selectExpr(f"struct(*) AS {_ROW}", *(f"{sql} AS `{name}`" for name, sql in step.given))
    made: DataFrame = step.function(given)
    missing = {_ROW, *(name for name, _ in step.made)} - set(made.columns)
    if missing:
        raise EngineError(
            f"The function at {step.at} returns a frame without {', '.join(sorted(missing))}.",
            next_step="Return the frame it is given with further columns, as withColumn does.",
        )
    return made.selectExpr(f"{_ROW}.*", *(f"`{name}` AS `{column}`" for name, column in step.made))


@dataclass
class Stages:
    """Builds the frames of a job's stages, one after the other; on the way it learns the values' types."""

    job: Job
    storage: Storage
    ingest: Ingest
    epoch: int
    """Of the lease under which states are written."""
    arguments: dict[int, list[spark.DataType]] = field(default_factory=dict)
    types: dict[str, str] = field(default_factory=dict)
    """Column of an operator's results, `v9` → its type in DDL; empty if it is not known."""
    _values: dict[str, str] = field(default_factory=dict)
    """Feed's name → the type of its values."""

    def fed(self, records: DataFrame) -> DataFrame:
        """The records with the columns of what gets to operators at once."""
        return self._with_edges(records, self._edges(0))

    def rows(self, placed: DataFrame) -> DataFrame:
        """The rows that get to stores and sinks, given those of the feeder."""
        for number in range(1, self.job.stages + 1):
            placed = self._after(number, self._through(number, placed))
        return placed

    def store_types(self) -> dict[str, str]:
        """Store → the type of its values."""
        return {
            operator.store: self._values.get(f"f{operator.number}_2", "")
            for operator in self.job.operators
            if operator.store is not None
        }

    def kept_types(self) -> dict[int, str]:
        """Operator → the types of its inputs, one for each side."""
        return {one.number: "; ".join(self._given(one, edge) for edge in one.edges) for one in self.job.operators}

    def _given(self, operator: Ordered, edge: Edge) -> str:
        if edge.arguments:
            return ", ".join(kind.simpleString() for kind in self.arguments[operator.number])
        return self._values[edge.name]

    def _edges(self, stage: int) -> list[Edge]:
        edges = [edge for operator in self.job.operators for edge in operator.edges]
        return [edge for edge in (*edges, *self.job.edges) if edge.stage == stage]

    def _with_edges(self, frame: DataFrame, edges: Iterable[Edge]) -> DataFrame:
        edges = list(edges)
        names = {f"{edge.name}_{i}": sql for edge in edges if edge.raw is None for i, sql in enumerate(edge.values)}
        schema = select(frame, names.items()).schema if names else None
        kinds = {name: schema[name].dataType for name in names} if schema is not None else {}
        frame = frame.selectExpr("*", *(f"({edge.passed}) AS {edge.name}" for edge in edges))
        columns = {}
        for edge in edges:
            mine = [kinds[f"{edge.name}_{i}"] for i in range(len(edge.values))] if edge.raw is None else []
            self._note(edge, mine)
            columns[f"{edge.name}_key"] = f"IF({edge.name}, {edge.key}, NULL)"
            columns[f"{edge.name}_value"] = f"IF({edge.name} AND NOT {edge.is_null}, {_json(edge, mine)}, NULL)"
            if edge.foreign is not None:
                columns[f"{edge.name}_foreign"] = f"IF({edge.name}, {edge.foreign}, NULL)"
        return select(frame, columns.items(), "*")

    def _note(self, edge: Edge, kinds: list[spark.DataType]) -> None:
        if edge.arguments:
            self.arguments[edge.target] = kinds
        self._values[edge.name] = (
            self.types.get(f"v{edge.raw}", "") if edge.raw is not None else kinds[0].simpleString()
        )

    def _through(self, number: int, rows: DataFrame) -> DataFrame:
        job = self.job
        specs = {spec.number: spec for spec in self.ingest.operators}
        operators = [operator for operator in job.operators if operator.stage == number]
        used = self._used(number)
        stage = Stage(
            number,
            self.ingest.clocks,
            self.storage.locations,
            tuple(
                hosted(one, specs[one.number], self.arguments, is_read=f"v{one.number}" in used) for one in operators
            ),
            {source.number: source.topic for source in job.streams},
            self.epoch,
            settings().server_token,
        )
        for operator in operators:
            self.types |= dict(self._result_types(operator))
        owner = OWNER.format(workers=job.pipeline.workers)
        columns = [name for name in ROW if name != "worker"]
        routed = rows.selectExpr(*columns, f"coalesce(worker, CAST({owner} AS INT)) AS worker")
        return routed.repartitionById(job.pipeline.workers, "worker").mapInArrow(stage.__call__, ROW_DDL)

    def _result_types(self, operator: Ordered) -> Iterable[tuple[str, str]]:
        """The types of an operator's results, by the columns that hold them."""
        node, name = operator.node, f"v{operator.number}"
        match node:
            case nodes.Process():
                for i, returns in enumerate(node.returns.values()):
                    yield f"{name}_{i}", _declared(fields_of(returns))
            case nodes.Aggregate(python=python) if python is not None:
                yield name, _declared(python.fields)
            case nodes.Aggregate():
                yield name, self._aggregate_type(operator, node)
            case nodes.Join():
                sides = [self._values[f"f{operator.number}_{side}"] for side in (0, 1)]
                known = all(sides)
                yield name, f"struct<left:{sides[0]},right:{sides[1]}>" if known else ""
            case nodes.Merge():
                yield name, _one_type(node, [self._values[edge.name] for edge in operator.edges])
            case _ if operator.inline is not None:
                yield name, self.types[f"v{operator.inline}"]
            case _:
                yield name, self._values[f"f{operator.number}_0"]

    def _aggregate_type(self, operator: Ordered, node: nodes.Aggregate) -> str:
        kinds = self.arguments[operator.number]
        results = [result_type(name, kind) for (name, _, _), kind in zip(operator.functions, kinds, strict=True)]
        if node.scalar and operator.plain:
            return results[0]
        names = list(node.columns) if operator.plain else [f"a{i}" for i in range(len(results))]
        return f"struct<{','.join(f'`{name}`:{kind}' for name, kind in zip(names, results, strict=True))}>"

    def _after(self, number: int, rows: DataFrame) -> DataFrame:
        """The operators' results as columns, through the steps that follow, and as rows to what is next."""
        layers, edges = self.job.later_layers.get(number, ()), self._edges(number)
        used = self._used(number)
        typed = [
            f"{self._typed(name, kind)} AS {name}"
            for name, kind in self.types.items()
            if name in used and self._is_of(name, number)
        ]
        frame = rows.selectExpr("*", *typed) if typed else rows
        failures = [failure for failure in self.job.failures if failure.stage == number]
        frame = self._with_edges(with_layers(frame, layers, self.job), edges)
        ways = [f"IF(emitted, NULL, {_struct({})})", *(f"IF({edge.name}, {_on(edge)}, NULL)" for edge in edges)]
        ways += [f"IF({failure.once}, {_rejected(failure)}, NULL)" for failure in failures]
        return frame.selectExpr(f"inline(filter(array({', '.join(ways)}), way -> way IS NOT NULL))")

    def _used(self, number: int) -> set[str]:
        """The operators' results whose fields are read by what follows a stage, by their columns."""
        layers, edges = self.job.later_layers.get(number, ()), self._edges(number)
        texts = [*(sql for layer in layers for _, sql in layer), *(text for edge in edges for text in _texts(edge))]
        attempts = [self.job.attempts[name] for layer in layers for name, _ in layer if name in self.job.attempts]
        texts += [sql for attempt in attempts for sql in (*attempt.columns, *(part for part, _ in attempt.causes))]
        texts += [f"{failure.key} {failure.value}" for failure in self.job.failures if failure.stage == number]
        steps = [self.job.transforms[int(layer[0][1])] for layer in layers if layer[0][0] == TRANSFORM]
        texts += [sql for step in steps for _, sql in step.given]
        return set(re.findall(r"\bv\d+(?:_\d+)?\b", " ".join(texts)))

    def _is_of(self, column: str, stage: int) -> bool:
        number = int(column[1:].split("_")[0])
        return any(operator.number == number and operator.stage == stage for operator in self.job.operators)

    @staticmethod
    def _typed(name: str, kind: str) -> str:
        number, _, _ = name[1:].partition("_")
        mine = f"IF(emitted AND target = {number}, value, NULL)"
        if not kind:
            return f"parse_json({mine})"
        if kind.lower().startswith("struct<"):
            return f"from_json({mine}, {literal(kind)})"
        return typed_json(mine, {TEXT_FIELD: kind})


def _one_type(node: nodes.Merge, kinds: list[str]) -> str:
    """The type of the values of all streams of a merge; "" if that of one is not known.

    Raises TopologyError if they differ.
    """
    if not all(kinds):
        return ""
    first, *rest = map(parse_ddl, kinds)
    other = next((one for one in rest if _fields(one) != _fields(first)), None)
    if other is not None:
        raise TopologyError(
            f"merge at {node.at}: the values of one stream are {first.simpleString()}, those of another are "
            f"{other.simpleString()}.",
            next_step="Bring them to one type with CAST in select or map_values.",
        )
    return kinds[0]


def _fields(kind: spark.DataType) -> frozenset[tuple[str, str]]:
    """A struct's fields and their types, in whatever order; of any other type itself."""
    fields = kind.fields if isinstance(kind, spark.StructType) else [spark.StructField("", kind)]
    return frozenset((one.name, one.dataType.simpleString()) for one in fields)


def _declared(fields: dict[str, str]) -> str:
    if list(fields) == [TEXT_FIELD]:
        return fields[TEXT_FIELD]
    return f"struct<{','.join(f'`{name}`:{kind}' for name, kind in fields.items())}>"


def _texts(edge: Edge) -> list[str]:
    return [edge.passed, edge.key, *edge.values, edge.is_null, edge.foreign or ""]


def _json(edge: Edge, kinds: list[spark.DataType]) -> str:
    """SQL of a feed's value as JSON text."""
    if edge.raw is not None:
        return "value"
    if edge.arguments:
        parts = [_argument(sql, kind) for sql, kind in zip(edge.values, kinds, strict=True)]
        return f"concat('[', concat_ws(',', {', '.join(parts)}), ']')"
    return (VALUE_JSON if edge.scalar else TO_JSON).format(edge.values[0])


def _argument(sql: str, kind: spark.DataType) -> str:
    if isinstance(kind, spark.IntegralType | spark.DecimalType | spark.BooleanType | spark.NullType):
        return f"coalesce(CAST({sql} AS STRING), 'null')"
    return VALUE_JSON.format(sql)


def _on(edge: Edge) -> str:
    """SQL of the row that a result becomes on its way to a feed's target."""
    changed = {
        "target": str(edge.target), "side": str(edge.side), "emitted": "false", "key": f"{edge.name}_key",
        "value": f"{edge.name}_value", "output": "NULL", "worker": "NULL",
        "foreign": "NULL" if edge.foreign is None else f"{edge.name}_foreign",
    }  # fmt: skip
    if edge.exploded != "0":
        changed["sub"] = f"sub * 1024 + {edge.exploded}"
    return _struct(changed)


def _rejected(failure: Failure) -> str:
    """SQL of the row that a result becomes for which a step fails: the driver makes a dead letter of it."""
    value = rejection(failure.node.number, failure.error, failure.value)
    changed = {"target": str(REJECTED), "emitted": "false", "key": failure.key, "value": value, "output": "NULL"}
    return _struct(changed | {"foreign": "NULL", "worker": "NULL"})


def _struct(changed: dict[str, str]) -> str:
    pairs = (f"'{name}', CAST({changed.get(name, f'`{name}`')} AS {kind})" for name, kind in ROW.items())
    return f"named_struct({', '.join(pairs)})"
