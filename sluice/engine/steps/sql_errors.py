"""Reports Spark's errors in an author's expressions, with the expression's step, file and line."""

from __future__ import annotations

import re
from collections.abc import Iterable

from pyspark.errors import PySparkException
from pyspark.logger import PySparkLogger
from pyspark.sql import DataFrame

from sluice.engine.steps.key_sql import NoKeyError
from sluice.errors import EngineError, TopologyError
from sluice.plan import Column, Job, Step

# Without this filter, PySpark would also log each error with a Java stack trace. A level of the
# logger would do the same, but Airflow resets levels when it configures logging.
PySparkLogger.getLogger("SQLQueryContextLogger").addFilter(lambda _: False)


class Unresolved(Exception):
    """Spark cannot resolve a column of a step, or the column cannot be a key.

    `step` is the step's number, or None if several steps share the column.
    """

    def __init__(self, step: int | None, error: PySparkException | NoKeyError) -> None:
        super().__init__(str(step))
        self.step = step
        self.error = error


def select(frame: DataFrame, columns: Iterable[Column], *kept: str) -> DataFrame:
    """Do the same as `selectExpr`, but raise Unresolved for a column that Spark cannot resolve."""
    columns = [*columns]
    expressions = [f"{column.sql} AS {_alias(column)}" for column in columns]
    try:
        return frame.selectExpr(*kept, *expressions)
    except PySparkException:
        # Spark's error does not name the column, so try the columns one by one.
        for column, expression in zip(columns, expressions, strict=True):
            try:
                frame.selectExpr(expression)
            except PySparkException as error:
                raise Unresolved(column.step, error) from None
        raise


def _alias(column: Column) -> str:
    if column.position:
        return f"({column.position}, {column.name})"
    return f"`{column.name}`"


def unresolved_error(job: Job, unresolved: Unresolved) -> TopologyError:
    step = None
    if unresolved.step is not None:
        step = job.pipeline.steps[unresolved.step]
    place = _place(job, step)
    if isinstance(unresolved.error, NoKeyError):
        return TopologyError(
            f"{place} {unresolved.error}.",
            next_step=unresolved.error.next_step,
        )
    return TopologyError(f"{place} Spark says: {_plain(job, str(unresolved.error))}")


def no_result_error(job: Job, message: str) -> EngineError | None:
    """Return an EngineError if Spark's message says that an expression has no result for a record.

    Return None for other messages.
    """
    # Spark's message suggests a function that returns null instead, and contains the column's SQL.
    suggestion = re.search(r"\[(?!STREAM_FAILED)[A-Z_.]+\] ([^\n]*Use `try_[^.]*\.)", message)
    if suggestion is None:
        return None
    step = None
    column = re.search(r"== SQL [^\n]*\n.* AS `?(\w+)`?\n", message)
    if column is not None:
        step = job.step_of(column[1])
    return EngineError(
        f"{_place(job, step)} Spark's error for a record: {suggestion[1]}",
        next_step=(
            "Nothing from the batch was published; the next run retries it. Use a function that "
            "returns null, or a Python function, whose errors become dead letters. Then rebuild "
            f"the state of later steps: sluice rebuild {job.pipeline.name}."
        ),
    )


def _place(job: Job, step: Step | None) -> str:
    name = job.pipeline.name
    if step is None:
        return f"{name}:"
    return f"{name}: {step}: {step.detail!r}:"


def _plain(job: Job, message: str) -> str:
    """Return Spark's message without the query plan, and with the author's names of fields."""
    text = message.strip().split("\n== SQL ==")[0].split(" SQLSTATE:")[0]
    text = re.sub(r"^\[[A-Z_.]+\] ", "", text.strip())
    names = job.field_names
    return re.sub(r"\w+", lambda word: names.get(word[0], word[0]), text)
