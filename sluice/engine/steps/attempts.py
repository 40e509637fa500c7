"""A plan's attempts in Spark: expressions that fail for their record alone, and the text that says why."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from pyspark import SparkContext
from pyspark.errors import PySparkException
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql import types as spark

from sluice.engine.steps.sql_errors import Unresolved
from sluice.plan import Attempt
from sluice.values.records import MOST_KEY_BYTES
from sluice.values.sql import TO_JSON

WITHOUT_SHARING = {"spark.sql.subexpressionElimination.enabled": "false"}
"""Spark would compute what two attempts have in common before either, where a failure ends the query."""


def with_attempt(frame: DataFrame, attempt: Attempt) -> DataFrame:
    """The frame with the attempt's struct, and with the text of what is wrong with a record for which it fails.

    Raises Unresolved for an expression that Spark cannot take.
    """
    name = attempt.name
    fields = ", ".join(f"'c{number}', {sql}" for number, sql in enumerate(attempt.columns))
    try:
        made = frame.select("*", _tried(f"IF({attempt.passed}, named_struct({fields}), NULL)").alias(name))
    except PySparkException as error:
        raise Unresolved(attempt.step, error) from None
    wrong = F.when(F.expr(f"NOT ({attempt.passed})"), F.lit(None))
    wrong = wrong.when(F.col(name).isNull(), _blame(attempt))
    kind = made.schema[name].dataType
    assert isinstance(kind, spark.StructType)
    for number, column in enumerate(kind.fields):
        for condition, what in _unusable(attempt.result(number), column.dataType, is_key=number in attempt.keys):
            wrong = wrong.when(F.expr(f"coalesce({condition}, false)"), F.lit(what))
    return made.select("*", wrong.cast("STRING").alias(attempt.error))


def rejection(node: int, error: str, value: str) -> str:
    """SQL of the JSON of `Rejected`, given that of what went wrong and of the value, as JSON."""
    return TO_JSON.format(f"named_struct('node', {node}, 'detail', {error}, 'value', {value})")


def _blame(attempt: Attempt) -> Column:
    """What the first part says that has no result; parts within lambdas have no text of their own."""
    said: Column = F.lit("NO_RESULT")
    for sql, what in reversed(attempt.causes):
        said = F.when(_tried(f"named_struct('v', {sql})").isNull(), F.lit(what)).otherwise(said)
    return said


def _unusable(sql: str, kind: spark.DataType, *, is_key: bool) -> Iterator[tuple[str, str]]:
    """Conditions under which a result cannot be kept, each with what is then wrong."""
    if (condition := _is_not_finite(sql, kind)) is not None:
        yield condition, "NOT_FINITE: NaN or infinity, which JSON does not have"
    if is_key:
        too_long = f"octet_length(CAST({sql} AS STRING)) > {MOST_KEY_BYTES}"
        yield too_long, f"KEY_TOO_LONG: a key has at most {MOST_KEY_BYTES} bytes"


def _is_not_finite(sql: str, kind: spark.DataType) -> str | None:
    """SQL that is true where a value holds a double that is no number; None if it can hold no doubles."""
    match kind:
        case spark.DoubleType() | spark.FloatType():
            return f"(isnan({sql}) OR abs({sql}) = double('Infinity'))"
        case spark.StructType():
            inner = [_is_not_finite(f"{sql}.`{field.name}`", field.dataType) for field in kind.fields]
            conditions = [f"coalesce({one}, false)" for one in inner if one is not None]
            return f"({' OR '.join(conditions)})" if conditions else None
        case spark.ArrayType():
            return _any(sql, kind.elementType)
        case spark.MapType():
            return _any(f"map_values({sql})", kind.valueType)
        case _:
            return None


def _any(array: str, kind: spark.DataType) -> str | None:
    element = f"e{array.count('->')}{array.count('exists(')}"
    condition = _is_not_finite(element, kind)
    return None if condition is None else f"exists({array}, {element} -> coalesce({condition}, false))"


def _tried(sql: str) -> Column:
    """The expression, or null where Spark raises an error. Spark has it for functions of its own only, not for SQL."""
    jvm: Any = SparkContext._jvm
    spark_sql = jvm.org.apache.spark.sql
    expression: Any = F.expr(sql)
    tried = spark_sql.catalyst.expressions.TryEval(spark_sql.classic.ExpressionUtils.expression(expression._jc))
    return Column(spark_sql.classic.ExpressionUtils.column(tried))
