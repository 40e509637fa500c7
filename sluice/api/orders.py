"""The orders view: the paths and bodies that existing clients of such an app use."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from typing import Annotated, Any

import msgspec
from fastapi import APIRouter, Query, Request
from msgspec import UNSET, Raw, UnsetType
from starlette.responses import Response

from sluice.api.access import Access, Asking
from sluice.api.documentation import answers
from sluice.api.replies import parse_time, provenance, reply, time_text
from sluice.errors import NotFound, QueryError
from sluice.query import Answer, Entry, Pin
from sluice.state.model import WorkerInfo, owner
from sluice.state.shard import EVERYTHING, Range

PIPELINE = "orders"
KINDS = {"general_orders": "GENERAL", "restaurant_orders": "RESTAURANT"}
"""`order_type` of a path → `orderType` of an order."""

router = APIRouter(tags=["orders"])


class UnknownOrderType(QueryError):
    """The path names no type of orders."""

    title = "Unknown order type"
    extensions = {"additionalInfo": "Please pass a Valid Order Type"}  # noqa: RUF012 - a class variable of the base


class OrderCount(msgspec.Struct, frozen=True, rename="camel"):
    """Orders of one location; with `orderType` where both types are told, with its window where there is one."""

    location_id: str
    order_count: Raw
    order_type: str | UnsetType = UNSET
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
    order_type: str
    total_revenue: TotalRevenue


class WindowRevenue(msgspec.Struct, frozen=True, rename="camel"):
    """Revenue of one location in one window."""

    location_id: str
    total_revenue: TotalRevenue
    order_type: str
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

OtherHosts = Annotated[bool, Query(description="false: only the workers whose shards this server reads itself.")]
Time = Annotated[str | None, Query(description="Date and time in UTC, or epoch milliseconds.")]


@router.get("/orders/count", responses=answers(list[OrderCount]))
async def count_all(ask: Asking, query_other_hosts: OtherHosts = True) -> Response:
    """Number of orders per location, GENERAL then RESTAURANT."""
    return await _everything(ask, "count", tuple(KINDS), _typed_count, local=not query_other_hosts)


@router.get("/orders/count/{order_type}", responses=answers(list[OrderCount], OrderCount))
async def count_type(
    ask: Asking, order_type: str, location_id: str | None = None, query_other_hosts: OtherHosts = True
) -> Response:
    """Number of orders of one type per location, or of one location."""
    return await _type(ask, "count", order_type, _count, location_id, local=not query_other_hosts)


@router.get("/orders/revenue", responses=answers(list[OrderRevenue]))
async def revenue_all(ask: Asking, query_other_hosts: OtherHosts = True) -> Response:
    """Number and revenue of orders per location, GENERAL then RESTAURANT."""
    return await _everything(ask, "revenue", tuple(KINDS), _revenue, local=not query_other_hosts)


@router.get("/orders/revenue/{order_type}", responses=answers(list[OrderRevenue], OrderRevenue))
async def revenue_type(
    ask: Asking, order_type: str, location_id: str | None = None, query_other_hosts: OtherHosts = True
) -> Response:
    """Number and revenue of orders of one type per location, or of one location."""
    return await _type(ask, "revenue", order_type, _revenue, location_id, local=not query_other_hosts)


@router.get("/orders/windows/count", responses=answers(list[OrderCount]))
async def window_count_all(ask: Asking, from_time: Time = None, to_time: Time = None) -> Response:
    """Number of orders per location and window: all windows, or those that start in [from_time, to_time]."""
    within = _between(from_time, to_time)
    return await _everything(ask, "count_window", tuple(KINDS), _window_count, within)


@router.get("/orders/windows/count/{order_type}", responses=answers(list[OrderCount]))
async def window_count_type(ask: Asking, order_type: str, from_time: Time = None, to_time: Time = None) -> Response:
    """Number of orders of one type per location and window."""
    within = _between(from_time, to_time)
    return await _everything(ask, "count_window", (_valid(order_type),), _window_count, within)


@router.get("/orders/windows/revenue/{order_type}", responses=answers(list[WindowRevenue]))
async def window_revenue_type(ask: Asking, order_type: str, from_time: Time = None, to_time: Time = None) -> Response:
    """Number and revenue of orders of one type per location and window."""
    within = _between(from_time, to_time)
    return await _everything(ask, "revenue_window", (_valid(order_type),), _window_revenue, within)


@router.get("/metadata/all", responses=answers(list[Host]))
async def hosts(ask: Asking, request: Request) -> Response:
    """Where the workers can be asked, each address once."""
    pin = await ask.pin("general_orders_count", PIPELINE)
    return reply(list(dict.fromkeys(Host(*_address(worker, request)) for worker in pin.workers)))


@router.get("/metadata/{order_type}/{location_id}", responses=answers(KeyHost))
async def key_host(ask: Asking, request: Request, order_type: str, location_id: str) -> Response:
    """Where the owner of a key can be asked."""
    pin = await ask.pin(f"{_valid(order_type)}_count", PIPELINE)
    worker = pin.workers[owner(location_id, len(pin.workers))]
    return reply(KeyHost(*_address(worker, request), location_id))


def _valid(order_type: str) -> str:
    if order_type not in KINDS:
        raise UnknownOrderType("The order type is not known.", next_step=f"Use one of: {', '.join(KINDS)}.")
    return order_type


def _between(from_time: str | None, to_time: str | None) -> Range:
    return Range(start_from=parse_time("from_time", from_time), start_to=parse_time("to_time", to_time))


async def _type(
    ask: Access, store: str, order_type: str, form: Callable[[str, Entry], Any], location_id: str | None, *, local: bool
) -> Response:
    if location_id is None:
        return await _everything(ask, store, (_valid(order_type),), form, local=local)
    pin = await ask.pin(f"{_valid(order_type)}_{store}", PIPELINE)
    answer = await ask.reader.get(pin, location_id)
    if not answer.entries:
        raise NotFound(f"There are no {order_type} of this location.")
    return reply(form(KINDS[order_type], answer.entries[0]), provenance(answer))


async def _everything(
    ask: Access,
    store: str,
    order_types: tuple[str, ...],
    form: Callable[[str, Entry], Any],
    within: Range = EVERYTHING,
    *,
    local: bool = False,
) -> Response:
    pins = await _pins(ask, [f"{order_type}_{store}" for order_type in order_types])
    found: list[Answer] = await asyncio.gather(
        *(ask.reader.all(pin, within, workers=_here(pin.workers) if local else None) for pin in pins)
    )
    told = zip(order_types, found, strict=True)
    body = [form(KINDS[order_type], entry) for order_type, answer in told for entry in answer.entries]
    return reply(body, provenance(*found))


async def _pins(ask: Access, stores: list[str]) -> list[Pin]:
    """Both types' stores are of one job: what is answered together is of one cut."""
    pins = [await ask.pin(stores[0], PIPELINE)]
    for store in stores[1:]:
        pin = await ask.pin(store, PIPELINE)
        same = pin.store.job == pins[0].store.job
        pins.append(await ask.pin(store, PIPELINE, pins[0].cut.id) if same else pin)
    return pins


def _here(workers: Iterable[WorkerInfo]) -> list[WorkerInfo]:
    return [worker for worker in workers if not worker.port]


def _address(worker: WorkerInfo, request: Request) -> tuple[str, int]:
    """A worker without a server of its own is asked here, whatever the client calls this server."""
    if worker.port:
        return worker.host, worker.port
    host, port = request.scope["server"]
    return host, port


def _count(_order_type: str, entry: Entry) -> OrderCount:
    return OrderCount(entry.key, entry.value)


def _typed_count(order_type: str, entry: Entry) -> OrderCount:
    return OrderCount(entry.key, entry.value, order_type)


def _window_count(order_type: str, entry: Entry) -> OrderCount:
    return OrderCount(entry.key, entry.value, order_type, *_window(entry))


def _revenue(order_type: str, entry: Entry) -> OrderRevenue:
    return OrderRevenue(entry.key, order_type, _total(entry))


def _window_revenue(order_type: str, entry: Entry) -> WindowRevenue:
    return WindowRevenue(entry.key, _total(entry), order_type, *_window(entry))


def _total(entry: Entry) -> TotalRevenue:
    value = _REVENUE.decode(entry.value)
    return TotalRevenue(entry.key, value.running_order_count, value.running_revenue)


def _window(entry: Entry) -> tuple[str, str]:
    return time_text(entry.window_start), time_text(entry.window_end)
