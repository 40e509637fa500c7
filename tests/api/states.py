"""A small published state of the orders pipeline with known values."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime
from typing import Any

from sluice.state.model import NO_WINDOW
from sluice.state.shard.row_tuples import Row
from tests.support.states import States

TOPOLOGY = "pipeline orders\n  stream orders\n    store general_orders_count"
PICTURE = (
    '<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 420 60" width="420" height="60" font-family="sans-serif">'
    '<rect x="10" y="10" width="150" height="40" rx="8" fill="#dbeafe"/><text x="24" y="35">stream orders</text>'
    '<path d="M160 30H230" stroke="#94a3b8"/><rect x="230" y="10" width="180" height="40" rx="8" fill="#dcfce7"/>'
    '<text x="240" y="35">store general_orders_count</text></svg>'
)
KINDS = ("general", "restaurant")
STORE = "STRUCT<locationId: STRING, address: STRUCT<city: STRING>, longitude: DOUBLE>"

Orders = dict[str, tuple[int, str]]
"""Location → number of orders, revenue as text."""


def orders_states(database: str, workers: int = 2, ledger_at: str = "") -> States:
    """The orders pipeline before its first snapshot: its eight stores and the global table."""
    states = States(database, workers=workers, ledger_at=ledger_at)
    stores = [states.store("stores", "global", group_id=4, value=STORE)]
    for number, kind in enumerate(KINDS):
        revenue = "STRUCT<runningOrderCount: BIGINT, runningRevenue: DECIMAL(38,2)>"
        windows: dict[str, Any] = {
            "kind": "window",
            "group_id": number + 2,
            "window_ms": 15_000,
            "grace_ms": 15_000,
        }
        stores += [
            states.store(f"{kind}_orders_count", group_id=number),
            states.store(f"{kind}_orders_revenue", group_id=number, store_column=1, value=revenue),
            states.store(f"{kind}_orders_count_window", **windows),
            states.store(f"{kind}_orders_revenue_window", store_column=1, value=revenue, **windows),
        ]
    states.stores = tuple(stores)
    states.ledger.generations.register(states.info(description=TOPOLOGY, picture=PICTURE))
    return states


def totals(kind: str, orders: Orders) -> Iterable[Row]:
    """Rows of the running count and revenue."""
    for location, (count, revenue) in orders.items():
        yield KINDS.index(kind), location, NO_WINDOW, NO_WINDOW, _value(count, revenue)


def windows(kind: str, location: str, orders: dict[str, tuple[int, str]]) -> Iterable[Row]:
    """Rows of the windows that start at the given times."""
    for start, (count, revenue) in orders.items():
        ms = round(datetime.fromisoformat(start).replace(tzinfo=UTC).timestamp() * 1_000)
        yield KINDS.index(kind) + 2, location, ms, ms + 15_000, _value(count, revenue)


def _value(count: int, revenue: str) -> str:
    return f'[{count},{{"runningOrderCount":{count},"runningRevenue":{revenue}}}]'
