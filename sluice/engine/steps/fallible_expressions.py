"""Computes expressions that may fail for a single record, and their errors, with Spark SQL."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from functools import partial
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
from sluice.values.sql_text import named_struct, quoted

_SHARING = "spark.sql.subexpressionElimination.enabled"


def share_subexpressions(spark: SparkSession, *, shared: bool) -> None:
    """Allow or forbid that the session's next query computes common subexpressions only once.

    Forbid it for a query with fallible expressions. If two of them share a subexpression, Spark
    would compute the subexpression outside of both, where a failure ends the query.
    """
    # Not `getConf`: it would copy all settings, with several calls of the JVM for each.
    usual = str(spark.sparkContext._conf.get(_SHARING, "true"))
    spark.conf.set(_SHARING, usual if shared else "false")


def with_columns(
    frame: DataFrame,
    plain: Sequence[Plain],
    fallibles: Sequence[FallibleExpression],
) -> DataFrame:
    """Add the plain columns, and the columns of each fallible expression.

    A fallible expression has three columns: a struct of its results, the key text, and the error
    text, which is null unless the expression fails. No column may read another column. All columns
    are added at once, because Spark analyzes the whole query again for every step that is added to
    it. Raises Unresolved if Spark cannot resolve an expression.
    """
    if not fallibles and not plain:
        return frame
    if not fallibles:
        return select(frame, plain, "*")
    # An exploded array gives two columns: the element and its position. `_with_structs` gives each
    # expression only one name, so `select` adds these columns first.
    if any(column.position for column in plain):
        frame, plain = select(frame, plain, "*"), ()
    with_structs = _with_structs(frame, plain, fallibles)
    parts = [*map(_fallible_parts, fallibles)]
    try:
        return _with_errors(with_structs, fallibles, parts)
    except PySparkException:
        # In rare cases, sqlglot has written a part in a way that Spark cannot resolve. If this part
        # fails, the error does not name the part.
        resolved = [*map(partial(_resolved_parts, with_structs), parts)]
    try:
        return _with_errors(with_structs, fallibles, resolved)
    except PySparkException:
        schema = with_structs.schema
        for fallible, expression_parts in zip(fallibles, resolved, strict=True):
            try:
                with_structs.select(_error_column(fallible, expression_parts, schema))
            except PySparkException as error:
                raise Unresolved(fallible.step, error) from None
        raise


def _with_structs(
    frame: DataFrame,
    plain: Sequence[Plain],
    fallibles: Sequence[FallibleExpression],
) -> DataFrame:
    """Return the frame with the plain columns and a struct for each fallible expression.

    The struct is null where the expression fails.
    """
    structs: list[Column] = []
    for fallible in fallibles:
        structs.append(_null_if_failing(_struct_sql(fallible)).alias(fallible.name))
    columns: list[Column] = []
    for column in plain:
        columns.append(F.expr(column.sql).alias(column.name))
    try:
        return frame.select("*", *columns, *structs)
    except PySparkException:
        select(frame, plain)
        for fallible, struct in zip(fallibles, structs, strict=True):
            try:
                frame.select(struct)
            except PySparkException as error:
                raise Unresolved(fallible.step, error) from None
        raise


def _with_errors(
    frame: DataFrame,
    fallibles: Sequence[FallibleExpression],
    parts: Sequence[Sequence[tuple[Column, str]]],
) -> DataFrame:
    """Return the frame with the key text and the error text of each fallible expression."""
    schema = frame.schema
    keys: list[Column] = []
    errors: list[Column] = []
    for fallible, expression_parts in zip(fallibles, parts, strict=True):
        if fallible.key is not None:
            keys.append(_key_column(fallible, schema))
        errors.append(_error_column(fallible, expression_parts, schema))
    return frame.select("*", *keys, *errors)


def _struct_sql(fallible: FallibleExpression) -> str:
    fields: dict[str, str] = {}
    for number, sql in enumerate(fallible.columns):
        fields[f"c{number}"] = sql
    return f"IF({fallible.passed}, {named_struct(fields)}, NULL)"


def _key_column(fallible: FallibleExpression, schema: spark.StructType) -> Column:
    return F.expr(_key_of(fallible, schema)).alias(fallible.key_text)


def _key_of(fallible: FallibleExpression, schema: spark.StructType) -> str:
    """Return SQL for the text of a fallible expression's key.

    Raises Unresolved if its type cannot be a key.
    """
    assert fallible.key is not None
    try:
        return key_sql(fallible.result(fallible.key), _types_of(fallible, schema)[fallible.key])
    except NoKeyError as error:
        raise Unresolved(fallible.step, error) from None


def _types_of(fallible: FallibleExpression, schema: spark.StructType) -> list[spark.DataType]:
    """Return the types of a fallible expression's columns."""
    kind = schema[fallible.name].dataType
    assert isinstance(kind, spark.StructType)
    return [column.dataType for column in kind.fields]


def _error_column(
    fallible: FallibleExpression,
    parts: Sequence[tuple[Column, str]],
    schema: spark.StructType,
) -> Column:
    """Return the column with the expression's error text.

    `schema` contains the type of the expression's struct.
    """
    message = F.when(F.expr(f"NOT ({fallible.passed})"), F.lit(None))
    message = message.when(F.col(fallible.name).isNull(), _cause(parts))
    unusable: list[tuple[str, str]] = []
    for number, kind in enumerate(_types_of(fallible, schema)):
        condition = is_not_finite(fallible.result(number), kind)
        if condition is not None:
            unusable.append((condition, NOT_FINITE))
    if fallible.key is not None:
        key = _key_of(fallible, schema)
        unusable.append((f"octet_length({key}) > {MOST_KEY_BYTES}", KEY_TOO_LONG))
        unusable.append((f"NOT is_valid_utf8({key})", "KEY_NOT_UTF8: a key is text"))
    for condition, text in unusable:
        message = message.when(F.expr(f"coalesce({condition}, false)"), F.lit(text))
    return message.cast("STRING").alias(fallible.error)


def _fallible_parts(fallible: FallibleExpression) -> list[tuple[Column, str]]:
    """Return a column and an error text for each part of the expression that can fail.

    The column is null where the part fails. sqlglot writes the SQL of the parts. Parts that Spark
    cannot parse or resolve in this SQL are left out.
    """
    parts: list[tuple[Column, str]] = []
    for sql, cause in fallible.causes:
        with suppress(PySparkException):
            parts.append((_null_if_failing(f"named_struct('v', {sql})"), cause))
    return parts


def _cause(parts: Sequence[tuple[Column, str]]) -> Column:
    """Return the error text of the first part of the expression that fails.

    Parts within lambdas yield no text.
    """
    text: Column = F.lit(NO_RESULT)
    # Go from the last part to the first: the first part that fails must give the text.
    for part, cause in reversed(parts):
        text = F.when(part.isNull(), F.lit(cause)).otherwise(text)
    return text


def _resolved_parts(
    frame: DataFrame,
    parts: Sequence[tuple[Column, str]],
) -> list[tuple[Column, str]]:
    resolved: list[tuple[Column, str]] = []
    for column, cause in parts:
        if _is_resolved(frame, column):
            resolved.append((column, cause))
    return resolved


def _is_resolved(frame: DataFrame, column: Column) -> bool:
    try:
        frame.select(column)
    except PySparkException:
        return False
    return True


def is_not_finite(sql: str, kind: spark.DataType) -> str | None:
    """Return SQL that is true if a value contains NaN or infinity.

    Return None if the type contains no doubles.
    """
    match kind:
        case spark.DoubleType() | spark.FloatType():
            return f"(isnan({sql}) OR abs({sql}) = double('Infinity'))"
        case spark.StructType():
            conditions: list[str] = []
            for field in kind.fields:
                condition = is_not_finite(f"{sql}.{quoted(field.name)}", field.dataType)
                if condition is not None:
                    conditions.append(f"coalesce({condition}, false)")
            if not conditions:
                return None
            return f"({' OR '.join(conditions)})"
        case spark.ArrayType():
            return _any(sql, kind.elementType)
        case spark.MapType():
            return _any(f"map_values({sql})", kind.valueType)
        case _:
            return None


def _any(array: str, kind: spark.DataType) -> str | None:
    element = f"e{array.count('->')}{array.count('exists(')}"
    condition = is_not_finite(element, kind)
    if condition is None:
        return None
    return f"exists({array}, {element} -> coalesce({condition}, false))"


def _null_if_failing(sql: str) -> Column:
    """Return the expression's result, or null where Spark raises an error.

    Uses the JVM because SQL has no syntax for this.
    """
    jvm: Any = SparkContext._jvm
    # Look up the classes by their full names. If attributes were used, py4j would search all jars
    # for a class `org`, then for a class `org.apache`, and so on.
    utils = getattr(jvm, "org.apache.spark.sql.classic.ExpressionUtils")
    try_eval = getattr(jvm, "org.apache.spark.sql.catalyst.expressions.TryEval")
    expression: Any = F.expr(sql)
    return Column(utils.column(try_eval(utils.expression(expression._jc))))
