"""Processors, calls, look-ups and other steps that take the records of a stream one by one."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Self

from typing_extensions import override

from sluice.operators.base import READ
from sluice.topology.expressions import type_of
from sluice.topology.nodes.node import ChildNode, Foreign, Input, Node, StreamOperator, own_key_of
from sluice.topology.serdes import Contract
from sluice.topology.value_types import (
    declared_type,
    type_of_value,
)
from sluice.values.call_parameters import CallPolicy, LookedUpTable, SharedStore
from sluice.values.phrases import duration_text
from sluice.values.record_metadata import (
    OnMissing,
)
from sluice.values.shapes import Shape
from sluice.values.sql_text import is_null, value_json
from sluice.values.sql_types import compact
from sluice.values.windows import (
    AnyWindow,
)


@dataclass(frozen=True, eq=False)
class Deduplicate(StreamOperator):
    """Passes on the first record of each id within `within_ms`."""

    within_ms: int

    @override
    def _expressions(self) -> str:
        return f"{self.by} within {duration_text(self.within_ms)}"


@dataclass(frozen=True, eq=False)
class AskingOperator(StreamOperator):
    """Base of steps that query a service or a store, and may record the answers with the state."""

    operator_reason = "makes calls outside of the pipeline"

    waits_for_close = False


@dataclass(frozen=True, eq=False)
class Call(AskingOperator):
    """Replaces the value with the result of a function that calls a service."""

    function: Callable[..., Any]
    takes: Contract | None
    """The type of the value passed to the function; None for plain JSON data."""
    returns: Contract | None
    shape: Shape
    """The shape of the results."""
    policy: CallPolicy
    answers: str
    """The name under which the results are recorded with the state."""
    otherwise: str | None = None
    """JSON of the value that a record gets if its call has failed; None if the record fails,
    too."""
    size: int | None = None
    """The largest number of values that one call takes; None for a function of one value."""

    @override
    def _result_shape(self) -> Shape:
        return self.shape

    @override
    def _expressions(self) -> str:
        name = getattr(self.function, "__name__", "")
        return name + _recorded_as(self.answers, self.policy)

    @property
    @override
    def declared_types(self) -> str:
        gives = compact(self.shape.kind) or "variant"
        return f"({declared_type(self.takes)}) gives {gives}"


@dataclass(frozen=True, eq=False)
class Lookup(AskingOperator):
    """Joins each record with its key's row in a database table or in another pipeline's store.

    The fields of the result are `left` and `right`.
    """

    table: LookedUpTable | SharedStore
    returns: Contract
    row: Shape
    """The shape of the table's rows."""
    on_missing: OnMissing
    policy: CallPolicy
    answers: str
    """The name under which the rows are recorded with the state."""

    @override
    def _result_shape(self) -> Shape:
        return Shape({"left": type_of_value(self.parent.result_shape), "right": self.row.kind})

    @property
    @override
    def title(self) -> str:
        if isinstance(self.table, SharedStore):
            return f"look-up in store {self.table}"
        return f"look-up in table {self.table.table} of {self.table.connection}"

    @override
    def _expressions(self) -> str:
        recorded = _recorded_as(self.answers, self.policy)
        if isinstance(self.table, SharedStore):
            return f"by {self.by}{recorded}"
        columns = ", ".join(self.table.columns)
        return f"{self.table.column} = {self.by}, {columns}{recorded}"

    @property
    @override
    def declared_types(self) -> str:
        return f"gives {compact(self.row.kind)}"


@dataclass(frozen=True, eq=False)
class SetMetadata(StreamOperator):
    """Gives each record the time of an expression, or headers with the values of expressions."""

    time: str | None
    """The expression for the time; None if the record keeps its time."""
    headers: Mapping[str, str]
    """Name of a header → the expression for its value. A null value removes the header."""

    @property
    @override
    def inputs(self) -> tuple[Input, ...]:
        return (
            Input(
                parent=self.parent,
                key=self.by,
                expressions=self.new_metadata,
                foreign="computed",
                # If the step sets a new time, the results' times differ from the times of the
                # topic's records.
                is_from_another_task=None if self.time is None else True,
            ),
        )

    @property
    def new_metadata(self) -> dict[str, str]:
        """The expressions of the new time and headers, in the order in which they are read."""
        texts = {} if self.time is None else {"time": self.time}
        for number, text in enumerate(self.headers.values()):
            texts[f"header{number}"] = text
        return texts

    @override
    def foreign_sql(self, sqls: Mapping[str, str]) -> str:
        # The new time and headers as JSON, as the operator reads them.
        parts: list[str] = []
        for name, text in self.new_metadata.items():
            if is_null(text):
                parts.append("'null'")
            elif type_of(text, self.readable_types) == "BINARY":
                parts.append(value_json(f"hex({sqls[name]})"))
            else:
                parts.append(value_json(sqls[name]))
        values = ", ',', ".join(parts)
        return f"concat('[', {values}, ']')"

    operator_reason = "sets the time or the headers of records"

    waits_for_close = False

    @property
    @override
    def title(self) -> str:
        changed: list[str] = []
        if self.time:
            changed.append("time")
        if self.headers:
            changed.append("headers")
        return f"set {' and '.join(changed)}"

    @override
    def _expressions(self) -> str:
        texts = dict(self.headers)
        if self.time is not None:
            texts = {"_timestamp": self.time, **texts}
        return ", ".join([f"{name} = {sql}" for name, sql in texts.items()])


@dataclass(frozen=True, eq=False)
class Process(ChildNode):
    """An author's processor, called with each key's records in order."""

    processor: type
    stores: Mapping[str, tuple[Any, int | None]]
    """Type of the values, and time to live in ms, of each store by name."""
    takes: Contract | None
    returns: Mapping[str, type | None]
    """Type of the values of each output."""
    queryable: bool
    keeps_key: bool = False
    """Whether each result has the key of its record, as in Kafka Streams' `processValues`."""
    by: str | None = None
    """The expression for the key of the stores; None for the record's key."""
    tables: Mapping[str, Node] = field(default_factory=dict)
    """The tables whose rows the processor reads, by the names that the processor uses for them."""
    table_types: Mapping[str, type | None] = field(default_factory=dict)
    """The type of each table's values; None for plain JSON data."""

    is_stateful = True

    @property
    @override
    def parents(self) -> tuple[Node, ...]:
        return (self.parent, *self.tables.values())

    @override
    def with_parents(self, others: Mapping[Node, Node]) -> Self:
        tables = {name: others[table] for name, table in self.tables.items()}
        return replace(self, parent=others[self.parent], tables=tables)

    @property
    @override
    def inputs(self) -> tuple[Input, ...]:
        of_records = Input(
            parent=self.parent,
            key=self.by,
            foreign=self._foreign(),
            requires_key=False,
            # In Kafka Streams, every record that a task reads advances the time of punctuators.
            counts_every_record=True,
        )
        inputs = [of_records]
        for number, table in enumerate(self.tables.values()):
            side = READ + number
            rows = Input(parent=table, side=side, number=1 + number, is_copied=True)
            inputs.append(replace(rows, reads_store=True))
        return tuple(inputs)

    def _foreign(self) -> Foreign | None:
        return None if self.by is None else own_key_of(self.parent)

    @property
    @override
    def keeps_keys(self) -> bool:
        return self.keeps_key

    @property
    @override
    def passes_on_keys_of(self) -> tuple[Node, ...]:
        return self.parents

    @property
    @override
    def store_window(self) -> AnyWindow | None:
        return self.parent.key_window if self.by is None else None

    @property
    @override
    def is_keyed_by_window(self) -> bool:
        return self.store_window is not None

    @property
    def sets_timers(self) -> bool:
        """Whether the processor has a method for timers."""
        return hasattr(self.processor, "on_timer")

    operator_reason = "needs each key's records in order"

    waits_for_close = True

    @property
    @override
    def store_names(self) -> tuple[str, ...]:
        return tuple(self.stores)

    @property
    @override
    def header_stores(self) -> tuple[str | None, ...]:
        return () if self.queryable else tuple(self.stores)

    @override
    def _result_shape(self) -> Shape:
        # Each output has its own shape: see `Branch`.
        return Shape.single()

    @property
    @override
    def author_functions(self) -> tuple[Any, ...]:
        return (self.processor,)

    @property
    @override
    def title(self) -> str:
        kind = "process values" if self.keeps_key else "process"
        return f"{kind} {self.processor.__name__}"

    @override
    def _expressions(self) -> str:
        texts: list[str] = []
        if self.by:
            texts.append(f"by {self.by}")
        elif self.is_keyed_by_window:
            texts.append("by key and window")
        if self.tables:
            texts.append(f"reads {', '.join(self.tables)}")
        return " ".join(texts)

    @property
    @override
    def declared_types(self) -> str:
        store_types: list[str] = []
        # Stores that can be queried have their own definitions, which are compared separately.
        if not self.queryable:
            for name, (kind, _) in self.stores.items():
                store_types.append(f"{name} {declared_type(kind)}")
        return f"({declared_type(self.takes)}) {', '.join(store_types)}"


@dataclass(frozen=True, eq=False)
class Branch(ChildNode):
    """The records that a processor forwards to one output."""

    parent: Process
    output: str
    shape: Shape

    @override
    def _result_shape(self) -> Shape:
        return self.shape


def _recorded_as(answers: str, policy: CallPolicy) -> str:
    """Return the name under which a step's answers are recorded; empty if they are not recorded.

    If the name changes, the step gets new answers, and the state must be computed again. So the
    name is a part of the step's definition.
    """
    if policy.keep_ms is None:
        return ""
    return f", recorded as {answers}"
