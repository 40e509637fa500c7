"""The facts of all pipelines in a folder (see `dag_facts`), kept in SLUICE_HOME.

Without these cached facts, Airflow would import every file every 30 s. With the cached facts, a
file is imported again in two cases. First, something has changed: the file, a module, file or
environment variable that it reads, or the version of Sluice or Python. Second, its facts are 30 to
60 minutes old, because a file can depend on something that is not recorded, such as the time.
"""

from __future__ import annotations

import hashlib
import os
import sys
import tempfile
import time
from contextlib import suppress
from functools import cache
from pathlib import Path

import msgspec

import sluice
from sluice.errors import SettingsError
from sluice.orchestration.dag_facts import DagFacts, FileFacts, facts_text
from sluice.support.file_modes import make_folder
from sluice.topology.loading.isolated_imports import Outcome, import_isolated
from sluice.topology.loading.pipeline_files import pipeline_files
from sluice.topology.loading.pipeline_folders import Broken, usable_files
from sluice.topology.loading.pipeline_import import LOAD_SECONDS
from sluice.topology.loading.pipeline_libraries import libraries_of
from sluice.values.import_inputs import Inputs

_LONGEST_SECONDS = 3_600.0


class _Entry(msgspec.Struct, frozen=True, kw_only=True):
    """The cached facts of one file."""

    edition: str
    """The versions of Sluice and Python with which the facts were found."""
    found_at: float
    """When the facts were found, in epoch s."""
    facts: DagFacts
    inputs: Inputs


def facts_of_folder(
    folder: Path, home: Path, seconds: float = LOAD_SECONDS
) -> tuple[list[DagFacts], list[Broken]]:
    """Return the facts of every pipeline in `folder`, and the files that cannot be used.

    `home` is the folder with the cache. A file without valid facts in the cache is imported in a
    separate process, for at most `seconds`.
    """
    files = pipeline_files(folder)
    cached = {file: facts for file in files if (facts := cached_facts(file, home)) is not None}
    outcomes: dict[Path, Outcome] = {}
    imported = import_isolated([file for file in files if file not in cached], seconds, facts_text)
    for file in files:
        outcome = imported.get(file)
        earlier = None
        if outcome is not None and outcome.error:
            earlier = _facts_until_installed(file, home)
        if earlier is not None:
            cached[file], outcome = earlier, None
        if outcome is not None and not outcome.error:
            imported_facts = msgspec.json.decode(outcome.text, type=FileFacts)
            cached[file] = imported_facts.facts
            _keep(file, home, imported_facts)
        outcomes[file] = (
            outcome if outcome is not None and outcome.error else Outcome(text=cached[file].name)
        )
    usable, broken = usable_files(outcomes)
    return [cached[file] for file in usable], broken


def _facts_until_installed(file: Path, home: Path) -> DagFacts | None:
    """Return the last facts of a file whose import fails while its libraries are being installed.

    Otherwise, the DAG would be broken for a minute whenever its requirements change.
    """
    try:
        libraries = libraries_of(file)
        if libraries is None or libraries.is_built or libraries.failure:
            return None
    except SettingsError:
        return None
    entry = _entry(file, home)
    return None if entry is None else entry.facts


def cached_facts_of(folder: Path, home: Path, name: str) -> DagFacts | None:
    """Return the facts of the pipeline with this name.

    Return None if no cached file, or more than one, has such a pipeline.
    """
    all_facts = [cached_facts(file, home) for file in pipeline_files(folder)]
    named = [facts for facts in all_facts if facts is not None and facts.name == name]
    return named[0] if len(named) == 1 else None


def cached_facts(file: Path, home: Path) -> DagFacts | None:
    """Return the facts of a file's pipeline; None if they must be found again."""
    entry = _entry(file, home)
    if entry is None:
        return None
    age = time.time() - entry.found_at
    # Files of one deployment expire at different times, so that they are not all imported at once.
    lifetime = _LONGEST_SECONDS * (1 + _share_of(entry.facts.name)) / 2
    is_valid = entry.edition == _edition() and 0 <= age < lifetime and entry.inputs.are_unchanged
    return entry.facts if is_valid else None


def _share_of(name: str) -> float:
    """Return a number from 0 to 1 that depends on a name only."""
    return hashlib.blake2b(name.encode(), digest_size=1).digest()[0] / 255


def _entry(file: Path, home: Path) -> _Entry | None:
    try:
        return msgspec.json.decode(_place(file, home).read_bytes(), type=_Entry)
    except (OSError, msgspec.MsgspecError):
        return None


def _keep(file: Path, home: Path, imported: FileFacts) -> None:
    # Facts without inputs are not kept, so the file is imported again the next time. If the folder
    # cannot be written to, nothing is kept.
    if imported.inputs is None:
        return
    place = _place(file, home)
    entry = _Entry(
        edition=_edition(), found_at=time.time(), facts=imported.facts, inputs=imported.inputs
    )
    with suppress(OSError):
        make_folder(place.parent)
        # Another process may read or write the same entry now, so the entry is replaced by a
        # complete new file. `mkstemp` makes a file that only its owner may read.
        descriptor, temporary = tempfile.mkstemp(dir=place.parent)
        with os.fdopen(descriptor, "wb") as stream:
            stream.write(msgspec.json.encode(entry))
        Path(temporary).replace(place)


def _place(file: Path, home: Path) -> Path:
    digest = hashlib.blake2b(
        str(file.absolute()).encode(errors="surrogateescape"), digest_size=16
    ).hexdigest()
    return home / "dags" / f"{digest}.json"


@cache
def _edition() -> str:
    """Return a text that changes with the versions of Sluice and Python and with Sluice's files."""
    digest = hashlib.blake2b(f"{sluice.__version__} {sys.version}".encode(), digest_size=16)
    package = Path(sluice.__file__).parent
    for file in sorted(package.rglob("*.py")):
        status = file.stat()
        digest.update(f"{file} {status.st_mtime_ns} {status.st_size}".encode())
    return digest.hexdigest()
