"""Pipeline: the root of a topology."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, TypeVar
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

import msgspec

from sluice.errors import TopologyError
from sluice.topology import contracts, nodes
from sluice.topology.author import line
from sluice.topology.expressions import METADATA
from sluice.topology.streams import GlobalTable, Stream
from sluice.topology.windows import Duration, milliseconds

_NAME = re.compile(r"(?!\.{1,2}$)[A-Za-z0-9_.-]{1,249}")
# A pipeline's name is also part of paths, of its DAG's id and of schemas' names.
_PIPELINE = re.compile(r"[A-Za-z][A-Za-z0-9_-]{0,199}")

N = TypeVar("N", bound=nodes.Node)


class Pipeline:
    """A named topology. Its state is shared out over `workers` by key; its DAG in Airflow bears its name.

    `zone` is the time zone of event times that name none. A record whose event time is more than `max_ahead`
    after the clock is set aside, so that one wrong clock cannot close everyone's windows.
    """

    def __init__(self, name: str, *, workers: int = 2, zone: str = "UTC", max_ahead: Duration = "1 hour") -> None:
        self.name = _valid("pipeline", name)
        if not 1 <= workers <= 1024:
            raise TopologyError(f"{name} at {line()}: workers={workers}; there must be 1 to 1024.")
        self.workers = workers
        self.zone = _zone(name, zone)
        self.max_ahead_ms = milliseconds(max_ahead)
        self.nodes: list[nodes.Node] = []
        self.doc = ""
        self.file: Path | None = None
        self._claimed: dict[tuple[str, str], str] = {}
        self.claim("topic", self.dead_letters)
        self.claim("topic", self.markers)

    @property
    def dead_letters(self) -> str:
        """The topic of the records that could not be read, each with its reason."""
        return f"{self.name}_dead_letters"

    @property
    def markers(self) -> str:
        """The topic that says which batches' output is out."""
        return f"{self.name}_markers"

    def stream(
        self, topic: str, *, value: type[msgspec.Struct], key: str | None = None, event_time: str | None = None
    ) -> Stream:
        """Read a topic as a stream of JSON values that keep to the contract `value`.

        `key` names the field that is the record's key (default: the Kafka key as text); `event_time` names the field
        that holds the time of the event (default: the Kafka timestamp).
        """
        source = self._source(topic, "stream", value, key, event_time)
        return Stream(self, source, source.fields)

    def global_table(self, topic: str, *, value: type[msgspec.Struct], key: str | None = None) -> GlobalTable:
        """Read a topic as a table: the latest value per key, whole on every worker; its store has the topic's name."""
        self.claim("store", topic)
        source = self._source(topic, "global_table", value, key, None)
        return GlobalTable(self, source, source.fields)

    def _source(
        self, topic: str, kind: Any, value: type[msgspec.Struct], key: str | None, event_time: str | None
    ) -> nodes.Source:
        self.claim("topic", topic)
        where = f"{self.name}: {topic} at {line()}"
        try:
            fields = contracts.fields(value)
        except TopologyError as error:
            raise TopologyError(f"{where}: {error.detail}", next_step=error.next_step) from None
        clash = fields.keys() & METADATA.keys()
        for name in (key, event_time):
            if name is not None and name not in fields:
                raise TopologyError(
                    f"{where}: {value.__name__} has no field {name!r}.",
                    next_step=f"There are: {', '.join(fields)}.",
                )
        if event_time is not None and fields[event_time] != "TIMESTAMP":
            raise TopologyError(f"{where}: event time {event_time!r} is {fields[event_time]}, not a datetime.")
        if clash:
            raise TopologyError(f"{where}: the names {', '.join(sorted(clash))} are Sluice's own.")
        return self.add(
            nodes.Source, topic=topic, kind=kind, contract=value, key=key, event_time=event_time, zone=self.zone,
            max_ahead_ms=self.max_ahead_ms, fields=fields,
        )  # fmt: skip

    def add(self, node_type: type[N], **values: Any) -> N:
        """Append a node made of `values`; for the handles, not for authors."""
        node = node_type(number=len(self.nodes), at=line(), **values)
        self.nodes.append(node)
        return node

    def claim(self, kind: str, name: str) -> None:
        """Take a name for a topic or a store; TopologyError if it is taken or not a name."""
        _valid(kind, name)
        if (kind, name) in self._claimed:
            raise TopologyError(
                f"{self.name}: {kind} {name!r} at {line()} is there already, from {self._claimed[kind, name]}."
            )
        self._claimed[kind, name] = line()


def _valid(kind: str, name: str) -> str:
    if not (_PIPELINE if kind == "pipeline" else _NAME).fullmatch(name):
        dot = "" if kind == "pipeline" else ", '.'"
        raise TopologyError(
            f"{name!r} at {line()} is no name for a {kind}.", next_step=f"Use letters, digits, '_', '-'{dot}."
        )
    return name


def _zone(pipeline: str, zone: str) -> str:
    try:
        ZoneInfo(zone)
    except (ZoneInfoNotFoundError, ValueError):
        raise TopologyError(
            f"{pipeline} at {line()}: {zone!r} is not a time zone.", next_step='Write for example "Europe/Berlin".'
        ) from None
    return zone
