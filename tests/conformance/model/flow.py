"""Records that flow through the nodes of a topology, one at a time."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple, TypeAlias

from tests.conformance.model.expressions import Expression, evaluate, holds


class Windowed(NamedTuple):
    """The key of a row of a windowed table."""

    key: str
    start: int
    end: int


Key: TypeAlias = str | Windowed | None


class Change(NamedTuple):
    """An update of a table's row. A deletion has no new value, and the first update of a row has no old one."""

    new: Any
    old: Any


@dataclass(frozen=True)
class Record:
    """`value` is a `Change` if a table sends the record."""

    key: Key
    value: Any
    time: int
    headers: tuple[tuple[str, str | None], ...] = field(default=(), compare=False)
    """The headers, as far as steps without a state pass them on."""


class Flow:
    """The records that a re-keying has sent on. They wait until the record that caused them is done."""

    def __init__(self) -> None:
        self._waiting: deque[tuple[Callable[[Record], None], Record]] = deque()

    def later(self, process: Callable[[Record], None]) -> Callable[[Record], None]:
        """A function that makes a record wait for `process`."""
        return lambda record: self._waiting.append((process, record))

    def finish(self, end_round: Callable[[], None] = lambda: None) -> None:
        """Process the waiting records, first in, first out, and those that they cause.

        `end_round` is called after all records that were re-keyed as often as each other.
        """
        while self._waiting:
            for _ in range(len(self._waiting)):
                process, record = self._waiting.popleft()
                process(record)
            end_round()


@dataclass(kw_only=True)
class Node:
    """Sends each record to its children in the order in which they were declared, each with all that is behind it."""

    children: list[Callable[[Record], None]] = field(default_factory=list)

    def process(self, record: Record) -> None:
        raise NotImplementedError

    def send(self, record: Record) -> None:
        for child in self.children:
            child(record)


def plain(key: Key) -> str | None:
    """A key without its window."""
    return key.key if isinstance(key, Windowed) else key


def computed(expression: Expression, record: Record) -> Any:
    return evaluate(expression, record.key, record.value)


@dataclass(kw_only=True)
class Stream(Node):
    """A source, or records merged into one stream."""

    rekeyed: bool = False
    """Whether the records may lie in another partition than that of their key."""
    window: dict[str, Any] | None = None
    """The definition of the windows of the keys."""

    def process(self, record: Record) -> None:
        self.send(record)

    def connect(self, process: Callable[[Record], None], flow: Flow) -> None:
        """Send records to an operator that needs them in their key's partition."""
        self.children.append(flow.later(process) if self.rekeyed else process)


@dataclass(kw_only=True)
class Filter(Stream):
    where: Expression
    wanted: bool
    """False to keep the records for which the condition does not hold."""

    def process(self, record: Record) -> None:
        if holds(self.where, record.key, record.value) is self.wanted:
            self.send(record)


@dataclass(kw_only=True)
class MapValues(Stream):
    value: Expression

    def process(self, record: Record) -> None:
        self.send(replace(record, value=computed(self.value, record)))


@dataclass(kw_only=True)
class SelectKey(Stream):
    key: Expression
    rekeyed: bool = True

    def process(self, record: Record) -> None:
        self.send(replace(record, key=computed(self.key, record)))


@dataclass(kw_only=True)
class Map(Stream):
    key: Expression
    value: Expression
    rekeyed: bool = True

    def process(self, record: Record) -> None:
        self.send(
            replace(record, key=computed(self.key, record), value=computed(self.value, record))
        )


@dataclass(kw_only=True)
class FlatMapValues(Stream):
    list: Expression

    def process(self, record: Record) -> None:
        for element in computed(self.list, record) or ():
            self.send(replace(record, value=element))


@dataclass(kw_only=True)
class ToStream(Stream):
    """A table's updates as a stream, whose keys have no windows unless it keeps them."""

    keeps_window: bool = False
    leaves_out_unpassed: bool = False
    """Whether the table is filtered, and its updates of rows that pass neither before nor after are left out."""

    def process(self, record: Record) -> None:
        if self.leaves_out_unpassed and record.value == (None, None):
            return
        value = record.value.new if isinstance(record.value, Change) else record.value
        self.send(
            Record(record.key if self.keeps_window else plain(record.key), value, record.time)
        )
