"""Who did what to a pipeline, and when: from the ledger, Airflow's runs, and the pipeline's runs.

Airflow knows which user started a run in Airflow. Nobody records who changed a pipeline's file or
installed another version of Sluice, but the next run shows the change.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime

from sluice import answers
from sluice.observe.batch_history import marks
from sluice.state.ledger.activities import Activity
from sluice.state.ledger.finished_runs import KEPT, MOST_RUNS
from sluice.state.ledger.ledger import Ledger


def activity(
    ledger: Ledger,
    pipeline: str,
    runs: Iterable[answers.Run],
    run_path: str,
    limit: int,
    now: datetime,
) -> list[answers.Activity]:
    """Return what people have done to a pipeline, newest first.

    `run_path` is the path in Airflow of the pipeline's runs.
    """
    noted = ledger.activities.of(pipeline, limit)
    known: set[str] = set()
    all_of_them: list[answers.Activity] = []
    for activity in noted:
        known.add(activity.run)
        all_of_them.append(_noted(activity, run_path))
    for run in runs:
        if run.started_by and run.run not in known:
            all_of_them.append(_started(run))
    finished = ledger.finished_runs.between(pipeline, now - KEPT, now, MOST_RUNS)
    for mark in marks(ledger, pipeline, now - KEPT, now, finished):
        all_of_them.append(
            answers.Activity(at=mark.at, by="", action="change", detail=mark.text, log="")
        )
    return sorted(all_of_them, key=lambda activity: activity.at, reverse=True)[:limit]


def _noted(activity: Activity, run_path: str) -> answers.Activity:
    log = ""
    if activity.run:
        log = f"{run_path}/{activity.run}"
    return answers.Activity(
        at=activity.at, by=activity.by, action=activity.action, detail=activity.detail, log=log
    )


def _started(run: answers.Run) -> answers.Activity:
    at = run.queued_at or run.started_at
    assert at is not None
    return answers.Activity(at=at, by=run.started_by, action=run.action, detail="", log=run.log)
