"""The properties of every node: its parents, how its operator takes their rows, and its texts."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, ClassVar, Literal, Self, TypeAlias

from typing_extensions import override

from sluice.operators.base import LEFT
from sluice.values.record_metadata import (
    CHANGE_METADATA,
    METADATA,
    OnError,
)
from sluice.values.shapes import Shape
from sluice.values.windows import (
    AnyWindow,
)

_NOT_IN_XML = "[^\t\n\r\u0020-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]"
"""Matches the characters that XML does not allow even when escaped."""

Repartitions: TypeAlias = Literal["never", "if_rekeyed", "always"]
"""When Kafka Streams would send the rows of an input through a repartition topic. `if_rekeyed`: if
a step since the last topic has changed their key."""

Foreign: TypeAlias = Literal["key", "windowed_key", "record", "computed"]
"""The content of the column `foreign` of an input's rows: the record's own key, this key with its
window, the record's value, or the value of the SQL from `Node.foreign_sql`."""


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
    """Whether, in Kafka Streams, one task makes the rows and another task makes the node's results.
    None means: only if the rows are repartitioned."""
    reads_store: bool = False
    """Whether the operator reads the rows from the store of a table."""

    def is_repartitioned(self, *, rekeyed: bool) -> bool:
        """Return whether Kafka Streams would send the rows through a repartition topic.

        `rekeyed` says whether a step since the last topic has changed their key.
        """
        return self.repartitions == "always" or (rekeyed and self.repartitions == "if_rekeyed")


@dataclass(frozen=True, eq=False)
class Node:
    """One step. `number` is the node's index in the pipeline; `at` is the author's `file:line`."""

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
        """The parents whose rows keep their own keys as keys of the operator's results.

        Empty if the operator keeps its state by the key of its results, as tables do. In Kafka
        Streams, rows with a new key reach such an operator through a repartition topic.
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
        """The window definition of the stored rows' keys; None without windows."""
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
        """Whether the node computes each row of its table from one input row, without a state."""
        return False

    @property
    def history(self) -> int | None:
        """How far back the node's table has versions, in ms; None if it is not versioned."""
        return None

    @property
    def takes_latest(self) -> bool:
        """Whether the node omits updates of a versioned table that precede the key's latest.

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
        """Whether a table's changes contain replaced values even if no later step asks for them.

        In Kafka Streams, the tables of topics and of foreign-key joins contain them only if the
        author names a materialized store.
        """
        return True

    @property
    def follows_filter(self) -> bool:
        """Whether the node filters its records or rows, or maps the results of such a filter."""
        return False

    # -- The operator

    @property
    def operator_reason(self) -> str:
        """The reason why the node needs each key's records in order; empty if it does not.

        For an aggregate, the reason also depends on other steps: see `plan/operator_nodes.py`.
        """
        return ""

    @property
    def is_needed_for_old_values_only(self) -> bool:
        """Whether the node becomes an operator only because a later step needs old values."""
        return False

    @property
    def waits_for_close(self) -> bool:
        """Whether the operator needs stream time, such as to send results or forget state."""
        return False

    @property
    def may_be_chained(self) -> bool:
        """Whether the operator may get the previous operator's results and stream time directly."""
        return False

    @property
    def lends_stream_time(self) -> bool:
        """Whether an operator chained to this node's operator may use this node's stream time."""
        return True

    @property
    def store_name(self) -> str | None:
        """The name of the store with the node's table."""
        return None

    @property
    def store_names(self) -> tuple[str, ...]:
        """The names of the node's stores, including a processor's stores that cannot be queried."""
        return () if self.store_name is None else (self.store_name,)

    @property
    def late_sink(self) -> Node | None:
        """The sink for records that are late for every window."""
        return None

    @property
    def header_stores(self) -> tuple[str | None, ...]:
        """The stores in which the node's operator may keep headers; None: a state without a name.

        Stores of a processor that can be queried are left out: they have their own definitions.
        """
        return ()

    # -- Values and functions

    @cached_property
    def result_shape(self) -> Shape:
        """The shape of the values after this node."""
        # Every step needs the types of all steps before it. Without this cache, planning n steps
        # would take n² computations.
        return self._result_shape()

    @property
    def result_types(self) -> dict[str, str]:
        """The fields after this node, with their types."""
        return self.result_shape.fields

    def _result_shape(self) -> Shape:
        return Shape({})

    @property
    def is_peek(self) -> bool:
        """Whether the node only calls a function, and does not use the function's result."""
        return False

    @property
    def author_functions(self) -> tuple[Any, ...]:
        """The author's functions on which the results depend; None for a function not set."""
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
        """The declared types on which the node's state depends in addition to its expressions."""
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
    """Base of the stateless steps that turn a record into one or none, and a table into a table."""

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
class StreamOperator(ChildNode):
    """Base of the steps that keep a state for each key of a stream, and pass fields on unchanged.

    A subclass needs no other code in `topology` than its method in `streams`. `action_of` in
    `plan/operator_actions.py` gives its operator.
    """

    by: str
    """The expression for the key. The operator takes each key's records in order."""

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


def own_key_of(parent: Node) -> Foreign:
    """Return how a row's own key is written: with its window if the key has a window."""
    return "key" if parent.key_window is None else "windowed_key"
