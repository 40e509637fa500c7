"""Ends the run if a step fails for too many records of a batch: the step itself is wrong then, not the records."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import pyarrow as pa

from sluice.errors import EngineError
from sluice.plan import Job, Step

FAILED = "failed/"
"""Prefix of the counts of records for which steps failed, by the steps' names."""

_FEW = 100
"""Below this number, failures never exceed a share: half of a small batch may well be bad."""


def require_few_failures(job: Job, counts: Mapping[str, int], dead_letters: Iterable[pa.Table]) -> None:
    """Raise EngineError if a step failed for more than the pipeline's `max_failures` records of a batch.

    The error quotes one of the batch's `dead_letters`.
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
            example = _example(step, dead_letters)
            raise EngineError(
                f"{step or name.removeprefix(FAILED)} failed for {failed:,} of the {read:,} records that were read; "
                f"max_failures allows {most}.{example and f' The first error: {example}.'}",
                next_step="Nothing of the batch is visible. Correct the step and run again; if such failures are "
                "expected, raise max_failures of the pipeline.",
            )


def _example(step: Step | None, dead_letters: Iterable[pa.Table]) -> str:
    if step is None:
        return ""
    for table in dead_letters:
        for headers in table.column("headers").to_pylist():
            texts = {header["key"]: (header["value"] or b"").decode(errors="replace") for header in headers or ()}
            if (texts.get("sluice.step"), texts.get("sluice.at")) == (step.title, step.at):
                return texts.get("sluice.detail", "")
    return ""
