"""A step that fails for too many of a batch's records is at fault itself: the run ends, and nothing is lost."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import pyarrow as pa

from sluice.errors import EngineError
from sluice.plan import Job
from sluice.topology import drawing, nodes

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
            step = _step(job, name.removeprefix(FAILED))
            example = _example(step, letters)
            raise EngineError(
                f"{_title(step, name)} failed for {failed:,} of the {read:,} records that were read; max_failures "
                f"allows {most}.{example and f' The first said: {example}.'}",
                next_step="Nothing of the batch is visible. Correct the step and run again; if its failures are to be "
                "expected, raise max_failures of the pipeline.",
            )


def _step(job: Job, name: str) -> nodes.Node | None:
    operators = {operator.name: operator.node for operator in job.operators}
    return operators.get(name) or next((node for node in job.pipeline.nodes if node.name == name), None)


def _title(step: nodes.Node | None, name: str) -> str:
    return name.removeprefix(FAILED) if step is None else f"{drawing.title(step)} at {step.at}"


def _example(step: nodes.Node | None, letters: Iterable[pa.Table]) -> str:
    if step is None:
        return ""
    mine = {"sluice.step": drawing.title(step), "sluice.at": step.at}
    for table in letters:
        for headers in table.column("headers").to_pylist():
            said = {one["key"]: (one["value"] or b"").decode(errors="replace") for one in headers or ()}
            if all(said.get(name) == text for name, text in mine.items()):
                return said.get("sluice.detail", "")
    return ""
