"""Registers an author's Python functions as Spark SQL functions, which the plan's columns call."""

from __future__ import annotations

from pyspark.sql import SparkSession

from sluice.engine.steps import key_sql
from sluice.engine.steps.python_calls import functions_of
from sluice.plan import FallibleExpression, Job
from sluice.sql.rules import PYTHON_RESULT


def register(spark: SparkSession, job: Job) -> None:
    """Register the job's Python functions with a session, and the function that makes the texts of some keys."""
    if any(isinstance(column, FallibleExpression) and column.key is not None for column in job.columns):
        key_sql.register(spark)
    for name, function in functions_of(job).items():
        spark.udf.register(name, function, PYTHON_RESULT)
