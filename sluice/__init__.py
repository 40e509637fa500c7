"""Stream processing and queryable state for Python teams who run Airflow, Spark and Kafka."""

from typing import TYPE_CHECKING, Any

from sluice.errors import EngineError, QueryError, SettingsError, SluiceError, StateError, TopologyError
from sluice.operators.processor import Context, Processor, Record, Store, Timer
from sluice.topology import (
    Column,
    Decimal2,
    Digits,
    Duration,
    GlobalTable,
    GroupedStream,
    GroupedTable,
    JoinWindow,
    Pipeline,
    Processed,
    Serde,
    SessionWindow,
    SlidingWindow,
    Stream,
    Table,
    Window,
    WindowedStream,
    hopping,
    session,
    sliding,
    struct,
    tumbling,
    within,
)

if TYPE_CHECKING:
    from sluice.client import AsyncClient, Client

__all__ = [
    "AsyncClient",
    "Client",
    "Column",
    "Context",
    "Decimal2",
    "Digits",
    "Duration",
    "EngineError",
    "GlobalTable",
    "GroupedStream",
    "GroupedTable",
    "JoinWindow",
    "Pipeline",
    "Processed",
    "Processor",
    "QueryError",
    "Record",
    "Serde",
    "SessionWindow",
    "SettingsError",
    "SlidingWindow",
    "SluiceError",
    "StateError",
    "Store",
    "Stream",
    "Table",
    "Timer",
    "TopologyError",
    "Window",
    "WindowedStream",
    "hopping",
    "session",
    "sliding",
    "struct",
    "tumbling",
    "within",
]


def __getattr__(name: str) -> Any:
    # A pipeline's file imports this package on every executor, which does not need an HTTP client.
    if name in ("AsyncClient", "Client"):
        from sluice import client

        return getattr(client, name)
    raise AttributeError(name)
