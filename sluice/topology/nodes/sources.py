"""The topics that a pipeline reads."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

from typing_extensions import override

from sluice.topology.nodes.node import Node
from sluice.topology.serdes import Serde
from sluice.values.epochs import EpochTime
from sluice.values.phrases import counted
from sluice.values.record_metadata import (
    OnNull,
    OnTime,
)
from sluice.values.shapes import Shape
from sluice.values.stored_values import models_within
from sluice.values.topic_patterns import is_pattern


@dataclass(frozen=True, eq=False)
class Source(Node):
    """A topic read as a stream, a table (the latest value per key), or a table on every worker."""

    topic: str
    """The topic's name, or the pattern of the names of several topics
    (`values/topic_patterns.py`)."""
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
    """Policy for a record without a valid event time; `clock` gives the record the time of
    processing."""
    shape: Shape
    store: str | None = None
    """The name of a global table's store; None for the topic's name."""
    most_topics: int = 1
    """The largest number of topics that a pattern may match."""

    is_stateful = True

    @property
    def fields(self) -> dict[str, str]:
        """The fields of the values, each with its Spark SQL type."""
        return self.shape.fields

    @property
    @override
    def name(self) -> str:
        return self.topic

    @property
    @override
    def is_table(self) -> bool:
        return self.kind != "stream"

    @property
    @override
    def is_global_table(self) -> bool:
        return self.kind == "global_table"

    @property
    @override
    def store_names(self) -> tuple[str, ...]:
        if self.is_global_table:
            return (self.store or self.topic,)
        return ()

    has_known_name = True

    @override
    def _result_shape(self) -> Shape:
        return self.shape

    @property
    @override
    def author_functions(self) -> tuple[Any, ...]:
        # The validators of models decide which values a state gets, so models count as functions.
        return (self.serde.decode, self.key_decode, *models_within(self.serde.contract))

    @property
    @override
    def title(self) -> str:
        return f"{self.kind.replace('_', ' ')} {self.topic}"

    @override
    def _expressions(self) -> str:
        text = f"{self.serde.name}, event time {self.event_time or 'of the record'}"
        if is_pattern(self.topic):
            text += f", at most {counted(self.most_topics, 'topic')}"
        return text
