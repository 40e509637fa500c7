"""The steps between a store and an output, which the driver computes for a batch's changes.

The steps are translated once, into layers of columns. If a step needs Spark, Spark computes the
layers. Otherwise, Arrow computes them in the driver's process.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Self

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from sluice.engine.batch.rejections import rejection_sql
from sluice.engine.publish.lookup_tables import right_column
from sluice.engine.steps.arrow_steps import ArrowSteps
from sluice.plan import (
    AggregationGroup,
    ChangeSink,
    Column,
    FallibleExpression,
    Job,
    Lookup,
    Select,
)
from sluice.plan.arrow_support import NeedsSparkError, types_of
from sluice.sql.arrow_from_json import array_of_json
from sluice.sql.arrow_to_json import json_values
from sluice.sql.arrow_types import arrow_type
from sluice.sql.rules import json_problem
from sluice.state.model import NO_WINDOW
from sluice.values.sql_text import literal, struct_json, value_json
from sluice.values.sql_types import canonical

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

REJECTED_CHANGE = "_rejected"
"""The column with the JSON of a `Rejected` for a change on which a step failed, else null."""
_VALUE = "v"
"""The column with a change's value. Each step replaces it."""
_TIMES = {"_window_start": "window_start", "_window_end": "window_end"}

decode_row = msgspec.json.Decoder(list[msgspec.Raw]).decode
"""Decodes a state row's JSON array to the JSON of each of its values."""


Columns = tuple[Column | FallibleExpression, ...]
"""The columns of one layer. They are computed together, from the columns of earlier layers."""


@dataclass(frozen=True)
class ChangeSteps:
    """The steps of one output of a store."""

    sink: ChangeSink
    group: AggregationGroup
    store_types: Mapping[str, str]
    """Store → the type of its values."""

    @classmethod
    def of(cls, job: Job, sink: ChangeSink, store_types: Mapping[str, str]) -> Self:
        return cls(sink, job.groups_by_number[sink.group], store_types)

    @cached_property
    def why_spark(self) -> str:
        """The reason why Spark must compute the steps; empty if Arrow can compute them."""
        try:
            types = types_of(self._layers, self._types)
        except NeedsSparkError as error:
            return str(error)
        return json_problem(types[_VALUE]) or ""

    def records(self, changes: pa.Table, spark: SparkSession | None) -> pa.Table:
        """Return the `key`, `value`, `timestamp` and `_rejected` of each change.

        `changes` are the changes of the group, with the columns that lookups have added.
        """
        if not self.why_spark:
            return self._on_arrow(changes)
        assert spark is not None, "a batch without Spark has no steps that need Spark"
        return self.on_spark(spark, changes).toArrow()

    def on_spark(self, spark: SparkSession, changes: pa.Table) -> DataFrame:
        """Return the columns of `records`, computed by Spark.

        Raise PySparkException if Spark cannot resolve a step.
        """
        from sluice.engine.steps.fallible_expressions import with_columns

        expressions = ["key AS _key", "time", f"CAST(NULL AS STRING) AS {REJECTED_CHANGE}"]
        for column, name in _TIMES.items():
            expressions.append(f"timestamp_millis(nullif({name}, {NO_WINDOW})) AS {column}")
        for name, kind in self._rights.items():
            # A global table's value is an array of one value.
            expressions.append(f"from_json({name}, {literal(f'ARRAY<{kind}>')})[0] AS {name}")
        values = f"from_json(json, {literal(self._row_type)})"
        expressions.append(f"{values}.`{self.sink.store_column}` AS {_VALUE}")
        frame = spark.createDataFrame(self._with_objects(changes)).selectExpr(*expressions)
        for layer in self._layers:
            fallible: list[FallibleExpression] = []
            plain: dict[str, str] = {}
            for added in layer:
                if isinstance(added, FallibleExpression):
                    fallible.append(added)
                else:
                    plain[added.name] = f"{added.sql} AS {added.name}"
            if fallible:
                frame = with_columns(frame, (), fallible)
            # A step's new column replaces the old column of the same name: the frame must not have
            # two columns with the value.
            others = [name for name in frame.columns if name not in plain]
            frame = frame.selectExpr(*others, *plain.values())
        return frame.selectExpr(
            "_key AS key",
            f"{struct_json(_VALUE)} AS value",
            "time AS timestamp",
            REJECTED_CHANGE,
        )

    def _on_arrow(self, changes: pa.Table) -> pa.Table:
        columns = {
            "_key": changes.column("key").combine_chunks(),
            "time": changes.column("time").combine_chunks(),
            REJECTED_CHANGE: pa.nulls(changes.num_rows, pa.string()),
        }
        for name, of_state in _TIMES.items():
            times = changes.column(of_state).combine_chunks()
            microseconds = pc.if_else(pc.equal(times, NO_WINDOW), None, pc.multiply(times, 1_000))
            columns[name] = microseconds.cast(arrow_type("TIMESTAMP"))
        texts = pa.array(value_texts(changes, self.sink.store_column), pa.string())
        columns[_VALUE] = array_of_json(texts, arrow_type(self._types[_VALUE]))
        for name in self._rights:
            # A global table's value is an array of one value.
            rights: list[str | None] = []
            for text in changes.column(name).to_pylist():
                rights.append(None if text is None else text[1:-1])
            columns[name] = array_of_json(
                pa.array(rights, pa.string()), arrow_type(self._types[name])
            )
        computed = self._arrow_steps.columns_from(columns, changes.num_rows)
        value = pc.if_else(computed[_VALUE].is_valid(), json_values(computed[_VALUE]), None)
        records = {"key": computed["_key"], "value": value, "timestamp": computed["time"]}
        return pa.table(records | {REJECTED_CHANGE: computed[REJECTED_CHANGE]})

    @cached_property
    def _arrow_steps(self) -> ArrowSteps:
        return ArrowSteps(self._layers, self._types)

    @cached_property
    def _layers(self) -> tuple[Columns, ...]:
        """The steps as layers of columns.

        A step replaces the change's value; if it can fail, it sets `_rejected`.
        """
        layers: list[Columns] = []
        for number, step in enumerate(self.sink.steps):
            if isinstance(step, Lookup):
                joined = f"named_struct('left', {_VALUE}, 'right', {right_column(number)})"
                layers.append((Column(_VALUE, joined, None),))
            elif not step.causes:
                layers.append((Column(_VALUE, step.sql, step.step),))
            else:
                layers += _fallible_layers(step, f"t{number}")
        return tuple(layers)

    @cached_property
    def _types(self) -> dict[str, str]:
        """The types of the columns before the first layer."""
        store = self.group.store_columns[self.sink.store_column].store
        types = {"_key": "STRING", "time": "BIGINT", REJECTED_CHANGE: "STRING"}
        types |= dict.fromkeys(_TIMES, "TIMESTAMP") | {_VALUE: canonical(self.store_types[store])}
        for name, kind in self._rights.items():
            types[name] = canonical(kind)
        return types

    @cached_property
    def _rights(self) -> dict[str, str]:
        """Column with a lookup's values → the type of these values."""
        rights: dict[str, str] = {}
        for number, step in enumerate(self.sink.steps):
            if isinstance(step, Lookup):
                rights[right_column(number)] = step.table.value
        return rights

    @property
    def _row_type(self) -> str:
        fields: list[str] = []
        for number, column in enumerate(self.group.store_columns):
            fields.append(f"`{number}` {self.store_types[column.store]}")
        return f"STRUCT<{', '.join(fields)}>"

    def _with_objects(self, changes: pa.Table) -> pa.Table:
        """Return the changes with an additional column `json`: each row's values as a JSON object.

        Spark cannot read the row's JSON array: in Spark, all elements of an array have the same
        type, but the row's values may differ in type.
        """
        objects = pa.array(map(_object_of, changes.column("value").to_pylist()), pa.string())
        names = ["key", "window_start", "window_end", "time", *self._rights]
        return changes.select(names).append_column("json", objects)


def _fallible_layers(step: Select, name: str) -> Iterator[Columns]:
    """Yield the layers of a step that can fail.

    The step is not computed for changes that are rejected already.
    """
    passed = f"{REJECTED_CHANGE} IS NULL"
    expression = FallibleExpression(name, step.step, passed, (step.sql,), None, step.causes)
    rejected = rejection_sql(step.step, expression.error, value_json(_VALUE))
    rejected = f"coalesce({REJECTED_CHANGE}, IF({expression.error} IS NULL, NULL, {rejected}))"
    yield (expression,)
    yield (
        Column(REJECTED_CHANGE, rejected, step.step),
        Column(_VALUE, expression.result(0), step.step),
    )


def value_texts(changes: pa.Table, store_column: int) -> list[str]:
    """Return the JSON of a store's value in each state row."""
    rows = map(decode_row, changes.column("value").to_pylist())
    return [bytes(row[store_column]).decode() for row in rows]


def _object_of(array: str) -> str:
    """Convert a state row's JSON array to a JSON object. The name of each value is its index."""
    values = {str(number): value for number, value in enumerate(decode_row(array))}
    return msgspec.json.encode(values).decode()
