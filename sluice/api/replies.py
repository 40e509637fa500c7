"""JSON answers: values are spliced in as they were published, no model in between."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from decimal import Decimal
from functools import lru_cache
from typing import Any

import msgspec
from starlette.responses import Response

from sluice.query import Entry, Group, Pin, WorkerStatus
from sluice.query.times import time_text
from sluice.state.model import NO_WINDOW, Snapshot

_ENCODER = msgspec.json.Encoder(decimal_format="number")

Headers = tuple[tuple[bytes, bytes], ...]
_JSON_HEADERS: Headers = ((b"content-type", b"application/json"), (b"x-content-type-options", b"nosniff"))


class SnapshotReply(msgspec.Struct, frozen=True):
    """The snapshot an answer is of."""

    id: str
    published_at: datetime
    age_seconds: float
    positions: dict[str, dict[str, int]]

    @classmethod
    def of(cls, snapshot: Snapshot) -> SnapshotReply:
        """A snapshot and its age now."""
        age = (datetime.now(UTC) - snapshot.published_at).total_seconds()
        return cls(snapshot.id, snapshot.published_at, round(max(age, 0.0), 3), snapshot.positions)


class EntryReply(msgspec.Struct, frozen=True, omit_defaults=True):
    """One value; `start` and `end` of its window, UTC, if the store has windows."""

    key: str
    value: msgspec.Raw
    start: str | None = None
    end: str | None = None

    @classmethod
    def of(cls, entry: Entry) -> EntryReply:
        """An entry with its window as people write it."""
        if entry.window_start == NO_WINDOW:
            return cls(entry.key, entry.value)
        return cls(entry.key, entry.value, f"{time_text(entry.window_start)}Z", f"{time_text(entry.window_end)}Z")


class GroupReply(msgspec.Struct, frozen=True):
    """The figures of one group; null where no entry of it has the field."""

    group: msgspec.Raw
    entries: int
    sum: Decimal | None
    min: Decimal | None
    max: Decimal | None

    @classmethod
    def of(cls, group: Group) -> GroupReply:
        """A group."""
        return cls(group.group, group.entries, group.sum, group.min, group.max)


class Reply(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What is to be known about every answer."""

    pipeline: str
    store: str
    snapshot: SnapshotReply
    workers: tuple[WorkerStatus, ...]
    partial: bool
    """Whether something is missing because a worker is unavailable."""


class EntriesReply(Reply, frozen=True, kw_only=True, omit_defaults=True):
    """Entries of a store."""

    entries: list[EntryReply]
    cursor: str | None = None
    """Where the next page goes on; absent on the last one."""


class CountReply(Reply, frozen=True, kw_only=True, omit_defaults=True):
    """How many entries there are."""

    count: int


class GroupsReply(Reply, frozen=True, kw_only=True, omit_defaults=True):
    """Figures by group."""

    groups: list[GroupReply]


@dataclass(frozen=True)
class Told:
    """A part of an answer that stays true as long as its snapshot is asked for: encoded once, sent many times."""

    name: str
    """The member of the answer it is; empty if it is the whole body."""
    content: bytes
    workers: tuple[WorkerStatus, ...]
    cursor: str | None = None

    @property
    def partial(self) -> bool:
        """Whether something is missing because a worker is unavailable."""
        return any(worker.status != "ok" for worker in self.workers)


class JsonResponse(Response):
    """A response whose headers are encoded already; Starlette's own would encode them for each."""

    def __init__(self, body: bytes, headers: Headers) -> None:
        self.status_code = 200
        self.body = body
        self.background = None
        # A list of its own: middleware adds to it.
        self.raw_headers = [*headers, *_JSON_HEADERS, (b"content-length", b"%d" % len(body))]


def entries_told(entries: Iterable[Entry], workers: tuple[WorkerStatus, ...], cursor: str | None = None) -> Told:
    """Entries as they stand in an answer."""
    return Told("entries", encoded([EntryReply.of(entry) for entry in entries]), workers, cursor)


def told_reply(pin: Pin, told: Told) -> Response:
    """An answer with its snapshot and the workers' status; the members of `Reply` and what is told."""
    said: dict[str, Any] = {
        "pipeline": pin.store.pipeline,
        "store": pin.store.name,
        told.name: msgspec.Raw(told.content),
        "snapshot": SnapshotReply.of(pin.snapshot),
        "workers": told.workers,
        "partial": told.partial,
    }
    if told.cursor is not None:
        said["cursor"] = told.cursor
    return JsonResponse(encoded(said), provenance([pin], told.workers))


def body_reply(pins: Sequence[Pin], told: Told) -> Response:
    """A body whose form is given; its snapshot and the workers' status are in the headers."""
    return JsonResponse(told.content, provenance(pins, told.workers))


def reply(value: Any) -> Response:
    """A JSON answer that is of no snapshot."""
    return JsonResponse(encoded(value), ((b"cache-control", b"no-store"),))


def encoded(value: Any) -> bytes:
    """JSON; decimals are numbers with all their digits."""
    return _ENCODER.encode(value)


def provenance(pins: Sequence[Pin], workers: Iterable[WorkerStatus]) -> Headers:
    """The snapshot and the workers' status as headers, and the ETag of a complete answer."""
    lost = tuple(sorted({one.number for one in workers if one.status != "ok"}))
    return _provenance(tuple(pin.name for pin in pins), tuple(pin.snapshot.id for pin in pins), lost)


@lru_cache(maxsize=1_000)
def _provenance(names: tuple[str, ...], snapshots: tuple[str, ...], lost: tuple[int, ...]) -> Headers:
    told = {"x-sluice-snapshot": ", ".join(dict.fromkeys(snapshots)), "x-sluice-partial": "true" if lost else "false"}
    if lost:
        told |= {"x-sluice-unavailable": ", ".join(map(str, lost)), "cache-control": "no-store"}
    else:
        told |= {"etag": _etag(names), "cache-control": "private, no-cache"}
    return tuple((name.encode(), value.encode()) for name, value in told.items())


def etag(pins: Iterable[Pin]) -> str:
    """What names the answer to a query: its snapshots. Weak, because the age that is told along with it goes on."""
    return _etag(pin.name for pin in pins)


def _etag(names: Iterable[str]) -> str:
    return 'W/"' + " ".join(names) + '"'
