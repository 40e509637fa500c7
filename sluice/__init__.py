"""Stream processing and queryable state for Python teams who run Airflow, Spark and Kafka."""

from typing import TYPE_CHECKING, Any

from sluice.errors import (
    EngineError,
    QueryError,
    SettingsError,
    SluiceError,
    StateError,
    TopologyError,
)
from sluice.operators.processor import (
    Context,
    Processor,
    ReadOnlyTable,
    Record,
    Store,
    Timer,
    ValueContext,
    ValueProcessor,
)
from sluice.topology import (
    CogroupedStreams,
    GlobalTable,
    GroupedStream,
    GroupedTable,
    Pipeline,
    Processed,
    Stream,
    Table,
    WindowedStream,
)
from sluice.topology.serdes import Serde, debezium
from sluice.topology.structs import Column, struct
from sluice.topology.window_definitions import (
    Duration,
    custom_windows,
    every_records,
    hopping,
    last_records,
    session,
    sliding,
    tumbling,
    within,
)
from sluice.values.calendar_windows import CalendarWindow
from sluice.values.change_values import Change, debezium_key
from sluice.values.contracts import Decimal2, Digits
from sluice.values.epochs import (
    EpochMicros,
    EpochMillis,
    EpochSeconds,
    EpochTime,
    epoch_ms,
    epoch_s,
    epoch_us,
)
from sluice.values.headers import Headers
from sluice.values.keys import key_text
from sluice.values.record_metadata import WALL_CLOCK
from sluice.values.sink_tables import DeltaTable, PostgresTable
from sluice.values.windowed_keys import (
    Windowed,
    session_windowed_bytes,
    time_windowed_bytes,
    windowed_json,
)
from sluice.values.windows import CountWindow, CustomWindow, JoinWindow, SessionWindow, SlidingWindow, Window
from sluice.version import __version__ as __version__

if TYPE_CHECKING:
    from sluice.api.routes.custom_routes import Routes, Stores
    from sluice.client import AsyncClient, Client
    from sluice.query.read_store import read_store

__all__ = [
    "WALL_CLOCK",
    "AsyncClient",
    "CalendarWindow",
    "Change",
    "Client",
    "CogroupedStreams",
    "Column",
    "Context",
    "CountWindow",
    "CustomWindow",
    "Decimal2",
    "DeltaTable",
    "Digits",
    "Duration",
    "EngineError",
    "EpochMicros",
    "EpochMillis",
    "EpochSeconds",
    "EpochTime",
    "GlobalTable",
    "GroupedStream",
    "GroupedTable",
    "Headers",
    "JoinWindow",
    "Pipeline",
    "PostgresTable",
    "Processed",
    "Processor",
    "QueryError",
    "ReadOnlyTable",
    "Record",
    "Routes",
    "Serde",
    "SessionWindow",
    "SettingsError",
    "SlidingWindow",
    "SluiceError",
    "StateError",
    "Store",
    "Stores",
    "Stream",
    "Table",
    "Timer",
    "TopologyError",
    "ValueContext",
    "ValueProcessor",
    "Window",
    "Windowed",
    "WindowedStream",
    "custom_windows",
    "debezium",
    "debezium_key",
    "epoch_ms",
    "epoch_s",
    "epoch_us",
    "every_records",
    "hopping",
    "key_text",
    "last_records",
    "read_store",
    "session",
    "session_windowed_bytes",
    "sliding",
    "struct",
    "time_windowed_bytes",
    "tumbling",
    "windowed_json",
    "within",
]


def __getattr__(name: str) -> Any:
    # The clients are imported on demand, because every Spark executor imports this package and
    # needs neither HTTP clients nor servers.
    if name in ("AsyncClient", "Client"):
        from sluice import client

        return getattr(client, name)
    if name in ("Routes", "Stores"):
        from sluice.api.routes import custom_routes

        return getattr(custom_routes, name)
    if name == "read_store":
        from sluice.query.read_store import read_store

        return read_store
    raise AttributeError(name)
