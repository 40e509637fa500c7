"""The steps, sources and sinks of a plan."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from sluice.values.call_parameters import FunctionBatch
from sluice.values.contracts import is_bytes
from sluice.values.epochs import Unit
from sluice.values.record_metadata import Emit, Gives, OnError, OnNull, OnTime
from sluice.values.references import Reference
from sluice.values.sink_tables import OutputTable


@dataclass(frozen=True)
class Step:
    """A step of the topology, as described in messages, counts and dead letters."""

    number: int
    """Index among the pipeline's steps."""
    name: str
    """The name in counts and stream times: the name of the step's store or topic, or a generated
    name."""
    title: str
    """The kind of step, such as `store orders` or `filter`."""
    detail: str
    """The author's expressions."""
    at: str
    """The author's `file:line`."""
    on_error: OnError

    def __str__(self) -> str:
        return f"{self.title} at {self.at}"


@dataclass(frozen=True)
class SourceField:
    """A field that the job reads from a topic: its value, its text as a key, or the record key."""

    name: str
    column: str
    """The job's column for the field."""
    type: str
    """The column's Spark SQL type."""
    holds: Literal["value", "key_text", "record_key"] = "value"
    """Whether the column has the field's value, its text as a key, or the key of the record."""


@dataclass(frozen=True)
class Source:
    """A topic that a job reads, and how to decode its records.

    A plan has one source for all topics that match a pattern; `Job.matching` replaces it by a
    source per topic.
    """

    number: int
    """The number of the source in the column `_source`."""
    step: int
    """The number of the source's step."""
    topic: str
    """The topic's name, or the pattern before a run has looked for the topics."""
    pattern: str | None
    """The pattern that the topic matches; None for a topic that the author has named."""
    most_topics: int
    """The largest number of topics that the pattern may match."""
    kind: Literal["stream", "table", "global_table"]
    contract: Reference | None
    """The type of the values; None for plain text."""
    contract_name: str
    is_object: bool
    """Whether values have fields."""
    decode: Reference | None
    """The author's decoder, if any."""
    key: str | None
    """SQL of the key: a field, or a struct of several fields; None if it is the Kafka key."""
    key_fields: tuple[str, ...]
    """The fields of the record's key."""
    key_decode: Reference | None
    event_time: str | None
    """The field with the event time, or WALL_CLOCK; None for the Kafka timestamp."""
    time_unit: Unit | None
    """The unit that the author declared for an event time that is a number."""
    zone: str
    """Time zone of event times without a zone."""
    max_future_skew_ms: int
    nulls: OnNull
    on_time: OnTime
    on_error: OnError
    types: Mapping[str, str]
    """All fields of the values with their Spark SQL types."""
    fields: tuple[SourceField, ...] = ()
    """The fields that the job reads."""

    @property
    def keeps_nulls(self) -> bool:
        """Whether records without a value are processed, instead of becoming dead letters."""
        return self.nulls == "keep"

    @property
    def is_bytes(self) -> bool:
        """Whether the value is the bytes of the record's value, without decoding."""
        return self.contract is not None and is_bytes(self.contract.value) and self.decode is None

    @property
    def value_class(self) -> Any:
        """The type of the values, for a source with a contract."""
        assert self.contract is not None
        return self.contract.value

    @property
    def value_type(self) -> Any:
        """Return the type of the values, which is str for a source without a contract."""
        return str if self.contract is None else self.contract.value


@dataclass(frozen=True)
class GlobalTableInput:
    """A global table. The latest values of its keys form a separate group.

    Every worker has all rows of this group.
    """

    source: Source
    group: int
    value: str
    """The Spark SQL type of the values."""
    store: str
    keeps_headers: bool = False
    """Whether the rows keep the headers of their records."""


@dataclass(frozen=True)
class Expectation:
    """A condition that most records of a batch must meet.

    `passed` and `broken` are column names.
    """

    number: int
    name: str
    condition: str
    at_most: float
    fails: bool
    """Whether a batch that breaks the expectation ends the run."""
    at: str

    @property
    def passed(self) -> str:
        """Return the name of the column that tells whether a record reaches the expectation."""
        return f"e{self.number}"

    @property
    def broken(self) -> str:
        """Return the name of the column that tells whether a record breaks the expectation."""
        return f"e{self.number}_broken"

    @property
    def count_of_records(self) -> str:
        """Return the name of the count of records that reach the expectation."""
        return f"expected/{self.name}"

    @property
    def count_of_broken(self) -> str:
        """Return the name of the count of records that break the expectation."""
        return f"unexpected/{self.name}"


@dataclass(frozen=True)
class Sink:
    """A topic, or a table outside Kafka, that a job writes.

    If a sink follows only stateless steps, `passed`, `key` and `value` are the names of the columns
    that the sink reads.
    """

    number: int
    topic: str
    """The topic's name, or the table's name in counts, such as `warehouse:shop.totals`."""
    encode: Reference | None
    encode_key: Reference | None
    partition: Reference | None = field(default=None, kw_only=True)
    """The author's function that chooses a record's partition; None for the hash of the key."""
    emit: Emit
    is_windowed: bool
    """Whether the records' keys have windows."""
    on_error: OnError
    at: str
    table: OutputTable | None = None
    columns: tuple[tuple[str, str], ...] = ()
    """The fields of a table's rows, each with its Spark SQL type, or an empty string if the type is
    unknown."""
    scalar: bool = False
    """Whether the value is not an object. The value is then the only column besides the columns
    that identify the row."""

    @property
    def appends(self) -> bool:
        """Whether each record appends a row to a table.

        The record's position identifies the row.
        """
        return self.table is not None and self.table.key is None

    @property
    def passed(self) -> str:
        """The name of the column that tells whether the record is written."""
        return f"o{self.number}"

    @property
    def key(self) -> str:
        """The name of the column with the key to write."""
        return f"o{self.number}_key"

    @property
    def value(self) -> str:
        """The name of the column with the value to write, as JSON."""
        return f"o{self.number}_value"


@dataclass(frozen=True)
class PythonFunction:
    """A Python function that the job's columns call as `python_{number}`."""

    number: int
    function: Reference
    gives: Gives
    takes: Reference | None
    """The type of the value passed to the function; None for plain JSON data."""
    returns: Reference | None
    batch: FunctionBatch | None = None
    """How many values one call of the function takes, and in which form; None for a function of one
    value."""
