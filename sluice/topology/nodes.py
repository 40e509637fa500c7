"""The nodes of a topology, as plain values.

Authors make them with handles: `streams`, `tables`, `groups`. A node says itself what it is: its
parents, how its operator takes their rows, whether it keeps keys and is a table, which texts
describe it. So a new kind of node needs a class here, a method of a handle, and its operator
(`action_of` in `plan/operator_actions.py`) or, if it is stateless, its columns (`plan/scopes.py`).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, ClassVar, Literal, Self, TypeAlias

from typing_extensions import override

from sluice.operators.base import AHEAD, COGROUPED, LEFT, READ, RIGHT
from sluice.sql.typed_expression import type_of
from sluice.topology.serdes import Contract, Serde
from sluice.topology.value_types import (
    common_shape,
    declared_type,
    shape_of_expression,
    type_of_value,
    types_of_columns,
)
from sluice.values.call_parameters import CallPolicy, FunctionBatch, LookedUpTable
from sluice.values.change_values import CheckOld
from sluice.values.epochs import EpochTime
from sluice.values.expiry import Expiry
from sluice.values.function_wrappers import NoTopic
from sluice.values.phrases import counted, duration_text
from sluice.values.record_metadata import CHANGE_METADATA, MAPPED_KEY, METADATA
from sluice.values.record_metadata import Emit as Emit
from sluice.values.record_metadata import EmitStrategy as EmitStrategy
from sluice.values.record_metadata import Gives as Gives
from sluice.values.record_metadata import How as How
from sluice.values.record_metadata import OnError as OnError
from sluice.values.record_metadata import OnMissing as OnMissing
from sluice.values.record_metadata import OnNull as OnNull
from sluice.values.record_metadata import OnTime as OnTime
from sluice.values.record_metadata import Until as Until
from sluice.values.shapes import Shape
from sluice.values.sink_tables import OutputTable
from sluice.values.sql_text import is_null, named_struct, struct_json, value_json
from sluice.values.sql_types import compact
from sluice.values.stored_values import models_within
from sluice.values.topic_patterns import is_pattern
from sluice.values.windows import (
    AnyWindow,
    CountWindow,
    CustomWindow,
    JoinWindow,
    SlidingWindow,
)

_NOT_IN_XML = "[^\t\n\r\u0020-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]"
"""Matches the characters that XML does not allow even when escaped."""

Repartitions: TypeAlias = Literal["never", "if_rekeyed", "always"]
"""Whether Kafka Streams would send the rows of an input through a repartition topic: never, if a
step since the last topic has changed their key, or always."""

Foreign: TypeAlias = Literal["key", "windowed_key", "record", "computed"]
"""What the column `foreign` of an input's rows has: the record's own key, this key with its
window, the record's value, or what `Node.foreign_sql` computes."""


@dataclass(frozen=True, kw_only=True)
class Input:
    """How a node's operator takes the rows of one parent."""

    parent: Node
    side: int = LEFT
    """The side of the rows, for the operator."""
    number: int = 0
    """The index of the parent among the node's parents."""
    key: str | None = None
    """The expression for the key under which the operator takes a row; None for the record's
    key."""
    repartitions: Repartitions = "never"
    expressions: Mapping[str, str] = field(default_factory=dict)
    """The other expressions that the operator needs of each row, by name."""
    value: str | None = None
    """The name of the expression that gives the value; None for the row's own value."""
    foreign: Foreign | None = None
    """The content of the column `foreign`; None for an input without this column."""
    has_arguments: bool = False
    """Whether the operator takes the arguments of an aggregate's functions, not the value."""
    requires_key: bool = True
    """Whether only rows with a key advance stream time."""
    requires_value: bool = False
    """Whether the operator drops rows without a value."""
    leaves_out_nulls: bool = False
    """Whether rows without a value do not reach the operator."""
    null_is_missing: bool = False
    """Whether the value `null` counts as a missing value."""
    is_passed_on: bool = False
    """Whether the value only passes through the operator, which keeps no copy of it."""
    is_copied: bool = False
    """Whether every worker gets all rows."""
    counts_every_record: bool = False
    """Whether every record that a task reads advances stream time."""
    is_from_another_task: bool | None = None
    """Whether, in Kafka Streams, the rows come from another task than the node's results; None if
    they do exactly if they are repartitioned."""
    reads_store: bool = False
    """Whether the operator reads the rows from the store of a table."""

    def is_repartitioned(self, *, rekeyed: bool) -> bool:
        """Return whether Kafka Streams would send the rows through a repartition topic.

        `rekeyed` says whether a step since the last topic has changed their key.
        """
        return self.repartitions == "always" or (rekeyed and self.repartitions == "if_rekeyed")


@dataclass(frozen=True, eq=False)
class Node:
    """One step. `number` is its index in the pipeline; `at` is the author's `file:line`."""

    number: int
    at: str
    on_error: OnError = field(default="dead_letter", kw_only=True)

    is_stateful: ClassVar[bool] = False
    """Whether the step may keep a state, or a position in a topic."""

    @property
    def name(self) -> str:
        """The step's name in counts and messages."""
        return f"{type(self).__name__.lower()}-{self.number}"

    # -- Parents and keys

    @property
    def parents(self) -> tuple[Node, ...]:
        """The nodes whose output this node takes."""
        return ()

    def with_parents(self, others: Mapping[Node, Node]) -> Self:
        """Return the node with other parents; `others` maps each of its parents to the new one."""
        return self

    @property
    def inputs(self) -> tuple[Input, ...]:
        """How the node's operator, or sink, takes the rows of its parents."""
        inputs: list[Input] = []
        for number, parent in enumerate(self.parents):
            inputs.append(Input(parent=parent, side=number, number=number))
        return tuple(inputs)

    def foreign_sql(self, sqls: Mapping[str, str]) -> str:
        """Return SQL of the column `foreign` of an input whose `foreign` is `computed`.

        `sqls` has the SQL of the input's expressions by name.
        """
        raise AssertionError(f"{self.name} computes no column `foreign`")

    @property
    def group_key(self) -> str:
        """The author's expression for the key by which the node's state is kept."""
        return "_key"

    @property
    def keeps_keys(self) -> bool:
        """Whether results have the keys under which the node takes its rows."""
        return True

    @property
    def passes_on_keys_of(self) -> tuple[Node, ...]:
        """The parents by whose rows' own keys an operator's results are keyed.

        Empty if the operator keeps its state by the key of its results, as tables do: in Kafka
        Streams, the rows have then gone through a repartition topic if their key was new.
        """
        return ()

    @property
    def key_window(self) -> AnyWindow | None:
        """The window definition of the results' keys; None if these keys have no windows.

        An aggregate over a number of records has no windowed keys: its store has one row per key.
        """
        return None

    @property
    def store_window(self) -> AnyWindow | None:
        """The window definition of the keys under which the node stores rows; None without windows."""
        return self.key_window

    @property
    def is_keyed_by_window(self) -> bool:
        """Whether the operator keeps a state for each windowed key of its inputs."""
        return False

    # -- Tables

    @property
    def is_table(self) -> bool:
        """Whether the node outputs a table's changes, not a stream's records."""
        return False

    @property
    def is_global_table(self) -> bool:
        """Whether every worker has all rows of the node, because it is a global table."""
        return False

    @property
    def only_adds(self) -> bool:
        """Whether the node is a table that only gets new rows, which never change.

        These are the final results of windows, possibly mapped and filtered.
        """
        return False

    @property
    def computes_rows(self) -> bool:
        """Whether the node computes each row of its table from one row of its input, without a state."""
        return False

    @property
    def history(self) -> int | None:
        """How far back the versions of the node's table reach, in ms; None if it is not a versioned table."""
        return None

    @property
    def takes_latest(self) -> bool:
        """Whether the node leaves out a versioned table's updates that are earlier than their key's latest update.

        As in Kafka Streams, only a stream of the table's changes, and a join of a stream with the
        table's versions, get such updates.
        """
        return self.is_table

    @property
    def needs_last_change_only(self) -> bool:
        """Whether the node needs only the last change of each key in a batch."""
        return False

    # -- Old values of tables

    @property
    def needs_old_values(self) -> bool:
        """Whether the node needs the old values of its first parent, a table.

        The old value of a change is the row that the change replaces. Joins of tables by key have
        this row in their state.
        """
        return False

    @property
    def passes_on_old_values(self) -> bool:
        """Whether the old values of the node's results come from the old values of its parent."""
        return False

    @property
    def knows_old_values(self) -> bool:
        """Whether a table's changes contain the replaced values even if no later step asks for them.

        In Kafka Streams, the tables of topics and of foreign-key joins contain them only if the
        author names a materialized store.
        """
        return True

    @property
    def follows_filter(self) -> bool:
        """Whether the node filters its records or rows, or maps those of such a filter."""
        return False

    # -- The operator

    @property
    def operator_reason(self) -> str:
        """The reason why the node needs each key's records in order; empty if it does not.

        The reason of an aggregate depends on the rest of the pipeline: see
        `plan/operator_nodes.py`.
        """
        return ""

    @property
    def is_needed_for_old_values_only(self) -> bool:
        """Whether the node is an operator only if a later step needs old values."""
        return False

    @property
    def waits_for_close(self) -> bool:
        """Whether the operator needs stream time, for example to send results or to forget state."""
        return False

    @property
    def may_be_chained(self) -> bool:
        """Whether the operator may get the results of the operator before it directly, and use its stream time."""
        return False

    @property
    def lends_stream_time(self) -> bool:
        """Whether an operator that is chained to this node's operator may use its stream time."""
        return True

    @property
    def store_name(self) -> str | None:
        """The name of the store with the node's table."""
        return None

    @property
    def store_names(self) -> tuple[str, ...]:
        """The names of the node's stores, including the stores of a processor that cannot be queried."""
        return () if self.store_name is None else (self.store_name,)

    @property
    def late_sink(self) -> Late | None:
        """The sink for records that are late for every window."""
        return None

    @property
    def header_stores(self) -> tuple[str | None, ...]:
        """The stores, or None for a state without a name, in which the node's operator may keep headers.

        Stores of a processor that can be queried are left out: they have their own definitions.
        """
        return ()

    # -- Values and functions

    @cached_property
    def result_shape(self) -> Shape:
        """The shape of the values after this node."""
        # Cached, because every step needs the types of all steps before it: without the cache,
        # planning n steps takes n² computations.
        return self._result_shape()

    @property
    def result_types(self) -> dict[str, str]:
        """The fields after this node, with their types."""
        return self.result_shape.fields

    def _result_shape(self) -> Shape:
        return Shape({})

    @property
    def is_peek(self) -> bool:
        """Whether the node only calls a function, whose result is not used."""
        return False

    @property
    def author_functions(self) -> tuple[Any, ...]:
        """The author's functions on which the node's results depend; None for a function that is not given."""
        return ()

    # -- Texts

    @property
    def has_known_name(self) -> bool:
        """Whether the author has named the topic or the store of the node's rows."""
        return False

    @property
    def title(self) -> str:
        """The kind of step, such as `store orders` or `filter`."""
        return re.sub("(?<!^)(?=[A-Z])", " ", type(self).__name__).lower()

    @property
    def detail(self) -> str:
        """The author's expressions, on one line."""
        on_one_line = " ".join(self._expressions().split())
        return re.sub(_NOT_IN_XML, "\N{REPLACEMENT CHARACTER}", on_one_line)

    def _expressions(self) -> str:
        return ""

    @property
    def declared_types(self) -> str:
        """The declared types on which the node's state depends, besides the expressions."""
        return ""


@dataclass(frozen=True, eq=False)
class ChildNode(Node):
    """Base of the nodes that take the output of one other node."""

    parent: Node

    @property
    @override
    def parents(self) -> tuple[Node, ...]:
        return (self.parent,)

    @override
    def with_parents(self, others: Mapping[Node, Node]) -> Self:
        return replace(self, parent=others[self.parent])

    @property
    @override
    def key_window(self) -> AnyWindow | None:
        return self.parent.key_window if self.keeps_keys else None

    @override
    def _result_shape(self) -> Shape:
        return self.parent.result_shape

    @property
    def readable_types(self) -> dict[str, str]:
        """The types of the fields and metadata that the node's expressions can read."""
        return self.parent.result_types | METADATA | CHANGE_METADATA


@dataclass(frozen=True, eq=False)
class RowStep(ChildNode):
    """Base of the stateless steps that turn each record into at most one, and a table into a table."""

    @property
    @override
    def is_table(self) -> bool:
        return self.parent.is_table

    @property
    @override
    def only_adds(self) -> bool:
        return self.parent.only_adds

    @property
    @override
    def computes_rows(self) -> bool:
        return self.is_table

    @property
    @override
    def history(self) -> int | None:
        return self.parent.history

    @property
    @override
    def passes_on_old_values(self) -> bool:
        return self.computes_rows

    @property
    @override
    def knows_old_values(self) -> bool:
        return self.parent.knows_old_values

    @property
    def is_filter(self) -> bool:
        """Whether the step filters its records or rows."""
        return False

    @property
    @override
    def follows_filter(self) -> bool:
        if not self.is_filter:
            return self.parent.follows_filter
        # As in Kafka Streams, a filtered versioned table always sends its tombstones, because they
        # are versions too.
        return self.history is None


@dataclass(frozen=True, eq=False)
class Source(Node):
    """A topic that is read as a stream, as a table (the latest value per key), or as a table on every worker."""

    topic: str
    """The topic's name, or the pattern of the names of several topics
    (`values/topic_patterns.py`)."""
    kind: Literal["stream", "table", "global_table"]
    serde: Serde[Any]
    key: str | None
    """The field with the record's key, or a struct of several fields; None for the Kafka key."""
    key_fields: tuple[str, ...]
    """The fields of the record's key."""
    key_decode: Callable[[bytes], str] | None
    event_time: str | EpochTime | None
    """The field with the event time, or WALL_CLOCK; None for the Kafka timestamp."""
    zone: str
    max_future_skew_ms: int
    nulls: OnNull
    on_time: OnTime
    """Policy for a record without a valid event time; `clock` gives it the time of processing."""
    shape: Shape
    store: str | None = None
    """The name of a global table's store; None for the topic's name."""
    most_topics: int = 1
    """The largest number of topics that a pattern may match."""

    is_stateful = True

    @property
    def fields(self) -> dict[str, str]:
        """The fields of the values, each with its Spark SQL type."""
        return self.shape.fields

    @property
    @override
    def name(self) -> str:
        return self.topic

    @property
    @override
    def is_table(self) -> bool:
        return self.kind != "stream"

    @property
    @override
    def is_global_table(self) -> bool:
        return self.kind == "global_table"

    @property
    @override
    def store_names(self) -> tuple[str, ...]:
        if self.is_global_table:
            return (self.store or self.topic,)
        return ()

    has_known_name = True

    @override
    def _result_shape(self) -> Shape:
        return self.shape

    @property
    @override
    def author_functions(self) -> tuple[Any, ...]:
        # The validators of models decide which values a state gets, so models count as functions.
        return (self.serde.decode, self.key_decode, *models_within(self.serde.contract))

    @property
    @override
    def title(self) -> str:
        return f"{self.kind.replace('_', ' ')} {self.topic}"

    @override
    def _expressions(self) -> str:
        text = f"{self.serde.name}, event time {self.event_time or 'of the record'}"
        if is_pattern(self.topic):
            text += f", at most {counted(self.most_topics, 'topic')}"
        return text


@dataclass(frozen=True, eq=False)
class Filter(RowStep):
    """Keeps the records for which `where` is true; a table's other rows are deleted."""

    where: str

    is_filter = True

    @override
    def _expressions(self) -> str:
        return self.where


@dataclass(frozen=True, eq=False)
class Repartition(Filter):
    """Drops the records without a key, unless a left or outer join follows."""

    where: str = "_key IS NOT NULL"

    @override
    def _expressions(self) -> str:
        return ""


@dataclass(frozen=True, eq=False)
class Select(RowStep):
    """Replaces the value with columns, each an expression over the old fields."""

    columns: dict[str, str]

    needs_last_change_only = True

    @override
    def _result_shape(self) -> Shape:
        return Shape(types_of_columns(self.columns, self.readable_types))

    @override
    def _expressions(self) -> str:
        texts: list[str] = []
        for name, sql in self.columns.items():
            is_unchanged = name == sql
            texts.append(name if is_unchanged else f"{name} = {sql}")
        return ", ".join(texts)


@dataclass(frozen=True, eq=False)
class MapValues(RowStep):
    """Replaces the value with the result of an expression; later steps read it as `value`."""

    value: str

    @override
    def _result_shape(self) -> Shape:
        return shape_of_expression(self.value, self.readable_types)

    @override
    def _expressions(self) -> str:
        return self.value


@dataclass(frozen=True, eq=False)
class SelectKey(ChildNode):
    """Replaces the key with the result of an expression, as text."""

    key: str

    keeps_keys = False

    @override
    def _expressions(self) -> str:
        return self.key


@dataclass(frozen=True, eq=False)
class Apply(RowStep):
    """Calls a Python function with key and value.

    `gives` is the kind of its result: a `value`, many `values`, a `key`, a `mapped_key` (the key to
    look up in a global table), a `record` (key and value), many `records`, a `condition`, or
    `nothing`.
    """

    function: Callable[..., Any]
    gives: Gives
    takes: Contract | None
    """The type of the value passed to the function; None for plain JSON data."""
    returns: Contract | None
    shape: Shape
    """The shape of the resulting value."""
    batch: FunctionBatch | None = None
    """How one call takes many values; None for a function of one value."""

    @property
    @override
    def keeps_keys(self) -> bool:
        return self.gives not in ("key", "record", "records")

    @property
    @override
    def is_filter(self) -> bool:
        return self.gives == "condition"

    @property
    @override
    def is_peek(self) -> bool:
        return self.gives == "nothing"

    @override
    def _result_shape(self) -> Shape:
        return self.shape

    @property
    @override
    def author_functions(self) -> tuple[Any, ...]:
        return () if self.is_peek else (self.function,)

    @property
    @override
    def title(self) -> str:
        if isinstance(self.function, NoTopic):
            return "route"
        if self.is_peek:
            return "peek"
        if self.batch is not None:
            return "Python function for many values"
        return f"Python function for {self.gives.replace('_', ' ')}"

    @override
    def _expressions(self) -> str:
        return getattr(self.function, "__name__", "")

    @property
    @override
    def declared_types(self) -> str:
        fields = [f"{name} {sql_type}" for name, sql_type in self.shape.fields.items()]
        return f"({declared_type(self.takes)}) gives {', '.join(fields)}"


@dataclass(frozen=True, eq=False)
class Transform(ChildNode):
    """Replaces the value with the columns that a function from DataFrame to DataFrame computes."""

    function: Callable[..., Any]
    fields: dict[str, str]

    @override
    def _result_shape(self) -> Shape:
        return Shape(self.fields)

    @property
    @override
    def author_functions(self) -> tuple[Any, ...]:
        return (self.function,)

    @override
    def _expressions(self) -> str:
        return getattr(self.function, "__name__", "")


@dataclass(frozen=True, eq=False)
class FlatMapValues(ChildNode):
    """Emits a record for each element of an array. A struct element becomes the value."""

    items: str
    shape: Shape
    """The shape of the elements, which are objects if they are structs of a known type."""

    @override
    def _result_shape(self) -> Shape:
        return self.shape

    @override
    def _expressions(self) -> str:
        return self.items


@dataclass(frozen=True, eq=False)
class Merge(Node):
    """Combines the records of several streams."""

    streams: tuple[Node, ...]

    @property
    @override
    def parents(self) -> tuple[Node, ...]:
        return self.streams

    @override
    def with_parents(self, others: Mapping[Node, Node]) -> Self:
        return replace(self, streams=tuple([others[stream] for stream in self.streams]))

    @property
    @override
    def passes_on_keys_of(self) -> tuple[Node, ...]:
        return self.streams

    @property
    @override
    def key_window(self) -> AnyWindow | None:
        return self.streams[0].key_window

    @override
    def _result_shape(self) -> Shape:
        return common_shape([stream.result_shape for stream in self.streams])


@dataclass(frozen=True, eq=False)
class ToStream(ChildNode):
    """Turns a table's changes into records; a deletion is a record with a null value."""

    @property
    @override
    def needs_old_values(self) -> bool:
        # A deletion of a row that has never passed the filter is left out.
        return self.parent.follows_filter and self.parent.knows_old_values

    @property
    @override
    def operator_reason(self) -> str:
        if not self.needs_old_values:
            return ""
        return "leaves out deletions of rows that the filter has never passed"


@dataclass(frozen=True, eq=False)
class Changes(ChildNode):
    """Turns a table's changes into records with the fields `kind`, `old` and `new`."""

    is_stateful = True

    @property
    @override
    def inputs(self) -> tuple[Input, ...]:
        return (Input(parent=self.parent, null_is_missing=True),)

    @property
    @override
    def passes_on_keys_of(self) -> tuple[Node, ...]:
        return self.parents

    @property
    @override
    def is_keyed_by_window(self) -> bool:
        return self.parent.key_window is not None

    takes_latest = True

    operator_reason = "compares each row with its last value"

    @override
    def _result_shape(self) -> Shape:
        row = type_of_value(self.parent.result_shape)
        return Shape({"kind": "STRING", "old": row, "new": row})


@dataclass(frozen=True, eq=False)
class ToTable(ChildNode):
    """Keeps the latest value per key of a stream's records as a table; a null value deletes the key.

    A node without a store follows a foreign-key join. It remembers the join's results, so that
    later steps get the old values of the results. The join itself does not know its old results,
    because it stores a row's old and new value under different foreign keys.
    """

    store: str | None
    history_ms: int | None = None
    """How far back the versions of a versioned table reach; None for a table that only has the
    latest rows."""
    expiry: Expiry | None = None

    is_stateful = True

    @property
    def has_rows_of_records(self) -> bool:
        """Whether the table's changes are exactly the stream's records.

        If they are, later steps read the stream's records. The table's operator is needed only for
        the table's store, and for steps that need the old values of rows.
        """
        return self.history_ms is None and self.expiry is None

    @property
    @override
    def name(self) -> str:
        return super().name if self.store is None else self.store

    @property
    @override
    def inputs(self) -> tuple[Input, ...]:
        records = Input(parent=self.parent, repartitions="if_rekeyed", null_is_missing=True)
        if self.expiry is not None and self.expiry.at_ms is not None:
            expressions = {"expires": self.expiry.at_ms}
            records = replace(records, expressions=expressions, foreign="computed")
        return (records,)

    @override
    def foreign_sql(self, sqls: Mapping[str, str]) -> str:
        return f"CAST({sqls['expires']} AS STRING)"

    @property
    @override
    def is_keyed_by_window(self) -> bool:
        return self.parent.key_window is not None

    is_table = True

    @property
    @override
    def history(self) -> int | None:
        return self.history_ms

    @property
    @override
    def knows_old_values(self) -> bool:
        if self.store is None:
            return False
        is_of_topic = self.parent.is_table and not self.parent.parents
        return self.expiry is not None or not is_of_topic or self.parent.is_global_table

    operator_reason = "stores each key's latest value"

    @property
    @override
    def is_needed_for_old_values_only(self) -> bool:
        return self.store is None

    @property
    @override
    def waits_for_close(self) -> bool:
        return not self.has_rows_of_records

    @property
    @override
    def lends_stream_time(self) -> bool:
        # A row of any key can delete another key's row that has expired.
        return self.expiry is None

    @property
    @override
    def store_name(self) -> str | None:
        return self.store

    @property
    @override
    def header_stores(self) -> tuple[str | None, ...]:
        return self.store_names

    @property
    @override
    def has_known_name(self) -> bool:
        return self.store is not None

    @property
    @override
    def title(self) -> str:
        if self.store is None:
            return "table of results"
        return f"store {self.store}"

    @override
    def _expressions(self) -> str:
        if self.history_ms is not None:
            return f"with versions of {duration_text(self.history_ms)}"
        return "" if self.expiry is None else str(self.expiry)


@dataclass(frozen=True, eq=False)
class PythonAggregate:
    """Python functions of an aggregate, called in the order of the records: `adder(key, aggregate, value)`.

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
    """Aggregates the records of each `key` and window into `columns`, or into one value if `scalar`, in a store."""

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
        # There is nothing to subtract for a row that did not exist, and nothing to add for a row
        # that is deleted or filtered out.
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
        return _own_key_of(self.parent)

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
        """Return what is aggregated, and by which key."""
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
    """The Python function that adds a record's value; None if `columns` says what is added."""
    takes: Contract | None = None
    """The type of the value passed to the function; None for plain JSON data."""

    @property
    def description(self) -> str:
        """What is added, from which stream, and by which key."""
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
    """Holds a table's results back: until their window closes, or until `limit_ms` after a key's first update.

    `until` is `window_close` for the method `suppress_until_window_closes`, and `window_final` for
    an aggregate with `emit="window_close"`. Only the headers of results differ: with
    `window_close`, a result has the headers of the window's last update, and with `window_final`
    those of the record that closes the window.
    """

    until: Until
    limit_ms: int
    max_records: int | None
    max_bytes: int | None
    when_full: Literal["emit_early", "shut_down"]
    early_ms: int | None = None
    """With `window_final`: how long after a window's first unsent change its early result is
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
        # A deletion of a row that has never passed the filter is left out.
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


@dataclass(frozen=True, eq=False)
class Join(Node):
    """A join by key of two streams within a `window`, of a stream with a table, or of two tables.

    `on` is the expression for the key to look up in a global table, or for a foreign key into
    another table; MAPPED_KEY if a Python function before this step has computed the key.
    """

    left: Node
    right: Node
    how: How
    kind: Literal["stream-stream", "stream-table", "table-table", "foreign-key", "lookup"]
    window: JoinWindow | None = None
    on: str | None = None
    grace_ms: int | None = None
    """How long a stream's record waits for a versioned table's row as of the record's time."""
    mapped_key: str | None = None
    """The name of a third field of the result, with the key that was looked up; None without it."""

    is_stateful = True

    @property
    @override
    def parents(self) -> tuple[Node, ...]:
        return (self.left, self.right)

    @override
    def with_parents(self, others: Mapping[Node, Node]) -> Self:
        return replace(self, left=others[self.left], right=others[self.right])

    @property
    @override
    def inputs(self) -> tuple[Input, ...]:
        # Every task of Kafka Streams has the whole global table, so a join with the table needs no
        # repartition topic.
        repartitions: Repartitions = "never" if self.right.is_global_table else "if_rekeyed"
        of_left = Input(
            parent=self.left,
            key=self.on,
            repartitions=repartitions,
            requires_value=not self.is_table,
            is_passed_on=self.kind == "stream-table" and not self.joins_versions,
        )
        if self.on is not None:
            of_left = replace(of_left, foreign="key")
            if not self.right.is_global_table:
                of_left = replace(of_left, repartitions="always")
        of_right = Input(
            parent=self.right,
            side=RIGHT,
            number=1,
            repartitions=repartitions,
            # A record without a value deletes a row. A join with versions needs this record,
            # because a deletion is a version, too.
            requires_value=not self.is_table and not self.joins_versions,
            reads_store=self.kind == "stream-table",
        )
        if self.kind == "foreign-key":
            # The task of the left table looks rows up in the task of the right table.
            of_left = replace(of_left, is_from_another_task=False)
            of_right = replace(of_right, is_from_another_task=True)
        inputs: list[Input] = []
        for own, other in ((of_left, self.right), (of_right, self.left)):
            inputs.append(own)
            if self._is_read_ahead(own.parent, other):
                ahead = Input(parent=own.parent, side=AHEAD + own.side, number=own.number)
                inputs.append(replace(ahead, repartitions=repartitions, reads_store=True))
        return tuple(inputs)

    def _is_read_ahead(self, own: Node, other: Node) -> bool:
        """Return whether the other side depends on the table that this side maps or filters.

        In Kafka Streams, both sides read this table's store, which is updated before any step after
        the table.
        """
        return self.kind == "table-table" and table_of_rows(own) in upstream(other)

    @property
    def joins_versions(self) -> bool:
        """Whether a stream is joined with the versions of a table."""
        return self.kind == "stream-table" and self.right.history is not None

    @property
    @override
    def passes_on_keys_of(self) -> tuple[Node, ...]:
        return (self.left,) if self.right.is_global_table else ()

    @property
    @override
    def key_window(self) -> AnyWindow | None:
        if self.kind in ("stream-table", "table-table"):
            return self.left.key_window
        return None

    @property
    @override
    def is_keyed_by_window(self) -> bool:
        return self.right.key_window is not None

    @property
    @override
    def is_table(self) -> bool:
        # In Kafka Streams, a stream that joins a table stays a stream; only a join of two tables is
        # a table.
        return self.kind in ("table-table", "foreign-key", "lookup")

    @property
    @override
    def needs_last_change_only(self) -> bool:
        return self.kind == "lookup"

    @property
    @override
    def needs_old_values(self) -> bool:
        # When a row's foreign key changes, the join deletes the row under the old foreign key.
        return self.kind == "foreign-key"

    @property
    @override
    def knows_old_values(self) -> bool:
        return self.kind != "lookup"

    operator_reason = "stores both sides and joins them in order"

    @property
    @override
    def waits_for_close(self) -> bool:
        # Unmatched records are sent when stream time is past the end of their window. A join with a
        # versioned table needs stream time to hold records back for its grace, and to forget old
        # versions.
        return self.kind == "stream-stream" or self.joins_versions

    # Many of the join's rows cause no result.
    lends_stream_time = False

    @property
    @override
    def header_stores(self) -> tuple[str | None, ...]:
        if self.kind == "stream-stream" and self.how != "inner":
            return (None,)
        return ()

    @override
    def _result_shape(self) -> Shape:
        # If one field's type is unknown, so is the type of the whole side.
        sides = {
            "left": type_of_value(self.left.result_shape),
            "right": type_of_value(self.right.result_shape),
        }
        if self.mapped_key is not None:
            sides[self.mapped_key] = "STRING"
        return Shape(sides)

    @property
    @override
    def title(self) -> str:
        right = name = known_name(self.right)
        if name != self.right.name:
            kind = "join" if isinstance(self.right, Join) else self.right.title
            right = f"{kind} of {name}"
        return f"{self.how} join with {right}"

    @override
    def _expressions(self) -> str:
        texts: list[str] = []
        if self.window is not None:
            texts.append(str(self.window))
        if self.on not in (None, MAPPED_KEY):
            texts.append(f"on {self.on}")
        if self.mapped_key:
            texts.append(f"key as {self.mapped_key}")
        if self.grace_ms is not None:
            texts.append(f"as of each record's time, grace {duration_text(self.grace_ms)}")
        return " ".join(texts)


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
    """The tables whose rows the processor reads, by the names under which it reads them."""
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
        return None if self.by is None else _own_key_of(self.parent)

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
        # Each output has a shape of its own: see `Branch`.
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


@dataclass(frozen=True, eq=False)
class StreamOperator(ChildNode):
    """Base of the steps that keep a state for each key of a stream, and pass on records with unchanged fields.

    A subclass needs no other code in `topology` than its method in `streams`. `action_of` in
    `plan/operator_actions.py` gives its operator.
    """

    by: str
    """The expression for the key whose records the operator takes in order."""

    is_stateful = True

    @property
    @override
    def inputs(self) -> tuple[Input, ...]:
        return (Input(parent=self.parent, key=self.by, foreign="key"),)

    @property
    @override
    def passes_on_keys_of(self) -> tuple[Node, ...]:
        return self.parents

    operator_reason = "needs each key's records in order"

    waits_for_close = True


@dataclass(frozen=True, eq=False)
class Deduplicate(StreamOperator):
    """Passes on the first record of each id within `within_ms`."""

    within_ms: int

    @override
    def _expressions(self) -> str:
        return f"{self.by} within {duration_text(self.within_ms)}"


@dataclass(frozen=True, eq=False)
class AskingOperator(StreamOperator):
    """Base of the steps that ask outside of the pipeline, and may record the answers with the state."""

    operator_reason = "asks outside of the pipeline"

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
    """Joins each record with the row of its key in a table of a database, as the fields `left` and `right`."""

    table: LookedUpTable
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
        return f"look-up in table {self.table.table} of {self.table.connection}"

    @override
    def _expressions(self) -> str:
        columns = ", ".join(self.table.columns)
        recorded = _recorded_as(self.answers, self.policy)
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
                # With a new time, the results have other times than the records of the topic.
                is_from_another_task=None if self.time is None else True,
            ),
        )

    @property
    def new_metadata(self) -> dict[str, str]:
        """The expressions of the new time and headers, in the order in which the operator reads them."""
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
class ChangedRows(StreamOperator):
    """Replaces each change of a stream with its new row; a deletion has a null value."""

    shape: Shape
    """The shape of the rows."""
    check_old: CheckOld | None

    @property
    @override
    def inputs(self) -> tuple[Input, ...]:
        # The operator passes the new row on.
        return (
            Input(
                parent=self.parent,
                key=self.by,
                expressions={"kind": "kind", "old": "old", "new": "new"},
                value="new",
                foreign="computed",
            ),
        )

    @override
    def foreign_sql(self, sqls: Mapping[str, str]) -> str:
        return struct_json(named_struct({"kind": sqls["kind"], "old": sqls["old"]}))

    operator_reason = "applies each key's changes in order"

    waits_for_close = False

    @override
    def _result_shape(self) -> Shape:
        return self.shape

    title = "apply changes"

    @override
    def _expressions(self) -> str:
        if self.check_old is None:
            return ""
        return f"old rows checked: {self.check_old}"


@dataclass(frozen=True, eq=False)
class Sink(ChildNode):
    """Writes every record, or every change of a table, to `topic`, or to a `table` of a database."""

    topic: str
    """The topic's name, or a table's name in counts, such as `warehouse:shop.totals`."""
    encode: Callable[..., bytes] | None = None
    encode_key: Callable[[str], bytes] | None = None
    partition: Callable[..., int] | None = None
    """Chooses a record's partition by its key and its value; None for the hash of the key."""
    emit: Emit = "every"
    table: OutputTable | None = None
    fields: dict[str, str] = field(default_factory=dict)
    """The fields of the value, for a table's columns."""
    scalar: bool = False
    """Whether the value is not an object."""
    cycle: bool = False
    """Whether the pipeline reads the topic, too."""

    @property
    @override
    def name(self) -> str:
        return self.topic

    @property
    @override
    def takes_latest(self) -> bool:
        # An earlier update must not replace a database's row, or a key's latest change in a batch.
        return self.emit == "latest"

    needs_last_change_only = True

    @property
    @override
    def title(self) -> str:
        if self.table is not None:
            return f"table {self.table.name} {self.table.place}"
        return f"topic {self.topic}"

    @override
    def _expressions(self) -> str:
        if self.table is not None:
            return f"a row per {self.table.key or 'record'}"
        texts: list[str] = []
        if self.emit == "latest":
            texts.append("the latest change of each key and batch")
        if self.cycle:
            texts.append("read again by a later batch")
        return ", ".join(texts)


@dataclass(frozen=True, eq=False)
class Late(Sink):
    """Writes the records that are late for every window to `topic`."""


def _recorded_as(answers: str, policy: CallPolicy) -> str:
    """Return the name under which a step's answers are recorded; empty if they are not recorded.

    With another name, the step gets new answers. So the name belongs to the step's definition: if
    it changes, the state must be computed again.
    """
    if policy.keep_ms is None:
        return ""
    return f", recorded as {answers}"


def _own_key_of(parent: Node) -> Foreign:
    """Return how a row's own key is written: with its window, if it has one."""
    return "key" if parent.key_window is None else "windowed_key"


def is_step_name(name: str) -> bool:
    """Return whether a name looks like a generated step name, such as `filter-3` or `filter-3.left`."""
    kind, _, rest = name.partition("-")
    number, _, _ = rest.partition(".")
    if not number.isdecimal():
        return False
    for value in globals().values():
        is_node_type = isinstance(value, type) and issubclass(value, Node)
        if is_node_type and value.__name__.lower() == kind:
            return True
    return False


def known_name(node: Node) -> str:
    """Return the author's name of the nearest topic or store from which a node's rows come."""
    return next(step.name for step in upstream(node) if step.has_known_name)


def table_of_rows(node: Node) -> Node:
    """Return the table whose rows a node maps or filters; the node itself if it does neither."""
    while node.computes_rows:
        (node,) = node.parents
    return node


def upstream(node: Node) -> tuple[Node, ...]:
    """Return the node and all nodes that feed it, each once, depth first."""
    visited: dict[Node, None] = {}
    waiting = [node]
    while waiting:
        current = waiting.pop()
        if current not in visited:
            visited[current] = None
            # The loop takes the list's last node next, so the parents are reversed to visit the
            # first parent first.
            waiting += reversed(current.parents)
    return tuple(visited)


def follows_state(node: Node) -> bool:
    """Return whether a stateful step has computed the records of a stream."""
    # A stream's source, which has no parents, has only a position in its topic.
    return any(step.is_table or (step.is_stateful and step.parents) for step in upstream(node))


def sources_of(node: Node) -> tuple[Source, ...]:
    """Return the sources that feed a node, without repeats."""
    return tuple([step for step in upstream(node) if isinstance(step, Source)])


def reads_pattern(node: Node) -> bool:
    """Return whether the records of a node come from a pattern of topics, and so from several topics."""
    return any(is_pattern(source.topic) for source in sources_of(node))
