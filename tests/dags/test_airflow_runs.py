"""What Airflow's database knows about the newest runs of pipelines."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from tests.support.airflow_database import provide_database

SCRIPT = """
import json, sys
from datetime import datetime
from airflow.models.dag import DagModel, DagTag
from airflow.models.dagbundle import DagBundleModel
from airflow.models.dagrun import DagRun
from airflow.models.log import Log
from airflow.models.pool import Pool
from airflow.models.taskinstance import TaskInstance
from airflow.models.taskinstancehistory import TaskInstanceHistory
from airflow.utils.session import create_session
from sqlalchemy import insert
from uuid import uuid4
from sluice.api.airflow_runs import AirflowRuns

since = datetime.fromisoformat(sys.argv[1])
with create_session() as session:
    session.execute(insert(DagBundleModel).values(name="dags", signed_url_template=None, template_params=None))
    session.execute(insert(Pool).values(pool="streams", slots=3, include_deferred=False))
    # Each DAG with the state and the try of its newest run's task. The DAG of another team is no pipeline.
    dags = {
        "orders": ("scheduled", 1), "pages": ("queued", 1), "words": ("running", 1), "other_team": ("running", 1),
        "refunds": ("failed", 2), "returns": ("up_for_retry", 1),
    }
    for dag, (state, attempt) in dags.items():
        session.execute(insert(DagModel).values(
            dag_id=dag, is_paused=False, is_stale=False, fileloc="f", bundle_name="dags", timetable_summary="",
            max_active_tasks=1, max_active_runs=1, max_consecutive_failed_dag_runs=0, has_task_concurrency_limits=False,
            has_import_errors=False, fail_fast=False, owners="shop",
        ))
        if dag != "other_team":
            session.execute(insert(DagTag), [{"dag_id": dag, "name": tag} for tag in ("sluice", "pipeline")])
        # An earlier run had to wait, too.
        for run, of_task in (("manual__1", "scheduled" if dag == "words" else "success"), ("manual__2", state)):
            session.execute(insert(DagRun).values(
                dag_id=dag, run_id=run, run_type="manual", state="failed" if state == "failed" else "running",
                start_date=since, run_after=since, log_template_id=None, span_status="ended", conf={},
            ))
            session.execute(insert(TaskInstance).values(
                id=uuid4(), task_id="main", dag_id=dag, run_id=run, map_index=-1, state=of_task,
                pool="streams" if dag in ("orders", "other_team", "words") else "default_pool",
                pool_slots=2 if dag == "other_team" else 1, scheduled_dttm=since, start_date=since,
                try_number=attempt, max_tries=2,
            ))
    session.execute(insert(DagTag).values(dag_id="orders", name="payments"))
    session.execute(insert(TaskInstanceHistory).values(
        task_instance_id=uuid4(), task_id="main", dag_id="refunds", run_id="manual__2", map_index=-1, try_number=1,
        state="failed", start_date=since, end_date=since, pool="default_pool", pool_slots=1, max_tries=2,
    ))
    for event, user in (("trigger_dag_run", "bob"), ("patch_dag_run", "ada")):
        session.execute(insert(Log).values(
            event=event, dag_id="refunds", run_id="manual__2", owner=user, owner_display_name=user, dttm=since,
        ))
found = {}
for name, dag in AirflowRuns().dags().items():
    found[name] = [dag.last_run.run, dag.attempts_left, dag.marked_by, dag.waits and dag.waits.detail]
tags = {name: [dag.owner, *dag.tags] for name, dag in AirflowRuns().dags().items()}
newest = AirflowRuns().recent("refunds", 1)[0]
attempts = [[attempt.number, attempt.state, attempt.log] for attempt in newest.attempts]
print("FOUND " + json.dumps([found, tags, attempts]))
"""


def test_the_database_knows_what_a_run_waits_for_and_how_it_goes_on(tmp_path: Path) -> None:
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
    found: dict[str, Any]
    found, tags, attempts = json.loads(done.stdout.partition("FOUND ")[2])
    assert tags == {name: ["shop", "payments"] if name == "orders" else ["shop"] for name in found}
    log = "/dags/refunds/runs/manual__2/tasks/main?try_number="
    assert attempts == [[1, "failed", f"{log}1"], [2, "failed", f"{log}2"]]
    holders = (
        "main of other_team (2 slots since 12:00:00 UTC), main of words (1 slot since 12:00:00 UTC)"
    )
    assert found == {
        "orders": [
            "manual__2", None, "",
            f"Its task waits for a slot of the pool streams. All 3 slots are taken by {holders}.",
        ],
        "pages": ["manual__2", None, "", None],
        "words": ["manual__2", None, "", None],
        "refunds": ["manual__2", 1, "ada", None],
        "returns": ["manual__2", 2, "", None],
    }  # fmt: skip
