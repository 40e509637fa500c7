"""Tables: the handles whose records are changes of rows."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, overload

from typing_extensions import override

from sluice.errors import TopologyError
from sluice.topology import arguments, nodes
from sluice.topology.author_functions import (
    Function,
)
from sluice.topology.durations import Duration, milliseconds
from sluice.topology.handles import Handle, Key, Partitioner, R, V, joined_shape
from sluice.topology.serdes import Contract, Serde
from sluice.topology.structs import Column
from sluice.topology.windowed_inputs import (
    require_plain_keys,
    require_same_windows,
)
from sluice.values.record_metadata import (
    CHANGE_METADATA,
    Emit,
    How,
    OnError,
    Until,
)
from sluice.values.shapes import Shape
from sluice.values.sink_tables import OutputTable
from sluice.values.windowed_keys import Windowed

if TYPE_CHECKING:
    from sluice.topology.groups import GroupedTable
    from sluice.topology.streams import Stream


class Table(Handle[V]):
    """The latest value of each key.

    The changes of a table can be filtered, joined, grouped and written to a topic.
    """

    _has_rows = True

    @property
    @override
    def metadata(self) -> dict[str, str]:
        return CHANGE_METADATA

    def to(
        self,
        topic: str | OutputTable,
        *,
        value: type[str | bytes] | Serde[Any] | None = None,
        key: Callable[[str], bytes] | Callable[[Windowed[str]], bytes] | None = None,
        partition: Partitioner | None = None,
        emit: Emit = "every",
        cycle: bool = False,
        on_error: OnError | None = None,
    ) -> None:
        """Write every change to a topic, the key as text and the value as JSON.

        A deletion is a tombstone.

        `topic` is a topic's name, or a `PostgresTable` or `DeltaTable` with a `key`, which gets the
        same rows as this table.

        `emit="latest"` writes only the latest change of each key (and window) in a batch, as Kafka
        Streams' record cache does. Counts and sums whose changes go only to stores and topics are
        always written as if `emit="latest"` was set. A windowed table's records have the headers
        `window_start` and `window_end`, in epoch ms. `cycle=True` allows a topic that the pipeline
        itself reads: a later batch reads the written records. `on_error` applies to records that
        cannot be encoded, that the topic does not accept, or that do not fit the table.
        """
        self._sink(
            topic,
            value,
            key,
            partition,
            emit=emit,
            cycle=cycle,
            on_error=on_error,
        )

    def to_stream(self) -> Stream[V]:
        """Turn the table's changes into records; a deletion is a record with a null value.

        The records of a windowed table have keys that include the window: SQL reads the window's
        bounds as `_window_start` and `_window_end`, and a Python function that takes the key gets a
        `Windowed`. The steps `select_key`, `map` and `group_by` give records a key without a
        window.
        """
        return self._stream(
            self.pipeline.add(nodes.ToStream, parent=self.node), self.shape, self.contract
        )

    def changes(self) -> Stream[dict[str, Any]]:
        """Turn the table's changes into records with the fields `kind`, `old` and `new`.

        `kind` is insert, update or delete. `old` is the row's value before the change and null for
        an insert; `new` is its value after the change and null for a deletion. In an update, `old`
        and `new` can be equal.
        """
        if isinstance(self, GlobalTable):
            raise TopologyError(
                f"{self._where('changes')}: a global table has no changes, only its newest rows.",
                next_step="Read the topic with table() instead.",
            )
        node = self.pipeline.add(nodes.Changes, parent=self.node)
        kind = self.shape.kind
        return self._stream(node, Shape({"kind": "STRING", "old": kind, "new": kind}))

    @overload
    def filter(
        self,
        where: str | Callable[[V], object],
        *,
        on_error: OnError | None = None,
    ) -> Table[V]: ...
    @overload
    def filter(
        self,
        where: Callable[[Key, V], object],
        *,
        on_error: OnError | None = None,
    ) -> Table[V]: ...
    def filter(self, where: str | Function, *, on_error: OnError | None = None) -> Table[V]:
        """Keep the rows for which an SQL condition is true, or a Python function returns true.

        A row is deleted when the condition becomes false for it.

        A function is called for the new row of each change. If a later step needs the old row, the
        function is called for the old row, too. Therefore, the function must always return the same
        result for the same row.
        """
        if not isinstance(where, str):
            return self._of_stream(self._as_stream().filter(where, on_error=on_error))
        self._require_expression(where, "filter", "condition")
        node = self.pipeline.add(nodes.Filter, parent=self.node, where=where, on_error=on_error)
        return Table(self.pipeline, node, self.shape, self.contract)

    @overload
    def filter_not(
        self,
        where: str | Callable[[V], object],
        *,
        on_error: OnError | None = None,
    ) -> Table[V]: ...
    @overload
    def filter_not(
        self,
        where: Callable[[Key, V], object],
        *,
        on_error: OnError | None = None,
    ) -> Table[V]: ...
    def filter_not(self, where: str | Function, *, on_error: OnError | None = None) -> Table[V]:
        """Keep rows for which an SQL condition is not true, or a function does not return true."""
        if not isinstance(where, str):
            return self._of_stream(self._as_stream().filter_not(where, on_error=on_error))
        self._require_expression(where, "filter_not", "condition")
        return self.filter(f"NOT coalesce({where}, FALSE)", on_error=on_error)

    def select(
        self,
        *picked: str | Mapping[str, Column],
        on_error: OnError | None = None,
        **named: Column,
    ) -> Table[dict[str, Any]]:
        """Build a value from picked fields and columns `name="SQL"`, like `Stream.select`."""
        columns, types = self._columns("select", picked, named)
        self._refuse_reserved_names("select", columns)
        node = self.pipeline.add(nodes.Select, parent=self.node, columns=columns, on_error=on_error)
        return Table(self.pipeline, node, Shape(types))

    @overload
    def map_values(
        self,
        value: str | Callable[[V], Any],
        *,
        returns: None = None,
        on_error: OnError | None = None,
    ) -> Table[Any]: ...
    @overload
    def map_values(
        self,
        value: Callable[[Key, V], Any],
        *,
        returns: None = None,
        on_error: OnError | None = None,
    ) -> Table[Any]: ...
    @overload
    def map_values(
        self,
        value: Callable[[V], R | None],
        *,
        returns: type[R],
        on_error: OnError | None = None,
    ) -> Table[R]: ...
    @overload
    def map_values(
        self,
        value: Callable[[Key, V], R | None],
        *,
        returns: type[R],
        on_error: OnError | None = None,
    ) -> Table[R]: ...
    def map_values(
        self,
        value: str | Function,
        *,
        returns: Contract | None = None,
        on_error: OnError | None = None,
    ) -> Table[Any]:
        """Replace the value with the result of an SQL expression or a Python function.

        If the value is not an object, later SQL reads it as `value`. `returns` is the type of a
        Python function's result. A function that returns None deletes the row. The function is
        called for the new row of each change. If a later step needs the old row, the function is
        called for the old row, too. Therefore, the function must always return the same result for
        the same row.
        """
        if not isinstance(value, str):
            stream: Any = self._as_stream()
            return self._of_stream(stream.map_values(value, returns=returns, on_error=on_error))
        if returns is not None:
            raise TopologyError(
                f"{self._where('map_values')}: returns= is only allowed with a Python function.",
                next_step="Leave returns= out. An expression has a type of its own.",
            )
        self._require_expression(value, "map_values")
        node = self.pipeline.add(nodes.MapValues, parent=self.node, value=value, on_error=on_error)
        return Table(self.pipeline, node, node.result_shape)

    def _as_stream(self) -> Stream[V]:
        """Return a stream after the same node.

        The stream's methods add the nodes for Python functions, and a table needs the same nodes.
        """
        return self._stream(self.node, self.shape, self.contract)

    def _stream(
        self, node: nodes.Node, shape: Shape, contract: Contract | None = None
    ) -> Stream[Any]:
        # Imported only here, because the module `streams` imports this module.
        from sluice.topology.streams import Stream

        return Stream(self.pipeline, node, shape, contract)

    def _of_stream(self, stream: Stream[R]) -> Table[R]:
        return Table(self.pipeline, stream.node, stream.shape, stream.contract)

    def group_by(self, key: str | Sequence[str]) -> GroupedTable[V]:
        """Group the rows by an SQL expression.

        When a row's group key changes, the row moves to the group of the new key.

        A list of fields, such as `["shop", "item"]`, means a struct of these fields. The rows of a
        windowed table can be grouped by `_window_start`, for example to find the best key of each
        window.
        """
        key = self._key_expression("group_by", key)
        self._require_expression(key, "group_by", "key")
        # Imported only here, because the module `groups` imports this module.
        from sluice.topology.groups import GroupedTable

        return GroupedTable(self, key, None)

    def join(
        self,
        other: Table[Any],
        *,
        how: How = "inner",
        on: str | Sequence[str] | None = None,
        on_error: OnError | None = None,
    ) -> Table[dict[str, Any]]:
        """Join rows of the same key; the value has the fields `left` and `right`.

        A change of either table updates the result. With `on`, the join is a foreign-key join: `on`
        is an SQL expression over this table's value that gives the key of the other table's row.
        Changes to a global table alone produce no output.
        """
        where = self._where("join")
        arguments.require_instance(where, other, Table, "a table, such as stream.to_table() makes")
        arguments.require_choice(where, "how", how, How)
        self._require_same_pipeline(where, other)
        if on is None and not isinstance(other, GlobalTable):
            require_same_windows(where, [self.node, other.node])
        else:
            require_plain_keys(where, [self.node, other.node])
        if on is not None:
            on = self._key_expression("join", on)
            self._require_expression(on, "join", "key or null")
        kind = "table-table" if on is None else "foreign-key"
        if isinstance(other, GlobalTable):
            kind = "lookup"
        # For tables, Kafka Streams has outer joins only by the key of both tables.
        if how == "outer" and kind != "table-table":
            raise TopologyError(
                f"{where}: how='outer' needs two tables joined by key.",
                next_step="Write how='inner' or how='left'.",
            )
        if kind == "lookup" and on is not None:
            raise TopologyError(
                f"{where}: on= does not work with a global table.",
                next_step="Read the topic with table() instead.",
            )
        node: nodes.Node = self.pipeline.add(
            nodes.Join,
            left=self.node,
            right=other.node,
            how=how,
            kind=kind,
            on=on,
            on_error=on_error,
        )
        # The join stores a row's old and new value under different foreign keys,
        # so it does not know its old results. A table after the join remembers them.
        if kind == "foreign-key":
            node = self.pipeline.add(nodes.ToTable, parent=node, store=None, on_error=on_error)
        return Table(self.pipeline, node, joined_shape(self, other))

    def left_join(self, other: Table[Any], **options: Any) -> Table[dict[str, Any]]:
        """Do the same as `join` with `how="left"`: if there is no match, `right` is null."""
        return self.join(other, how="left", **options)

    def outer_join(self, other: Table[Any], **options: Any) -> Table[dict[str, Any]]:
        """Do the same as `join` with `how="outer"`: without a match, the other side is null."""
        return self.join(other, how="outer", **options)

    def suppress_until_window_closes(
        self,
        *,
        max_records: int | None = None,
        max_bytes: int | None = None,
    ) -> Table[V]:
        """Emit only the final result of each window, when the window has closed.

        The run ends with an error if the number or the size of the results that wait exceeds
        `max_records` or `max_bytes`.
        """
        if self.node.key_window is None:
            raise TopologyError(
                f"{self._where('suppress')}: the table is not windowed.",
                next_step="Aggregate with windowed_by(...) and a time window, "
                "or use suppress_until_time_limit. "
                'For a number of records: windowed_by(every_records(100), emit="window_close").',
            )
        return self._suppress("window_close", 0, max_records, max_bytes, "shut_down")

    def suppress_until_time_limit(
        self,
        limit: Duration,
        *,
        max_records: int | None = None,
        max_bytes: int | None = None,
        when_full: Literal["emit_early", "shut_down"] = "emit_early",
    ) -> Table[V]:
        """Hold back each key's updates for a time, and emit only the latest update.

        The latest update is emitted when stream time is `limit` past the event time of the first
        update that was held back. If the number or the size of the results that wait exceeds
        `max_records` or `max_bytes`, the oldest of these results is emitted early. With
        `when_full="shut_down"`, the run ends with an error instead.
        """
        return self._suppress("time_limit", milliseconds(limit), max_records, max_bytes, when_full)

    def _suppress(
        self,
        until: Until,
        limit_ms: int,
        max_records: int | None,
        max_bytes: int | None,
        when_full: Literal["emit_early", "shut_down"],
        early_ms: int | None = None,
    ) -> Table[V]:
        where = self._where("suppress")
        arguments.require_choice(where, "when_full", when_full, Literal["emit_early", "shut_down"])
        arguments.require_at_least(where, "max_records", max_records, 1)
        arguments.require_at_least(where, "max_bytes", max_bytes, 1)
        arguments.require_at_least(where, "limit", limit_ms, 0)
        node = self.pipeline.add(
            nodes.Suppress,
            parent=self.node,
            until=until,
            limit_ms=limit_ms,
            max_records=max_records,
            max_bytes=max_bytes,
            when_full=when_full,
            early_ms=early_ms,
        )
        return Table(self.pipeline, node, self.shape, self.contract)


class GlobalTable(Table[V]):
    """The latest value of each key of a topic. Every worker has all rows."""

    node: nodes.Source
