"""Layers: columns computed from records and operators' results, and places where they can fail."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TypeAlias

from sluice.plan.steps import Step
from sluice.values.references import Reference


@dataclass(frozen=True)
class Column:
    """A column of a job's rows."""

    name: str
    sql: str
    step: int | None
    """Number of the column's step; None if several steps share the column."""
    field: str = ""
    """The author's name for the column, if any."""
    position: str = ""
    """For a column that turns an array into rows: the name of the column with each element's
    index."""


@dataclass(frozen=True)
class FallibleExpression:
    """The expressions of one step that can fail, computed together.

    Their results are a struct `c0`, `c1`, ..., which is null if any expression failed. A second
    column, `error`, has the error message if the step failed for the record, else null. If an
    expression becomes a key, a third column, `key_text`, has the key's text.
    """

    name: str
    step: int
    passed: str
    """SQL of a condition that is true if the record reaches the step."""
    columns: tuple[str, ...]
    """SQL of the expressions."""
    key: int | None
    """Index of the expression that becomes a key (of records, or in a store); None if there is
    none."""
    causes: tuple[tuple[str, str], ...]
    """SQL of the parts that can fail, innermost first, each with its error message."""

    @property
    def error(self) -> str:
        """Name of the column with the error message."""
        return f"{self.name}_error"

    @property
    def key_text(self) -> str:
        """Name of the column with the text of the key."""
        return f"{self.name}_key"

    def result(self, number: int) -> str:
        """Return SQL for the result of the expression with this index."""
        return f"{self.name}.c{number}"


@dataclass(frozen=True)
class Transformation:
    """A function on DataFrames: the SQL of its input columns, and the names of its outputs."""

    step: int
    function: Reference
    at: str
    inputs: tuple[tuple[str, str], ...]
    outputs: tuple[tuple[str, str, str], ...]
    """For each output: the field, the job's column, and the declared Spark SQL type."""


Layer: TypeAlias = tuple[Column | FallibleExpression, ...] | Transformation
"""Columns that are computed together from the columns of previous layers; or a function of the
whole DataFrame."""


Layers: TypeAlias = tuple[Layer, ...]


@dataclass(frozen=True)
class Failure:
    """A place where a step can fail.

    `error` is SQL of the error message, which is null if the step did not fail.
    """

    step: Step
    column: str
    """Name of the column with the error, for a step before any operator."""
    stage: int
    error: str
    once: str
    """SQL of a condition that is true for one row per failed record. Other steps may turn a record
    into several rows."""
    key: str
    """SQL of the record's key at the step."""
    value: str
    """SQL of the value, as JSON."""


def columns_of(layers: Layers) -> Iterator[Column | FallibleExpression]:
    """Yield the columns that SQL computes. Leaves out functions of the whole DataFrame."""
    for layer in layers:
        if not isinstance(layer, Transformation):
            yield from layer
