"""Finds a pipeline's options in the `sluice.toml` files by the pipeline's name alone.

The web page, the REST interface, metrics and commands often need a pipeline's Kafka connection. The
list of the pipelines' connections is therefore cached.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from sluice.errors import SettingsError, SluiceError, TopologyError
from sluice.provision.libraries import Libraries
from sluice.settings import Settings
from sluice.topology.loading.pipeline_files import files_naming, named_files
from sluice.topology.loading.run_options import (
    DEFAULTS,
    FILE,
    OWNER,
    RunOptions,
    allowances,
    pipeline_folders,
    run_options,
    unlimited_options,
)
from sluice.values.budgets import Allowance

_LISTED_SECONDS = 10.0


def options_of(folder: Path, pipeline: str, known: str = "") -> RunOptions:
    """Return the options of the pipeline with this name.

    `known` is the path of the pipeline's file in the newest run, in case the file is gone.

    Return the platform's defaults if no file defines the pipeline. If a `sluice.toml` is invalid,
    return Sluice's defaults: the pipeline's DAG reports the error.
    """
    with suppress(SettingsError):
        return run_options(folder, _file_of(folder, pipeline, known), pipeline)
    return DEFAULTS


def owner_of(folder: Path, pipeline: str, known: str = "") -> str:
    """Return the owner of a pipeline. `known` is the path of its file in the newest run, or empty.

    The file may be in another folder: a changed pipeline is deployed from a separate folder. A
    pipeline that exceeds a limit of the platform has the owner that its `sluice.toml` names.
    """
    with suppress(SettingsError):
        if known:
            return unlimited_options(folder, Path(known), pipeline).owner or OWNER
    with suppress(SettingsError):
        return unlimited_options(folder, _file_of(folder, pipeline), pipeline).owner or OWNER
    return OWNER


def allowances_of(folder: Path, pipeline: str) -> list[Allowance]:
    """Return the budgets of a pipeline; none if a `sluice.toml` is invalid."""
    if not _is_mentioned(b"budget", folder):
        return []
    with suppress(SettingsError):
        return allowances(folder, _file_of(folder, pipeline), pipeline)
    return []


def libraries_of_name(folder: Path, pipeline: str, home: Path) -> Libraries | None:
    """Return a pipeline's own libraries; None if it has none.

    Raise SettingsError if a `sluice.toml` is invalid, or if the pipeline may not have libraries.
    """
    if not _is_mentioned(b"requirements", folder):
        return None
    return run_options(folder, _file_of(folder, pipeline), pipeline).libraries(home)


def _is_mentioned(option: bytes, folder: Path) -> bool:
    """Return whether any `sluice.toml` mentions an option.

    If no file mentions the option, a run need not search all files for its pipeline's file.
    """
    for place in pipeline_folders(folder):
        file = place / FILE
        if file.is_file() and option in file.read_bytes():
            return True
    return False


def _file_of(folder: Path, pipeline: str, known: str = "") -> Path | None:
    file: Path | None = None
    if known and Path(known).is_relative_to(folder):
        file = Path(known)
    with suppress(TopologyError):
        for each in files_naming(folder, pipeline):
            file = each
    return file


def settings_of(settings: Settings, pipeline: str, file: str = "") -> Settings:
    """Return the settings with which commands work on a pipeline: its memory and its connections.

    Raise SettingsError if a connection of the pipeline is not in the environment.
    """
    options = options_of(settings.pipelines, pipeline, file)
    return options.with_connections(options.applied_to(settings))


class KafkaConnections:
    """The Kafka connections of all pipelines."""

    def __init__(
        self, folder: Callable[[], Path], clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._folder = folder
        self._clock = clock
        self._listed_at = float("-inf")
        self._names: dict[str, str] = {}

    def of(self, pipeline: str) -> str:
        """Return the name of a pipeline's connection; empty for the connection of all pipelines."""
        now = self._clock()
        if now - self._listed_at > _LISTED_SECONDS:
            self._listed_at = now
            with suppress(SluiceError, OSError):
                self._names = _connections(self._folder())
        return self._names.get(pipeline, "")


def _connections(folder: Path) -> dict[str, str]:
    """Return pipeline → its connection, for the pipelines whose options name a connection."""
    connections: dict[str, str] = {}
    for pipeline, file in named_files(folder):
        with suppress(SettingsError):
            options = run_options(folder, file, pipeline)
            if options.kafka_connection is not None:
                connections[pipeline] = options.kafka_connection
    return connections
