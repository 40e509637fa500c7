"""Imports the modules of pipelines' tasks once, before Airflow forks the tasks.

With the LocalExecutor, the processes of tasks are forks of the scheduler's process. A task then
finds these modules imported. This saves most of the time between the start of the task and the
start of its run.
"""

from __future__ import annotations

import sys
from importlib import import_module

import structlog
from airflow.configuration import conf
from airflow.listeners import hookimpl
from airflow.plugins_manager import AirflowPlugin

log = structlog.get_logger(__name__)

_FORKS_TASKS = "LocalExecutor"
_SCHEDULER = "scheduler"
"""The command that starts a scheduler."""


class _SchedulerStarts:
    """Airflow calls its method when a component starts."""

    @hookimpl
    def on_starting(self) -> None:
        """Import what tasks need if this process is a scheduler that forks them.

        Airflow calls this before the scheduler starts its executor. Only later does Airflow tell
        which kind of component this is.
        """
        is_scheduler = sys.argv[1:2] == [_SCHEDULER]
        if is_scheduler and _FORKS_TASKS in conf.get("core", "executor", fallback=""):
            import_for_tasks()


def import_for_tasks() -> None:
    """Import what the file of DAGs and the operator import.

    The scheduler must start even if an import fails, so the error is only logged. Each task then
    reports the same error.
    """
    try:
        import_module("sluice.orchestration.dags")
    except Exception as error:
        log.warning("modules not imported in advance", why=f"{type(error).__name__}: {error}")


class TaskImports(AirflowPlugin):
    """Lets tasks of the LocalExecutor start sooner."""

    name = "sluice_task_imports"
    listeners = [_SchedulerStarts()]  # noqa: RUF012 - declared like this by Airflow
