"""Runs of pipelines in Airflow, read from Airflow's database by Airflow's API server."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any
from urllib.parse import quote, urlsplit

import msgspec
from airflow.api.common.trigger_dag import trigger_dag
from airflow.configuration import conf
from airflow.exceptions import ParamValidationError
from airflow.models.dag import DagModel, DagTag
from airflow.models.dagrun import DagRun
from airflow.models.log import Log
from airflow.models.pool import Pool
from airflow.models.taskinstance import TaskInstance
from airflow.models.taskinstancehistory import TaskInstanceHistory
from airflow.ti_deps.dependencies_states import EXECUTION_STATES
from airflow.utils.session import create_session
from airflow.utils.types import DagRunTriggeredByType
from sqlalchemy import and_, func, or_, select, tuple_
from sqlalchemy.orm import Session

from sluice.airflow_releases import AirflowException
from sluice.answers import Attempt, Run
from sluice.api.runs import DagState, PoolWait
from sluice.errors import NotFound, QueryError
from sluice.values.phrases import counted

_TAG, _KINDS = "sluice", ("pipeline", "broken")
"""The tags by which pipelines' DAGs are found: each has the tag `sluice`, and one of the two
kinds."""
_ACTION = "action"
_MARKING = ("patch_dag_run", "patch_task_instance")
"""The names, in Airflow's audit log, of a user's changes of the state of a run or its task."""
_LOOK_AT_DAGS = "Look for the DAG, and for errors of its file, in Airflow."
_LONG_AGO = datetime.min.replace(tzinfo=UTC)


class AirflowRuns:
    """The runs of pipelines' DAGs."""

    def __init__(self) -> None:
        self.root = urlsplit(conf.get("api", "base_url", fallback="") or "").path.rstrip("/")

    def dags(self) -> Mapping[str, DagState]:
        """Return each pipeline's DAG with its newest run."""
        with create_session() as session:
            # Other DAGs have the tag sluice, too, such as the DAG that sends sample orders.
            with_tag = select(DagTag.dag_id).where(DagTag.name == _TAG)
            tagged = select(DagTag.dag_id).where(
                DagTag.name.in_(_KINDS), DagTag.dag_id.in_(with_tag)
            )
            columns = DagModel.dag_id, DagModel.is_paused, DagModel.owners
            dags = session.execute(select(*columns).where(DagModel.dag_id.in_(tagged))).all()
            # Take the run with the largest id: ids always increase, but two runs can have the same
            # time.
            newest = (
                select(func.max(DagRun.id)).where(DagRun.dag_id.in_(tagged)).group_by(DagRun.dag_id)
            )
            runs = session.scalars(select(DagRun).where(DagRun.id.in_(newest))).all()
            tasks = self._tasks(session, runs)
            waiting, marked = self._waiting(session, tasks.values()), self._marked(session, runs)
            tags = self._own_tags(session, [name for name, _, _ in dags])
            states: dict[str, DagState] = {}
            for name, is_paused, owner in dags:
                own = tags.get(name, ())
                states[name] = DagState(bool(is_paused), None, tags=own, owner=owner or "")
            for run in runs:
                task = tasks.get((run.dag_id, run.run_id))
                states[run.dag_id] = replace(
                    states[run.dag_id],
                    last_run=self._answer(run, task),
                    waits=waiting.get(run.dag_id),
                    attempts_left=_attempts_left(task),
                    marked_by=marked.get(run.dag_id, ""),
                )
            return states

    def _own_tags(self, session: Session, dags: Iterable[str]) -> dict[str, tuple[str, ...]]:
        """Return DAG → its tags apart from Sluice's own, sorted."""
        statement = (
            select(DagTag.dag_id, DagTag.name)
            .where(DagTag.dag_id.in_([*dags]), DagTag.name.not_in((_TAG, *_KINDS)))
            .order_by(DagTag.name)
        )
        tags: dict[str, tuple[str, ...]] = {}
        for dag, tag in session.execute(statement).all():
            tags[dag] = (*tags.get(dag, ()), tag)
        return tags

    def _waiting(self, session: Session, tasks: Iterable[Any]) -> dict[str, PoolWait]:
        """Return DAG → the wait of its task for a slot of a pool; only of DAGs with such a wait.

        Airflow's scheduler sets the state `scheduled` when the task may run, and `queued` when it
        has a slot. A task in the state `scheduled` therefore waits for a slot.
        """
        waiting: dict[str, Any] = {}
        for task in tasks:
            if task.state == "scheduled" and task.scheduled_dttm:
                waiting[task.dag_id] = task
        if not waiting:
            return {}
        pools = {task.pool for task in waiting.values()}
        statement = select(Pool.pool, Pool.slots).where(Pool.pool.in_(pools))
        slots = dict(session.execute(statement).all())
        holders = self._holders(session, pools)
        waits: dict[str, PoolWait] = {}
        for dag, task in waiting.items():
            taken = 0
            texts: list[str] = []
            for holder in holders.get(task.pool, ()):
                taken += holder.pool_slots
                texts.append(_holder_text(holder))
            waits[dag] = PoolWait(
                task.pool, slots.get(task.pool, 0), task.scheduled_dttm, tuple(texts), taken
            )
        return waits

    def _holders(self, session: Session, pools: Iterable[str]) -> dict[str, list[Any]]:
        """Return the tasks that occupy each pool's slots, the longest-running task first."""
        c = TaskInstance
        columns = c.dag_id, c.task_id, c.pool, c.pool_slots, c.state, c.start_date, c.queued_dttm
        is_counted = or_(
            c.state.in_(EXECUTION_STATES),
            and_(c.state == "deferred", Pool.include_deferred.is_(True)),
        )
        statement = (
            select(*columns).join(Pool, Pool.pool == c.pool).where(c.pool.in_(pools), is_counted)
        )
        holders: dict[str, list[Any]] = {}
        for task in session.execute(statement).all():
            holders.setdefault(task.pool, []).append(task)
        for of_pool in holders.values():
            of_pool.sort(key=_age_order)
        return holders

    def _marked(self, session: Session, runs: Iterable[DagRun]) -> dict[str, str]:
        """Return the users who have marked runs as failed, by DAG."""
        failed: list[tuple[str, str]] = []
        for run in runs:
            if str(run.state) == "failed":
                failed.append((run.dag_id, run.run_id))
        if not failed:
            return {}
        statement = (
            select(Log.dag_id, Log.owner_display_name, Log.owner)
            .where(Log.event.in_(_MARKING), tuple_(Log.dag_id, Log.run_id).in_(failed))
            .order_by(Log.id)
        )
        users: dict[str, str] = {}
        for dag, display_name, owner in session.execute(statement).all():
            users[str(dag)] = display_name or owner or ""
        return users

    def recent(self, pipeline: str, limit: int) -> list[Run]:
        """Return the newest runs of a pipeline, newest first."""
        with create_session() as session:
            newest = (
                select(DagRun)
                .where(DagRun.dag_id == pipeline)
                .order_by(DagRun.id.desc())
                .limit(limit)
            )
            runs = session.scalars(newest).all()
            tasks, attempts = self._tasks(session, runs), self._attempts(session, pipeline, runs)
            answers: list[Run] = []
            for run in runs:
                answer = self._answer(run, tasks.get((run.dag_id, run.run_id)))
                tried = attempts.get(run.run_id, [])
                answers.append(msgspec.structs.replace(answer, attempts=tried))
            return answers

    def _attempts(
        self, session: Session, pipeline: str, runs: Iterable[DagRun]
    ) -> dict[str, list[Attempt]]:
        """Return each run → the attempts of its tasks, oldest first.

        Airflow keeps the newest attempt of a task in one table, and earlier attempts in another.
        """
        names = [run.run_id for run in runs]
        attempts: dict[str, dict[tuple[str, int], Attempt]] = {}
        for table in (TaskInstanceHistory, TaskInstance):
            columns = (
                table.run_id,
                table.task_id,
                table.try_number,
                table.state,
                table.queued_dttm,
                table.start_date,
                table.end_date,
            )
            statement = select(*columns).where(table.dag_id == pipeline, table.run_id.in_(names))
            for task in session.execute(statement).all():
                if task.try_number:
                    attempt = self._attempt(pipeline, task)
                    attempts.setdefault(task.run_id, {})[task.task_id, task.try_number] = attempt
        oldest_first: dict[str, list[Attempt]] = {}
        for run, of_run in attempts.items():
            oldest_first[run] = [attempt for _, attempt in sorted(of_run.items())]
        return oldest_first

    def _attempt(self, pipeline: str, task: Any) -> Attempt:
        log = self._log(pipeline, task.run_id, task.task_id)
        return Attempt(
            number=task.try_number,
            state=str(task.state or "queued"),
            queued_at=task.queued_dttm,
            started_at=task.start_date,
            ended_at=task.end_date,
            log=f"{log}?try_number={task.try_number}",
        )

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
            raise QueryError(
                f"The DAG of {pipeline} does not accept these parameters: {error}",
                next_step=f"See the parameters of the DAG {pipeline} in Airflow.",
            ) from None
        except AirflowException as error:
            raise NotFound(
                f"The DAG of {pipeline} cannot be started: {error}", next_step=_LOOK_AT_DAGS
            ) from None
        if run is None:
            raise NotFound(f"There is no DAG {pipeline!r}.", next_step=_LOOK_AT_DAGS)
        return str(run.run_id)

    def _tasks(self, session: Session, runs: Sequence[DagRun]) -> dict[tuple[str, str], Any]:
        """Return one task of each run, by DAG and run. Its log shows how the run went.

        This is a failed task, or else the task that was started last.
        """
        if not runs:
            return {}
        c = TaskInstance
        columns = (
            c.dag_id,
            c.run_id,
            c.task_id,
            c.state,
            c.start_date,
            c.try_number,
            c.max_tries,
            c.pool,
            c.scheduled_dttm,
        )
        dag_ids = {run.dag_id for run in runs}
        run_ids = {run.run_id for run in runs}
        instances = select(*columns).where(c.dag_id.in_(dag_ids), c.run_id.in_(run_ids))
        tasks: dict[tuple[str, str], Any] = {}
        for task in session.execute(instances).all():
            run_key = (task.dag_id, task.run_id)
            if run_key not in tasks or _rank(task) > _rank(tasks[run_key]):
                tasks[run_key] = task
        return tasks

    def _answer(self, run: DagRun, task: Any) -> Run:
        log = self._log(run.dag_id, run.run_id, task.task_id if task is not None else "")
        state = str(run.state)
        if state not in ("running", "success", "failed"):
            state = "queued"
        return Run(
            run=run.run_id,
            state=state,  # type: ignore[arg-type]
            started_at=run.start_date,
            ended_at=run.end_date,
            log=log,
            action=str((run.conf or {}).get(_ACTION, "run")),
            queued_at=run.queued_at,
            # A scheduled run has no user. Before Airflow 3.1, no run has a user.
            started_by=getattr(run, "triggering_user_name", None) or "",
        )

    def _log(self, dag: str, run: str, task: str) -> str:
        """Return the path in Airflow of a run's task, or of the run if `task` is empty."""
        path = f"{self.root}/dags/{quote(dag, safe='')}/runs/{quote(run, safe='')}"
        if not task:
            return path
        return f"{path}/tasks/{quote(task, safe='')}"


def _rank(task: Any) -> tuple[bool, float]:
    """Return a sort key that is largest for the task whose log shows how its run went.

    This is a failed task, or else the task that was started last.
    """
    started = task.start_date.timestamp() if task.start_date else 0.0
    return str(task.state) == "failed", started


def _age_order(task: Any) -> tuple[datetime, str]:
    return task.start_date or task.queued_dttm or _LONG_AGO, task.dag_id


def _attempts_left(task: Any) -> int | None:
    """Return the attempts that a task has left.

    Return None if it has not failed, or if an attempt is running.
    """
    if task is None or task.state not in ("failed", "up_for_retry"):
        return None
    left: int = task.max_tries + 1 - task.try_number
    return max(left, 0)


def _holder_text(task: Any) -> str:
    slots = counted(task.pool_slots, "slot")
    since = task.start_date or task.queued_dttm
    if since:
        slots += f" since {since:%H:%M:%S} UTC"
    return f"{task.task_id} of {task.dag_id} ({slots})"
