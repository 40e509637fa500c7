"""The scheduler imports what tasks need before it forks them."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from sluice.orchestration import task_imports
from sluice.orchestration.task_imports import import_for_tasks

ROOT = Path(__file__).parents[2]
COMPONENT = """
import sys
sys.argv = ["airflow", {command!r}]
from airflow.jobs.job import Job
Job()
print("sluice.orchestration.dags" in sys.modules)
"""


@pytest.mark.parametrize(
    ("command", "executor", "is_imported"),
    [
        ("scheduler", "LocalExecutor", True),
        ("scheduler", "CeleryExecutor", False),
        ("triggerer", "LocalExecutor", False),
    ],
)
def test_only_a_scheduler_that_forks_tasks_imports_their_modules(
    tmp_path: Path, command: str, executor: str, is_imported: bool
) -> None:
    """Every component of Airflow makes a job before it does anything else."""
    variables = os.environ | {
        "AIRFLOW_HOME": str(tmp_path),
        "AIRFLOW__CORE__EXECUTOR": executor,
        "AIRFLOW__CORE__PLUGINS_FOLDER": str(ROOT / "plugins"),
        "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
        "SLUICE_HOME": str(tmp_path),
        "PYTHONPATH": str(ROOT),
    }
    done = subprocess.run(
        [sys.executable, "-c", COMPONENT.format(command=command)],
        env=variables,
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.splitlines()[-1] == str(is_imported), done.stderr


def test_a_scheduler_starts_also_if_the_modules_cannot_be_imported(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def fail(name: str) -> None:
        raise ImportError(f"no module {name}")

    monkeypatch.setattr(task_imports, "import_module", fail)
    with capture_logs() as logs:
        import_for_tasks()
    assert logs[0]["why"] == "ImportError: no module sluice.orchestration.dags"
