"""Joins of two streams without a window, declared as tables: either side may come first, however late the other is."""

from __future__ import annotations

import random
from typing import Any

import pytest

from sluice import Pipeline
from sluice.testing import TopologyTestDriver

DAY = 86_400_000


def order_payments(records: list[tuple[str, str, int, int]]) -> dict[str, Any]:
    """What each order's row must be: its last amount, and all its payments in order."""
    orders: dict[str, int] = {}
    payments: dict[str, list[int]] = {}
    for topic, key, value, _ in records:
        if topic == "orders":
            orders[key] = value
        else:
            payments.setdefault(key, []).append(value)
    return {
        key: {"left": orders[key], "right": {"paid": payments[key]}}
        for key in orders.keys() & payments.keys()
    }


@pytest.mark.parametrize("seed", [1, 2])
def test_either_side_may_come_first(seed: int) -> None:
    chance = random.Random(seed)
    records = [
        (
            chance.choice(("orders", "payments")),
            str(chance.randrange(6)),
            chance.randrange(100),
            day * DAY,
        )
        for day in range(40)
    ]
    pipeline = Pipeline("orders", workers=3)
    orders = pipeline.stream("orders", value=int).to_table(store="open_orders")
    payments = pipeline.stream("payments", value=int).group_by_key()
    orders.join(payments.aggregate(store="payments_of_order", paid="collect_list(value)")).to(
        "paid_orders"
    )
    results = []
    for cut in (0.0, 0.3, 1.0):
        with TopologyTestDriver(pipeline) as driver:
            for topic, key, value, at in records:
                driver.pipe(topic, value, key=key, timestamp=at)
                if chance.random() < cut:
                    driver.commit()
            results.append(
                [(each.key, each.value, each.timestamp) for each in driver.output("paid_orders")]
            )
    assert results[0] == results[1] == results[2]
    assert {key: value for key, value, _ in results[0]} == order_payments(records)


def test_expired_rows_bound_the_state() -> None:
    pipeline = Pipeline("orders", workers=2)
    orders = pipeline.stream("orders", value=int).to_table(
        store="open_orders", expires_after="30 days"
    )
    payments = pipeline.stream("payments", value=int).to_table(
        store="payments", expires_after="30 days"
    )
    orders.join(payments).to("paid_orders")
    with TopologyTestDriver(pipeline) as driver:
        driver.pipe("payments", 5, key="1", timestamp=0)
        driver.pipe("orders", 5, key="1", timestamp=20 * DAY)
        driver.pipe("payments", 7, key="2", timestamp=31 * DAY)
        assert [(each.key, each.value) for each in driver.output("paid_orders")] == [
            ("1", {"left": 5, "right": 5}),
            ("1", None),
        ]
        driver.pipe("orders", 0, key="3", timestamp=60 * DAY)
        driver.pipe("payments", 0, key="3", timestamp=90 * DAY)
        assert driver.store("open_orders").keys() == driver.store("payments").keys() == {"3"}
