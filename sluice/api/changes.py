"""What changes in a store, as server-sent events: every new snapshot, and the keys that it changed."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import suppress
from functools import partial
from typing import Any

import msgspec
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response, StreamingResponse
from starlette.types import Message, Receive, Scope, Send
from typing_extensions import override

from sluice.api.access import Access, access
from sluice.api.problems import of_error
from sluice.api.replies import SnapshotReply, Told, encoded
from sluice.api.routes import Routes
from sluice.api.stores import Store
from sluice.api.visitors import visitor_again
from sluice.errors import Busy, SluiceError
from sluice.query import Pin, WorkerStatus
from sluice.query.read_point import parse_snapshot
from sluice.query.times import time_text
from sluice.state.model import NO_WINDOW

routes = Routes("stores", "/v1/stores", 400, 404, 429)

LOOK_SECONDS = 0.25
"""How often the ledger is looked at for a new snapshot."""
BEAT_SECONDS = 5.0
"""How often a stream that has nothing to say says so, and its reader's log-in is looked up again."""
MOST_STREAMS = 100
"""As many streams as one process of a server has at a time."""
SEND_SECONDS = 30.0
"""How long a reader may leave what was sent to it untaken."""

_EVENTS = "text/event-stream"


class ChangesQuery(msgspec.Struct, frozen=True, kw_only=True):
    """Of which store."""

    store: Store
    pipeline: str | None = None


class ChangedKey(msgspec.Struct, frozen=True, omit_defaults=True):
    """A key with a new value, or without one from now on; `start` of its window if the store has windows."""

    key: str
    start: str | None = None


class ChangesEvent(msgspec.Struct, frozen=True, kw_only=True):
    """One event: a snapshot, and what it changed since the one before."""

    pipeline: str
    store: str
    snapshot: SnapshotReply
    changed: list[ChangedKey]
    more: bool
    """Whether more keys have changed than are told."""
    workers: tuple[WorkerStatus, ...]


@routes.get("/{store}/changes", parameters=ChangesQuery, media_types=(_EVENTS,))
async def stream_changes(request: Request, asked: ChangesQuery) -> Response:
    """Server-sent events `snapshot`, one for each new snapshot: which it is, and the keys it changed.

    Their ids are the snapshots: with the header Last-Event-ID, as browsers send it, a stream goes on where another ended.
    `reset` in place of `snapshot` says that what changed is not known, and that everything is to be read anew.
    """
    ask = await access(request)
    pin = await ask.pin(asked.store, asked.pipeline)
    since = request.headers.get("last-event-id")
    if since is not None:
        parse_snapshot(since)
    headers = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}
    if request.method == "HEAD":
        return Response(media_type=_EVENTS, headers=headers)
    return _Stream(_events(ask, pin, since), media_type=_EVENTS, headers=headers)


class _Stream(StreamingResponse):
    """One of the `MOST_STREAMS` that this process sends; in place of one too many, 429."""

    opened = 0

    @override
    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        # Between the look and the count nothing else runs: however many come at once, no more than these get in.
        if _Stream.opened >= MOST_STREAMS:
            refusal = of_error(Busy(f"{MOST_STREAMS} streams of changes are open."))
            await refusal(scope, receive, send)
            return
        _Stream.opened += 1
        try:
            with suppress(ClientDisconnect):
                await super().__call__(scope, receive, partial(_send_soon, send))
        finally:
            _Stream.opened -= 1


async def _send_soon(send: Send, message: Message) -> None:
    """Send, or end the stream if its reader has accepted nothing for `SEND_SECONDS`."""
    try:
        async with asyncio.timeout(SEND_SECONDS):
            await send(message)
    except TimeoutError:
        raise ClientDisconnect from None


async def _events(ask: Access, pin: Pin, since: str | None) -> AsyncIterator[bytes]:
    try:
        last, beat = since, time.monotonic()
        while True:
            if pin.snapshot.id != last and (event := await _event(ask, pin, last)):
                yield event
                last = pin.snapshot.id
            elif time.monotonic() > beat + BEAT_SECONDS:
                yield b": still here\n\n"
            else:
                await asyncio.sleep(LOOK_SECONDS)
            if time.monotonic() > beat + BEAT_SECONDS:
                beat = time.monotonic()
                if not await _still_may_read(ask, pin):
                    return
            pin = await ask.reader.catalogue.pin(pin.store)
    except SluiceError as error:
        yield _written("trouble", "", {"title": error.title, "detail": error.detail})


async def _event(ask: Access, pin: Pin, last: str | None) -> bytes | None:
    """The event of a new snapshot, made once for all streams of its store; None while too many queries are running.

    The first one of a stream that follows nothing tells the snapshot, and nothing changed.
    """
    try:
        name = ("changes", pin.name, pin.store.name, last)
        return (await ask.state.remembered.get(name, lambda: _made(ask, pin, last))).content
    except Busy:
        return None


async def _made(ask: Access, pin: Pin, last: str | None) -> Told:
    generation, batch = parse_snapshot(last) if last is not None else (pin.snapshot.generation, pin.snapshot.batch)
    is_known = generation == pin.snapshot.generation and batch <= pin.snapshot.batch
    found = await ask.reader.changed(pin, batch if is_known else pin.snapshot.batch)
    event = ChangesEvent(
        pipeline=pin.store.pipeline,
        store=pin.store.name,
        snapshot=SnapshotReply.of(pin.snapshot),
        changed=[ChangedKey(key, None if at == NO_WINDOW else f"{time_text(at)}Z") for key, at in found.keys],
        more=found.more,
        workers=found.workers,
    )
    return Told("", _written("snapshot" if is_known else "reset", pin.snapshot.id, event), found.workers)


async def _still_may_read(ask: Access, pin: Pin) -> bool:
    visitor = await visitor_again(ask.request)
    return visitor is not None and await visitor.may_read(pin.store.pipeline)


def _written(name: str, number: str, data: Any) -> bytes:
    said = f"id: {number}\n" if number else ""
    return f"event: {name}\n{said}data: ".encode() + encoded(data) + b"\n\n"
