"""The API for defining pipelines: streams, tables and groups.

A pipeline is plain data, and can be drawn.
"""

from sluice.topology.groups import CogroupedStreams, GroupedStream, GroupedTable, WindowedStream
from sluice.topology.loading import Broken, Loaded, load_pipeline, load_pipelines
from sluice.topology.pipeline import Pipeline
from sluice.topology.shared_stores import StoreOf
from sluice.topology.streams import Processed, Stream
from sluice.topology.tables import GlobalTable, Table

__all__ = [
    "Broken",
    "CogroupedStreams",
    "GlobalTable",
    "GroupedStream",
    "GroupedTable",
    "Loaded",
    "Pipeline",
    "Processed",
    "StoreOf",
    "Stream",
    "Table",
    "WindowedStream",
    "load_pipeline",
    "load_pipelines",
]
