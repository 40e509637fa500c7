"""The API for defining pipelines. A pipeline is plain data: building one needs neither Spark nor Airflow."""

from sluice.topology.dsl import (
    GlobalTable,
    GroupedStream,
    GroupedTable,
    Processed,
    Stream,
    Table,
    WindowedStream,
)
from sluice.topology.loading import Broken, Loaded, load_pipeline, load_pipelines
from sluice.topology.pipeline import Pipeline
from sluice.topology.serdes import Serde
from sluice.topology.structs import Column, struct
from sluice.topology.window_definitions import Duration, hopping, session, sliding, tumbling, within
from sluice.values.contracts import Decimal2, Digits
from sluice.values.epochs import EpochMicros, EpochMillis, EpochSeconds, EpochTime, epoch_ms, epoch_s, epoch_us
from sluice.values.sink_tables import DeltaTable, OutputTable, PostgresTable
from sluice.values.windows import JoinWindow, SessionWindow, SlidingWindow, Window

__all__ = [
    "Broken",
    "Column",
    "Decimal2",
    "DeltaTable",
    "Digits",
    "Duration",
    "EpochMicros",
    "EpochMillis",
    "EpochSeconds",
    "EpochTime",
    "GlobalTable",
    "GroupedStream",
    "GroupedTable",
    "JoinWindow",
    "Loaded",
    "OutputTable",
    "Pipeline",
    "PostgresTable",
    "Processed",
    "Serde",
    "SessionWindow",
    "SlidingWindow",
    "Stream",
    "Table",
    "Window",
    "WindowedStream",
    "epoch_ms",
    "epoch_s",
    "epoch_us",
    "hopping",
    "load_pipeline",
    "load_pipelines",
    "session",
    "sliding",
    "struct",
    "tumbling",
    "within",
]
