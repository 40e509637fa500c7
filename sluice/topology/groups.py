"""Groups: streams and tables grouped by a key, to be aggregated."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from copy import copy
from dataclasses import replace
from typing import Any, Generic, Self, get_args, overload

from sluice.errors import TopologyError
from sluice.topology import arguments, nodes
from sluice.topology.author_functions import (
    Function,
    require_callable,
    with_key,
)
from sluice.topology.durations import Duration, milliseconds
from sluice.topology.graph import Graph
from sluice.topology.handles import Handle, Key, R, V
from sluice.topology.serdes import Contract
from sluice.topology.source_line import source_line
from sluice.topology.tables import Table
from sluice.topology.versioned_tables import history_in_ms
from sluice.topology.window_definitions import retention_in_ms
from sluice.topology.windowed_inputs import (
    require_plain_keys,
)
from sluice.values.record_metadata import (
    EmitStrategy,
    OnError,
)
from sluice.values.shapes import Shape
from sluice.values.windowed_keys import of_windowed_key
from sluice.values.windows import AnyWindow, CountWindow, SessionWindow


class Grouped(Generic[V]):
    """Base class of grouped streams and grouped tables, with the methods that both have."""

    def __init__(
        self,
        parent: Handle[V],
        key: str,
        window: AnyWindow | CountWindow | None,
        *,
        by_window: bool = False,
    ) -> None:
        self.parent = parent
        self.key = key
        self.by_window = by_window
        self.window = window
        self.late: nodes.Late | None = None
        self.retention_ms: int | None = None
        self.history_ms: int | None = None
        self.emit: EmitStrategy = "every"
        self.early_ms: int | None = None

    def versioned(self, history: Duration) -> Self:
        """Return the same group, but its aggregates are versioned tables.

        See the parameter `versioned` of `to_table`.
        """
        where = self.parent._where("versioned")
        if self.window is not None or self.by_window:
            raise TopologyError(
                f"{where}: only a table without windows can be versioned.",
                next_step="Leave versioned(...) out. A windowed table always keeps its windows.",
            )
        versioned = copy(self)
        versioned.history_ms = history_in_ms(where, history)
        return versioned

    def count(self, *, store: str, on_error: OnError | None = None) -> Table[int]:
        """Count the records of each group, or the rows of a grouped table."""
        columns = {"count": "count(*)"}
        return self._add_store(store, columns, Shape.single("BIGINT"), on_error=on_error)

    def _aggregate_sql(
        self,
        store: str,
        columns: Mapping[str, str],
        on_error: OnError | None,
    ) -> Table[dict[str, Any]]:
        step = f"aggregate into {store!r}"
        if not columns:
            raise TopologyError(
                f"{self.parent._where(step)} needs at least one column.",
                next_step='Write for example aggregate(store="totals", total="sum(amount)").',
            )
        self.parent._require_names(step, columns)
        self.parent._refuse_reserved_names(step, columns)
        for text in columns.values():
            self.parent._require_expression(text, step, aggregate=True)
        shape = Shape(dict.fromkeys(columns, ""))
        return self._add_store(store, dict(columns), shape, on_error=on_error)

    def _aggregate_python(
        self, store: str, functions: Mapping[str, Any], returns: Contract | None,
        columns: Mapping[str, str], on_error: OnError | None,
        cogrouped: tuple[nodes.CogroupedStream, ...] = (), *, takes_list: bool = False,
    ) -> Table[Any]:  # fmt: skip
        """Aggregate with Python functions.

        Raises TopologyError if a function is missing or has other parameters.
        """
        step = f"aggregate into {store!r}"
        where = self.parent._where(step)
        if columns:
            raise TopologyError(
                f"{where} has both Python functions and SQL.",
                next_step="Use one store for the functions, and another for the SQL.",
            )
        called: dict[str, Function] = {}
        for name, function in functions.items():
            parameters = _AGGREGATE_ARGUMENTS[name]
            if takes_list and name == "adder":
                parameters = "aggregate", "values"
            if function is None:
                raise TopologyError(
                    f"{where} needs a function {name}({', '.join(parameters)}).",
                    next_step=f"Pass it as {name}=...",
                )
            at = f"{where}: {name}"
            if name == "initializer":
                require_callable(at, function)
                called[name] = function
            else:
                # Check declared types only if the function takes one value of the stream. A merger
                # takes two aggregates, and other functions may take a list.
                value_type: Any = self.parent.contract
                if takes_list or name == "merger":
                    value_type = Any
                called[name] = self._function(at, function, *parameters, value_type=value_type)
        adder = cogrouped[0].adder if cogrouped else called["adder"]
        assert adder is not None
        shape = self.parent._result_shape(step, returns)
        python = nodes.PythonAggregate(
            called["initializer"], adder, called.get("subtractor"), called.get("merger"),
            self.parent.contract, returns, shape, takes_list,
        )  # fmt: skip
        return self._add_store(
            store, {}, shape, returns, cogrouped, python=python, on_error=on_error
        )

    def _reduce(
        self,
        store: str,
        reducer: Function,
        subtractor: Function | None,
        on_error: OnError | None,
    ) -> Table[V]:
        where = self.parent._where(f"reduce into {store!r}")
        contract = self.parent.contract
        add = self._function(where, reducer, "aggregate", "value", value_type=contract)
        subtract: Function | None = None
        if subtractor is not None:
            subtract = self._function(where, subtractor, "aggregate", "value", value_type=contract)
        shape = Shape.single() if contract is None else self.parent.shape
        # To merge two sessions, reduce their two results like values.
        merge = add if subtractor is None else None
        python = nodes.PythonAggregate(None, add, subtract, merge, contract, contract, shape)
        return self._add_store(store, {}, shape, contract, python=python, on_error=on_error)

    def _function(self, where: str, function: Any, *arguments: str, value_type: Any) -> Function:
        keyed = with_key(where, function, *arguments, value_type=value_type)
        return of_windowed_key(keyed) if self.by_window else keyed

    def _add_store(
        self,
        store: str,
        columns: dict[str, str],
        shape: Shape,
        contract: Contract | None = None,
        cogrouped: tuple[nodes.CogroupedStream, ...] = (),
        **options: Any,
    ) -> Table[Any]:
        pipeline = self.parent.pipeline
        pipeline.claim("store", store)
        node_type = nodes.Aggregate
        if cogrouped:
            node_type = nodes.Cogroup
            options["parts"] = cogrouped
        node = pipeline.add(
            node_type,
            parent=self.parent.node,
            key=self.key,
            window=self.window,
            store=store,
            columns=columns,
            scalar=shape.scalar,
            late=self.late,
            by_window=self.by_window,
            retention_ms=self.retention_ms,
            history_ms=self.history_ms,
            **options,
        )
        table: Table[Any] = Table(pipeline, node, shape, contract)
        if self.emit == "window_close":
            return table._suppress("window_final", 0, None, None, "shut_down", self.early_ms)
        return table


_AGGREGATE_ARGUMENTS: dict[str, tuple[str, ...]] = {
    "initializer": (),
    "adder": ("aggregate", "value"),
    "subtractor": ("aggregate", "value"),
    "merger": ("earlier", "later"),
}


class GroupedStream(Grouped[V]):
    """Records grouped by a key. Every aggregation creates a store that can be queried by name."""

    def windowed_by(
        self,
        window: AnyWindow | CountWindow,
        *,
        late: str | None = None,
        retention: Duration | None = None,
        emit: EmitStrategy = "every",
        early: Duration | None = None,
    ) -> WindowedStream[V]:
        """Aggregate the records of each window separately.

        A record that is late for several windows is counted as late once for each of them. If a
        record is late for all of its windows, it is written to the topic that `late` names. Without
        `late`, such a record is only counted. Without `retention`, a window can be queried forever;
        with `retention`, until stream time is more than `retention` past the window's end. Until
        then, a record that is not late can also join a session that has closed.

        With `emit="window_close"`, later steps get only the final result of each window, when no
        record can change the result any more. Queries of the store still find the results of open
        windows. With `early="10 seconds"` in addition, later steps also get early results, while a
        window is open. After a change of the window, the window's result is sent when stream time
        is 10 seconds past this change. The result includes all changes up to then; the next change
        begins a new wait. The header `window_result` of each result is `early` or `final`.
        """
        where = self.parent._where("windowed_by")
        if self.history_ms is not None:
            raise TopologyError(
                f"{where}: a versioned table has no windows.", next_step="Leave versioned(...) out."
            )
        if self.window is not None:
            raise TopologyError(
                f"{where}: the stream already has the window {self.window}.",
                next_step="Call windowed_by once for each store.",
            )
        if self.by_window:
            require_plain_keys(where, [self.parent.node])
        arguments.require_choice(where, "emit", emit, EmitStrategy)
        arguments.require_instance(
            where,
            window,
            get_args(AnyWindow | CountWindow),
            'a window, such as tumbling("1 minute")',
        )
        if isinstance(window, CountWindow):
            if (late, retention, early) != (None, None, None):
                raise TopologyError(
                    f"{where}: {window} counts records, whatever their times, so late=, "
                    "retention= and early= have no meaning.",
                    next_step="Leave them out.",
                )
            counted = replace(window, only_complete=emit == "window_close")
            return WindowedStream(self.parent, self.key, counted)
        windowed = WindowedStream(self.parent, self.key, window)
        windowed.emit = emit
        if early is not None:
            windowed.early_ms = milliseconds(early)
            arguments.require_at_least(where, "early", windowed.early_ms, 1)
            if emit != "window_close":
                raise TopologyError(
                    f"{where}: early= has no meaning, because every result is sent immediately.",
                    next_step='Add emit="window_close", or leave early= out.',
                )
        if retention is not None:
            windowed.retention_ms = retention_in_ms(window, retention)
        if late is not None:
            self.parent.pipeline.claim("topic", late)
            parent = self.parent
            windowed.late = parent.pipeline.add(nodes.Late, parent=parent.node, topic=late)
        return windowed

    @overload
    def aggregate(
        self,
        columns: Mapping[str, str] = ...,
        /,
        *,
        store: str,
        on_error: OnError | None = None,
        **named: str,
    ) -> Table[dict[str, Any]]: ...
    @overload
    def aggregate(
        self,
        initializer: Callable[[], R],
        adder: Callable[[R, V], R],
        *,
        store: str,
        returns: type[R] | None = None,
        merger: Callable[[R, R], R] | Callable[[Key, R, R], R] | None = None,
        on_error: OnError | None = None,
    ) -> Table[R]: ...
    @overload
    def aggregate(
        self,
        initializer: Callable[[], R],
        adder: Callable[[Key, R, V], R],
        *,
        store: str,
        returns: type[R] | None = None,
        merger: Callable[[R, R], R] | Callable[[Key, R, R], R] | None = None,
        on_error: OnError | None = None,
    ) -> Table[R]: ...
    def aggregate(  # type: ignore[misc]  # a column may have a parameter's name only in the mapping
        self,
        initializer: Mapping[str, str] | Function | None = None,
        adder: Function | None = None,
        *,
        store: str,
        returns: Contract | None = None,
        merger: Function | None = None,
        on_error: OnError | None = None,
        **columns: str,
    ) -> Table[Any]:
        """Aggregate each group into an object of SQL aggregates, such as `total="sum(amount)"`.

        Columns can also be passed as one mapping, such as `{"store": "count(*)"}`, in which columns
        can have any name.

        Python functions can be used instead of SQL. The functions are called in the order of the
        records. `initializer()` returns the initial aggregate, and `adder(aggregate, value)`
        returns the aggregate after a record. Session windows also need `merger(earlier, later)`,
        which returns the aggregate of the session into which a record merges two sessions.
        `returns` is the aggregate's type; without it, an aggregate must be plain JSON data. `adder`
        may return None to remove the aggregate. The next value is then added to a new initial
        aggregate.
        """
        if adder is None and (initializer is None or isinstance(initializer, Mapping)):
            if merger is not None or returns is not None:
                where = self.parent._where(f"aggregate into {store!r}")
                raise TopologyError(
                    f"{where}: SQL aggregates take no functions and no type.",
                    next_step="Leave merger= and returns= out.",
                )
            return self._aggregate_sql(store, {**(initializer or {}), **columns}, on_error)
        functions = self._with_merger({"initializer": initializer, "adder": adder}, merger, store)
        return self._aggregate_python(store, functions, returns, columns, on_error)

    @overload
    def aggregate_batch(
        self,
        initializer: Callable[[], R],
        adder: Callable[[R, list[V]], R | None],
        *,
        store: str,
        returns: type[R] | None = None,
        on_error: OnError | None = None,
    ) -> Table[R]: ...
    @overload
    def aggregate_batch(
        self,
        initializer: Callable[[], R],
        adder: Callable[[Key, R, list[V]], R | None],
        *,
        store: str,
        returns: type[R] | None = None,
        on_error: OnError | None = None,
    ) -> Table[R]: ...
    def aggregate_batch(
        self,
        initializer: Function,
        adder: Function,
        *,
        store: str,
        returns: Contract | None = None,
        on_error: OnError | None = None,
    ) -> Table[Any]:
        """Aggregate each group by a function that takes many values: `adder(aggregate, values)`.

        `aggregate_batch` is faster than `aggregate` if a key has several records in a batch.
        `values` is a list of consecutive values of a key, in the order of the records, and is never
        empty. Sluice decides which values a call gets, so the aggregate must not depend on how the
        values are divided: `adder(adder(a, x), y)` must equal `adder(a, x + y)`. If a later step
        needs the result after each record, as a join does, each call gets only one value. If the
        function raises an error, it is called again with one value at a time, and only the records
        that fail are rejected. Everything else is as in `aggregate`. Windows are not supported.
        """
        if self.window is not None:
            raise TopologyError(
                f"{self.parent._where(f'aggregate_batch into {store!r}')}: "
                "a function of many values cannot aggregate windows.",
                next_step="Use aggregate(...), whose function takes one value.",
            )
        functions = {"initializer": initializer, "adder": adder}
        return self._aggregate_python(store, functions, returns, {}, on_error, takes_list=True)

    def _with_merger(
        self,
        functions: Mapping[str, Any],
        merger: Function | None,
        store: str,
    ) -> dict[str, Any]:
        """Return the functions of an aggregate, and `merger` if the windows are sessions.

        Raises TopologyError for a merger without sessions.
        """
        if isinstance(self.window, SessionWindow):
            return {**functions, "merger": merger}
        if merger is not None:
            where = self.parent._where(f"aggregate into {store!r}")
            raise TopologyError(
                f"{where}: merger= is for session windows, whose aggregates can merge.",
                next_step="Leave merger= out, or group by sessions: windowed_by(session(...)).",
            )
        return dict(functions)

    @overload
    def reduce(
        self,
        reducer: Callable[[V, V], V],
        *,
        store: str,
        on_error: OnError | None = None,
    ) -> Table[V]: ...
    @overload
    def reduce(
        self,
        reducer: Callable[[Key, V, V], V],
        *,
        store: str,
        on_error: OnError | None = None,
    ) -> Table[V]: ...
    def reduce(self, reducer: Function, *, store: str, on_error: OnError | None = None) -> Table[V]:
        """Combine each group's values in the records' order, with `reducer(aggregate, value)`."""
        return self._reduce(store, reducer, None, on_error)

    @overload
    def cogroup(
        self, columns: Mapping[str, str] = ..., /, **named: str
    ) -> CogroupedStreams[dict[str, Any]]: ...
    @overload
    def cogroup(self, adder: Callable[[R, V], R], /) -> CogroupedStreams[R]: ...
    @overload
    def cogroup(self, adder: Callable[[Key, R, V], R], /) -> CogroupedStreams[R]: ...
    def cogroup(
        self,
        adder: Mapping[str, str] | Function | None = None,
        /,
        **columns: str,
    ) -> CogroupedStreams[Any]:
        """Begin an aggregate of several streams: this one, and those of further `cogroup` calls."""
        return CogroupedStreams[Any](self.parent.pipeline)._with(self, adder, columns)


class CogroupedStreams(Generic[R]):
    """Grouped streams of one aggregate, each with its own SQL aggregates or Python function."""

    def __init__(self, pipeline: Graph, parts: tuple[nodes.CogroupedStream, ...] = ()) -> None:
        self.pipeline = pipeline
        self.parts = parts
        self._window: WindowedStream[Any] | None = None
        self._first: GroupedStream[Any] | None = None

    @overload
    def cogroup(
        self,
        other: GroupedStream[Any],
        columns: Mapping[str, str] = ...,
        /,
        **named: str,
    ) -> CogroupedStreams[R]: ...
    @overload
    def cogroup(
        self, other: GroupedStream[V], adder: Callable[[R, V], R], /
    ) -> CogroupedStreams[R]: ...
    @overload
    def cogroup(
        self, other: GroupedStream[V], adder: Callable[[Key, R, V], R], /
    ) -> CogroupedStreams[R]: ...
    def cogroup(
        self,
        other: GroupedStream[Any],
        adder: Mapping[str, str] | Function | None = None,
        /,
        **columns: str,
    ) -> CogroupedStreams[R]:
        """Add another grouped stream.

        Pass columns such as `clicks="count(*)"`, or `adder(aggregate, value)`. A column that
        several streams have is one column, to which all of them add.
        """
        return self._with(other, adder, columns)

    def windowed_by(
        self,
        window: AnyWindow,
        *,
        late: str | None = None,
        retention: Duration | None = None,
        emit: EmitStrategy = "every",
        early: Duration | None = None,
    ) -> CogroupedStreams[R]:
        """Aggregate each window separately, as `GroupedStream.windowed_by` does."""
        assert self._first is not None
        if isinstance(window, CountWindow):
            raise TopologyError(
                f"{self._first.parent._where('windowed_by')}: {window} counts the records of one "
                "stream, but this aggregate has several streams.",
                next_step="Merge the streams first, or use a window of time.",
            )
        windowed = CogroupedStreams[R](self.pipeline, self.parts)
        windowed._first = self._first
        windowed._window = (self._window or self._first).windowed_by(
            window,
            late=late,
            retention=retention,
            emit=emit,
            early=early,
        )
        return windowed

    def aggregate(
        self,
        initializer: Callable[[], R] | None = None,
        *,
        store: str,
        returns: type[R] | None = None,
        merger: Callable[[R, R], R] | Callable[[Key, R, R], R] | None = None,
        on_error: OnError | None = None,
    ) -> Table[R]:
        """Aggregate the streams into a store.

        Python functions need an `initializer()`, and for sessions a `merger(earlier, later)`;
        `returns` is the aggregate's type. With SQL, the aggregate is an object with the columns of
        all streams.
        """
        assert self._first is not None
        grouped: GroupedStream[Any] = self._window or self._first
        columns = _columns_of(self.parts)
        if columns:
            if initializer is not None or merger is not None or returns is not None:
                where = grouped.parent._where(f"aggregate into {store!r}")
                raise TopologyError(
                    f"{where}: SQL aggregates take no functions and no type.",
                    next_step="Leave initializer, merger and returns= out.",
                )
            shape = Shape(dict.fromkeys(columns, ""))
            return grouped._add_store(store, columns, shape, None, self.parts, on_error=on_error)
        functions = grouped._with_merger({"initializer": initializer}, merger, store)
        return grouped._aggregate_python(store, functions, returns, {}, on_error, self.parts)

    def _with(
        self,
        grouped: GroupedStream[Any],
        adder: Mapping[str, str] | Function | None,
        named: Mapping[str, str],
    ) -> CogroupedStreams[Any]:
        step = "cogroup"
        where = f"{self.pipeline.name}: {step} at {source_line()}"
        arguments.require_instance(
            where, grouped, GroupedStream, "a grouped stream, such as group_by makes"
        )
        parent = grouped.parent
        if grouped.window is not None or self._window is not None:
            raise TopologyError(
                f"{where}: the stream has a window.", next_step="Call windowed_by after cogroup."
            )
        if grouped.by_window:
            require_plain_keys(where, [parent.node])
        if self._first is not None:
            self._first.parent._require_same_pipeline(where, parent)
        is_python = adder is not None and not isinstance(adder, Mapping)
        if self.parts and is_python is not (self.parts[0].adder is not None):
            raise TopologyError(
                f"{where}: some streams have SQL, and others a Python function.",
                next_step="Give all streams SQL aggregates, or give all of them a function.",
            )
        if is_python and named:
            raise TopologyError(
                f"{where} has both a Python function and SQL.",
                next_step="Use one store for the function, and another for the SQL.",
            )
        columns: dict[str, str] = dict(adder) if isinstance(adder, Mapping) else {}
        columns |= named
        called = None
        if is_python:
            called = grouped._function(
                where, adder, "aggregate", "value", value_type=parent.contract
            )
        elif not columns:
            raise TopologyError(
                f"{where} needs at least one column, or a function adder(aggregate, value).",
                next_step='Write for example cogroup(clicks="count(*)").',
            )
        parent._require_names(step, _columns_of(self.parts) | columns)
        parent._refuse_reserved_names(step, columns)
        for text in columns.values():
            parent._require_expression(text, step, aggregate=True)
        part = nodes.CogroupedStream(parent.node, grouped.key, columns, called, parent.contract)
        more = CogroupedStreams[Any](self.pipeline, (*self.parts, part))
        more._first = self._first or grouped
        return more


def _columns_of(parts: Sequence[nodes.CogroupedStream]) -> dict[str, str]:
    """Return the columns of cogrouped streams, each with the SQL of its first stream."""
    columns: dict[str, str] = {}
    for part in parts:
        for name, text in part.columns.items():
            columns.setdefault(name, text)
    return columns


class WindowedStream(GroupedStream[V]):
    """A grouped stream that is aggregated per window."""


class GroupedTable(Grouped[V]):
    """A table's rows grouped by a key.

    When a row changes, its old value is subtracted from its old group, and its new value is added
    to its new group.
    """

    @overload
    def aggregate(
        self,
        columns: Mapping[str, str] = ...,
        /,
        *,
        store: str,
        on_error: OnError | None = None,
        **named: str,
    ) -> Table[dict[str, Any]]: ...
    @overload
    def aggregate(
        self,
        initializer: Callable[[], R],
        adder: Callable[[R, V], R],
        subtractor: Callable[[R, V], R],
        *,
        store: str,
        returns: type[R] | None = None,
        on_error: OnError | None = None,
    ) -> Table[R]: ...
    @overload
    def aggregate(
        self,
        initializer: Callable[[], R],
        adder: Callable[[Key, R, V], R],
        subtractor: Callable[[Key, R, V], R],
        *,
        store: str,
        returns: type[R] | None = None,
        on_error: OnError | None = None,
    ) -> Table[R]: ...
    def aggregate(  # type: ignore[misc]  # a column may have a parameter's name only in the mapping
        self,
        initializer: Mapping[str, str] | Function | None = None,
        adder: Function | None = None,
        subtractor: Function | None = None,
        *,
        store: str,
        returns: Contract | None = None,
        on_error: OnError | None = None,
        **columns: str,
    ) -> Table[Any]:
        """Aggregate each group into an object of SQL aggregates, such as `total="sum(amount)"`.

        Columns can also be passed as one mapping, which allows any name. Python functions can be
        used instead of SQL. `initializer()` returns the initial aggregate. `adder(aggregate,
        value)` adds a row's value, and `subtractor(aggregate, value)` removes a row's old value;
        both return the new aggregate.
        """
        has_functions = adder is not None or subtractor is not None
        if not has_functions and (initializer is None or isinstance(initializer, Mapping)):
            return self._aggregate_sql(store, {**(initializer or {}), **columns}, on_error)
        functions = {"initializer": initializer, "adder": adder, "subtractor": subtractor}
        return self._aggregate_python(store, functions, returns, columns, on_error)

    @overload
    def reduce(
        self,
        adder: Callable[[V, V], V],
        subtractor: Callable[[V, V], V],
        *,
        store: str,
        on_error: OnError | None = None,
    ) -> Table[V]: ...
    @overload
    def reduce(
        self,
        adder: Callable[[Key, V, V], V],
        subtractor: Callable[[Key, V, V], V],
        *,
        store: str,
        on_error: OnError | None = None,
    ) -> Table[V]: ...
    def reduce(
        self,
        adder: Function,
        subtractor: Function,
        *,
        store: str,
        on_error: OnError | None = None,
    ) -> Table[V]:
        """Combine each group's values with `adder(aggregate, value)`.

        `subtractor(aggregate, value)` removes a row.
        """
        return self._reduce(store, adder, subtractor, on_error)
