"""Find the pipelines in a folder: each file's module holds one in the name `pipeline`."""

from __future__ import annotations

import importlib.util
import sys
import traceback
from pathlib import Path
from types import ModuleType

from sluice.errors import SluiceError, TopologyError
from sluice.topology.pipeline import Pipeline

_NOT_PIPELINES = {"run", "__init__"}


def pipeline_files(folder: Path) -> list[Path]:
    """The files in `folder` that should hold a pipeline, by name."""
    if not folder.is_dir():
        raise TopologyError(
            f"{folder} is not a folder.", next_step="Set SLUICE_PIPELINES to the folder of your pipelines."
        )
    return sorted(file for file in folder.glob("*.py") if file.stem not in _NOT_PIPELINES and file.stem[0] not in "_.")


def load_pipelines(folder: Path) -> list[Pipeline]:
    """Every pipeline in `folder`; TopologyError for the first file that cannot be loaded, or a name used twice."""
    pipelines: dict[str, Pipeline] = {}
    for file in pipeline_files(folder):
        pipeline = load_file(file)
        if (other := pipelines.setdefault(pipeline.name, pipeline)) is not pipeline:
            raise TopologyError(
                f"{other.file and other.file.name} and {file.name} both hold a pipeline {pipeline.name!r}."
            )
    return list(pipelines.values())


def load_pipeline(folder: Path, name: str) -> Pipeline:
    """The pipeline of that name; TopologyError lists those there are."""
    pipelines = {pipeline.name: pipeline for pipeline in load_pipelines(folder)}
    if name not in pipelines:
        raise TopologyError(
            f"There is no pipeline {name!r} in {folder}.", next_step=f"There are: {', '.join(pipelines)}."
        )
    return pipelines[name]


def load_file(file: Path) -> Pipeline:
    """The pipeline of one file."""
    try:
        module = load_module(file)
    except SluiceError:
        raise
    except Exception as error:
        raise TopologyError(f"{_place(file, error)} cannot be imported: {type(error).__name__}: {error}.") from error
    pipeline = getattr(module, "pipeline", None)
    if not isinstance(pipeline, Pipeline):
        raise TopologyError(f"{file.name} holds no pipeline.", next_step='Add: pipeline = Pipeline("name").')
    pipeline.doc = (module.__doc__ or "").strip()
    pipeline.file = file
    return pipeline


def _place(file: Path, error: Exception) -> str:
    """The file, with the line that an error comes from if it is known."""
    lines = [f.lineno for f in traceback.extract_tb(error.__traceback__) if Path(f.filename) == file.absolute()]
    return f"{file.name}:{lines[-1]}" if lines else file.name


def load_module(file: Path, name: str = "") -> ModuleType:
    """Import a pipeline's file once a process, by default under a name of its own that no installed module can have."""
    # A dot would make it a module in a package, which pickle would look for.
    name = name or f"sluice-pipeline:{file.absolute()}".replace(".", "_")
    if name in sys.modules:
        return sys.modules[name]
    spec = importlib.util.spec_from_file_location(name, file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
    return module
