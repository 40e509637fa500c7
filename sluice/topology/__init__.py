"""What an author writes: a pipeline is data, so building one needs neither Spark nor Airflow."""

from sluice.topology.contracts import Decimal2, Digits
from sluice.topology.loader import load_pipeline, load_pipelines
from sluice.topology.pipeline import Pipeline
from sluice.topology.streams import GlobalTable, GroupedStream, Stream, Table, WindowedStream
from sluice.topology.windows import Window, hopping, tumbling

__all__ = [
    "Decimal2",
    "Digits",
    "GlobalTable",
    "GroupedStream",
    "Pipeline",
    "Stream",
    "Table",
    "Window",
    "WindowedStream",
    "hopping",
    "load_pipeline",
    "load_pipelines",
    "tumbling",
]
