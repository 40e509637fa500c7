"""Retries: how often and when Airflow repeats a failed task, and how long a task may take.

An error that a retry cannot repair, such as a wrong setting, fails the task at once: see
`operator.SluiceOperator`.
"""

from __future__ import annotations

from datetime import timedelta
from typing import Any

OWNER = "sluice"


def pipeline_task_defaults() -> dict[str, Any]:
    """Default arguments of the tasks that run pipelines.

    Since Airflow 3.3, Airflow uses the delays only if the task's process was killed. Otherwise,
    `Repetition` decides whether and when Airflow repeats the task.
    """
    return {
        "owner": OWNER,
        "retries": 2,
        "retry_delay": timedelta(seconds=10),
        "retry_exponential_backoff": True,
        "max_retry_delay": timedelta(minutes=5),
        "execution_timeout": timedelta(hours=2),
    }


def maintenance_task_defaults() -> dict[str, Any]:
    """Default arguments of the tasks that maintain the state of all pipelines."""
    return {"owner": OWNER, "retries": 2, "retry_delay": timedelta(minutes=1)}
