"""The stores of the orders pipeline as the REST API returns them, and its dead letters."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

from sluice.kafka.topics import read_topic, text_headers
from sluice.local.airflow_client import Airflow

KINDS = {"general_orders": "GENERAL", "restaurant_orders": "RESTAURANT"}


def served(airflow: Airflow) -> dict[str, dict[Any, Any]]:
    """The eight stores as the orders view returns them, in the form of `Totals.stores`."""
    stores: dict[str, dict[Any, Any]] = {}
    for prefix in KINDS:
        stores[f"{prefix}_count"] = _by_location(airflow, f"/v1/orders/count/{prefix}", _count)
        stores[f"{prefix}_revenue"] = _by_location(
            airflow, f"/v1/orders/revenue/{prefix}", _revenue
        )
        stores[f"{prefix}_count_window"] = _by_window(
            airflow, f"/v1/orders/windows/count/{prefix}", _count
        )
        stores[f"{prefix}_revenue_window"] = _by_window(
            airflow, f"/v1/orders/windows/revenue/{prefix}", _revenue
        )
    return stores


def differences(
    expected: Mapping[str, dict[Any, Any]], actual: Mapping[str, dict[Any, Any]]
) -> dict[str, int]:
    """Per store, the number of keys whose values differ or are missing on one side."""
    return {
        store: sum(
            rows.get(key) != actual[store].get(key) for key in rows.keys() | actual[store].keys()
        )
        for store, rows in expected.items()
    }


def dead_letters(kafka: Mapping[str, str], topic: str = "orders_dead_letters") -> Counter[str]:
    """The number of dead letters by reason."""
    reasons: Counter[str] = Counter()
    for message in read_topic(kafka, topic):
        reasons[text_headers(message).get("sluice.reason", "none")] += 1
    return reasons


def _count(row: dict[str, Any]) -> int:
    return int(row["orderCount"])


def _revenue(row: dict[str, Any]) -> tuple[int, Decimal]:
    total = row["totalRevenue"]
    return int(total["runnuingOrderCount"]), Decimal(total["runningRevenue"])


def _by_location(
    airflow: Airflow, path: str, value: Callable[[dict[str, Any]], Any]
) -> dict[Any, Any]:
    return {row["locationId"]: value(row) for row in airflow.json(path)}


def _by_window(
    airflow: Airflow, path: str, value: Callable[[dict[str, Any]], Any]
) -> dict[Any, Any]:
    return {(row["locationId"], _ms(row["startWindow"])): value(row) for row in airflow.json(path)}


def _ms(time: str | int) -> int:
    if isinstance(time, int):
        return time
    when = datetime.fromisoformat(time)
    return round((when if when.tzinfo else when.replace(tzinfo=UTC)).timestamp() * 1000)
