"""Operators, each in a stage, and the edges by which rows reach them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from sluice.operators.base import COGROUPED, LEFT, READ, RIGHT
from sluice.operators.lateness import WindowLateness
from sluice.plan.operator_parameters import (
    Action,
    AggregateParameters,
    ProcessorStore,
    ProcessParameters,
    PythonAggregateParameters,
    StreamJoinParameters,
    SuppressParameters,
    TableJoinParameters,
)
from sluice.plan.steps import Sink, Step
from sluice.values import row_order
from sluice.values.calendar_windows import CalendarWindow
from sluice.values.windows import AnyWindow, SessionWindow, Window


@dataclass(frozen=True)
class SharedRows:
    """An edge into the operator `target` whose rows another edge takes, too."""

    target: int
    side: int
    needs_key: bool
    """Whether the other edge leaves out the rows without a key."""


@dataclass(frozen=True)
class Edge:
    """The columns of the rows that go to an operator, or from an operator to a store or a sink."""

    target: int
    side: int
    stage: int
    """The stage that computes the columns. Stage 0, before all operators, computes them from
    records."""
    topics: tuple[str, ...]
    """The topics from which the rows come."""
    passed: str
    """SQL of a condition that is true if the row belongs to this edge."""
    key: str
    values: tuple[str, ...]
    """SQL of the value, or of an aggregate's arguments."""
    is_null: str
    foreign: str | None = None
    """SQL for `Row.foreign`, usually the record's own key (see `StagePlanner._edge_foreign`)."""
    scalar: bool = False
    """Whether the value is not an object."""
    unchanged_result: str | None = None
    """The column of an operator's result, if the value is this result unchanged. The value is then
    already JSON."""
    has_arguments: bool = False
    """Whether the values are an aggregate's arguments; the JSON is then an array."""
    has_old_values: bool = False
    """Whether the edge includes a table's old values."""
    leaves_out_nulls: bool = False
    """Whether the edge leaves out rows without a value."""
    is_passed_on: bool = False
    """Whether the operator only passes the value on, and keeps no copy of it."""
    requires_key: bool = True
    """Whether only records with a key advance stream time."""
    requires_value: bool = False
    """Whether only records with a value advance stream time."""
    is_copied: bool = False
    """Whether every worker gets a copy of the rows, because they belong to a table that a processor
    reads."""
    counts_every_record: bool = False
    """Whether all records of the topics advance stream time, even if a filter before the operator
    removes them."""
    path: tuple[str, ...] = ()
    """The SQL of each element of a row's path (`values.row_order`). The path begins at the record
    or result that the stage reads, and ends at the target."""
    rekeyed: bool = False
    """Whether the rows' key for the target differs from the record's or result's key."""
    results_of: frozenset[int] = frozenset()
    """The operators from whose results the rows are made."""
    takes_latest: bool = False
    """Whether the edge leaves out late updates of a versioned table. Late updates have a separate
    output."""
    is_json: bool = False
    """Whether the SQL of the value is JSON already."""
    shares: SharedRows | None = None
    """The rows of another edge that this edge takes; None if it has its own rows."""
    input_number: int = 0
    """The index of the step before the edge among the inputs of the target's step."""

    @property
    def column(self) -> str:
        """The name of the column that tells whether a row belongs to this edge."""
        return edge_column(self.target, self.side)

    @property
    def key_column(self) -> str:
        return key_column(self.column)

    @property
    def value_column(self) -> str:
        """The name of the column with the value as JSON. The value is null for a tombstone."""
        return f"{self.column}_value"

    @property
    def foreign_column(self) -> str:
        return f"{self.column}_foreign"

    @property
    def path_column(self) -> str | None:
        """The name of the column with the path from the record; None if the path is constant."""
        if self.constant_path is None:
            return f"{self.column}_path"
        return None

    @property
    def constant_path(self) -> bytes | None:
        """The path from the record if it is the same for all records, else None."""
        return row_order.constant_path(self.path, rekeyed=self.rekeyed)

    def path_from(self, base: str) -> str:
        """Return SQL of the path. `base` is SQL for the path of the stage's record or result."""
        return row_order.path_sql(base, self.path, rekeyed=self.rekeyed)


def edge_column(target: int, side: int) -> str:
    """Return the name of the column that tells whether a row goes to this side of an operator."""
    return f"f{target}_{side}"


def key_column(column: str) -> str:
    """Return the name of the column with the keys of an edge's rows. `column`: `Edge.column`."""
    return f"{column}_key"


@dataclass(frozen=True)
class PlannedOperator:
    """An operator that processes each key's records in order and has a state per key."""

    step: Step
    stage: int
    action: Action
    edges: tuple[Edge, ...]
    topics: tuple[str, ...]
    """The topics from which the operator's rows come."""
    sends_old_values: bool
    """Whether the operator sends the old value of each change, because a later step needs it."""
    chained_to: int | None
    """The operator of the same stage that passes its results directly to this operator."""
    clock: str
    """Name of the operator whose stream time this operator uses: itself, or the operator to which
    it is chained."""
    waits_for_close: bool
    """Whether this operator, or an operator chained to it, waits for stream time."""
    store: str | None
    by_window: bool
    """Whether the keys of the operator's rows are the texts of windowed keys (see
    `values/windowed_keys.py`)."""
    grouped_by: str
    """The author's expression for the store's key."""
    window: AnyWindow | None
    """The windows of the store's keys."""
    late: Sink | None
    """The topic for late records. If several groups and operators share the topic, the first of
    them has the topic's sink here, and the others have None."""
    upstream_definition: str
    """The upstream steps as the author wrote them. Stored state stays valid as long as this text is
    the same."""
    reason: str
    """The reason why the operator needs each key's records in order, for `sluice explain`."""
    definition: str
    """The operator's definition as the author wrote it, with the declared types."""
    columns_read: frozenset[str] = frozenset()
    """The columns of the operator's results that later expressions read."""
    timed_by_topics: tuple[str, ...] = ()
    """The topics whose records all advance a processor's stream time, even if the records reach the
    processor through other operators, or not at all."""
    is_timed_by_rows: bool = True
    """Whether the operator's rows advance its stream time."""
    reads_pattern: bool = False
    """Whether the topics match a pattern: the next run may then read more of them."""
    only_windows_wait: bool = False
    """Whether other steps need this operator's stream time only for sending the results of closed
    windows."""
    reads_windows: bool = False
    """Whether this is a suppress step that reads the results of closed windows from the preceding
    aggregate's state (see `keeps_waiting_windows`)."""

    keeps_headers: bool = False
    """Whether the store keeps the headers of the results that have changed its rows."""

    @property
    def number(self) -> int:
        """The number of the operator's step."""
        return self.step.number

    @property
    def name(self) -> str:
        """The operator's name in counts and stream times."""
        return self.step.name

    @property
    def result(self) -> str:
        """The column of the results, for an operator with one output."""
        return result_column(self.number)

    @property
    def results(self) -> list[str]:
        """Return the columns of the results, one for each output."""
        if isinstance(self.action, ProcessParameters):
            return [output.column for output in self.action.outputs.values()]
        return [self.result]

    def output_of(self, column: str) -> str | None:
        """Return the name of the output whose results are in a column.

        Return None if the column has all results.
        """
        if isinstance(self.action, ProcessParameters):
            for name, output in self.action.outputs.items():
                if output.column == column:
                    return name
        return None

    @property
    def edges_from_records(self) -> tuple[Edge, ...]:
        """The edges with their own rows that are made from records, not from operators' results."""
        return tuple(edge for edge in self.edges if edge.stage == 0 and edge.shares is None)

    @property
    def is_stream_join(self) -> bool:
        """Whether the operator joins two streams, with a stream time per side and one for both."""
        return isinstance(self.action, StreamJoinParameters)

    @property
    def timed_sides(self) -> tuple[int, ...]:
        """The sides that have their own stream time, besides the stream time of all sides."""
        if self.joins_versions:
            return LEFT, RIGHT
        return tuple(edge.side for edge in self.edges if COGROUPED <= edge.side < READ)

    @property
    def sends_only_final_results(self) -> bool:
        """Whether the operator sends only the last result of each window, once it has closed."""
        action = self.action
        return (
            isinstance(action, SuppressParameters)
            and action.until != "time_limit"
            and action.max_records is action.max_bytes is action.early_ms is None
            and not self.sends_old_values
        )

    def keeps_waiting_windows(self, suppress: PlannedOperator) -> bool:
        """Return whether the windows in this state are those whose results `suppress` holds back.

        They are if the operator forgets each window at the stream time at which the step sends the
        window's result. The step then needs no copy of the results.
        """
        waiting = suppress.action
        if (
            not isinstance(waiting, SuppressParameters)
            or not suppress.sends_only_final_results
            or suppress.by_window
        ):
            return False
        # If streams are cogrouped, one stream may advance stream time so far that the operator
        # forgets another stream's window before the suppress step sends the window's result.
        if (
            not isinstance(self.action, AggregateParameters | PythonAggregateParameters)
            or self.by_window
            or self.timed_sides
        ):
            return False
        action = self.action
        match self.window:
            case Window() | CalendarWindow() as window:
                return waiting.wait_ms == WindowLateness(window).open_ms
            case SessionWindow() as window:
                # If the aggregate has a retention, the operator keeps a session at least that long.
                kept_ms = max(WindowLateness(window).open_ms, action.retention_ms or 0)
                return waiting.wait_ms == kept_ms
            case _:
                # The operator keeps closed sliding windows, because later windows are made from
                # them.
                return False

    @property
    def closing_times(self) -> Window | None:
        """The windows, if the operator's workers need to know only when these windows close.

        None if the workers also need stream time for another reason.
        """
        # If the rows come from one topic, they already have the stream times that the operator
        # itself needs.
        if isinstance(self.window, Window) and self.only_windows_wait and self.is_timed_by_source:
            return self.window
        return None

    @property
    def joins_versions(self) -> bool:
        """Whether the operator joins a stream with the versions of a table."""
        action = self.action
        return isinstance(action, TableJoinParameters) and action.history_ms is not None

    @property
    def has_own_stream_time(self) -> bool:
        """Whether the operator has its own stream time, not the previous operator's."""
        return self.waits_for_close and self.clock == self.name

    @property
    def is_timed_by_source(self) -> bool:
        """Whether all rows come directly from one topic.

        The task of each partition then knows the stream time.
        """
        # The sides of a join, and cogrouped streams, share a stream time, which the task of one
        # topic does not know. Such a task also does not know the stream time of rows from another
        # stage, because these have passed through a shuffle.
        if self.is_stream_join or len(self.topics) > 1 or self.reads_pattern or len(self.edges) > 1:
            return False
        return all(edge.stage == 0 for edge in self.edges)

    @property
    def stores(self) -> Mapping[str, ProcessorStore]:
        """A processor's stores that can be queried."""
        if not isinstance(self.action, ProcessParameters):
            return {}
        stores: dict[str, ProcessorStore] = {}
        for name, store in self.action.stores.items():
            if store.group_id is not None:
                stores[name] = store
        return stores

    @property
    def retention_ms(self) -> int | None:
        """How long a window of the store is kept after its end; None means forever."""
        if isinstance(self.action, AggregateParameters | PythonAggregateParameters):
            return self.action.retention_ms
        return None


STORE = 2
"""The `side` of an edge whose rows only change an operator's store. The operator does not process
these rows."""


def result_column(operator: int, output: int | None = None) -> str:
    """Return the column with an operator's results, or with those that go to one output."""
    if output is None:
        return f"v{operator}"
    return f"v{operator}_{output}"
