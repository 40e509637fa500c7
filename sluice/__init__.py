"""Stream processing and queryable state for Python teams who run Airflow, Spark and Kafka."""

from typing import TYPE_CHECKING, Any

from sluice.operators.processor import Context, Firing, Processor, Record
from sluice.topology import (
    Decimal2,
    Digits,
    Pipeline,
    Serde,
    Stream,
    Table,
    hopping,
    session,
    sliding,
    tumbling,
    within,
)

if TYPE_CHECKING:
    from sluice.client import AsyncClient, Client

__all__ = [
    "AsyncClient",
    "Client",
    "Context",
    "Decimal2",
    "Digits",
    "Firing",
    "Pipeline",
    "Processor",
    "Record",
    "Serde",
    "Stream",
    "Table",
    "hopping",
    "session",
    "sliding",
    "tumbling",
    "within",
]


def __getattr__(name: str) -> Any:
    # A pipeline's file imports this package on every executor, which needs no client of HTTP.
    if name in ("AsyncClient", "Client"):
        from sluice import client

        return getattr(client, name)
    raise AttributeError(name)
