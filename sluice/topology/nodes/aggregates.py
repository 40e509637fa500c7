"""Aggregates of groups, and the wait for their final results."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal, Self

from typing_extensions import override

from sluice.operators.base import COGROUPED
from sluice.topology.nodes.ancestors import known_name
from sluice.topology.nodes.node import ChildNode, Foreign, Input, Node, own_key_of
from sluice.topology.nodes.sinks import Late
from sluice.topology.serdes import Contract
from sluice.topology.value_types import (
    types_of_columns,
)
from sluice.values.phrases import duration_text
from sluice.values.record_metadata import (
    CHANGE_METADATA,
    METADATA,
    Until,
)
from sluice.values.shapes import Shape
from sluice.values.windows import (
    AnyWindow,
    CountWindow,
    CustomWindow,
    SlidingWindow,
)


@dataclass(frozen=True, eq=False)
class PythonAggregate:
    """Python functions of an aggregate, called in record order: `adder(key, aggregate, value)`.

    With `takes_list`, the adder takes a list of consecutive values instead of one value.
    """

    initializer: Callable[[], Any] | None
    """None in `reduce`, where the first value is the first aggregate."""
    adder: Callable[..., Any]
    subtractor: Callable[..., Any] | None
    merger: Callable[..., Any] | None
    takes: Contract | None
    returns: Contract | None
    shape: Shape
    """The shape of the aggregate."""
    takes_list: bool = False


@dataclass(frozen=True, eq=False)
class Aggregate(ChildNode):
    """Aggregates each `key` and window into `columns`, or one value if `scalar`, in a store."""

    key: str
    window: AnyWindow | CountWindow | None
    store: str
    columns: dict[str, str]
    scalar: bool
    python: PythonAggregate | None = None
    late: Late | None = None
    """The sink for records that are late for every window."""
    by_window: bool = False
    """Whether records with windowed keys are grouped by key and window."""
    retention_ms: int | None = None
    """How long a window is kept after its end; None means forever."""
    history_ms: int | None = None
    """How far back the versions of a versioned table reach."""

    is_stateful = True

    @property
    @override
    def name(self) -> str:
        return self.store

    @property
    @override
    def inputs(self) -> tuple[Input, ...]:
        # If a row did not exist, there is nothing to subtract. If a row is deleted or filtered out,
        # there is nothing to add.
        of_rows = replace(self._input(self.parent, self.key), leaves_out_nulls=self.parent.is_table)
        removes_window = self.parent.key_window is not None and not self.by_window
        # Kafka Streams sends a grouped table through a repartition topic even if the key stays the
        # same. If the window is removed from a windowed key, the result is a new key.
        if self.parent.is_table or removes_window:
            of_rows = replace(of_rows, repartitions="always")
        return (of_rows,)

    def _input(self, parent: Node, key: str) -> Input:
        return Input(
            parent=parent,
            key=key,
            repartitions="if_rekeyed" if key == "_key" else "always",
            foreign=self._foreign(),
            has_arguments=self.python is None,
            requires_value=self.requires_value,
        )

    def _foreign(self) -> Foreign | None:
        if not self.parent.is_table:
            return None if self.late is None else "record"
        return own_key_of(self.parent)

    @property
    def requires_value(self) -> bool:
        """Whether the aggregate drops records without a value."""
        # Kafka Streams drops null values in aggregates without windows and in sliding windows, but
        # adds them to tumbling, hopping and session windows.
        drops_nulls = self.window is None or isinstance(self.window, SlidingWindow | CountWindow)
        return drops_nulls and not self.parent.is_table

    @property
    def subtracts(self) -> bool:
        """Whether the aggregate subtracts the old values of the rows that it aggregates."""
        return self.parent.is_table and not self.parent.only_adds

    @property
    @override
    def group_key(self) -> str:
        return self.key

    @property
    @override
    def key_window(self) -> AnyWindow | None:
        if self.window is None and self.by_window:
            return self.parent.key_window
        if isinstance(self.window, CountWindow):
            return None
        return self.window

    @property
    @override
    def is_keyed_by_window(self) -> bool:
        return self.by_window

    is_table = True

    @property
    @override
    def history(self) -> int | None:
        return self.history_ms

    @property
    @override
    def needs_old_values(self) -> bool:
        return self.subtracts

    @property
    @override
    def waits_for_close(self) -> bool:
        # When stream time closes a window of event time, the operator forgets the window.
        return self.key_window is not None or self.history_ms is not None

    @property
    @override
    def store_name(self) -> str | None:
        return self.store

    @property
    @override
    def late_sink(self) -> Late | None:
        return self.late

    @property
    @override
    def header_stores(self) -> tuple[str | None, ...]:
        return (self.store,)

    @override
    def _result_shape(self) -> Shape:
        if self.python is not None:
            return self.python.shape
        return self._shape_of_columns()

    def _shape_of_columns(self) -> Shape:
        types = types_of_columns(self.columns, self.readable_types)
        if self.scalar:
            return Shape.single(*types.values())
        return Shape(types)

    @property
    @override
    def author_functions(self) -> tuple[Any, ...]:
        functions = [*self._adders(), *self._functions_of_python()]
        if isinstance(self.window, CustomWindow):
            functions.insert(0, self.window.function.value)
        return tuple(functions)

    def _adders(self) -> tuple[Any, ...]:
        """Return the functions that add the values of cogrouped streams."""
        return ()

    def _functions_of_python(self) -> tuple[Any, ...]:
        if self.python is None:
            return ()
        python = self.python
        return (python.initializer, python.adder, python.subtractor, python.merger)

    has_known_name = True

    @property
    @override
    def title(self) -> str:
        return f"store {self.store}"

    @override
    def _expressions(self) -> str:
        text = self._aggregated()
        if self.window:
            text += f", {self.window}"
        if self.history_ms is not None:
            text += f", with versions of {duration_text(self.history_ms)}"
        return text

    def _aggregated(self) -> str:
        """Return a text that names the aggregates and their key."""
        added = ", ".join(self.columns.values()) or "Python functions"
        if self.by_window:
            return f"{added} by key and window"
        return f"{added} by {self.key}"


@dataclass(frozen=True, eq=False)
class CogroupedStream:
    """A stream of a cogrouped aggregate, and the functions with which its records are added."""

    parent: Node
    key: str
    columns: dict[str, str]
    adder: Callable[..., Any] | None = None
    """The Python function that adds a record's value; None if `columns` has SQL aggregates
    instead."""
    takes: Contract | None = None
    """The type of the value passed to the function; None for plain JSON data."""

    @property
    def description(self) -> str:
        """The added values, their stream and their key, as text."""
        added = ", ".join(self.columns.values())
        if not added:
            added = getattr(self.adder, "__name__", "Python function")
        return f"{added} of {known_name(self.parent)} by {self.key}"


@dataclass(frozen=True, eq=False)
class Cogroup(Aggregate):
    """An aggregate of several streams.

    `parent`, `key` and `python.adder` belong to the first stream.
    """

    parts: tuple[CogroupedStream, ...] = ()

    @property
    @override
    def parents(self) -> tuple[Node, ...]:
        return tuple([part.parent for part in self.parts])

    @override
    def with_parents(self, others: Mapping[Node, Node]) -> Self:
        parts = [replace(part, parent=others[part.parent]) for part in self.parts]
        return replace(self, parent=others[self.parent], parts=tuple(parts))

    @property
    @override
    def inputs(self) -> tuple[Input, ...]:
        inputs: list[Input] = []
        for number, part in enumerate(self.parts):
            of_stream = self._input(part.parent, part.key)
            inputs.append(replace(of_stream, side=COGROUPED + number, number=number))
        return tuple(inputs)

    @override
    def _shape_of_columns(self) -> Shape:
        types: dict[str, str] = {}
        for part in reversed(self.parts):
            readable = part.parent.result_types | METADATA | CHANGE_METADATA
            types |= types_of_columns(part.columns, readable)
        return Shape({name: types[name] for name in self.columns})

    @override
    def _adders(self) -> tuple[Any, ...]:
        return tuple([part.adder for part in self.parts])

    @override
    def _aggregated(self) -> str:
        return "; ".join([part.description for part in self.parts])


@dataclass(frozen=True, eq=False)
class Suppress(ChildNode):
    """Holds a table's results back until windows close, or `limit_ms` after a key's first update.

    `until` is `window_close` for the method `suppress_until_window_closes`, and `window_final` for
    an aggregate with `emit="window_close"`. Only the headers of results differ. With
    `window_close`, a result has the headers of the window's last update. With `window_final`, it
    has the headers of the record that closes the window.
    """

    until: Until
    limit_ms: int
    max_records: int | None
    max_bytes: int | None
    when_full: Literal["emit_early", "shut_down"]
    early_ms: int | None = None
    """With `window_final`: the time after a window's first unsent change when an early result is
    sent."""

    is_stateful = True

    is_table = True

    @property
    @override
    def only_adds(self) -> bool:
        return self.until == "window_final" and self.early_ms is None

    @property
    @override
    def needs_old_values(self) -> bool:
        # The operator leaves out deletions of rows that have never passed the filter.
        return self.parent.follows_filter

    passes_on_old_values = True

    @property
    @override
    def knows_old_values(self) -> bool:
        return self.parent.knows_old_values

    operator_reason = "holds results back"

    waits_for_close = True

    may_be_chained = True

    # The rows that this step holds back do not advance the stream time of the next step.
    lends_stream_time = False

    @property
    @override
    def title(self) -> str:
        if self.early_ms is not None:
            return f"emit {duration_text(self.early_ms)} after a change and on window close"
        if self.until == "window_final":
            return "emit on window close"
        return f"suppress until {self.until.replace('_', ' ')}"
