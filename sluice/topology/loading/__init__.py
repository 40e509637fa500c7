"""Find the pipelines of a folder, try each file in a process of its own, and import it."""

from sluice.topology.loading.folder import Broken, Loaded, load_pipeline, load_pipelines

__all__ = ["Broken", "Loaded", "load_pipeline", "load_pipelines"]
