"""Finds the pipelines in a folder. Each file is imported by a separate process first, and then by this one."""

from sluice.topology.loading.pipeline_folders import Broken, Loaded, load_pipeline, load_pipelines

__all__ = ["Broken", "Loaded", "load_pipeline", "load_pipelines"]
