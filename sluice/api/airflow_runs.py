"""Runs of pipelines in Airflow, read from Airflow's database by Airflow's API server."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import Any
from urllib.parse import quote, urlsplit

from airflow.api.common.trigger_dag import trigger_dag
from airflow.configuration import conf
from airflow.exceptions import ParamValidationError
from airflow.models.dag import DagModel, DagTag
from airflow.models.dagrun import DagRun
from airflow.models.taskinstance import TaskInstance
from airflow.sdk.exceptions import AirflowException
from airflow.utils.session import create_session
from airflow.utils.types import DagRunTriggeredByType
from sqlalchemy import func, select, tuple_
from sqlalchemy.orm import Session

from sluice.answers import Run
from sluice.api.runs import DagState
from sluice.errors import NotFound, QueryError

_TAG, _KINDS = "sluice", ("pipeline", "broken")
"""The tags of pipelines' DAGs. Each DAG has the tag `sluice` and one of the two kinds."""
_ACTION = "action"


class AirflowRuns:
    """The runs of pipelines' DAGs."""

    def __init__(self) -> None:
        self.root = urlsplit(conf.get("api", "base_url", fallback="") or "").path.rstrip("/")

    def dags(self) -> Mapping[str, DagState]:
        """Pipeline → its DAG with the newest run."""
        with create_session() as session:
            # Other DAGs have the tag sluice, too, such as the DAG that sends sample orders.
            with_tag = select(DagTag.dag_id).where(DagTag.name == _TAG)
            tagged = select(DagTag.dag_id).where(DagTag.name.in_(_KINDS), DagTag.dag_id.in_(with_tag))
            statement = select(DagModel.dag_id, DagModel.is_paused).where(DagModel.dag_id.in_(tagged))
            paused = dict(session.execute(statement).all())
            # Ids increase with every run, while the times of runs can be equal.
            newest = select(func.max(DagRun.id)).where(DagRun.dag_id.in_(tagged)).group_by(DagRun.dag_id)
            runs = session.scalars(select(DagRun).where(DagRun.id.in_(newest))).all()
            last = dict(zip((run.dag_id for run in runs), self._answers(session, runs), strict=True))
            waiting = self._waiting(session, runs)
            states: dict[str, DagState] = {}
            for name, is_paused in paused.items():
                pool, since = waiting.get(name, ("", None))
                states[name] = DagState(bool(is_paused), last.get(name), pool, since)
            return states

    def _waiting(self, session: Session, runs: Iterable[DagRun]) -> dict[str, tuple[str, datetime | None]]:
        """DAG → the pool in which a task of its newest run waits for a slot, and since when.

        Airflow's scheduler sets the state `scheduled` when the task may run, and `queued` when it has a slot.
        """
        c = TaskInstance
        newest = [(run.dag_id, run.run_id) for run in runs]
        statement = select(c.dag_id, c.pool, c.scheduled_dttm).where(
            c.state == "scheduled", tuple_(c.dag_id, c.run_id).in_(newest)
        )
        return {task.dag_id: (task.pool, task.scheduled_dttm) for task in session.execute(statement).all()}

    def recent(self, pipeline: str, limit: int) -> list[Run]:
        """The newest runs of a pipeline, newest first."""
        with create_session() as session:
            newest = select(DagRun).where(DagRun.dag_id == pipeline).order_by(DagRun.id.desc()).limit(limit)
            return self._answers(session, session.scalars(newest).all())

    def start(self, pipeline: str, parameters: Mapping[str, Any], user: str) -> str:
        """Trigger the pipeline's DAG and return the new run's id."""
        try:
            run = trigger_dag(
                pipeline,
                triggered_by=DagRunTriggeredByType.REST_API,
                triggering_user_name=user,
                conf=dict(parameters),
            )
        except (ParamValidationError, ValueError) as error:
            raise QueryError(f"The DAG of {pipeline} does not accept these parameters: {error}") from None
        except AirflowException as error:
            raise NotFound(f"The DAG of {pipeline} cannot be started: {error}") from None
        if run is None:
            raise NotFound(f"There is no DAG {pipeline!r}.")
        return str(run.run_id)

    def _answers(self, session: Session, runs: Iterable[DagRun]) -> list[Run]:
        runs = list(runs)
        if not runs:
            return []
        columns = (
            TaskInstance.dag_id,
            TaskInstance.run_id,
            TaskInstance.task_id,
            TaskInstance.state,
            TaskInstance.start_date,
        )
        instances = select(*columns).where(
            TaskInstance.dag_id.in_({run.dag_id for run in runs}),
            TaskInstance.run_id.in_({run.run_id for run in runs}),
        )
        tasks: dict[tuple[str, str], Any] = {}
        for task in session.execute(instances).all():
            run_key = (task.dag_id, task.run_id)
            if run_key not in tasks or _rank(task) > _rank(tasks[run_key]):
                tasks[run_key] = task
        return [self._answer(run, tasks.get((run.dag_id, run.run_id))) for run in runs]

    def _answer(self, run: DagRun, task: Any) -> Run:
        log = f"{self.root}/dags/{quote(run.dag_id, safe='')}/runs/{quote(run.run_id, safe='')}"
        if task is not None:
            log += f"/tasks/{quote(task.task_id, safe='')}"
        state = str(run.state)
        return Run(
            run=run.run_id,
            state=state if state in ("running", "success", "failed") else "queued",  # type: ignore[arg-type]
            started_at=run.start_date,
            ended_at=run.end_date,
            log=log,
            action=str((run.conf or {}).get(_ACTION, "run")),
        )


def _rank(task: Any) -> tuple[bool, float]:
    """A sort key, largest for the task whose log explains a run: a failed task, or else the task started last."""
    return str(task.state) == "failed", task.start_date.timestamp() if task.start_date else 0.0
