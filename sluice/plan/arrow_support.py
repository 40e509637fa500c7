"""Decides whether Arrow can compute a job's stateless steps, in the task that decodes the records.

If so, records stay in one Python task until they are aggregated or sent to operators. For Spark
SQL, records must go to the JVM and back. The table in `sql.rules` lists what Arrow can compute.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache

from sqlglot import exp

from sluice.plan.job import Job
from sluice.plan.layers import Column, FallibleExpression, Layers, Transformation
from sluice.plan.planned_operators import Edge
from sluice.sql.dialect import PARSE_ERRORS, text_of, tree_of
from sluice.sql.rules import json_problem, key_problem
from sluice.sql.typed_expression import TypedExpression, type_expression
from sluice.sql.types import VOID, Types
from sluice.values.record_metadata import METADATA
from sluice.values.sql_text import value_if
from sluice.values.sql_types import element_type, struct_type


class NeedsSparkError(Exception):
    """Arrow cannot compute an expression.

    The message is the part of the expression that needs Spark.
    """

    def __init__(self, part: str, step: int | None = None) -> None:
        """Store the expression's part. `step` is the number of the step, if it is known."""
        super().__init__(part)
        self.step = step


UNDECLARED = "the type of the results is unknown. returns= declares it"
"""Why only Spark can read the results of a function without a declared type: they are VARIANTs."""
_UNDECLARED_RESULT = re.compile(r"parse_json\([rx]\d+\.value\)")
"""Matches the SQL of such results, as made by `Shape.value_sql`."""


@dataclass(frozen=True)
class TypedFallibleExpression:
    """A fallible expression with the types of its parts."""

    planned: FallibleExpression
    passed: TypedExpression
    columns: tuple[TypedExpression, ...]
    causes: tuple[tuple[TypedExpression, str], ...]

    @property
    def column_types(self) -> dict[str, str]:
        """The types, by column, of the results, the error and, if there is a key, its text."""
        results = {f"c{number}": column.type for number, column in enumerate(self.columns)}
        types = {self.planned.name: struct_type(results), self.planned.error: "STRING"}
        if self.planned.key is not None:
            types[self.planned.key_text] = "STRING"
        return types


@dataclass(frozen=True)
class TypedExplosion:
    """A column that makes a row for each element of an array, or one row for an empty array."""

    column: Column
    array: TypedExpression

    @property
    def column_types(self) -> dict[str, str]:
        """The types of the columns with the element and its position."""
        return {self.column.name: element_type(self.array.type), self.column.position: "INT"}


@dataclass(frozen=True)
class TypedLayer:
    """A layer with the types of its expressions."""

    columns: tuple[tuple[str, TypedExpression], ...]
    explosion: TypedExplosion | None
    fallible_expressions: tuple[TypedFallibleExpression, ...]
    """The expressions that can fail. They are computed after the explosion."""
    types: Mapping[str, str]
    """The types of the layer's columns."""


def typed_layers(layers: Layers, types: Types) -> tuple[list[TypedLayer], dict[str, str]]:
    """Return the layers, with the types of their expressions, and the types of all columns.

    `types` has the types of the columns before the layers. Raises NeedsSparkError if Arrow cannot
    compute a column.
    """
    typed, all_types = [], dict(types)
    for layer in layers:
        if isinstance(layer, Transformation):
            raise NeedsSparkError("is a function of a DataFrame", layer.step)
        typed_layer = _typed_layer(layer, frozenset(all_types.items()))
        typed.append(typed_layer)
        all_types |= typed_layer.types
    return typed, all_types


@lru_cache(maxsize=256)
def _typed_layer(
    layer: tuple[Column | FallibleExpression, ...],
    before: frozenset[tuple[str, str]],
) -> TypedLayer:
    """Return the layer with the types of its expressions.

    `before` has the names and types of the columns before the layer.

    The result is cached, because several parts of a query need it.
    """
    columns, fallible_expressions, explosion = [], [], None
    types_before, types = dict(before), dict[str, str]()
    for column in layer:
        try:
            if isinstance(column, FallibleExpression):
                fallible = _fallible_expression(column, types_before)
                fallible_expressions.append(fallible)
                types |= fallible.column_types
            elif column.position:
                explosion = _explosion(column, types_before)
                types |= explosion.column_types
            elif _UNDECLARED_RESULT.fullmatch(column.sql):
                raise NeedsSparkError(UNDECLARED)
            else:
                expression = on_arrow(column.sql, types_before)
                columns.append((column.name, expression))
                types[column.name] = expression.type
        except NeedsSparkError as part:
            raise NeedsSparkError(str(part), column.step) from None
    return TypedLayer(tuple(columns), explosion, tuple(fallible_expressions), types)


def types_of(layers: Layers, types: Types) -> dict[str, str]:
    """Return the given types, together with the types of the layers' columns.

    Raises NeedsSparkError if Arrow cannot compute a column.
    """
    return typed_layers(layers, types)[1]


def types_read(job: Job) -> dict[str, str]:
    """Return the types of the columns of a job's records, before any step."""
    types = {**METADATA, "_source": "INT", "_null": "BOOLEAN"}
    for source in job.streams:
        for field in source.fields:
            types[field.column] = field.type
    return types


def on_arrow(sql: str, types: Types, kind: str = "") -> TypedExpression:
    """Give an expression its type.

    Raises NeedsSparkError if Arrow cannot compute it, or if its type is not `kind`.
    """
    # sqlglot writes some expressions as text that it cannot parse.
    try:
        expression = type_expression(sql, types)
    except PARSE_ERRORS:
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


def _fallible_expression(fallible: FallibleExpression, types: Types) -> TypedFallibleExpression:
    columns = tuple(on_arrow(sql, types) for sql in fallible.columns)
    for number, column in enumerate(columns):
        if column.type == VOID:
            raise NeedsSparkError(fallible.columns[number])
        if number == fallible.key and (problem := key_problem(column.type)):
            raise NeedsSparkError(problem)
    causes: list[tuple[TypedExpression, str]] = []
    for sql, text in fallible.causes:
        causes.append((on_arrow(sql, types), text))
    return TypedFallibleExpression(
        fallible,
        on_arrow(fallible.passed, types, "BOOLEAN"),
        columns,
        tuple(causes),
    )


def why_spark(job: Job) -> str:
    """Return why Spark SQL computes the job's stateless steps; empty if the tasks use Arrow."""
    try:
        types = types_of((*job.layers, failure_columns(job)), types_read(job))
        for edge in job.edges_from(0):
            _require_edge(edge, types)
    except NeedsSparkError as part:
        reason = _with_field_names(str(part), job.field_names)
        if part.step is None:
            return reason
        return f"{job.pipeline.steps[part.step]}: {reason}"
    return ""


def failure_columns(job: Job) -> tuple[Column, ...]:
    """Return the columns with the errors of steps before any operator."""
    columns = []
    for failure in job.failures_before_operators:
        error = value_if(failure.once, failure.error)
        columns.append(Column(failure.column, error, failure.step.number))
    return tuple(columns)


def _require_edge(edge: Edge, types: Types) -> None:
    """Raise NeedsSparkError if Arrow cannot compute an operator's rows from the steps."""
    try:
        if edge.path_column is not None:
            on_arrow(edge.path_from("X''"), types, "BINARY")
        for condition in (edge.passed, edge.is_null):
            on_arrow(condition, types, "BOOLEAN")
        for key in (edge.key, edge.foreign):
            if key is not None:
                on_arrow(key, types, "STRING")
        for sql in edge.values:
            # The argument of `count(*)` is NULL. It is never computed, so it need not be checked.
            if isinstance(tree_of(sql), exp.Null):
                continue
            if problem := json_problem(on_arrow(sql, types).type):
                raise NeedsSparkError(problem)
    except NeedsSparkError as part:
        raise NeedsSparkError(str(part), edge.target) from None


def _with_field_names(text: str, names: dict[str, str]) -> str:
    """Return the text with the author's names of fields instead of the job's columns."""
    return re.sub(r"\w+", lambda word: names.get(word[0], word[0]), text)
