"""Lets the import of a pipeline's file find the pipeline's own libraries.

A process that only draws, checks or schedules a pipeline does not install these libraries. The
import then finds the libraries that are installed in this process's Python.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path

from sluice.errors import SettingsError, TopologyError
from sluice.provision.libraries import Libraries
from sluice.settings import settings
from sluice.topology.loading.declared_names import declared_names
from sluice.topology.loading.run_options import RunOptions, run_options

_POLL_S = 0.2


def libraries_of(file: Path) -> Libraries | None:
    """Return the libraries of the pipeline in a file; None if it has none.

    A file that computes its pipeline's name has the libraries of the defaults. A file whose
    `sluice.toml` is invalid has none; the pipeline's DAG reports the error. Raise SettingsError if
    the requirements cannot be read.
    """
    try:
        libraries = _options_of(file).libraries(settings().home)
    except SettingsError:
        return None
    if libraries is not None:
        libraries.digest  # noqa: B018 (raises an error if a file is missing)
    return libraries


def refused_options(file: Path) -> SettingsError | None:
    """Return the error of the `sluice.toml` for the pipeline in a file; None if there is none.

    For example, the platform does not allow the pipeline the libraries that its file imports.
    """
    try:
        _options_of(file)
    except SettingsError as error:
        return error
    return None


def _options_of(file: Path) -> RunOptions:
    names = declared_names(file) or ("",)
    root = settings().pipelines
    if not file.absolute().is_relative_to(root):
        root = file.absolute().parent
    return run_options(root, file.absolute(), names[0])


def installed_folder(libraries: Libraries | None) -> Path | None:
    """Return the folder of the libraries if they are installed on this host.

    In the process of a run, return the folder with which the run was started.
    """
    try:
        given = settings().libraries
    except SettingsError:
        given = None
    if given is not None:
        return given
    if libraries is None or not libraries.is_built:
        return None
    return libraries.folder


def missing_error(error: TopologyError, libraries: Libraries, file: Path) -> TopologyError:
    """Return the error of a file whose import needs libraries that are not installed here."""
    if libraries.failure:
        return TopologyError(
            f"{error.detail} Its libraries cannot be installed: {libraries.failure}",
            next_step=f"Correct {libraries.requirements}.",
        )
    if libraries.is_being_built():
        return TopologyError(
            f"{error.detail} The libraries of {libraries.requirements} are being installed.",
            next_step=f"Wait a minute. The installation's output is in {libraries.log}.",
        )
    name = next(iter(declared_names(file)), file.stem)
    return TopologyError(
        f"{error.detail} The libraries of {libraries.requirements} are not installed on this host.",
        next_step=f"Install them: sluice libraries build {name}.",
    )


def start_installing(file: Path) -> None:
    """Start to install the libraries of a file's pipeline, in the background, if they are missing.

    After a failure, wait some minutes before the next attempt.
    """
    libraries = libraries_of(file)
    if libraries is None or libraries.is_built:
        return
    if libraries.failure or libraries.is_being_built():
        return
    _start(libraries)


def install_within(libraries: Libraries, seconds: float) -> None:
    """Let another process install libraries, and wait until it ends or the time is over.

    The other process continues after that time, so a later attempt may find the libraries.
    """
    if not libraries.is_being_built():
        _start(libraries)
    ends_at = time.monotonic() + seconds
    while not libraries.is_built and not libraries.failure and time.monotonic() < ends_at:
        time.sleep(_POLL_S)


def _start(libraries: Libraries) -> None:
    requirements = str(libraries.requirements)
    libraries.start_building([sys.executable, "-m", "sluice.provision", "libraries", requirements])
