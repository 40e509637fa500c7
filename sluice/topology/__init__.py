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

__all__ = [
    "Broken",
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
