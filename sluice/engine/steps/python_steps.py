"""Registers an author's Python functions as Spark SQL functions, which the plan's columns call."""

from __future__ import annotations

from functools import partial
from typing import Any

import pyarrow as pa
from pyspark.sql import SparkSession
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql.pandas import functions

from sluice.engine.steps import key_sql
from sluice.engine.steps.python_calls import BatchCall, Outcome, calls_of
from sluice.plan import FallibleExpression, Job
from sluice.sql.arrow_types import arrow_type
from sluice.sql.rules import PYTHON_RESULT


def register(spark: SparkSession, job: Job) -> None:
    """Register the job's Python functions with a session.

    If a step computes a key by an expression that can fail, also registers the function that turns
    keys into text.
    """
    for column in job.columns:
        if isinstance(column, FallibleExpression) and column.key is not None:
            key_sql.register(spark)
            break
    for name, call in calls_of(job).items():
        if isinstance(call, BatchCall):
            spark.udf.register(name, _on_arrow(call))
        else:
            spark.udf.register(name, call.call, PYTHON_RESULT)


def _on_arrow(call: BatchCall) -> Any:
    """Return a Spark SQL function that makes the call for many records at once.

    In Spark 4.0, it makes the call for each record.
    """
    arrow_udf: Any = getattr(functions, "arrow_udf", None)
    if arrow_udf is None:
        return F.udf(partial(_call_once, call), PYTHON_RESULT)

    def results(passed: pa.Array, keys: pa.Array, values: pa.Array) -> pa.Array:
        outcomes = call.call_all(passed.to_pylist(), keys.to_pylist(), values.to_pylist())
        return pa.array(outcomes, arrow_type(PYTHON_RESULT))

    return arrow_udf(results, PYTHON_RESULT, functions.ArrowUDFType.SCALAR)


def _call_once(call: BatchCall, passed: bool | None, key: str | None, value: str | None) -> Outcome:
    return call.call_all([passed], [key], [value])[0]
