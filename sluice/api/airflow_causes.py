"""What only Airflow's database knows about failures: full pools, paused DAGs, marked runs.

The overview reads Airflow's database at each request. In addition, Airflow's API server reads it
every `PERIOD_S` seconds, and notes the causes in the ledger, for `sluice status` and the metrics.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from datetime import UTC, datetime

import msgspec
import structlog

from sluice.answers import FailureKind
from sluice.api.runs import DagState, Runs
from sluice.errors import EngineError, Overdue
from sluice.observe.health import not_started
from sluice.settings import settings
from sluice.state.ledger.failures import SLOT_SECONDS, Failure
from sluice.state.ledger.ledger import Ledger

PERIOD_S = 5.0
_EXPLAINED: frozenset[FailureKind] = frozenset({"run", "slot", "overdue"})
_FIELDS = ("detail", "next_step", "attempts_left", "marked", "repeats_at")
"""The fields of a failure that `explained` may change."""

log = structlog.get_logger(__name__)


def explained(
    failures: Iterable[Failure], pipeline: str, dag: DagState, now: datetime | None = None
) -> list[Failure]:
    """Return a pipeline's failures, with the causes that Airflow's database knows.

    Add a failure if the pipeline's task waits for a slot, or if its run was marked as failed, and
    `failures` has no such failure yet.
    """
    with_causes: list[Failure] = []
    for failure in failures:
        match failure.kind:
            case "slot":
                with_causes.append(_slot(failure, dag))
            case "overdue":
                with_causes.append(_overdue(failure, dag))
            case "run":
                with_causes.append(_run(failure, dag))
            case _:
                with_causes.append(failure)
    kinds = {failure.kind for failure in with_causes}
    if "slot" not in kinds and dag.waits is not None:
        waited = (now or datetime.now(UTC)) - dag.waits.since
        if waited.total_seconds() >= SLOT_SECONDS:
            with_causes.append(_slot(not_started(pipeline, dag.waits.since), dag))
    if kinds.isdisjoint(("slot", "run")) and dag.marked_by:
        with_causes.append(_marked_run(pipeline, dag))
    return with_causes


def _slot(failure: Failure, dag: DagState) -> Failure:
    """Add the reason why Airflow does not start the run."""
    general = not_started(failure.pipeline, failure.at)
    detail, next_step = general.detail, general.next_step
    if dag.waits is not None:
        detail, next_step = dag.waits.detail, dag.waits.next_step
    elif dag.paused:
        detail = f"{detail} The DAG is paused."
        next_step = f"Unpause the DAG {failure.pipeline} in Airflow."
    elif dag.marked_by:
        detail = f"{detail} {_marked(dag)}."
    return msgspec.structs.replace(failure, detail=detail, next_step=next_step)


def _overdue(failure: Failure, dag: DagState) -> Failure:
    """Add the next step that gets the records read."""
    next_step = Overdue.next_step
    if dag.paused:
        next_step = (
            f"Its DAG is paused, so no run starts. Unpause the DAG {failure.pipeline} in Airflow."
        )
    elif dag.waits is not None:
        next_step = f"{dag.waits.detail} {dag.waits.next_step}"
    return msgspec.structs.replace(failure, next_step=next_step)


def _run(failure: Failure, dag: DagState) -> Failure:
    """Add whether Airflow will repeat the run.

    The run's own process notes this, too, unless it was killed.
    """
    run = dag.last_run
    if run is None or not failure.run.startswith(f"{failure.pipeline}/{run.run}/"):
        return failure
    if failure.is_lasting or dag.attempts_left is None:
        return failure
    changed = msgspec.structs.replace(failure, attempts_left=dag.attempts_left)
    # If a task has attempts left, and a repetition could succeed, Airflow repeats the task. If the
    # run is in the state `failed` nevertheless, somebody has marked it as failed, even if Airflow
    # has not recorded who.
    is_marked = run.state == "failed" and bool(dag.marked_by or dag.attempts_left)
    if is_marked and not failure.marked:
        changed = msgspec.structs.replace(changed, marked=_marked(dag), repeats_at=None)
    return changed


def _marked_run(pipeline: str, dag: DagState) -> Failure:
    """Return the failure of a run that was marked as failed, and had not failed before."""
    assert dag.last_run is not None
    error = EngineError(f"{_marked(dag)}.")
    failure = Failure.of(error, pipeline, run=f"{pipeline}/{dag.last_run.run}")
    return msgspec.structs.replace(failure, at=dag.last_run.ended_at or failure.at)


def _marked(dag: DagState) -> str:
    """Return a text that says who marked the last run as failed, and when."""
    at = ""
    if dag.last_run is not None and dag.last_run.ended_at is not None:
        at = f" at {dag.last_run.ended_at:%H:%M:%S} UTC"
    return f"{dag.marked_by or 'Somebody'} marked the run as failed in Airflow{at}"


def note_causes(ledger: Ledger, runs: Runs) -> None:
    """Add the causes that Airflow's database knows to the failures in the ledger."""
    recorded: dict[str, list[Failure]] = {}
    for failure in ledger.failures.all():
        if failure.kind in _EXPLAINED:
            recorded.setdefault(failure.pipeline, []).append(failure)
    # Usually, the ledger has no failure of a kind in `_EXPLAINED`, so Airflow's database is not
    # asked.
    if not recorded:
        return
    dags = runs.dags()
    for pipeline, failures in recorded.items():
        if pipeline in dags:
            with_causes = explained(failures, pipeline, dags[pipeline])
            for before, after in zip(failures, with_causes, strict=False):
                changes = {name: getattr(after, name) for name in _FIELDS}
                ledger.failures.change(before, **changes)


async def note_causes_repeatedly(runs: Runs) -> None:
    """Note the causes every `PERIOD_S`, for ever."""
    ledger: Ledger | None = None
    while True:
        await asyncio.sleep(PERIOD_S)
        try:
            if ledger is None:
                ledger = await asyncio.to_thread(Ledger.open, settings().ledger)
            await asyncio.to_thread(note_causes, ledger, runs)
        except Exception as error:
            # The ledger or Airflow's database may not answer now. The next attempt may succeed.
            log.warning("causes of failures not found", why=str(error))
