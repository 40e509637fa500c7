"""Finds the pipelines in a folder, tries each file in a process of its own, and imports it."""

from sluice.topology.loading.pipeline_folders import Broken, Loaded, load_pipeline, load_pipelines

__all__ = ["Broken", "Loaded", "load_pipeline", "load_pipelines"]
