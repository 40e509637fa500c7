"""All stores of a job in one stateful operator: a cell per family, key and window, aggregated by Spark.

Spark's watermark has one task here, to let go of closed windows: it runs over the time that all partitions have
reached (see `place`), so Spark itself never finds a record late.
"""

from __future__ import annotations

from collections.abc import Mapping

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812

from sluice.engine.place import CELL
from sluice.plan import TO_JSON, Family, Job, Slot

_EXPIRES = {"spark.watermarkDelayMs": 0}


def fuse(job: Job, placed: DataFrame) -> DataFrame:
    """Changed cells: `cell`, `key`, `window_start`, `window_end`, `value` (JSON array of the family's store values)."""
    names = {text: f"a{i}" for i, text in enumerate(dict.fromkeys(_aggregates(job)))}
    # The alias's metadata is what makes Spark take `expires_at` as event time and drop each cell at its own time.
    columns = [F.col(name) for name in placed.columns if name not in ("expires_at", "closed_at")]
    cells = placed.withWatermark("closed_at", "0 seconds").select(
        *columns, F.col("expires_at").alias("expires_at", metadata=_EXPIRES)
    )
    grouped = cells.groupBy(*CELL, "expires_at").agg(*(F.expr(text).alias(name) for text, name in names.items()))
    return grouped.selectExpr(*CELL, f"{_values(job, names)} AS value", "CAST(0 AS BIGINT) AS position")


def _aggregates(job: Job) -> list[str]:
    return [text for family in job.families for slot in family.slots for _, text in slot.columns]


def _values(job: Job, names: Mapping[str, str]) -> str:
    """SQL that makes a cell's value; families whose values are made alike share a branch."""
    cases: dict[str, list[int]] = {}
    for family in job.families:
        cases.setdefault(_value(family, names), []).append(family.number)
    if len(cases) == 1:
        return next(iter(cases))
    whens = " ".join(f"WHEN cell IN ({', '.join(map(str, cells))}) THEN {sql}" for sql, cells in cases.items())
    return f"CASE {whens} END"


def _value(family: Family, names: Mapping[str, str]) -> str:
    slots = ", ',', ".join(_slot(slot, names) for slot in family.slots)
    return f"concat('[', {slots}, ']')"


def _slot(slot: Slot, names: Mapping[str, str]) -> str:
    if slot.scalar:
        return f"CAST({names[slot.columns[0][1]]} AS STRING)"
    return TO_JSON.format(slot_struct(slot, names))


def slot_struct(slot: Slot, names: Mapping[str, str]) -> str:
    """SQL of a store's value as a struct of its named aggregates."""
    fields = ", ".join(f"'{name}', {names[text]}" for name, text in slot.columns)
    return f"named_struct({fields})"


def slot_types(job: Job, placed: DataFrame) -> dict[str, str]:
    """Store → the type of its value as Spark SQL DDL."""
    rows = placed.sparkSession.createDataFrame([], placed.schema)
    types: dict[str, str] = {}
    for family in job.families:
        for slot in family.slots:
            made = rows.groupBy("cell").agg(*(F.expr(text).alias(name) for name, text in slot.columns)).drop("cell")
            types[slot.store] = made.schema[0].dataType.simpleString() if slot.scalar else made.schema.simpleString()
    return types
