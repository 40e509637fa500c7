"""The runs that Airflow's database has, and the pool for which a task waits."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from sluice.api.runs import DagState
from tests.support.airflow_database import provide_database

SCRIPT = """
import json, sys
from datetime import datetime
from airflow.models.dag import DagModel, DagTag
from airflow.models.dagbundle import DagBundleModel
from airflow.models.dagrun import DagRun
from airflow.models.taskinstance import TaskInstance
from airflow.utils.session import create_session
from sqlalchemy import insert
from uuid import uuid4
from sluice.api.airflow_runs import AirflowRuns

since = datetime.fromisoformat(sys.argv[1])
with create_session() as session:
    session.execute(insert(DagBundleModel).values(name="dags", signed_url_template=None, template_params=None))
    for dag, state in (("orders", "scheduled"), ("pages", "queued"), ("words", "running")):
        session.execute(insert(DagModel).values(
            dag_id=dag, is_paused=False, is_stale=False, fileloc="f", bundle_name="dags", timetable_summary="",
            max_active_tasks=1, max_active_runs=1, max_consecutive_failed_dag_runs=0, has_task_concurrency_limits=False,
            has_import_errors=False, fail_fast=False,
        ))
        session.execute(insert(DagTag), [{"dag_id": dag, "name": tag} for tag in ("sluice", "pipeline")])
        # An earlier run had to wait, too.
        for run, of_task in (("manual__1", "scheduled" if dag == "words" else "success"), ("manual__2", state)):
            session.execute(insert(DagRun).values(
                dag_id=dag, run_id=run, run_type="manual", state="running", start_date=since, run_after=since,
                log_template_id=None, span_status="ended", conf={},
            ))
            session.execute(insert(TaskInstance).values(
                id=uuid4(), task_id="main", dag_id=dag, run_id=run, map_index=-1, state=of_task, pool="sluice",
                pool_slots=1, scheduled_dttm=since, max_tries=2,
            ))
found = {}
for name, dag in AirflowRuns().dags().items():
    found[name] = [dag.pool, dag.waits_since and dag.waits_since.isoformat(), dag.last_run.run]
print("FOUND " + json.dumps(found))
"""


def test_a_task_without_a_slot_waits_for_its_pool(tmp_path: Path) -> None:
    provide_database(tmp_path / "airflow.db")
    since = datetime(2026, 11, 21, 12, tzinfo=UTC)
    others = {name: value for name, value in os.environ.items() if not name.startswith("AIRFLOW")}
    environment = others | {
        "AIRFLOW_HOME": str(tmp_path),
        "AIRFLOW__DATABASE__SQL_ALCHEMY_CONN": f"sqlite:///{tmp_path}/airflow.db",
    }
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, since.isoformat()],
        env=environment, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout.partition("FOUND ")[2])
    assert found == {
        "orders": ["sluice", since.isoformat(), "manual__2"],
        "pages": ["", None, "manual__2"],
        "words": ["", None, "manual__2"],
    }


def test_a_short_wait_for_a_slot_is_usual() -> None:
    since = datetime(2026, 11, 21, 12, tzinfo=UTC)
    waits = DagState(False, None, "sluice", since)
    assert waits.waits_for_slot("orders", since + timedelta(seconds=39)) is None
    failure = waits.waits_for_slot("orders", since + timedelta(seconds=41))
    assert failure is not None
    assert (failure.kind, failure.at, failure.detail) == (
        "slot",
        since,
        "Its task waits for a slot of the pool sluice.",
    )
    assert DagState(False, None).waits_for_slot("orders", since) is None
