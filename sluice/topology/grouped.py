"""Grouped streams and tables, to be aggregated: each aggregation is a store that can be queried by its name."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from sluice.errors import TopologyError
from sluice.topology import checks, nodes, tables
from sluice.topology.author import line
from sluice.topology.handles import Handle, Shape, one_value
from sluice.topology.serdes import fields_of
from sluice.topology.windows import AnyWindow, Duration, SessionWindow, SlidingWindow, Window, kept_for

if TYPE_CHECKING:
    from sluice.topology.pipeline import Pipeline
    from sluice.topology.streams import Stream


_CALLED = {
    "initializer": (),
    "adder": ("key", "value", "aggregate"),
    "subtractor": ("key", "value", "aggregate"),
    "merger": ("key", "one", "other"),
}
"""The functions of an aggregate, and what each is given."""


class _Grouped:
    """What grouped streams and tables have in common."""

    def __init__(self, parent: Handle, key: str, window: AnyWindow | None) -> None:
        self.parent = parent
        self.key = key
        self.window = window
        self.late: nodes.Late | None = None
        self.retention_ms: int | None = None

    def count(self, *, store: str, on_error: nodes.OnError | None = None) -> tables.Table:
        """The number of records: a JSON number."""
        return self._aggregate(store, {"count": "count(*)"}, scalar=True, on_error=on_error)

    def _functions(self, store: str, columns: dict[str, str], functions: Mapping[str, Any]) -> None:
        """TopologyError unless an aggregate by functions has all it needs, and no expressions."""
        where = self.parent._where(f"aggregate into {store!r}")
        if columns:
            raise TopologyError(
                f"{where} has functions and expressions.", next_step="Give either; two stores can have one each."
            )
        for name, function in functions.items():
            if function is None:
                raise TopologyError(f"{where} needs a function {name}{_CALLED[name]}.")
            checks.callable_with(f"{where}: {name}", function, *_CALLED[name])

    def _columns(self, store: str, columns: dict[str, str], on_error: nodes.OnError | None) -> tables.Table:
        if not columns:
            raise TopologyError(f"{self.parent.pipeline.name}: aggregate into {store!r} at {line()} names no column.")
        return self._aggregate(store, columns, scalar=False, on_error=on_error)

    def _aggregate(
        self, store: str, columns: dict[str, str], *, scalar: bool, on_error: nodes.OnError | None
    ) -> tables.Table:
        for text in columns.values():
            self.parent._check(text, f"aggregate into {store!r}", aggregate=True)
        shape = one_value("BIGINT") if scalar else Shape(dict.fromkeys(columns, ""))
        return self._add(store, columns, shape, scalar=scalar, on_error=on_error)

    def _python(self, store: str, python: nodes.PythonAggregate, on_error: nodes.OnError | None) -> tables.Table:
        shape = Shape.of(python.returns, python.fields)
        return self._add(store, {}, shape, scalar=shape.scalar, python=python, on_error=on_error)

    def _add(self, store: str, columns: dict[str, str], shape: Shape, **more: Any) -> tables.Table:
        pipeline = self.parent.pipeline
        pipeline.claim("store", store)
        node = pipeline.add(
            nodes.Aggregate, parent=self.parent.node, key=self.key, window=self.window, store=store, columns=columns,
            late=self.late, retention_ms=self.retention_ms, **more,
        )  # fmt: skip
        return tables.Table(pipeline, node, shape)


class GroupedStream(_Grouped):
    """Records grouped by a key."""

    def windowed_by(
        self, window: AnyWindow, *, late: str | None = None, retention: Duration | None = None
    ) -> WindowedStream:
        """Aggregate each window of event time by itself.

        Records that are late for every window are counted; to the topic `late` they are written too, with the value
        that they have here. A window can be queried until stream time is more than `retention` past its end; without
        it, for ever.
        """
        where = self.parent._where("windowed_by")
        checks.instance(where, window, (Window, SlidingWindow, SessionWindow), 'Give for example tumbling("1 minute").')
        windowed = WindowedStream(self.parent, self.key, window)
        if retention is not None:
            windowed.retention_ms = kept_for(window, retention)
        if late is not None:
            self.parent.pipeline.claim("topic", late)
            windowed.late = self.parent.pipeline.add(nodes.Late, parent=self.parent.node, topic=late)
        return windowed

    def aggregate(
        self,
        initializer: Callable[[], Any] | None = None,
        adder: Callable[[str, Any, Any], Any] | None = None,
        *,
        store: str,
        returns: type | None = None,
        merger: Callable[[str, Any, Any], Any] | None = None,
        on_error: nodes.OnError | None = None,
        **columns: str,
    ) -> tables.Table:
        """A JSON object with one field for each named Spark SQL aggregate, such as `total="sum(amount)"`.

        Or by Python functions, called in the order of the records: `initializer()` makes the first aggregate,
        `adder(key, value, aggregate)` the next; of session windows `merger(key, one, other)` makes one of two.
        `returns` is the aggregate's type, a Struct perhaps.
        """
        if initializer is None and adder is None:
            return self._columns(store, columns, on_error)
        merges = isinstance(self.window, SessionWindow)
        given = {"initializer": initializer, "adder": adder} | ({"merger": merger} if merges else {})
        self._functions(store, columns, given)
        assert adder is not None
        fields = self.parent._returned(f"aggregate into {store!r}", returns).fields
        takes = self.parent.shape.contract
        python = nodes.PythonAggregate(initializer, adder, None, merger, takes, returns, fields)
        return self._python(store, python, on_error)

    def reduce(
        self, reducer: Callable[[Any, Any], Any], *, store: str, on_error: nodes.OnError | None = None
    ) -> tables.Table:
        """The values put together two at a time, in order: `reducer(so_far, value)` is of the values' own type."""
        checks.callable_with(self.parent._where(f"reduce into {store!r}"), reducer, "so_far", "value")
        shape = self.parent.shape
        fields = shape.fields if shape.contract is not None else fields_of(None)
        python = nodes.PythonAggregate(None, reducer, None, reducer, shape.contract, shape.contract, fields)
        return self._python(store, python, on_error)


class WindowedStream(GroupedStream):
    """A grouped stream whose aggregations are kept for each window."""


class GroupedTable(_Grouped):
    """A table's rows grouped by a key: a row that changes is taken from its group and added to the new one."""

    def aggregate(
        self,
        initializer: Callable[[], Any] | None = None,
        adder: Callable[[str, Any, Any], Any] | None = None,
        subtractor: Callable[[str, Any, Any], Any] | None = None,
        *,
        store: str,
        returns: type | None = None,
        on_error: nodes.OnError | None = None,
        **columns: str,
    ) -> tables.Table:
        """A JSON object of named Spark SQL aggregates that can be taken back: `count`, `sum`, `avg`, `collect_list`.

        Or by Python functions: `adder(key, value, aggregate)` and `subtractor(key, value, aggregate)`.
        """
        given = {"initializer": initializer, "adder": adder, "subtractor": subtractor}
        if not any(given.values()):
            return self._columns(store, columns, on_error)
        self._functions(store, columns, given)
        assert adder is not None
        fields = self.parent._returned(f"aggregate into {store!r}", returns).fields
        takes = self.parent.shape.contract
        python = nodes.PythonAggregate(initializer, adder, subtractor, None, takes, returns, fields)
        return self._python(store, python, on_error)

    def reduce(
        self,
        adder: Callable[[Any, Any], Any],
        subtractor: Callable[[Any, Any], Any],
        *,
        store: str,
        on_error: nodes.OnError | None = None,
    ) -> tables.Table:
        """The values put together: `adder(so_far, value)`, and `subtractor(so_far, value)` for one that goes."""
        for function in (adder, subtractor):
            checks.callable_with(self.parent._where(f"reduce into {store!r}"), function, "so_far", "value")
        shape = self.parent.shape
        fields = shape.fields if shape.contract is not None else fields_of(None)
        python = nodes.PythonAggregate(None, adder, subtractor, None, shape.contract, shape.contract, fields)
        return self._python(store, python, on_error)


class Processed:
    """What a processor forwards: its outputs by name."""

    def __init__(self, pipeline: Pipeline, node: nodes.Process) -> None:
        self.pipeline = pipeline
        self.node = node

    def __getitem__(self, output: str) -> Stream:
        """The stream of a named output."""
        from sluice.topology.streams import Stream

        if output not in self.node.returns:
            raise TopologyError(
                f"{self.pipeline.name} at {line()}: the processor has no output {output!r}.",
                next_step=f"There are: {', '.join(self.node.returns)}.",
            )
        returns = self.node.returns[output]
        fields = fields_of(returns)
        branch = self.pipeline.add(nodes.Branch, parent=self.node, output=output, fields=fields)
        return Stream(self.pipeline, branch, Shape.of(returns, fields))

    @property
    def output(self) -> Stream:
        """The stream of what is forwarded to no output by name."""
        return self["output"]
