"""Retail orders: split by type, counted and summed per store, and joined with the store's address."""

from datetime import datetime
from typing import Literal

from msgspec import Struct

from sluice import Decimal2, Pipeline, tumbling


class LineItem(Struct):
    """One line of an order."""

    item: str
    count: int
    amount: Decimal2


class Order(Struct):
    """An order as sent by the shops, keyed by location."""

    orderId: int
    locationId: str
    finalAmount: Decimal2
    orderType: Literal["GENERAL", "RESTAURANT"]
    orderLineItems: list[LineItem]
    orderedDateTime: datetime


class Address(Struct):
    """A store's address."""

    addressLine1: str
    addressLine2: str
    city: str
    state: str
    zip: str


class Store(Struct):
    """A store of the retailer."""

    locationId: str
    address: Address
    contactNum: str


pipeline = Pipeline("orders", workers=4)
orders = pipeline.stream("orders", value=Order, key="locationId", event_time="orderedDateTime")
stores = pipeline.global_table("stores", value=Store, key="locationId")

for kind in ("general", "restaurant"):
    of_kind = orders.filter(f"orderType = '{kind.upper()}'")
    of_kind.select("locationId", "finalAmount").to(f"{kind}_orders")

    by_store = of_kind.group_by("locationId")
    by_store.count(store=f"{kind}_orders_count")
    revenue = by_store.aggregate(
        store=f"{kind}_orders_revenue",
        runningOrderCount="count(*)",
        runningRevenue="sum(finalAmount)",
    )
    revenue.join(stores).select(
        totalRevenue={
            "locationId": "_key",
            "runnuingOrderCount": "left.runningOrderCount",
            "runningRevenue": "left.runningRevenue",
        },
        store="right",
    ).to(f"{kind}_orders_revenue")

    windows = by_store.windowed_by(tumbling("15 seconds", grace="15 seconds"))
    windows.count(store=f"{kind}_orders_count_window")
    windows.aggregate(
        store=f"{kind}_orders_revenue_window",
        runningOrderCount="count(*)",
        runningRevenue="sum(finalAmount)",
    )
