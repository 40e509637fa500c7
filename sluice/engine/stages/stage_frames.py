"""Runs stages on Spark: sends rows to workers, through operators, and, if later steps need it, through Spark SQL."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress

from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame
from pyspark.sql import types as spark
from pyspark.sql.types import _parse_datatype_string as parse_ddl

from sluice.engine.batch.arrow_tasks import Chain
from sluice.engine.batch.rejections import rejection_sql
from sluice.engine.batch.row_batches import RowBatchReader
from sluice.engine.batch.row_schemas import REJECTED, ROW, ROW_DDL
from sluice.engine.batch.spark_types import ROW_BATCH_TYPE, ddl
from sluice.engine.stages.job_stages import Kinds, Stages, parsed
from sluice.engine.stages.shuffle_targets import ShuffleTargets
from sluice.engine.steps.fallible_expressions import with_columns
from sluice.engine.steps.sql_errors import select
from sluice.errors import EngineError, sentence
from sluice.plan import (
    Column,
    Edge,
    Failure,
    FallibleExpression,
    Job,
    Layers,
    Transformation,
)
from sluice.plan.arrow_support import NeedsSparkError
from sluice.spark_releases import by_worker
from sluice.values.sql_text import backticked, named_struct, value_if


def with_layers(frame: DataFrame, layers: Layers) -> DataFrame:
    """Add the columns of every layer."""
    for layer in layers:
        if isinstance(layer, Transformation):
            frame = _apply_transformation(frame, layer)
            continue
        plain = [column for column in layer if isinstance(column, Column)]
        fallibles = [column for column in layer if isinstance(column, FallibleExpression)]
        frame = with_columns(frame, plain, fallibles)
    return frame


_ROW = "_row"
_OPERATION = re.compile(r"^[\s:+~'-]*(\w+)", re.MULTILINE)
_ROW_CHANGES = frozenset({
    "Aggregate", "Deduplicate", "DeduplicateWithinWatermark", "Distinct", "Except", "Expand", "Filter", "Generate",
    "GlobalLimit", "Intersect", "LocalLimit", "Offset", "Sample", "Sort", "Union",
})  # fmt: skip


def _apply_transformation(frame: DataFrame, step: Transformation) -> DataFrame:
    """Add the columns of an author's DataFrame function."""
    # All columns of the row are packed into one column. Besides this column, the function's frame
    # has only the fields of the value.
    inputs = [f"{sql} AS {backticked(name)}" for name, sql in step.inputs]
    argument = frame.selectExpr(f"struct(*) AS {_ROW}", *inputs)
    try:
        result = step.function.value(argument)
    except AnalysisException as error:
        raise EngineError(
            f"The function at {step.at} failed: {sentence(str(error).splitlines()[0])}",
            next_step=f"Correct the function. Its DataFrame has the columns {', '.join(argument.columns)}.",
        ) from error
    if not isinstance(result, DataFrame):
        raise EngineError(
            f"The function at {step.at} returns {type(result).__name__}, not a DataFrame.",
            next_step="Return the DataFrame that it got, with further columns.",
        )
    operations = _operations(result)
    # The function must not drop, add or sort rows: each record is counted once, and later steps may
    # depend on the order of rows.
    added = Counter(operations) - Counter(_operations(argument))
    if added:
        first = next(name for name in operations if name in added)
        raise EngineError(
            f"The function at {step.at} must keep every row and the order of the rows, but it uses {first}.",
            next_step="Filter and aggregate with the steps of the pipeline, before or after transform.",
        )
    missing = {_ROW, *(name for name, _, _ in step.outputs)} - set(result.columns)
    if missing:
        raise EngineError(
            f"The function at {step.at} returns a DataFrame without {', '.join(sorted(missing))}.",
            next_step="Return its argument with further columns, as withColumn does.",
        )
    for name, _, kind in step.outputs:
        returned, declared = result.schema[name].dataType, parse_ddl(kind)
        if _family(returned) != _family(declared):
            raise EngineError(
                f"The function at {step.at} returns the column {name} as {ddl(returned)}, but "
                f"returns= declares {ddl(declared)}.",
                next_step="Cast the column, or declare its type.",
            )
    outputs = [f"{backticked(name)} AS {column}" for name, column, _ in step.outputs]
    return result.selectExpr(f"{_ROW}.*", *outputs)


def _family(kind: spark.DataType) -> type[spark.DataType]:
    """The type, or NumericType for all numbers."""
    return spark.NumericType if isinstance(kind, spark.NumericType) else type(kind)


def _operations(frame: DataFrame) -> list[str]:
    """The operations of a DataFrame that drop, add or sort rows, the last operation first."""
    plan = frame._jdf.queryExecution().analyzed().treeString()
    return [name for name in _OPERATION.findall(plan) if name in _ROW_CHANGES]


def after_stage(stages: Stages, number: int, row_batches: DataFrame) -> DataFrame:
    """The row batches after a stage, computed from the row batches before the stage."""
    task = stages.task(number)
    last = stages.last_tasks(number)
    side_outputs = stages.storage.side_outputs
    read_rows = RowBatchReader(side_outputs)
    shuffled = by_worker(row_batches, stages.job.pipeline.workers)
    with suppress(NeedsSparkError):
        targets = ShuffleTargets.of(stages, number)
        return shuffled.mapInArrow(
            Chain((read_rows, task, targets, *last)).__call__, ROW_BATCH_TYPE
        )
    rows = shuffled.mapInArrow(Chain((read_rows, task, side_outputs.leave)).__call__, ROW_DDL)
    typed: list[str] = []
    for operator, column in stages.results(number):
        typed.append(f"{parsed(operator, stages.types[column])} AS {column}")
    frame = rows.selectExpr("*", *typed) if typed else rows
    frame = with_layers(frame, stages.job.later_layers.get(number, ()))
    frame = with_layers(frame, stages.edges(number, kinds_in(frame)))
    return _rows_for_targets(stages.job, number, frame).mapInArrow(
        Chain(last).__call__,
        ROW_BATCH_TYPE,
    )


def kinds_in(frame: DataFrame) -> Kinds:
    """A function that returns the types that Spark finds for columns over a frame."""

    def kinds(columns: Sequence[Column]) -> Mapping[str, str]:
        schema = select(frame, columns).schema
        return {column.name: ddl(schema[column.name].dataType) for column in columns}

    return kinds


def _rows_for_targets(job: Job, number: int, frame: DataFrame) -> DataFrame:
    """A row for each target of a stage's results."""
    is_passed_on = "NOT emitted"
    rows = [value_if(is_passed_on, _row_sql({}))]
    rows += [value_if(edge.column, _edge_row_sql(edge)) for edge in job.edges_from(number)]
    failures = [failure for failure in job.failures if failure.stage == number]
    rows += [value_if(failure.once, _rejected_row_sql(failure)) for failure in failures]
    rows_for_targets = f"filter(array({', '.join(rows)}), row -> row IS NOT NULL)"
    unchanged = [name for name in ROW if name not in (*_CHANGED, "output")]
    exploded = frame.selectExpr(*unchanged, f"inline({rows_for_targets})")
    # Only the steps after the stage need the name of a processor's output. It is null in the rows
    # for the targets.
    columns = {name: name for name in ROW} | {"output": "CAST(NULL AS STRING) AS output"}
    return exploded.selectExpr(*columns.values())


_CHANGED = ("target", "side", "emitted", "key", "value", "foreign", "path")
"""The columns in which the rows for the targets differ from the row of the result."""


def _edge_row_sql(edge: Edge) -> str:
    """SQL for the row that carries a result to an edge's target."""
    return _row_sql({
        "target": str(edge.target), "side": str(edge.side), "emitted": "false", "key": edge.key_column,
        "value": edge.value_column, "foreign": "NULL" if edge.foreign is None else edge.foreign_column,
        "path": edge.path_from("path"),
    })  # fmt: skip


def _rejected_row_sql(failure: Failure) -> str:
    """SQL for the rejected row of a result for which a step fails."""
    value = rejection_sql(failure.step.number, failure.error, failure.value)
    return _row_sql({
        "target": str(REJECTED), "emitted": "false", "key": failure.key, "value": value, "foreign": "NULL",
    })  # fmt: skip


def _row_sql(changed: Mapping[str, str]) -> str:
    """SQL for the row of a result, with these columns changed."""
    columns: dict[str, str] = {}
    for name in _CHANGED:
        columns[name] = f"CAST({changed.get(name, backticked(name))} AS {ROW[name]})"
    return named_struct(columns)
