"""What a plan is made of: jobs, the aggregation groups they keep, the topics they read and write."""

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
"""The name of a layer's entry that stands for a function of the whole frame; its SQL is the node's number."""


@dataclass(frozen=True)
class Transformation:
    """A function from DataFrame to DataFrame: the SQL of the columns it is given, the names of those it makes."""

    function: Callable[[Any], Any]
    at: str
    given: tuple[tuple[str, str], ...]
    made: tuple[tuple[str, str], ...]
    """Field and the job's column for it."""


@dataclass(frozen=True)
class Attempt:
    """A column of a step's expressions that may have no result: a struct `c0`, `c1`, ..., or null if one has none.

    Beside it stands `{name}_error`: what is wrong with a record for which the step fails, else null.
    """

    node: int
    passed: str
    """Condition: the record got to the step."""
    columns: tuple[str, ...]
    """SQL of the expressions."""
    keys: frozenset[int]
    """Which of them become keys of records or stores."""
    causes: tuple[tuple[str, str], ...]
    """SQL of the parts that may be to blame, innermost first, each with what is then wrong."""


@dataclass(frozen=True)
class Failure:
    """Where a step may fail for a record. `error`: SQL of what went wrong, null if nothing did."""

    node: nodes.Node
    column: str
    """The name of the column of records that holds the error, where the step follows the sources."""
    stage: int
    error: str
    once: str
    """Condition: this row stands for the record, of which other steps may have made several."""
    key: str
    """SQL of the record's key as it got to the step."""
    value: str
    """SQL of the value, as JSON."""


@dataclass(frozen=True)
class StoreColumn:
    """One store of a group: the aggregates whose values make the store's value."""

    store: str
    columns: tuple[tuple[str, str], ...]
    """Name and aggregate, over the job's columns."""
    scalar: bool


@dataclass(frozen=True)
class AggregationGroup:
    """The stores that share filter, key and window: their values stand together in one state row per key and window."""

    number: int
    at: nodes.Aggregate
    passed: str
    """Column: whether a record counts here."""
    key: str
    """Column: the record's key here, as text."""
    window: Window | None
    inputs: tuple[str, ...]
    """Columns that the aggregates read."""
    store_columns: tuple[StoreColumn, ...]
    null: str = ""
    """Column: whether the record's value is null; empty if it never is."""

    @property
    def name(self) -> str:
        """For messages and stream times: the first store's name."""
        return self.store_columns[0].store

    @property
    def aggregates(self) -> tuple[str, ...]:
        """Every aggregate of the group's stores, each once."""
        return tuple(dict.fromkeys(text for store_column in self.store_columns for _, text in store_column.columns))


@dataclass(frozen=True)
class TableInput:
    """A global table: its latest values are a group of their own, on every worker."""

    source: nodes.Source
    group: int


@dataclass(frozen=True)
class StreamSink:
    """Each record that passed is written to the topic; columns `o{number}_key`, `o{number}_value`."""

    number: int
    topic: str
    node: nodes.Sink


@dataclass(frozen=True)
class Edge:
    """What gets to one side of an ordered operator, to a store or to a sink after one: columns of a stage.

    `{name}`: whether a row gets there; `{name}_key`, `{name}_value` (JSON, null for a tombstone), `{name}_foreign`.
    """

    target: int
    side: int
    stage: int
    """The stage whose columns they are: 0 for records right after the stateless steps."""
    passed: str
    key: str
    values: tuple[str, ...]
    """SQL of the value, or of an aggregate's arguments."""
    is_null: str
    foreign: str | None = None
    scalar: bool = False
    """The value is no object."""
    raw: int | None = None
    """The operator whose result the value is as it stands, JSON already."""
    arguments: bool = False
    """The values are an aggregate's arguments: the JSON is an array."""
    old: bool = False
    """Old values of a table get there too."""
    sources: tuple[nodes.Source, ...] = ()
    """The topics that it comes from."""
    exploded: str = "0"
    """SQL of a number that tells the rows of one record apart, where steps made several of it."""

    @property
    def name(self) -> str:
        """The prefix of its columns."""
        return f"f{self.target}_{self.side}"


@dataclass(frozen=True)
class Ordered:
    """An operator that takes each key's records in order, with a state of its own for each key."""

    number: int
    stage: int
    node: nodes.Node
    edges: tuple[Edge, ...]
    retracts: bool
    """Something that follows needs the old value of what changes."""
    inline: int | None = None
    """The operator of the same stage whose results it takes as they come."""
    store: str | None = None
    functions: tuple[tuple[str, str | None, int], ...] = ()
    """Of an aggregate: function, its argument's SQL, and a number (of `top`)."""
    late: nodes.Late | None = None
    """Where its late records go; of several aggregates with the same topic one sends them."""
    entries: Mapping[str, int] = field(default_factory=dict)
    """Of a processor: its stores that can be queried, each with the number of its state rows."""
    plain: bool = True
    """Of an aggregate: its columns are the functions' results, nothing is computed of them."""

    @property
    def name(self) -> str:
        """For messages, counts and stream times."""
        return self.store or self.node.name

    @property
    def sources(self) -> tuple[nodes.Source, ...]:
        """The topics that its rows come from."""
        return nodes.sources_of(self.node)


@dataclass(frozen=True)
class Lookup:
    """A step of a table's changes: the value becomes `{left, right}`, right from a global table by key."""

    table: TableInput
    how: str


@dataclass(frozen=True)
class Select:
    """A step of a table's changes: the value becomes this expression over `_key` and `v`."""

    sql: str
    node: nodes.Node
    causes: tuple[tuple[str, str], ...] = ()
    """Of a step that may fail: SQL of the parts that may be to blame, each with what is then wrong."""


@dataclass(frozen=True)
class TableSink:
    """Each change of a store is written to the topic, after `steps`."""

    topic: str
    group: int
    store_column: int
    steps: tuple[Lookup | Select, ...]
    scalar: bool


@dataclass(frozen=True)
class Job:
    """One streaming query: topics in, state rows and output records out, one snapshot per batch."""

    pipeline: Pipeline
    name: str
    streams: tuple[nodes.Source, ...]
    tables: tuple[TableInput, ...]
    fields: Mapping[int, tuple[str, ...]]
    """Source number → the fields of its value that anything reads."""
    key_fields: Mapping[int, frozenset[str]]
    """Source number → the fields of its value that are keys as they stand."""
    metadata: tuple[str, ...]
    """Which of `_key`, `_topic`, ... anything reads."""
    layers: Layers
    """Columns made of the records', one layer of the ones before."""
    groups: tuple[AggregationGroup, ...]
    stream_sinks: tuple[StreamSink, ...]
    table_sinks: tuple[TableSink, ...]
    operators: tuple[Ordered, ...] = ()
    edges: tuple[Edge, ...] = ()
    """What gets to stores and sinks after ordered operators."""
    later_layers: Mapping[int, Layers] = field(default_factory=dict)
    """Stage → the columns made of its operators' results."""
    functions: Mapping[int, nodes.Apply] = field(default_factory=dict)
    """The Python functions that the layers call."""
    transforms: Mapping[int, Transformation] = field(default_factory=dict)
    attempts: Mapping[str, Attempt] = field(default_factory=dict)
    """The columns of the layers that are tried, by name."""
    failures: tuple[Failure, ...] = ()
    ordered_sinks: tuple[nodes.Sink, ...] = ()
    read_elsewhere: frozenset[str] = frozenset()
    """Topics that another job reads as well, which is the one to set aside what cannot be read: here it is counted."""
    tried_elsewhere: frozenset[str] = frozenset()
    """Columns of errors that another job has as well, which is the one to write the dead letters."""

    @property
    def tries(self) -> bool:
        """Whether any expression of the job may fail."""
        steps = [step for sink in self.table_sinks for step in sink.steps]
        return bool(self.attempts) or any(isinstance(step, Select) and step.causes for step in steps)

    @property
    def stages(self) -> int:
        """How many sets of ordered operators follow one another."""
        return max((operator.stage for operator in self.operators), default=0)

    @property
    def topics(self) -> tuple[str, ...]:
        """Every topic the job reads."""
        return tuple(source.topic for source in (*self.streams, *(table.source for table in self.tables)))

    @property
    def outputs(self) -> tuple[str, ...]:
        """Every topic the job writes, dead letters left out."""
        topics = [sink.topic for sink in self.stream_sinks] + [sink.topic for sink in self.table_sinks]
        late = [group.at.late.topic for group in self.groups if group.at.late is not None]
        return tuple(topics + [sink.topic for sink in self.ordered_sinks] + late)


@dataclass(frozen=True)
class Plan:
    """The jobs of a pipeline."""

    pipeline: Pipeline
    jobs: tuple[Job, ...]

    def job(self, name: str) -> Job:
        """The job of that name; TopologyError lists those there are."""
        found = next((job for job in self.jobs if job.name == name), None)
        if found is None:
            names = ", ".join(job.name for job in self.jobs)
            raise TopologyError(
                f"Pipeline {self.pipeline.name!r} has no job {name!r}.", next_step=f"There are: {names}."
            )
        return found
