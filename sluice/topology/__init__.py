"""The API for defining pipelines: streams, tables and groups.

A pipeline is plain data, and can be drawn.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from sluice.topology.groups import CogroupedStreams as CogroupedStreams
    from sluice.topology.groups import GroupedStream as GroupedStream
    from sluice.topology.groups import GroupedTable as GroupedTable
    from sluice.topology.groups import WindowedStream as WindowedStream
    from sluice.topology.loading.pipeline_folders import Broken as Broken
    from sluice.topology.loading.pipeline_folders import Loaded as Loaded
    from sluice.topology.loading.pipeline_folders import load_pipeline as load_pipeline
    from sluice.topology.loading.pipeline_folders import load_pipelines as load_pipelines
    from sluice.topology.pipeline import Pipeline as Pipeline
    from sluice.topology.shared_stores import StoreOf as StoreOf
    from sluice.topology.streams import Processed as Processed
    from sluice.topology.streams import Stream as Stream
    from sluice.topology.tables import GlobalTable as GlobalTable
    from sluice.topology.tables import Table as Table

_NAMES = {
    "groups": ("CogroupedStreams", "GroupedStream", "GroupedTable", "WindowedStream"),
    "loading.pipeline_folders": ("Broken", "Loaded", "load_pipeline", "load_pipelines"),
    "pipeline": ("Pipeline",),
    "shared_stores": ("StoreOf",),
    "streams": ("Processed", "Stream"),
    "tables": ("GlobalTable", "Table"),
}
"""Module of this package → the names in it that the package exports."""
_MODULES = {name: f"{__name__}.{module}" for module, names in _NAMES.items() for name in names}


def __getattr__(name: str) -> Any:
    # Names are imported on demand, because importing them all takes 0.15 s. A command that hands
    # its run to a warm driver needs only the options with which the pipeline is run.
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_MODULES[name]), name)
