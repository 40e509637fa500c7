"""The nodes of a topology, as plain values; the handles (`streams`, `tables`, ...) are how an author makes them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from typing_extensions import override

from sluice.topology.serdes import Serde
from sluice.values.records import Delivery as Delivery
from sluice.values.records import How as How
from sluice.values.records import OnError as OnError
from sluice.values.records import OnNull as OnNull
from sluice.values.records import OnTime as OnTime
from sluice.values.windows import AnyWindow, JoinWindow


@dataclass(frozen=True, eq=False)
class Node:
    """One step. `number` is its place in the pipeline; `at` is the author's `file:line`."""

    number: int
    at: str
    on_error: OnError = field(default="dead_letter", kw_only=True)
    """What becomes of a record that fails here."""

    @property
    def name(self) -> str:
        """The step's name in drawings and messages."""
        return f"{type(self).__name__.lower()}-{self.number}"


@dataclass(frozen=True, eq=False)
class Source(Node):
    """A topic that is read: a stream of records, a table (the latest value per key), or a table on every worker."""

    topic: str
    kind: Literal["stream", "table", "global_table"]
    serde: Serde[Any]
    key: str | None
    key_decode: Callable[[bytes], str] | None
    event_time: str | None
    """Field of the event's time; None: the record's own."""
    zone: str
    max_future_skew_ms: int
    nulls: OnNull
    on_time: OnTime
    """What becomes of a record without a valid event time; `clock`: it gets the time of processing."""
    fields: dict[str, str] = field(default_factory=dict)

    @property
    @override
    def name(self) -> str:
        return self.topic


@dataclass(frozen=True, eq=False)
class Filter(Node):
    """Records for which `where` is true go on; of a table's rows the others are deleted."""

    parent: Node
    where: str


@dataclass(frozen=True, eq=False)
class Select(Node):
    """The value becomes these fields, each an expression over the old ones."""

    parent: Node
    columns: dict[str, str]


@dataclass(frozen=True, eq=False)
class MapValues(Node):
    """The value becomes this expression itself, which later steps call `value`."""

    parent: Node
    value: str


@dataclass(frozen=True, eq=False)
class SelectKey(Node):
    """The record's key becomes this expression, as text."""

    parent: Node
    key: str


@dataclass(frozen=True, eq=False)
class Apply(Node):
    """A Python function of the record's value (`with_key`: of key and value).

    `gives`: a `value`, many `values`, a `key`, a `record` (key and value), many `records`, a `condition`, `nothing`.
    """

    parent: Node
    function: Callable[..., Any]
    gives: Literal["value", "values", "key", "record", "records", "condition", "nothing"]
    takes: type | None
    """The type that the function is given its value as; None: what JSON gives."""
    returns: type | None
    fields: dict[str, str]
    """The fields of the value afterwards."""


@dataclass(frozen=True, eq=False)
class Transform(Node):
    """A function from DataFrame to DataFrame: the value becomes the columns that it makes."""

    parent: Node
    function: Callable[..., Any]
    fields: dict[str, str]


@dataclass(frozen=True, eq=False)
class FlatMapValues(Node):
    """A record for each element of an array expression. Of structs the fields become the value's."""

    parent: Node
    items: str
    fields: dict[str, str]
    """The element's fields if it is a struct that is known; else just `value`."""


@dataclass(frozen=True, eq=False)
class Merge(Node):
    """The records of several streams."""

    streams: tuple[Node, ...]


@dataclass(frozen=True, eq=False)
class ToStream(Node):
    """A table's changes as records; a deletion is a record with the value null."""

    parent: Node


@dataclass(frozen=True, eq=False)
class ToTable(Node):
    """A stream's records as a table: the latest value per key; null deletes."""

    parent: Node
    store: str

    @property
    @override
    def name(self) -> str:
        return self.store


@dataclass(frozen=True, eq=False)
class PythonAggregate:
    """An aggregate by Python functions, called in the order of the records."""

    initializer: Callable[[], Any] | None
    """None for `reduce`: the first value is the first aggregate."""
    adder: Callable[..., Any]
    subtractor: Callable[..., Any] | None
    merger: Callable[..., Any] | None
    takes: type | None
    returns: type | None
    fields: dict[str, str]


@dataclass(frozen=True, eq=False)
class Aggregate(Node):
    """A store: the records of each `key` (and window) aggregated into `columns`, or into one value if `scalar`."""

    parent: Node
    key: str
    window: AnyWindow | None
    store: str
    columns: dict[str, str]
    scalar: bool
    python: PythonAggregate | None = None
    late: Late | None = None
    """Where records go that are late for every window."""
    retention_ms: int | None = None
    """How long after its end a window is kept; None: for ever."""

    @property
    @override
    def name(self) -> str:
        return self.store


@dataclass(frozen=True, eq=False)
class Suppress(Node):
    """A table's results held back: until their window closes, or for a time after a key's first update."""

    parent: Node
    until: Literal["window_close", "time_limit"]
    limit_ms: int
    max_records: int | None
    max_bytes: int | None
    when_full: Literal["emit_early", "shut_down"]


@dataclass(frozen=True, eq=False)
class Join(Node):
    """Two inputs by key: streams within a `window`, a stream with a table, or two tables.

    `on` is the left side's key for it: of a stream with a global table, or the foreign key of a table.
    """

    left: Node
    right: Node
    how: How
    kind: Literal["stream-stream", "stream-table", "table-table", "foreign-key", "lookup"]
    window: JoinWindow | None = None
    on: str | None = None


@dataclass(frozen=True, eq=False)
class Process(Node):
    """An author's processor, with stores and timers, called with each key's records in order."""

    parent: Node
    processor: type
    stores: Mapping[str, tuple[Any, int | None]]
    """Name → type of the values, and time to live in ms."""
    takes: type | None
    returns: Mapping[str, type | None]
    """Output → type of its values."""
    queryable: bool
    """Whether its stores can be queried."""


@dataclass(frozen=True, eq=False)
class Branch(Node):
    """One named output of a processor."""

    parent: Process
    output: str
    fields: dict[str, str]


@dataclass(frozen=True, eq=False)
class Deduplicate(Node):
    """The first record of each id within a time goes on."""

    parent: Node
    by: str
    within_ms: int


@dataclass(frozen=True, eq=False)
class Sink(Node):
    """Every record, or every change of a table, is written to `topic`."""

    parent: Node
    topic: str
    encode: Callable[..., bytes] | None = None
    encode_key: Callable[[str], bytes] | None = None
    delivery: Delivery = "exactly_once"

    @property
    @override
    def name(self) -> str:
        return self.topic


@dataclass(frozen=True, eq=False)
class Late(Sink):
    """Records that are late for every window are written to `topic`, with the value that they had there."""


def is_step_name(name: str) -> bool:
    """Whether a step without a name of its own may be called so, or keep stream times under such a name."""
    kind, _, rest = name.partition("-")
    number, _, _ = rest.partition(".")
    kinds = {one.__name__.lower() for one in globals().values() if isinstance(one, type) and issubclass(one, Node)}
    return kind in kinds and number.isdecimal()


def parents(node: Node) -> tuple[Node, ...]:
    """The nodes whose output `node` takes."""
    match node:
        case Source():
            return ()
        case Merge(streams=streams):
            return streams
        case Join(left=left, right=right):
            return (left, right)
        case _:
            return (node.parent,)  # type: ignore[attr-defined]


def is_table(node: Node) -> bool:
    """Whether a node's results are a table's changes."""
    match node:
        case Source(kind=kind):
            return kind != "stream"
        case Aggregate() | Suppress() | ToTable():
            return True
        case Join(kind=kind):
            return kind in ("table-table", "foreign-key", "lookup")
        case Filter(parent=parent) | Select(parent=parent) | MapValues(parent=parent):
            return is_table(parent)
        case _:
            return False


def sources_of(node: Node) -> tuple[Source, ...]:
    """The topics that a node's records come from, each once."""
    if isinstance(node, Source):
        return (node,)
    return tuple(dict.fromkeys(source for parent in parents(node) for source in sources_of(parent)))


def window_of(node: Node) -> AnyWindow | None:
    """The windows of a table's keys; None if they have none."""
    match node:
        case Aggregate(window=window):
            return window
        case Suppress(parent=parent) | Filter(parent=parent) | Select(parent=parent) | MapValues(parent=parent):
            return window_of(parent)
        case ToStream(parent=parent):
            return window_of(parent)
        case _:
            return None
