"""The orders example: samples, expected results, and queries."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from decimal import Decimal
from typing import Any

from sluice.examples.example import Example, Results, Sample, canonical, decoded
from sluice.examples.orders.expected_totals import WINDOW_MS, totals
from sluice.examples.orders.records import START_MS, STORE_1234, orders, stores
from sluice.examples.orders.sample_topics import OUTPUTS, PARTITIONS

_STORES = 50
_BAD_SHARE = 0.01


def samples(count: int, seed: int, start_ms: int) -> Iterator[Sample]:
    """The stores, then `count` orders. One in a hundred orders is invalid."""
    for key, value in stores(_STORES):
        yield Sample("stores", key, value, start_ms)
    for order in orders(count, _STORES, seed, _BAD_SHARE, start_ms=start_ms):
        yield Sample("orders", order.key, order.value, order.timestamp_ms)


def answers(count: int, revenue: Decimal) -> dict[str, Any]:
    """Path → expected answer about the shop store_1234, given the number and revenue of its general orders."""
    total = {"locationId": STORE_1234, "runnuingOrderCount": count, "runningRevenue": revenue}
    return {
        f"/v1/orders/count/general_orders?location_id={STORE_1234}": {"locationId": STORE_1234, "orderCount": count},
        f"/v1/orders/revenue/general_orders?location_id={STORE_1234}": {
            "locationId": STORE_1234, "orderType": "GENERAL", "totalRevenue": total,
        },
    }  # fmt: skip


def expected(records: Iterable[Sample]) -> Results:
    """The eight stores, the amounts, and each shop's revenue with its address.

    None of the sample orders is late.
    """
    addresses: dict[str, Any] = {}
    values: list[tuple[int, bytes | None]] = []
    for record in records:
        if record.topic == "stores":
            addresses[str(record.key)] = decoded(record.value)
        else:
            values.append((0, record.value))
    expected_totals = totals(values)
    results = Results(dead_letters=expected_totals.dead_letters)
    for (kind, location, amount), count in expected_totals.amounts.items():
        value = {"locationId": location, "finalAmount": amount}
        results.streams.setdefault(f"{kind.lower()}_orders", Counter())[
            location, canonical(value)
        ] += count
    for name, rows in expected_totals.stores().items():
        is_revenue = "revenue" in name
        for key, total in rows.items():
            value = (
                {"runningOrderCount": total[0], "runningRevenue": total[1]} if is_revenue else total
            )
            place = (key[0], key[1], key[1] + WINDOW_MS) if name.endswith("_window") else key
            results.stores.setdefault(name, {})[place] = value
        if name.endswith("_revenue"):
            table: dict[Any, Any] = {}
            for location, (number, revenue) in rows.items():
                total = {
                    "locationId": location,
                    "runnuingOrderCount": number,
                    "runningRevenue": revenue,
                }
                table[location] = {"totalRevenue": total, "store": addresses[location]}
            results.tables[name] = table
    return results


def _answers(results: Results) -> Mapping[str, Any]:
    revenue = results.stores["general_orders_revenue"][STORE_1234]
    return answers(revenue["runningOrderCount"], revenue["runningRevenue"])


_WINDOW = "2022-12-05T08:55:15Z"

EXAMPLE = Example(
    name="orders",
    topics={"stores": 1, "orders": PARTITIONS},
    outputs=dict.fromkeys(OUTPUTS, PARTITIONS),
    count=10_000,
    samples=samples,
    expected=expected,
    paths=(
        *answers(0, Decimal(0)),
        f"/v1/orders/windows/count?from_time={_WINDOW}&to_time={_WINDOW}",
        f"/v1/metadata/general_orders/{STORE_1234}",
        f"/sluice/v1/stores/restaurant_orders_revenue/keys/{STORE_1234}",
    ),
    start_ms=START_MS,
    answers=_answers,
)
