"""Retries: how often and when Airflow repeats a failed task, and how long a task may take.

An error that a retry cannot repair, such as a wrong setting, fails the task at once: see
`operator.SluiceOperator`.
"""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from sluice.topology.loading.run_options import DEFAULTS, OWNER, RunOptions


def pipeline_task_defaults(options: RunOptions = DEFAULTS) -> dict[str, Any]:
    """Return the default arguments of the tasks that run pipelines.

    Since Airflow 3.3, Airflow uses the delays only if the task's process was killed. Otherwise,
    `Repetition` decides whether and when Airflow repeats the task.
    """
    given = {"queue": options.queue, "priority_weight": options.priority}
    return {
        "owner": options.owner,
        "retries": options.retries,
        "retry_delay": timedelta(seconds=10),
        "retry_exponential_backoff": True,
        "max_retry_delay": timedelta(minutes=5),
        "execution_timeout": timedelta(milliseconds=options.timeout_ms or 0),
        **{name: value for name, value in given.items() if value is not None},
    }


def maintenance_task_defaults() -> dict[str, Any]:
    """Return the default arguments of the tasks that maintain the state of all pipelines."""
    return {"owner": OWNER, "retries": 2, "retry_delay": timedelta(minutes=1)}
