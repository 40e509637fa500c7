"""A client of the REST view: `Client`, and `AsyncClient` with the same methods to be awaited.

    with Client("http://127.0.0.1:8080", user="admin", password=...) as client:
        client.get("general_orders_count", "store_1234").value

Numbers with a point come as Decimal, with every digit they were published with.
"""

from sluice.client.answers import Change, Count, Entries, Entry, Group, Groups, Snapshot, Store, Worker
from sluice.client.awaited import AsyncClient
from sluice.client.blocking import Client

__all__ = [
    "AsyncClient",
    "Change",
    "Client",
    "Count",
    "Entries",
    "Entry",
    "Group",
    "Groups",
    "Snapshot",
    "Store",
    "Worker",
]  # fmt: skip
