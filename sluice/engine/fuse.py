"""All stores of a job in one stateful operator: a cell per family, key and window, aggregated by Spark.

Spark's watermark has one task here, to let go of closed windows: it runs over the time that all partitions have
reached (see `place`), so Spark itself never finds a record late.
"""

from __future__ import annotations

from collections.abc import Mapping

from pyspark.errors import PySparkException
from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812

from sluice.engine.combine import Combiner
from sluice.engine.located import Unresolved
from sluice.engine.place import CELL
from sluice.plan import Family, Job, Slot
from sluice.values.sql import TO_JSON, quoted

_EXPIRES = {"spark.watermarkDelayMs": 0}


Names = Mapping[str, str]
"""An aggregate's text → the column that holds it."""


def fuse(job: Job, placed: DataFrame, combiner: Combiner) -> DataFrame:
    """Changed cells: `cell`, `key`, `window_start`, `window_end`, `value` (JSON array of the family's store values)."""
    completed = {family.number: _completed(family, combiner) for family in job.families}
    columns_of = {
        sql: f"a{i}" for i, sql in enumerate(dict.fromkeys(s for of in completed.values() for s in of.values()))
    }
    names = {number: {text: columns_of[sql] for text, sql in of.items()} for number, of in completed.items()}
    # The alias's metadata is what makes Spark take `expires_at` as event time and drop each cell at its own time.
    columns = [F.col(name) for name in placed.columns if name not in ("expires_at", "closed_at")]
    cells = placed.withWatermark("closed_at", "0 seconds").select(
        *columns, F.col("expires_at").alias("expires_at", metadata=_EXPIRES)
    )
    grouped = cells.groupBy(*CELL, "expires_at").agg(*(F.expr(sql).alias(name) for sql, name in columns_of.items()))
    return grouped.selectExpr(*CELL, f"{_values(job, names)} AS value", "CAST(0 AS BIGINT) AS position")


def _completed(family: Family, combiner: Combiner) -> Names:
    """What the operator aggregates for each aggregate of the family: the parts of it, or the records themselves."""
    parts = combiner.parts.get(family.number, {})
    return {text: parts[text].sql if parts else text for text in family.aggregates}


def _values(job: Job, names: Mapping[int, Names]) -> str:
    """SQL that makes a cell's value; families whose values are made alike share a branch."""
    cases: dict[str, list[int]] = {}
    for family in job.families:
        cases.setdefault(_value(family, names[family.number]), []).append(family.number)
    if len(cases) == 1:
        return next(iter(cases))
    whens = " ".join(f"WHEN cell IN ({', '.join(map(str, cells))}) THEN {sql}" for sql, cells in cases.items())
    return f"CASE {whens} END"


def _value(family: Family, names: Names) -> str:
    slots = ", ',', ".join(_slot(slot, names) for slot in family.slots)
    return f"concat('[', {slots}, ']')"


def _slot(slot: Slot, names: Names) -> str:
    if slot.scalar:
        return f"CAST({names[slot.columns[0][1]]} AS STRING)"
    fields = ", ".join(f"'{name}', {names[text]}" for name, text in slot.columns)
    return TO_JSON.format(f"named_struct({fields})")


def slot_types(job: Job, records: DataFrame) -> dict[str, str]:
    """Store → the type of its value as Spark SQL DDL, given the columns that the aggregates read."""
    texts = {
        text: f"t{i}"
        for i, text in enumerate(dict.fromkeys(text for family in job.families for text in family.aggregates))
    }
    # Guards name the cell; which one makes no difference to a type.
    rows = records.sparkSession.createDataFrame([], records.schema).withColumn("cell", F.lit(0))
    made = _aggregated(job, rows, texts).schema
    types = {text: made[name].dataType.simpleString() for text, name in texts.items()}
    return {slot.store: _slot_type(slot, types) for family in job.families for slot in family.slots}


def _aggregated(job: Job, rows: DataFrame, texts: Names) -> DataFrame:
    try:
        return rows.groupBy().agg(*(F.expr(text).alias(name) for text, name in texts.items()))
    except PySparkException:
        for slot in (slot for family in job.families for slot in family.slots):
            for _, text in slot.columns:
                try:
                    rows.groupBy().agg(F.expr(text))
                except PySparkException as error:
                    raise Unresolved(slot.store, error) from None
        raise


def _slot_type(slot: Slot, types: Names) -> str:
    if slot.scalar:
        return types[slot.columns[0][1]]
    return f"struct<{','.join(f'{quoted(name)}:{types[text]}' for name, text in slot.columns)}>"
