"""What an author builds a pipeline with: streams, tables and groups. Every method adds a node to the pipeline."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, ClassVar, Literal, TypeAlias, overload

from sluice.errors import TopologyError
from sluice.topology import arguments, expression_checks, expressions, nodes
from sluice.topology.graph import Graph
from sluice.topology.serdes import Serde, Value, fields_of, is_object, serde_of
from sluice.topology.source_line import source_line
from sluice.topology.windows import Duration, kept_for, milliseconds
from sluice.values.records import CHANGE_METADATA, METADATA, TEXT_FIELD
from sluice.values.sql import quoted
from sluice.values.windows import AnyWindow, JoinWindow, SessionWindow, SlidingWindow, Window

Function: TypeAlias = Callable[..., Any]


@dataclass(frozen=True)
class Shape:
    """What is known of a value: its fields with their types (empty if unknown), and its Python type if it has one."""

    fields: dict[str, str]
    contract: type | None = None
    scalar: bool = False
    """The value is no object: its one field `value` is the value itself."""

    @property
    def kind(self) -> str:
        """The type of the whole value, with what is known of its fields; empty if nothing is."""
        if self.scalar:
            return self.fields.get(TEXT_FIELD, "")
        inner = ", ".join(f"{quoted(name)}: {kind}" for name, kind in self.fields.items())
        return f"STRUCT<{inner}>" if inner else ""

    @classmethod
    def joined(cls, left: Shape, right: Shape) -> Shape:
        """The shape of a join's results."""
        return cls({"left": left.kind, "right": right.kind})

    @classmethod
    def of(cls, contract: type | None, fields: dict[str, str]) -> Shape:
        """The shape of values of a declared type; of None nothing is known."""
        return cls(fields, contract, scalar=not is_object(contract))


class Handle:
    """A node of the pipeline, and the shape of the values there."""

    metadata: ClassVar[dict[str, str]] = METADATA
    """What expressions may use beside the fields."""

    def __init__(self, pipeline: Graph, node: nodes.Node, shape: Shape) -> None:
        self.pipeline = pipeline
        self.node = node
        self.shape = shape

    @property
    def fields(self) -> dict[str, str]:
        """The fields that an expression may use here, each with its Spark SQL type if that is known."""
        return self.shape.fields

    def _where(self, step: str) -> str:
        return f"{self.pipeline.name}: {step} at {source_line()}"

    def _together(self, where: str, other: Handle) -> None:
        if other.pipeline is not self.pipeline:
            raise TopologyError(f"{where}: the other one is of another pipeline, {other.pipeline.name!r}.")

    def _returned(self, step: str, returns: type | None) -> Shape:
        """The shape of what a function returns; TopologyError if `returns` is no type of values."""
        try:
            return Shape.of(returns, fields_of(returns))
        except TopologyError as error:
            raise TopologyError(f"{self._where(step)}: returns={error.detail}", next_step=error.next_step) from None

    def _check(self, text: str, step: str, need: expression_checks.Need = "", *, aggregate: bool = False) -> None:
        known = self.fields | self.metadata
        where = self._where(step)
        arguments.instance(where, text, str, "Write an expression of Spark SQL as a text, such as 'amount > 1'.")
        try:
            expression = expressions.parse(text)
        except TopologyError as error:
            raise TopologyError(f"{where}: {error.detail}", next_step=error.next_step) from None
        expressions.check(expression, known, where, aggregate=aggregate)
        expression_checks.require(text, known, where, need)

    def _columns(self, picked: tuple[Any, ...], named: dict[str, str]) -> dict[str, str]:
        where = self._where("map_values")
        for text in (*picked, *named.values()):
            arguments.instance(where, text, str, "Take one function alone, or names of fields and name='expression'.")
        columns = {name: expressions.reference(name) for name in picked} | named
        if taken := columns.keys() & self.metadata.keys():
            raise TopologyError(f"{where}: the names {', '.join(sorted(taken))} are Sluice's own.")
        if not columns:
            raise TopologyError(f"{where} names no field and no function.")
        for text in columns.values():
            self._check(text, "map_values")
        return columns

    def _mapped(self, columns: dict[str, str]) -> Shape:
        return Shape({name: self.fields.get(text, "") for name, text in columns.items()})

    def _sink(self, topic: str, value: Value | None, key: Function | None, **how: Any) -> None:
        where = self._where(f"to({topic!r})")
        self.pipeline.claim("topic", topic)
        encode = None if value is None else self._encoder(where, serde_of(value))
        for name, function in (("value", encode), ("key", key)):
            if function is not None:
                arguments.callable_with(where, function, name)
        arguments.choice(where, "delivery", how["delivery"], nodes.Delivery)
        self.pipeline.add(nodes.Sink, parent=self.node, topic=topic, encode=encode, encode_key=key, **how)

    def _encoder(self, where: str, serde: Serde) -> Function:
        """The function that makes a record's bytes; TopologyError if the serde has none for the values here."""
        if serde.is_text and not self.shape.scalar:
            raise TopologyError(
                f"{where}: the value is an object, not a text.", next_step="Make one with map_value('...')."
            )
        if serde.encode is None and not serde.is_text:
            raise TopologyError(
                f"{where}: {serde.contract!r} has no function that encodes.",
                next_step="Give a Serde with encode=, or leave value= out for JSON.",
            )
        return serde.encode or _encode_text


def _encode_text(value: Any) -> bytes:
    return str(value).encode()


def one_value(text_type: str = "") -> Shape:
    """The shape of a value that is no object."""
    return Shape({TEXT_FIELD: text_type}, scalar=True)


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
        arguments.callable_with(self._where("transform"), function, "frame")
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
            arguments.instance(self._where("merge"), other, Stream, "Streams are merged with streams.")
            self._together(self._where("merge"), other)
            if other.fields.keys() != self.fields.keys() or other.shape.scalar != self.shape.scalar:
                raise TopologyError(
                    f"{self._where('merge')}: one stream has the fields {', '.join(self.fields)}, another "
                    f" {', '.join(other.fields)}.",
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

    def to_table(self, *, store: str, on_error: nodes.OnError | None = None) -> Table:
        """The latest value of each key, as a table with a store; a record with the value null deletes."""
        self.pipeline.claim("store", store)
        node = self.pipeline.add(nodes.ToTable, parent=self.node, store=store, on_error=on_error)
        return Table(self.pipeline, node, self.shape)

    def group_by_key(self) -> GroupedStream:
        """Group by the record's key."""
        return self.group_by("_key")

    def group_by(self, key: str) -> GroupedStream:
        """Group by an expression; its value as text is the key of the stores that follow."""
        self._check(key, "group_by", "key")
        return GroupedStream(self, key, None)

    @overload
    def join(
        self, other: Stream, window: JoinWindow, *, how: nodes.How = "inner", on_error: nodes.OnError | None = None
    ) -> Stream: ...
    @overload
    def join(
        self,
        other: Table,
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
        arguments.instance(where, other, (Stream, Table), "A stream is joined with a stream or a table.")
        arguments.choice(where, "how", how, nodes.How)
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
            if not isinstance(other, GlobalTable):
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
    ) -> Processed:
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
        return Processed(self.pipeline, node)

    def deduplicate(self, by: str, *, within: Duration, on_error: nodes.OnError | None = None) -> Stream:
        """Let the first record of each id, the expression `by`, go on; drop and count others `within` that time."""
        self._check(by, "deduplicate")
        within_ms = milliseconds(within)
        arguments.at_least(self._where("deduplicate"), "within", within_ms, 0)
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
        known, given = _ARGUMENTS[gives]
        arguments.callable_with(self._where(step or known), getattr(function, "condition", function), *given)
        node = self.pipeline.add(
            nodes.Apply, parent=self.node, function=function, gives=gives, takes=self.shape.contract, returns=returns,
            fields=shape.fields, on_error=on_error,
        )  # fmt: skip
        return self._next(node, shape)

    def _next(self, node: nodes.Node, shape: Shape | None = None) -> Stream:
        return Stream(self.pipeline, node, shape or self.shape)


_NEW_KEY = "__key"


_ARGUMENTS = {
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
            f"process at {source_line()}: {given!r} is not the type of a store's values.",
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
    arguments.callable_with(f"{where}: process", process, "self", "record")


class Table(Handle):
    """The latest value of each key; its changes can be filtered, joined, grouped and written to a topic."""

    metadata = CHANGE_METADATA

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

    def group_by(self, key: str) -> GroupedTable:
        """Group the rows by an expression, to be aggregated with each row counted where it is now."""
        self._check(key, "group_by", "key")
        if nodes.window_of(self.node) is not None:
            raise TopologyError(
                f"{self.pipeline.name}: group_by at {source_line()}: the table is windowed.",
                next_step="Take its changes with to_stream() and group these.",
            )
        return GroupedTable(self, key, None)

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
        arguments.instance(where, other, Table, "A table is joined with a table; make one of a stream with to_table().")
        arguments.choice(where, "how", how, nodes.How)
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
            raise TopologyError(f"{self.pipeline.name}: suppress at {source_line()}: the table is not windowed.")
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
        arguments.choice(where, "when_full", when_full, Literal["emit_early", "shut_down"])
        arguments.at_least(where, "max_records", max_records, 1)
        arguments.at_least(where, "max_bytes", max_bytes, 1)
        arguments.at_least(where, "limit", limit_ms, 0)
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


_AGGREGATE_ARGUMENTS = {
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

    def count(self, *, store: str, on_error: nodes.OnError | None = None) -> Table:
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
                raise TopologyError(f"{where} needs a function {name}{_AGGREGATE_ARGUMENTS[name]}.")
            arguments.callable_with(f"{where}: {name}", function, *_AGGREGATE_ARGUMENTS[name])

    def _columns(self, store: str, columns: dict[str, str], on_error: nodes.OnError | None) -> Table:
        if not columns:
            raise TopologyError(
                f"{self.parent.pipeline.name}: aggregate into {store!r} at {source_line()} names no column."
            )
        return self._aggregate(store, columns, scalar=False, on_error=on_error)

    def _aggregate(self, store: str, columns: dict[str, str], *, scalar: bool, on_error: nodes.OnError | None) -> Table:
        for text in columns.values():
            self.parent._check(text, f"aggregate into {store!r}", aggregate=True)
        shape = one_value("BIGINT") if scalar else Shape(dict.fromkeys(columns, ""))
        return self._add(store, columns, shape, scalar=scalar, on_error=on_error)

    def _python(self, store: str, python: nodes.PythonAggregate, on_error: nodes.OnError | None) -> Table:
        shape = Shape.of(python.returns, python.fields)
        return self._add(store, {}, shape, scalar=shape.scalar, python=python, on_error=on_error)

    def _add(self, store: str, columns: dict[str, str], shape: Shape, **more: Any) -> Table:
        pipeline = self.parent.pipeline
        pipeline.claim("store", store)
        node = pipeline.add(
            nodes.Aggregate, parent=self.parent.node, key=self.key, window=self.window, store=store, columns=columns,
            late=self.late, retention_ms=self.retention_ms, **more,
        )  # fmt: skip
        return Table(pipeline, node, shape)


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
        arguments.instance(
            where, window, (Window, SlidingWindow, SessionWindow), 'Give for example tumbling("1 minute").'
        )
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
    ) -> Table:
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

    def reduce(self, reducer: Callable[[Any, Any], Any], *, store: str, on_error: nodes.OnError | None = None) -> Table:
        """The values put together two at a time, in order: `reducer(so_far, value)` is of the values' own type."""
        arguments.callable_with(self.parent._where(f"reduce into {store!r}"), reducer, "so_far", "value")
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
    ) -> Table:
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
    ) -> Table:
        """The values put together: `adder(so_far, value)`, and `subtractor(so_far, value)` for one that goes."""
        for function in (adder, subtractor):
            arguments.callable_with(self.parent._where(f"reduce into {store!r}"), function, "so_far", "value")
        shape = self.parent.shape
        fields = shape.fields if shape.contract is not None else fields_of(None)
        python = nodes.PythonAggregate(None, adder, subtractor, None, shape.contract, shape.contract, fields)
        return self._python(store, python, on_error)


class Processed:
    """What a processor forwards: its outputs by name."""

    def __init__(self, pipeline: Graph, node: nodes.Process) -> None:
        self.pipeline = pipeline
        self.node = node

    def __getitem__(self, output: str) -> Stream:
        """The stream of a named output."""
        if output not in self.node.returns:
            raise TopologyError(
                f"{self.pipeline.name} at {source_line()}: the processor has no output {output!r}.",
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
