"""Failures and old data reach the functions that a DAG file names."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from airflow.sdk.definitions.callback import AsyncCallback
from airflow.serialization.serialized_objects import DagSerialization

from sluice.orchestration.alerts import check_age
from sluice.orchestration.dags import Alerts, pipeline_dags
from sluice.settings import settings
from sluice.state.ledger.ledger import Ledger
from sluice.state.model import JobInfo
from tests.states import make_snapshot

MINUTE = 60_000
CONTEXT = {"dag_run": {"dag_run_id": "manual__1"}, "deadline": {"deadline_time": "2026-11-21T08:10:00Z"}}
told: list[dict[str, Any]] = []


async def notify(**what: Any) -> None:
    told.append(what)


def page(_context: Any) -> None:
    """Somebody's failure callback."""


@pytest.fixture(autouse=True)
def nobody_was_told() -> None:
    told.clear()


def dag_of(folder: Path, arguments: str, alerts: Alerts) -> Any:
    (folder / "p.py").write_text(
        f'from sluice import Pipeline\npipeline = Pipeline("p"{arguments})\n'
        'pipeline.stream("t", value=str).to("u", value=str)\n'
    )
    return pipeline_dags(folder, alerts)["p"]


def test_a_task_that_has_failed_after_its_retries_calls_back(tmp_path: Path) -> None:
    task = dag_of(tmp_path, "", Alerts(on_failure=page)).task_dict["main"]
    assert (task.retries, task.retry_exponential_backoff, task.on_failure_callback) == (2, True, [page])
    assert (task.retry_delay, task.max_retry_delay) == (timedelta(seconds=10), timedelta(minutes=5))


def test_without_alerts_nothing_is_called(tmp_path: Path) -> None:
    dag = dag_of(tmp_path, "", Alerts())
    assert dag.deadline is None
    assert not dag.task_dict["main"].on_failure_callback


def test_a_deadline_of_a_pipeline_is_one_of_its_runs(tmp_path: Path) -> None:
    dag = dag_of(tmp_path, ', deadline="10 minutes"', Alerts(on_overdue="tests.dags.test_alerts:notify"))
    (alert,) = dag.deadline
    assert (alert.reference.reference_name, alert.interval) == ("DagRunQueuedAtDeadline", timedelta(minutes=10))
    assert isinstance(alert.callback, AsyncCallback)
    assert alert.callback.path == "sluice.orchestration.alerts.check_age"
    assert alert.callback.kwargs == {
        "pipeline": "p", "deadline_ms": 10 * MINUTE, "notify": "tests.dags.test_alerts:notify",
    }  # fmt: skip
    assert DagSerialization.to_dict(dag)["dag"]["deadline"]


@pytest.mark.parametrize("minutes", [None, 11])
def test_old_data_are_a_failure_of_the_pipeline(minutes: int | None) -> None:
    publish(minutes)
    found = asyncio.run(check_age("orders", 10 * MINUTE, "tests.dags.test_alerts:notify", CONTEXT))
    assert found.startswith("The run has not ended 10 min after it was queued, and ")
    assert told == [{"pipeline": "orders", "detail": found, "context": CONTEXT}]
    with Ledger.open(settings().ledger) as ledger:
        (failure,) = ledger.failures.all()
        assert (failure.pipeline, failure.run, failure.title) == ("orders", "manual__1", "The data are too old")
        # The next run that has read everything ends it, as it ends every failure of a run.
        ledger.failures.clear("orders", "main")
        assert ledger.failures.all() == []


def test_new_data_of_a_run_that_lingers_raise_no_alert() -> None:
    publish(9)
    assert asyncio.run(check_age("orders", 10 * MINUTE, "tests.dags.test_alerts:notify")) == "The data are new."
    assert told == []
    with Ledger.open(settings().ledger) as ledger:
        assert ledger.failures.all() == []


def publish(minutes: int | None) -> None:
    """Publish a snapshot some minutes ago; none for None."""
    with Ledger.open(settings().ledger) as ledger:
        ledger.jobs.register(JobInfo(pipeline="orders", job="main", generation=1, workers=(), stores=(), topics=("t",)))
        if minutes is not None:
            at = datetime.now(UTC) - timedelta(minutes=minutes)
            ledger.snapshots.publish(make_snapshot(0, job="main", published_at=at))
