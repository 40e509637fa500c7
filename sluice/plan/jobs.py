"""The parts of a plan: jobs, their aggregation groups and operators, and the topics they read and write.

All of it is data that can be pickled and says what the engine needs to know: the topology itself is not in it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

from sluice.errors import TopologyError
from sluice.plan.operators import Action, Aggregate, Process, ProcessorStore, PythonAggregate, StreamJoin
from sluice.plan.steps import PythonFunction, Sink, Source, Step
from sluice.values import paths
from sluice.values.records import How
from sluice.values.references import Reference
from sluice.values.windows import AnyWindow, Window


@dataclass(frozen=True)
class Column:
    """A column of a job's rows."""

    name: str
    sql: str
    step: int | None
    """Number of the step that it belongs to; None if several steps share it."""
    field: str = ""
    """The author's name for its content, if there is one."""
    position: str = ""
    """For a column that turns an array into rows: the column of the element's index."""


@dataclass(frozen=True)
class Attempt:
    """A column with a step's expressions that can fail: a struct `c0`, `c1`, ..., or null if one of them failed.

    Beside it stands `error`: what is wrong with a record for which the step fails, else null.
    """

    name: str
    step: int
    passed: str
    """Condition: the record reaches the step."""
    columns: tuple[str, ...]
    """SQL of the expressions."""
    keys: frozenset[int]
    """Indexes of those that become keys of records or stores."""
    causes: tuple[tuple[str, str], ...]
    """SQL of the parts that can fail, innermost first, each with its error message."""

    @property
    def error(self) -> str:
        """Name of the column with a record's error."""
        return f"{self.name}_error"

    def result(self, number: int) -> str:
        """SQL of an expression's result."""
        return f"{self.name}.c{number}"


@dataclass(frozen=True)
class Transformation:
    """A function from DataFrame to DataFrame: the SQL of its input columns and the names of its output columns."""

    step: int
    function: Reference
    at: str
    given: tuple[tuple[str, str], ...]
    made: tuple[tuple[str, str], ...]
    """Field → the job's column."""


Layer: TypeAlias = tuple[Column | Attempt, ...] | Transformation
"""Columns that are computed together from those of the previous layers; or a function of the whole DataFrame."""
Layers: TypeAlias = tuple[Layer, ...]


@dataclass(frozen=True)
class Failure:
    """A place where a step can fail. `error`: SQL of the error message, null if the step did not fail."""

    step: Step
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
    tried_elsewhere: bool = False
    """Whether another job of the pipeline has the same step, and writes the dead letters."""


@dataclass(frozen=True)
class StoreColumn:
    """One store of a group: the aggregates that make up its value."""

    store: str
    step: int
    columns: tuple[tuple[str, str], ...]
    """Name and aggregate over the job's columns."""
    scalar: bool


@dataclass(frozen=True)
class AggregationGroup:
    """The stores with the same stream, key and window. They share one state row per key and window."""

    number: int
    topics: tuple[str, ...]
    """The topics of its records."""
    passed: str
    """Column: whether the group counts a record."""
    key: str
    """Column: the record's key in the group, as text."""
    grouped_by: str
    """The author's expression of the key."""
    window: Window | None
    inputs: tuple[str, ...]
    """Columns that the aggregates read."""
    store_columns: tuple[StoreColumn, ...]
    mergeable: Mapping[str, tuple[str, str | None]]
    """The aggregates that can be combined from partial ones, as function and column (None for `count(*)`)."""
    null: str
    """Column: whether the record's value is null; empty if it never is."""
    late: Sink | None
    """The topic of records that are late for every window."""
    retention_ms: int | None
    """How long after its end a window is kept; None: forever."""
    made: str
    """The upstream steps as the author wrote them: state stays valid while they are equal."""

    @property
    def name(self) -> str:
        """Name of the first store, used in messages and for stream times."""
        return self.store_columns[0].store

    @property
    def aggregates(self) -> tuple[str, ...]:
        """The aggregates of the group's stores, without duplicates."""
        return tuple(dict.fromkeys(text for store_column in self.store_columns for _, text in store_column.columns))

    @property
    def late_key(self) -> str:
        """Column: the key of a late record."""
        return f"late{self.number}_key"

    @property
    def late_value(self) -> str:
        """Column: the value of a late record, as JSON."""
        return f"late{self.number}_value"


@dataclass(frozen=True)
class TableInput:
    """A global table. Its latest values form a group of their own, on every worker."""

    source: Source
    group: int
    value: str
    """The Spark SQL type of its values."""


@dataclass(frozen=True)
class Edge:
    """The path of rows into one side of an ordered operator, or into a store or sink after one: columns of a stage."""

    target: int
    side: int
    stage: int
    """The stage of the columns: 0 for records right after the stateless steps."""
    topics: tuple[str, ...]
    """The topics of its records."""
    passed: str
    """Condition: a row takes this path."""
    key: str
    values: tuple[str, ...]
    """SQL of the value, or of an aggregate's arguments."""
    is_null: str
    foreign: str | None = None
    """SQL of the record's original key, if `key` differs; for an aggregate with late records, of the whole value."""
    scalar: bool = False
    """Whether the value is not an object."""
    raw: str | None = None
    """The column of an operator's result that is the unchanged value, already JSON."""
    arguments: bool = False
    """Whether the values are an aggregate's arguments; the JSON is then an array."""
    old: bool = False
    """Whether a table's old values take this path too."""
    valued: bool = False
    """Whether records without a value leave stream time unchanged, as records without a key always do."""
    path: tuple[str, ...] = ()
    """SQL of the elements of the path (`values.paths`) from the stage's record or result to the target."""
    rekeyed: bool = False
    """Whether the target takes the rows by another key than the record's or result's."""

    @property
    def column(self) -> str:
        """Column: whether a row takes this path."""
        return f"f{self.target}_{self.side}"

    @property
    def key_column(self) -> str:
        return f"{self.column}_key"

    @property
    def value_column(self) -> str:
        """Column of the value as JSON, null for a tombstone."""
        return f"{self.column}_value"

    @property
    def foreign_column(self) -> str:
        return f"{self.column}_foreign"

    @property
    def path_column(self) -> str | None:
        """Column of the path from the record; None if it is the same for all records."""
        return f"{self.column}_path" if self.constant_path is None else None

    @property
    def constant_path(self) -> bytes | None:
        """The path from the record, if it is the same for all records."""
        return paths.constant(self.path, rekeyed=self.rekeyed)

    def path_from(self, base: str) -> str:
        """SQL of the path, if that of the stage's record or result is `base`."""
        return paths.sql(base, self.path, rekeyed=self.rekeyed)


@dataclass(frozen=True)
class OrderedOperator:
    """An operator that processes each key's records in order and keeps a state per key."""

    step: Step
    stage: int
    action: Action
    edges: tuple[Edge, ...]
    topics: tuple[str, ...]
    """The topics of its rows."""
    retracts: bool
    """Whether a later step needs the old value of each change."""
    inline: int | None
    """The operator of the same stage whose results it takes directly."""
    clock: str
    """Operator whose stream time applies: itself, or the upstream operator it is chained to."""
    waits: bool
    """Whether it, or an operator chained to it, waits for stream time."""
    store: str | None
    grouped_by: str
    """The author's expression of the store's key."""
    window: AnyWindow | None
    """The windows of the store's keys."""
    late: Sink | None
    """The topic for late records. If several aggregates share it, only one of them sends."""
    made: str
    """The upstream steps as the author wrote them: state stays valid while they are equal."""
    why_ordered: str
    """Why it needs each key's records in order, in words."""
    does: str
    """Its own definition, as the author wrote it and with the declared types."""
    read: frozenset[str] = frozenset()
    """The columns of its results that expressions after it read."""

    @property
    def number(self) -> int:
        """The number of its step."""
        return self.step.number

    @property
    def name(self) -> str:
        """For counts and stream times."""
        return self.step.name

    @property
    def result(self) -> str:
        """The column of its results, if it has one output."""
        return result_column(self.number)

    @property
    def sides(self) -> tuple[Edge, ...]:
        """The edges from records right after the stateless steps."""
        return tuple(edge for edge in self.edges if edge.stage == 0)

    @property
    def joint(self) -> bool:
        """Whether it joins two streams, whose records have one stream time in common and one for each side."""
        return isinstance(self.action, StreamJoin)

    @property
    def timed(self) -> bool:
        """Whether it has a stream time of its own."""
        return self.waits and self.clock == self.name

    @property
    def timed_by_source(self) -> bool:
        """Whether all its rows come straight from one topic: each partition's task then knows the stream time."""
        return not self.joint and len(self.topics) == 1 and all(edge.stage == 0 for edge in self.edges)

    @property
    def stores(self) -> Mapping[str, ProcessorStore]:
        """A processor's stores that can be queried."""
        if not isinstance(self.action, Process):
            return {}
        return {name: store for name, store in self.action.stores.items() if store.group_id is not None}

    @property
    def retention_ms(self) -> int | None:
        """How long after its end a window of its store is kept; None: for ever."""
        return self.action.retention_ms if isinstance(self.action, Aggregate | PythonAggregate) else None


LEFT, RIGHT, STORE = 0, 1, 2
"""Sides of an operator. The edge into the operator's store is a separate side."""


def result_column(operator: int, output: int | None = None) -> str:
    """The column of an operator's results; for a processor, of one of its outputs."""
    return f"v{operator}" if output is None else f"v{operator}_{output}"


@dataclass(frozen=True)
class Lookup:
    """A step for a table's changes: the value becomes `{left, right}`, with `right` looked up in a global table."""

    table: TableInput
    how: How


@dataclass(frozen=True)
class Select:
    """A step for a table's changes: the value becomes this expression over `_key` and `v`."""

    sql: str
    step: int
    causes: tuple[tuple[str, str], ...] = ()
    """For a step that can fail: SQL of the parts that can fail, each with its error message."""


@dataclass(frozen=True)
class TableSink:
    """An output of a store's changes, after `steps`."""

    sink: Sink
    group: int
    store_column: int
    steps: tuple[Lookup | Select, ...]
    scalar: bool


@dataclass(frozen=True)
class PlannedPipeline:
    """What the jobs of a pipeline share: its name, its settings for all steps, and its descriptions."""

    name: str
    workers: int
    idle_timeout_ms: int | None
    max_failures: float
    file: Path | None
    dead_letters: str
    """The topic of the records that could not be read, processed or written."""
    markers: str
    """The topic that says which batches' output is out."""
    steps: tuple[Step, ...]
    text: str
    mermaid: str
    svg: str
    asks_the_moment: bool
    """Whether an expression asks for the time of day, or for chance."""


@dataclass(frozen=True, kw_only=True)
class BaseJob:
    """The common part of all jobs: input topics, columns of single records, output topics, one snapshot per batch."""

    pipeline: PlannedPipeline
    name: str
    streams: tuple[Source, ...]
    tables: tuple[TableInput, ...]
    metadata: tuple[str, ...]
    """Those of `_key`, `_topic`, ... that any step reads."""
    layers: Layers
    """Columns computed from the records, each layer from the previous ones."""
    functions: tuple[PythonFunction, ...]
    """The Python functions that the layers call."""
    failures: tuple[Failure, ...]
    stream_sinks: tuple[Sink, ...]
    """The topics that single records are written to."""
    state_functions: tuple[tuple[str, Reference], ...]
    """The author's functions that the job's state depends on, each with a name for messages."""
    read_elsewhere: frozenset[str] = frozenset()
    """Topics that another job reads too. That job writes the dead letters; this one only counts them."""

    @property
    def topics(self) -> tuple[str, ...]:
        """Every topic the job reads."""
        return tuple(source.topic for source in (*self.streams, *(table.source for table in self.tables)))

    @property
    def sinks(self) -> tuple[Sink, ...]:
        """Every topic the job writes, without dead letters."""
        raise NotImplementedError

    @property
    def outputs(self) -> tuple[str, ...]:
        """The names of these topics."""
        return tuple(sink.topic for sink in self.sinks)

    @property
    def stores(self) -> tuple[str, ...]:
        """The stores that can be queried, global tables left out."""
        raise NotImplementedError

    @property
    def tries(self) -> bool:
        """Whether any expression of the job can fail."""
        return any(isinstance(column, Attempt) for column in self.columns)

    @property
    def columns(self) -> Iterator[Column | Attempt]:
        """The columns of all layers."""
        return columns_of(self.layers)

    @property
    def first_failures(self) -> tuple[Failure, ...]:
        """Where steps before any ordered operator may fail."""
        return tuple(failure for failure in self.failures if not failure.stage)

    def step_of(self, column: str) -> Step | None:
        """The step that a column belongs to, or that writes the topic or fills the store with this name."""
        for each in self.columns:
            if column in (each.name, each.error if isinstance(each, Attempt) else None):
                return None if each.step is None else self.pipeline.steps[each.step]
        number = next((sink.number for sink in self.sinks if column in (sink.topic, sink.key, sink.value)), None)
        return None if number is None else self.pipeline.steps[number]

    def step_named(self, name: str) -> Step | None:
        """The step that has that name in counts."""
        return next((step for step in self.pipeline.steps if step.name == name), None)

    @property
    def field_names(self) -> dict[str, str]:
        """Column → the author's name for its content, if there is one."""
        made = {column.name: column.field for column in self.columns if isinstance(column, Column) and column.field}
        return made | {field.column: field.name for source in self.streams for field in source.fields}


@dataclass(frozen=True, kw_only=True)
class FusedJob(BaseJob):
    """One streaming query whose stores Spark computes in any order, all in one stateful operator."""

    groups: tuple[AggregationGroup, ...]
    table_sinks: tuple[TableSink, ...]

    @property
    def sinks(self) -> tuple[Sink, ...]:
        """Every topic the job writes, without dead letters."""
        late = [group.late for group in self.groups if group.late is not None]
        return (*self.stream_sinks, *(table.sink for table in self.table_sinks), *late)

    @property
    def stores(self) -> tuple[str, ...]:
        """The stores that can be queried, global tables left out."""
        return tuple(store_column.store for group in self.groups for store_column in group.store_columns)

    @property
    def tries(self) -> bool:
        """Whether any expression of the job can fail."""
        steps = (step for sink in self.table_sinks for step in sink.steps)
        return super().tries or any(isinstance(step, Select) and step.causes for step in steps)


@dataclass(frozen=True, kw_only=True)
class OrderedJob(BaseJob):
    """One streaming query whose operators, if any, process each key's records in order."""

    operators: tuple[OrderedOperator, ...]
    edges: tuple[Edge, ...]
    """Edges into stores and sinks after ordered operators."""
    later_layers: Mapping[int, Layers]
    """Stage → the columns computed from its operators' results."""
    ordered_sinks: tuple[Sink, ...]
    """The topics that operators' results are written to."""

    @property
    def sinks(self) -> tuple[Sink, ...]:
        """Every topic the job writes, without dead letters."""
        return (*self.stream_sinks, *self.ordered_sinks)

    @property
    def stores(self) -> tuple[str, ...]:
        """The stores that can be queried, global tables left out."""
        own = (operator.store for operator in self.operators if operator.store is not None)
        return (*own, *(name for operator in self.operators for name in operator.stores))

    @property
    def stages(self) -> int:
        """Number of stages of ordered operators."""
        return max((operator.stage for operator in self.operators), default=0)

    @property
    def columns(self) -> Iterator[Column | Attempt]:
        """The columns of all layers."""
        yield from columns_of(self.layers)
        for layers in self.later_layers.values():
            yield from columns_of(layers)

    def step_of(self, column: str) -> Step | None:
        """The step that a column belongs to, or that writes the topic or fills the store with this name."""
        edges = [*self.edges, *(edge for operator in self.operators for edge in operator.edges)]
        for edge in edges:
            if column in (edge.column, edge.key_column, edge.value_column, edge.foreign_column):
                return self.pipeline.steps[edge.target]
        return super().step_of(column)

    def step_named(self, name: str) -> Step | None:
        """The step that has that name in counts."""
        own = next((operator.step for operator in self.operators if operator.name == name), None)
        return own or super().step_named(name)

    def feeds_of(self, stage: int) -> list[Edge]:
        """The edges from a stage to operators, stores and sinks."""
        edges = (edge for operator in self.operators for edge in operator.edges)
        return [edge for edge in (*edges, *self.edges) if edge.stage == stage]


Job: TypeAlias = FusedJob | OrderedJob


def columns_of(layers: Layers) -> Iterator[Column | Attempt]:
    """The columns of layers; those from a function of the whole DataFrame have no SQL."""
    for layer in layers:
        if not isinstance(layer, Transformation):
            yield from layer


@dataclass(frozen=True)
class Plan:
    """The jobs of a pipeline."""

    pipeline: PlannedPipeline
    jobs: tuple[Job, ...]

    def job(self, name: str) -> Job:
        """The job with this name; TopologyError lists the existing jobs."""
        job = next((job for job in self.jobs if job.name == name), None)
        if job is None:
            names = ", ".join(job.name for job in self.jobs)
            raise TopologyError(
                f"Pipeline {self.pipeline.name!r} has no job {name!r}.", next_step=f"Its jobs are: {names}."
            )
        return job
