"""The scheduler imports what tasks need before it forks them."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
from airflow.listeners.listener import get_listener_manager
from structlog.testing import capture_logs

from sluice.orchestration import task_imports
from sluice.orchestration.task_imports import TaskImports


@dataclass
class Component:
    """A component of Airflow that starts."""

    job_type: str


@pytest.fixture
def imported(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    names: list[str] = []
    monkeypatch.setattr(task_imports, "import_module", names.append)
    return names


def start(job_type: str) -> None:
    """Let Airflow say that a component starts."""
    manager = get_listener_manager()
    (listener,) = TaskImports.listeners
    manager.pm.register(listener)
    try:
        manager.hook.on_starting(component=Component(job_type))
    finally:
        manager.pm.unregister(listener)


@pytest.mark.parametrize(
    ("executor", "job_type", "is_imported"),
    [
        ("LocalExecutor", "SchedulerJob", True),
        ("CeleryExecutor,LocalExecutor", "SchedulerJob", True),
        ("LocalExecutor", "TriggererJob", False),
        ("CeleryExecutor", "SchedulerJob", False),
    ],
)
def test_only_a_scheduler_that_forks_tasks_imports_their_modules(
    imported: list[str],
    monkeypatch: pytest.MonkeyPatch,
    executor: str,
    job_type: str,
    is_imported: bool,
) -> None:
    monkeypatch.setenv("AIRFLOW__CORE__EXECUTOR", executor)
    start(job_type)
    assert imported == (["sluice.orchestration.dags"] if is_imported else [])


def test_a_scheduler_starts_also_if_the_modules_cannot_be_imported(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def fail(name: str) -> None:
        raise ImportError(f"no module {name}")

    monkeypatch.setattr(task_imports, "import_module", fail)
    monkeypatch.setenv("AIRFLOW__CORE__EXECUTOR", "LocalExecutor")
    with capture_logs() as logs:
        start("SchedulerJob")
    assert logs[0]["why"] == "ImportError: no module sluice.orchestration.dags"
