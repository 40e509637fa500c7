"""How a step calls an author's function: with how many values, how often, and how long it waits."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class FunctionBatch:
    """How many values one call of a function takes, and in which form."""

    size: int
    """The largest number of values."""
    table: str | None = None
    """The Spark SQL type of the values if the function takes them as a `pyarrow.RecordBatch`; None for a list."""
