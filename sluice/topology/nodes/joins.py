"""Joins of streams and tables."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Literal, Self

from typing_extensions import override

from sluice.operators.base import AHEAD, RIGHT
from sluice.topology.nodes.ancestors import known_name, table_of_rows, upstream
from sluice.topology.nodes.node import Input, Node, Repartitions
from sluice.topology.value_types import (
    type_of_value,
)
from sluice.values.phrases import duration_text
from sluice.values.record_metadata import (
    MAPPED_KEY,
    How,
)
from sluice.values.shapes import Shape
from sluice.values.windows import (
    AnyWindow,
    JoinWindow,
)


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
    """How long a stream's record waits for late rows of a versioned table."""
    mapped_key: str | None = None
    """The name of the result's third field, with the key that was looked up; None if it has
    none."""

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
        # In Kafka Streams, every task has a whole copy of a global table, so a join with the table
        # needs no repartition topic.
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
            # In Kafka Streams, the left table's task looks rows up in the task of the right table.
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
        """Return whether the side `other` depends on the table that the side `own` maps or filters.

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

    # Many rows advance the join's stream time without a result, so later operators cannot use this
    # time.
    lends_stream_time = False

    @property
    @override
    def header_stores(self) -> tuple[str | None, ...]:
        if self.kind == "stream-stream" and self.how != "inner":
            return (None,)
        return ()

    @override
    def _result_shape(self) -> Shape:
        # If the type of one field is unknown, the type of the whole side is unknown.
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
