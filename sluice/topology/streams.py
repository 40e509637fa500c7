"""Streams as an author handles them: every method adds a node to the pipeline."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
from typing import Any, overload

from sluice.errors import TopologyError
from sluice.topology import checks, expressions, grouped, nodes, tables
from sluice.topology.author import line
from sluice.topology.handles import Function, Handle, Shape, one_value
from sluice.topology.serdes import Value
from sluice.topology.windows import Duration, JoinWindow, milliseconds


class Stream(Handle):
    """Records one after the other."""

    def to(
        self,
        topic: str,
        *,
        value: Value | None = None,
        key: Function | None = None,
        delivery: nodes.Delivery = "exactly_once",
        on_error: nodes.OnError | None = None,
    ) -> None:
        """Write every record to `topic`: the key as text, the value as JSON.

        `value=str` writes a text as it is, a Serde by its `encode`; `key` makes the key's bytes of its text. `on_error`
        says what becomes of a record that cannot be encoded, or is larger than the topic takes.
        """
        self._sink(topic, value, key, delivery=delivery, on_error=on_error)

    def filter(self, where: str | Function, *, on_error: nodes.OnError | None = None) -> Stream:
        """Keep the records for which the Spark SQL condition, or the Python function of the value, is true."""
        if not isinstance(where, str):
            return self._apply(where, "condition", self.shape, on_error=on_error)
        self._check(where, "filter", "condition")
        return self._next(self.pipeline.add(nodes.Filter, parent=self.node, where=where, on_error=on_error))

    def filter_not(self, where: str | Function, *, on_error: nodes.OnError | None = None) -> Stream:
        """Keep the records for which the condition is not true."""
        if not isinstance(where, str):
            return self._apply(_Not(where), "condition", self.shape, on_error=on_error)
        self._check(where, "filter_not", "condition")
        return self.filter(f"NOT coalesce({where}, false)", on_error=on_error)

    def map_values(
        self, *picked: str | Function, returns: type | None = None, on_error: nodes.OnError | None = None, **named: str
    ) -> Stream:
        """The value becomes the picked fields and the named expressions, or what a Python function makes of it.

        A function takes the value as its contract's Struct, or as JSON gives it, and says with `returns` of which type
        its result is, so that later expressions know its fields. The key stays.
        """
        if len(picked) == 1 and callable(picked[0]) and not named:
            return self._apply(picked[0], "value", self._returned("map_values", returns), returns, on_error=on_error)
        columns = self._columns(picked, named)
        node = self.pipeline.add(nodes.MapValues, parent=self.node, columns=columns, on_error=on_error)
        return self._next(node, self._mapped(columns))

    def transform(self, function: Function, *, returns: type) -> Stream:
        """The value becomes columns that `function(frame)` makes of a Spark DataFrame of the value's fields.

        `returns`, a Struct, says which columns. The function may compute columns with all that Spark has, but not add,
        drop or reorder rows, and it leaves the column `_row` alone: that is for filters, flat_map_values and stores. It
        is given a row for every record, with nulls for those that did not get here. What fails in it ends the run.
        """
        checks.callable_with(self._where("transform"), function, "frame")
        shape = self._returned("transform", returns)
        if shape.scalar:
            raise TopologyError(f"{self._where('transform')}: returns={returns!r} names no columns; a Struct does.")
        node = self.pipeline.add(nodes.Transform, parent=self.node, function=function, fields=shape.fields)
        return self._next(node, shape)

    def map_value(self, value: str, *, on_error: nodes.OnError | None = None) -> Stream:
        """The value becomes the expression's own, no object: later expressions call it `value`."""
        self._check(value, "map_value")
        node = self.pipeline.add(nodes.MapValue, parent=self.node, value=value, on_error=on_error)
        return self._next(node, one_value(self.fields.get(value, "")))

    def map(
        self,
        function: Function | None = None,
        *,
        returns: type | None = None,
        key: str = "_key",
        on_error: nodes.OnError | None = None,
        **named: str,
    ) -> Stream:
        """Key and value become the expressions' values, or what `function(key, value)` returns: the two of them."""
        if function is not None:
            if named:
                raise TopologyError(f"{self._where('map')} has a function and expressions.", next_step="Give either.")
            return self._apply(function, "record", self._returned("map", returns), returns, on_error=on_error)
        self._check(key, "map")
        columns = self._columns((), named)
        # The new key is a field until the value is made, so that both are made of the old record.
        both = self.pipeline.add(
            nodes.MapValues, parent=self.node, columns={**columns, _NEW_KEY: key}, on_error=on_error
        )
        mapped = self._next(both, Shape(dict.fromkeys([*columns, _NEW_KEY], ""))).select_key(
            _NEW_KEY, on_error=on_error
        )
        return mapped.map_values(*columns)

    def flat_map_values(
        self, items: str | Function, *, returns: type | None = None, on_error: nodes.OnError | None = None
    ) -> Stream:
        """A record for each element of the array, or of what the function of the value returns; the key stays.

        Elements that are structs become the value; anything else is called `value`.
        """
        if not isinstance(items, str):
            return self._apply(items, "values", self._returned("flat_map_values", returns), returns, on_error=on_error)
        self._check(items, "flat_map_values", "array")
        fields = expressions.element_fields(self.fields.get(items, ""))
        return self._flat(items, fields, on_error)

    def flat_map(
        self, items: str | Function, *, returns: type | None = None, on_error: nodes.OnError | None = None
    ) -> Stream:
        """A record for each element: structs of `key` and `value`, or the pairs that `function(key, value)` returns."""
        if not isinstance(items, str):
            return self._apply(items, "records", self._returned("flat_map", returns), returns, on_error=on_error)
        self._check(items, "flat_map", "array")
        elements = self._flat(items, {"key": "", "value": ""}, on_error)
        return elements.select_key("key", on_error=on_error).map_value("value", on_error=on_error)

    def select_key(self, key: str | Function, *, on_error: nodes.OnError | None = None) -> Stream:
        """The key becomes the expression's value as text, or what the function of the value returns."""
        if not isinstance(key, str):
            return self._apply(key, "key", self.shape, on_error=on_error)
        self._check(key, "select_key")
        return self._next(self.pipeline.add(nodes.SelectKey, parent=self.node, key=key, on_error=on_error))

    def peek(self, function: Function, *, on_error: nodes.OnError | None = None) -> Stream:
        """Call `function(key, value)` for every record, in the tasks, for what it does: to log, or to count.

        A batch that is done again after a failure calls it again.
        """
        return self._apply(function, "nothing", self.shape, on_error=on_error)

    def foreach(self, function: Function, *, on_error: nodes.OnError | None = None) -> None:
        """`peek` as a stream's last step."""
        self._apply(function, "nothing", self.shape, on_error=on_error, step="foreach")

    def repartition(self) -> Stream:
        """The same stream. Grouping and joining shuffle by key as they need: this is here for who looks for it."""
        return self

    def merge(self, *others: Stream) -> Stream:
        """The records of this stream and the others, whose values have the same fields."""
        for other in others:
            checks.instance(self._where("merge"), other, Stream, "Streams are merged with streams.")
            self._together(self._where("merge"), other)
            if other.fields.keys() != self.fields.keys() or other.shape.scalar != self.shape.scalar:
                raise TopologyError(
                    f"{self.pipeline.name}: merge at {line()}: one stream has the fields {', '.join(self.fields)}, "
                    f"another {', '.join(other.fields)}.",
                    next_step="Bring them to the same fields with map_values, or to one value with map_value.",
                )
        node = self.pipeline.add(nodes.Merge, streams=(self.node, *(other.node for other in others)))
        same = all(other.shape.contract is self.shape.contract for other in others)
        return self._next(node, Shape(self.fields, self.shape.contract if same else None, self.shape.scalar))

    def split(self, *, on_error: nodes.OnError | None = None, **branches: str) -> dict[str, Stream]:
        """A stream for each condition, by its name: a record goes to the first whose condition is true, or nowhere.

        A last branch `rest="true"` takes what the others leave.
        """
        streams, left = {}, self
        for name, where in branches.items():
            streams[name] = left.filter(where, on_error=on_error)
            left = left.filter_not(where, on_error=on_error)
        return streams

    def to_table(self, *, store: str, on_error: nodes.OnError | None = None) -> tables.Table:
        """The latest value of each key, as a table with a store; a record with the value null deletes."""
        self.pipeline.claim("store", store)
        node = self.pipeline.add(nodes.ToTable, parent=self.node, store=store, on_error=on_error)
        return tables.Table(self.pipeline, node, self.shape)

    def group_by_key(self) -> grouped.GroupedStream:
        """Group by the record's key."""
        return self.group_by("_key")

    def group_by(self, key: str) -> grouped.GroupedStream:
        """Group by an expression; its value as text is the key of the stores that follow."""
        self._check(key, "group_by", "key")
        return grouped.GroupedStream(self, key, None)

    @overload
    def join(
        self, other: Stream, window: JoinWindow, *, how: nodes.How = "inner", on_error: nodes.OnError | None = None
    ) -> Stream: ...
    @overload
    def join(
        self,
        other: tables.Table,
        *,
        how: nodes.How = "inner",
        on: str | None = None,
        on_error: nodes.OnError | None = None,
    ) -> Stream: ...
    def join(
        self,
        other: Handle,
        window: JoinWindow | None = None,
        *,
        how: nodes.How = "inner",
        on: str | None = None,
        on_error: nodes.OnError | None = None,
    ) -> Stream:
        """Each record beside those of the other with the same key: the value has the fields `left` and `right`.

        With a stream: all within the `window`. With a table: its value at that moment. With a global table `on` may
        name an expression as the key to look up. `how`: inner; left, where what has no match has a `right` of null;
        outer (of two streams), where it may be the `left` too.
        """
        where = self._where("join")
        checks.instance(where, other, (Stream, tables.Table), "A stream is joined with a stream or a table.")
        checks.choice(where, "how", how, nodes.How)
        self._together(where, other)
        if isinstance(other, Stream):
            if not isinstance(window, JoinWindow) or on is not None:
                raise TopologyError(
                    f"{where}: two streams are joined by key within a window.",
                    next_step='Write join(other, within("5 minutes")).',
                )
            return self._joined(other, "stream-stream", how, window=window, on_error=on_error)
        if window is not None or how == "outer":
            raise TopologyError(f"{where}: a stream and a table are joined inner or left, without a window.")
        if on is not None:
            if not isinstance(other, tables.GlobalTable):
                raise TopologyError(
                    f"{where}: on= is for global tables.", next_step="Re-key the stream with select_key first."
                )
            self._check(on, "join")
        return self._joined(other, "stream-table", how, on=on, on_error=on_error)

    def left_join(self, other: Any, *window: JoinWindow, **more: Any) -> Stream:
        """`join` with `how="left"`."""
        return self.join(other, *window, how="left", **more)

    def outer_join(self, other: Stream, window: JoinWindow, **more: Any) -> Stream:
        """`join` with `how="outer"`."""
        return self.join(other, window, how="outer", **more)

    def process(
        self,
        processor: type,
        *,
        stores: Mapping[str, Any] | None = None,
        returns: type | None = None,
        outputs: dict[str, type | None] | None = None,
        queryable: bool = True,
        on_error: nodes.OnError | None = None,
    ) -> grouped.Processed:
        """Run an author's processor over each key's records, in order: see `sluice.Processor`.

        `stores` names its key-value stores, each with the type of its values (`Any`: what JSON gives), or with type
        and time to live: `{"points": Decimal, "seen": (str, "7 days")}`. What it forwards is the stream's next
        value, of type `returns`; `outputs` names further outputs with their types.

        The stores are queried like any other, unless they are not `queryable`: by the record's key, the value is an
        object of the entries that the store holds for it.
        """
        _check_processor(self._where("process"), processor)
        for name in (stores or {}) if queryable else ():
            self.pipeline.claim("store", name)
        kept = {name: _kept(given) for name, given in (stores or {}).items()}
        named = {"output": returns, **(outputs or {})}
        node = self.pipeline.add(
            nodes.Process, parent=self.node, processor=processor, stores=kept, takes=self.shape.contract,
            returns=named, queryable=queryable, on_error=on_error,
        )  # fmt: skip
        return grouped.Processed(self.pipeline, node)

    def deduplicate(self, by: str, *, within: Duration, on_error: nodes.OnError | None = None) -> Stream:
        """Let the first record of each id, the expression `by`, go on; drop and count others `within` that time."""
        self._check(by, "deduplicate")
        within_ms = milliseconds(within)
        checks.at_least(self._where("deduplicate"), "within", within_ms, 0)
        node = self.pipeline.add(nodes.Deduplicate, parent=self.node, by=by, within_ms=within_ms, on_error=on_error)
        return self._next(node)

    def _joined(self, other: Handle, kind: Any, how: nodes.How, **more: Any) -> Stream:
        node = self.pipeline.add(nodes.Join, left=self.node, right=other.node, how=how, kind=kind, **more)
        return self._next(node, Shape.joined(self.shape, other.shape))

    def _flat(self, items: str, fields: dict[str, str], on_error: nodes.OnError | None) -> Stream:
        node = self.pipeline.add(nodes.FlatMapValues, parent=self.node, items=items, fields=fields, on_error=on_error)
        return self._next(node, Shape(fields) if fields else one_value())

    def _apply(
        self,
        function: Any,
        gives: str,
        shape: Shape,
        returns: type | None = None,
        *,
        on_error: nodes.OnError | None,
        step: str = "",
    ) -> Stream:
        known, given = _CALLED[gives]
        checks.callable_with(self._where(step or known), getattr(function, "condition", function), *given)
        node = self.pipeline.add(
            nodes.Apply, parent=self.node, function=function, gives=gives, takes=self.shape.contract, returns=returns,
            fields=shape.fields, on_error=on_error,
        )  # fmt: skip
        return self._next(node, shape)

    def _next(self, node: nodes.Node, shape: Shape | None = None) -> Stream:
        return Stream(self.pipeline, node, shape or self.shape)


_NEW_KEY = "__key"


_CALLED = {
    "value": ("map_values", ("value",)),
    "values": ("flat_map_values", ("value",)),
    "record": ("map", ("key", "value")),
    "records": ("flat_map", ("key", "value")),
    "condition": ("filter", ("value",)),
    "key": ("select_key", ("value",)),
    "nothing": ("peek", ("key", "value")),
}
"""What a function gives → the step that it is of, and what it is given."""


class _Not:
    """The opposite of a condition."""

    def __init__(self, condition: Function) -> None:
        self.condition = condition

    def __call__(self, value: Any) -> bool:
        return not self.condition(value)


def _kept(given: Any) -> tuple[Any, int | None]:
    """A store's type and its time to live in ms."""
    kind, ttl = given if isinstance(given, tuple) else (given, None)
    if kind is None or isinstance(kind, str | int | timedelta):
        raise TopologyError(
            f"process at {line()}: {given!r} is not the type of a store's values.",
            next_step='Write for example {"points": Decimal} or {"points": (Decimal, "7 days")}.',
        )
    return kind, None if ttl is None else milliseconds(ttl)


def _check_processor(where: str, processor: Any) -> None:
    process = getattr(processor, "process", None)
    if not (isinstance(processor, type) and callable(process)):
        raise TopologyError(
            f"{where}: {processor!r} is no class with a method process(self, record).",
            next_step="Give the class itself: one object of it is made in every task.",
        )
    checks.callable_with(f"{where}: process", process, "self", "record")
