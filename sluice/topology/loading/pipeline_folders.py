"""Load the pipelines in a folder, one per file.

A file that cannot be loaded affects only its own pipeline.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import chain
from pathlib import Path

from sluice.errors import SluiceError, TopologyError
from sluice.topology.loading.declared_names import declared_names
from sluice.topology.loading.isolated_imports import Outcome, import_isolated
from sluice.topology.loading.pipeline_files import files_naming, pipeline_files
from sluice.topology.loading.pipeline_import import LOAD_SECONDS, load_file
from sluice.topology.pipeline import Pipeline


@dataclass(frozen=True)
class Broken:
    """A file that cannot be loaded.

    `name` is the pipeline's name if the file's text contains this name, otherwise the file's name
    without `.py`.
    """

    file: Path
    name: str
    error: SluiceError


@dataclass(frozen=True)
class Loaded:
    """The pipelines of a folder, and the files that could not be loaded."""

    pipelines: list[Pipeline]
    broken: list[Broken]


def load_pipelines(folder: Path, seconds: float = LOAD_SECONDS) -> Loaded:
    """Load every pipeline in `folder`, and report the files that cannot be used.

    A separate process imports each file first, for at most `seconds`. The calling process then
    imports only the files whose import has succeeded in the separate process.
    """
    usable, broken = usable_files(import_isolated(pipeline_files(folder), seconds))
    loaded = Loaded([], broken)
    for file in usable:
        try:
            loaded.pipelines.append(load_file(file, seconds))
        except SluiceError as error:
            loaded.broken.append(_broken(file, error))
    return loaded


def usable_files(outcomes: Mapping[Path, Outcome]) -> tuple[list[Path], list[Broken]]:
    """Return the files whose pipelines can be used, and the other files.

    The other files have an error, or their pipeline has the same name as another file's pipeline.
    """
    files_of: dict[str, list[Path]] = {}
    for file, outcome in outcomes.items():
        if not outcome.error:
            files_of.setdefault(outcome.text, []).append(file)
    usable: list[Path] = []
    broken: list[Broken] = []
    for file, outcome in outcomes.items():
        if outcome.error:
            broken.append(_broken(file, TopologyError(outcome.error, next_step=outcome.next_step)))
        elif len(files_of[outcome.text]) > 1:
            broken.append(
                Broken(file, outcome.text, _same_name_error(files_of[outcome.text], outcome.text))
            )
        else:
            usable.append(file)
    return usable, broken


def _broken(file: Path, error: SluiceError) -> Broken:
    return Broken(file, next(iter(declared_names(file)), file.stem), error)


def load_pipeline(folder: Path, name: str) -> Pipeline:
    """Load the pipeline with this name.

    Raises TopologyError, with a list of the known names, if no pipeline has this name.

    The calling process imports only the file of this pipeline. If a file computes its pipeline's
    name, a separate process imports the file to find the name.
    """
    named = files_naming(folder, name)
    if len(named) == 1 and (pipeline := load_file(named[0])).name == name:
        return pipeline
    declared = {file: declared_names(file) for file in pipeline_files(folder)}
    candidates: list[Path] = []
    for file, names in declared.items():
        # If a file's text has no literal name, the file computes its pipeline's name, so it must be
        # imported to find the name.
        if name in names or not names or file.stem == name:
            candidates.append(file)
    results = import_isolated(candidates)
    matching: list[Path] = []
    for file, outcome in results.items():
        if outcome.text == name and not outcome.error:
            matching.append(file)
    if len(matching) == 1:
        return load_file(matching[0])
    if len(matching) > 1:
        raise _same_name_error(matching, name)
    for file, outcome in results.items():
        if outcome.error and (name in declared[file] or file.stem == name):
            raise TopologyError(outcome.error, next_step=outcome.next_step)
    all_names = {outcome.text for outcome in results.values()}
    all_names.update(chain.from_iterable(declared.values()))
    raise TopologyError(
        f"There is no pipeline {name!r} in {folder}.",
        next_step=f"Known pipelines: {', '.join(sorted(filter(None, all_names)))}.",
    )


def _same_name_error(files: list[Path], name: str) -> TopologyError:
    names = " and ".join([file.name for file in files])
    all_of_them = "both" if len(files) == 2 else "all"
    return TopologyError(
        f"{names} {all_of_them} define a pipeline {name!r}.",
        next_step="Give each pipeline its own name: its state, topics and DAG are named after it.",
    )
