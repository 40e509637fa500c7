"""The outputs of a pipeline: topics, and tables of databases."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from typing_extensions import override

from sluice.topology.nodes.node import ChildNode
from sluice.values.record_metadata import (
    Emit,
)
from sluice.values.sink_tables import OutputTable


@dataclass(frozen=True, eq=False)
class Sink(ChildNode):
    """Writes every record, or every change of a table, to a `topic` or a database's `table`."""

    topic: str
    """The topic's name, or a table's name in counts, such as `warehouse:shop.totals`."""
    encode: Callable[..., bytes] | None = None
    encode_key: Callable[[str], bytes] | None = None
    partition: Callable[..., int] | None = None
    """Chooses a record's partition by its key and its value; None for the hash of the key."""
    emit: Emit = "every"
    table: OutputTable | None = None
    fields: dict[str, str] = field(default_factory=dict)
    """The fields of the value, for a table's columns."""
    scalar: bool = False
    """Whether the value is not an object."""
    cycle: bool = False
    """Whether the pipeline reads the topic, too."""

    @property
    @override
    def name(self) -> str:
        return self.topic

    @property
    @override
    def takes_latest(self) -> bool:
        # An update of a versioned table may precede the key's latest update. It must not replace a
        # database's row, or a key's latest change in a batch.
        return self.emit == "latest"

    needs_last_change_only = True

    @property
    @override
    def title(self) -> str:
        if self.table is not None:
            return f"table {self.table.name} {self.table.place}"
        return f"topic {self.topic}"

    @override
    def _expressions(self) -> str:
        if self.table is not None:
            return f"a row per {self.table.key or 'record'}"
        texts: list[str] = []
        if self.emit == "latest":
            texts.append("the latest change of each key and batch")
        if self.cycle:
            texts.append("read again by a later batch")
        return ", ".join(texts)


@dataclass(frozen=True, eq=False)
class Late(Sink):
    """Writes the records that are late for every window to `topic`."""
