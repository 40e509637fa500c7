"""Clients of the REST API: `Client`, and `AsyncClient` with the same methods as coroutines.

    with Client("http://127.0.0.1:8080", user="admin", password=...) as client:
        client.get("general_orders_count", "store_1234").value

Numbers with a decimal point are `Decimal`, with every digit that was published.
"""

from sluice.answers import (
    Change,
    ChangedKey,
    Count,
    Entries,
    Entry,
    Group,
    Groups,
    Snapshot,
    Store,
    WorkerStatus,
)
from sluice.client.asynchronous import AsyncClient
from sluice.client.blocking import Client
from sluice.client.queries import RangeParameters, ReadPoint

__all__ = [
    "AsyncClient",
    "Change",
    "ChangedKey",
    "Client",
    "Count",
    "Entries",
    "Entry",
    "Group",
    "Groups",
    "RangeParameters",
    "ReadPoint",
    "Snapshot",
    "Store",
    "WorkerStatus",
]
