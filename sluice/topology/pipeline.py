"""Pipeline: the root of a topology."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from sluice.errors import TopologyError
from sluice.topology import arguments, nodes
from sluice.topology.dsl import GlobalTable, Shape, Stream, Table
from sluice.topology.functions import require_callable
from sluice.topology.graph import Graph
from sluice.topology.serdes import Serde, V, Value, fields_of, serde_of
from sluice.topology.source_line import source_line
from sluice.topology.windows import Duration, milliseconds
from sluice.values.records import METADATA

# A pipeline's name is also part of paths, of its DAG's id and of schemas' names.
_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_-]{0,199}")
RESERVED = frozenset({"produce_sample_orders", "sluice_retention"})
"""Names of DAGs that are no pipelines'."""


class Pipeline(Graph):
    """A named topology. Its state is shared out over `workers` by key; its DAG in Airflow bears its name.

    `zone` is the time zone of event times that name none. A record whose event time is more than `max_ahead`
    after the clock is set aside, so that one wrong clock cannot close everyone's windows. A partition that has had no
    record for `idle` no longer holds up the closing of windows; without it windows wait for every partition.

    `on_error` is what becomes of a record that cannot be read, processed or written, unless its source, step, store or
    sink says otherwise: `dead_letter` writes it to `{name}_dead_letters` with the reason, `skip` only counts it, `fail`
    ends the run before anything of its batch is visible. A run also fails once one step has failed for more than
    `max_failures` records of a batch: a number of records, or a share of those that were read.
    """

    def __init__(
        self,
        name: str,
        *,
        workers: int = 2,
        zone: str = "UTC",
        max_ahead: Duration = "1 hour",
        idle: Duration | None = None,
        on_error: nodes.OnError = "dead_letter",
        max_failures: float = 0.5,
    ) -> None:
        _check_name(name)
        super().__init__(name, on_error)
        if not (isinstance(workers, int) and 1 <= workers <= 1024):
            raise TopologyError(f"{name} at {source_line()}: workers={workers!r}; there must be 1 to 1024.")
        self.workers = workers
        self.zone = _zone(name, zone)
        self.max_ahead_ms = milliseconds(max_ahead)
        self.idle_ms = None if idle is None else milliseconds(idle)
        arguments.at_least(f"{name} at {source_line()}", "max_ahead", self.max_ahead_ms, 0)
        arguments.at_least(f"{name} at {source_line()}", "idle", self.idle_ms, 1)
        self.max_failures = _max_failures(f"{name} at {source_line()}", max_failures)
        self.doc = ""
        self.file: Path | None = None
        self.claim("topic", self.dead_letters)
        self.claim("topic", self.markers)

    @property
    def dead_letters(self) -> str:
        """The topic of the records that could not be read, each with its reason."""
        return f"{self.name}_dead_letters"

    @property
    def sinks(self) -> dict[str, nodes.Sink]:
        """The outputs by topic."""
        return {node.topic: node for node in self.nodes if isinstance(node, nodes.Sink)}

    @property
    def markers(self) -> str:
        """The topic that says which batches' output is out."""
        return f"{self.name}_markers"

    def stream(
        self,
        topic: str,
        *,
        value: Value[V],
        key: str | Callable[[bytes], str] | None = None,
        event_time: str | None = None,
        nulls: nodes.OnNull = "dead_letter",
        invalid_time: nodes.OnTime | None = None,
        on_error: nodes.OnError | None = None,
    ) -> Stream[V]:
        """Read a topic as a stream.

        `value` is the contract of JSON values, `str` for plain text, or a Serde. `key` names the field that is the
        record's key, or is a function that makes the key's text of its bytes (default: the Kafka key as text).
        `event_time` names the field that holds the time of the event (default: the record's own time);
        `invalid_time` says what becomes of a record without a valid one: set aside, skipped and counted, the end of
        the run (`fail`), or given the time of processing (`clock`). `nulls="keep"` lets records with no value pass.
        """
        source = self._source(
            topic, "stream", value, key, event_time=event_time, nulls=nulls, on_time=invalid_time, on_error=on_error
        )
        return Stream(self, source, _shape(source))

    def table(
        self,
        topic: str,
        *,
        value: Value[V],
        key: str | Callable[[bytes], str] | None = None,
        store: str | None = None,
        on_error: nodes.OnError | None = None,
    ) -> Table[V]:
        """Read a topic as a table: the latest value per key, in the order of offsets; a null value deletes.

        Its store has the topic's name, or that of `store`.
        """
        source = self._source(topic, "table", value, key, nulls="keep", on_error=on_error)
        named = store or topic
        self.claim("store", named)
        node = self.add(nodes.ToTable, parent=source, store=named, on_error=on_error)
        return Table(self, node, _shape(source))

    def global_table(
        self,
        topic: str,
        *,
        value: Value[V],
        key: str | Callable[[bytes], str] | None = None,
        on_error: nodes.OnError | None = None,
    ) -> GlobalTable[V]:
        """Read a topic as a table: the latest value per key, whole on every worker; its store has the topic's name."""
        self.claim("store", topic)
        source = self._source(topic, "global_table", value, key, nulls="keep", on_error=on_error)
        return GlobalTable(self, source, _shape(source))

    def _source(
        self,
        topic: str,
        kind: Any,
        value: Value[V],
        key: str | Callable[[bytes], str] | None,
        *,
        event_time: str | None = None,
        nulls: nodes.OnNull,
        on_time: nodes.OnTime | None = None,
        on_error: nodes.OnError | None,
    ) -> nodes.Source:
        self.claim("topic", topic)
        where = f"{self.name}: {topic} at {source_line()}"
        serde = serde_of(value)
        arguments.choice(where, "nulls", nulls, nodes.OnNull)
        on_time = on_time or on_error or self.on_error
        arguments.choice(where, "invalid_time", on_time, nodes.OnTime)
        if key is not None and not isinstance(key, str):
            require_callable(where, key, "key")
        if serde.decode is not None:
            require_callable(where, serde.decode, "data")
        try:
            fields = fields_of(serde.contract)
        except TopologyError as error:
            raise TopologyError(f"{where}: {error.detail}", next_step=error.next_step) from None
        _check_fields(where, serde, fields, [key if isinstance(key, str) else None, event_time], event_time)
        return self.add(
            nodes.Source, topic=topic, kind=kind, serde=serde, key=key if isinstance(key, str) else None,
            key_decode=key if callable(key) else None, event_time=event_time, zone=self.zone,
            max_ahead_ms=self.max_ahead_ms, nulls=nulls, on_time=on_time, fields=fields,
            on_error=on_error,
        )  # fmt: skip


def _max_failures(where: str, value: float) -> float:
    if (
        isinstance(value, bool)
        or not isinstance(value, int | float)
        or value < 0
        or (isinstance(value, float) and value > 1)
    ):
        raise TopologyError(
            f"{where}: max_failures={value!r} is neither a number of records nor a share of them.",
            next_step="Write for example max_failures=1000, or max_failures=0.1 for a tenth.",
        )
    return value


def _check_name(name: str) -> None:
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise TopologyError(
            f"{name!r} at {source_line()} is no name for a pipeline.", next_step="Use letters, digits, '_', '-'."
        )
    if name in RESERVED:
        raise TopologyError(
            f"{name!r} at {source_line()} is the name of one of Sluice's own DAGs.", next_step="Use another."
        )


def _check_fields(
    where: str, serde: Serde[Any], fields: dict[str, str], named: list[str | None], event_time: str | None
) -> None:
    for name in named:
        if name is not None and name not in fields:
            raise TopologyError(
                f"{where}: {serde.name} has no field {name!r}.",
                next_step=f"There are: {', '.join(fields)}.",
            )
    if event_time is not None and fields[event_time] != "TIMESTAMP":
        raise TopologyError(f"{where}: event time {event_time!r} is {fields[event_time]}, not a datetime.")
    if clash := fields.keys() & METADATA.keys():
        raise TopologyError(f"{where}: the names {', '.join(sorted(clash))} are Sluice's own.")


def _shape(source: nodes.Source) -> Shape:
    return Shape.of(source.serde.contract, source.fields)


def _zone(pipeline: str, zone: str) -> str:
    try:
        ZoneInfo(zone)
    except (ZoneInfoNotFoundError, ValueError, TypeError):
        raise TopologyError(
            f"{pipeline} at {source_line()}: {zone!r} is not a time zone.",
            next_step='Write for example "Europe/Berlin".',
        ) from None
    return zone
