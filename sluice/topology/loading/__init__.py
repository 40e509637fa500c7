"""Find the pipelines in a folder, test each file in a separate process, and import it."""

from sluice.topology.loading.folder import Broken, Loaded, load_pipeline, load_pipelines

__all__ = ["Broken", "Loaded", "load_pipeline", "load_pipelines"]
