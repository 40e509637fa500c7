"""The parts of a plan: jobs, their aggregation groups and operators, and the topics they read and write."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from sluice.errors import TopologyError
from sluice.topology import nodes
from sluice.topology.pipeline import Pipeline
from sluice.values.windows import Window

Layers = tuple[tuple[tuple[str, str], ...], ...]


TRANSFORM = "transform"
"""Name of a layer's entry for a function of the whole DataFrame; its SQL is the node's number."""


@dataclass(frozen=True)
class Transformation:
    """A function from DataFrame to DataFrame: the SQL of its input columns and the names of its output columns."""

    function: Callable[[Any], Any]
    at: str
    given: tuple[tuple[str, str], ...]
    made: tuple[tuple[str, str], ...]
    """Field → the job's column."""


@dataclass(frozen=True)
class Attempt:
    """A column with a step's expressions that can fail: a struct `c0`, `c1`, ..., or null if one of them failed.

    The column `{name}_error` contains the error message if the step failed, else null.
    """

    node: int
    passed: str
    """Condition: the record reaches the step."""
    columns: tuple[str, ...]
    """SQL of the expressions."""
    keys: frozenset[int]
    """Indexes of those that become keys of records or stores."""
    causes: tuple[tuple[str, str], ...]
    """SQL of the parts that can fail, innermost first, each with its error message."""


@dataclass(frozen=True)
class Failure:
    """A place where a step can fail. `error`: SQL of the error message, null if the step did not fail."""

    node: nodes.Node
    column: str
    """Name of the column with the error, if the step follows the sources."""
    stage: int
    error: str
    once: str
    """Condition: this row represents the record, which other steps may have turned into several rows."""
    key: str
    """SQL of the record's key at the step."""
    value: str
    """SQL of the value, as JSON."""


@dataclass(frozen=True)
class StoreColumn:
    """One store of a group: the aggregates that make up its value."""

    store: str
    columns: tuple[tuple[str, str], ...]
    """Name and aggregate over the job's columns."""
    scalar: bool


@dataclass(frozen=True)
class AggregationGroup:
    """The stores with the same stream, key and window. They share one state row per key and window."""

    number: int
    at: nodes.Aggregate
    passed: str
    """Column: whether the group counts a record."""
    key: str
    """Column: the record's key in the group, as text."""
    window: Window | None
    inputs: tuple[str, ...]
    """Columns that the aggregates read."""
    store_columns: tuple[StoreColumn, ...]
    null: str = ""
    """Column: whether the record's value is null; empty if it never is."""

    @property
    def name(self) -> str:
        """Name of the first store, used in messages and for stream times."""
        return self.store_columns[0].store

    @property
    def aggregates(self) -> tuple[str, ...]:
        """The aggregates of the group's stores, without duplicates."""
        return tuple(dict.fromkeys(text for store_column in self.store_columns for _, text in store_column.columns))


@dataclass(frozen=True)
class TableInput:
    """A global table. Its latest values form a group of their own, on every worker."""

    source: nodes.Source
    group: int


@dataclass(frozen=True)
class StreamSink:
    """An output of records. Its columns are `o{number}` (whether to write), `o{number}_key` and `o{number}_value`."""

    number: int
    topic: str
    node: nodes.Sink


@dataclass(frozen=True)
class Edge:
    """The path of rows into one side of an ordered operator, or into a store or sink after one.

    Its columns in the stage: `{name}` (whether a row takes this path), `{name}_key`, `{name}_value` (JSON, null for a
    tombstone) and `{name}_foreign`.
    """

    target: int
    side: int
    stage: int
    """The stage of the columns: 0 for records right after the stateless steps."""
    passed: str
    key: str
    values: tuple[str, ...]
    """SQL of the value, or of an aggregate's arguments."""
    is_null: str
    foreign: str | None = None
    scalar: bool = False
    """Whether the value is not an object."""
    raw: int | None = None
    """The operator whose result is the unchanged value, already JSON."""
    arguments: bool = False
    """Whether the values are an aggregate's arguments; the JSON is then an array."""
    old: bool = False
    """Whether a table's old values take this path too."""
    sources: tuple[nodes.Source, ...] = ()
    """The topics of its records."""
    exploded: str = "0"
    """SQL of a number that distinguishes the rows of one record, if steps turned it into several."""

    @property
    def name(self) -> str:
        """Prefix of its columns."""
        return f"f{self.target}_{self.side}"


@dataclass(frozen=True)
class Ordered:
    """An operator that processes each key's records in order and keeps a state per key."""

    number: int
    stage: int
    node: nodes.Node
    edges: tuple[Edge, ...]
    retracts: bool
    """Whether a later step needs the old value of each change."""
    inline: int | None = None
    """The operator of the same stage whose results it takes directly."""
    store: str | None = None
    functions: tuple[tuple[str, str | None, int], ...] = ()
    """For an aggregate: function, SQL of its argument, and a number (for `top`)."""
    late: nodes.Late | None = None
    """The topic for late records. If several aggregates share it, only one of them sends."""
    entries: Mapping[str, int] = field(default_factory=dict)
    """For a processor: its stores that can be queried, each with its group number."""
    plain: bool = True
    """For an aggregate: whether its columns are the functions' results, without further computation."""

    @property
    def name(self) -> str:
        """Name in messages, counts and stream times."""
        return self.store or self.node.name

    @property
    def sources(self) -> tuple[nodes.Source, ...]:
        """The topics of its rows."""
        return nodes.sources_of(self.node)


@dataclass(frozen=True)
class Lookup:
    """A step for a table's changes: the value becomes `{left, right}`, with `right` looked up in a global table."""

    table: TableInput
    how: str


@dataclass(frozen=True)
class Select:
    """A step for a table's changes: the value becomes this expression over `_key` and `v`."""

    sql: str
    node: nodes.Node
    causes: tuple[tuple[str, str], ...] = ()
    """For a step that can fail: SQL of the parts that can fail, each with its error message."""


@dataclass(frozen=True)
class TableSink:
    """An output of a store's changes, after `steps`."""

    topic: str
    group: int
    store_column: int
    steps: tuple[Lookup | Select, ...]
    scalar: bool


@dataclass(frozen=True)
class Job:
    """One streaming query: reads topics, writes state rows and output records, and publishes one snapshot per batch."""

    pipeline: Pipeline
    name: str
    streams: tuple[nodes.Source, ...]
    tables: tuple[TableInput, ...]
    fields: Mapping[int, tuple[str, ...]]
    """Source number → the fields of its value that any step reads."""
    key_fields: Mapping[int, frozenset[str]]
    """Source number → the fields of its value that are used as keys unchanged."""
    metadata: tuple[str, ...]
    """Those of `_key`, `_topic`, ... that any step reads."""
    layers: Layers
    """Columns computed from the records, each layer from the previous ones."""
    groups: tuple[AggregationGroup, ...]
    stream_sinks: tuple[StreamSink, ...]
    table_sinks: tuple[TableSink, ...]
    operators: tuple[Ordered, ...] = ()
    edges: tuple[Edge, ...] = ()
    """Edges into stores and sinks after ordered operators."""
    later_layers: Mapping[int, Layers] = field(default_factory=dict)
    """Stage → the columns computed from its operators' results."""
    functions: Mapping[int, nodes.Apply] = field(default_factory=dict)
    """The Python functions that the layers call."""
    transforms: Mapping[int, Transformation] = field(default_factory=dict)
    attempts: Mapping[str, Attempt] = field(default_factory=dict)
    """The layers' columns that can fail, by name."""
    failures: tuple[Failure, ...] = ()
    ordered_sinks: tuple[nodes.Sink, ...] = ()
    read_elsewhere: frozenset[str] = frozenset()
    """Topics that another job reads too. That job writes the dead letters; this one only counts them."""
    tried_elsewhere: frozenset[str] = frozenset()
    """Columns of errors that another job has too. That job writes the dead letters."""

    @property
    def tries(self) -> bool:
        """Whether any expression of the job can fail."""
        steps = [step for sink in self.table_sinks for step in sink.steps]
        return bool(self.attempts) or any(isinstance(step, Select) and step.causes for step in steps)

    @property
    def stages(self) -> int:
        """Number of stages of ordered operators."""
        return max((operator.stage for operator in self.operators), default=0)

    @property
    def topics(self) -> tuple[str, ...]:
        """Every topic the job reads."""
        return tuple(source.topic for source in (*self.streams, *(table.source for table in self.tables)))

    @property
    def outputs(self) -> tuple[str, ...]:
        """Every topic the job writes, without dead letters."""
        topics = [sink.topic for sink in self.stream_sinks] + [sink.topic for sink in self.table_sinks]
        late = [group.at.late.topic for group in self.groups if group.at.late is not None]
        return tuple(topics + [sink.topic for sink in self.ordered_sinks] + late)


@dataclass(frozen=True)
class Plan:
    """The jobs of a pipeline."""

    pipeline: Pipeline
    jobs: tuple[Job, ...]

    def job(self, name: str) -> Job:
        """The job with this name; TopologyError lists the existing jobs."""
        found = next((job for job in self.jobs if job.name == name), None)
        if found is None:
            names = ", ".join(job.name for job in self.jobs)
            raise TopologyError(
                f"Pipeline {self.pipeline.name!r} has no job {name!r}.", next_step=f"Its jobs are: {names}."
            )
        return found
