"""The topologies of the pipelines' files, for pipelines that have never run.

A file is imported in a separate process, which may take seconds, so its topology is kept until the
file changes.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from sluice.errors import SluiceError
from sluice.settings import settings
from sluice.topology import drawing
from sluice.topology.loading.declared_names import declared_names
from sluice.topology.loading.isolated_imports import import_isolated
from sluice.topology.loading.pipeline_files import pipeline_files
from sluice.topology.loading.pipeline_import import load_file


class Topology(msgspec.Struct, frozen=True):
    """A topology as text, and as an SVG drawing."""

    pipeline: str
    text: str
    svg: str


def topology_text(file: Path, seconds: float) -> str:
    """Import a file, and return its `Topology` as JSON. Must run in a separate process."""
    pipeline = load_file(file, seconds)
    topology = Topology(pipeline.name, drawing.text(pipeline), drawing.svg(pipeline))
    return msgspec.json.encode(topology).decode()


def _folder_of_settings() -> Path:
    return settings().pipelines


@dataclass
class DeclaredPipelines:
    """The pipelines that the files of a folder define."""

    folder: Callable[[], Path] = _folder_of_settings
    _topologies: dict[tuple[Path, int], Topology | None] = field(default_factory=dict, repr=False)
    """File and its modification time → its topology; None if the file cannot be loaded."""
    _lock: asyncio.Lock = field(default_factory=asyncio.Lock, repr=False)

    async def topology(self, pipeline: str) -> Topology | None:
        """Return the topology of a pipeline's file.

        Return None if no file in the folder has the pipeline.
        """
        # Several requests for the same pipeline wait for one import.
        async with self._lock:
            return await asyncio.to_thread(self._topology, pipeline)

    def _topology(self, pipeline: str) -> Topology | None:
        try:
            files = pipeline_files(self.folder())
        except SluiceError:
            return None
        for file in files:
            # If a file computes its pipeline's name, it may define this pipeline, so import it.
            if pipeline in (declared_names(file) or (pipeline,)):
                topology = self._of_file(file)
                if topology is not None and topology.pipeline == pipeline:
                    return topology
        return None

    def _of_file(self, file: Path) -> Topology | None:
        try:
            edition = file, file.stat().st_mtime_ns
            if edition not in self._topologies:
                outcome = import_isolated([file], load=topology_text)[file]
                topology = None
                if not outcome.error:
                    topology = msgspec.json.decode(outcome.text, type=Topology)
                self._topologies[edition] = topology
            return self._topologies[edition]
        except (SluiceError, OSError):
            return None
