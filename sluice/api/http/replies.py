"""JSON responses. Values are copied as the text that was published, without parsing."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import lru_cache
from typing import Any

import msgspec
from starlette.responses import Response
from starlette.types import Receive, Scope, Send
from typing_extensions import override

from sluice import answers
from sluice.answers import WorkerStatus, is_partial
from sluice.observe import monitoring
from sluice.query import Entry, Pin
from sluice.query.answered_entries import answered_entry
from sluice.query.catalogue import PipelineSnapshot
from sluice.state.model import NO_WINDOW, Snapshot
from sluice.values.utc_times import utc_datetime

_ENCODER = msgspec.json.Encoder(decimal_format="number")

Headers = tuple[tuple[bytes, bytes], ...]
_JSON_HEADERS: Headers = (
    (b"content-type", b"application/json"),
    (b"x-content-type-options", b"nosniff"),
)


@dataclass(frozen=True)
class Payload:
    """The part of a response that depends only on the snapshot.

    It is encoded once and can be sent many times.
    """

    member: str
    """The response's member that has this content; empty if the content is the whole body."""
    content: bytes
    workers: tuple[WorkerStatus, ...]
    cursor: str | None = None

    @property
    def partial(self) -> bool:
        """Whether data may be missing because a worker is unavailable."""
        return is_partial(self.workers)

    @property
    def standby(self) -> bool:
        """Whether a standby answered in place of a worker."""
        return any(worker.standby for worker in self.workers)


RESPOND = "sluice_respond"
"""A key in a request's scope. Its value is a function of a state server that sends a whole
response. It takes the scope, status, headers and body, and returns False if the response has to be
sent as messages instead."""


class JsonResponse(Response):
    """A response whose headers are already encoded.

    Starlette's `Response` encodes them each time.
    """

    def __init__(self, body: bytes, headers: Headers) -> None:
        self.status_code = 200
        self.body = body
        self.background = None
        # Each response gets a new list, because middleware appends to the list.
        self.raw_headers = [*headers, *_JSON_HEADERS, (b"content-length", b"%d" % len(body))]

    @override
    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        respond = scope.get(RESPOND)
        if respond is None or not respond(scope, self.status_code, self.raw_headers, self.body):
            await super().__call__(scope, receive, send)


def snapshot_answer(snapshot: Snapshot) -> answers.Snapshot:
    """Return a snapshot with its age now."""
    return monitoring.snapshot_answer(snapshot, datetime.now(UTC))


def age_seconds(since: datetime) -> float:
    """Return the seconds from a time until now, which are at least zero."""
    return monitoring.age_seconds(since, datetime.now(UTC))


def window_time(ms: int) -> datetime | None:
    """Return a window's start or end from epoch milliseconds; None if there is no window."""
    return None if ms == NO_WINDOW else utc_datetime(ms)


def entries_payload(
    entries: Iterable[Entry],
    workers: tuple[WorkerStatus, ...],
    cursor: str | None = None,
) -> Payload:
    """Return entries as they appear in a response."""
    shown = [answered_entry(entry, entry.value) for entry in entries]
    return Payload("entries", encoded(shown), workers, cursor)


def store_reply(pin: Pin, payload: Payload) -> Response:
    """Return a response about a store, with the members of `Answer` and the payload."""
    members: dict[str, Any] = {
        "pipeline": pin.store.pipeline,
        "store": pin.store.name,
        payload.member: msgspec.Raw(payload.content),
        "snapshot": snapshot_answer(pin.snapshot),
        "workers": payload.workers,
        "partial": payload.partial,
    }
    if payload.standby:
        members["standby"] = True
    if payload.cursor is not None:
        members["cursor"] = payload.cursor
    return JsonResponse(encoded(members), provenance([pin], payload.workers))


def reply(value: Any) -> Response:
    """Return a JSON response that does not come from a snapshot."""
    return JsonResponse(encoded(value), ((b"cache-control", b"no-store"),))


def encoded(value: Any) -> bytes:
    """Encode as JSON. Decimals become numbers with all of their digits."""
    return _ENCODER.encode(value)


def provenance(pins: Sequence[Pin | PipelineSnapshot], workers: Iterable[WorkerStatus]) -> Headers:
    """Return the headers that say from which snapshots and workers a response comes.

    They name the snapshots, the workers that were unavailable, and the workers for which a standby
    answered. If there are no such workers, the response also gets an ETag.
    """
    unavailable, standbys = [], []
    for worker in workers:
        if worker.status != "ok":
            unavailable.append(worker.number)
        elif worker.standby:
            standbys.append(worker.number)
    names = tuple([pin.name for pin in pins])
    snapshots = tuple([pin.snapshot.id for pin in pins])
    return _provenance(names, snapshots, tuple(unavailable), tuple(standbys))


@lru_cache(maxsize=1_000)
def _provenance(
    names: tuple[str, ...],
    snapshots: tuple[str, ...],
    unavailable: tuple[int, ...],
    standbys: tuple[int, ...],
) -> Headers:
    """Return the headers of `provenance`.

    A worker that was queried several times may be listed several times.
    """
    headers = {
        "x-sluice-snapshot": ", ".join(dict.fromkeys(snapshots)),
        "x-sluice-partial": "false",
    }
    if standbys:
        headers["x-sluice-standby"] = _listed(standbys)
    if unavailable:
        headers["x-sluice-partial"] = "true"
        headers |= {
            "x-sluice-unavailable": _listed(unavailable),
            "cache-control": "no-store",
        }
    elif standbys:
        # When the worker itself answers again, the headers for the same snapshot change, so a
        # client must not store this response.
        headers["cache-control"] = "no-store"
    else:
        headers |= {"etag": _etag(names), "cache-control": "private, no-cache"}
    encoded: list[tuple[bytes, bytes]] = []
    for name, value in headers.items():
        encoded.append((name.encode(), value.encode()))
    return tuple(encoded)


def _listed(workers: Iterable[int]) -> str:
    return ", ".join(map(str, sorted({*workers})))


def etag(pins: Iterable[Pin | PipelineSnapshot]) -> str:
    """Return the ETag for the snapshots of a response.

    It is weak, because the body has the snapshot's age, which keeps changing.
    """
    return _etag(pin.name for pin in pins)


def _etag(names: Iterable[str]) -> str:
    return 'W/"' + " ".join(names) + '"'
