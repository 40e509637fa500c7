"""Streams and tables as an author handles them: every method adds a node to the pipeline."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, Literal

from sluice.errors import TopologyError
from sluice.topology import expressions, nodes
from sluice.topology.author import line
from sluice.topology.windows import Window

if TYPE_CHECKING:
    from sluice.topology.pipeline import Pipeline


class _Handle:
    """What a stream and a table have in common: a node, and the fields an expression may use there."""

    metadata: ClassVar[dict[str, str]] = expressions.METADATA
    """What expressions may use beside the fields."""

    def __init__(self, pipeline: Pipeline, node: nodes.Node, fields: dict[str, str]) -> None:
        self.pipeline = pipeline
        self.node = node
        self.fields = fields

    def _check(self, text: str, step: str, *, aggregate: bool = False) -> None:
        known = self.fields | self.metadata
        where = f"{self.pipeline.name}: {step} at {line()}"
        try:
            expression = expressions.parse(text)
        except TopologyError as error:
            raise TopologyError(f"{where}: {error.detail}", next_step=error.next_step) from None
        expressions.check(expression, known, where, aggregate=aggregate)

    def _columns(self, picked: tuple[str, ...], named: dict[str, str]) -> dict[str, str]:
        columns = {name: expressions.reference(name) for name in picked} | named
        if taken := columns.keys() & self.metadata.keys():
            raise TopologyError(
                f"{self.pipeline.name}: map_values at {line()}: the names {', '.join(sorted(taken))} are Sluice's own."
            )
        for text in columns.values():
            self._check(text, "map_values")
        return columns

    def _sink(self, topic: str) -> None:
        self.pipeline.claim("topic", topic)
        self.pipeline.add(nodes.Sink, parent=self.node, topic=topic)


class Stream(_Handle):
    """Records one after the other."""

    def to(self, topic: str) -> None:
        """Write every record to `topic`: the key as text, the value as a JSON object."""
        self._sink(topic)

    def filter(self, where: str) -> Stream:
        """Keep the records for which the Spark SQL condition is true."""
        self._check(where, "filter")
        return Stream(self.pipeline, self.pipeline.add(nodes.Filter, parent=self.node, where=where), self.fields)

    def filter_not(self, where: str) -> Stream:
        """Keep the records for which the condition is not true."""
        self._check(where, "filter_not")
        return self.filter(f"NOT coalesce({where}, false)")

    def map_values(self, *picked: str, **named: str) -> Stream:
        """The value becomes the picked fields and the named expressions; the key stays."""
        columns = self._columns(picked, named)
        node = self.pipeline.add(nodes.MapValues, parent=self.node, columns=columns)
        return Stream(self.pipeline, node, {name: self.fields.get(text, "") for name, text in columns.items()})

    def select_key(self, key: str) -> Stream:
        """The key becomes the expression's value as text; the value stays."""
        self._check(key, "select_key")
        return Stream(self.pipeline, self.pipeline.add(nodes.SelectKey, parent=self.node, key=key), self.fields)

    def split(self, **branches: str) -> dict[str, Stream]:
        """A stream for each condition, by its name: a record goes to the first whose condition is true, or nowhere.

        A last branch `rest="true"` takes what the others leave.
        """
        streams, left = {}, self
        for name, where in branches.items():
            streams[name] = left.filter(where)
            left = left.filter_not(where)
        return streams

    def group_by_key(self) -> GroupedStream:
        """Group by the record's key."""
        return self.group_by("_key")

    def group_by(self, key: str) -> GroupedStream:
        """Group by an expression; its value as text is the key of the stores that follow."""
        self._check(key, "group_by")
        return GroupedStream(self, key, None)


class GroupedStream:
    """Records grouped by a key, to be aggregated: each aggregation is a store that can be queried by its name."""

    def __init__(self, stream: Stream, key: str, window: Window | None) -> None:
        self.stream = stream
        self.key = key
        self.window = window

    def windowed_by(self, window: Window) -> WindowedStream:
        """Aggregate each window of event time by itself."""
        return WindowedStream(self.stream, self.key, window)

    def count(self, *, store: str) -> Table:
        """The number of records: a JSON number."""
        return self._aggregate(store, {"count": "count(*)"}, scalar=True)

    def aggregate(self, *, store: str, **columns: str) -> Table:
        """A JSON object with one field for each named Spark SQL aggregate, such as `total="sum(amount)"`."""
        if not columns:
            raise TopologyError(f"{self.stream.pipeline.name}: aggregate into {store!r} at {line()} names no column.")
        return self._aggregate(store, columns, scalar=False)

    def _aggregate(self, store: str, columns: dict[str, str], *, scalar: bool) -> Table:
        stream, pipeline = self.stream, self.stream.pipeline
        pipeline.claim("store", store)
        for text in columns.values():
            stream._check(text, f"aggregate into {store!r}", aggregate=True)
        node = pipeline.add(
            nodes.Aggregate,
            parent=stream.node,
            key=self.key,
            window=self.window,
            store=store,
            columns=columns,
            scalar=scalar,
        )
        return Table(pipeline, node, dict.fromkeys(columns, ""))


class WindowedStream(GroupedStream):
    """A grouped stream whose aggregations are kept for each window."""


class Table(_Handle):
    """The latest value of each key; its changes can be joined, mapped and written to a topic."""

    metadata = expressions.CHANGE_METADATA

    def to(self, topic: str) -> None:
        """Write every change to `topic`: the key as text, the value as JSON.

        The window of a windowed store's change is in the headers `window_start` and `window_end`, as epoch ms.
        """
        self._sink(topic)

    def join(self, table: GlobalTable, *, how: Literal["inner", "left"] = "inner") -> Table:
        """Each change beside the global table's value for the same key, as fields `left` and `right`."""
        if isinstance(self.node, nodes.Aggregate) and self.node.window is not None:
            raise TopologyError(
                f"{self.pipeline.name}: join at {line()}: {self.node.store!r} is windowed; its key matches no table's."
            )
        node = self.pipeline.add(nodes.TableJoin, left=self.node, right=table.node, how=how)
        return Table(self.pipeline, node, {"left": "", "right": ""})

    def map_values(self, *picked: str, **named: str) -> Table:
        """The value becomes the picked fields and the named expressions."""
        columns = self._columns(picked, named)
        node = self.pipeline.add(nodes.MapValues, parent=self.node, columns=columns)
        return Table(self.pipeline, node, {name: self.fields.get(text, "") for name, text in columns.items()})


class GlobalTable(_Handle):
    """The latest value of each key of a topic, whole on every worker."""

    node: nodes.Source
