"""Computes stateless steps with Arrow instead of Spark SQL, with the same results."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Self

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from sluice.engine.steps.python_calls import Function, functions_of
from sluice.plan import Column, Job, Layers
from sluice.plan.arrow_support import (
    TypedExplosion,
    TypedFallibleExpression,
    TypedLayer,
    typed_layers,
    types_read,
    why_spark,
)
from sluice.sql.arrow_evaluation import evaluate
from sluice.sql.arrow_keys import key_texts, too_long
from sluice.sql.arrow_types import arrow_type
from sluice.sql.arrow_values import Result, any_of, array_of, mask_of
from sluice.support.arrays import Mask
from sluice.values.record_metadata import MOST_KEY_BYTES

NOT_FINITE = "NOT_FINITE: NaN or infinity, which JSON cannot express"
KEY_TOO_LONG = f"KEY_TOO_LONG: a key has at most {MOST_KEY_BYTES} bytes"
NO_RESULT = "NO_RESULT"


@dataclass(frozen=True)
class ArrowSteps:
    """Stateless steps. As a task, they turn decoded records into the columns of `schema`."""

    layers: Layers
    """The columns of each layer. They read the columns of earlier layers."""
    types: Mapping[str, str]
    """The types of the columns that exist before the first layer."""
    functions: Mapping[str, Function] = field(default_factory=dict)
    """The author's Python functions, by their names in SQL."""
    schema: pa.Schema | None = None
    """The columns that a task makes; None if only `columns_from` is called."""

    @classmethod
    def of(
        cls,
        job: Job,
        read: pa.Schema,
        columns: Mapping[str, str],
        more: Layers,
        by_spark: pa.Schema,
    ) -> Self | None:
        """Return the steps that compute these columns, as made by `giving`.

        Return None if Spark must compute the columns, because Arrow cannot compute a step, or
        because Spark's schema, `by_spark`, has other types for the columns.
        """
        if why_spark(job):
            return None
        steps = cls.giving(job, read, columns, more)
        assert steps.schema is not None
        different: list[str] = []
        for name, kind in zip(steps.schema.names, steps.schema.types, strict=True):
            if not is_same(kind, by_spark.field(name).type):
                different.append(name)
        if different:
            # Imported only here: Python workers import this module, and structlog takes 0.1
            # seconds.
            import structlog

            structlog.get_logger().warning(
                "Spark and Arrow give columns different types; Spark computes the steps",
                columns=different,
            )
            return None
        return steps

    @classmethod
    def giving(cls, job: Job, read: pa.Schema, columns: Mapping[str, str], more: Layers) -> Self:
        """Return the steps that compute these columns: the job's layers, then the layers `more`.

        `columns` maps names to SQL. `read` is the schema of decoded records.
        """
        final_layer: list[Column] = []
        for name, sql in columns.items():
            if name != sql:
                final_layer.append(Column(name, sql, None))
        layers = (*job.layers, *more, tuple(final_layer))
        steps = cls(layers, types_read(job), functions_of(job))
        empty = steps.columns(pa.RecordBatch.from_pylist([], read))
        return replace(steps, schema=pa.schema([(name, empty[name].type) for name in columns]))

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        assert self.schema is not None
        for batch in batches:
            if batch.num_rows:
                yield pa.RecordBatch.from_pydict(self.columns(batch), schema=self.schema)

    def columns(self, batch: pa.RecordBatch) -> dict[str, pa.Array]:
        """Return all columns by name, including the batch's."""
        columns = dict(zip(batch.schema.names, batch.columns, strict=True))
        return self.columns_from(columns, batch.num_rows)

    def columns_from(self, columns: dict[str, pa.Array], count: int) -> dict[str, pa.Array]:
        """Return the given columns, of `count` rows, and the columns of all layers."""
        for layer in self._typed:
            new_columns: dict[str, pa.Array] = {}
            for name, expression in layer.columns:
                result = evaluate(expression, columns, count, self.functions)
                new_columns[name] = _column(name, result, count)
            # Explode the array before computing the fallible expressions, which need a row for each
            # element.
            if layer.explosion is not None:
                columns, new_columns = _exploded(layer.explosion, columns, new_columns, count), {}
                count = len(columns[layer.explosion.column.name])
            for fallible in layer.fallible_expressions:
                new_columns |= _fallible_columns(fallible, columns, count)
            columns = columns | new_columns
        return columns

    @cached_property
    def _typed(self) -> list[TypedLayer]:
        return typed_layers(self.layers, self.types)[0]


def _column(name: str, result: Result, count: int) -> pa.Array:
    """Return a plain column.

    A plain column cannot fail: the plan uses fallible expressions for all others.
    """
    if result.failed is not None:
        raise ArithmeticError(f"the column {name} has no result for a record")
    return array_of(result.values, count)


def _exploded(
    explosion: TypedExplosion,
    columns: Mapping[str, pa.Array],
    new_columns: Mapping[str, pa.Array],
    count: int,
) -> dict[str, pa.Array]:
    """Return all columns with a row for each array element, like Spark's `posexplode_outer`."""
    lists = array_of(evaluate(explosion.array, columns, count).values, count)
    lengths = pc.fill_null(pc.list_value_length(lists), 0).to_numpy()
    # An empty or missing array gives one row without an element, as in `posexplode_outer`.
    row_counts = np.maximum(lengths, 1)
    rows = np.repeat(np.arange(count), row_counts)
    begins = np.cumsum(row_counts) - row_counts
    positions = np.arange(len(rows)) - begins[rows]
    is_empty = lengths[rows] == 0
    elements = np.cumsum(~is_empty) - 1
    exploded: dict[str, pa.Array] = {}
    for name, values in {**columns, **new_columns}.items():
        exploded[name] = values.take(pa.array(rows))
    column = explosion.column
    exploded[column.name] = lists.flatten().take(pa.array(elements, mask=is_empty))
    exploded[column.position] = pa.array(positions.astype(np.int32), mask=is_empty)
    return exploded


def is_same(actual: pa.DataType, wanted: pa.DataType) -> bool:
    """Return whether two types are equal, except for nullability and the names of list elements."""
    return _comparable(actual) == _comparable(wanted)


def _comparable(kind: pa.DataType) -> str:
    return str(kind).replace(" not null", "").replace("list<item:", "list<element:")


def _fallible_columns(
    fallible: TypedFallibleExpression,
    columns: Mapping[str, pa.Array],
    count: int,
) -> dict[str, pa.Array]:
    """Return the columns of a fallible expression: its results, the text of its key, and its error.

    The expression is evaluated only for rows that have passed the earlier filters. For other rows,
    all columns are null.
    """
    passed = mask_of(evaluate(fallible.passed, columns, count).values, count)
    rows = pa.array(np.flatnonzero(passed))
    columns_read: set[str] = set()
    for expression in fallible.columns:
        columns_read |= expression.columns
    for cause, _ in fallible.causes:
        columns_read |= cause.columns
    passed_columns: dict[str, pa.Array] = {}
    for name in columns_read:
        passed_columns[name] = columns[name].take(rows)
    failed = np.zeros(len(rows), bool)
    values: list[pa.Array] = []
    for column in fallible.columns:
        result = evaluate(column, passed_columns, len(rows))
        values.append(array_of(result.values, len(rows)).cast(arrow_type(column.type)))
        if result.failed is not None:
            failed |= result.failed
    keys = None
    key = fallible.planned.key
    if key is not None:
        keys = key_texts(values[key], fallible.columns[key].type)
    errors = _errors(fallible, passed_columns, values, keys, failed)
    names = [f"c{place}" for place in range(len(values))]
    results = pa.StructArray.from_arrays(values, names, mask=pa.array(failed))
    places = pa.array(np.cumsum(passed) - 1, mask=~passed)
    fallible_columns = {
        fallible.planned.name: results.take(places),
        fallible.planned.error: errors.take(places),
    }
    if keys is not None:
        keys_of_results = pc.if_else(pa.array(failed), pa.scalar(None, pa.string()), keys)
        fallible_columns[fallible.planned.key_text] = keys_of_results.take(places)
    return fallible_columns


def _errors(
    fallible: TypedFallibleExpression,
    columns: Mapping[str, pa.Array],
    values: list[pa.Array],
    keys: pa.Array | None,
    failed: Mask,
) -> pa.Array:
    """Return each row's error, if the expression fails or its result (such as NaN) has no JSON."""
    errors = np.full(len(failed), None, object)
    unusable: list[tuple[Mask | None, str]] = []
    for results in values:
        unusable.append((_is_not_finite(results), NOT_FINITE))
    if keys is not None:
        unusable.append((too_long(keys), KEY_TOO_LONG))
    # Set the errors in reverse order: a row's first error must overwrite its later errors.
    for rows, text in reversed(unusable):
        if rows is not None:
            errors[rows] = text
    if failed.any():
        errors[failed] = _causes(fallible, columns, np.flatnonzero(failed))
    return pa.array(errors, pa.string())


def _causes(
    fallible: TypedFallibleExpression,
    columns: Mapping[str, pa.Array],
    rows: Any,
) -> list[str]:
    """Return each failed row's error: the error of the first part of the expression that fails."""
    texts = np.full(len(rows), NO_RESULT, object)
    indices = pa.array(rows)
    failed_columns: dict[str, pa.Array] = {}
    for name, values in columns.items():
        failed_columns[name] = values.take(indices)
    for cause, text in reversed(fallible.causes):
        failed = evaluate(cause, failed_columns, len(rows)).failed
        if failed is not None:
            texts[failed] = text
    return list(texts)


def _is_not_finite(values: pa.Array) -> Mask | None:
    """Return a mask of the rows whose value contains NaN or infinity.

    Return None if the type contains no doubles.
    """
    kind = values.type
    if pa.types.is_floating(kind):
        return mask_of(pc.invert(pc.is_finite(values)), len(values))
    if pa.types.is_struct(kind):
        return any_of(*map(_is_not_finite, values.flatten()))
    if pa.types.is_map(kind):
        pair = pa.struct([("key", kind.key_type), ("value", kind.item_type)])
        pairs = values.cast(pa.list_(pair))
        return _any_element(pairs, _is_not_finite(pairs.flatten().field(1)))
    if pa.types.is_list(kind):
        return _any_element(values, _is_not_finite(values.flatten()))
    return None


def _any_element(lists: pa.Array, elements: Mask | None) -> Mask | None:
    """Return a mask of the rows whose list has an element marked in `elements`."""
    if elements is None:
        return None
    lengths = pc.fill_null(pc.list_value_length(lists), 0).to_numpy()
    rows_of_elements = np.repeat(np.arange(len(lists)), lengths)
    marked = np.zeros(len(lists), bool)
    marked[rows_of_elements[elements]] = True
    return marked
