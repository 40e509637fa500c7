"""The orders view: the paths and bodies that existing clients of such an app use."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from types import MappingProxyType
from typing import Annotated, Any, Literal

import msgspec
from msgspec import UNSET, Meta, Raw, UnsetType
from starlette.requests import Request
from starlette.responses import Response

from sluice.api.http.replies import JsonResponse, Payload, encoded, provenance, reply
from sluice.api.http.routes import Router
from sluice.api.views.access import Access, access
from sluice.errors import NotFound, QueryError
from sluice.query import Answer, AsOf, Entry, Pin
from sluice.query.times import parse_time, time_text
from sluice.state.model import WorkerInfo, owner
from sluice.state.shard.ranges import EVERYTHING, Range

PIPELINE = "orders"
Kind = Literal["GENERAL", "RESTAURANT"]
KINDS: dict[str, Kind] = {"general_orders": "GENERAL", "restaurant_orders": "RESTAURANT"}
"""`order_type` of a path → `orderType` of an order."""

routes = Router("orders", "", 400, 404, 410, 429)


class UnknownOrderType(QueryError):
    """The path names no type of orders."""

    title = "Unknown order type"
    extensions = MappingProxyType({"additionalInfo": "Please pass a Valid Order Type"})


class OrderCount(msgspec.Struct, frozen=True, rename="camel"):
    """Orders of one location; with `orderType` where both types are told, with its window where there is one."""

    location_id: str
    order_count: Raw
    order_type: Kind | UnsetType = UNSET
    start_window: str | UnsetType = UNSET
    end_window: str | UnsetType = UNSET


class TotalRevenue(msgspec.Struct, frozen=True, rename="camel"):
    """Orders and their revenue. The clients spell it `runnuingOrderCount`."""

    location_id: str
    runnuing_order_count: Raw
    running_revenue: Raw


class OrderRevenue(msgspec.Struct, frozen=True, rename="camel"):
    """Revenue of one location."""

    location_id: str
    order_type: Kind
    total_revenue: TotalRevenue


class WindowRevenue(msgspec.Struct, frozen=True, rename="camel"):
    """Revenue of one location in one window."""

    location_id: str
    total_revenue: TotalRevenue
    order_type: Kind
    start_window: str
    end_window: str


class Host(msgspec.Struct, frozen=True):
    """Where a worker can be asked."""

    host: str
    port: int


class KeyHost(msgspec.Struct, frozen=True):
    """Where the owner of a key can be asked."""

    host: str
    port: int
    key: str


class _Revenue(msgspec.Struct, frozen=True, rename="camel"):
    running_order_count: Raw
    running_revenue: Raw


_REVENUE = msgspec.json.Decoder(_Revenue)

Form = Callable[[Kind, Entry], Any]
OrderType = Annotated[
    str, Meta(description="A type of orders.", max_length=200, extra_json_schema={"enum": list(KINDS)})
]
OtherHosts = Annotated[bool, Meta(description="false: only the workers whose shards this server reads itself.")]
Time = Annotated[str, Meta(description="Date and time in UTC, or epoch milliseconds.", max_length=100)] | None


class AllQuery(msgspec.Struct, frozen=True, kw_only=True):
    """Both types."""

    query_other_hosts: OtherHosts = True


class TypeQuery(AllQuery, frozen=True, kw_only=True):
    """One type, or one location of it."""

    order_type: OrderType
    location_id: str | None = None


class WindowsQuery(AllQuery, frozen=True, kw_only=True):
    """The windows of both types that start between two times."""

    from_time: Time = None
    to_time: Time = None

    @property
    def within(self) -> Range:
        """The same for a reader."""
        return Range(start_from=parse_time("from_time", self.from_time), start_to=parse_time("to_time", self.to_time))


class TypeWindowsQuery(WindowsQuery, frozen=True, kw_only=True):
    """The windows of one type."""

    order_type: OrderType


class KeyHostQuery(msgspec.Struct, frozen=True, kw_only=True):
    """A key of a type."""

    order_type: OrderType
    location_id: str


@routes.get("/orders/count", list[OrderCount], parameters=AllQuery, has_etag=True)
async def count_all(request: Request, asked: AllQuery) -> Response:
    """Number of orders per location, GENERAL then RESTAURANT."""
    return await _everything(request, "count", tuple(KINDS), _typed_count, local=not asked.query_other_hosts)


@routes.get("/orders/count/{order_type}", list[OrderCount], OrderCount, parameters=TypeQuery, has_etag=True)
async def count_type(request: Request, asked: TypeQuery) -> Response:
    """Number of orders of one type per location, or of one location."""
    return await _type(request, "count", asked, _count)


@routes.get("/orders/revenue", list[OrderRevenue], parameters=AllQuery, has_etag=True)
async def revenue_all(request: Request, asked: AllQuery) -> Response:
    """Number and revenue of orders per location, GENERAL then RESTAURANT."""
    return await _everything(request, "revenue", tuple(KINDS), _revenue, local=not asked.query_other_hosts)


@routes.get("/orders/revenue/{order_type}", list[OrderRevenue], OrderRevenue, parameters=TypeQuery, has_etag=True)
async def revenue_type(request: Request, asked: TypeQuery) -> Response:
    """Number and revenue of orders of one type per location, or of one location."""
    return await _type(request, "revenue", asked, _revenue)


@routes.get("/orders/windows/count", list[OrderCount], parameters=WindowsQuery, has_etag=True)
async def window_count_all(request: Request, asked: WindowsQuery) -> Response:
    """Number of orders per location and window: all windows, or those that start in [from_time, to_time]."""
    return await _windows(request, "count_window", tuple(KINDS), _window_count, asked)


@routes.get("/orders/windows/count/{order_type}", list[OrderCount], parameters=TypeWindowsQuery, has_etag=True)
async def window_count_type(request: Request, asked: TypeWindowsQuery) -> Response:
    """Number of orders of one type per location and window."""
    return await _windows(request, "count_window", (_valid(asked.order_type),), _window_count, asked)


@routes.get("/orders/windows/revenue/{order_type}", list[WindowRevenue], parameters=TypeWindowsQuery, has_etag=True)
async def window_revenue_type(request: Request, asked: TypeWindowsQuery) -> Response:
    """Number and revenue of orders of one type per location and window."""
    return await _windows(request, "revenue_window", (_valid(asked.order_type),), _window_revenue, asked)


@routes.get("/metadata/all", list[Host])
async def hosts(request: Request, _asked: Any) -> Response:
    """Where the workers can be asked, each address once."""
    pin = await (await access(request)).pin("general_orders_count", PIPELINE)
    return reply(list(dict.fromkeys(Host(*_address(worker, request)) for worker in pin.workers)))


@routes.get("/metadata/{order_type}/{location_id:path}", KeyHost, parameters=KeyHostQuery)
async def key_host(request: Request, asked: KeyHostQuery) -> Response:
    """Where the owner of a key can be asked."""
    pin = await (await access(request)).pin(f"{_valid(asked.order_type)}_count", PIPELINE)
    worker = pin.workers[owner(asked.location_id, len(pin.workers))]
    return reply(KeyHost(*_address(worker, request), asked.location_id))


def _valid(order_type: str) -> str:
    if order_type not in KINDS:
        raise UnknownOrderType("The order type is not known.", next_step=f"Use one of: {', '.join(KINDS)}.")
    return order_type


async def _type(request: Request, store: str, asked: TypeQuery, form: Form) -> Response:
    order_type = _valid(asked.order_type)
    if asked.location_id is None:
        return await _everything(request, store, (order_type,), form, local=not asked.query_other_hosts)
    ask = await access(request)
    pin = await ask.pin(f"{order_type}_{store}", PIPELINE)
    ask.require_change([pin])
    answer = await ask.reader.get(pin, asked.location_id)
    if not answer.entries:
        raise NotFound(f"There are no {order_type} of this location.")
    body = encoded(form(KINDS[order_type], answer.entries[0]))
    return JsonResponse(body, provenance([pin], answer.workers))


async def _windows(
    request: Request, store: str, order_types: tuple[str, ...], form: Form, asked: WindowsQuery
) -> Response:
    return await _everything(request, store, order_types, form, asked.within, local=not asked.query_other_hosts)


async def _everything(
    request: Request,
    store: str,
    order_types: tuple[str, ...],
    form: Form,
    within: Range = EVERYTHING,
    *,
    local: bool = False,
) -> Response:
    ask = await access(request)
    pins = await _pins(ask, [f"{order_type}_{store}" for order_type in order_types])
    ask.require_change(pins)

    async def make() -> Payload:
        found = await asyncio.gather(
            *(ask.reader.all(pin, within, workers=_here(ask, pin) if local else None) for pin in pins)
        )
        body = await asyncio.to_thread(_body, form, list(zip(order_types, found, strict=True)))
        return Payload("", body, tuple(one for answer in found for one in answer.workers))

    payload = await ask.cached(pins, make)
    return JsonResponse(payload.content, provenance(pins, payload.workers))


def _body(form: Form, told: list[tuple[str, Answer]]) -> bytes:
    return encoded([form(KINDS[order_type], entry) for order_type, answer in told for entry in answer.entries])


async def _pins(ask: Access, stores: list[str]) -> list[Pin]:
    """Both types' stores are of one job: what is answered together is of one snapshot."""
    pins = [await ask.pin(stores[0], PIPELINE)]
    for store in stores[1:]:
        pin = await ask.pin(store, PIPELINE)
        same = pin.store.job == pins[0].store.job
        pins.append(await ask.pin(store, PIPELINE, AsOf(pins[0].snapshot.id)) if same else pin)
    return pins


def _here(ask: Access, pin: Pin) -> list[WorkerInfo]:
    return [worker for worker in pin.workers if ask.reader.workers.is_here(worker)]


def _address(worker: WorkerInfo, request: Request) -> tuple[str, int]:
    """A worker without a server of its own is asked here, whatever the client calls this server."""
    if worker.port:
        return worker.host, worker.port
    host, port = request.scope["server"]
    return host, port


def _count(_order_type: Kind, entry: Entry) -> OrderCount:
    return OrderCount(entry.key, entry.value)


def _typed_count(order_type: Kind, entry: Entry) -> OrderCount:
    return OrderCount(entry.key, entry.value, order_type)


def _window_count(order_type: Kind, entry: Entry) -> OrderCount:
    return OrderCount(entry.key, entry.value, order_type, *_window(entry))


def _revenue(order_type: Kind, entry: Entry) -> OrderRevenue:
    return OrderRevenue(entry.key, order_type, _total(entry))


def _window_revenue(order_type: Kind, entry: Entry) -> WindowRevenue:
    return WindowRevenue(entry.key, _total(entry), order_type, *_window(entry))


def _total(entry: Entry) -> TotalRevenue:
    try:
        value = _REVENUE.decode(entry.value)
    except (msgspec.DecodeError, RecursionError):
        raise QueryError(f"The value of {entry.key[:100]!r} is not the count and revenue of a location.") from None
    return TotalRevenue(entry.key, value.running_order_count, value.running_revenue)


def _window(entry: Entry) -> tuple[str, str]:
    return time_text(entry.window_start), time_text(entry.window_end)
