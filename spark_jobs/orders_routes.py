"""The orders view, with the paths and bodies that existing clients use."""

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from types import MappingProxyType
from typing import Annotated, Literal, TypeVar

from msgspec import UNSET, Meta, Raw, Struct, UnsetType

from sluice import Routes, Stores
from sluice.errors import NotFound, QueryError
from sluice.query import Entry
from sluice.query.time_texts import parse_time, time_text

Kind = Literal["GENERAL", "RESTAURANT"]
KINDS: dict[str, Kind] = {"general_orders": "GENERAL", "restaurant_orders": "RESTAURANT"}
"""`order_type` of a path → `orderType` of an order."""


class UnknownOrderType(QueryError):
    """The path has an order type that does not exist."""

    title = "Unknown order type"
    extensions = MappingProxyType({"additionalInfo": "Please pass a Valid Order Type"})


class OrderCount(Struct, frozen=True, rename="camel"):
    """Number of orders of a location. Some routes add the order type, or the window."""

    location_id: str
    order_count: Raw
    order_type: Kind | UnsetType = UNSET
    start_window: str | UnsetType = UNSET
    end_window: str | UnsetType = UNSET


class TotalRevenue(Struct, frozen=True, rename="camel"):
    """Number and revenue of orders. Existing clients require the spelling `runnuingOrderCount`."""

    location_id: str
    runnuing_order_count: Raw
    running_revenue: Raw


class OrderRevenue(Struct, frozen=True, rename="camel"):
    """Revenue of a location."""

    location_id: str
    order_type: Kind
    total_revenue: TotalRevenue


class WindowRevenue(Struct, frozen=True, rename="camel"):
    """Revenue of a location in a window."""

    location_id: str
    total_revenue: TotalRevenue
    order_type: Kind
    start_window: str
    end_window: str


class Host(Struct, frozen=True):
    """Address of a worker."""

    host: str
    port: int


class KeyHost(Struct, frozen=True):
    """A key, and the address of the worker that owns it."""

    host: str
    port: int
    key: str


class Revenue(Struct, frozen=True, rename="camel"):
    """A value of the revenue stores."""

    running_order_count: Raw
    running_revenue: Raw


OrderType = Annotated[
    str,
    Meta(description="A type of orders.", max_length=200, extra_json_schema={"enum": list(KINDS)}),
]
OtherHosts = Annotated[
    bool, Meta(description="If false, read only workers whose shards this server opens itself.")
]
Time = (
    Annotated[str, Meta(description="Date and time in UTC, or epoch milliseconds.", max_length=100)]
    | None
)
Row = TypeVar("Row")

routes = Routes("orders")


@routes.get("/orders/count")
async def count_all(stores: Stores, query_other_hosts: OtherHosts = True) -> list[OrderCount]:
    """Return the number of orders per location, GENERAL then RESTAURANT."""
    return await _list(stores, KINDS, "count", _typed_count, here=not query_other_hosts)


@routes.get("/orders/count/{order_type}")
async def count_type(
    stores: Stores,
    order_type: OrderType,
    location_id: str | None = None,
    query_other_hosts: OtherHosts = True,
) -> list[OrderCount] | OrderCount:
    """Return the number of orders of one type, for each location or for a single location."""
    if location_id is not None:
        return await _one(stores, order_type, "count", location_id, _count)
    return await _list(stores, [order_type], "count", _count, here=not query_other_hosts)


@routes.get("/orders/revenue")
async def revenue_all(stores: Stores, query_other_hosts: OtherHosts = True) -> list[OrderRevenue]:
    """Return the number and revenue of orders per location, GENERAL then RESTAURANT."""
    return await _list(stores, KINDS, "revenue", _revenue, here=not query_other_hosts)


@routes.get("/orders/revenue/{order_type}")
async def revenue_type(
    stores: Stores,
    order_type: OrderType,
    location_id: str | None = None,
    query_other_hosts: OtherHosts = True,
) -> list[OrderRevenue] | OrderRevenue:
    """Return the number and revenue of orders of one type, for each location or for one."""
    if location_id is not None:
        return await _one(stores, order_type, "revenue", location_id, _revenue)
    return await _list(stores, [order_type], "revenue", _revenue, here=not query_other_hosts)


@routes.get("/orders/windows/count")
async def window_count_all(
    stores: Stores,
    from_time: Time = None,
    to_time: Time = None,
    query_other_hosts: OtherHosts = True,
) -> list[OrderCount]:
    """Return the number of orders per location and window that starts in [from_time, to_time]."""
    times = _times(from_time, to_time)
    return await _list(
        stores, KINDS, "count_window", _window_count, times, here=not query_other_hosts
    )


@routes.get("/orders/windows/count/{order_type}")
async def window_count_type(
    stores: Stores,
    order_type: OrderType,
    from_time: Time = None,
    to_time: Time = None,
    query_other_hosts: OtherHosts = True,
) -> list[OrderCount]:
    """Return the number of orders of one type per location and window."""
    times = _times(from_time, to_time)
    return await _list(
        stores, [order_type], "count_window", _window_count, times, here=not query_other_hosts
    )


@routes.get("/orders/windows/revenue/{order_type}")
async def window_revenue_type(
    stores: Stores,
    order_type: OrderType,
    from_time: Time = None,
    to_time: Time = None,
    query_other_hosts: OtherHosts = True,
) -> list[WindowRevenue]:
    """Return the number and revenue of orders of one type per location and window."""
    times = _times(from_time, to_time)
    return await _list(
        stores, [order_type], "revenue_window", _window_revenue, times, here=not query_other_hosts
    )


@routes.get("/metadata/all", etag=False)
async def hosts(stores: Stores) -> list[Host]:
    """Return the addresses of the workers, without duplicates."""
    addresses = await stores.workers("general_orders_count")
    return [Host(address.host, address.port) for address in dict.fromkeys(addresses)]


@routes.get("/metadata/{order_type}/{location_id:path}", etag=False)
async def key_host(stores: Stores, order_type: OrderType, location_id: str) -> KeyHost:
    """Return the address of the worker that owns a key."""
    address = await stores.owner(f"{_valid(order_type)}_count", location_id)
    return KeyHost(address.host, address.port, location_id)


async def _one(
    stores: Stores,
    order_type: str,
    store: str,
    location_id: str,
    to_row: Callable[[Kind, Entry], Row],
) -> Row:
    entry = await stores.get(f"{_valid(order_type)}_{store}", location_id)
    if entry is None:
        raise NotFound(f"This location has no {order_type}.")
    return to_row(KINDS[order_type], entry)


async def _list(
    stores: Stores,
    order_types: Iterable[str],
    store: str,
    to_row: Callable[[Kind, Entry], Row],
    times: tuple[int | None, int | None] = (None, None),
    *,
    here: bool,
) -> list[Row]:
    valid = [_valid(order_type) for order_type in order_types]
    start, end = times

    async def read() -> list[Row]:
        queries: list[Awaitable[list[Entry]]] = []
        for name in valid:
            queries.append(stores.all(f"{name}_{store}", start=start, end=end, here=here))
        answers = await asyncio.gather(*queries)
        return await asyncio.to_thread(to_rows, answers)

    def to_rows(answers: list[list[Entry]]) -> list[Row]:
        rows: list[Row] = []
        for name, entries in zip(valid, answers, strict=True):
            for entry in entries:
                rows.append(to_row(KINDS[name], entry))
        return rows

    return await stores.cached(read)


def _valid(order_type: str) -> str:
    if order_type not in KINDS:
        raise UnknownOrderType(
            "The order type is not known.", next_step=f"Use one of: {', '.join(KINDS)}."
        )
    return order_type


def _times(from_time: str | None, to_time: str | None) -> tuple[int | None, int | None]:
    return parse_time("from_time", from_time), parse_time("to_time", to_time)


def _count(_kind: Kind, entry: Entry) -> OrderCount:
    return OrderCount(entry.key, entry.value)


def _typed_count(kind: Kind, entry: Entry) -> OrderCount:
    return OrderCount(entry.key, entry.value, kind)


def _window_count(kind: Kind, entry: Entry) -> OrderCount:
    return OrderCount(entry.key, entry.value, kind, *_window(entry))


def _revenue(kind: Kind, entry: Entry) -> OrderRevenue:
    return OrderRevenue(entry.key, kind, _total(entry))


def _window_revenue(kind: Kind, entry: Entry) -> WindowRevenue:
    return WindowRevenue(entry.key, _total(entry), kind, *_window(entry))


def _total(entry: Entry) -> TotalRevenue:
    value = entry.decode(Revenue)
    return TotalRevenue(entry.key, value.running_order_count, value.running_revenue)


def _window(entry: Entry) -> tuple[str, str]:
    return time_text(entry.window_start), time_text(entry.window_end)
