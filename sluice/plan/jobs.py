"""The parts of a plan: the job, its aggregation groups and operators, and the topics that it reads and writes.

A plan is picklable data and contains everything that the engine needs, so it does not refer to the topology.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from operator import attrgetter
from pathlib import Path
from typing import TypeAlias

from sluice.operators.base import DEFAULT_OUTPUT
from sluice.plan.operator_parameters import Action, Aggregate, Process, ProcessorStore, PythonAggregate, StreamJoin
from sluice.plan.steps import PythonFunction, Sink, Source, Step
from sluice.values import row_order
from sluice.values.record_metadata import How
from sluice.values.references import Reference
from sluice.values.sink_tables import PostgresTable
from sluice.values.windows import AnyWindow, Window


@dataclass(frozen=True)
class Column:
    """A column of a job's rows."""

    name: str
    sql: str
    step: int | None
    """Number of the column's step; None if several steps share the column."""
    field: str = ""
    """The author's name for the column, if any."""
    position: str = ""
    """For a column that turns an array into rows: the column with the element's index."""


@dataclass(frozen=True)
class FallibleExpression:
    """A column with a step's expressions that can fail: a struct `c0`, `c1`, ..., or null if one of them failed.

    The column `error` has the error message if the step failed for the record, else null. The column `key_text` has the
    text of the expression that becomes a key.
    """

    name: str
    step: int
    passed: str
    """Condition: the record reaches the step."""
    columns: tuple[str, ...]
    """SQL of the expressions."""
    key: int | None
    """Index of the expression that becomes the key of records or of a store."""
    causes: tuple[tuple[str, str], ...]
    """SQL of the parts that can fail, innermost first, each with its error message."""

    @property
    def error(self) -> str:
        """Name of the column with the error message."""
        return f"{self.name}_error"

    @property
    def key_text(self) -> str:
        """Name of the column with the text of the key."""
        return f"{self.name}_key"

    def result(self, number: int) -> str:
        """SQL for the result of the expression with this index."""
        return f"{self.name}.c{number}"


@dataclass(frozen=True)
class Transformation:
    """A function from DataFrame to DataFrame: the SQL of its input columns and the names of its output columns."""

    step: int
    function: Reference
    at: str
    inputs: tuple[tuple[str, str], ...]
    outputs: tuple[tuple[str, str, str], ...]
    """Field, column of the job, and declared Spark SQL type of each output."""


Layer: TypeAlias = tuple[Column | FallibleExpression, ...] | Transformation
"""Columns that are computed together from the columns of previous layers; or a function of the whole DataFrame."""
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
    """Condition that is true for one row per record, because other steps may have turned the record into several."""
    key: str
    """SQL of the record's key at the step."""
    value: str
    """SQL of the value, as JSON."""


@dataclass(frozen=True)
class Combinable:
    """An aggregate whose partial results can be combined in any order: a function of a column of the job."""

    function: str
    """count, sum, min or max."""
    column: str | None
    """None for `count(*)`."""


@dataclass(frozen=True)
class StoreColumn:
    """One store of a group: the aggregates that make up its value."""

    store: str
    step: int
    columns: tuple[tuple[str, Combinable], ...]
    scalar: bool
    """Whether the store's value is the value of its only column."""
    definition: str
    """The store's definition as the author wrote it; stored state stays valid as long as this text is the same."""

    @property
    def inputs(self) -> tuple[str, ...]:
        """The columns that the aggregates read, without duplicates."""
        columns = (aggregate.column for _, aggregate in self.columns)
        return tuple(dict.fromkeys(column for column in columns if column is not None))


@dataclass(frozen=True)
class AggregationGroup:
    """Stores with the same stream, key and window, which share one state row per key and window.

    All of their aggregates are combinable. The tasks that read the records aggregate them, and the shards add up what
    the tasks and batches have.
    """

    number: int
    """The number of the first store's step, so that no operator and no global table has the same."""
    topics: tuple[str, ...]
    """The topics of the group's records."""
    passed: str
    """Column: whether the group aggregates the record."""
    key: str
    """Column: the record's key in the group, as text."""
    grouped_by: str
    """The author's expression for the key."""
    window: Window | None
    store_columns: tuple[StoreColumn, ...]
    null: str
    """Column: whether the record's value is null; empty if values are never null."""
    late: Sink | None
    """The topic of records that are late for every window. If several share it, only one has it."""
    retention_ms: int | None
    """How long a window is kept after its end; None means forever."""

    @property
    def name(self) -> str:
        """The name of the first store, for messages and stream times."""
        return self.store_columns[0].store

    @property
    def inputs(self) -> tuple[str, ...]:
        """The columns that the aggregates read, sorted."""
        return tuple(sorted({name for store_column in self.store_columns for name in store_column.inputs}))

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
    """A global table. Its latest values form a separate group, which every worker has in full."""

    source: Source
    group: int
    value: str
    """The Spark SQL type of the values."""


@dataclass(frozen=True)
class Edge:
    """The columns of the rows that enter a side of an operator, or a store or sink after one."""

    target: int
    side: int
    stage: int
    """The stage of the columns; 0 for records right after the stateless steps."""
    topics: tuple[str, ...]
    """The topics from which the rows come."""
    passed: str
    """Condition: the row belongs to this edge."""
    key: str
    values: tuple[str, ...]
    """SQL of the value, or of an aggregate's arguments."""
    is_null: str
    foreign: str | None = None
    """SQL of the record's original key if `key` differs; for an aggregate with late records, SQL of the value."""
    scalar: bool = False
    """Whether the value is not an object."""
    unchanged_result: str | None = None
    """The column of an operator's result, if the value is that result unchanged and therefore already JSON."""
    has_arguments: bool = False
    """Whether the values are an aggregate's arguments; the JSON is then an array."""
    has_old_values: bool = False
    """Whether the edge includes a table's old values."""
    requires_key: bool = True
    """Whether records without a key do not advance stream time."""
    requires_value: bool = False
    """Whether records without a value do not advance stream time."""
    path: tuple[str, ...] = ()
    """SQL of the elements of the path (`values.row_order`) from the stage's record or result to the target."""
    rekeyed: bool = False
    """Whether the rows' key for the target differs from the record's or result's key."""
    results_of: frozenset[int] = frozenset()
    """The operators whose results the rows are made from."""

    @property
    def column(self) -> str:
        """Column: whether a row belongs to this edge."""
        return f"f{self.target}_{self.side}"

    @property
    def key_column(self) -> str:
        return f"{self.column}_key"

    @property
    def value_column(self) -> str:
        """Column: the value as JSON; null for a tombstone."""
        return f"{self.column}_value"

    @property
    def foreign_column(self) -> str:
        return f"{self.column}_foreign"

    @property
    def path_column(self) -> str | None:
        """Column: the path from the record; None if the path is the same for all records."""
        return f"{self.column}_path" if self.constant_path is None else None

    @property
    def constant_path(self) -> bytes | None:
        """The path from the record if it is the same for all records, else None."""
        return row_order.constant(self.path, rekeyed=self.rekeyed)

    def path_from(self, base: str) -> str:
        """SQL of the path; `base` is SQL for the path of the stage's record or result."""
        return row_order.sql(base, self.path, rekeyed=self.rekeyed)


@dataclass(frozen=True)
class PlannedOperator:
    """An operator that processes each key's records in order and has a state per key."""

    step: Step
    stage: int
    action: Action
    edges: tuple[Edge, ...]
    topics: tuple[str, ...]
    """The topics from which the operator's rows come."""
    retracts: bool
    """Whether a later step needs the old value of each change."""
    chained_to: int | None
    """The operator of the same stage that passes its results directly to this operator."""
    clock: str
    """Operator whose stream time applies: itself, or the upstream operator it is chained to."""
    waits_for_close: bool
    """Whether this operator, or an operator chained to it, waits for stream time."""
    store: str | None
    grouped_by: str
    """The author's expression for the store's key."""
    window: AnyWindow | None
    """The windows of the store's keys."""
    late: Sink | None
    """The topic for late records. If several groups and operators share it, only one of them has it."""
    upstream_definition: str
    """The upstream steps as the author wrote them; stored state stays valid as long as this text is the same."""
    reason: str
    """The reason why the operator needs each key's records in order, for `sluice explain`."""
    definition: str
    """The operator's definition as the author wrote it, with the declared types."""
    columns_read: frozenset[str] = frozenset()
    """The columns of the operator's results that later expressions read."""

    @property
    def number(self) -> int:
        """The number of the operator's step."""
        return self.step.number

    @property
    def name(self) -> str:
        """The operator's name in counts and stream times."""
        return self.step.name

    @property
    def result(self) -> str:
        """The column of the results, for an operator with one output."""
        return result_column(self.number)

    def output_of(self, column: str) -> str:
        """The output whose results are in a column."""
        outputs = self.action.outputs if isinstance(self.action, Process) else {}
        return next((name for name, output in outputs.items() if output.column == column), DEFAULT_OUTPUT)

    @property
    def edges_from_records(self) -> tuple[Edge, ...]:
        """The edges from records right after the stateless steps."""
        return tuple(edge for edge in self.edges if edge.stage == 0)

    @property
    def is_stream_join(self) -> bool:
        """Whether the operator joins two streams, with a stream time for each side and one for both."""
        return isinstance(self.action, StreamJoin)

    @property
    def has_own_stream_time(self) -> bool:
        """Whether the operator has its own stream time."""
        return self.waits_for_close and self.clock == self.name

    @property
    def is_timed_by_source(self) -> bool:
        """Whether all rows come directly from one topic; the task of each partition then knows the stream time."""
        return not self.is_stream_join and len(self.topics) == 1 and all(edge.stage == 0 for edge in self.edges)

    @property
    def stores(self) -> Mapping[str, ProcessorStore]:
        """A processor's stores that can be queried."""
        if not isinstance(self.action, Process):
            return {}
        return {name: store for name, store in self.action.stores.items() if store.group_id is not None}

    @property
    def retention_ms(self) -> int | None:
        """How long a window of the store is kept after its end; None means forever."""
        return self.action.retention_ms if isinstance(self.action, Aggregate | PythonAggregate) else None


STORE = 2
"""The side of the edge into an operator's store; the edges into the operator have the sides of its rows."""


def result_column(operator: int, output: int | None = None) -> str:
    """The column of an operator's results; for a processor, of one of its outputs."""
    return f"v{operator}" if output is None else f"v{operator}_{output}"


@dataclass(frozen=True)
class Lookup:
    """A step after a table: replaces the value with `{left, right}`, where `right` comes from a global table."""

    table: TableInput
    how: How


@dataclass(frozen=True)
class Select:
    """A step after a table: replaces the value with an expression over `_key` and the old value `v`."""

    sql: str
    step: int
    causes: tuple[tuple[str, str], ...] = ()
    """SQL of the parts that can fail, each with its error message; empty if none can."""


@dataclass(frozen=True)
class TableSink:
    """Writes a store's changes to a topic, after `steps`."""

    sink: Sink
    group: int
    store_column: int
    steps: tuple[Lookup | Select, ...]
    scalar: bool


@dataclass(frozen=True)
class PlannedPipeline:
    """The name, settings and descriptions of a pipeline."""

    name: str
    workers: int
    idle_timeout_ms: int | None
    linger_ms: int
    """How long a run that has read all records waits for new records."""
    max_failures: float
    file: Path | None
    dead_letters: str
    """The topic for records that could not be read, processed or written."""
    markers: str
    """The topic with a marker for each batch whose output is committed."""
    steps: tuple[Step, ...]
    text: str
    mermaid: str
    svg: str
    depends_on_clock: bool
    """Whether an expression depends on the time of the batch."""


@dataclass(frozen=True, kw_only=True)
class Job:
    """A pipeline as one streaming query: it reads topics, keeps state, and writes topics and tables."""

    pipeline: PlannedPipeline
    streams: tuple[Source, ...]
    tables: tuple[TableInput, ...]
    metadata: tuple[str, ...]
    """The metadata columns (`_key`, `_topic`, ...) that any step reads."""
    layers: Layers
    """Columns computed from the records, each layer from the previous layers."""
    functions: tuple[PythonFunction, ...]
    """The Python functions that the layers call."""
    failures: tuple[Failure, ...]
    stream_sinks: tuple[Sink, ...]
    """The topics and tables to which single records are written."""
    groups: tuple[AggregationGroup, ...]
    """The combinable aggregates, which need no order of records."""
    table_sinks: tuple[TableSink, ...]
    """The topics and tables to which the changes of groups are written."""
    operators: tuple[PlannedOperator, ...]
    """The operators, which process each key's records in order, in stages."""
    edges: tuple[Edge, ...]
    """Edges into stores and sinks after operators."""
    later_layers: Mapping[int, Layers]
    """Stage → the columns computed from its operators' results."""
    operator_sinks: tuple[Sink, ...]
    """The topics and tables to which operators' results are written."""
    state_functions: tuple[tuple[str, Reference], ...]
    """The author's functions on which the job's state depends, each with a name for messages."""

    @property
    def topics(self) -> tuple[str, ...]:
        """All topics that the job reads."""
        # Operators that join a global table read its topic, and its store does, too.
        return tuple(dict.fromkeys(topic for topics in self.topics_of_sources for topic in topics))

    @property
    def topics_of_sources(self) -> tuple[tuple[str, ...], ...]:
        """The topics of each of the query's Kafka sources: of streams, and of global tables if there are any."""
        streams = tuple(source.topic for source in self.streams)
        tables = tuple(table.source.topic for table in self.tables)
        return (streams, tables) if tables else (streams,)

    @property
    def sinks(self) -> tuple[Sink, ...]:
        """All topics and tables that the job writes, except dead letters."""
        late = [group.late for group in self.groups if group.late is not None]
        return (*self.stream_sinks, *(table.sink for table in self.table_sinks), *late, *self.operator_sinks)

    @property
    def outputs(self) -> tuple[str, ...]:
        """The names of the topics that the job writes, except dead letters."""
        return tuple(sink.topic for sink in self.sinks if sink.table is None)

    @property
    def keeps_headers(self) -> bool:
        """Whether the headers of records may reach a topic."""
        return any(sink.table is None for sink in self.sinks)

    @property
    def written_tables(self) -> Mapping[str, tuple[Sink, ...]]:
        """Destination → the tables that one transaction per batch writes: those of a database, or one Delta table."""
        tables: dict[str, tuple[Sink, ...]] = {}
        for sink in self.sinks:
            if sink.table is not None:
                tables[sink.table.destination] = (*tables.get(sink.table.destination, ()), sink)
        return tables

    @property
    def connections(self) -> tuple[str, ...]:
        """The connections of the databases to whose tables the job writes."""
        tables = (sink.table for sink in self.sinks)
        return tuple(dict.fromkeys(table.connection for table in tables if isinstance(table, PostgresTable)))

    @property
    def stores(self) -> tuple[str, ...]:
        """The stores that can be queried, except global tables."""
        of_groups = (store_column.store for group in self.groups for store_column in group.store_columns)
        of_operators = (operator.store for operator in self.operators if operator.store is not None)
        of_processors = (name for operator in self.operators for name in operator.stores)
        return (*of_groups, *of_operators, *of_processors)

    @property
    def stage_count(self) -> int:
        """The number of stages of operators."""
        return max((operator.stage for operator in self.operators), default=0)

    @property
    def has_operators(self) -> bool:
        """Whether results depend on the order of the records, also across partitions."""
        return bool(self.operators)

    @property
    def has_fallible_expressions(self) -> bool:
        """Whether any expression of the job can fail."""
        steps = (step for sink in self.table_sinks for step in sink.steps)
        return any(isinstance(column, FallibleExpression) for column in self.columns) or any(
            isinstance(step, Select) and step.causes for step in steps
        )

    @property
    def columns(self) -> Iterator[Column | FallibleExpression]:
        """The columns of all layers."""
        yield from columns_of(self.layers)
        for layers in self.later_layers.values():
            yield from columns_of(layers)

    @property
    def python_steps(self) -> tuple[Step, ...]:
        """The steps that call the author's Python functions in Spark's workers."""
        sources = (*self.streams, *(table.source for table in self.tables))
        decoded = (source.number for source in sources if source.decode or source.key_decode)
        numbers = {*decoded, *(function.number for function in self.functions)}
        with_state = (each.step for each in self.operators if isinstance(each.action, PythonAggregate | Process))
        steps = {*with_state, *(step for step in self.pipeline.steps if step.number in numbers)}
        return tuple(sorted(steps, key=attrgetter("number")))

    @property
    def failures_before_operators(self) -> tuple[Failure, ...]:
        """The failures of steps before any operator."""
        return tuple(failure for failure in self.failures if not failure.stage)

    @property
    def looked_up_groups(self) -> frozenset[int]:
        """The group numbers of the global tables that outputs of groups look up."""
        steps = (step for sink in self.table_sinks for step in sink.steps)
        return frozenset(step.table.group for step in steps if isinstance(step, Lookup))

    @property
    def groups_by_number(self) -> Mapping[int, AggregationGroup]:
        return {group.number: group for group in self.groups}

    def step_of(self, column: str) -> Step | None:
        """The step that computes the column, or that writes the topic with this name; None if several or none do."""
        edges = [*self.edges, *(edge for operator in self.operators for edge in operator.edges)]
        for edge in edges:
            if column in (edge.column, edge.key_column, edge.value_column, edge.foreign_column):
                return self.pipeline.steps[edge.target]
        for each in self.columns:
            if column in (each.name, *((each.error, each.key_text) if isinstance(each, FallibleExpression) else ())):
                return None if each.step is None else self.pipeline.steps[each.step]
        number = next((sink.number for sink in self.sinks if column in (sink.topic, sink.key, sink.value)), None)
        return None if number is None else self.pipeline.steps[number]

    def step_named(self, name: str) -> Step | None:
        """The step with this name in counts."""
        own = next((operator.step for operator in self.operators if operator.name == name), None)
        return own or next((step for step in self.pipeline.steps if step.name == name), None)

    @property
    def field_names(self) -> dict[str, str]:
        """Column → the author's name for it, for columns that have one."""
        made = {column.name: column.field for column in self.columns if isinstance(column, Column) and column.field}
        return made | {field.column: field.name for source in self.streams for field in source.fields}

    def edges_from(self, stage: int) -> list[Edge]:
        """The edges from a stage to operators, stores and sinks."""
        edges = (edge for operator in self.operators for edge in operator.edges)
        return [edge for edge in (*edges, *self.edges) if edge.stage == stage]

    @property
    def store_only_operators(self) -> frozenset[int]:
        """The operators whose results go only to their store, so that a key's last result is enough."""
        edges = (edge for stage in range(1, self.stage_count + 1) for edge in self.edges_from(stage))
        passed_on = {operator for edge in edges if edge.side != STORE for operator in edge.results_of}
        chained = {operator.chained_to for operator in self.operators}
        return frozenset(
            operator.number
            for operator in self.operators
            if operator.store is not None
            and not operator.columns_read
            and operator.number not in passed_on
            and operator.number not in chained
        )


PlanOf: TypeAlias = Callable[[Collection[str]], Job]
"""Plans a part of a pipeline: the stores and steps with these names and what they need, or all others."""


def columns_of(layers: Layers) -> Iterator[Column | FallibleExpression]:
    """The columns of layers. Omits columns from a function of the whole DataFrame, which have no SQL."""
    for layer in layers:
        if not isinstance(layer, Transformation):
            yield from layer


@dataclass(frozen=True)
class Plan:
    """The job of a pipeline."""

    pipeline: PlannedPipeline
    job: Job
