"""Runs stages on Spark: sends rows to workers and operators, and to Spark SQL if needed."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence

from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame
from pyspark.sql import types as spark
from pyspark.sql.types import _parse_datatype_string as parse_ddl

from sluice.engine.batch.arrow_tasks import Chain
from sluice.engine.batch.row_batches import RowBatchReader
from sluice.engine.batch.row_schemas import ROW, ROW_DDL
from sluice.engine.batch.spark_types import ROW_BATCH_TYPE, ddl
from sluice.engine.stages.job_stages import Kinds, KnownTypes, Stages, parsed, results_of
from sluice.engine.stages.shuffle_targets import RowsForTargets, targets_of
from sluice.engine.steps.fallible_expressions import with_columns
from sluice.engine.steps.sql_errors import select
from sluice.errors import EngineError, sentence
from sluice.plan import Column, FallibleExpression, Layers, Transformation
from sluice.values.sql_text import backticked


def with_layers(frame: DataFrame, layers: Layers) -> DataFrame:
    """Add the columns of every layer."""
    for layer in layers:
        if isinstance(layer, Transformation):
            frame = _apply_transformation(frame, layer)
            continue
        plain: list[Column] = []
        fallibles: list[FallibleExpression] = []
        for column in layer:
            if isinstance(column, Column):
                plain.append(column)
            else:
                fallibles.append(column)
        frame = with_columns(frame, plain, fallibles)
    return frame


_ROW = "_row"
_OPERATION = re.compile(r"^[\s:+~'-]*(\w+)", re.MULTILINE)
_ROW_CHANGES = frozenset({
    "Aggregate", "Deduplicate", "DeduplicateWithinWatermark", "Distinct", "Except", "Expand",
    "Filter", "Generate", "GlobalLimit", "Intersect", "LocalLimit", "Offset", "Sample", "Sort",
    "Union",
})  # fmt: skip


def _apply_transformation(frame: DataFrame, step: Transformation) -> DataFrame:
    """Add the columns of an author's DataFrame function."""
    # Pack all columns of the row into one column. The function's frame has only this column and the
    # fields of the value.
    selected = [f"struct(*) AS {_ROW}"]
    for name, sql in step.inputs:
        selected.append(f"{sql} AS {backticked(name)}")
    argument = frame.selectExpr(*selected)
    result = _call(step, argument)
    _require_same_rows(step, argument, result)
    _require_columns(step, result)
    kept = [f"{_ROW}.*"]
    for name, column, _ in step.outputs:
        kept.append(f"{backticked(name)} AS {column}")
    return result.selectExpr(*kept)


def _call(step: Transformation, argument: DataFrame) -> DataFrame:
    try:
        result = step.function.value(argument)
    except AnalysisException as error:
        raise EngineError(
            f"The function at {step.at} failed: {sentence(str(error).splitlines()[0])}",
            next_step="Correct the function. Its DataFrame has the columns "
            f"{', '.join(argument.columns)}.",
        ) from error
    if not isinstance(result, DataFrame):
        raise EngineError(
            f"The function at {step.at} returns {type(result).__name__}, not a DataFrame.",
            next_step="Let the function return its DataFrame with further columns.",
        )
    return result


def _require_same_rows(step: Transformation, argument: DataFrame, result: DataFrame) -> None:
    """Raise EngineError if the function drops, adds or sorts rows.

    Each record is counted once, and later steps may depend on the order of rows.
    """
    before = Counter(_operations(argument))
    for name in _operations(result):
        before[name] -= 1
        if before[name] < 0:
            raise EngineError(
                f"The function at {step.at} must keep every row and the order of the rows, "
                f"but it uses {name}.",
                next_step="Filter and aggregate with the steps of the pipeline, before or after "
                "transform.",
            )


def _require_columns(step: Transformation, result: DataFrame) -> None:
    """Raise EngineError if a column is missing, or has another type than the step declares."""
    wanted = {_ROW}
    for name, _, _ in step.outputs:
        wanted.add(name)
    missing = wanted.difference(result.columns)
    if missing:
        raise EngineError(
            f"The function at {step.at} returns a DataFrame without {', '.join(sorted(missing))}.",
            next_step="Let the function return its DataFrame with further columns, as withColumn "
            "does.",
        )
    for name, _, kind in step.outputs:
        returned, declared = result.schema[name].dataType, parse_ddl(kind)
        if _family(returned) != _family(declared):
            raise EngineError(
                f"The function at {step.at} returns the column {name} as {ddl(returned)}, but "
                f"returns= declares {ddl(declared)}.",
                next_step="Cast the column, or declare its type.",
            )


def _family(kind: spark.DataType) -> type[spark.DataType]:
    """Return the type, or NumericType for all numbers."""
    if isinstance(kind, spark.NumericType):
        return spark.NumericType
    return type(kind)


def _operations(frame: DataFrame) -> list[str]:
    """Return a DataFrame's operations that drop, add or sort rows, the last operation first."""
    plan = frame._jdf.queryExecution().analyzed().treeString()
    operations: list[str] = []
    for name in _OPERATION.findall(plan):
        if name in _ROW_CHANGES:
            operations.append(name)
    return operations


def stage_with_sql(
    stages: Stages, number: int, known: KnownTypes, shuffled: DataFrame
) -> tuple[DataFrame, KnownTypes]:
    """Return the row batches and the types after a stage if Spark SQL computes its last steps.

    `shuffled` are the row batches before the stage, with a partition for each worker.
    """
    job, side_outputs = stages.job, stages.storage.side_outputs
    task = stages.task(number, known)
    known = known.with_results(number)
    read_rows = RowBatchReader(side_outputs)
    frame = shuffled.mapInArrow(Chain((read_rows, task, side_outputs.leave)).__call__, ROW_DDL)
    typed: list[str] = []
    for operator, column in results_of(job, number):
        typed.append(f"{parsed(operator, known.results[column])} AS {column}")
    frame = with_layers(frame.selectExpr("*", *typed), job.later_layers.get(number, ()))
    edges, known = known.with_edges(number, kinds_in(frame))
    targets, columns = targets_of(job, number)
    frame = with_layers(frame, (*edges, columns))
    needed = list(ROW)
    for target in targets:
        needed += target.columns
    last = Chain((RowsForTargets(targets), *stages.last_tasks(number)))
    return frame.selectExpr(*needed).mapInArrow(last.__call__, ROW_BATCH_TYPE), known


def kinds_in(frame: DataFrame) -> Kinds:
    """Return a function by which Spark finds the types of columns computed from this frame."""

    def kinds(columns: Sequence[Column]) -> Mapping[str, str]:
        schema = select(frame, columns).schema
        return {column.name: ddl(schema[column.name].dataType) for column in columns}

    return kinds
