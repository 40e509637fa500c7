"""What a plan is made of: jobs, the cell families they keep, the topics they read and write."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from sluice.errors import TopologyError
from sluice.topology import nodes
from sluice.topology.pipeline import Pipeline
from sluice.topology.windows import Window

TO_JSON = "to_json({}, map('ignoreNullFields', 'false'))"


@dataclass(frozen=True)
class Slot:
    """One store of a family: the aggregates whose values make the store's value."""

    store: str
    columns: tuple[tuple[str, str], ...]
    """Name and aggregate, over the job's columns."""
    scalar: bool


@dataclass(frozen=True)
class Family:
    """The stores that share filter, key and window: their values stand together in one cell per key and window."""

    number: int
    at: nodes.Aggregate
    passed: str
    """Column: whether a record counts here."""
    key: str
    """Column: the record's key here, as text."""
    window: Window | None
    inputs: tuple[str, ...]
    """Columns that the aggregates read."""
    slots: tuple[Slot, ...]

    @property
    def name(self) -> str:
        """For messages and stream times: the first store's name."""
        return self.slots[0].store

    @property
    def aggregates(self) -> tuple[str, ...]:
        """Every aggregate of the family's stores, each once."""
        return tuple(dict.fromkeys(text for slot in self.slots for _, text in slot.columns))


@dataclass(frozen=True)
class TableInput:
    """A global table: its latest values are a family of their own, on every worker."""

    source: nodes.Source
    family: int


@dataclass(frozen=True)
class StreamSink:
    """Each record that passed is written to the topic; columns `o{number}_key`, `o{number}_value`."""

    number: int
    topic: str


@dataclass(frozen=True)
class Lookup:
    """A step of a table's changes: the value becomes `{left, right}`, right from a global table by key."""

    table: TableInput
    how: str


@dataclass(frozen=True)
class Select:
    """A step of a table's changes: the value becomes this expression over `_key` and `v`."""

    sql: str


@dataclass(frozen=True)
class TableSink:
    """Each change of a store is written to the topic, after `steps`."""

    topic: str
    family: int
    slot: int
    steps: tuple[Lookup | Select, ...]
    scalar: bool


@dataclass(frozen=True)
class Job:
    """One streaming query: topics in, cells and output records out, one cut per batch."""

    pipeline: Pipeline
    name: str
    streams: tuple[nodes.Source, ...]
    tables: tuple[TableInput, ...]
    fields: Mapping[int, tuple[str, ...]]
    """Source number → the fields of its value that anything reads."""
    metadata: tuple[str, ...]
    """Which of `_key`, `_topic`, ... anything reads."""
    layers: tuple[tuple[tuple[str, str], ...], ...]
    families: tuple[Family, ...]
    stream_sinks: tuple[StreamSink, ...]
    table_sinks: tuple[TableSink, ...]

    @property
    def topics(self) -> tuple[str, ...]:
        """Every topic the job reads."""
        return tuple(source.topic for source in (*self.streams, *(table.source for table in self.tables)))

    @property
    def outputs(self) -> tuple[str, ...]:
        """Every topic the job writes, dead letters left out."""
        return (*(sink.topic for sink in self.stream_sinks), *(sink.topic for sink in self.table_sinks))


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
