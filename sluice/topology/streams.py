"""Streams: the handles whose records are events."""

from __future__ import annotations

import unicodedata
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from datetime import timedelta
from types import EllipsisType
from typing import Any, Generic, Literal, overload

from sluice.errors import TopologyError
from sluice.operators.processor import Context, ContextBase, Processor, ValueContext, ValueProcessor
from sluice.topology import arguments, expressions, nodes
from sluice.topology.author_functions import (
    Function,
    declared_type,
    require_callable,
    require_value_type,
    with_key,
)
from sluice.topology.call_policies import (
    answers_name,
    call_policy,
    fallback_json,
    looked_up_table,
    require_whole,
)
from sluice.topology.durations import Duration, milliseconds, milliseconds_if_given
from sluice.topology.expiries import require_no_versions
from sluice.topology.graph import Graph
from sluice.topology.groups import GroupedStream
from sluice.topology.handles import Handle, Key, Partitioner, R, V, joined_shape
from sluice.topology.serdes import Contract, Serde, shape_of
from sluice.topology.shared_stores import StoreOf
from sluice.topology.source_line import source_line
from sluice.topology.structs import Column
from sluice.topology.tables import GlobalTable, Table
from sluice.topology.value_types import shape_of_elements
from sluice.topology.versioned_tables import grace_in_ms, history_in_ms
from sluice.topology.windowed_inputs import (
    require_plain_keys,
    require_same_windows,
)
from sluice.values import contracts
from sluice.values.call_parameters import FunctionBatch, LookedUpTable, SharedStore
from sluice.values.change_values import Change, CheckOld, row_type
from sluice.values.dead_letter_headers import PREFIX
from sluice.values.expiry import ExpiryClock
from sluice.values.function_wrappers import Chooses, Not, NoTopic, Print
from sluice.values.record_metadata import (
    MAPPED_KEY,
    How,
    OnBreach,
    OnError,
    OnMissing,
)
from sluice.values.shapes import Shape
from sluice.values.sink_tables import OutputTable
from sluice.values.sql_text import is_null, literal
from sluice.values.windowed_keys import Windowed, of_windowed_key
from sluice.values.windows import JoinWindow


class Stream(Handle[V]):
    """Records in sequence, with values of type V."""

    def to(
        self,
        topic: str | OutputTable,
        *,
        value: type[str | bytes] | Serde[Any] | None = None,
        key: Callable[[str], bytes] | Callable[[Windowed[str]], bytes] | None = None,
        partition: Partitioner | None = None,
        cycle: bool = False,
        on_error: OnError | None = None,
    ) -> None:
        """Write every record to a topic, or to a table outside Kafka.

        A topic gets the key as text and the value as JSON. `topic` is a topic's name, a
        `PostgresTable` or a `DeltaTable`. `value=str` writes a value that is a str as plain text; a
        Serde encodes values with its `encode`. `key` is a function that encodes the key.
        `partition` is a function from the value, from key and value, or from key, value and
        headers, to a number. The record's partition is this number modulo the topic's number of
        partitions. By default, the number is Kafka's hash of the key, as in Java. `cycle=True`
        allows a topic that the pipeline itself reads: a later batch reads the written records.
        `on_error` applies to records that cannot be encoded, that the topic does not accept, or
        that do not fit the table.
        """
        self._sink(topic, value, key, partition, cycle=cycle, on_error=on_error)

    def through(
        self,
        topic: str,
        *,
        value: type[str | bytes] | Serde[Any] | None = None,
        key: Callable[[str], bytes] | Callable[[Windowed[str]], bytes] | None = None,
        partition: Partitioner | None = None,
        on_error: OnError | None = None,
    ) -> Stream[V]:
        """Write every record to `topic`, as `to` does, and return the stream of these records.

        Unlike in Kafka Streams, the pipeline does not read the records back from the topic, because
        it does not need the topic to divide records by key. Records that other programs write to
        the topic are not in the stream.
        """
        self.to(topic, value=value, key=key, partition=partition, on_error=on_error)
        return self

    def route(
        self,
        topic: str | Callable[[V], str] | Callable[[Key, V], str],
        topics: Sequence[str],
        *,
        value: type[str | bytes] | Serde[Any] | None = None,
        key: Callable[[str], bytes] | None = None,
        partition: Partitioner | None = None,
        on_error: OnError | None = None,
    ) -> None:
        """Write each record to one of the topics in `topics`.

        `topic` gives the topic's name for each record.

        `topic` is an SQL expression or a Python function. The function is called several times for
        each record, so it must always give the same name for the same record. If `topic` gives no
        name for a record, or a name that is not in `topics`, `on_error` decides what happens to the
        record; by default, it becomes a dead letter. The other options are the same as in `to`.
        """
        where = self._where("route")
        if isinstance(topics, str) or not topics:
            raise TopologyError(
                f"{where}: topics={topics!r} is not a list of topics.",
                next_step='List the topics, such as ["dear", "cheap"].',
            )
        options: Any = {
            "value": value,
            "key": key,
            "partition": partition,
            "on_error": on_error,
        }
        if isinstance(topic, str):
            self._require_expression(topic, "route")
            kind = expressions.type_of(topic, self._types())
            if kind not in ("", "STRING"):
                raise TopologyError(
                    f"{where}: {topic!r} is {kind}, not the name of a topic.",
                    next_step="Use an expression whose value is one of the names in topics.",
                )
            for name in topics:
                self.filter(f"({topic}) = {literal(name)}", on_error=on_error).to(name, **options)
            names = ", ".join(map(literal, topics))
            others = self.filter_not(f"({topic}) IN ({names})", on_error=on_error)
        else:
            choose = self._function("route", topic)
            for name in topics:
                is_chosen = Chooses(choose, (name,))
                self._add_function(is_chosen, "condition", on_error=on_error).to(name, **options)
            is_unknown = Not(Chooses(choose, tuple(topics)))
            others = self._add_function(is_unknown, "condition", on_error=on_error)
        others._add_function(NoTopic(tuple(topics)), "nothing", on_error=on_error)

    @overload
    def filter(
        self,
        where: str | Callable[[V], object],
        *,
        on_error: OnError | None = None,
    ) -> Stream[V]: ...
    @overload
    def filter(
        self,
        where: Callable[[Key, V], object],
        *,
        on_error: OnError | None = None,
    ) -> Stream[V]: ...
    def filter(self, where: str | Function, *, on_error: OnError | None = None) -> Stream[V]:
        """Keep the records for which an SQL condition is true, or a function returns true."""
        if not isinstance(where, str):
            return self._apply("filter", where, "condition", on_error=on_error)
        self._require_expression(where, "filter", "condition")
        return self._next(
            self.pipeline.add(nodes.Filter, parent=self.node, where=where, on_error=on_error)
        )

    @overload
    def filter_not(
        self,
        where: str | Callable[[V], object],
        *,
        on_error: OnError | None = None,
    ) -> Stream[V]: ...
    @overload
    def filter_not(
        self,
        where: Callable[[Key, V], object],
        *,
        on_error: OnError | None = None,
    ) -> Stream[V]: ...
    def filter_not(self, where: str | Function, *, on_error: OnError | None = None) -> Stream[V]:
        """Drop the records for which an SQL condition is true, or a function returns true."""
        if not isinstance(where, str):
            negated = Not(self._function("filter_not", where))
            return self._add_function(negated, "condition", on_error=on_error)
        self._require_expression(where, "filter_not", "condition")
        return self.filter(f"NOT coalesce({where}, FALSE)", on_error=on_error)

    def select(
        self,
        *picked: str | Mapping[str, Column],
        _headers: Mapping[str, str] | None = None,
        on_error: OnError | None = None,
        **named: Column,
    ) -> Stream[dict[str, Any]]:
        """Build a new value from the picked fields and from columns `name="SQL expression"`.

        A mapping in place of an expression makes a nested object: `shop={"id": "store_id", "city":
        "address.city"}`. All columns can also be passed as one mapping from name to expression. A
        column `_key` becomes the record's key, and a column `_timestamp` its time, as with
        `with_time`. `_headers={"trace": "trace_id"}` sets headers, as `with_headers` does.
        """
        columns, types = self._columns("select", picked, named)
        key, time = columns.pop("_key", None), columns.pop("_timestamp", None)
        if key is not None:
            self._require_expression(key, "select", "key or null")
        headers = self._header_texts("select", _headers or {})
        self._refuse_reserved_names("select", columns)
        # The new key, time and headers are first computed as fields of the new value, because their
        # expressions read the old record, as the expressions of the columns do.
        hidden: dict[str, str] = {}

        def hide(text: str, name: str) -> str:
            """Add a field with a name that no column of the author has.

            Returns SQL that reads the field.
            """
            while name in columns:
                name += "_"
            hidden[name] = text
            return expressions.reference(name)

        new_key = None if key is None else hide(key, "new_key")
        new_time = None if time is None else hide(time, "new_time")
        new_headers: dict[str, str] = {}
        for number, (name, text) in enumerate(headers.items()):
            new_headers[name] = text if is_null(text) else hide(text, f"new_header_{number}")
        if not (hidden or new_headers):
            return self._select(columns, types, on_error)
        stream = self._select({**columns, **hidden}, types | dict.fromkeys(hidden, ""), on_error)
        if new_time or new_headers:
            stream = stream._set_metadata(new_time, new_headers, on_error)
        if new_key is not None:
            stream = stream.select_key(new_key, on_error=on_error)
        without_hidden = {column: expressions.reference(column) for column in columns}
        return stream._select(without_hidden, types, on_error)

    def with_time(self, time: str, *, on_error: OnError | None = None) -> Stream[V]:
        """Give each record the time of an SQL expression of type TIMESTAMP, to the millisecond.

        Windows, joins and stream time after this step use the new time, and output records have it
        as their timestamp. If the time is null or before 1970, `on_error` decides what happens to
        the record. As in Kafka Streams, a time in the future is valid, so a single wrong time can
        close all windows. After this step, as after a processor, expressions cannot read `_headers`
        and `_topic`.
        """
        self._require_expression(time, "with_time")
        return self._set_metadata(time, {}, on_error)

    def with_headers(
        self, headers: Mapping[str, str], *, on_error: OnError | None = None
    ) -> Stream[V]:
        """Set headers of each record.

        `headers` maps names to SQL expressions of type STRING or BINARY.

        For example, `{"trace": "trace_id"}` sets the header `trace` to the value's field
        `trace_id`. A new header replaces all earlier headers of the same name. If the expression is
        null, the earlier headers of this name are removed. Headers with other names stay. After
        this step, as after a processor, expressions cannot read `_headers` and `_topic`.
        """
        texts = self._header_texts("with_headers", headers)
        if not texts:
            raise TopologyError(
                f"{self._where('with_headers')} needs at least one header.",
                next_step='Write for example with_headers({"trace": "id"}).',
            )
        return self._set_metadata(None, texts, on_error)

    def _header_texts(self, step: str, headers: Mapping[str, str]) -> dict[str, str]:
        """Return the expressions of headers, by name.

        Raises TopologyError for a name that a header cannot have.
        """
        where = self._where(step)
        arguments.require_instance(where, headers, Mapping, "headers as {name: SQL expression}")
        for name, text in headers.items():
            arguments.require_instance(where, name, str, "the name of a header (str)")
            if name.startswith(PREFIX) or any(unicodedata.category(sign) == "Cs" for sign in name):
                raise TopologyError(
                    f"{where}: a header cannot have the name {name!r}.",
                    next_step=f"Use Unicode text that does not begin with {PREFIX!r}, "
                    "as Sluice's own headers do.",
                )
            self._require_expression(text, step)
        return dict(headers)

    def _set_metadata(
        self,
        time: str | None,
        headers: Mapping[str, str],
        on_error: OnError | None,
    ) -> Stream[V]:
        node = self.pipeline.add(
            nodes.SetMetadata,
            parent=self.node,
            by="_key",
            time=time,
            headers=headers,
            on_error=on_error,
        )
        return self._next(node)

    def _select(
        self,
        columns: dict[str, str],
        types: Mapping[str, str],
        on_error: OnError | None,
    ) -> Stream[dict[str, Any]]:
        node = self.pipeline.add(nodes.Select, parent=self.node, columns=columns, on_error=on_error)
        return self._next(node, Shape({name: types[name] for name in columns}))

    @overload
    def map_values(
        self,
        function: str | Callable[[V], object],
        *,
        returns: None = None,
        on_error: OnError | None = None,
    ) -> Stream[Any]: ...
    @overload
    def map_values(
        self,
        function: Callable[[Key, V], object],
        *,
        returns: None = None,
        on_error: OnError | None = None,
    ) -> Stream[Any]: ...
    @overload
    def map_values(
        self,
        function: Callable[[V], R | None],
        *,
        returns: type[R],
        on_error: OnError | None = None,
    ) -> Stream[R]: ...
    @overload
    def map_values(
        self,
        function: Callable[[Key, V], R | None],
        *,
        returns: type[R],
        on_error: OnError | None = None,
    ) -> Stream[R]: ...
    def map_values(
        self,
        function: str | Function,
        *,
        returns: Contract | None = None,
        on_error: OnError | None = None,
    ) -> Stream[Any]:
        """Replace the value with a Python function's or SQL expression's result; keep the key.

        `returns` is the type of the function's result. Without `returns`, later functions receive
        plain JSON data, and later SQL cannot read fields. If an expression makes an object, such as
        `lines[0]`, later SQL reads its fields. A value that is not an object is named `value` in
        SQL.
        """
        if not isinstance(function, str):
            shape = self._result_shape("map_values", returns)
            return self._apply("map_values", function, "value", shape, returns, on_error=on_error)
        self._require_no_returns("map_values", returns)
        self._require_expression(function, "map_values")
        node = self.pipeline.add(
            nodes.MapValues,
            parent=self.node,
            value=function,
            on_error=on_error,
        )
        return self._next(node, node.result_shape)

    @overload
    def map_batch(
        self,
        function: Callable[[list[V]], Sequence[R | None]],
        *,
        returns: type[R],
        size: int = 500,
        takes: Literal["list"] = "list",
        on_error: OnError | None = None,
    ) -> Stream[R]: ...
    @overload
    def map_batch(
        self,
        function: Callable[[Any], Any],
        *,
        returns: type[R],
        size: int = 500,
        takes: Literal["table"],
        on_error: OnError | None = None,
    ) -> Stream[R]: ...
    def map_batch(
        self,
        function: Function,
        *,
        returns: type[R],
        size: int = 500,
        takes: Literal["list", "table"] = "list",
        on_error: OnError | None = None,
    ) -> Stream[R]:
        """Replace up to `size` values at once with the results of a function; keep the keys.

        `function` takes a list of values and returns a list with one result per value, in the order
        of the values. With `takes="table"`, `function` takes a `pyarrow.RecordBatch` with a column
        for each field of the values, and may return a list or a table. `returns` is the type of one
        result. If the number of results is not the number of values, the run ends. A null value
        stays null.

        Sluice decides which values a call gets, so the result for a value must not depend on the
        call's other values. If the function raises an error, it is called again with smaller and
        smaller parts of the values, until the values that fail are found. Only the records of these
        values are rejected.
        """
        where = self._where("map_batch")
        require_callable(where, function, "values")
        arguments.require_choice(where, "takes", takes, Literal["list", "table"])
        require_whole(where, "size", size)
        shape = self._result_shape("map_batch", returns)
        table_type = self._table_type(where) if takes == "table" else None
        node = self.pipeline.add(
            nodes.Apply,
            parent=self.node,
            function=function,
            gives="value",
            takes=self.contract,
            returns=returns,
            shape=shape,
            batch=FunctionBatch(size, table_type),
            on_error=on_error,
        )
        return self._next(node, shape, returns)

    @overload
    def call(
        self,
        function: Callable[[V], Awaitable[R | None]] | Callable[[V], R | None],
        *,
        returns: type[R],
        concurrency: int = 10,
        timeout: Duration = "30 seconds",
        retries: int = 3,
        backoff: Duration = "1 second",
        otherwise: R | EllipsisType | None = ...,
        answers: str | None = None,
        keep: Duration | None = "7 days",
        on_error: OnError | None = None,
    ) -> Stream[R]: ...
    @overload
    def call(
        self,
        function: Callable[[Key, V], Awaitable[R | None]] | Callable[[Key, V], R | None],
        *,
        returns: type[R],
        concurrency: int = 10,
        timeout: Duration = "30 seconds",
        retries: int = 3,
        backoff: Duration = "1 second",
        otherwise: R | EllipsisType | None = ...,
        answers: str | None = None,
        keep: Duration | None = "7 days",
        on_error: OnError | None = None,
    ) -> Stream[R]: ...
    @overload
    def call(
        self,
        function: Callable[[list[V]], Awaitable[Sequence[R | None]]]
        | Callable[[list[V]], Sequence[R | None]],
        *,
        returns: type[R],
        size: int,
        concurrency: int = 10,
        timeout: Duration = "30 seconds",
        retries: int = 3,
        backoff: Duration = "1 second",
        otherwise: R | EllipsisType | None = ...,
        answers: str | None = None,
        keep: Duration | None = "7 days",
        on_error: OnError | None = None,
    ) -> Stream[R]: ...
    def call(
        self,
        function: Function,
        *,
        returns: type[R],
        size: int | None = None,
        concurrency: int = 10,
        timeout: Duration = "30 seconds",
        retries: int = 3,
        backoff: Duration = "1 second",
        otherwise: R | EllipsisType | None = ...,
        answers: str | None = None,
        keep: Duration | None = "7 days",
        on_error: OnError | None = None,
    ) -> Stream[R]:
        """Replace the value with the result of a function that calls a service, such as a model.

        The function, async or not, takes the value, or key and value. With `size`, the function
        takes a list of up to `size` values, and returns a list with one result per value. Each
        worker makes up to `concurrency` calls at the same time, and keeps the order of the records.
        A call that takes longer than `timeout`, or raises an error, is repeated up to `retries`
        times. The wait before the first repetition is `backoff`; each further wait is twice as long
        as the one before, but at most a minute. If the last repetition fails, too, the record gets
        the value `otherwise`. Without `otherwise`, `on_error` decides what happens to the record.
        For a null value, the function is not called, and the value stays null.

        The answers are recorded with the state, under the name `answers` (by default, the
        function's name), and kept for as long as `keep` says. A batch that is repeated after a
        crash, and a rebuild, use the recorded answers, so each record has only one answer. After a
        crash, only calls whose answers were not recorded are made again. With `keep=None`, no
        answers are recorded. To make the calls for all records again, set `answers` to another
        name, and rebuild the pipeline.
        """
        where = self._where("call")
        if size is None:
            called = self._function("call", function, is_sql_allowed=False, may_be_async=True)
        else:
            require_whole(where, "size", size)
            require_callable(where, function, "values", may_be_async=True)
            called = function
        policy = call_policy(
            where, concurrency=concurrency, timeout=timeout, retries=retries, backoff=backoff,
            keep=keep,
        )  # fmt: skip
        shape = self._result_shape("call", returns)
        substitute = None
        if otherwise is not ...:
            substitute = fallback_json(where, otherwise, returns)
        name = ""
        if keep is not None:
            name = answers_name(self.pipeline, where, answers, function)
        node = self.pipeline.add(
            nodes.Call,
            parent=self.node,
            by="_key",
            function=called,
            takes=self.contract,
            returns=returns,
            shape=shape,
            policy=policy,
            answers=name,
            otherwise=substitute,
            size=size,
            on_error=on_error,
        )
        return self._next(node, shape, returns)

    def lookup(
        self,
        table: str,
        *,
        connection: str,
        key: str,
        returns: Contract,
        column: str | None = None,
        staleness: Duration = "1 minute",
        cache: int = 10_000,
        on_missing: OnMissing = "null",
        timeout: Duration = "30 seconds",
        retries: int = 3,
        backoff: Duration = "1 second",
        answers: str | None = None,
        keep: Duration | None = "7 days",
        on_error: OnError | None = None,
    ) -> Stream[dict[str, Any]]:
        """Look each record up in a table of a database.

        The new value has the field `left`, with the record's value, and the field `right`, with the
        table's row. `connection` is the name of an Airflow connection. Without Airflow, Sluice
        reads the database's URL from the environment variable `SLUICE_CONNECTION_NAME`, where
        `NAME` is the connection's name in capital letters. `key` is an SQL expression for the key
        to look up. `column` is the table's column with the keys, which must be unique; without
        `column`, `key` must be a field, and the column has the field's name. `returns` is a Struct
        whose fields are the columns to read.

        Sluice reads the rows of many records in one statement, and keeps up to `cache` rows in
        memory for as long as `staleness` says. If the table has no row for a record, or the
        record's key is null, `right` is null. With `on_missing="drop"`, such a record is dropped.
        With `on_missing="error"`, `on_error` decides what happens to it. A record with a null value
        is always dropped. A read that fails, or takes longer than `timeout`, is repeated up to
        `retries` times. If the last repetition fails, too, the run ends.

        Rows are recorded like the answers of `call`, under the name `answers` (by default, the
        table's name). So in a repeated batch or a rebuild, a record gets the row that it got when
        it was first processed.
        """
        where = self._where("lookup")
        self._require_expression(key, "lookup", "key or null")
        row = self._result_shape("lookup", returns)
        if row.scalar or not row.fields:
            raise TopologyError(
                f"{where}: returns={returns!r} has no columns.",
                next_step="Give a Struct whose fields are columns of the table.",
            )
        looked_up = looked_up_table(
            where, table, connection, column or key, tuple(row.fields), staleness=staleness,
            cache=cache,
        )  # fmt: skip
        return self._look_up(
            where, looked_up, key=key, returns=returns, row=row, on_missing=on_missing,
            timeout=timeout, retries=retries, backoff=backoff, keep=keep,
            answers=answers if answers is not None else table, on_error=on_error,
        )  # fmt: skip

    def lookup_in(
        self,
        store: StoreOf[R],
        *,
        key: str,
        on_missing: OnMissing = "null",
        timeout: Duration = "30 seconds",
        retries: int = 3,
        backoff: Duration = "1 second",
        answers: str | None = None,
        keep: Duration = "7 days",
        on_error: OnError | None = None,
    ) -> Stream[dict[str, Any]]:
        """Look each record up in a store of another pipeline, from `pipeline.store_of`.

        The new value has the field `left`, with the record's value, and the field `right`, with the
        store's value. `key` is an SQL expression for the key in the store. All records of a batch
        read the same snapshot: the newest that the other pipeline had published when the batch was
        planned. A later change of the store sends no new results.

        If the store has no value for a record, or the record's key is null, `right` is null. With
        `on_missing="drop"`, such a record is dropped. With `on_missing="error"`, `on_error` decides
        what happens to it. A record with a null value is always dropped. A read that fails, or
        takes longer than `timeout`, is repeated up to `retries` times. If the last repetition
        fails, too, the run ends.

        The values are recorded like the answers of `call`, under the name `answers` (by default,
        the names of the pipeline and the store). So in a repeated batch or a rebuild, a record gets
        the value that it got when it was first processed. `keep` says how long the values are kept.
        """
        where = self._where("lookup_in")
        if not isinstance(store, StoreOf):
            raise TopologyError(
                f"{where}: {store!r} is not a store of another pipeline.",
                next_step='Write lookup_in(pipeline.store_of("PIPELINE", "STORE", value=...)).',
            )
        self._require_expression(key, "lookup_in", "key or null")
        row = self._result_shape("lookup_in", store.value)
        if keep is None:
            raise TopologyError(
                f"{where}: without keep=, a repeated batch could get other values.",
                next_step='Say how long values are recorded, such as keep="7 days".',
            )
        return self._look_up(
            where, store.shared, key=key, returns=store.value, row=row, on_missing=on_missing,
            timeout=timeout, retries=retries, backoff=backoff, keep=keep,
            answers=answers if answers is not None else store.shared.answers, on_error=on_error,
        )  # fmt: skip

    def _look_up(
        self,
        where: str,
        table: LookedUpTable | SharedStore,
        *,
        key: str,
        returns: Contract,
        row: Shape,
        on_missing: OnMissing,
        timeout: Duration,
        retries: int,
        backoff: Duration,
        keep: Duration | None,
        answers: str,
        on_error: OnError | None,
    ) -> Stream[dict[str, Any]]:
        """Join each record with the row of its key, whose shape is `row`."""
        arguments.require_choice(where, "on_missing", on_missing, OnMissing)
        require_whole(where, "retries", retries, 0)
        # A read that has run out of time keeps its thread, and each repetition needs another
        # thread, so one look-up takes up to `retries + 1` threads.
        policy = call_policy(
            where, concurrency=retries + 1, timeout=timeout, retries=retries, backoff=backoff,
            keep=keep,
        )  # fmt: skip
        if keep is not None:
            self.pipeline.claim("answers", answers)
        node = self.pipeline.add(
            nodes.Lookup,
            parent=self.node,
            by=key,
            table=table,
            returns=returns,
            row=row,
            on_missing=on_missing,
            policy=policy,
            answers=answers,
            on_error=on_error,
        )
        return self._next(node, Shape({"left": self.shape.kind, "right": row.kind}))

    def _table_type(self, where: str) -> str:
        """Return the type of the values as rows of a table.

        Raises TopologyError if a field has no known type.
        """
        unknown = [name for name, kind in self.fields.items() if not kind]
        if unknown or not self.fields:
            raise TopologyError(
                f"{where}: the types of {', '.join(unknown) or 'the fields'} are not known, "
                "so the function cannot get the values as a table.",
                next_step="Declare the type of the values with returns= in the step before, "
                "or let the function take a list.",
            )
        return self.shape.kind

    def transform(self, function: Function, *, returns: type[R]) -> Stream[R]:
        """Replace the value with columns that `function(frame)` computes.

        `frame` is a Spark DataFrame of the value's fields. `returns` is a Struct with the names and
        types of the columns. The function must not add, drop or reorder rows, nor change the column
        `_row`. The frame also has rows for records that were filtered out before; all fields of
        these rows are null. An error in the function ends the run.
        """
        require_callable(self._where("transform"), function, "frame")
        shape = self._result_shape("transform", returns)
        if shape.scalar:
            raise TopologyError(
                f"{self._where('transform')}: returns={returns!r} has no columns.",
                next_step="Give a Struct.",
            )
        if any(name.lower() == "_row" for name in (*self.fields, *shape.fields)):
            raise TopologyError(
                f"{self._where('transform')}: no field can be named _row, because Sluice adds a "
                "column of this name.",
                next_step="Give the field another name with select(...) first.",
            )
        node = self.pipeline.add(
            nodes.Transform,
            parent=self.node,
            function=function,
            fields=shape.fields,
        )
        return self._next(node, shape, returns)

    @overload
    def map(
        self,
        function: Callable[[V], tuple[Any, object]],
        *,
        returns: None = None,
        on_error: OnError | None = None,
    ) -> Stream[Any]: ...
    @overload
    def map(
        self,
        function: Callable[[Key, V], tuple[Any, object]],
        *,
        returns: None = None,
        on_error: OnError | None = None,
    ) -> Stream[Any]: ...
    @overload
    def map(
        self,
        function: Callable[[V], tuple[Any, R | None]],
        *,
        returns: type[R],
        on_error: OnError | None = None,
    ) -> Stream[R]: ...
    @overload
    def map(
        self,
        function: Callable[[Key, V], tuple[Any, R | None]],
        *,
        returns: type[R],
        on_error: OnError | None = None,
    ) -> Stream[R]: ...
    def map(
        self,
        function: Function,
        *,
        returns: Contract | None = None,
        on_error: OnError | None = None,
    ) -> Stream[Any]:
        """Replace key and value with the pair that a Python function returns.

        `returns` is the type of the value.

        The SQL equivalent is `select(_key="...", ...)`.
        """
        shape = self._result_shape("map", returns)
        return self._apply("map", function, "record", shape, returns, on_error=on_error)

    @overload
    def flat_map_values(
        self,
        items: str | Callable[[V], Iterable[object]],
        *,
        returns: None = None,
        on_error: OnError | None = None,
    ) -> Stream[Any]: ...
    @overload
    def flat_map_values(
        self,
        items: Callable[[Key, V], Iterable[object]],
        *,
        returns: None = None,
        on_error: OnError | None = None,
    ) -> Stream[Any]: ...
    @overload
    def flat_map_values(
        self,
        items: Callable[[V], Iterable[R]],
        *,
        returns: type[R],
        on_error: OnError | None = None,
    ) -> Stream[R]: ...
    @overload
    def flat_map_values(
        self,
        items: Callable[[Key, V], Iterable[R]],
        *,
        returns: type[R],
        on_error: OnError | None = None,
    ) -> Stream[R]: ...
    def flat_map_values(
        self,
        items: str | Function,
        *,
        returns: Contract | None = None,
        on_error: OnError | None = None,
    ) -> Stream[Any]:
        """Emit a record for each element of an SQL array, or each item from a Python function.

        The key stays. If an element is a struct, later SQL reads its fields; any other element is
        named `value` in SQL. `returns` is the type of the items that the function returns.
        """
        if not isinstance(items, str):
            shape = self._result_shape("flat_map_values", returns)
            return self._apply(
                "flat_map_values",
                items,
                "values",
                shape,
                returns,
                on_error=on_error,
            )
        self._require_no_returns("flat_map_values", returns)
        self._require_expression(items, "flat_map_values", "array")
        return self._elements(items, shape_of_elements(items, self._types()), on_error)

    @overload
    def flat_map(
        self,
        items: str | Callable[[V], Iterable[tuple[Any, object]]],
        *,
        returns: None = None,
        on_error: OnError | None = None,
    ) -> Stream[Any]: ...
    @overload
    def flat_map(
        self,
        items: Callable[[Key, V], Iterable[tuple[Any, object]]],
        *,
        returns: None = None,
        on_error: OnError | None = None,
    ) -> Stream[Any]: ...
    @overload
    def flat_map(
        self,
        items: Callable[[V], Iterable[tuple[Any, R]]],
        *,
        returns: type[R],
        on_error: OnError | None = None,
    ) -> Stream[R]: ...
    @overload
    def flat_map(
        self,
        items: Callable[[Key, V], Iterable[tuple[Any, R]]],
        *,
        returns: type[R],
        on_error: OnError | None = None,
    ) -> Stream[R]: ...
    def flat_map(
        self,
        items: str | Function,
        *,
        returns: Contract | None = None,
        on_error: OnError | None = None,
    ) -> Stream[Any]:
        """Emit a record for each pair of key and value that a Python function returns.

        `returns` is the values' type.

        An SQL expression must be an array of structs with the fields `key` and `value`. If the
        values are structs, later SQL reads their fields.
        """
        if not isinstance(items, str):
            shape = self._result_shape("flat_map", returns)
            return self._apply("flat_map", items, "records", shape, returns, on_error=on_error)
        self._require_no_returns("flat_map", returns)
        self._require_expression(items, "flat_map", "array")
        shape = shape_of_elements(items, self._types())
        if shape.scalar and not shape.kind:
            shape = Shape({"key": "", "value": ""})
        fields = () if shape.scalar else shape.fields
        missing = next((name for name in ("key", "value") if name not in fields), None)
        if missing is not None:
            raise TopologyError(
                f"{self._where('flat_map')}: the elements of {items!r} have no field {missing}.",
                next_step="Make structs with the fields key and value: "
                "struct(... AS key, ... AS value).",
            )
        elements = self._elements(items, shape, on_error)
        return elements.select_key("key", on_error=on_error).map_values("value", on_error=on_error)

    @overload
    def select_key(
        self,
        key: str | Sequence[str] | Callable[[V], object],
        *,
        on_error: OnError | None = None,
    ) -> Stream[V]: ...
    @overload
    def select_key(
        self,
        key: Callable[[Key, V], object],
        *,
        on_error: OnError | None = None,
    ) -> Stream[V]: ...
    def select_key(
        self, key: str | Sequence[str] | Function, *, on_error: OnError | None = None
    ) -> Stream[V]:
        """Replace the key with an SQL expression's value, as text, or a Python function's result.

        A list of fields, such as `["shop", "item"]`, means a struct of these fields.
        """
        if callable(key):
            return self._apply("select_key", key, "key", on_error=on_error)
        key = self._key_expression("select_key", key)
        self._require_expression(key, "select_key", "key or null")
        return self._next(
            self.pipeline.add(nodes.SelectKey, parent=self.node, key=key, on_error=on_error)
        )

    @overload
    def peek(
        self,
        function: Callable[[V], object],
        *,
        on_error: OnError | None = None,
    ) -> Stream[V]: ...
    @overload
    def peek(
        self,
        function: Callable[[Key, V], object],
        *,
        on_error: OnError | None = None,
    ) -> Stream[V]: ...
    def peek(self, function: Function, *, on_error: OnError | None = None) -> Stream[V]:
        """Call a Python function with a side effect for each record; pass the record on unchanged.

        The function runs in Spark's tasks. If a batch is repeated after a failure, the function is
        called again.
        """
        return self._apply("peek", function, "nothing", on_error=on_error)

    @overload
    def foreach(
        self,
        function: Callable[[V], object],
        *,
        on_error: OnError | None = None,
    ) -> None: ...
    @overload
    def foreach(
        self,
        function: Callable[[Key, V], object],
        *,
        on_error: OnError | None = None,
    ) -> None: ...
    def foreach(self, function: Function, *, on_error: OnError | None = None) -> None:
        """Call a Python function for every record, as `peek` does; no step can follow."""
        self._apply("foreach", function, "nothing", on_error=on_error)

    def expect(
        self,
        condition: str,
        *,
        at_most: float = 0,
        on_breach: OnBreach = "warn",
        name: str | None = None,
    ) -> Stream[V]:
        """Count the records for which an SQL condition is not true; return the stream unchanged.

        `at_most` is the number of records of a batch that may break the expectation, or a share of
        the batch's records that reach this step, from 0.0 to 1.0. If more records break the
        expectation, `on_breach="warn"` shows the pipeline as degraded until a batch keeps the
        expectation, and `on_breach="fail"` ends the run before anything of the batch is published.
        `name` is the expectation's name in counts and metrics; the default is the condition.

        A null condition, and a condition without a result, such as `1 / 0 > 0`, is not true. An
        expectation changes no results, so it can be added and removed without a rebuild.
        """
        where = self._where("expect")
        self._require_expression(condition, "expect", "condition")
        arguments.require_choice(where, "on_breach", on_breach, OnBreach)
        arguments.require_batch_limit(where, "at_most", at_most)
        if nodes.follows_state(self.node):
            raise TopologyError(
                f"{where}: this stream follows a step with state, such as an aggregate, and "
                "expectations are checked only before such steps.",
                next_step="Call expect(...) on the stream before that step.",
            )
        label = condition if name is None else name
        arguments.require_instance(where, label, str, "the name of an expectation (str)")
        for node in self.pipeline.nodes:
            if isinstance(node, nodes.Expect) and node.label == label:
                raise TopologyError(
                    f"{where}: the expectation at {node.at} already has the name {label!r}.",
                    next_step="Pass another name=.",
                )
        self.pipeline.add(
            nodes.Expect,
            parent=self.node,
            condition=condition,
            label=label,
            at_most=at_most,
            fails=on_breach == "fail",
        )
        return self

    def print(self, label: str | None = None) -> None:
        """Print every record as `[label]: key, value`; no step can follow.

        `label` defaults to the step's name.

        Spark's tasks print the records, so the lines are in the run's log, or in the executors'
        logs on a cluster.
        """
        self.foreach(Print(label or self.node.name))

    def repartition(self, partitions: int | None = None) -> Stream[V]:
        """Drop the records without a key, as Kafka Streams does; pass on all others unchanged.

        If a left or outer join of the stream follows, even after other steps, no record is dropped,
        because such a join has a result for a record without a key.

        `partitions` has no effect, because Sluice divides records by key among the pipeline's
        workers wherever a step needs it.
        """
        arguments.require_at_least(self._where("repartition"), "partitions", partitions, 1)
        return self._next(self.pipeline.add(nodes.Repartition, parent=self.node))

    @overload
    def merge(self, *others: Stream[V]) -> Stream[V]: ...
    @overload
    def merge(self, *others: Stream[Any]) -> Stream[Any]: ...
    def merge(self, *others: Stream[Any]) -> Stream[Any]:
        """Combine the records of this and other streams, whose values must have the same fields.

        If the types of the values differ, later Python functions receive plain JSON data.
        """
        where = self._where("merge")
        for other in others:
            arguments.require_instance(where, other, Stream, "a stream")
            self._require_same_pipeline(where, other)
            if other.fields.keys() != self.fields.keys() or other.shape.scalar != self.shape.scalar:
                raise TopologyError(
                    f"{where}: the streams have different fields: {', '.join(self.fields)}, and "
                    f"{', '.join(other.fields)}.",
                    next_step="Give the streams the same fields with select or map_values.",
                )
        streams = (self.node, *[other.node for other in others])
        require_same_windows(where, streams)
        node = self.pipeline.add(nodes.Merge, streams=streams)
        # A function declares one type of values, so values of several
        # types are passed as plain JSON data.
        have_one_type = all(other.contract is self.contract for other in others)
        contract = self.contract if have_one_type else None
        return self._next(node, self.shape, contract)

    def split(
        self,
        branches: Mapping[str, str] | None = None,
        /,
        *,
        on_error: OnError | None = None,
        **named: str,
    ) -> dict[str, Stream[V]]:
        """Split the stream into named branches, each with an SQL condition.

        A record goes to the first branch whose condition is true. If no branch's condition is true,
        the record is dropped; to keep such records, add a last branch `rest="true"`.
        """
        # As in Kafka Streams' split(), a record goes to the first branch whose condition is true.
        streams, remaining = {}, self
        for name, where in ({**(branches or {})} | named).items():
            streams[name] = remaining.filter(where, on_error=on_error)
            remaining = remaining.filter_not(where, on_error=on_error)
        return streams

    def to_table(
        self,
        *,
        store: str,
        versioned: Duration | None = None,
        expires_at: str | None = None,
        expires_after: Duration | None = None,
        expiry_clock: ExpiryClock = "event",
        on_error: OnError | None = None,
    ) -> Table[V]:
        """Keep the latest value of each key in a store; a null value deletes the key's row.

        With `versioned`, a duration, the table has for each key the value with the latest event
        time, and keeps the key's earlier values for this duration. In a join with a stream, each
        record of the stream gets the value as of the record's own time.

        With `expires_at`, an SQL expression, a row expires at the time that the expression gives.
        With `expires_after`, a duration, a row expires this long after the event time of the row's
        record. An expired row is deleted, and later steps see a deletion. By default, a row expires
        when the stream time of the table's records reaches the row's expiry time. With
        `expiry_clock="wall"`, a row expires in the first batch that begins after its expiry time,
        and Airflow starts a run for this batch.
        """
        where = self._where("to_table")
        history_ms = history_in_ms(where, versioned)
        expiry = self._expiry("to_table", expires_at, expires_after, expiry_clock)
        if history_ms is not None or expiry is not None:
            require_plain_keys(where, [self.node])
        require_no_versions(where, history_ms, expiry)
        self.pipeline.claim("store", store)
        node = self.pipeline.add(
            nodes.ToTable,
            parent=self.node,
            store=store,
            history_ms=history_ms,
            expiry=expiry,
            on_error=on_error,
        )
        return Table(self.pipeline, node, self.shape, self.contract)

    @overload
    def apply_changes(
        self: Stream[Change[R]],
        *,
        store: str,
        check_old: CheckOld | None = None,
        on_error: OnError | None = None,
    ) -> Table[R]: ...
    @overload
    def apply_changes(
        self,
        *,
        store: str,
        check_old: CheckOld | None = None,
        on_error: OnError | None = None,
    ) -> Table[Any]: ...
    def apply_changes(
        self,
        *,
        store: str,
        check_old: CheckOld | None = None,
        on_error: OnError | None = None,
    ) -> Table[Any]:
        """Keep, in a store, the table that results from a stream of changes.

        The changes have the fields `kind`, `old` and `new`. The stream comes from
        `Table.changes()`, or from a topic whose values have the type `Change`; `debezium(...)`
        decodes such values from Debezium's JSON. The record's key is the key of the row. Records of
        the kinds `message` and `transaction`, and records without a value, are filtered out. For a
        record of the kind `truncate`, `on_error` decides what happens.

        With `check_old`, Sluice compares each change's old row, if any, with the table's row for
        the key. If the two rows differ, `check_old="count"` counts the change as `old_differs/STEP`
        and applies it. With `check_old="reject"`, `on_error` decides what happens to the change.
        """
        where = self._where("apply_changes")
        if {"kind", "old", "new"} - self.fields.keys():
            raise TopologyError(
                f"{where}: the values have the fields {', '.join(self.fields)}, "
                "not kind, old and new.",
                next_step="Use Table.changes(), or declare the type of the values: "
                "class MyChange(Change[MyRow]).",
            )
        require_plain_keys(where, [self.node])
        if check_old is not None:
            arguments.require_choice(where, "check_old", check_old, CheckOld)
        row = None
        if isinstance(self.contract, type) and issubclass(self.contract, Change):
            row = row_type(self.contract)
        shape = Shape.of_kind(self.fields["new"]) if row is None else shape_of(row)
        kept = self.filter("kind IN ('insert', 'update', 'delete', 'truncate')", on_error=on_error)
        node = self.pipeline.add(
            nodes.ChangedRows,
            parent=kept.node,
            by="_key",
            shape=shape,
            check_old=check_old,
            on_error=on_error,
        )
        rows: Stream[Any] = Stream(self.pipeline, node, shape, row)
        return rows.to_table(store=store, on_error=on_error)

    def group_by_key(self) -> GroupedStream[V]:
        """Group by the record's key. After a windowed table, the key includes the window.

        To group by the key without its window, write `group_by("_key")`.
        """
        return GroupedStream(self, "_key", None, by_window=self.node.key_window is not None)

    @overload
    def group_by(self, key: str | Sequence[str] | Callable[[V], object]) -> GroupedStream[V]: ...
    @overload
    def group_by(self, key: Callable[[Key, V], object]) -> GroupedStream[V]: ...
    def group_by(self, key: str | Sequence[str] | Function) -> GroupedStream[V]:
        """Group by the result of an SQL expression or a Python function.

        The result, as text, is the key of the aggregates. A list of fields, such as `["shop",
        "item"]`, means a struct of these fields.
        """
        if callable(key):
            return self._apply("group_by", key, "key", on_error=None).group_by_key()
        key = self._key_expression("group_by", key)
        self._require_expression(key, "group_by", "key")
        return GroupedStream(self, key, None)

    @overload
    def join(
        self,
        other: Stream[Any],
        window: JoinWindow,
        *,
        how: How = "inner",
        on_error: OnError | None = None,
    ) -> Stream[dict[str, Any]]: ...
    @overload
    def join(
        self,
        other: GlobalTable[Any],
        *,
        how: How = "inner",
        on: str | Sequence[str] | Callable[[V], object] | None = None,
        mapped_key: str | None = None,
        on_error: OnError | None = None,
    ) -> Stream[dict[str, Any]]: ...
    @overload
    def join(
        self,
        other: GlobalTable[Any],
        *,
        how: How = "inner",
        on: Callable[[Key, V], object],
        mapped_key: str | None = None,
        on_error: OnError | None = None,
    ) -> Stream[dict[str, Any]]: ...
    @overload
    def join(
        self,
        other: Table[Any],
        *,
        how: How = "inner",
        grace: Duration | None = None,
        on_error: OnError | None = None,
    ) -> Stream[dict[str, Any]]: ...
    def join(
        self,
        other: Stream[Any] | Table[Any],
        window: JoinWindow | None = None,
        *,
        how: How = "inner",
        on: str | Sequence[str] | Function | None = None,
        mapped_key: str | None = None,
        grace: Duration | None = None,
        on_error: OnError | None = None,
    ) -> Stream[dict[str, Any]]:
        """Join records of the same key; the value has the fields `left` and `right`.

        A join with a stream emits every pair of records whose times are within the `window`. A join
        with a table emits each record with the row that the table has for the record's key. With
        `how="inner"`, records without a match are dropped. With `how="left"`, records without a
        match are emitted with `right` null. With `how="outer"`, which needs two streams, the
        unmatched records of both sides are emitted, with the other side null.

        In a join with a global table, `on` maps each record to the key of the table's row. `on` is
        an SQL expression, or a Python function of the value, or of key and value. The results keep
        the record's own key. With `mapped_key`, the value has a third field of this name, with the
        key to which `on` has mapped the record.

        In a join with a table, a record gets the latest row that was written before the record, by
        the timestamps in Kafka. If the table is versioned, the record gets the latest row whose
        event time is not after the record's event time. With `grace`, which needs a versioned
        table, each record of the stream waits until stream time is `grace` past the record's event
        time, so that the record also finds table rows that arrive after it.
        """
        where = self._where("join")
        arguments.require_instance(where, other, (Stream, Table), "a stream or a table")
        arguments.require_choice(where, "how", how, How)
        self._require_same_pipeline(where, other)
        if isinstance(other, Stream):
            require_plain_keys(where, [self.node, other.node])
            of_table = (on, mapped_key, grace)
            if not isinstance(window, JoinWindow) or any(each is not None for each in of_table):
                raise TopologyError(
                    f"{where}: a join of two streams needs a window, and takes no on=, "
                    "no mapped_key= and no grace=.",
                    next_step='Write join(other, within("5 minutes")).',
                )
            return self._joined(other, "stream-stream", how, window=window, on_error=on_error)
        if on is None:
            require_same_windows(where, [self.node, other.node])
        # A record is joined with the table's row as of the record's own time, so no window is
        # needed. Changes of the table emit nothing, so how="outer" could not emit the table's
        # unmatched rows.
        if window is not None or how == "outer":
            raise TopologyError(
                f"{where}: a join of a stream and a table takes no window, "
                "and needs how='inner' or how='left'.",
                next_step="Write join(table) or left_join(table).",
            )
        if mapped_key is not None:
            self._require_mapped_key(where, mapped_key, on)
        if on is not None and not isinstance(other, GlobalTable):
            raise TopologyError(
                f"{where}: on= needs a global table.",
                next_step="Change the stream's key with select_key first.",
            )
        stream: Stream[Any] = self
        if callable(on):
            stream = self._apply("join", on, "mapped_key", on_error=on_error)
            on = MAPPED_KEY
        elif on is not None:
            on = self._key_expression("join", on)
            self._require_expression(on, "join", "key or null")
        grace_ms = grace_in_ms(where, grace, other.node)
        options = {"on": on, "mapped_key": mapped_key, "grace_ms": grace_ms}
        return stream._joined(other, "stream-table", how, **options, on_error=on_error)

    def _require_mapped_key(self, where: str, mapped_key: str, on: object) -> None:
        """Raise TopologyError unless the key that `on` gives can be a field of the result."""
        if on is None:
            raise TopologyError(
                f"{where}: mapped_key= needs on=.",
                next_step="Leave mapped_key= out: the record is joined by its own key, _key.",
            )
        self._require_names("join", {mapped_key: mapped_key})
        self._refuse_reserved_names("join", {mapped_key: mapped_key})
        if mapped_key.lower() in ("left", "right"):
            raise TopologyError(
                f"{where}: mapped_key={mapped_key!r} is the name of a side of the join.",
                next_step="Use another name.",
            )

    def left_join(
        self,
        other: Stream[Any] | Table[Any],
        *window: JoinWindow,
        **options: Any,
    ) -> Stream[dict[str, Any]]:
        """Do the same as `join` with `how="left"`: if there is no match, `right` is null."""
        return self.join(other, *window, how="left", **options)

    def outer_join(
        self,
        other: Stream[Any],
        window: JoinWindow,
        **options: Any,
    ) -> Stream[dict[str, Any]]:
        """Do the same as `join` with `how="outer"`: without a match, the other side is null."""
        return self.join(other, window, how="outer", **options)

    @overload
    def process(
        self,
        processor: type[Processor[V]],
        *,
        returns: type[R],
        stores: Mapping[str, Any] | None = None,
        outputs: Mapping[str, Contract | None] | None = None,
        tables: Mapping[str, Table[Any]] | None = None,
        by: str | Sequence[str] | None = None,
        queryable: bool = True,
        on_error: OnError | None = None,
    ) -> Processed[R]: ...
    @overload
    def process(
        self,
        processor: type[Processor[V]],
        *,
        returns: None = None,
        stores: Mapping[str, Any] | None = None,
        outputs: Mapping[str, Contract | None] | None = None,
        tables: Mapping[str, Table[Any]] | None = None,
        by: str | Sequence[str] | None = None,
        queryable: bool = True,
        on_error: OnError | None = None,
    ) -> Processed[Any]: ...
    def process(
        self,
        processor: type[Processor[V]],
        *,
        returns: Contract | None = None,
        stores: Mapping[str, Any] | None = None,
        outputs: Mapping[str, Contract | None] | None = None,
        tables: Mapping[str, Table[Any]] | None = None,
        by: str | Sequence[str] | None = None,
        queryable: bool = True,
        on_error: OnError | None = None,
    ) -> Processed[Any]:
        """Run a `sluice.Processor` over each key's records, in order.

        `stores` maps the names of key-value stores to the types of their values (`Any` for plain
        JSON data), or to a type and a time to live: `{"points": Decimal, "seen": (str, "7 days")}`.
        `returns` is the type of the values that the processor forwards. `outputs` maps the names of
        further outputs to the types of their values. `tables` maps names to tables of the pipeline,
        whose rows the processor can read by any key; every worker gets a copy of these tables. By
        default, each record key has its own entries in the stores and its own timers. After a
        windowed table, a key is a `Windowed`, and each key and window has its own entries and
        timers. With `by`, an SQL expression or a list of fields, the entries and timers belong to
        each value of `by` instead.

        Each store can be queried by this key (the record key or the value of `by`), and the result
        is an object with all entries of the key. With `queryable=False`, the stores cannot be
        queried.
        """
        return self._process(
            "process",
            processor,
            returns,
            stores,
            outputs,
            tables,
            by=by,
            queryable=queryable,
            on_error=on_error,
        )

    @overload
    def process_values(
        self,
        processor: type[ValueProcessor[V]],
        *,
        returns: type[R],
        stores: Mapping[str, Any] | None = None,
        outputs: Mapping[str, Contract | None] | None = None,
        tables: Mapping[str, Table[Any]] | None = None,
        by: str | Sequence[str] | None = None,
        queryable: bool = True,
        on_error: OnError | None = None,
    ) -> Processed[R]: ...
    @overload
    def process_values(
        self,
        processor: type[ValueProcessor[V]],
        *,
        returns: None = None,
        stores: Mapping[str, Any] | None = None,
        outputs: Mapping[str, Contract | None] | None = None,
        tables: Mapping[str, Table[Any]] | None = None,
        by: str | Sequence[str] | None = None,
        queryable: bool = True,
        on_error: OnError | None = None,
    ) -> Processed[Any]: ...
    def process_values(
        self,
        processor: type[ValueProcessor[V]],
        *,
        returns: Contract | None = None,
        stores: Mapping[str, Any] | None = None,
        outputs: Mapping[str, Contract | None] | None = None,
        tables: Mapping[str, Table[Any]] | None = None,
        by: str | Sequence[str] | None = None,
        queryable: bool = True,
        on_error: OnError | None = None,
    ) -> Processed[Any]:
        """Run a `sluice.ValueProcessor`, whose results keep their record's key and its window.

        All parameters are as in `process`. The processor calls `context.forward(value)`. With `by`,
        it cannot set timers, because a timer has no record whose key its results could keep.
        """
        if by is not None and hasattr(processor, "on_timer"):
            raise TopologyError(
                f"{self._where('process_values')}: with by=, a timer belongs to no record, "
                "so its results have no key to keep.",
                next_step="Use process(...), whose processor chooses the keys of its results.",
            )
        return self._process(
            "process_values",
            processor,
            returns,
            stores,
            outputs,
            tables,
            by=by,
            queryable=queryable,
            on_error=on_error,
        )

    def _process(
        self,
        step: Literal["process", "process_values"],
        processor: Any,
        returns: Contract | None,
        stores: Mapping[str, Any] | None,
        outputs: Mapping[str, Contract | None] | None,
        tables: Mapping[str, Table[Any]] | None,
        *,
        by: str | Sequence[str] | None,
        queryable: bool,
        on_error: OnError | None,
    ) -> Processed[Any]:
        where = self._where(step)
        context = Context if step == "process" else ValueContext
        _require_processor(where, processor, self.contract, context)
        for name, declared in (("stores", stores or {}), ("outputs", outputs or {})):
            arguments.require_instance(where, declared, Mapping, f"{name}={{name: type}}")
        tables = self._readable_tables(where, tables or {})
        self._result_shape(step, returns)
        for name, kind in (outputs or {}).items():
            self._result_shape(step, kind, f"outputs[{name!r}]")
        arguments.require_instance(where, queryable, bool, "queryable=True or queryable=False")
        if by is not None:
            by = self._key_expression(step, by)
            self._require_expression(by, step, "key")
        types = {name: _store_type(declared) for name, declared in (stores or {}).items()}
        for name, (kind, _) in types.items():
            # Spark's tasks must be able to import the type.
            contracts.require_importable(kind, f"{where}: stores[{name!r}]=")
            # A store that can be queried needs a name that no other store of the pipeline has.
            if queryable:
                self.pipeline.claim("store", name)
        node = self.pipeline.add(
            nodes.Process,
            parent=self.node,
            processor=processor,
            stores=types,
            takes=self.contract,
            returns={"output": returns, **(outputs or {})},
            queryable=queryable,
            keeps_key=step == "process_values",
            by=by,
            tables={name: table.node for name, table in tables.items()},
            table_types={name: table.contract for name, table in tables.items()},
            on_error=on_error,
        )
        return Processed(self.pipeline, node)

    def _readable_tables(self, where: str, tables: Any) -> Mapping[str, Table[Any]]:
        """Return the tables that a processor can read.

        Raises TopologyError if the processor cannot read one of the tables.
        """
        arguments.require_instance(where, tables, Mapping, "tables={name: table}")
        for name, table in tables.items():
            arguments.require_instance(where, name, str, "the name of a table (str)")
            arguments.require_instance(where, table, Table, f"a table as tables[{name!r}]")
            self._require_same_pipeline(where, table)
            # A processor reads a row by its key, but the rows of a windowed table have a key and a
            # window.
            if table.node.key_window is not None:
                raise TopologyError(
                    f"{where}: the table {name!r} is windowed.",
                    next_step="Give its rows plain keys first: "
                    "to_stream().select_key(...).to_table(store=...).",
                )
        return tables  # type: ignore[no-any-return]

    def deduplicate(
        self,
        by: str | Sequence[str],
        *,
        within: Duration,
        on_error: OnError | None = None,
    ) -> Stream[V]:
        """Pass on the first record with each id; drop and count repeats within the time `within`.

        `by` is an SQL expression for the id, or a list of fields that make up the id. When stream
        time is more than `within` past the event time of an id's first record, Sluice forgets the
        id, so the next record with this id is passed on.
        """
        by = self._key_expression("deduplicate", by)
        self._require_expression(by, "deduplicate", "key or null")
        within_ms = milliseconds(within)
        arguments.require_at_least(self._where("deduplicate"), "within", within_ms, 0)
        node = self.pipeline.add(
            nodes.Deduplicate,
            parent=self.node,
            by=by,
            within_ms=within_ms,
            on_error=on_error,
        )
        return self._next(node)

    def _joined(
        self,
        other: Handle[Any],
        kind: str,
        how: How,
        **options: Any,
    ) -> Stream[dict[str, Any]]:
        node = self.pipeline.add(
            nodes.Join,
            left=self.node,
            right=other.node,
            how=how,
            kind=kind,
            **options,
        )
        shape = joined_shape(self, other)
        if node.mapped_key is not None:
            shape = Shape({**shape.fields, node.mapped_key: "STRING"})
        return self._next(node, shape)

    def _elements(self, items: str, shape: Shape, on_error: OnError | None) -> Stream[Any]:
        node = self.pipeline.add(
            nodes.FlatMapValues,
            parent=self.node,
            items=items,
            shape=shape,
            on_error=on_error,
        )
        return self._next(node, shape)

    def _apply(
        self,
        step: str,
        function: Function,
        gives: str,
        shape: Shape | None = None,
        returns: Contract | None = None,
        *,
        on_error: OnError | None,
    ) -> Stream[Any]:
        """Call a function for each record. Without a `shape`, the value stays as it is."""
        keyed = self._function(
            step,
            function,
            is_sql_allowed=gives not in ("record", "nothing"),
            may_yield=gives in ("records", "values"),
        )
        return self._add_function(keyed, gives, shape, returns, on_error=on_error)

    def _function(
        self,
        step: str,
        function: Any,
        *,
        is_sql_allowed: bool = True,
        may_yield: bool = False,
        may_be_async: bool = False,
    ) -> Function:
        """Return a step's function, as the engine calls it.

        Raises TopologyError if the function does not take the stream's values.
        """
        where = self._where(step)
        if is_sql_allowed and not callable(function):
            advice = ""
            if isinstance(function, list | tuple):
                fields = ", ".join(map(str, function))
                advice = f'Write one expression over several fields as "struct({fields})".'
            raise TopologyError(
                f"{where}: expected an SQL expression (str) or a function of (value), got "
                f"{type(function).__name__}: {function!r}.",
                next_step=advice,
            )
        # Only a step that takes many results can take them from a generator.
        keyed = with_key(
            where,
            function,
            "value",
            value_type=self.contract,
            may_yield=may_yield,
            may_be_async=may_be_async,
        )
        if self.node.key_window is not None:
            return of_windowed_key(keyed)
        return keyed

    def _add_function(
        self,
        function: Function,
        gives: str,
        shape: Shape | None = None,
        returns: Contract | None = None,
        *,
        on_error: OnError | None,
    ) -> Stream[Any]:
        node = self.pipeline.add(
            nodes.Apply,
            parent=self.node,
            function=function,
            gives=gives,
            takes=self.contract,
            returns=returns,
            shape=shape or self.shape,
            on_error=on_error,
        )
        if shape is None:
            return self._next(node)
        return self._next(node, shape, returns)

    def _require_no_returns(self, step: str, returns: Contract | None) -> None:
        if returns is not None:
            raise TopologyError(
                f"{self._where(step)}: returns= is only allowed with a Python function.",
                next_step="Leave returns= out. An expression has a type of its own.",
            )

    def _next(
        self,
        node: nodes.Node,
        shape: Shape | None = None,
        contract: Contract | None = None,
    ) -> Stream[Any]:
        """Return the stream after a node.

        Without a `shape`, its values have the same shape and contract as before.
        """
        if shape is None:
            return Stream(self.pipeline, node, self.shape, self.contract)
        return Stream(self.pipeline, node, shape, contract)


def _store_type(declared: Any) -> tuple[Any, int | None]:
    """Return a store's type, and its time to live in ms."""
    kind, ttl = declared if isinstance(declared, tuple) else (declared, None)
    if kind is None or isinstance(kind, str | int | timedelta):
        raise TopologyError(
            f"process at {source_line()}: {declared!r} is not a type for a store's values.",
            next_step='Write for example {"points": Decimal} or {"points": (Decimal, "7 days")}.',
        )
    return kind, milliseconds_if_given(ttl)


def _require_processor(
    where: str, processor: Any, value_type: Contract | None, context_class: type[ContextBase]
) -> None:
    process = getattr(processor, "process", None)
    if not (isinstance(processor, type) and callable(process)):
        raise TopologyError(
            f"{where}: expected a class with a method process(self, record), got {processor!r}.",
            next_step="Pass the class, not an instance: every task makes its own instance.",
        )
    require_callable(f"{where}: process", process, "self", "record")
    require_value_type(f"{where}: process", process, 1, value_type)
    init = getattr(processor, "init", None)
    if not callable(init):
        raise TopologyError(
            f"{where}: {processor.__name__} has no method init.",
            next_step="Add: def init(self, context): self.context = context.",
        )
    require_callable(f"{where}: init", init, "self", "context")
    declared = declared_type(init, 1)
    if declared in (Context, ValueContext) and declared is not context_class:
        step = "process" if declared is Context else "process_values"
        raise TopologyError(
            f"{where}: init of {processor.__name__} takes a {declared.__name__}, "
            f"but gets a {context_class.__name__}.",
            next_step=f"Use {step}(...), or declare the context as {context_class.__name__}.",
        )
    if (on_timer := getattr(processor, "on_timer", None)) is not None:
        require_callable(f"{where}: on_timer", on_timer, "self", "timer")


class Processed(Generic[R]):
    """The outputs of a processor: `processed.output`, and named ones like `processed["quiet"]`."""

    def __init__(self, pipeline: Graph, node: nodes.Process) -> None:
        self.pipeline = pipeline
        self.node = node

    def __getitem__(self, output: str) -> Stream[Any]:
        if output not in self.node.returns:
            raise TopologyError(
                f"{self.pipeline.name} at {source_line()}: the processor has no output {output!r}.",
                next_step=f"Its outputs: {', '.join(self.node.returns)}.",
            )
        returns = self.node.returns[output]
        shape = shape_of(returns)
        branch = self.pipeline.add(nodes.Branch, parent=self.node, output=output, shape=shape)
        return Stream(self.pipeline, branch, shape, returns)

    @property
    def output(self) -> Stream[R]:
        """The records that the processor forwards without naming an output."""
        return self["output"]
