"""Computes all stores of a job in one stateful Spark operator: a state row per group, key and window.

Spark's watermark only removes closed windows from its state. It follows the stream time that all partitions have
reached (see `windowing`), so Spark itself never drops a record as late.
"""

from __future__ import annotations

from collections.abc import Mapping

from pyspark.errors import PySparkException
from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql import types as spark

from sluice.engine.batch.rows import STATE_KEY
from sluice.engine.batch.spark_types import ddl
from sluice.engine.fused.partial_aggregates import Combiner
from sluice.engine.steps.attempts import is_not_finite
from sluice.engine.steps.sql_errors import Unresolved
from sluice.plan import FusedJob, StoreColumn
from sluice.values.sql import TO_JSON, literal
from sluice.values.sql_types import compact, struct_type

_EXPIRES = {"spark.watermarkDelayMs": 0}


Names = Mapping[str, str]
"""Text of an aggregate → name of the column that holds its result."""


def fuse(job: FusedJob, windowed: DataFrame, combiner: Combiner) -> DataFrame:
    """The changed state rows: STATE_KEY, `value`, a JSON array of the group's store columns, and `time`.

    `time` is the largest event time of the records in the aggregate.
    """
    # SQL of each group's aggregates, either over the tasks' partial aggregates or over the records.
    sqls: dict[int, dict[str, str]] = {}
    for group in job.groups:
        parts = combiner.parts.get(group.number, {})
        sqls[group.number] = {text: parts[text].sql if parts else text for text in group.aggregates}
    distinct = dict.fromkeys(sql for by_text in sqls.values() for sql in by_text.values())
    column_of = {sql: f"a{i}" for i, sql in enumerate(distinct)}
    names = {number: {text: column_of[sql] for text, sql in by_text.items()} for number, by_text in sqls.items()}
    # This metadata makes Spark treat `expires_at` as event time and drop each state row at its own time.
    columns = [F.col(name) for name in windowed.columns if name not in ("expires_at", "closed_at")]
    state_rows = windowed.withWatermark("closed_at", "0 seconds").select(
        *columns, F.col("expires_at").alias("expires_at", metadata=_EXPIRES)
    )
    grouped = state_rows.groupBy(*STATE_KEY, "expires_at").agg(
        F.max("time").alias("time"), *(F.expr(sql).alias(name) for sql, name in column_of.items())
    )
    finite = {name: _finite(name, grouped.schema[name].dataType) for name in column_of.values()}
    names = {number: {text: finite[name] for text, name in by_text.items()} for number, by_text in names.items()}
    return grouped.selectExpr(*STATE_KEY, f"{_value(job, names)} AS value", "X'' AS position", "time")


def _finite(name: str, kind: spark.DataType) -> str:
    """SQL for an aggregate's result, or null for NaN and infinity, which JSON does not have.

    Spark returns them for statistics of very large numbers, whose squares a double cannot hold.
    """
    condition = is_not_finite(name, kind)
    return name if condition is None else f"IF(coalesce({condition}, false), NULL, {name})"


def _value(job: FusedJob, names: Mapping[int, Names]) -> str:
    """SQL for a state row's value. Groups with the same SQL share a CASE branch."""
    group_ids: dict[str, list[str]] = {}
    for group in job.groups:
        columns = ", ',', ".join(_column(column, names[group.number]) for column in group.store_columns)
        group_ids.setdefault(f"concat('[', {columns}, ']')", []).append(str(group.number))
    if len(group_ids) == 1:
        return next(iter(group_ids))
    whens = " ".join(f"WHEN group_id IN ({', '.join(ids)}) THEN {sql}" for sql, ids in group_ids.items())
    return f"CASE {whens} END"


def _column(store_column: StoreColumn, names: Names) -> str:
    if store_column.scalar:
        return f"CAST({names[store_column.columns[0][1]]} AS STRING)"
    fields = ", ".join(f"{literal(name)}, {names[text]}" for name, text in store_column.columns)
    return TO_JSON.format(f"named_struct({fields})")


def column_types(job: FusedJob, records: DataFrame) -> dict[str, str]:
    """Store → DDL type of its value. `records` has the columns that the aggregates read."""
    texts = {
        text: f"t{i}" for i, text in enumerate(dict.fromkeys(text for group in job.groups for text in group.aggregates))
    }
    # Some aggregates refer to the group id; their types do not depend on it.
    rows = records.withColumn("group_id", F.lit(0))
    schema = _aggregated(job, rows, texts).schema
    types = {text: ddl(schema[name].dataType) for text, name in texts.items()}
    return {
        store_column.store: _type_of(store_column, types)
        for group in job.groups
        for store_column in group.store_columns
    }


def _aggregated(job: FusedJob, rows: DataFrame, texts: Names) -> DataFrame:
    try:
        return rows.groupBy().agg(*(F.expr(text).alias(name) for text, name in texts.items()))
    except PySparkException:
        for store_column in (store_column for group in job.groups for store_column in group.store_columns):
            for _, text in store_column.columns:
                try:
                    rows.groupBy().agg(F.expr(text))
                except PySparkException as error:
                    raise Unresolved(store_column.step, error) from None
        raise


def _type_of(store_column: StoreColumn, types: Names) -> str:
    if store_column.scalar:
        return types[store_column.columns[0][1]]
    return compact(struct_type({name: types[text] for name, text in store_column.columns}))
