"""Steps that make tables of streams, and streams of tables."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from typing_extensions import override

from sluice.topology.nodes.node import ChildNode, Input, Node, StreamOperator
from sluice.topology.value_types import (
    type_of_value,
)
from sluice.values.change_values import CheckOld
from sluice.values.expiry import Expiry
from sluice.values.phrases import duration_text
from sluice.values.shapes import Shape
from sluice.values.sql_text import named_struct, struct_json


@dataclass(frozen=True, eq=False)
class ToStream(ChildNode):
    """Turns a table's changes into records; a deletion is a record with a null value."""

    @property
    @override
    def needs_old_values(self) -> bool:
        # The operator leaves out deletions of rows that have never passed the filter.
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
    """Keeps a stream's latest value per key as a table; a null value deletes the key.

    A node without a store follows a foreign-key join. The node remembers the join's results, so
    that later steps get the old values of the results. The join itself does not know its old
    results, because it stores a row's old and new value under different foreign keys.
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
        # With an expiry, the results of a row can also delete the expired rows of other keys.
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
