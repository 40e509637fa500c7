"""Ordered operators as values, from which the engine builds the operators of `sluice.operators`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, TypeAlias

from sluice.values.records import How
from sluice.values.references import Reference
from sluice.values.windows import AnyWindow, JoinWindow

AggregateFunction = tuple[str, str | None, int]
"""A function's name, its argument's SQL (None of `count(*)`), and a number (of `top`; else 0)."""


@dataclass(frozen=True)
class Aggregate:
    """Records of each key, and window if there are any, aggregated by functions that Sluice has."""

    window: AnyWindow | None
    functions: tuple[AggregateFunction, ...]
    columns: tuple[str, ...]
    """Names of the store's columns."""
    scalar: bool
    """Whether the store's value is the value of its only column."""
    plain: bool
    """Whether each column is one function's result, without further computation."""
    subtracts: bool
    """Whether it aggregates a table, whose old values are subtracted."""
    retention_ms: int | None


@dataclass(frozen=True)
class PythonAggregate:
    """Records of each key, and window if there are any, aggregated by the author's functions."""

    window: AnyWindow | None
    initializer: Reference | None
    """None for `reduce`: the first value is the first aggregate."""
    adder: Reference
    subtractor: Reference | None
    merger: Reference | None
    takes: Reference | None
    returns: Reference | None
    fields: Mapping[str, str]
    """The fields of the results with their Spark SQL types."""
    subtracts: bool
    retention_ms: int | None


@dataclass(frozen=True)
class Merge:
    """Merges streams that come from different stages."""


@dataclass(frozen=True)
class Latest:
    """A stream's records as a table: the latest value of each key."""


@dataclass(frozen=True)
class Suppress:
    """A table's results held back for `wait_ms`: after their window's end, or after a key's first update."""

    until: Literal["window_close", "time_limit"]
    wait_ms: int
    max_records: int | None
    max_bytes: int | None
    when_full: Literal["emit_early", "shut_down"]
    filtered: bool = False
    """Whether its table is an aggregate's, filtered: it takes old values to know which deletions are updates."""


@dataclass(frozen=True)
class StreamJoin:
    """Two streams, by key, within a time of each other."""

    how: How
    window: JoinWindow


@dataclass(frozen=True)
class TableJoin:
    """A stream with a table, or two tables, by key, by a foreign key, or with a global table (`lookup`)."""

    how: How
    kind: Literal["stream-table", "table-table", "foreign-key", "lookup"]
    mapped: bool
    """Whether the left side's key for the join is an expression."""


@dataclass(frozen=True)
class Deduplicate:
    """The first record of each id within a time."""

    within_ms: int


@dataclass(frozen=True)
class ProcessorStore:
    """A store of an author's processor."""

    type: Reference
    ttl_ms: int | None
    sql_type: str
    """The type of its values as queries show it."""
    group_id: int | None
    """The number of its state rows, if it can be queried."""


@dataclass(frozen=True)
class ProcessorOutput:
    """An output of an author's processor."""

    type: Reference | None
    column: str
    """The column of its values."""
    fields: Mapping[str, str]
    """The values' fields with their Spark SQL types."""


@dataclass(frozen=True)
class Process:
    """An author's processor, with stores and timers."""

    processor: Reference
    stores: Mapping[str, ProcessorStore]
    takes: Reference | None
    outputs: Mapping[str, ProcessorOutput]
    queryable: bool


Action: TypeAlias = (
    Aggregate | PythonAggregate | Merge | Latest | Suppress | StreamJoin | TableJoin | Deduplicate | Process
)
