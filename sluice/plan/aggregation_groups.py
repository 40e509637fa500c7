"""Aggregation groups, whose combinable aggregates share state rows, and the outputs of groups."""

from __future__ import annotations

from dataclasses import dataclass

from sluice.plan.steps import GlobalTableInput, Sink
from sluice.values.record_metadata import How
from sluice.values.windows import TimeWindow


@dataclass(frozen=True)
class Combinable:
    """An aggregate function over a column. Its partial results can be combined in any order."""

    function: str
    """count, sum, min or max."""
    column: str | None
    """None for `count(*)`."""


@dataclass(frozen=True)
class StoreColumn:
    """A store of a group, with the aggregates that make up the store's values."""

    store: str
    step: int
    columns: tuple[tuple[str, Combinable], ...]
    scalar: bool
    """Whether the store's value is the bare value of its only column, not an object."""
    definition: str
    """The store's definition as the author wrote it. Stored state stays valid as long as this text
    is the same."""

    @property
    def inputs(self) -> tuple[str, ...]:
        """The columns that the aggregates read, without duplicates."""
        columns: dict[str, None] = {}
        for _, aggregate in self.columns:
            if aggregate.column is not None:
                columns[aggregate.column] = None
        return tuple(columns)


@dataclass(frozen=True)
class AggregationGroup:
    """Stores with the same stream, key and window, which share one state row per key and window.

    All of their aggregates are combinable. The tasks that read the records aggregate them, and the
    shards add up the results of tasks and batches.
    """

    number: int
    """The number of the first store's step. Operators and global tables are numbered by their
    steps, too, so none of them has this number."""
    topics: tuple[str, ...]
    """The topics of the group's records."""
    passed: str
    """The column that tells whether the group aggregates the record."""
    key: str
    """The column with the record's key in the group, as text."""
    grouped_by: str
    """The author's expression for the key."""
    window: TimeWindow | None
    store_columns: tuple[StoreColumn, ...]
    null: str
    """The column that tells whether the record's value is null; an empty text if values are never
    null."""
    late: Sink | None
    """The topic for records that are late for every window. If several groups and operators share
    the topic, the first of them has the topic's sink here, and the others have None."""
    retention_ms: int | None
    """How long a window is kept after its end; None means forever."""

    @property
    def name(self) -> str:
        """The name of the first store, for messages and stream times."""
        return self.store_columns[0].store

    @property
    def stores(self) -> list[str]:
        """Return the names of the group's stores."""
        return [column.store for column in self.store_columns]

    @property
    def inputs(self) -> tuple[str, ...]:
        """The columns that the aggregates read, sorted."""
        names: set[str] = set()
        for store_column in self.store_columns:
            names.update(store_column.inputs)
        # Sort the names, because the order of a set of texts differs between processes.
        return tuple(sorted(names))

    @property
    def late_key(self) -> str:
        """The name of the column with the key of a late record."""
        return f"late{self.number}_key"

    @property
    def late_value(self) -> str:
        """The name of the column with the value of a late record, as JSON."""
        return f"late{self.number}_value"


@dataclass(frozen=True)
class Lookup:
    """A join of a group's changes with a global table.

    Replaces a changed value with `{left, right}`: the value, and the global table's value.
    """

    table: GlobalTableInput
    how: How


@dataclass(frozen=True)
class Select:
    """A `select` step after a group: replaces each change's value with the result of an expression.

    In the expression, `v` is the changed value, and `_key` is its key.
    """

    sql: str
    step: int
    causes: tuple[tuple[str, str], ...] = ()
    """The SQL of each part that can fail, with its error message; empty if no part can fail."""


@dataclass(frozen=True)
class ChangeSink:
    """Writes a store's changes to a topic, after `steps`."""

    sink: Sink
    group: int
    store_column: int
    steps: tuple[Lookup | Select, ...]
    scalar: bool
