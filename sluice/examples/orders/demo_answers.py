"""The queries of the demo, and whether the answers match the topic."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

from confluent_kafka import Message

from sluice.examples.orders import START_MS, STORE_1234, Totals
from sluice.testing.airflow import Airflow
from sluice.topics import read_topic, text_headers

KINDS = {"general_orders": "GENERAL", "restaurant_orders": "RESTAURANT"}
_FROM = datetime.fromtimestamp(START_MS // 15_000 * 15, UTC)


@dataclass(frozen=True)
class Question:
    """A path of the REST view, and the expected answer if it is known."""

    path: str
    expected: Any = None

    def is_right(self, answer: Any) -> bool:
        """Whether the answer is the expected one."""
        return self.expected is None or self.expected == answer


def questions(totals: Totals) -> list[Question]:
    """A few queries about store_1234, with the answers that the topic's records imply."""
    count, revenue = totals.running["GENERAL", STORE_1234]
    answer = {
        "locationId": STORE_1234,
        "orderType": "GENERAL",
        "totalRevenue": {"locationId": STORE_1234, "runnuingOrderCount": count, "runningRevenue": revenue},
    }
    window = _FROM.strftime("%Y-%m-%dT%H:%M:%SZ")
    return [
        Question(
            f"/v1/orders/count/general_orders?location_id={STORE_1234}", {"locationId": STORE_1234, "orderCount": count}
        ),
        Question(f"/v1/orders/revenue/general_orders?location_id={STORE_1234}", answer),
        Question(f"/v1/orders/windows/count?from_time={window}&to_time={window}"),
        Question(f"/v1/metadata/general_orders/{STORE_1234}"),
        Question(f"/sluice/v1/stores/restaurant_orders_revenue/keys/{STORE_1234}"),
    ]


def served(airflow: Airflow) -> dict[str, dict[Any, Any]]:
    """The eight stores as the orders view returns them, in the shape of `Totals.stores`."""
    stores: dict[str, dict[Any, Any]] = {}
    for prefix in KINDS:
        stores[f"{prefix}_count"] = _by_location(airflow, f"/v1/orders/count/{prefix}", _count)
        stores[f"{prefix}_revenue"] = _by_location(airflow, f"/v1/orders/revenue/{prefix}", _revenue)
        stores[f"{prefix}_count_window"] = _by_window(airflow, f"/v1/orders/windows/count/{prefix}", _count)
        stores[f"{prefix}_revenue_window"] = _by_window(airflow, f"/v1/orders/windows/revenue/{prefix}", _revenue)
    return stores


def differences(expected: Mapping[str, dict[Any, Any]], actual: Mapping[str, dict[Any, Any]]) -> dict[str, int]:
    """Per store, the number of keys whose values differ or are missing on one side."""
    return {
        store: sum(rows.get(key) != actual[store].get(key) for key in rows.keys() | actual[store].keys())
        for store, rows in expected.items()
    }


def dead_letters(kafka: Mapping[str, str], topic: str = "orders_dead_letters") -> Counter[str]:
    """The number of dead letters by reason."""
    reasons: Counter[str] = Counter()
    for message in read_topic(kafka, topic):
        reasons[letter_headers(message).get("sluice.reason", "none")] += 1
    return reasons


def letter_headers(letter: Message) -> dict[str, str]:
    """The headers of a dead letter as text."""
    return text_headers(letter)


def _count(row: dict[str, Any]) -> int:
    return int(row["orderCount"])


def _revenue(row: dict[str, Any]) -> tuple[int, Decimal]:
    total = row["totalRevenue"]
    return int(total["runnuingOrderCount"]), Decimal(total["runningRevenue"])


def _by_location(airflow: Airflow, path: str, value: Callable[[dict[str, Any]], Any]) -> dict[Any, Any]:
    return {row["locationId"]: value(row) for row in airflow.json(path)}


def _by_window(airflow: Airflow, path: str, value: Callable[[dict[str, Any]], Any]) -> dict[Any, Any]:
    return {(row["locationId"], _ms(row["startWindow"])): value(row) for row in airflow.json(path)}


def _ms(time: str | int) -> int:
    if isinstance(time, int):
        return time
    when = datetime.fromisoformat(time)
    return round((when if when.tzinfo else when.replace(tzinfo=UTC)).timestamp() * 1000)
