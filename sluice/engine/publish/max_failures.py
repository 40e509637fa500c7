"""A step that fails for too many of a batch's records is at fault itself: the run ends, and nothing is lost."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import pyarrow as pa

from sluice.errors import EngineError
from sluice.plan import Job, Step

FAILED = "failed/"
"""The counts of records that steps rejected, by the steps' names."""

_FEW = 100
"""So many failures are never too large a share: a small batch may well be half bad."""


def require_few_failures(job: Job, counts: Mapping[str, int], letters: Iterable[pa.Table]) -> None:
    """Raises EngineError if a step failed for more than the pipeline's `max_failures` records of a batch.

    `letters` are the batch's dead letters, of which one is shown.
    """
    limit, read = job.pipeline.max_failures, counts.get("read", 0)
    for name, failed in counts.items():
        if not name.startswith(FAILED):
            continue
        if isinstance(limit, int):
            too_many, most = failed > limit, f"{limit:,} records of a batch"
        else:
            too_many, most = failed >= _FEW and failed > limit * read, f"{limit:.0%} of a batch's records"
        if too_many:
            step = job.step_named(name.removeprefix(FAILED))
            example = _example(step, letters)
            raise EngineError(
                f"{step or name.removeprefix(FAILED)} failed for {failed:,} of the {read:,} records that were read; "
                f"max_failures allows {most}.{example and f' The first said: {example}.'}",
                next_step="Nothing of the batch is visible. Correct the step and run again; if its failures are to be "
                "expected, raise max_failures of the pipeline.",
            )


def _example(step: Step | None, letters: Iterable[pa.Table]) -> str:
    if step is None:
        return ""
    mine = {"sluice.step": step.title, "sluice.at": step.at}
    for table in letters:
        for headers in table.column("headers").to_pylist():
            said = {one["key"]: (one["value"] or b"").decode(errors="replace") for one in headers or ()}
            if all(said.get(name) == text for name, text in mine.items()):
                return said.get("sluice.detail", "")
    return ""
