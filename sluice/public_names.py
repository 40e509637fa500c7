"""The names that `sluice` exports to authors of pipelines."""

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
    StoreOf,
    Stream,
    Table,
    WindowedStream,
)
from sluice.topology.durations import Duration
from sluice.topology.formats import (
    Avro,
    JsonSchema,
    Protobuf,
    avro_key,
    json_schema_key,
    protobuf_key,
)
from sluice.topology.kafka_values import kafka_key, kafka_value
from sluice.topology.serdes import Serde, debezium
from sluice.topology.structs import Column, struct
from sluice.topology.window_definitions import (
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
from sluice.values.windows import (
    CountWindow,
    CustomWindow,
    JoinWindow,
    SessionWindow,
    SlidingWindow,
    Window,
)

__all__ = [
    "WALL_CLOCK",
    "Avro",
    "CalendarWindow",
    "Change",
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
    "JsonSchema",
    "Pipeline",
    "PostgresTable",
    "Processed",
    "Processor",
    "Protobuf",
    "QueryError",
    "ReadOnlyTable",
    "Record",
    "Serde",
    "SessionWindow",
    "SettingsError",
    "SlidingWindow",
    "SluiceError",
    "StateError",
    "Store",
    "StoreOf",
    "Stream",
    "Table",
    "Timer",
    "TopologyError",
    "ValueContext",
    "ValueProcessor",
    "Window",
    "Windowed",
    "WindowedStream",
    "avro_key",
    "custom_windows",
    "debezium",
    "debezium_key",
    "epoch_ms",
    "epoch_s",
    "epoch_us",
    "every_records",
    "hopping",
    "json_schema_key",
    "kafka_key",
    "kafka_value",
    "key_text",
    "last_records",
    "protobuf_key",
    "session",
    "session_windowed_bytes",
    "sliding",
    "struct",
    "time_windowed_bytes",
    "tumbling",
    "windowed_json",
    "within",
]
