"""A plan: the job of a pipeline, which is one streaming query.

A plan is picklable data and contains everything that the engine needs, so it does not refer to the
topology.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeAlias

from sluice.plan.aggregation_groups import AggregationGroup, ChangeSink, Lookup, Select
from sluice.plan.layers import Column, Failure, FallibleExpression, Layers, columns_of
from sluice.plan.operator_parameters import (
    AggregateParameters,
    CallParameters,
    ProcessParameters,
    PythonAggregateParameters,
    TableLookupParameters,
)
from sluice.plan.planned_operators import STORE, Edge, PlannedOperator
from sluice.plan.steps import Expectation, GlobalTableInput, PythonFunction, Sink, Source, Step
from sluice.values.aggregate_calls import UNORDERED
from sluice.values.call_parameters import LookedUpTable, SharedStore
from sluice.values.references import Reference
from sluice.values.registry_formats import RegistryFormat
from sluice.values.sink_tables import PostgresTable
from sluice.values.windows import TimeWindow


@dataclass(frozen=True)
class PlannedPipeline:
    """The name, settings and descriptions of a pipeline."""

    name: str
    workers: int
    idle_timeout_ms: int | None
    advance_when_idle_ms: int | None
    """How long an operator's topics must be silent before its stream time advances with the clock;
    None if it never does so."""
    linger_ms: int
    """How long a run that has read all records waits for new records."""
    max_failures: float
    max_rejected: float
    file: Path | None
    dead_letters: str
    """The topic for records that could not be read, processed or written."""
    markers: str
    """The topic of the markers, which name the batches whose output has been written."""
    steps: tuple[Step, ...]
    text: str
    svg: str
    contracts: Mapping[str, Mapping[str, str]]
    """Topic or pattern → the fields of the contract of its values (see `contract_fields`)."""
    output_fields: Mapping[str, Mapping[str, str]]
    """Topic or table → the fields of the values written to it, with types as far as known."""
    output_keys: Mapping[str, str]
    """Topic or table → the expression of its records' keys; empty if it is unknown."""
    may_break: tuple[str, ...]
    """The pipelines that a change of this pipeline may break (see `Pipeline`)."""
    depends_on_clock: bool
    """Whether an expression depends on the time of the batch."""
    announced_windows: Mapping[str, TimeWindow]
    """Store → its windows, for the stores whose closed windows are announced to Airflow."""


@dataclass(frozen=True, kw_only=True)
class Job:
    """A pipeline as one streaming query: it reads topics, keeps state, writes topics and tables."""

    pipeline: PlannedPipeline
    streams: tuple[Source, ...]
    tables: tuple[GlobalTableInput, ...]
    metadata: tuple[str, ...]
    """The metadata columns (`_key`, `_topic`, ...) that at least one step reads."""
    layers: Layers
    """Columns computed from the records, each layer from the previous layers."""
    functions: tuple[PythonFunction, ...]
    """The Python functions that the layers call."""
    failures: tuple[Failure, ...]
    stream_sinks: tuple[Sink, ...]
    """The topics and tables to which the output records of stateless steps are written."""
    expectations: tuple[Expectation, ...]
    groups: tuple[AggregationGroup, ...]
    """The combinable aggregates, which need no order of records."""
    change_sinks: tuple[ChangeSink, ...]
    """The topics and tables to which the changes of groups are written."""
    operators: tuple[PlannedOperator, ...]
    """The operators, which process each key's records in order, in stages."""
    edges: tuple[Edge, ...]
    """Edges into stores and sinks after operators."""
    later_layers: Mapping[int, Layers]
    """Stage → the columns that are computed from the results of the stage's operators."""
    operator_sinks: tuple[Sink, ...]
    """The topics and tables to which operators' results are written."""
    state_functions: tuple[tuple[str, Reference], ...]
    """The author's functions on which the job's state depends, each with a name for messages."""

    @property
    def topics(self) -> tuple[str, ...]:
        """All topics that the job reads."""
        # The topic of a global table can occur twice: both the table's store and operators read it.
        return tuple(dict.fromkeys(source.topic for source in self._sources))

    @property
    def topics_by_source(self) -> dict[int, str]:
        """Number of a stream's source → its topic."""
        return {source.number: source.topic for source in self.streams}

    @property
    def patterns(self) -> tuple[str, ...]:
        """The patterns of the topics that the job reads."""
        patterns: dict[str, None] = {}
        for source in self.streams:
            if source.pattern is not None:
                patterns[source.pattern] = None
        return tuple(patterns)

    @property
    def unmatched_patterns(self) -> Mapping[str, int]:
        """Pattern → the most topics that it may match, for patterns without known topics."""
        most_topics: dict[str, int] = {}
        for source in self.streams:
            if source.topic == source.pattern:
                most_topics[source.topic] = source.most_topics
        return most_topics

    @property
    def matched_topics(self) -> tuple[str, ...]:
        """The topics that patterns match."""
        topics: list[str] = []
        for source in self.streams:
            if source.pattern not in (None, source.topic):
                topics.append(source.topic)
        return tuple(topics)

    @property
    def topics_and_patterns(self) -> tuple[str, ...]:
        """The patterns of topics, and all topics that the job reads."""
        return tuple(dict.fromkeys((*self.patterns, *self.topics)))

    def matching(self, topics_by_pattern: Mapping[str, Sequence[str]]) -> Job:
        """Return the job with a source for each topic that matches a pattern, in topic order."""

        def matched(topics: Sequence[str]) -> tuple[str, ...]:
            names: list[str] = []
            for topic in topics:
                names += topics_by_pattern.get(topic, [topic])
            return tuple(names)

        def matched_edges(edges: Sequence[Edge]) -> tuple[Edge, ...]:
            return tuple([replace(edge, topics=matched(edge.topics)) for edge in edges])

        streams: list[Source] = []
        for source in self.streams:
            for number, topic in enumerate(matched([source.topic]), source.number):
                streams.append(replace(source, number=number, topic=topic))
        groups: list[AggregationGroup] = []
        for group in self.groups:
            groups.append(replace(group, topics=matched(group.topics)))
        operators: list[PlannedOperator] = []
        for operator in self.operators:
            of_topics = replace(
                operator,
                topics=matched(operator.topics),
                edges=matched_edges(operator.edges),
                timed_by_topics=matched(operator.timed_by_topics),
            )
            operators.append(of_topics)
        return replace(
            self,
            streams=tuple(streams),
            groups=tuple(groups),
            operators=tuple(operators),
            edges=matched_edges(self.edges),
        )

    @property
    def sinks(self) -> tuple[Sink, ...]:
        """All topics and tables that the job writes, except the topic of dead letters."""
        of_groups = [change_sink.sink for change_sink in self.change_sinks]
        for group in self.groups:
            if group.late is not None:
                of_groups.append(group.late)
        return (*self.stream_sinks, *of_groups, *self.operator_sinks)

    @property
    def _sources(self) -> Iterator[Source]:
        """Yield the sources of streams, then the sources of global tables."""
        yield from self.streams
        for table in self.tables:
            yield table.source

    def registered_sources(self) -> Iterator[tuple[Source, RegistryFormat]]:
        """Yield the sources whose values have a schema in the registry, with their formats."""
        for source in self._sources:
            if source.decode is not None and isinstance(source.decode.value, RegistryFormat):
                yield source, source.decode.value

    def registered_sinks(self) -> Iterator[tuple[Sink, RegistryFormat]]:
        """Yield the sinks whose values have a schema in the registry, with their formats."""
        for sink in self.sinks:
            if sink.encode is not None and isinstance(sink.encode.value, RegistryFormat):
                yield sink, sink.encode.value

    @property
    def outputs(self) -> tuple[str, ...]:
        """The names of the topics that the job writes, except the topic of dead letters."""
        return tuple(sink.topic for sink in self.sinks if sink.table is None)

    @property
    def copied(self) -> frozenset[tuple[int, int]]:
        """The inputs whose rows go to every worker, each as an operator's number and a side."""
        copied: set[tuple[int, int]] = set()
        for operator in self.operators:
            for edge in operator.edges:
                if edge.is_copied:
                    copied.add((edge.target, edge.side))
        return frozenset(copied)

    @property
    def keeps_headers(self) -> bool:
        """Whether headers may reach topics, stores that keep them, or processors that read them."""
        if self.outputs:
            return True
        for operator in self.operators:
            if operator.keeps_headers or isinstance(operator.action, ProcessParameters):
                return True
        return any(table.keeps_headers for table in self.tables)

    @property
    def written_tables(self) -> Mapping[str, tuple[Sink, ...]]:
        """Destination → the tables that one transaction per batch writes.

        These are all tables of a database, or one Delta table.
        """
        tables: dict[str, tuple[Sink, ...]] = {}
        for sink in self.sinks:
            if sink.table is not None:
                of_destination = tables.get(sink.table.destination, ())
                tables[sink.table.destination] = (*of_destination, sink)
        return tables

    @property
    def connections(self) -> tuple[str, ...]:
        """The connections of the databases to whose tables the job writes."""
        connections: dict[str, None] = {}
        for sink in self.sinks:
            if isinstance(sink.table, PostgresTable):
                connections[sink.table.connection] = None
        return tuple(connections)

    @property
    def lookup_connections(self) -> tuple[str, ...]:
        """The connections of the databases in whose tables the job looks up records."""
        connections: dict[str, None] = {}
        for operator in self.operators:
            if isinstance(operator.action, TableLookupParameters):
                if isinstance(operator.action.table, LookedUpTable):
                    connections[operator.action.table.connection] = None
        return tuple(connections)

    @property
    def shared_stores(self) -> tuple[tuple[SharedStore, str], ...]:
        """Return the stores of other pipelines that the job reads, and the types that it reads."""
        stores: dict[tuple[SharedStore, str], None] = {}
        for operator in self.operators:
            if isinstance(operator.action, TableLookupParameters):
                if isinstance(operator.action.table, SharedStore):
                    stores[operator.action.table, operator.action.row.kind] = None
        return tuple(stores)

    @property
    def calls_out(self) -> bool:
        """Whether the job calls a service or a database.

        Its results then depend on their answers.
        """
        for operator in self.operators:
            if isinstance(operator.action, CallParameters | TableLookupParameters):
                return True
        return False

    @property
    def stores(self) -> tuple[str, ...]:
        """The stores that can be queried, except global tables."""
        of_groups: list[str] = []
        for group in self.groups:
            of_groups += group.stores
        of_processors: list[str] = []
        of_operators: list[str] = []
        for operator in self.operators:
            of_processors += operator.stores
            if operator.store is not None:
                of_operators.append(operator.store)
        return (*of_groups, *of_operators, *of_processors)

    @property
    def stage_count(self) -> int:
        """The number of stages of operators."""
        return max([operator.stage for operator in self.operators], default=0)

    @property
    def writes_in_last_stage(self) -> bool:
        """Whether the tasks of the last stage also write the shards.

        They do if each worker in this stage owns all of its rows for the shards. Otherwise, these
        rows need another shuffle.
        """
        # Global tables are read by tasks that belong to no stage.
        if not self.operators or self.tables:
            return False
        # The key of these operators' rows is the text of a windowed key. Their stores have the key
        # without the window, which may belong to another worker.
        last_stage = self.stage_count
        for operator in self.operators:
            if operator.stage == last_stage and operator.by_window:
                return False
        return True

    @property
    def has_one_shuffle(self) -> bool:
        """Whether rows are shuffled only once, after the tasks that read the records."""
        return self.stage_count + (not self.writes_in_last_stage) == 1

    @property
    def read_clocks(self) -> frozenset[str]:
        """The names under which the tasks that read the records keep stream times."""
        clocks = self._clocks_of_operators_read
        for group in self.groups:
            clocks.append(group.name)
        return frozenset(clocks)

    @property
    def reads_without_stages(self) -> bool:
        """Whether the tasks that read records need no stream time from the previous batch's stages.

        If stream time advances for idle partitions, an operator's stream time can be later than the
        stream time of the partition that a task reads.
        """
        waits = (
            self.pipeline.idle_timeout_ms is not None
            or self.pipeline.advance_when_idle_ms is not None
        )
        return not (waits and self._clocks_of_operators_read)

    @property
    def _clocks_of_operators_read(self) -> list[str]:
        clocks: list[str] = []
        for operator in self.operators:
            if operator.has_own_stream_time and operator.is_timed_by_source:
                clocks.append(operator.clock)
        return clocks

    @property
    def has_operators(self) -> bool:
        """Whether the job has operators, whose results depend on the order of all records."""
        return bool(self.operators)

    @property
    def has_fallible_expressions(self) -> bool:
        """Whether any expression of the job can fail."""
        for column in self.columns:
            if isinstance(column, FallibleExpression):
                return True
        return any(isinstance(step, Select) and step.causes for step in self._change_steps)

    @property
    def columns(self) -> Iterator[Column | FallibleExpression]:
        """The columns of all layers."""
        yield from columns_of(self.layers)
        for layers in self.later_layers.values():
            yield from columns_of(layers)

    @property
    def python_steps(self) -> tuple[Step, ...]:
        """The steps that call the author's Python functions in Spark's tasks."""
        numbers = {function.number for function in self.functions}
        for source in self._sources:
            if source.decode or source.key_decode:
                numbers.add(source.step)
        for operator in self.operators:
            if isinstance(
                operator.action, PythonAggregateParameters | ProcessParameters | CallParameters
            ):
                numbers.add(operator.number)
        return tuple(step for step in self.pipeline.steps if step.number in numbers)

    @property
    def failures_before_operators(self) -> tuple[Failure, ...]:
        """The failures of steps before any operator."""
        return tuple(failure for failure in self.failures if not failure.stage)

    @property
    def looked_up_groups(self) -> frozenset[int]:
        """The group numbers of the global tables with which changes of groups are joined."""
        groups: set[int] = set()
        for step in self._change_steps:
            if isinstance(step, Lookup):
                groups.add(step.table.group)
        return frozenset(groups)

    @property
    def groups_by_number(self) -> Mapping[int, AggregationGroup]:
        return {group.number: group for group in self.groups}

    def step_of(self, column: str) -> Step | None:
        """Return the step that computes the column or writes the topic named `column`.

        Return None if no step or several steps do.
        """
        steps = self.pipeline.steps
        for edge in self._all_edges:
            if column in (edge.column, edge.key_column, edge.value_column, edge.foreign_column):
                return steps[edge.target]
        for planned in self.columns:
            names = [planned.name]
            if isinstance(planned, FallibleExpression):
                names += [planned.error, planned.key_text]
            if column in names:
                if planned.step is None:
                    return None
                return steps[planned.step]
        for sink in self.sinks:
            if column in (sink.topic, sink.key, sink.value):
                return steps[sink.number]
        return None

    def step_named(self, name: str) -> Step | None:
        """Return the step with this name in counts."""
        # If a store and a topic have the same name, look for the store first, because counts name
        # an operator after its store.
        for operator in self.operators:
            if operator.step.name == name:
                return operator.step
        for step in self.pipeline.steps:
            if step.name == name:
                return step
        return None

    @property
    def field_names(self) -> dict[str, str]:
        """Column → the author's name for the column, if the author has named it."""
        names: dict[str, str] = {}
        for column in self.columns:
            if isinstance(column, Column) and column.field:
                names[column.name] = column.field
        for source in self.streams:
            for field in source.fields:
                names[field.column] = field.name
        return names

    def edges_from(self, stage: int) -> list[Edge]:
        """Return a stage's edges to operators, stores and sinks, without edges that share rows."""
        return [edge for edge in self._all_edges if edge.stage == stage and edge.shares is None]

    def edges_sharing_rows(self, stage: int) -> Mapping[int, tuple[Edge, ...]]:
        """Return operator → edges that share the rows of its edges, for the operators of a stage.

        See `shared_rows.py`.
        """
        stage_of = {operator.number: operator.stage for operator in self.operators}
        sharing: dict[int, tuple[Edge, ...]] = {}
        for edge in self._all_edges:
            if edge.shares is not None and stage_of[edge.shares.target] == stage:
                target = edge.shares.target
                sharing[target] = (*sharing.get(target, ()), edge)
        return sharing

    @property
    def _all_edges(self) -> Iterator[Edge]:
        """The edges into operators, then the edges into stores and sinks."""
        for operator in self.operators:
            yield from operator.edges
        yield from self.edges

    @property
    def operators_with_chained(self) -> frozenset[int | None]:
        """Return the operators that pass results to another operator of their stage, and None."""
        return frozenset(operator.chained_to for operator in self.operators)

    @property
    def _change_steps(self) -> Iterator[Lookup | Select]:
        """The steps between groups and their outputs."""
        for sink in self.change_sinks:
            yield from sink.steps

    @property
    def store_only_operators(self) -> frozenset[int]:
        """The operators whose results go only to their store.

        The store needs only the last result of each key.
        """
        return self.last_only_operators - self.operators_with_chained

    @property
    def last_only_operators(self) -> frozenset[int]:
        """The operators for which only the last result of each key and window in a batch matters.

        Their results go only to their store, and to suppress steps that send only final results.
        """
        others: set[int | None] = set()
        for operator in self.operators:
            if not operator.sends_only_final_results:
                others.add(operator.chained_to)
        for edge in self._all_edges:
            # In a versioned table, a key's last result may be a late update. The table's store
            # leaves out late updates, so it needs an earlier result.
            if edge.stage and (edge.side != STORE or edge.takes_latest):
                others |= edge.results_of
        numbers: set[int] = set()
        for operator in self.operators:
            # Results with the same value may have different headers.
            if operator.store is None or operator.columns_read or operator.keeps_headers:
                continue
            if operator.number not in others:
                numbers.add(operator.number)
        return frozenset(numbers)

    @property
    def operators_of_changes(self) -> frozenset[int]:
        """The aggregates that need not send a result equal to the key's or window's previous one.

        Their results go to their store, and otherwise only to aggregates of the resulting tables.
        For these, only the last result matters, and an equal result changes nothing.
        """
        last_only = self.last_only_operators
        readers: set[int] = set()
        for operator in self.operators:
            match operator.action:
                case AggregateParameters(functions=functions, subtracts=True) if (
                    operator.number in last_only
                ):
                    if all(name in UNORDERED for name, _, _ in functions):
                        readers.add(operator.number)
        others: set[int | None] = {*self.operators_with_chained}
        for edge in self._all_edges:
            if edge.side != STORE and edge.target not in readers:
                others |= edge.results_of
        numbers: set[int] = set()
        for operator in self.operators:
            is_aggregate = isinstance(
                operator.action, AggregateParameters | PythonAggregateParameters
            )
            may_skip = operator.sends_old_values and not operator.keeps_headers
            if is_aggregate and may_skip and operator.number not in others:
                numbers.add(operator.number)
        return frozenset(numbers)


@dataclass(frozen=True)
class Plan:
    """The name, settings and job of a pipeline."""

    pipeline: PlannedPipeline
    job: Job


PlanOf: TypeAlias = Callable[[Collection[str]], Job]
"""A function that plans a part of a pipeline, given the names of stores and steps. The part has
either these stores and steps with all steps upstream of them, or the rest of the pipeline."""
