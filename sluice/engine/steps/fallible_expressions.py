"""Attempts: SQL expressions that may fail for a single record, with the text of the error."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import Any

from pyspark import SparkContext
from pyspark.errors import PySparkException
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql import types as spark

from sluice.engine.steps.arrow_steps import KEY_TOO_LONG, NO_RESULT, NOT_FINITE
from sluice.engine.steps.key_sql import NoKeyError, key_sql
from sluice.engine.steps.sql_errors import Unresolved, select
from sluice.plan import Column as Plain
from sluice.plan import FallibleExpression
from sluice.values.record_metadata import MOST_KEY_BYTES
from sluice.values.sql_text import quoted

_SHARING = "spark.sql.subexpressionElimination.enabled"


def share_subexpressions(spark: SparkSession, *, shared: bool) -> None:
    """Allow or forbid that the session's next query computes common subexpressions only once.

    Forbid it for a query with fallible expressions: Spark would compute a subexpression of two of them outside of both,
    where a failure ends the query.
    """
    # `getConf` would copy all settings, each with calls of the JVM.
    usual = str(spark.sparkContext._conf.get(_SHARING, "true"))
    spark.conf.set(_SHARING, usual if shared else "false")


def with_columns(frame: DataFrame, plain: Sequence[Plain], fallibles: Sequence[FallibleExpression]) -> DataFrame:
    """Add columns, and each fallible expression's struct, key text and error text, which is null unless it fails.

    No column may read another one. All are added at once, because Spark analyzes the whole query again for every step
    that is added to it. Raises Unresolved if Spark cannot resolve an expression.
    """
    if not fallibles or any(column.position for column in plain):
        frame, plain = select(frame, plain, "*") if plain else frame, ()
    if not fallibles:
        return frame
    structs = [_tried(_struct_of(fallible)).alias(fallible.name) for fallible in fallibles]
    try:
        attempted = frame.select("*", *(F.expr(column.sql).alias(column.name) for column in plain), *structs)
    except PySparkException:
        select(frame, plain)
        for fallible, struct in zip(fallibles, structs, strict=True):
            try:
                frame.select(struct)
            except PySparkException as error:
                raise Unresolved(fallible.step, error) from None
        raise
    schema = attempted.schema
    outcomes = [list(_outcomes(fallible)) for fallible in fallibles]

    def with_errors() -> DataFrame:
        errors = (_error_of(*each, schema) for each in zip(fallibles, outcomes, strict=True))
        return attempted.select("*", *_keys_of(fallibles, schema), *errors)

    try:
        return with_errors()
    except PySparkException:
        outcomes = [[each for each in pairs if _is_resolved(attempted, each[0])] for pairs in outcomes]
    try:
        return with_errors()
    except PySparkException:
        for fallible, pairs in zip(fallibles, outcomes, strict=True):
            try:
                attempted.select(_error_of(fallible, pairs, schema))
            except PySparkException as error:
                raise Unresolved(fallible.step, error) from None
        raise


def _struct_of(fallible: FallibleExpression) -> str:
    fields = ", ".join(f"'c{number}', {sql}" for number, sql in enumerate(fallible.columns))
    return f"IF({fallible.passed}, named_struct({fields}), NULL)"


def _keys_of(fallibles: Sequence[FallibleExpression], schema: spark.StructType) -> Iterator[Column]:
    """The columns with the texts of the expressions' keys."""
    return (F.expr(_key_of(each, schema)).alias(each.key_text) for each in fallibles if each.key is not None)


def _key_of(fallible: FallibleExpression, schema: spark.StructType) -> str:
    """SQL for the text of a fallible's key. Raises Unresolved if its type cannot be a key."""
    assert fallible.key is not None
    try:
        return key_sql(fallible.result(fallible.key), _types_of(fallible, schema)[fallible.key])
    except NoKeyError as error:
        raise Unresolved(fallible.step, error) from None


def _types_of(fallible: FallibleExpression, schema: spark.StructType) -> list[spark.DataType]:
    """The types of a fallible's expressions."""
    kind = schema[fallible.name].dataType
    assert isinstance(kind, spark.StructType)
    return [column.dataType for column in kind.fields]


def _error_of(fallible: FallibleExpression, outcomes: Sequence[tuple[Column, str]], schema: spark.StructType) -> Column:
    """The column with the fallible's error text. `schema` has the type of its struct."""
    message = F.when(F.expr(f"NOT ({fallible.passed})"), F.lit(None))
    message = message.when(F.col(fallible.name).isNull(), _cause(outcomes))
    unusable = []
    for number, kind in enumerate(_types_of(fallible, schema)):
        if (condition := is_not_finite(fallible.result(number), kind)) is not None:
            unusable.append((condition, NOT_FINITE))
    if fallible.key is not None:
        key = _key_of(fallible, schema)
        unusable.append((f"octet_length({key}) > {MOST_KEY_BYTES}", KEY_TOO_LONG))
        unusable.append((f"NOT is_valid_utf8({key})", "KEY_NOT_UTF8: a key is text"))
    for condition, text in unusable:
        message = message.when(F.expr(f"coalesce({condition}, false)"), F.lit(text))
    return message.cast("STRING").alias(fallible.error)


def _outcomes(fallible: FallibleExpression) -> Iterator[tuple[Column, str]]:
    """For each part of the expression: a column that is null where the part fails, and its error text.

    sqlglot writes the parts, and some functions in a way that Spark cannot parse or resolve: such parts are left out.
    """
    for sql, cause in fallible.causes:
        with suppress(PySparkException):
            yield _tried(f"named_struct('v', {sql})"), cause


def _cause(outcomes: Sequence[tuple[Column, str]]) -> Column:
    """The error text of the first part of the expression that fails. Parts within lambdas yield no text."""
    text: Column = F.lit(NO_RESULT)
    for outcome, cause in reversed(outcomes):
        text = F.when(outcome.isNull(), F.lit(cause)).otherwise(text)
    return text


def _is_resolved(frame: DataFrame, column: Column) -> bool:
    try:
        frame.select(column)
    except PySparkException:
        return False
    return True


def is_not_finite(sql: str, kind: spark.DataType) -> str | None:
    """SQL that is true if a value contains NaN or infinity. None if the type contains no doubles."""
    match kind:
        case spark.DoubleType() | spark.FloatType():
            return f"(isnan({sql}) OR abs({sql}) = double('Infinity'))"
        case spark.StructType():
            inner = [is_not_finite(f"{sql}.{quoted(field.name)}", field.dataType) for field in kind.fields]
            conditions = [f"coalesce({condition}, false)" for condition in inner if condition is not None]
            return f"({' OR '.join(conditions)})" if conditions else None
        case spark.ArrayType():
            return _any(sql, kind.elementType)
        case spark.MapType():
            return _any(f"map_values({sql})", kind.valueType)
        case _:
            return None


def _any(array: str, kind: spark.DataType) -> str | None:
    element = f"e{array.count('->')}{array.count('exists(')}"
    condition = is_not_finite(element, kind)
    return None if condition is None else f"exists({array}, {element} -> coalesce({condition}, false))"


def _tried(sql: str) -> Column:
    """The expression's result, or null where Spark raises an error. Uses the JVM because SQL has no syntax for this."""
    jvm: Any = SparkContext._jvm
    # Whole names: py4j would search all jars for a class named `org`, then for `org.apache`, and so on.
    utils = getattr(jvm, "org.apache.spark.sql.classic.ExpressionUtils")
    try_eval = getattr(jvm, "org.apache.spark.sql.catalyst.expressions.TryEval")
    expression: Any = F.expr(sql)
    return Column(utils.column(try_eval(utils.expression(expression._jc))))
