"""What changes in a store, as server-sent events: every new cut, and the keys that it changed."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from typing import Any

import msgspec
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse

from sluice.api.access import Access, access
from sluice.api.replies import CutReply, encoded
from sluice.api.routes import Routes
from sluice.api.stores import Store
from sluice.api.visitors import visitor_again
from sluice.errors import Busy, SluiceError
from sluice.query import Pin, WorkerStatus
from sluice.query.moments import parse_cut
from sluice.query.times import time_text
from sluice.state.model import NO_WINDOW

routes = Routes("stores", "/v1/stores")

LOOK_SECONDS = 0.25
"""How often the ledger is looked at for a new cut."""
BEAT_SECONDS = 5.0
"""How often a stream that has nothing to say says so, and its reader's log-in is looked up again."""
MOST_STREAMS = 100
"""As many streams as one server has at a time."""

_open = 0


class ChangesQuery(msgspec.Struct, frozen=True, kw_only=True):
    """Of which store."""

    store: Store
    pipeline: str | None = None


class ChangedKey(msgspec.Struct, frozen=True, omit_defaults=True):
    """A key with a new value, or without one from now on; `start` of its window if the store has windows."""

    key: str
    start: str | None = None


class ChangesEvent(msgspec.Struct, frozen=True, kw_only=True):
    """One event: a cut, and what it changed since the one before."""

    pipeline: str
    store: str
    cut: CutReply
    changed: list[ChangedKey]
    more: bool
    """Whether more keys have changed than are told."""
    workers: tuple[WorkerStatus, ...]


@routes.get("/{store}/changes", parameters=ChangesQuery, media_types=("text/event-stream",))
async def stream_changes(request: Request, asked: ChangesQuery) -> Response:
    """Server-sent events `cut`, one for each new cut: which it is, and the keys it changed.

    Their ids are the cuts: with the header Last-Event-ID, as browsers send it, a stream goes on where another ended.
    `reset` in place of `cut` says that what changed is not known, and that everything is to be read anew.
    """
    ask = await access(request)
    pin = await ask.pin(asked.store, asked.pipeline)
    since = request.headers.get("last-event-id")
    if since is not None:
        parse_cut(since)
    if _open >= MOST_STREAMS:
        raise Busy(f"{MOST_STREAMS} streams of changes are open.")
    headers = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}
    return StreamingResponse(_events(ask, pin, since), media_type="text/event-stream", headers=headers)


async def _events(ask: Access, pin: Pin, since: str | None) -> AsyncIterator[bytes]:
    global _open
    _open += 1
    try:
        last, beat = since, time.monotonic()
        while True:
            if pin.cut.id != last:
                yield await _event(ask, pin, last)
                last = pin.cut.id
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
    finally:
        _open -= 1


async def _event(ask: Access, pin: Pin, last: str | None) -> bytes:
    """The event of a new cut. The first one of a stream that follows nothing tells the cut, and nothing changed."""
    generation, batch = parse_cut(last) if last is not None else (pin.cut.generation, pin.cut.batch)
    is_known = generation == pin.cut.generation and batch <= pin.cut.batch
    found = await ask.reader.changed(pin, batch if is_known else pin.cut.batch)
    event = ChangesEvent(
        pipeline=pin.store.pipeline,
        store=pin.store.name,
        cut=CutReply.of(pin.cut),
        changed=[ChangedKey(key, None if at == NO_WINDOW else f"{time_text(at)}Z") for key, at in found.keys],
        more=found.more,
        workers=found.workers,
    )
    return _written("cut" if is_known else "reset", pin.cut.id, event)


async def _still_may_read(ask: Access, pin: Pin) -> bool:
    visitor = await visitor_again(ask.request)
    return visitor is not None and await visitor.may_read(pin.store.pipeline)


def _written(name: str, number: str, data: Any) -> bytes:
    said = f"id: {number}\n" if number else ""
    return f"event: {name}\n{said}data: ".encode() + encoded(data) + b"\n\n"
