"""Aggregation groups: combinable stores that share state rows, and the outputs that follow them."""

from __future__ import annotations

from dataclasses import dataclass

from sluice.plan.steps import GlobalTableInput, Sink
from sluice.values.record_metadata import How
from sluice.values.windows import Window


@dataclass(frozen=True)
class Combinable:
    """An aggregate whose partial results can be combined in any order: a function of a column of the job."""

    function: str
    """count, sum, min or max."""
    column: str | None
    """None for `count(*)`."""


@dataclass(frozen=True)
class StoreColumn:
    """One store of a group: the aggregates that make up its value."""

    store: str
    step: int
    columns: tuple[tuple[str, Combinable], ...]
    scalar: bool
    """Whether the store's value is the value of its only column."""
    definition: str
    """The store's definition as the author wrote it; stored state stays valid as long as this text is the same."""

    @property
    def inputs(self) -> tuple[str, ...]:
        """The columns that the aggregates read, without duplicates."""
        columns = (aggregate.column for _, aggregate in self.columns)
        return tuple(dict.fromkeys(column for column in columns if column is not None))


@dataclass(frozen=True)
class AggregationGroup:
    """Stores with the same stream, key and window, which share one state row per key and window.

    All of their aggregates are combinable. The tasks that read the records aggregate them, and the shards add up the
    results of tasks and batches.
    """

    number: int
    """The number of the first store's step, so that no operator and no global table has the same."""
    topics: tuple[str, ...]
    """The topics of the group's records."""
    passed: str
    """Column: whether the group aggregates the record."""
    key: str
    """Column: the record's key in the group, as text."""
    grouped_by: str
    """The author's expression for the key."""
    window: Window | None
    store_columns: tuple[StoreColumn, ...]
    null: str
    """Column: whether the record's value is null; empty if values are never null."""
    late: Sink | None
    """The topic of records that are late for every window. If several share it, only one has it."""
    retention_ms: int | None
    """How long a window is kept after its end; None means forever."""

    @property
    def name(self) -> str:
        """The name of the first store, for messages and stream times."""
        return self.store_columns[0].store

    @property
    def inputs(self) -> tuple[str, ...]:
        """The columns that the aggregates read, sorted."""
        return tuple(sorted({name for store_column in self.store_columns for name in store_column.inputs}))

    @property
    def late_key(self) -> str:
        """Column: the key of a late record."""
        return f"late{self.number}_key"

    @property
    def late_value(self) -> str:
        """Column: the value of a late record, as JSON."""
        return f"late{self.number}_value"


@dataclass(frozen=True)
class Lookup:
    """A step after a table: replaces the value with `{left, right}`, where `right` comes from a global table."""

    table: GlobalTableInput
    how: How


@dataclass(frozen=True)
class Select:
    """A step after a table: replaces the value with an expression over `_key` and the old value `v`."""

    sql: str
    step: int
    causes: tuple[tuple[str, str], ...] = ()
    """SQL of the parts that can fail, each with its error message; empty if none can."""


@dataclass(frozen=True)
class ChangeSink:
    """Writes a store's changes to a topic, after `steps`."""

    sink: Sink
    group: int
    store_column: int
    steps: tuple[Lookup | Select, ...]
    scalar: bool
