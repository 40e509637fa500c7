"""What Spark finds wrong with an author's expression, said with the file, line and step it comes from."""

from __future__ import annotations

import re
from collections.abc import Iterable

from pyspark.errors import PySparkException
from pyspark.logger import PySparkLogger
from pyspark.sql import DataFrame

from sluice.errors import EngineError, TopologyError
from sluice.plan import Column, Job, Step

# It would print each error as well, with Java's stack. A filter outlives whoever configures logging, as Airflow does.
PySparkLogger.getLogger("SQLQueryContextLogger").addFilter(lambda _: False)


class Unresolved(Exception):
    """Spark cannot make a column of a step; `step` is its number, None if several share the column."""

    def __init__(self, step: int | None, error: PySparkException) -> None:
        super().__init__(str(step))
        self.step = step
        self.error = error


def select(frame: DataFrame, columns: Iterable[Column], *kept: str) -> DataFrame:
    """`selectExpr` that says which column is wrong: raises Unresolved."""
    made = [(column, f"{column.sql} AS {_alias(column)}") for column in columns]
    try:
        return frame.selectExpr(*kept, *(sql for _, sql in made))
    except PySparkException:
        for column, sql in made:
            try:
                frame.selectExpr(sql)
            except PySparkException as error:
                raise Unresolved(column.step, error) from None
        raise


def _alias(column: Column) -> str:
    return f"({column.position}, {column.name})" if column.position else f"`{column.name}`"


def told(job: Job, unresolved: Unresolved) -> TopologyError:
    """The error for the author."""
    step = None if unresolved.step is None else job.pipeline.steps[unresolved.step]
    return TopologyError(f"{_where(job, step)} Spark says: {_plain(job, str(unresolved.error))}")


def without_result(job: Job, said: str) -> EngineError | None:
    """The error for the author, if what Spark said of a query that ended is that an expression has no result."""
    # Spark then names a function that would have given null, and shows the SQL of the column.
    found = re.search(r"\[(?!STREAM_FAILED)[A-Z_.]+\] ([^\n]*Use `try_[^.]*\.)", said)
    if found is None:
        return None
    column = re.search(r"== SQL [^\n]*\n.* AS `?(\w+)`?\n", said)
    return EngineError(
        f"{_where(job, job.step_of(column[1]) if column else None)} Spark says of a record: {found[1]}",
        next_step="Nothing of the batch is visible; the next run does it again. Take a function that gives null, or "
        "one in Python, whose errors are dead letters. A state that steps after it have made follows with: "
        f"sluice rebuild {job.pipeline.name}.",
    )


def _where(job: Job, step: Step | None) -> str:
    """Pipeline, step, file and line."""
    return f"{job.pipeline.name}:" if step is None else f"{job.pipeline.name}: {step}: {step.detail!r}:"


def _plain(job: Job, message: str) -> str:
    """What Spark says, without its plan, in the author's names."""
    text = message.strip().split("\n== SQL ==")[0].split(" SQLSTATE:")[0]
    text = re.sub(r"^\[[A-Z_.]+\] ", "", text.strip())
    names = job.field_names
    return re.sub(r"\w+", lambda word: names.get(word[0], word[0]), text)
