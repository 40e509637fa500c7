"""The generic view: any store of any pipeline."""

from __future__ import annotations

import base64
import binascii
from typing import Annotated

import msgspec
from fastapi import APIRouter, Query
from starlette.responses import Response

from sluice.api.access import Asking, AsOf, InPipeline
from sluice.api.documentation import answers
from sluice.api.replies import CutReply, EntriesReply, entries_reply, parse_time, reply
from sluice.errors import NotFound, NotReady, QueryError
from sluice.query import Pin, WorkerStatus
from sluice.state.model import StoreInfo
from sluice.state.shard import Range

MOST_ON_A_PAGE = 1_000

router = APIRouter(prefix="/v1/stores", tags=["stores"])

From = Annotated[str | None, Query(alias="from", description="Windows that start at this time or later.")]
To = Annotated[str | None, Query(description="Windows that start at this time or earlier.")]


class StoreReply(msgspec.Struct, frozen=True, kw_only=True):
    """One store: what it holds, and how it is."""

    pipeline: str
    store: str
    kind: str
    job: str
    key: str
    """What the key is, as an expression."""
    value: str
    """The value's type."""
    window_ms: int | None
    grace_ms: int | None
    workers: tuple[WorkerStatus, ...]
    cut: CutReply | None
    """None before the first cut."""
    partial: bool
    entries: int | None
    """How many entries the workers that can be read hold, if it was asked for."""
    topology: str


class Cursor(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """Where the next page goes on, and in which cut."""

    pipeline: str
    store: str
    cut: str
    key: str
    window_start: int


@router.get("", responses=answers(list[StoreReply]))
async def list_stores(
    ask: Asking, entries: Annotated[bool, Query(description="Count the entries, too.")] = False
) -> Response:
    """All stores you may read, each with its cut and its workers' status."""
    return reply([await _store_reply(ask, store, entries) for store in await ask.stores()])


@router.get("/{store}/keys/{key:path}", responses=answers(EntriesReply))
async def get_key(
    ask: Asking,
    store: str,
    key: str,
    pipeline: InPipeline = None,
    as_of: AsOf = None,
    start_from: From = None,
    to: To = None,
) -> Response:
    """The value of one key, from the worker that owns it; in a store with windows, the key's windows in order."""
    pin = await ask.pin(store, pipeline, as_of)
    if pin.store.kind == "window" or start_from or to:
        times = parse_time("from", start_from), parse_time("to", to)
        answer = await ask.reader.windows(pin, key, *times)
    else:
        answer = await ask.reader.get(pin, key)
    if not answer.entries:
        raise NotFound(f"Store {store!r} has no such key in cut {pin.cut.id}, or no such window.")
    return entries_reply(answer)


@router.get("/{store}", responses=answers(EntriesReply))
async def get_page(
    ask: Asking,
    store: str,
    pipeline: InPipeline = None,
    as_of: AsOf = None,
    prefix: Annotated[str, Query(description="Keys that begin with this.")] = "",
    first: Annotated[str | None, Query(description="The least key.")] = None,
    last: Annotated[str | None, Query(description="The greatest key.")] = None,
    start_from: From = None,
    to: To = None,
    limit: Annotated[int, Query(ge=1, le=MOST_ON_A_PAGE)] = 100,
    cursor: Annotated[str | None, Query(description="The cursor of the page before.", max_length=4_000)] = None,
) -> Response:
    """Entries sorted by key and window, from all workers, page by page; all pages are of one cut."""
    place = None if cursor is None else _read_cursor(cursor, store)
    pin = await ask.pin(store, place.pipeline if place else pipeline, place.cut if place else as_of)
    within = Range(first, last, prefix, parse_time("from", start_from), parse_time("to", to))
    after = (place.key, place.window_start) if place else None
    page = await ask.reader.scan(pin, within, after=after, limit=limit)
    return entries_reply(page, None if page.after is None else _write_cursor(pin, page.after))


async def _store_reply(ask: Asking, store: StoreInfo, entries: bool) -> StoreReply:
    try:
        pin = await ask.pin(store.name, store.pipeline)
    except NotReady:
        pin = None
    workers = () if pin is None else await ask.reader.statuses(pin)
    return StoreReply(
        pipeline=store.pipeline,
        store=store.name,
        kind=store.kind,
        job=store.job,
        key=store.key,
        value=store.value,
        window_ms=store.window_ms,
        grace_ms=store.grace_ms,
        workers=workers,
        cut=None if pin is None else CutReply.of(pin.cut),
        partial=any(worker.status != "ok" for worker in workers),
        entries=None if pin is None or not entries else await ask.reader.count(pin),
        topology=f"/sluice/v1/pipelines/{store.pipeline}/topology",
    )


def _write_cursor(pin: Pin, after: tuple[str, int]) -> str:
    content = msgspec.json.encode(Cursor(pin.store.pipeline, pin.store.name, pin.cut.id, *after))
    return base64.urlsafe_b64encode(content).decode().rstrip("=")


def _read_cursor(text: str, store: str) -> Cursor:
    # A made-up cursor reads nothing that a range could not: it is data, and permission is asked anew.
    try:
        content = base64.urlsafe_b64decode(text + "=" * (-len(text) % 4))
        cursor = msgspec.json.decode(content, type=Cursor)
    except (binascii.Error, msgspec.DecodeError, ValueError):
        cursor = None
    if cursor is None or cursor.store != store or abs(cursor.window_start) >= 2**63:
        raise QueryError("This is no cursor of this store.", next_step="Leave it out to begin with the first page.")
    return cursor
