"""Changes of a store as server-sent events: every new snapshot, and the keys that changed."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import suppress
from functools import partial
from typing import Any, Literal

import msgspec
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response, StreamingResponse
from starlette.types import Message, Receive, Scope, Send
from typing_extensions import override

from sluice import answers
from sluice.api.auth.permissions import Principal, refresh_principal
from sluice.api.http.problems import problem_of
from sluice.api.http.replies import Payload, encoded, snapshot_answer, window_time
from sluice.api.http.route import Router
from sluice.api.routes.access import Access, access_of
from sluice.api.routes.store_routes import Store
from sluice.errors import Busy, Gone, SluiceError
from sluice.query import Pin
from sluice.query.as_of import parse_snapshot
from sluice.state.ledger.ledger import Ledger

router = Router("stores", "/v1/stores", 400, 404, 429)

pipelines_router = Router("overview", "/v1/events", 429)

_EVENT_SECONDS = 1.0
"""How often the ledger and Airflow are checked for changes of any pipeline."""
POLL_SECONDS = 0.25
"""How often the ledger is checked for a new snapshot."""
_HEARTBEAT_SECONDS = 5.0
"""How often an idle stream sends a comment, and how often the log-in of every stream is checked
again."""
MAX_STREAMS = 100
"""Maximum number of open streams per server process."""
_SEND_SECONDS = 30.0
"""How long a client may stop reading before its stream is closed."""

# If X-Accel-Buffering were missing, nginx would keep events back until its buffer is full.
_HEADERS = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}
_EVENTS = "text/event-stream"


class _ChangesQuery(msgspec.Struct, frozen=True, kw_only=True):
    store: Store
    pipeline: str | None = None


@router.get("/{store}/changes", parameters=_ChangesQuery, media_types=(_EVENTS,))
async def stream_changes(request: Request, query: _ChangesQuery) -> Response:
    """Server-sent events `snapshot`, one for each new snapshot, with the keys that changed.

    The id of an event is the id of its snapshot. If the request has the header Last-Event-ID, which
    browsers send when they reconnect, the stream continues after the snapshot with that id. An
    event `reset` instead of
    `snapshot` means that the changed keys are unknown and everything must be read again.
    """
    access = await access_of(request)
    pin = await access.pin(query.store, query.pipeline)
    since = request.headers.get("last-event-id")
    if since is not None:
        # An invalid id is refused now, because a stream that has begun cannot change its status.
        parse_snapshot(since)
    # A stream never ends. The response to HEAD has no body, so it must not wait for the stream's
    # end.
    if request.method == "HEAD":
        return Response(media_type=_EVENTS, headers=_HEADERS)
    return _Stream(_events(access, pin, since), media_type=_EVENTS, headers=_HEADERS)


@pipelines_router.get("", media_types=(_EVENTS,))
async def stream_events(request: Request, _query: object) -> Response:
    """Stream server-sent events `pipelines`.

    They name the pipelines that published a snapshot, began or ended a run, or failed.
    """
    access = await access_of(request)
    if request.method == "HEAD":
        return Response(media_type=_EVENTS, headers=_HEADERS)
    return _Stream(_pipeline_events(access), media_type=_EVENTS, headers=_HEADERS)


async def _pipeline_events(access: Access) -> AsyncIterator[bytes]:
    user: Principal | None = access.user
    before: dict[str, Any] = {}
    heartbeat = time.monotonic()
    while user is not None:
        try:
            activity = await _activity(access)
            now = {name: activity[name] for name in await user.readable(activity)}
        except SluiceError as error:
            yield _encoded_event("trouble", "", {"title": error.title, "detail": error.detail})
            # While the ledger does not answer, no pipeline counts as changed.
            now = before
        # The first event names all pipelines, because `before` is empty.
        names = sorted({*before, *now})
        changed = [name for name in names if before.get(name) != now.get(name)]
        if changed:
            yield _encoded_event("pipelines", "", changed)
        before = now
        if time.monotonic() > heartbeat + _HEARTBEAT_SECONDS:
            heartbeat = time.monotonic()
            yield b": still here\n\n"
            user = await refresh_principal(access.request)
        await asyncio.sleep(_EVENT_SECONDS)


async def _activity(access: Access) -> dict[str, Any]:
    """Return each pipeline → its newest snapshots, failures, and the state of its last run."""
    dags, ledger = await asyncio.gather(
        access.state.figures.get("dags", lambda: asyncio.to_thread(access.services.runs.dags)),
        access.figures("activity", _ledger_activity),
    )
    activity: dict[str, Any] = {}
    for name in {*dags, *ledger}:
        dag = dags.get(name)
        if dag is None:
            activity[name] = (ledger.get(name),)
        else:
            last_run = dag.last_run and (dag.last_run.run, dag.last_run.state)
            activity[name] = (ledger.get(name), last_run, dag.paused)
    return activity


def _ledger_activity(ledger: Ledger) -> dict[str, Any]:
    activity: dict[str, list[Any]] = {}
    for name in ledger.generations.pipelines():
        snapshot = ledger.snapshots.latest(name)
        activity[name] = [snapshot.id if snapshot else ""]
    for failure in ledger.failures.all():
        activity.setdefault(failure.pipeline, []).append((failure.kind, failure.at))
    return activity


class _Stream(StreamingResponse):
    """A stream that responds with 429 if `MAX_STREAMS` streams are already open."""

    open_streams = 0

    @override
    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        # There is no `await` between this check and the increment of `open_streams`, so concurrent
        # requests cannot exceed the limit.
        if _Stream.open_streams >= MAX_STREAMS:
            refusal = problem_of(Busy(f"All {MAX_STREAMS} streams of changes are in use."))
            await refusal(scope, receive, send)
            return
        _Stream.open_streams += 1
        try:
            # `_send_in_time` raises this exception to end the stream of a client that reads
            # nothing.
            with suppress(ClientDisconnect):
                await super().__call__(scope, receive, partial(_send_in_time, send))
        finally:
            _Stream.open_streams -= 1


async def _send_in_time(send: Send, message: Message) -> None:
    """Send, or end the stream if its client has read nothing for `_SEND_SECONDS`."""
    try:
        async with asyncio.timeout(_SEND_SECONDS):
            await send(message)
    except TimeoutError:
        raise ClientDisconnect from None


async def _events(access: Access, pin: Pin, since: str | None) -> AsyncIterator[bytes]:
    try:
        last, heartbeat = since, time.monotonic()
        while True:
            event: bytes | None = None
            if pin.snapshot.id != last:
                event = await _shared_event(access, pin, last)
            if event is not None:
                yield event
                last = pin.snapshot.id
            elif time.monotonic() > heartbeat + _HEARTBEAT_SECONDS:
                yield b": still here\n\n"
            else:
                await asyncio.sleep(POLL_SECONDS)
            if time.monotonic() > heartbeat + _HEARTBEAT_SECONDS:
                heartbeat = time.monotonic()
                user = await refresh_principal(access.request)
                if user is None or not await user.may_read(pin.store.pipeline):
                    return
            pin = await access.reader.catalogue.pin(pin.store)
    except SluiceError as error:
        yield _encoded_event("trouble", "", {"title": error.title, "detail": error.detail})


async def _shared_event(access: Access, pin: Pin, last: str | None) -> bytes | None:
    """Return the event for a new snapshot, computed once for all streams of the store.

    Return None while too many queries run.
    """
    try:
        key = ("changes", pin.name, pin.store.name, last)
        return (await access.state.cached(key, lambda: _event(access, pin, last))).content
    except Busy:
        return None


async def _event(access: Access, pin: Pin, last: str | None) -> Payload:
    """Compute the event.

    The first event of a new subscriber has the current snapshot, without changed keys.
    """
    generation, batch = pin.snapshot.generation, pin.snapshot.batch
    if last is not None:
        generation, batch = parse_snapshot(last)
    event: Literal["snapshot", "reset"] = "snapshot"
    # The client may have seen a snapshot of another generation, or a newer snapshot that a restored
    # backup does not have.
    if generation != pin.snapshot.generation or batch > pin.snapshot.batch:
        event, batch = "reset", pin.snapshot.batch
    try:
        changes = await access.reader.changed_keys(pin, batch)
    except Gone:
        # Retention has removed the snapshot that the client has seen, so the changes since then are
        # unknown.
        event = "reset"
        changes = await access.reader.changed_keys(pin, pin.snapshot.batch)
    changed: list[answers.ChangedKey] = []
    for key, start, end in changes.keys:
        changed.append(answers.ChangedKey(key, window_time(start), window_time(end)))
    change = answers.Change(
        pipeline=pin.store.pipeline,
        store=pin.store.name,
        snapshot=snapshot_answer(pin.snapshot),
        changed=changed,
        more=changes.more,
        workers=changes.workers,
    )
    return Payload("", _encoded_event(event, pin.snapshot.id, change), changes.workers)


def _encoded_event(name: str, number: str, data: Any) -> bytes:
    id_line = f"id: {number}\n" if number else ""
    return f"event: {name}\n{id_line}data: ".encode() + encoded(data) + b"\n\n"
