"""What Spark finds wrong with an author's expression, said with the file, line and step it comes from."""

from __future__ import annotations

import re
from collections.abc import Iterable

from pyspark.errors import PySparkException
from pyspark.logger import PySparkLogger
from pyspark.sql import DataFrame

from sluice.errors import EngineError, TopologyError
from sluice.plan import Job
from sluice.topology import drawing, nodes

# It would print each error as well, with Java's stack. A filter outlives whoever configures logging, as Airflow does.
PySparkLogger.getLogger("SQLQueryContextLogger").addFilter(lambda _: False)

Columns = Iterable[tuple[str, str]]
"""Names with the SQL that makes them; a step that makes several rows of one has two names."""


class Unresolved(Exception):
    """Spark cannot make a column."""

    def __init__(self, name: str, error: PySparkException) -> None:
        super().__init__(name)
        self.name = name
        self.error = error


def select(frame: DataFrame, columns: Columns, *kept: str) -> DataFrame:
    """`selectExpr` that says which column is wrong: raises Unresolved."""
    columns = [(name, f"{sql} AS " + (f"({name})" if "," in name else f"`{name}`")) for name, sql in columns]
    try:
        return frame.selectExpr(*kept, *(sql for _, sql in columns))
    except PySparkException:
        for name, sql in columns:
            try:
                frame.selectExpr(sql)
            except PySparkException as error:
                raise Unresolved(name, error) from None
        raise


def told(job: Job, unresolved: Unresolved) -> TopologyError:
    """The error for the author."""
    return TopologyError(f"{_step(job, unresolved.name)} Spark says: {_plain(str(unresolved.error))}")


def without_result(job: Job, said: str) -> EngineError | None:
    """The error for the author, if what Spark said of a query that ended is that an expression has no result."""
    # Spark then names a function that would have given null, and shows the SQL of the column.
    found = re.search(r"\[(?!STREAM_FAILED)[A-Z_.]+\] ([^\n]*Use `try_[^.]*\.)", said)
    if found is None:
        return None
    column = re.search(r"== SQL [^\n]*\n.* AS `?(\w+)`?\n", said)
    return EngineError(
        f"{_step(job, column[1] if column else '')} Spark says of a record: {found[1]}",
        next_step="Nothing of the batch is visible; the next run does it again. Take a function that gives null, or "
        "one in Python, whose errors are dead letters. A state that steps after it have made follows with: "
        f"sluice rebuild {job.pipeline.name}.",
    )


def _step(job: Job, column: str) -> str:
    """Pipeline, step, file and line of what a column is made for."""
    node = _node(job, column)
    step = "" if node is None else f" {drawing.title(node)} at {node.at}: {drawing.detail(node)!r}:"
    return f"{job.pipeline.name}:{step}"


def _node(job: Job, name: str) -> nodes.Node | None:
    """The node that a column is made for; see `plan.columns` for their names."""
    stores = {node.store: node for node in job.pipeline.nodes if isinstance(node, nodes.Aggregate | nodes.ToTable)}
    if (named := stores.get(name) or job.pipeline.sinks.get(name)) is not None:
        return named
    found = re.match(r"([a-z]+)(\d+)", name)
    if found is None:
        return None
    number = int(found[2])
    if found[1] == "k":
        return next(node for node in stores.values() if node.parent.number == number)
    return job.pipeline.nodes[number] if number < len(job.pipeline.nodes) else None


def _plain(said: str) -> str:
    """What Spark says, without its plan, in the author's names."""
    text = said.strip().split("\n== SQL ==")[0].split(" SQLSTATE:")[0]
    text = re.sub(r"^\[[A-Z_.]+\] ", "", text.strip())
    return re.sub(r"\b[snvi]\d+_(?=\w)", "", text)
