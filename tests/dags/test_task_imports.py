"""The scheduler imports what tasks need before it forks them."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from airflow.jobs.job import Job
from airflow.listeners.listener import get_listener_manager
from structlog.testing import capture_logs

from sluice.orchestration import task_imports
from sluice.orchestration.task_imports import TaskImports, import_for_tasks

ROOT = Path(__file__).parents[2]
SCHEDULER = """
import sys
sys.argv = ["airflow", "scheduler"]
from airflow.jobs.job import Job
Job()
print("sluice.orchestration.dags" in sys.modules)
"""


def test_a_scheduler_imports_the_modules_of_tasks(tmp_path: Path) -> None:
    """Every component of Airflow makes a job before it does anything else."""
    variables = os.environ | {
        "AIRFLOW_HOME": str(tmp_path),
        "AIRFLOW__CORE__EXECUTOR": "LocalExecutor",
        "AIRFLOW__CORE__PLUGINS_FOLDER": str(ROOT / "plugins"),
        "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
        "SLUICE_HOME": str(tmp_path),
        "PYTHONPATH": str(ROOT),
    }
    done = subprocess.run(
        [sys.executable, "-c", SCHEDULER],
        env=variables,
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.splitlines()[-1] == "True", done.stderr


@pytest.mark.parametrize(
    ("command", "executor", "is_imported"),
    [
        ("scheduler", "CeleryExecutor,LocalExecutor", True),
        ("scheduler", "CeleryExecutor", False),
        ("triggerer", "LocalExecutor", False),
        ("api-server", "LocalExecutor", False),
    ],
)
def test_only_a_scheduler_that_forks_tasks_imports_them(
    monkeypatch: pytest.MonkeyPatch, command: str, executor: str, is_imported: bool
) -> None:
    imported: list[str] = []
    monkeypatch.setattr(task_imports, "import_module", imported.append)
    monkeypatch.setattr(sys, "argv", ["airflow", command])
    monkeypatch.setenv("AIRFLOW__CORE__EXECUTOR", executor)
    plugins = get_listener_manager().pm
    (listener,) = TaskImports.listeners
    plugins.register(listener)
    try:
        Job()  # type: ignore[no-untyped-call]
    finally:
        plugins.unregister(listener)
    assert imported == (["sluice.orchestration.dags"] if is_imported else [])


def test_a_scheduler_starts_also_if_the_modules_cannot_be_imported(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def fail(name: str) -> None:
        raise ImportError(f"no module {name}")

    monkeypatch.setattr(task_imports, "import_module", fail)
    with capture_logs() as logs:
        import_for_tasks()
    assert logs[0]["why"] == "ImportError: no module sluice.orchestration.dags"
