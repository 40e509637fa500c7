"""The parameters of operators, from which the engine builds the operators of `sluice.operators`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from sluice.values.aggregate_calls import AggregateFunction
from sluice.values.call_parameters import CallPolicy, LookedUpTable, SharedStore
from sluice.values.expiry import Expiry
from sluice.values.record_metadata import How, OnMissing, Until
from sluice.values.references import Reference
from sluice.values.shapes import Shape
from sluice.values.windows import AnyWindow, CountWindow, JoinWindow

if TYPE_CHECKING:
    from sluice.operators.operator import Operator


@dataclass(frozen=True)
class AggregateParameters:
    """Aggregates the records of each key (and window) with functions that Sluice implements."""

    window: AnyWindow | CountWindow | None
    functions: tuple[AggregateFunction, ...]
    columns: tuple[str, ...]
    """Names of the store's columns."""
    scalar: bool
    """Whether the store's value is the bare value of its only column, not an object."""
    plain: bool
    """Whether each column is just the result of one function."""
    subtracts: bool
    """Whether the input is a table, whose rows change: their old values are then subtracted."""
    retention_ms: int | None
    history_ms: int | None = None

    @property
    def result_names(self) -> tuple[str, ...]:
        """Return the names that the functions' results have while the operator computes them."""
        if self.plain:
            return self.columns
        return tuple([f"a{number}" for number in range(len(self.functions))])


@dataclass(frozen=True)
class PythonAggregateParameters:
    """Aggregates the records of each key (and window) with the author's functions."""

    window: AnyWindow | CountWindow | None
    initializer: Reference | None
    """The author's initializer. None for `reduce`, where the first value is the first aggregate."""
    adder: Reference
    subtractor: Reference | None
    merger: Reference | None
    takes: Reference | None
    returns: Reference | None
    shape: Shape
    """The shape of the results."""
    subtracts: bool
    retention_ms: int | None
    history_ms: int | None = None
    cogrouped: tuple[tuple[Reference, Reference | None], ...] = ()
    """For each cogrouped stream: its `adder`, and the type of the values that the adder `takes`."""
    takes_list: bool = False
    """Whether the adder takes a list of values."""


@dataclass(frozen=True)
class MergeParameters:
    """Merges streams that come from different stages."""


@dataclass(frozen=True)
class PassedRowsParameters:
    """Turns the changes of a filtered table into records."""


@dataclass(frozen=True)
class LatestParameters:
    """Keeps the latest value of each key as a table."""

    history_ms: int | None = None
    """How far back the versions of a versioned table reach."""
    expiry: Expiry | None = None


@dataclass(frozen=True)
class SuppressParameters:
    """Holds back a table's results for `wait_ms` after a window's end or a key's first update."""

    until: Until
    wait_ms: int
    max_records: int | None
    max_bytes: int | None
    when_full: Literal["emit_early", "shut_down"]
    filtered: bool = False
    """Whether the input is a filtered table. If so, the deletion of a row that never passed the
    filter is not sent."""
    early_ms: int | None = None
    """How long after a window's first unsent change its early result is sent; None if there are no
    early results."""


@dataclass(frozen=True)
class StreamJoinParameters:
    """Joins two streams by key within a window."""

    how: How
    window: JoinWindow
    keeps_headers: bool = False
    """Whether a result for an unmatched record has the record's own headers."""


@dataclass(frozen=True)
class TableJoinParameters:
    """Joins a stream and a table, or two tables: by key, foreign key or global table (`lookup`)."""

    how: How
    kind: Literal["stream-table", "table-table", "foreign-key", "lookup"]
    mapped: bool
    """Whether an expression computes the left side's key for the join."""
    filtered: tuple[bool, bool] = (False, False)
    """Whether the left and the right side are filtered tables, possibly mapped."""
    history_ms: int | None = None
    """How far back the table's versions reach. None if records are not joined with the version that
    was valid at their time."""
    grace_ms: int | None = None
    """How long a stream's record waits for the table's version as of the record's time."""
    mapped_key: str | None = None
    """The name of the result's field with the key that was looked up; None if there is no such
    field."""


@dataclass(frozen=True)
class ProcessorStore:
    """A store of an author's processor."""

    type: Reference
    ttl_ms: int | None
    sql_type: str
    """The type of the values as shown by queries."""
    group_id: int | None
    """The group number of the store's state rows; None if the store cannot be queried."""
    keeps_headers: bool = False


@dataclass(frozen=True)
class ProcessorOutput:
    """An output of an author's processor."""

    type: Reference | None
    column: str
    """The column of the values."""
    shape: Shape
    """The shape of the values."""


@dataclass(frozen=True)
class ProcessParameters:
    """Runs an author's processor, with stores and timers."""

    processor: Reference
    stores: Mapping[str, ProcessorStore]
    takes: Reference | None
    outputs: Mapping[str, ProcessorOutput]
    queryable: bool
    sets_timers: bool = False
    """Whether the processor has a method for timers."""
    keeps_key: bool = False
    """Whether each result has the key of its record."""
    is_keyed_by: bool = False
    """Whether an expression computes the key of the stores."""
    has_windowed_keys: bool = False
    """Whether the keys of the records have windows."""
    tables: Mapping[str, Reference | None] = field(default_factory=dict)
    """Table that the processor reads → the type of its values, in the order of the
    tables' sides."""


@dataclass(frozen=True)
class CallParameters:
    """Calls an author's function for each value, for example to call a service."""

    function: Reference
    takes: Reference | None
    returns: Reference | None
    shape: Shape
    """The shape of the results."""
    policy: CallPolicy
    answers: str
    """The name under which the results are recorded with the state."""
    otherwise: str | None
    """JSON of the value that a record gets if its call has failed; None if the record fails,
    too."""
    size: int | None
    """The largest number of values that one call takes; None for a function of one value."""


@dataclass(frozen=True)
class TableLookupParameters:
    """Looks up each record's key in a table of a database, or in another pipeline's store."""

    table: LookedUpTable | SharedStore
    returns: Reference
    row: Shape
    """The shape of the table's rows."""
    on_missing: OnMissing
    policy: CallPolicy
    answers: str
    """The name under which the rows are recorded with the state."""


# This is a text, because planning does not import operators, which need Arrow.
Action: TypeAlias = (
    "AggregateParameters | PythonAggregateParameters | MergeParameters | PassedRowsParameters"
    " | LatestParameters | SuppressParameters | StreamJoinParameters | TableJoinParameters"
    " | ProcessParameters | CallParameters | TableLookupParameters | Operator[Any]"
)
"""An operator's parameters, or the operator itself if the engine need not add anything."""
