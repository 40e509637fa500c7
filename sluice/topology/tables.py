"""Tables as an author handles them: the latest value of each key, and its changes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

from sluice.errors import TopologyError
from sluice.topology import checks, expressions, grouped, nodes
from sluice.topology.author import line
from sluice.topology.handles import Function, Handle, Shape, one_value
from sluice.topology.serdes import Value
from sluice.topology.windows import Duration, milliseconds

if TYPE_CHECKING:
    from sluice.topology.streams import Stream


class Table(Handle):
    """The latest value of each key; its changes can be filtered, joined, grouped and written to a topic."""

    metadata = expressions.CHANGE_METADATA

    def to(
        self,
        topic: str,
        *,
        value: Value | None = None,
        key: Function | None = None,
        delivery: nodes.Delivery = "exactly_once",
        on_error: nodes.OnError | None = None,
    ) -> None:
        """Write every change to `topic`: the key as text, the value as JSON; a deletion is a tombstone.

        The window of a windowed store's change is in the headers `window_start` and `window_end`, as epoch ms.
        `on_error` says what becomes of a record that cannot be encoded, or is larger than the topic takes.
        """
        self._sink(topic, value, key, delivery=delivery, on_error=on_error)

    def to_stream(self) -> Stream:
        """The changes as records, a deletion as a record whose value is null."""
        from sluice.topology.streams import Stream

        return Stream(self.pipeline, self.pipeline.add(nodes.ToStream, parent=self.node), self.shape)

    def filter(self, where: str, *, on_error: nodes.OnError | None = None) -> Table:
        """Keep the rows for which the condition is true; a row for which it is no longer true is deleted."""
        self._check(where, "filter", "condition")
        node = self.pipeline.add(nodes.Filter, parent=self.node, where=where, on_error=on_error)
        return Table(self.pipeline, node, self.shape)

    def filter_not(self, where: str, *, on_error: nodes.OnError | None = None) -> Table:
        """Keep the rows for which the condition is not true."""
        self._check(where, "filter_not", "condition")
        return self.filter(f"NOT coalesce({where}, false)", on_error=on_error)

    def map_values(self, *picked: str, on_error: nodes.OnError | None = None, **named: str) -> Table:
        """The value becomes the picked fields and the named expressions."""
        columns = self._columns(picked, named)
        node = self.pipeline.add(nodes.MapValues, parent=self.node, columns=columns, on_error=on_error)
        return Table(self.pipeline, node, self._mapped(columns))

    def map_value(self, value: str, *, on_error: nodes.OnError | None = None) -> Table:
        """The value becomes the expression's own, no object: later expressions call it `value`."""
        self._check(value, "map_value")
        node = self.pipeline.add(nodes.MapValue, parent=self.node, value=value, on_error=on_error)
        return Table(self.pipeline, node, one_value(self.fields.get(value, "")))

    def group_by(self, key: str) -> grouped.GroupedTable:
        """Group the rows by an expression, to be aggregated with each row counted where it is now."""
        self._check(key, "group_by", "key")
        if nodes.window_of(self.node) is not None:
            raise TopologyError(
                f"{self.pipeline.name}: group_by at {line()}: the table is windowed.",
                next_step="Take its changes with to_stream() and group these.",
            )
        return grouped.GroupedTable(self, key, None)

    def join(
        self,
        other: Table,
        *,
        how: nodes.How = "inner",
        on: str | None = None,
        on_error: nodes.OnError | None = None,
    ) -> Table:
        """Each row beside the other table's row of the same key: the value has the fields `left` and `right`.

        Both tables' changes count. With `on`, an expression over this table's value, the other's key is that: a
        foreign key. A global table is looked up when a row of this one changes.
        """
        where = self._where("join")
        checks.instance(where, other, Table, "A table is joined with a table; make one of a stream with to_table().")
        checks.choice(where, "how", how, nodes.How)
        self._together(where, other)
        for table in (self, other):
            if nodes.window_of(table.node) is not None:
                raise TopologyError(f"{where}: {table.node.name!r} is windowed; its key matches no table's.")
        if on is not None:
            self._check(on, "join")
        kind: Any = "table-table" if on is None else "foreign-key"
        if isinstance(other, GlobalTable):
            kind = "lookup"
        if how == "outer" and kind != "table-table":
            raise TopologyError(f"{where}: this join is inner or left.")
        if kind == "lookup" and on is not None:
            raise TopologyError(f"{where}: on= is for tables.", next_step="Read the topic with table() instead.")
        node = self.pipeline.add(
            nodes.Join, left=self.node, right=other.node, how=how, kind=kind, on=on, on_error=on_error
        )
        return Table(self.pipeline, node, Shape.joined(self.shape, other.shape))

    def left_join(self, other: Table, **more: Any) -> Table:
        """`join` with `how="left"`."""
        return self.join(other, how="left", **more)

    def outer_join(self, other: Table, **more: Any) -> Table:
        """`join` with `how="outer"`."""
        return self.join(other, how="outer", **more)

    def suppress_until_window_closes(self, **buffer: Any) -> Table:
        """Exactly one result for each window: its last, once no record can be added to it any more.

        `max_records` and `max_bytes` limit what is held back; when it is full the run is ended, since a result that
        comes early would not be the only one.
        """
        if nodes.window_of(self.node) is None:
            raise TopologyError(f"{self.pipeline.name}: suppress at {line()}: the table is not windowed.")
        return self._suppress("window_close", 0, **({"when_full": "shut_down"} | buffer))

    def suppress_until_time_limit(self, limit: Duration, **buffer: Any) -> Table:
        """A key's latest result at most once in `limit`, counted in stream time from its first update held back.

        `max_records` and `max_bytes` limit what is held back; when it is full the oldest comes out early, or with
        `when_full="shut_down"` the run is ended.
        """
        return self._suppress("time_limit", milliseconds(limit), **({"when_full": "emit_early"} | buffer))

    def _suppress(
        self,
        until: Literal["window_close", "time_limit"],
        limit_ms: int,
        *,
        max_records: int | None = None,
        max_bytes: int | None = None,
        when_full: Literal["emit_early", "shut_down"],
    ) -> Table:
        where = self._where("suppress")
        checks.choice(where, "when_full", when_full, Literal["emit_early", "shut_down"])
        checks.at_least(where, "max_records", max_records, 1)
        checks.at_least(where, "max_bytes", max_bytes, 1)
        checks.at_least(where, "limit", limit_ms, 0)
        if until == "window_close" and when_full != "shut_down":
            raise TopologyError(
                f"{where}: a window's only result cannot come early.",
                next_step='Leave when_full="shut_down", or take suppress_until_time_limit.',
            )
        node = self.pipeline.add(
            nodes.Suppress, parent=self.node, until=until, limit_ms=limit_ms, max_records=max_records,
            max_bytes=max_bytes, when_full=when_full,
        )  # fmt: skip
        return Table(self.pipeline, node, self.shape)


class GlobalTable(Table):
    """The latest value of each key of a topic, whole on every worker."""

    node: nodes.Source
