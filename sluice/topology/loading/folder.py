"""The pipelines of a folder, a file each. A file that cannot be loaded concerns its own pipeline alone."""

from __future__ import annotations

import ast
import re
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

from sluice.errors import SluiceError, TopologyError
from sluice.topology.loading.file import LOAD_SECONDS, load_file
from sluice.topology.loading.isolation import Outcome, outcomes
from sluice.topology.pipeline import Pipeline

_ROUTES = "_routes"
"""End of the name of a file with routes of one's own: see `sluice.routes`."""
_NAMED = re.compile(r"\bPipeline\(\s*(?:name\s*=\s*)?[rR]?([\"'])(.*?)\1")


@dataclass(frozen=True)
class Broken:
    """A file whose pipeline cannot be used. `name` is the pipeline's if the file's text says it, else the file's."""

    file: Path
    name: str
    error: SluiceError


@dataclass(frozen=True)
class Loaded:
    """The pipelines of a folder, and the files that hold none because something is wrong with them."""

    pipelines: list[Pipeline]
    broken: list[Broken]


def pipeline_files(folder: Path) -> list[Path]:
    """The files in `folder` that should hold a pipeline, by name."""
    if not folder.is_dir():
        raise TopologyError(
            f"{folder} is not a folder.", next_step="Set SLUICE_PIPELINES to the folder of your pipelines."
        )
    return sorted(file for file in folder.glob("*.py") if file.stem[0] not in "_." and not file.stem.endswith(_ROUTES))


def load_pipelines(folder: Path, seconds: float = LOAD_SECONDS) -> Loaded:
    """Every pipeline in `folder`, and what is wrong with the files that cannot be used.

    Each file is first imported in a process of its own: only a file that returned within `seconds` is imported here.
    """
    tried = outcomes(pipeline_files(folder), seconds)
    names = Counter(outcome.name for outcome in tried.values() if not outcome.error)
    loaded = Loaded([], [])
    for file, outcome in tried.items():
        try:
            _require_usable(outcome, tried, names)
            loaded.pipelines.append(load_file(file, seconds))
        except SluiceError as error:
            loaded.broken.append(Broken(file, outcome.name or next(iter(declared_names(file)), file.stem), error))
    return loaded


def load_pipeline(folder: Path, name: str) -> Pipeline:
    """The pipeline of that name; TopologyError lists those there are.

    Only its own file is imported here. Files whose text does not say which pipeline they hold are tried apart.
    """
    declared = {file: declared_names(file) for file in pipeline_files(folder)}
    named = [file for file, names in declared.items() if name in names]
    if len(named) == 1 and (pipeline := load_file(named[0])).name == name:
        return pipeline
    tried = outcomes([file for file, names in declared.items() if file in named or not names or file.stem == name])
    found = [file for file, outcome in tried.items() if outcome.name == name]
    if len(found) == 1:
        return load_file(found[0])
    if len(found) > 1:
        raise _same_name(found, name)
    for file, outcome in tried.items():
        if outcome.error and (file in named or file.stem == name):
            raise TopologyError(outcome.error, next_step=outcome.next_step)
    names = sorted({*(one for names in declared.values() for one in names), *(one.name for one in tried.values())})
    raise TopologyError(
        f"There is no pipeline {name!r} in {folder}.", next_step=f"There are: {', '.join(filter(None, names))}."
    )


def declared_names(file: Path) -> tuple[str, ...]:
    """The names of the pipelines that a file makes, as far as its text says them: Pipeline("name")."""
    try:
        text = file.read_text()
    except (OSError, UnicodeDecodeError):
        return ()
    try:
        calls = [node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Call)]
    except (SyntaxError, ValueError, RecursionError):
        return tuple(dict.fromkeys(found[2] for found in _NAMED.finditer(text)))
    return tuple(dict.fromkeys(name for call in calls if (name := _name(call))))


def _name(call: ast.Call) -> str | None:
    """The name that a call of Pipeline gives; None for any other call, and for a name that is computed."""
    function = call.func
    called = getattr(function, "id", getattr(function, "attr", ""))
    given = [*call.args[:1], *(keyword.value for keyword in call.keywords if keyword.arg == "name")]
    value = given[0].value if called == "Pipeline" and given and isinstance(given[0], ast.Constant) else None
    return value if isinstance(value, str) else None


def _require_usable(outcome: Outcome, tried: dict[Path, Outcome], names: Counter[str]) -> None:
    if outcome.error:
        raise TopologyError(outcome.error, next_step=outcome.next_step)
    if names[outcome.name] > 1:
        raise _same_name([file for file, one in tried.items() if one.name == outcome.name], outcome.name)


def _same_name(files: list[Path], name: str) -> TopologyError:
    return TopologyError(
        f"{' and '.join(file.name for file in files)} {'both' if len(files) == 2 else 'all'} hold a pipeline {name!r}.",
        next_step="Give each a name of its own: state, topics and DAG are found by it.",
    )
