"""Orders: split by type, counted and summed per location and window, joined with the location's address."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

import pytest
from pyspark.sql import SparkSession

from sluice.testing import TopologyTestDriver
from sluice.topology import load_pipeline
from tests.pipelines.conftest import PIPELINES
from tests.support.postgres import new_database

KINDS = ("general", "restaurant")
STORE: dict[str, Any] = {
    "locationId": "store_1234",
    "address": {
        "addressLine1": "1234 Street 1", "addressLine2": "", "city": "City1", "state": "State1", "zip": "12345",
    },
    "contactNum": "1234567890",
}  # fmt: skip


@pytest.fixture
def orders(session: SparkSession | None, server: str) -> Iterator[TopologyTestDriver]:
    """A driver in which the address of store_1234 is known."""
    database = new_database(server) if server else ""
    with TopologyTestDriver(
        load_pipeline(PIPELINES, "orders"), spark=session, database=database
    ) as driver:
        driver.pipe("stores", STORE, key="store_1234", timestamp=ms("08:00:00"))
        yield driver


def ms(clock: str) -> int:
    return round(
        1_000 * datetime.fromisoformat(f"2022-12-05T{clock}").replace(tzinfo=UTC).timestamp()
    )


def order(
    kind: str, amount: float, clock: str = "08:55:27", location: str = "store_1234"
) -> dict[str, Any]:
    """An order of bananas and a charger."""
    return {
        "orderId": 12345,
        "locationId": location,
        "finalAmount": amount,
        "orderType": kind.upper(),
        "orderLineItems": [
            {"item": "Bananas", "count": 2, "amount": 2.00},
            {"item": "Iphone Charger", "count": 1, "amount": 25.00},
        ],
        "orderedDateTime": f"2022-12-05T{clock}",
    }


def values(driver: TopologyTestDriver, topic: str) -> list[tuple[Any, Any]]:
    """Key and value of the topic's new records."""
    return [(record.key, record.value) for record in driver.read(topic)]


def test_orders_are_split_by_type_and_only_their_amount_is_published(
    orders: TopologyTestDriver,
) -> None:
    orders.pipe("orders", order("general", 27.00))
    orders.pipe("orders", order("restaurant", 15.00, location="store_4567"))
    assert values(orders, "general_orders") == [
        ("store_1234", {"locationId": "store_1234", "finalAmount": 27.0})
    ]
    assert values(orders, "restaurant_orders") == [
        ("store_4567", {"locationId": "store_4567", "finalAmount": 15.0})
    ]


def test_each_type_has_a_running_count_and_revenue_per_location(orders: TopologyTestDriver) -> None:
    orders.pipe("orders", order("general", 27.00))
    orders.pipe("orders", order("general", 0.10, location="store_4567"))
    orders.pipe("orders", order("restaurant", 15.00))
    assert orders.store("general_orders_count") == {"store_1234": 1, "store_4567": 1}

    orders.pipe("orders", order("general", 0.20, location="store_4567"))
    assert orders.store("general_orders_count") == {"store_1234": 1, "store_4567": 2}, (
        "the next batch adds to it"
    )
    assert orders.store("general_orders_revenue") == {
        "store_1234": {"runningOrderCount": 1, "runningRevenue": 27.0},
        "store_4567": {"runningOrderCount": 2, "runningRevenue": 0.3},
    }, "money is decimal: 0.10 + 0.20 is 0.30"
    assert orders.store("restaurant_orders_count") == {"store_1234": 1}
    assert orders.store("restaurant_orders_revenue") == {
        "store_1234": {"runningOrderCount": 1, "runningRevenue": 15.0}
    }


@pytest.mark.parametrize("kind", KINDS)
def test_both_are_kept_per_15_seconds_of_the_orders_own_time(
    orders: TopologyTestDriver, kind: str
) -> None:
    for amount, clock in ((27.00, "08:55:15"), (3.00, "08:55:29.999"), (5.00, "08:55:30")):
        orders.pipe("orders", order(kind, amount, clock), timestamp=ms("23:00:00"))
    first = ("store_1234", ms("08:55:15"), ms("08:55:30"))
    second = ("store_1234", ms("08:55:30"), ms("08:55:45"))
    assert orders.store(f"{kind}_orders_count_window") == {first: 2, second: 1}
    assert orders.store(f"{kind}_orders_revenue_window") == {
        first: {"runningOrderCount": 2, "runningRevenue": 30.0},
        second: {"runningOrderCount": 1, "runningRevenue": 5.0},
    }


def test_a_time_without_a_zone_is_utc_and_one_with_a_zone_keeps_it(
    orders: TopologyTestDriver,
) -> None:
    orders.pipe("orders", order("general", 1.00, "08:55:27"))
    orders.pipe("orders", order("general", 1.00, "14:25:27+05:30"))
    assert orders.store("general_orders_count_window") == {
        ("store_1234", ms("08:55:15"), ms("08:55:30")): 2
    }


def test_an_order_more_than_15_seconds_late_changes_no_window(orders: TopologyTestDriver) -> None:
    window = ("store_1234", ms("08:55:15"), ms("08:55:30"))
    for clock in ("08:55:27", "08:55:44.999", "08:55:28"):
        orders.pipe("orders", order("general", 1.00, clock))
    assert orders.store("general_orders_count_window")[window] == 2, (
        "its window is open until 08:55:45"
    )

    for clock in ("08:55:45", "08:55:29"):
        orders.pipe("orders", order("general", 1.00, clock))
    assert orders.store("general_orders_count_window")[window] == 2
    assert orders.counts()["late/general_orders_count_window"] == 1
    assert orders.store("general_orders_count") == {"store_1234": 5}, (
        "without a window nothing is late"
    )


@pytest.mark.parametrize("kind", KINDS)
def test_revenue_is_published_with_the_address_of_its_location(
    orders: TopologyTestDriver, kind: str
) -> None:
    def total(count: int, revenue: float) -> dict[str, Any]:
        return {"locationId": "store_1234", "runnuingOrderCount": count, "runningRevenue": revenue}

    orders.pipe("orders", order(kind, 27.00))
    orders.pipe("orders", order(kind, 15.00, location="store_without_address"))
    joined = [("store_1234", {"totalRevenue": total(1, 27.0), "store": STORE})]
    assert values(orders, f"{kind}_orders_revenue") == joined, (
        "an inner join: a location without an address is left out"
    )

    moved = STORE | {"contactNum": "0987654321"}
    orders.pipe("stores", moved, key="store_1234")
    orders.pipe("orders", order(kind, 3.00))
    assert values(orders, f"{kind}_orders_revenue") == [
        ("store_1234", {"totalRevenue": total(2, 30.0), "store": moved})
    ]


def test_an_order_that_violates_the_contract_is_a_dead_letter(orders: TopologyTestDriver) -> None:
    wrong = [
        order("takeaway", 27.00),
        order("general", 27.001),
        order("general", 27.00) | {"locationId": None},
    ]
    for each in (*wrong, order("general", 27.00)):
        orders.pipe("orders", each)
    assert orders.store("general_orders_count") == {"store_1234": 1}
    assert [(one.value, one.headers["sluice.reason"]) for one in orders.dead_letters()] == [
        (wrong[0], "contract"),
        (wrong[1], "digits"),
        (wrong[2], "contract"),
    ]
