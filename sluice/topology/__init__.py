"""The API for defining pipelines, which are plain data: streams, tables, groups, and their drawings."""

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
