"""Checks before a deployment that a changed pipeline breaks no pipeline that reads from it.

The ledger knows the readers that have run. The others are found in the folder's files.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from contextlib import suppress
from pathlib import Path

from sluice.driver import naming_owners
from sluice.engine.run.broken_readers import require_kept_interface, stores_read
from sluice.engine.run.check_without_spark import description_now
from sluice.engine.run.registration import stores_read_by
from sluice.errors import SluiceError
from sluice.plan import Job, PlannedPipeline, plan
from sluice.settings import Settings
from sluice.state.ledger.ledger import Ledger
from sluice.topology.loading.isolated_imports import import_isolated
from sluice.topology.loading.pipeline_files import named_files
from sluice.topology.loading.pipeline_folders import usable_files
from sluice.topology.loading.pipeline_import import load_file
from sluice.values.interfaces import Reader, readers_in


def require_readers(settings: Settings, ledger: Ledger, job: Job, others: Iterable[Job]) -> str:
    """Raise BreaksReadersError if a changed job breaks readers that `may_break` does not list.

    The error names the readers' owners. `others` are the jobs of files; the readers in the ledger
    count, too. Return a warning if
    `may_break` names pipelines that the change does not break, otherwise an empty text.
    """
    name = job.pipeline.name
    before = ledger.generations.current(name)
    if before is None:
        return ""
    now, _ = description_now(job, settings, before)
    readers = [reader_of(other, name) for other in others if other.pipeline.name != name]
    with naming_owners(settings):
        found = require_kept_interface(ledger, before, now, job.pipeline, readers)
    broken = readers_in(found)
    unneeded = [each for each in job.pipeline.may_break if each not in broken]
    if not unneeded:
        return ""
    return (
        f"may_break lists {', '.join(unneeded)}, but the change breaks nothing there. Remove the "
        "name from the list, so that Sluice refuses a later change that breaks something."
    )


def readers_in_files(folder: Path, writer: PlannedPipeline) -> list[Job]:
    """Load the files whose texts name the writer or one of its topics, and plan their pipelines.

    A file that cannot be loaded is left out: it could not run either. Separate processes import the
    files first, because files of other teams might end the process that imports them.
    """
    words = {writer.name, *writer.output_fields}
    others = [file for name, file in named_files(folder) if name != writer.name]
    usable, _ = usable_files(import_isolated([file for file in others if _names_any(file, words)]))
    jobs: list[Job] = []
    for file in usable:
        with suppress(SluiceError):
            jobs.append(plan(load_file(file)).job)
    return jobs


def reader_of(job: Job, writer: str) -> Reader:
    """Return a planned pipeline as a reader of another pipeline."""
    stores = stores_read([writer], stores_read_by(job))
    planned = job.pipeline
    return Reader(planned.name, planned.contracts, stores, str(planned.file or ""))


def _names_any(file: Path, words: Collection[str]) -> bool:
    with suppress(OSError):
        text = file.read_text(errors="replace")
        return any(word in text for word in words)
    return False
