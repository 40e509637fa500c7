"""Routes for queries of stores: keys, key ranges with cursors, counts, groups and differences."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from dataclasses import replace
from typing import Annotated, Literal

import msgspec
from msgspec import Meta
from starlette.requests import Request
from starlette.responses import Response

from sluice import answers
from sluice.api.http.replies import (
    Payload,
    encoded,
    entries_payload,
    reply,
    snapshot_answer,
    store_reply,
    window_time,
)
from sluice.api.http.route import Router
from sluice.api.routes.access import Access, access_of, require_complete
from sluice.api.routes.read_point import ReadPoint
from sluice.errors import NotFound, NotReady, QueryError, TooSlow
from sluice.query import Answer, Pin
from sluice.query.as_of import AsOf, as_snapshot
from sluice.query.cursors import SECRET, Cursor, read_cursor, write_cursor
from sluice.query.differences import compare
from sluice.query.fields import require_field
from sluice.query.reader import MANY
from sluice.query.time_texts import parse_time
from sluice.state.model import EntryId, StoreInfo, WorkerInfo
from sluice.state.queries.aggregates import GROUPINGS
from sluice.state.shard.ranges import RowRange

_LIST_SECONDS = 20.0
"""Time limit for the list of stores, longer than the timeout of an unreachable worker."""
_MAX_KEY_LENGTH = 2_000

router = Router("stores", "/v1/stores", 400, 404, 410, 412, 429)

Store = Annotated[str, Meta(description="The store's name.", max_length=200)]
Key = Annotated[str, Meta(description="The key.", max_length=_MAX_KEY_LENGTH)]
Limit = Annotated[int, Meta(description="Maximum number of entries.", ge=1, le=answers.MAX_PAGE)]
Time = Annotated[str, Meta(max_length=100)]
Field = Annotated[
    str,
    Meta(
        description="A field of the value, with dots for nested fields and backticks around a "
        "name that contains a dot; default: the value itself.",
        max_length=500,
    ),
]


class ListQuery(msgspec.Struct, frozen=True):
    """The parameters of `list_stores`."""

    entries: Annotated[bool, Meta(description="Count the entries.")] = False
    pipeline: (
        Annotated[str, Meta(description="Only stores of this pipeline.", max_length=200)] | None
    ) = None


class WindowQuery(ReadPoint, frozen=True, kw_only=True):
    """A store, and a range of window starts."""

    store: Store
    start_from: (
        Annotated[Time, Meta(description="Only windows that start at this time or later.")] | None
    ) = msgspec.field(default=None, name="from")
    to: (
        Annotated[Time, Meta(description="Only windows that start at this time or earlier.")] | None
    ) = None

    @property
    def times(self) -> tuple[int | None, int | None]:
        """Both bounds of the windows' starts, in epoch milliseconds."""
        return parse_time("from", self.start_from), parse_time("to", self.to)


class KeyQuery(WindowQuery, frozen=True, kw_only=True):
    key: Key


class KeysQuery(ReadPoint, frozen=True, kw_only=True):
    store: Store
    key: Annotated[
        list[Key],
        Meta(
            description="A key; repeat the parameter for more keys.",
            min_length=1,
            max_length=answers.MAX_KEYS,
        ),
    ]


class RangeQuery(WindowQuery, frozen=True, kw_only=True):
    prefix: Annotated[
        str, Meta(description="Only keys with this prefix.", max_length=_MAX_KEY_LENGTH)
    ] = ""
    first: (
        Annotated[
            str, Meta(description="Only this key and larger keys.", max_length=_MAX_KEY_LENGTH)
        ]
        | None
    ) = None
    last: (
        Annotated[
            str, Meta(description="Only this key and smaller keys.", max_length=_MAX_KEY_LENGTH)
        ]
        | None
    ) = None

    @property
    def within(self) -> RowRange:
        """The range as an argument for the reader."""
        return RowRange(self.first, self.last, self.prefix, *self.times)


class PageQuery(RangeQuery, frozen=True, kw_only=True):
    """The parameters of `get_page`."""

    limit: Limit = 100
    cursor: (
        Annotated[str, Meta(description="The cursor from the previous page.", max_length=16_000)]
        | None
    ) = None
    worker: (
        Annotated[int, Meta(description="Only this worker's entries.", ge=0, le=10_000)] | None
    ) = None


class CombineQuery(RangeQuery, frozen=True, kw_only=True):
    field: Field = ""
    group_by: Annotated[
        str,
        Meta(
            description="A field, _key, _start for the window's start in epoch ms, or _all for one "
            "group.",
            max_length=500,
        ),
    ] = "_all"
    order: Annotated[
        Literal["group", "entries", "sum", "min", "max"],
        Meta(description="How to sort the groups; aggregates sort in descending order."),
    ] = "group"
    limit: Annotated[int, Meta(description="Maximum number of groups.", ge=1, le=10_000)] = 1_000


class TopQuery(RangeQuery, frozen=True, kw_only=True):
    """The parameters of `get_top`."""

    field: Field = ""
    limit: Limit = 10
    smallest: Annotated[bool, Meta(description="Sort ascending.")] = False


class DiffQuery(msgspec.Struct, frozen=True, kw_only=True):
    """The parameters of `diff_snapshots`. The snapshots may be of different generations."""

    store: Store
    before: Annotated[
        str,
        Meta(
            description="A snapshot (1.40, 1.newest), a run (run:NAME), or a time.", max_length=300
        ),
    ]
    after: (
        Annotated[
            str, Meta(description="The second snapshot; default: the newest.", max_length=300)
        ]
        | None
    ) = None
    pipeline: (
        Annotated[str, Meta(description="The pipeline, if several have the store.", max_length=200)]
        | None
    ) = None


@router.get("", list[answers.Store], parameters=ListQuery)
async def list_stores(request: Request, query: ListQuery) -> Response:
    """Return all stores that you may read, with their snapshots and the status of their workers."""
    access = await access_of(request)
    try:
        async with asyncio.timeout(_LIST_SECONDS):
            stores: list[answers.Store] = []
            for store in await access.stores():
                if query.pipeline in (None, store.pipeline):
                    stores.append(await _store(access, store, query.entries))
            return reply(stores)
    except TimeoutError:
        raise TooSlow(f"Listing the stores took longer than {_LIST_SECONDS:g} s.") from None


@router.get(
    "/{store}/keys/{key:path}",
    answers.Entries,
    parameters=KeyQuery,
    has_etag=True,
    may_be_empty=True,
)
async def get_key(request: Request, query: KeyQuery) -> Response:
    """Return the value of a key, from the worker that owns the key.

    In a windowed store, return the key's windows in order.
    """
    access = await access_of(request)
    pin = await access.pin_at(query.store, query)
    if pin.store.kind == "window" or query.start_from or query.to:
        answer = await access.reader.windows(pin, query.key, *query.times)
    else:
        answer = await access.reader.get(pin, query.key)
    if not answer.entries:
        raise NotFound(
            f"Store {query.store!r} has no such key or window in snapshot {pin.snapshot.id}."
        )
    # Encoding many windows would keep all other requests waiting.
    if len(answer.entries) > MANY:
        return await asyncio.to_thread(lambda: store_reply(pin, _payload(answer)))
    return store_reply(pin, _payload(answer))


@router.get("/{store}/keys", answers.Entries, parameters=KeysQuery, has_etag=True)
async def get_keys(request: Request, query: KeysQuery) -> Response:
    """Return the values of several keys in the given order, each from its owner.

    Keys without a value are omitted.
    """
    access = await access_of(request)
    pin = await access.pin_at(query.store, query)
    answer = await access.reader.multi_get(pin, query.key)
    if query.require is not None:
        require_complete(answer.workers)
    return store_reply(pin, _payload(answer))


@router.get("/{store}", answers.Entries, parameters=PageQuery, has_etag=True)
async def get_page(request: Request, query: PageQuery) -> Response:
    """Return the entries of all workers, sorted by key and window, page by page.

    All pages come from one snapshot.
    """
    access = await access_of(request)
    cursor = await _cursor(access, query)
    # All pages are from the snapshot of the first page.
    if cursor:
        pin = await access.pin(
            query.store, cursor.pipeline, replace(query.when, as_of=cursor.snapshot)
        )
    else:
        pin = await access.pin(query.store, query.pipeline, query.when)
    access.require_change([pin])

    async def read_page() -> Payload:
        after = (cursor.key, cursor.window_start, cursor.window_end) if cursor else None
        page = await access.reader.scan(
            pin, query.within, after=after, limit=query.limit, workers=_workers(pin, query.worker)
        )
        next_cursor: str | None = None
        if page.after is not None:
            next_cursor = await _next_cursor(access, pin, page.after)
        return _payload(page, next_cursor)

    return store_reply(
        pin, await access.cached([pin], read_page, complete=query.require is not None)
    )


@router.get("/{store}/count", answers.Count, parameters=RangeQuery, has_etag=True)
async def count_entries(request: Request, query: RangeQuery) -> Response:
    """Return the number of entries in a range of keys or windows."""
    access = await access_of(request)
    pin = await access.pin_at(query.store, query)

    async def count() -> Payload:
        counted = await access.reader.count(pin, query.within)
        return Payload("count", encoded(counted.entries), counted.workers)

    return store_reply(pin, await access.cached([pin], count, complete=query.require is not None))


@router.get("/{store}/combine", answers.Groups, parameters=CombineQuery, has_etag=True)
async def combine_entries(request: Request, query: CombineQuery) -> Response:
    """Return each group's number of entries, and sum, min and max of a field, over all workers."""
    access = await access_of(request)
    pin = await access.pin_at(query.store, query)
    require_field(pin.store, "field", query.field)
    if query.group_by not in GROUPINGS:
        require_field(pin.store, "group_by", query.group_by)

    async def combine() -> Payload:
        combined = await access.reader.combine(
            pin,
            query.field,
            query.group_by,
            within=query.within,
            order=query.order,
            limit=query.limit,
        )
        groups: list[answers.Group] = []
        for group in combined.groups:
            groups.append(answers.Group(*msgspec.structs.astuple(group)))
        # Thousands of groups must not keep the event loop waiting.
        return Payload("groups", await asyncio.to_thread(encoded, groups), combined.workers)

    return store_reply(pin, await access.cached([pin], combine, complete=query.require is not None))


@router.get("/{store}/diff", answers.Diff, parameters=DiffQuery)
async def diff_snapshots(request: Request, query: DiffQuery) -> Response:
    """Count equal, changed, missing and added entries in two snapshots, with examples.

    One of the snapshots can belong to a generation that was built beside the current generation.
    """
    access = await access_of(request)
    before = await access.pin(query.store, query.pipeline, AsOf(query.before))
    after = await access.pin(query.store, query.pipeline, AsOf(query.after))
    differences = await compare(access.reader, before, after)
    examples: list[answers.Difference] = []
    for example in differences.examples:
        start, end = window_time(example.window_start), window_time(example.window_end)
        examples.append(
            answers.Difference(example.key, example.kind, start, end, example.before, example.after)
        )
    return reply(
        answers.Diff(
            pipeline=before.store.pipeline,
            store=before.store.name,
            before=snapshot_answer(before.snapshot),
            after=snapshot_answer(after.snapshot),
            same=differences.same,
            changed=differences.changed,
            missing=differences.missing,
            added=differences.added,
            examples=examples,
        )
    )


@router.get("/{store}/top", answers.Entries, parameters=TopQuery, has_etag=True)
async def get_top(request: Request, query: TopQuery) -> Response:
    """Return the entries of all workers with the largest, or smallest, numbers in a field."""
    access = await access_of(request)
    pin = await access.pin_at(query.store, query)
    require_field(pin.store, "field", query.field)

    async def top() -> Payload:
        reader = access.reader
        return _payload(
            await reader.top(
                pin, query.field, query.limit, within=query.within, smallest=query.smallest
            )
        )

    return store_reply(pin, await access.cached([pin], top, complete=query.require is not None))


def _payload(answer: Answer, cursor: str | None = None) -> Payload:
    return entries_payload(answer.entries, answer.workers, cursor)


def _workers(pin: Pin, number: int | None) -> list[WorkerInfo] | None:
    if number is None:
        return None
    if number >= len(pin.workers):
        raise NotFound(
            f"There is no worker {number}.",
            next_step=f"There are {len(pin.workers)} workers, numbered from 0.",
        )
    return [pin.workers[number]]


async def _cursor(access: Access, query: PageQuery) -> Cursor | None:
    if query.cursor is None:
        return None
    cursor = read_cursor(query.cursor, await access.state.secret(SECRET), query.store)
    if query.pipeline not in (None, cursor.pipeline):
        raise QueryError(
            "The cursor belongs to another pipeline.", next_step="Omit the cursor to start again."
        )
    if as_snapshot(query.when.as_of or "") not in (None, as_snapshot(cursor.snapshot)):
        raise QueryError(
            f"The cursor belongs to snapshot {cursor.snapshot}.",
            next_step="Omit the cursor to read another snapshot.",
        )
    return cursor


async def _next_cursor(access: Access, pin: Pin, after: EntryId) -> str:
    cursor = Cursor(pin.store.pipeline, pin.store.name, pin.snapshot.id, *after)
    return write_cursor(cursor, await access.state.secret(SECRET))


async def _store(access: Access, store: StoreInfo, count_entries: bool) -> answers.Store:
    pin: Pin | None = None
    workers: tuple[answers.WorkerStatus, ...] = ()
    entries: int | None = None
    # The list also has stores that have not been published yet.
    with suppress(NotReady):
        pin = await access.pin(store.name, store.pipeline)
    if pin is not None:
        workers = await access.reader.statuses(pin.workers)
        if count_entries:
            entries = (await access.reader.count(pin)).entries
    return answers.Store(
        pipeline=store.pipeline,
        store=store.name,
        kind=store.kind,
        key=store.key,
        value=store.value,
        windows=store.windows,
        window_ms=store.window_ms,
        grace_ms=store.grace_ms,
        retention_ms=store.retention_ms,
        workers=workers,
        snapshot=None if pin is None else snapshot_answer(pin.snapshot),
        partial=answers.is_partial(workers),
        entries=entries,
        topology=f"/sluice/v1/pipelines/{store.pipeline}/topology",
    )
