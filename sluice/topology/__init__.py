"""The API for defining pipelines: streams, tables and groups. A pipeline is plain data, and can be drawn."""

from sluice.topology.dsl import (
    CogroupedStreams,
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

__all__ = [
    "Broken",
    "CogroupedStreams",
    "GlobalTable",
    "GroupedStream",
    "GroupedTable",
    "Loaded",
    "Pipeline",
    "Processed",
    "Stream",
    "Table",
    "WindowedStream",
    "load_pipeline",
    "load_pipelines",
]
