"""The nodes of a topology, as plain values. Authors make them with handles: `streams`, `tables`, `groups`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal, TypeVar

from typing_extensions import override

from sluice.topology.serdes import Contract, Serde
from sluice.values.call_parameters import CallPolicy, FunctionBatch, LookedUpTable
from sluice.values.change_values import CheckOld
from sluice.values.epochs import EpochTime
from sluice.values.expiry import Expiry
from sluice.values.record_metadata import Delivery as Delivery
from sluice.values.record_metadata import Emit as Emit
from sluice.values.record_metadata import EmitStrategy as EmitStrategy
from sluice.values.record_metadata import How as How
from sluice.values.record_metadata import OnError as OnError
from sluice.values.record_metadata import OnMissing as OnMissing
from sluice.values.record_metadata import OnNull as OnNull
from sluice.values.record_metadata import OnTime as OnTime
from sluice.values.record_metadata import Until as Until
from sluice.values.shapes import Shape
from sluice.values.sink_tables import OutputTable
from sluice.values.topic_patterns import is_pattern
from sluice.values.windows import AnyWindow, CountWindow, JoinWindow


@dataclass(frozen=True, eq=False)
class Node:
    """One step. `number` is its index in the pipeline; `at` is the author's `file:line`."""

    number: int
    at: str
    on_error: OnError = field(default="dead_letter", kw_only=True)

    @property
    def name(self) -> str:
        """The step's name in counts and messages."""
        return f"{type(self).__name__.lower()}-{self.number}"


N = TypeVar("N", bound=Node)


@dataclass(frozen=True, eq=False)
class Source(Node):
    """A topic that is read as a stream, as a table (the latest value per key), or as a table on every worker."""

    topic: str
    """The topic's name, or the pattern of the names of several topics (`values/topic_patterns.py`)."""
    kind: Literal["stream", "table", "global_table"]
    serde: Serde[Any]
    key: str | None
    """The field with the record's key, or a struct of several fields; None for the Kafka key."""
    key_fields: tuple[str, ...]
    """The fields of the record's key."""
    key_decode: Callable[[bytes], str] | None
    event_time: str | EpochTime | None
    """The field with the event time, or WALL_CLOCK; None for the Kafka timestamp."""
    zone: str
    max_future_skew_ms: int
    nulls: OnNull
    on_time: OnTime
    """Policy for a record without a valid event time; `clock` gives it the time of processing."""
    shape: Shape
    store: str | None = None
    """The name of a global table's store; None for the topic's name."""
    most_topics: int = 1
    """The largest number of topics that a pattern may match."""

    @property
    def fields(self) -> dict[str, str]:
        """The fields of the values, each with its Spark SQL type."""
        return self.shape.fields

    @property
    @override
    def name(self) -> str:
        return self.topic


@dataclass(frozen=True, eq=False)
class Filter(Node):
    """Keeps the records for which `where` is true; a table's other rows are deleted."""

    parent: Node
    where: str


@dataclass(frozen=True, eq=False)
class Repartition(Filter):
    """Drops the records without a key, unless a left or outer join follows."""

    where: str = "_key IS NOT NULL"


@dataclass(frozen=True, eq=False)
class Select(Node):
    """Replaces the value with columns, each an expression over the old fields."""

    parent: Node
    columns: dict[str, str]


@dataclass(frozen=True, eq=False)
class MapValues(Node):
    """Replaces the value with the result of an expression; later steps read it as `value`."""

    parent: Node
    value: str


@dataclass(frozen=True, eq=False)
class SelectKey(Node):
    """Replaces the key with the result of an expression, as text."""

    parent: Node
    key: str


@dataclass(frozen=True, eq=False)
class Apply(Node):
    """Calls a Python function with key and value.

    `gives` is the kind of its result: a `value`, many `values`, a `key`, a `record` (key and
    value), many `records`, a `condition`, or `nothing`.
    """

    parent: Node
    function: Callable[..., Any]
    gives: Literal["value", "values", "key", "record", "records", "condition", "nothing"]
    takes: Contract | None
    """The type of the value passed to the function; None for plain JSON data."""
    returns: Contract | None
    shape: Shape
    """The shape of the resulting value."""
    batch: FunctionBatch | None = None
    """How one call takes many values; None for a function of one value."""


@dataclass(frozen=True, eq=False)
class Transform(Node):
    """Replaces the value with the columns that a function from DataFrame to DataFrame computes."""

    parent: Node
    function: Callable[..., Any]
    fields: dict[str, str]


@dataclass(frozen=True, eq=False)
class FlatMapValues(Node):
    """Emits a record for each element of an array. A struct element becomes the value."""

    parent: Node
    items: str
    shape: Shape
    """The shape of the elements, which are objects if they are structs of a known type."""


@dataclass(frozen=True, eq=False)
class Merge(Node):
    """Combines the records of several streams."""

    streams: tuple[Node, ...]


@dataclass(frozen=True, eq=False)
class ToStream(Node):
    """Turns a table's changes into records; a deletion is a record with a null value."""

    parent: Node


@dataclass(frozen=True, eq=False)
class Changes(Node):
    """Turns a table's changes into records with the fields `kind`, `old` and `new`."""

    parent: Node


@dataclass(frozen=True, eq=False)
class ToTable(Node):
    """Keeps the latest value per key of a stream's records as a table; a null value deletes the key.

    A node without a store follows a foreign-key join. It remembers the join's results, so that
    later steps get the old values of the results. The join itself does not know its old results,
    because it stores a row's old and new value under different foreign keys.
    """

    parent: Node
    store: str | None
    history_ms: int | None = None
    """How far back the versions of a versioned table reach; None for a table that only has the latest rows."""
    expiry: Expiry | None = None

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


@dataclass(frozen=True, eq=False)
class PythonAggregate:
    """Python functions of an aggregate, called in the order of the records: `adder(key, aggregate, value)`.

    With `takes_list`, the adder takes a list of consecutive values instead of one value.
    """

    initializer: Callable[[], Any] | None
    """None in `reduce`, where the first value is the first aggregate."""
    adder: Callable[..., Any]
    subtractor: Callable[..., Any] | None
    merger: Callable[..., Any] | None
    takes: Contract | None
    returns: Contract | None
    shape: Shape
    """The shape of the aggregate."""
    takes_list: bool = False


@dataclass(frozen=True, eq=False)
class Aggregate(Node):
    """Aggregates the records of each `key` and window into `columns`, or into one value if `scalar`, in a store."""

    parent: Node
    key: str
    window: AnyWindow | CountWindow | None
    store: str
    columns: dict[str, str]
    scalar: bool
    python: PythonAggregate | None = None
    late: Late | None = None
    """The sink for records that are late for every window."""
    by_window: bool = False
    """Whether records with windowed keys are grouped by key and window."""
    retention_ms: int | None = None
    """How long a window is kept after its end; None means forever."""
    history_ms: int | None = None
    """How far back the versions of a versioned table reach."""

    @property
    @override
    def name(self) -> str:
        return self.store


@dataclass(frozen=True, eq=False)
class CogroupedStream:
    """A stream of a cogrouped aggregate, and the functions with which its records are added."""

    parent: Node
    key: str
    columns: dict[str, str]
    adder: Callable[..., Any] | None = None
    """The Python function that adds a record's value; None if `columns` says what is added."""
    takes: Contract | None = None
    """The type of the value passed to the function; None for plain JSON data."""


@dataclass(frozen=True, eq=False)
class Cogroup(Aggregate):
    """An aggregate of several streams. `parent`, `key` and `python.adder` belong to the first stream."""

    parts: tuple[CogroupedStream, ...] = ()


@dataclass(frozen=True, eq=False)
class Suppress(Node):
    """Holds a table's results back: until their window closes, or until `limit_ms` after a key's first update.

    `until` is `window_close` for the method `suppress_until_window_closes`, and `window_final` for
    an aggregate with `emit="window_close"`. Only the headers of results differ: with
    `window_close`, a result has the headers of the window's last update, and with `window_final`
    those of the record that closes the window.
    """

    parent: Node
    until: Until
    limit_ms: int
    max_records: int | None
    max_bytes: int | None
    when_full: Literal["emit_early", "shut_down"]
    early_ms: int | None = None
    """With `window_final`: how long after a window's first unsent change its early result is
    sent."""


@dataclass(frozen=True, eq=False)
class Join(Node):
    """A join by key of two streams within a `window`, of a stream with a table, or of two tables.

    `on` is the expression for the key to look up in a global table, or for a foreign key into
    another table.
    """

    left: Node
    right: Node
    how: How
    kind: Literal["stream-stream", "stream-table", "table-table", "foreign-key", "lookup"]
    window: JoinWindow | None = None
    on: str | None = None
    grace_ms: int | None = None
    """How long a stream's record waits for a versioned table's row as of the record's time."""


@dataclass(frozen=True, eq=False)
class Process(Node):
    """An author's processor, called with each key's records in order."""

    parent: Node
    processor: type
    stores: Mapping[str, tuple[Any, int | None]]
    """Type of the values, and time to live in ms, of each store by name."""
    takes: Contract | None
    returns: Mapping[str, type | None]
    """Type of the values of each output."""
    queryable: bool
    keeps_key: bool = False
    """Whether each result has the key of its record, as in Kafka Streams' `processValues`."""
    by: str | None = None
    """The expression for the key of the stores; None for the record's key."""
    tables: Mapping[str, Node] = field(default_factory=dict)
    """The tables whose rows the processor reads, by the names under which it reads them."""
    table_types: Mapping[str, type | None] = field(default_factory=dict)
    """The type of each table's values; None for plain JSON data."""


@dataclass(frozen=True, eq=False)
class Branch(Node):
    """The records that a processor forwards to one output."""

    parent: Process
    output: str
    shape: Shape


@dataclass(frozen=True, eq=False)
class StreamOperator(Node):
    """Base of the steps that keep a state for each key of a stream, and pass on records with unchanged fields.

    A subclass needs no other code in `topology` than its method in `streams`. `action_of` in
    `plan/operator_actions.py` gives its operator.
    """

    parent: Node
    by: str
    """The expression for the key whose records the operator takes in order."""


@dataclass(frozen=True, eq=False)
class Deduplicate(StreamOperator):
    """Passes on the first record of each id within `within_ms`."""

    within_ms: int


@dataclass(frozen=True, eq=False)
class Call(StreamOperator):
    """Replaces the value with the result of a function that calls a service."""

    function: Callable[..., Any]
    takes: Contract | None
    """The type of the value passed to the function; None for plain JSON data."""
    returns: Contract | None
    shape: Shape
    """The shape of the results."""
    policy: CallPolicy
    answers: str
    """The name under which the results are recorded with the state."""
    otherwise: str | None = None
    """JSON of the value that a record gets if its call has failed; None if the record fails, too."""
    size: int | None = None
    """The largest number of values that one call takes; None for a function of one value."""


@dataclass(frozen=True, eq=False)
class Lookup(StreamOperator):
    """Joins each record with the row of its key in a table of a database, as the fields `left` and `right`."""

    table: LookedUpTable
    returns: Contract
    row: Shape
    """The shape of the table's rows."""
    on_missing: OnMissing
    policy: CallPolicy
    answers: str
    """The name under which the rows are recorded with the state."""


@dataclass(frozen=True, eq=False)
class SetMetadata(StreamOperator):
    """Gives each record the time of an expression, or headers with the values of expressions."""

    time: str | None
    """The expression for the time; None if the record keeps its time."""
    headers: Mapping[str, str]
    """Name of a header → the expression for its value. A null value removes the header."""


@dataclass(frozen=True, eq=False)
class ChangedRows(StreamOperator):
    """Replaces each change of a stream with its new row; a deletion has a null value."""

    shape: Shape
    """The shape of the rows."""
    check_old: CheckOld | None


@dataclass(frozen=True, eq=False)
class Sink(Node):
    """Writes every record, or every change of a table, to `topic`, or to a `table` of a database."""

    parent: Node
    topic: str
    """The topic's name, or a table's name in counts, such as `warehouse:shop.totals`."""
    encode: Callable[..., bytes] | None = None
    encode_key: Callable[[str], bytes] | None = None
    partition: Callable[..., int] | None = None
    """Chooses a record's partition by its key and its value; None for the hash of the key."""
    delivery: Delivery = "exactly_once"
    emit: Emit = "every"
    table: OutputTable | None = None
    fields: dict[str, str] = field(default_factory=dict)
    """The fields of the value, for a table's columns."""
    scalar: bool = False
    """Whether the value is not an object."""
    cycle: bool = False
    """Whether the pipeline reads the topic, too."""

    @property
    @override
    def name(self) -> str:
        return self.topic


@dataclass(frozen=True, eq=False)
class Late(Sink):
    """Writes the records that are late for every window to `topic`."""


STATEFUL = (Source, ToTable, Aggregate, Suppress, Join, Process, StreamOperator, Changes)
"""The steps that may keep a state, or a position in a topic."""


def joins_global_table(node: Join) -> bool:
    """Whether the right side of a join is a global table."""
    return isinstance(node.right, Source) and node.right.kind == "global_table"


def is_step_name(name: str) -> bool:
    """Whether a name looks like a generated step name, such as `filter-3` or `filter-3.left`."""
    kind, _, rest = name.partition("-")
    number, _, _ = rest.partition(".")
    if not number.isdecimal():
        return False
    for value in globals().values():
        is_node_type = isinstance(value, type) and issubclass(value, Node)
        if is_node_type and value.__name__.lower() == kind:
            return True
    return False


def parents(node: Node) -> tuple[Node, ...]:
    """The inputs of a node."""
    match node:
        case Source():
            return ()
        case Merge(streams=streams):
            return streams
        case Join(left=left, right=right):
            return (left, right)
        case Cogroup(parts=parts):
            return tuple(part.parent for part in parts)
        case Process(parent=parent, tables=tables):
            return (parent, *tables.values())
        case _:
            return (node.parent,)  # type: ignore[attr-defined]


def with_parents(node: N, others: Mapping[Node, Node]) -> N:
    """The node with other inputs; `others` maps each of its inputs to the new input."""
    match node:
        case Source():
            return node
        case Merge(streams=streams):
            return replace(node, streams=tuple(others[stream] for stream in streams))
        case Join(left=left, right=right):
            return replace(node, left=others[left], right=others[right])
        case Cogroup(parent=parent, parts=parts):
            new_parts = tuple(replace(part, parent=others[part.parent]) for part in parts)
            return replace(node, parent=others[parent], parts=new_parts)
        case Process(parent=parent, tables=tables):
            others_by_name = {name: others[table] for name, table in tables.items()}
            return replace(node, parent=others[parent], tables=others_by_name)
        case _:
            return replace(node, parent=others[node.parent])  # type: ignore[attr-defined, call-arg]


def is_table(node: Node) -> bool:
    """Whether the node outputs a table's changes, not a stream's records."""
    match node:
        case Source(kind=kind):
            return kind != "stream"
        case Aggregate() | Suppress() | ToTable():
            return True
        case Join(kind=kind):
            # In Kafka Streams, a stream that joins a table stays a stream; only
            # a join of two tables is a table.
            return kind in ("table-table", "foreign-key", "lookup")
        case Filter() | Select() | MapValues() | Apply():
            return is_table(node.parent)
        case _:
            return False


def only_adds(table: Node) -> bool:
    """Whether a table only gets new rows, which never change: the final results of windows, mapped or filtered."""
    match table:
        case Suppress():
            return table.until == "window_final" and table.early_ms is None
        case Filter() | Select() | MapValues() | Apply():
            return only_adds(table.parent)
        case _:
            return False


def subtracts(aggregate: Aggregate) -> bool:
    """Whether an aggregate subtracts the old values of the rows that it aggregates."""
    return is_table(aggregate.parent) and not only_adds(aggregate.parent)


def computes_rows(node: Node) -> bool:
    """Whether each row of a node's table is computed from one row of its input, without a state."""
    return isinstance(node, Filter | Select | MapValues | Apply) and is_table(node)


def known_name(node: Node) -> str:
    """The author's name of the nearest topic or store from which a node's rows come."""
    names = [
        step.name
        for step in upstream(node)
        if isinstance(step, Source | Aggregate)
        or (isinstance(step, ToTable) and step.store is not None)
    ]
    return names[0]


def upstream(node: Node) -> tuple[Node, ...]:
    """The node and all nodes that feed it, each once, depth first."""
    visited: dict[Node, None] = {}
    waiting = [node]
    while waiting:
        current = waiting.pop()
        if current not in visited:
            visited[current] = None
            # The loop takes the list's last node next, so the inputs are reversed to visit the
            # first input first.
            waiting += reversed(parents(current))
    return tuple(visited)


def follows_state(node: Node) -> bool:
    """Whether a stateful step has computed the records of a stream."""
    steps = upstream(node)
    return any(
        isinstance(step, StreamOperator | Join | Process) or is_table(step) for step in steps
    )


def sources_of(node: Node) -> tuple[Source, ...]:
    """The sources that feed a node, without repeats."""
    return tuple([step for step in upstream(node) if isinstance(step, Source)])


def reads_pattern(node: Node) -> bool:
    """Whether the records of a node come from a pattern of topics, and so from several topics."""
    return any(is_pattern(source.topic) for source in sources_of(node))


def window_of(node: Node) -> AnyWindow | None:
    """The window definition of the keys of a table or a stream; None if its keys have no windows.

    An aggregate over a number of records is not a windowed table: its store has one row per key.
    """
    match node:
        case Aggregate(window=None, by_window=True, parent=parent):
            return window_of(parent)
        case Aggregate(window=window):
            return None if isinstance(window, CountWindow) else window
        case Suppress() | Filter() | Select() | MapValues() | FlatMapValues() | Transform():
            return window_of(node.parent)
        case ToStream() | Changes() | ToTable() | StreamOperator():
            return window_of(node.parent)
        case Apply(parent=parent, gives="value" | "values" | "condition" | "nothing"):
            return window_of(parent)
        case Branch(parent=Process(keeps_key=True, parent=parent)):
            return window_of(parent)
        case Merge(streams=(first, *_)):
            return window_of(first)
        case Join(left=left, kind="stream-table" | "table-table"):
            return window_of(left)
        case _:
            return None


def window_of_store(node: Node) -> AnyWindow | None:
    """The window definition of the keys of an operator's store, or of a processor's stores."""
    match node:
        case Process(by=None, parent=parent):
            return window_of(parent)
        case _:
            return window_of(node)


def history_of(table: Node) -> int | None:
    """How far back the versions of a table reach, in ms; None if the table is not versioned."""
    match table:
        case ToTable(history_ms=history_ms) | Aggregate(history_ms=history_ms):
            return history_ms
        case Filter() | Select() | MapValues() | Apply():
            return history_of(table.parent) if is_table(table) else None
        case _:
            return None


def is_keyed_by_window(node: Node) -> bool:
    """Whether an operator keeps a state for each windowed key of its inputs."""
    match node:
        case Aggregate():
            return node.by_window
        case ToTable(parent=parent) | Changes(parent=parent):
            return window_of(parent) is not None
        case Join(right=right):
            return window_of(right) is not None
        case Process():
            return window_of_store(node) is not None
        case _:
            return False
