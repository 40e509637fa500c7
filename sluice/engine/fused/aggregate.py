"""All stores of a job in one stateful operator: a state row per group, key and window, aggregated by Spark.

Spark's watermark has one task here, to let go of closed windows: it runs over the time that all partitions have
reached (see `place`), so Spark itself never finds a record late.
"""

from __future__ import annotations

from collections.abc import Mapping

from pyspark.errors import PySparkException
from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812

from sluice.engine.fused.partial_aggregates import Combiner
from sluice.engine.fused.windowing import STATE_KEY
from sluice.engine.steps.sql_errors import Unresolved
from sluice.plan import AggregationGroup, FusedJob, StoreColumn
from sluice.values.sql import TO_JSON, quoted

_EXPIRES = {"spark.watermarkDelayMs": 0}


Names = Mapping[str, str]
"""An aggregate's text → the column that holds it."""


def fuse(job: FusedJob, placed: DataFrame, combiner: Combiner) -> DataFrame:
    """Changed state rows: `group_id`, `key`, `window_start`, `window_end`, `value` (JSON array of the group's store values)."""
    completed = {group.number: _completed(group, combiner) for group in job.groups}
    columns_of = {
        sql: f"a{i}" for i, sql in enumerate(dict.fromkeys(s for of in completed.values() for s in of.values()))
    }
    names = {number: {text: columns_of[sql] for text, sql in of.items()} for number, of in completed.items()}
    # The alias's metadata is what makes Spark take `expires_at` as event time and drop each state row at its own time.
    columns = [F.col(name) for name in placed.columns if name not in ("expires_at", "closed_at")]
    state_rows = placed.withWatermark("closed_at", "0 seconds").select(
        *columns, F.col("expires_at").alias("expires_at", metadata=_EXPIRES)
    )
    grouped = state_rows.groupBy(*STATE_KEY, "expires_at").agg(
        *(F.expr(sql).alias(name) for sql, name in columns_of.items())
    )
    return grouped.selectExpr(*STATE_KEY, f"{_values(job, names)} AS value", "CAST(0 AS BIGINT) AS position")


def _completed(group: AggregationGroup, combiner: Combiner) -> Names:
    """What the operator aggregates for each aggregate of the group: the parts of it, or the records themselves."""
    parts = combiner.parts.get(group.number, {})
    return {text: parts[text].sql if parts else text for text in group.aggregates}


def _values(job: FusedJob, names: Mapping[int, Names]) -> str:
    """SQL that makes a state row's value; groups whose values are made alike share a branch."""
    cases: dict[str, list[int]] = {}
    for group in job.groups:
        cases.setdefault(_value(group, names[group.number]), []).append(group.number)
    if len(cases) == 1:
        return next(iter(cases))
    whens = " ".join(
        f"WHEN group_id IN ({', '.join(map(str, state_rows))}) THEN {sql}" for sql, state_rows in cases.items()
    )
    return f"CASE {whens} END"


def _value(group: AggregationGroup, names: Names) -> str:
    store_columns = ", ',', ".join(_slot(store_column, names) for store_column in group.store_columns)
    return f"concat('[', {store_columns}, ']')"


def _slot(store_column: StoreColumn, names: Names) -> str:
    if store_column.scalar:
        return f"CAST({names[store_column.columns[0][1]]} AS STRING)"
    fields = ", ".join(f"'{name}', {names[text]}" for name, text in store_column.columns)
    return TO_JSON.format(f"named_struct({fields})")


def slot_types(job: FusedJob, records: DataFrame) -> dict[str, str]:
    """Store → the type of its value as Spark SQL DDL, given the columns that the aggregates read."""
    texts = {
        text: f"t{i}" for i, text in enumerate(dict.fromkeys(text for group in job.groups for text in group.aggregates))
    }
    # Guards name the state row; which one makes no difference to a type.
    rows = records.sparkSession.createDataFrame([], records.schema).withColumn("group_id", F.lit(0))
    made = _aggregated(job, rows, texts).schema
    types = {text: made[name].dataType.simpleString() for text, name in texts.items()}
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
    return f"struct<{','.join(f'{quoted(name)}:{types[text]}' for name, text in store_column.columns)}>"
