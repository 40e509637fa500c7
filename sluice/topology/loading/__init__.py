"""Finds the pipelines in a folder.

A separate process imports each file first, and then the calling process does.
"""

from sluice.topology.loading.pipeline_folders import Broken, Loaded, load_pipeline, load_pipelines

__all__ = ["Broken", "Loaded", "load_pipeline", "load_pipelines"]
