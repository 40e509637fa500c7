"""Registers an author's Python functions as Spark SQL functions, which the plan's columns call."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
from pyspark.sql import SparkSession
from pyspark.sql.pandas.functions import ArrowUDFType, arrow_udf

from sluice.engine.steps import key_sql
from sluice.engine.steps.python_calls import BatchCall, calls_of
from sluice.plan import FallibleExpression, Job
from sluice.sql.arrow_types import arrow_type
from sluice.sql.rules import PYTHON_RESULT


def register(spark: SparkSession, job: Job) -> None:
    """Register the job's Python functions with a session.

    If a step computes a key by an expression that can fail, also registers the function that turns
    keys into text.
    """
    if any(
        isinstance(column, FallibleExpression) and column.key is not None for column in job.columns
    ):
        key_sql.register(spark)
    for name, call in calls_of(job).items():
        if isinstance(call, BatchCall):
            spark.udf.register(name, _on_arrow(call))
        else:
            spark.udf.register(name, call.call, PYTHON_RESULT)


def _on_arrow(call: BatchCall) -> Any:
    """A Spark SQL function that gets the arguments of many records at once."""

    def results(passed: pa.Array, keys: pa.Array, values: pa.Array) -> pa.Array:
        outcomes = call.call_all(passed.to_pylist(), keys.to_pylist(), values.to_pylist())
        return pa.array(outcomes, arrow_type(PYTHON_RESULT))

    return arrow_udf(results, PYTHON_RESULT, ArrowUDFType.SCALAR)
