"""Finds the files of pipelines in a folder, and which of them names a pipeline. Imports none."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from sluice.errors import TopologyError
from sluice.topology.loading.declared_names import declared_names
from sluice.topology.loading.run_options import pipeline_folders

_ROUTES = "_routes"
"""Suffix of the names of files with custom routes: see `sluice.routes`."""


def pipeline_files(folder: Path) -> list[Path]:
    """Return the files that should define a pipeline, in `folder` and in its folders of teams.

    They are sorted by folder and name.
    """
    if not folder.is_dir():
        raise TopologyError(
            f"{folder} is not a folder.",
            next_step="Set SLUICE_PIPELINES to the folder of your pipelines.",
        )
    files: list[Path] = []
    for place in pipeline_folders(folder):
        files += sorted(file for file in place.glob("*.py") if _may_define_pipeline(file))
    return files


def _may_define_pipeline(file: Path) -> bool:
    if file.stem[0] in "_." or file.stem.endswith(_ROUTES):
        return False
    # Pipes are left out, because opening a pipe waits for its writer. Broken links
    # stay, so that loading reports them.
    return file.is_file() or not file.exists()


def named_files(folder: Path) -> Iterator[tuple[str, Path]]:
    """Yield the names of pipelines in the texts of a folder's files, each with its file.

    No file is imported. A file that computes its pipeline's name is left out.
    """
    for file in pipeline_files(folder):
        for name in declared_names(file):
            yield name, file


def files_naming(folder: Path, name: str) -> list[Path]:
    """Return the files whose text has a pipeline's name as a literal, as in Pipeline("name").

    Only files that contain the name are parsed, because parsing the files of sixty pipelines takes
    longer than all other work of a command. A name that is split into several literals is therefore
    not found.
    """
    text = name.encode()
    files: list[Path] = []
    for file in pipeline_files(folder):
        if _contains(file, text) and name in declared_names(file):
            files.append(file)
    return files


def _contains(file: Path, text: bytes) -> bool:
    try:
        return text in file.read_bytes()
    except OSError:
        return False
