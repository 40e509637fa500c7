"""A topology's steps, sources and sinks as values of a plan."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from sluice.values.records import Delivery, OnError, OnNull, OnTime
from sluice.values.references import Reference


@dataclass(frozen=True)
class Step:
    """A step of the topology, as messages, counts and dead letters name it."""

    number: int
    """Its place among the pipeline's steps."""
    name: str
    """Its name in counts and stream times: the store's or topic's, where it has one."""
    title: str
    """Title, such as `store orders` or `filter`."""
    detail: str
    """Detail: the author's expressions."""
    at: str
    """The author's `file:line`."""
    on_error: OnError

    def __str__(self) -> str:
        return f"{self.title} at {self.at}"


@dataclass(frozen=True)
class SourceField:
    """A field of a topic's values that something reads."""

    name: str
    column: str
    """The job's column for it."""
    is_key: bool
    """Whether it is a key unchanged, so that the decoder checks its length."""


@dataclass(frozen=True)
class Source:
    """A topic that a job reads, and how its values are decoded."""

    number: int
    topic: str
    kind: Literal["stream", "table", "global_table"]
    contract: Reference | None
    """The type of the values; None for plain text."""
    contract_name: str
    is_object: bool
    """Whether values have fields."""
    decode: Reference | None
    """The author's own decoder."""
    key: str | None
    """The field that is the record's key; None: the Kafka key."""
    key_decode: Reference | None
    event_time: str | None
    """The field that holds the event's time; None: the record's own time."""
    zone: str
    """Time zone of event times without a zone."""
    max_future_skew_ms: int
    nulls: OnNull
    on_time: OnTime
    on_error: OnError
    types: Mapping[str, str]
    """Every field of the values with its Spark SQL type."""
    fields: tuple[SourceField, ...] = ()
    """The fields that something reads."""


@dataclass(frozen=True)
class Sink:
    """A topic that a job writes. Of single records the job has columns named by `passed`, `key` and `value`."""

    number: int
    topic: str
    encode: Reference | None
    encode_key: Reference | None
    delivery: Delivery
    is_windowed: bool
    """Whether its records' keys have windows."""
    on_error: OnError
    at: str

    @property
    def passed(self) -> str:
        """Whether a record goes to the topic."""
        return f"o{self.number}"

    @property
    def key(self) -> str:
        """The key that is written."""
        return f"o{self.number}_key"

    @property
    def value(self) -> str:
        """The value that is written, as JSON."""
        return f"o{self.number}_value"


@dataclass(frozen=True)
class PythonFunction:
    """A Python function that the job's columns call as `python_{number}`."""

    number: int
    function: Reference
    gives: Literal["value", "values", "key", "record", "records", "condition", "nothing"]
    takes: Reference | None
    """Type of the value that it receives; None: as decoded from JSON."""
    returns: Reference | None
