"""What the REST view answers, as a client gets it, and what it may be asked along with a store."""

from __future__ import annotations

from datetime import datetime
from decimal import Decimal
from typing import Any, Literal, TypedDict

import msgspec


class ReadPoint(TypedDict, total=False):
    """As of when a store is asked; see the REST view."""

    pipeline: str
    as_of: str
    min_snapshot: str
    min_position: str
    require: Literal["complete"]


class Part(ReadPoint, total=False):
    """A part of a store: keys from `first` to `last`, or with a prefix; windows that start between two times."""

    first: str
    last: str
    prefix: str
    start: str
    end: str


class Snapshot(msgspec.Struct, frozen=True):
    """The snapshot an answer is of; `positions` are the next offsets: topic → partition → offset."""

    id: str
    published_at: datetime
    age_seconds: float
    positions: dict[str, dict[str, int]]


class Worker(msgspec.Struct, frozen=True):
    """What an asked worker said: `ok`, or `unavailable` with the reason."""

    number: int
    status: str
    reason: str = ""


class Entry(msgspec.Struct, frozen=True):
    """One value; `start` and `end` of its window if the store has windows."""

    key: str
    value: Any
    start: datetime | None = None
    end: datetime | None = None


class Reply(msgspec.Struct, frozen=True, kw_only=True):
    """What every answer says; `partial` if something may be missing because a worker is unavailable."""

    pipeline: str
    store: str
    snapshot: Snapshot
    workers: list[Worker]
    partial: bool


class Entries(Reply, frozen=True, kw_only=True):
    """Entries of a store; with a `cursor`, more follow."""

    entries: list[Entry]
    cursor: str | None = None

    @property
    def value(self) -> Any:
        """The value of the one key that was asked for."""
        return self.entries[0].value


class Count(Reply, frozen=True, kw_only=True):
    """How many entries there are."""

    count: int


class Group(msgspec.Struct, frozen=True):
    """The figures of one group; None where no entry of it has the field."""

    group: Any
    entries: int
    sum: Decimal | None
    min: Decimal | None
    max: Decimal | None


class Groups(Reply, frozen=True, kw_only=True):
    """Figures by group."""

    groups: list[Group]


class Change(msgspec.Struct, frozen=True, kw_only=True):
    """A new snapshot: the keys it changed are told by `changed`, each with the start of its window if there is one."""

    event: str = "snapshot"
    """`snapshot`, or `reset`: what changed is not known, everything is to be read anew."""
    snapshot: Snapshot
    changed: list[dict[str, str]]
    more: bool


class Store(msgspec.Struct, frozen=True, kw_only=True):
    """One store; `snapshot` is None before the first one, `entries` unless they were counted."""

    pipeline: str
    store: str
    kind: str
    job: str
    key: str
    value: str
    window_ms: int | None
    grace_ms: int | None
    retention_ms: int | None
    workers: list[Worker]
    snapshot: Snapshot | None
    partial: bool
    entries: int | None
