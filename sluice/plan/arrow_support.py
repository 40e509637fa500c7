"""Decides whether a job's stateless steps can run on Arrow, in the task that decodes the records, or need Spark SQL.

On Arrow, records stay in one Python task until they are added up or sent to operators; for Spark SQL, they go
to the JVM and back. The table in `sql.rules` says what Arrow computes.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache

from sqlglot import exp
from sqlglot.errors import SqlglotError

from sluice.plan.job import Job
from sluice.plan.layers import Column, FallibleExpression, Layers, Transformation
from sluice.plan.planned_operators import Edge
from sluice.sql.dialect import text_of, tree_of
from sluice.sql.rules import json_problem, key_problem
from sluice.sql.typed_expression import TypedExpression, type_expression
from sluice.sql.types import VOID, Types
from sluice.values.record_metadata import METADATA
from sluice.values.sql_types import element_type, struct_type


class NeedsSparkError(Exception):
    """Arrow cannot compute an expression. The message is the part of the expression that needs Spark."""

    def __init__(self, part: str, step: int | None = None) -> None:
        super().__init__(part)
        self.step = step
        """The number of the step, if it is known."""


@dataclass(frozen=True)
class TypedFallibleExpression:
    """An attempt with the types of its expressions."""

    of: FallibleExpression
    passed: TypedExpression
    columns: tuple[TypedExpression, ...]
    causes: tuple[tuple[TypedExpression, str], ...]


@dataclass(frozen=True)
class TypedExplosion:
    """A column that turns one record into several: a row per element of an array, and one for an empty array."""

    of: Column
    array: TypedExpression


@dataclass(frozen=True)
class TypedLayer:
    """A layer with the types of its expressions."""

    columns: tuple[tuple[str, TypedExpression], ...]
    explosion: TypedExplosion | None
    fallible_expressions: tuple[TypedFallibleExpression, ...]
    """Computed after the explosion."""
    types: Mapping[str, str]
    """The types of the layer's columns."""


def typed_layers(layers: Layers, types: Types) -> tuple[list[TypedLayer], dict[str, str]]:
    """Layers with types, and the types of all columns, given those of the columns before the layers.

    Raises NeedsSparkError if Arrow cannot compute a column.
    """
    made, known = [], dict(types)
    for layer in layers:
        if isinstance(layer, Transformation):
            raise NeedsSparkError("is a function of a DataFrame", layer.step)
        of_layer = _typed_layer(layer, frozenset(known.items()))
        made.append(of_layer)
        known |= of_layer.types
    return made, known


@lru_cache(maxsize=256)
def _typed_layer(layer: tuple[Column | FallibleExpression, ...], before: frozenset[tuple[str, str]]) -> TypedLayer:
    """A layer after columns with these names and types. It is cached, since a query is planned in several steps."""
    columns, attempts, explosion = [], [], None
    types = dict(before)
    for column in layer:
        try:
            if isinstance(column, FallibleExpression):
                attempts.append(_attempt(column, types))
            elif column.position:
                explosion = _explosion(column, types)
            else:
                columns.append((column.name, on_arrow(column.sql, types)))
        except NeedsSparkError as part:
            raise NeedsSparkError(str(part), column.step) from None
    known = {name: expression.type for name, expression in columns}
    if explosion is not None:
        known |= {explosion.of.name: element_type(explosion.array.type), explosion.of.position: "INT"}
    for attempt in attempts:
        results = {f"c{number}": part.type for number, part in enumerate(attempt.columns)}
        known |= {attempt.of.name: struct_type(results), attempt.of.error: "STRING"}
        known |= {} if attempt.of.key is None else {attempt.of.key_text: "STRING"}
    return TypedLayer(tuple(columns), explosion, tuple(attempts), known)


def types_of(layers: Layers, types: Types) -> dict[str, str]:
    """The given types and those of the columns of layers. Raises NeedsSparkError if Arrow cannot compute a column."""
    return typed_layers(layers, types)[1]


def types_read(job: Job) -> dict[str, str]:
    """The types of the columns of a job's records, before any step."""
    types = {**METADATA, "_source": "INT", "_null": "BOOLEAN"}
    return types | {field.column: field.type for source in job.streams for field in source.fields}


def on_arrow(sql: str, types: Types, kind: str = "") -> TypedExpression:
    """An expression, which must have this type. Raises NeedsSparkError if Arrow cannot compute it."""
    try:
        expression = type_expression(sql, types)
    except SqlglotError:  # sqlglot writes some parts of an expression in a way that it cannot read
        raise NeedsSparkError(sql) from None
    if expression.why_spark or (kind and expression.type != kind):
        raise NeedsSparkError(expression.why_spark or text_of(expression.node))
    return expression


def _explosion(column: Column, types: Types) -> TypedExplosion:
    call = tree_of(column.sql)
    array = on_arrow(text_of(call.this), types)
    if not element_type(array.type):
        raise NeedsSparkError(column.sql)
    return TypedExplosion(column, array)


def _attempt(attempt: FallibleExpression, types: Types) -> TypedFallibleExpression:
    columns = tuple(on_arrow(sql, types) for sql in attempt.columns)
    for number, column in enumerate(columns):
        if column.type == VOID:
            raise NeedsSparkError(attempt.columns[number])
        if number == attempt.key and (problem := key_problem(column.type)):
            raise NeedsSparkError(problem)
    causes = tuple((on_arrow(sql, types), text) for sql, text in attempt.causes)
    return TypedFallibleExpression(attempt, on_arrow(attempt.passed, types, "BOOLEAN"), columns, causes)


def why_spark(job: Job) -> str:
    """Why Spark SQL computes the job's stateless steps; empty if the tasks compute them on Arrow."""
    try:
        types = types_of((*job.layers, failure_columns(job)), types_read(job))
        for edge in job.edges_from(0):
            _require_edge(edge, types)
    except NeedsSparkError as part:
        where = "" if part.step is None else f"{job.pipeline.steps[part.step]}: "
        return where + _named(str(part), job.field_names)
    return ""


def failure_columns(job: Job) -> tuple[Column, ...]:
    """The columns with the errors of steps before any operator."""
    return tuple(
        Column(failure.column, f"IF({failure.once}, {failure.error}, NULL)", failure.step.number)
        for failure in job.failures_before_operators
    )


def _require_edge(edge: Edge, types: Types) -> None:
    """Raise NeedsSparkError if Arrow cannot compute the rows that an operator takes from the steps."""
    try:
        if edge.path_column is not None:
            on_arrow(edge.path_from("X''"), types, "BINARY")
        for condition in (edge.passed, edge.is_null):
            on_arrow(condition, types, "BOOLEAN")
        for key in (edge.key, edge.foreign):
            if key is not None:
                on_arrow(key, types, "STRING")
        for sql in edge.values:
            if not isinstance(tree_of(sql), exp.Null) and (problem := json_problem(on_arrow(sql, types).type)):
                raise NeedsSparkError(problem)
    except NeedsSparkError as part:
        raise NeedsSparkError(str(part), edge.target) from None


def _named(text: str, names: dict[str, str]) -> str:
    """The text with the author's names of fields instead of the job's columns."""
    return re.sub(r"\w+", lambda word: names.get(word[0], word[0]), text)
