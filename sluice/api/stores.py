"""The generic view: any store of any pipeline."""

from __future__ import annotations

import asyncio
from typing import Annotated, Literal

import msgspec
from msgspec import Meta
from starlette.requests import Request
from starlette.responses import Response

from sluice.api.access import Access, ReadPoint, access, demand_complete
from sluice.api.replies import (
    CountReply,
    EntriesReply,
    GroupReply,
    GroupsReply,
    SnapshotReply,
    Told,
    encoded,
    entries_told,
    reply,
    told_reply,
)
from sluice.api.routes import Routes
from sluice.errors import NotFound, NotReady, QueryError, TooSlow
from sluice.query import Answer, Pin, WorkerStatus
from sluice.query.combine import GROUPINGS
from sluice.query.cursors import SECRET, Cursor, read_cursor, write_cursor
from sluice.query.fields import demand_field
from sluice.query.read_point import AsOf
from sluice.query.reader import MANY
from sluice.query.times import parse_time
from sluice.state.model import StoreInfo, StoreKind, WorkerInfo
from sluice.state.shard.ranges import Range

MOST_ON_A_PAGE = 1_000
LIST_SECONDS = 20.0
"""How long the list of stores may take: longer than one worker that does not answer."""
_MOST_OF_A_KEY = 2_000

routes = Routes("stores", "/v1/stores", 400, 404, 410, 412, 429)

Store = Annotated[str, Meta(description="The store's name.", max_length=200)]
Key = Annotated[str, Meta(description="The key.", max_length=_MOST_OF_A_KEY)]
Limit = Annotated[int, Meta(description="How many at most.", ge=1, le=MOST_ON_A_PAGE)]
Time = Annotated[str, Meta(max_length=100)]
Field = Annotated[
    str,
    Meta(description="A field of the value, with points for fields within fields; empty: the value.", max_length=500),
]


class ListQuery(msgspec.Struct, frozen=True):
    """What the list of stores takes."""

    entries: Annotated[bool, Meta(description="Count the entries, too.")] = False


class Between(ReadPoint, frozen=True, kw_only=True):
    """Of a store, the windows that start between two times."""

    store: Store
    start_from: Annotated[Time, Meta(description="Windows that start at this time or later.")] | None = msgspec.field(
        default=None, name="from"
    )
    to: Annotated[Time, Meta(description="Windows that start at this time or earlier.")] | None = None

    @property
    def times(self) -> tuple[int | None, int | None]:
        """Both, as epoch ms."""
        return parse_time("from", self.start_from), parse_time("to", self.to)


class KeyQuery(Between, frozen=True, kw_only=True):
    """One key."""

    key: Key


class KeysQuery(ReadPoint, frozen=True, kw_only=True):
    """Several keys."""

    store: Store
    key: Annotated[list[Key], Meta(description="A key; once for each.", min_length=1, max_length=MOST_ON_A_PAGE)]


class RangeQuery(Between, frozen=True, kw_only=True):
    """A part of a store."""

    prefix: Annotated[str, Meta(description="Keys that begin with this.", max_length=_MOST_OF_A_KEY)] = ""
    first: Annotated[str, Meta(description="The least key.", max_length=_MOST_OF_A_KEY)] | None = None
    last: Annotated[str, Meta(description="The greatest key.", max_length=_MOST_OF_A_KEY)] | None = None

    @property
    def within(self) -> Range:
        """The same for a reader."""
        return Range(self.first, self.last, self.prefix, *self.times)


class PageQuery(RangeQuery, frozen=True, kw_only=True):
    """A page of a part of a store."""

    limit: Limit = 100
    cursor: Annotated[str, Meta(description="The cursor of the page before.", max_length=16_000)] | None = None
    worker: Annotated[int, Meta(description="Of this worker alone.", ge=0, le=10_000)] | None = None


class CombineQuery(RangeQuery, frozen=True, kw_only=True):
    """Figures of a part of a store."""

    field: Field = ""
    group_by: Annotated[
        str, Meta(description="A field; _key; _start of the window in epoch ms; _all for one group.", max_length=500)
    ] = "_all"
    order: Annotated[
        Literal["group", "entries", "sum", "min", "max"],
        Meta(description="By what the groups are sorted; figures with the largest first."),
    ] = "group"
    limit: Annotated[int, Meta(description="How many groups at most.", ge=1, le=10_000)] = 1_000


class TopQuery(RangeQuery, frozen=True, kw_only=True):
    """The largest or smallest values of a part of a store."""

    field: Field = ""
    limit: Limit = 10
    smallest: Annotated[bool, Meta(description="The smallest in place of the largest.")] = False


class StoreReply(msgspec.Struct, frozen=True, kw_only=True):
    """One store: what it holds, and how it is."""

    pipeline: str
    store: str
    kind: StoreKind
    job: str
    key: str
    """What the key is, as an expression."""
    value: str
    """The value's type."""
    window_ms: int | None
    grace_ms: int | None
    retention_ms: int | None
    workers: tuple[WorkerStatus, ...]
    snapshot: SnapshotReply | None
    """None before the first snapshot."""
    partial: bool
    entries: int | None
    """How many entries the workers that can be read hold, if it was asked for."""
    topology: str


@routes.get("", list[StoreReply], parameters=ListQuery)
async def list_stores(request: Request, asked: ListQuery) -> Response:
    """All stores you may read, each with its snapshot and its workers' status."""
    ask = await access(request)
    try:
        async with asyncio.timeout(LIST_SECONDS):
            return reply([await _store_reply(ask, store, asked.entries) for store in await ask.stores()])
    except TimeoutError:
        raise TooSlow(f"The stores could not all be looked at within {LIST_SECONDS:g} s.") from None


@routes.get("/{store}/keys/{key:path}", EntriesReply, parameters=KeyQuery, has_etag=True)
async def get_key(request: Request, asked: KeyQuery) -> Response:
    """The value of one key, from the worker that owns it; in a store with windows, the key's windows in order."""
    ask = await access(request)
    pin = await ask.pin_at(asked.store, asked)
    if pin.store.kind == "window" or asked.start_from or asked.to:
        answer = await ask.reader.windows(pin, asked.key, *asked.times)
    else:
        answer = await ask.reader.get(pin, asked.key)
    if not answer.entries:
        raise NotFound(f"Store {asked.store!r} has no such key in snapshot {pin.snapshot.id}, or no such window.")
    if len(answer.entries) > MANY:
        return await asyncio.to_thread(lambda: told_reply(pin, _told(answer)))
    return told_reply(pin, _told(answer))


@routes.get("/{store}/keys", EntriesReply, parameters=KeysQuery, has_etag=True)
async def get_keys(request: Request, asked: KeysQuery) -> Response:
    """The values of several keys, in the order asked, each from its owner; keys without a value are left out."""
    ask = await access(request)
    pin = await ask.pin_at(asked.store, asked)
    answer = await ask.reader.multi_get(pin, asked.key)
    if asked.require is not None:
        demand_complete(answer.workers)
    return told_reply(pin, _told(answer))


@routes.get("/{store}", EntriesReply, parameters=PageQuery, has_etag=True)
async def get_page(request: Request, asked: PageQuery) -> Response:
    """Entries sorted by key and window, from all workers, page by page; all pages are of one snapshot."""
    ask = await access(request)
    place = await _place(ask, asked)
    pin = await ask.pin(
        asked.store, place.pipeline if place else asked.pipeline, AsOf(place.snapshot) if place else asked.when
    )
    ask.demand_change([pin])

    async def make() -> Told:
        after = (place.key, place.window_start) if place else None
        page = await ask.reader.scan(
            pin, asked.within, after=after, limit=asked.limit, workers=_workers(pin, asked.worker)
        )
        return _told(page, None if page.after is None else await _cursor(ask, pin, page.after))

    return told_reply(pin, await ask.told([pin], make, complete=asked.require is not None))


@routes.get("/{store}/count", CountReply, parameters=RangeQuery, has_etag=True)
async def count_entries(request: Request, asked: RangeQuery) -> Response:
    """How many entries there are."""
    ask = await access(request)
    pin = await ask.pin_at(asked.store, asked)

    async def make() -> Told:
        found = await ask.reader.count(pin, asked.within)
        return Told("count", encoded(found.entries), found.workers)

    return told_reply(pin, await ask.told([pin], make, complete=asked.require is not None))


@routes.get("/{store}/combine", GroupsReply, parameters=CombineQuery, has_etag=True)
async def combine_entries(request: Request, asked: CombineQuery) -> Response:
    """Number of entries, and sum, least and greatest of a field, over all workers; by group, if asked for."""
    ask = await access(request)
    pin = await ask.pin_at(asked.store, asked)
    demand_field(pin.store, "field", asked.field)
    if asked.group_by not in GROUPINGS:
        demand_field(pin.store, "group_by", asked.group_by)

    async def make() -> Told:
        found = await ask.reader.combine(
            pin, asked.field, asked.group_by, within=asked.within, order=asked.order, limit=asked.limit
        )
        groups = await asyncio.to_thread(lambda: encoded([GroupReply.of(group) for group in found.groups]))
        return Told("groups", groups, found.workers)

    return told_reply(pin, await ask.told([pin], make, complete=asked.require is not None))


@routes.get("/{store}/top", EntriesReply, parameters=TopQuery, has_etag=True)
async def get_top(request: Request, asked: TopQuery) -> Response:
    """The entries with the largest numbers in a field, or with the smallest, over all workers."""
    ask = await access(request)
    pin = await ask.pin_at(asked.store, asked)
    demand_field(pin.store, "field", asked.field)

    async def make() -> Told:
        return _told(await ask.reader.top(pin, asked.field, asked.limit, within=asked.within, smallest=asked.smallest))

    return told_reply(pin, await ask.told([pin], make, complete=asked.require is not None))


def _told(answer: Answer, cursor: str | None = None) -> Told:
    return entries_told(answer.entries, answer.workers, cursor)


def _workers(pin: Pin, number: int | None) -> list[WorkerInfo] | None:
    if number is None:
        return None
    if number >= len(pin.workers):
        raise NotFound(f"There is no worker {number}.", next_step=f"There are {len(pin.workers)}, from 0 on.")
    return [pin.workers[number]]


async def _place(ask: Access, asked: PageQuery) -> Cursor | None:
    if asked.cursor is None:
        return None
    place = read_cursor(asked.cursor, await ask.state.secret(SECRET), asked.store)
    if asked.pipeline not in (None, place.pipeline):
        raise QueryError("This is a cursor of another pipeline.", next_step="Leave it out to begin again.")
    return place


async def _cursor(ask: Access, pin: Pin, after: tuple[str, int]) -> str:
    cursor = Cursor(pin.store.pipeline, pin.store.name, pin.snapshot.id, *after)
    return write_cursor(cursor, await ask.state.secret(SECRET))


async def _store_reply(ask: Access, store: StoreInfo, entries: bool) -> StoreReply:
    try:
        pin = await ask.pin(store.name, store.pipeline)
    except NotReady:
        pin = None
    workers = () if pin is None else await ask.reader.statuses(pin.workers)
    return StoreReply(
        pipeline=store.pipeline,
        store=store.name,
        kind=store.kind,
        job=store.job,
        key=store.key,
        value=store.value,
        window_ms=store.window_ms,
        grace_ms=store.grace_ms,
        retention_ms=store.retention_ms,
        workers=workers,
        snapshot=None if pin is None else SnapshotReply.of(pin.snapshot),
        partial=any(worker.status != "ok" for worker in workers),
        entries=None if pin is None or not entries else (await ask.reader.count(pin)).entries,
        topology=f"/sluice/v1/pipelines/{store.pipeline}/topology",
    )
