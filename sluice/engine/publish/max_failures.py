"""Ends the run if a step fails for too many records of a batch: then the step is wrong, not the records."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import pyarrow as pa

from sluice.errors import EngineError
from sluice.plan import Job, Step

FAILED = "failed/"
"""Prefix of the counts, per step name, of records for which the step failed."""

_FEW = 100
"""Fewer failures than this never end a run when the limit is a share: half of a small batch may be bad."""


def require_few_failures(job: Job, counts: Mapping[str, int], dead_letters: Iterable[pa.Table]) -> None:
    """Raise EngineError if a step failed for more than the pipeline's `max_failures` records of a batch.

    The error quotes one of the batch's `dead_letters`.
    """
    limit, read = job.pipeline.max_failures, counts.get("read", 0)
    for name, failed in counts.items():
        if not name.startswith(FAILED):
            continue
        # The pipeline's limit is a number of records, or a share of the batch's records.
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
                next_step="Nothing from the batch was published. Correct the step and run again; if such failures are "
                "expected, raise the pipeline's max_failures.",
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
