"""Airflow's metadata database for tests: migrated once for each version of Airflow, then copied."""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
import sys
import tempfile
from importlib.metadata import version
from pathlib import Path

CACHE = Path(__file__).parents[2] / ".sluice" / "tests"


def provide_database(path: Path) -> None:
    """Put a migrated SQLite database at `path`. The first call migrates one, which takes some ten seconds."""
    CACHE.mkdir(parents=True, exist_ok=True)
    migrated = CACHE / f"airflow-{version('apache-airflow')}.db"
    with (CACHE / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not migrated.exists():
            _migrate(migrated)
    path.parent.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(migrated, path)


def _migrate(database: Path) -> None:
    with tempfile.TemporaryDirectory() as home:
        made = Path(home) / "airflow.db"
        others = {
            name: value for name, value in os.environ.items() if not name.startswith("AIRFLOW")
        }
        env = others | {
            "AIRFLOW_HOME": home,
            "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
            "AIRFLOW__DATABASE__SQL_ALCHEMY_CONN": f"sqlite:///{made}",
        }
        migration = subprocess.run(
            [sys.executable, "-m", "airflow", "db", "migrate"],
            env=env,
            capture_output=True,
            text=True,
            check=False,
        )
        if migration.returncode:
            raise RuntimeError(
                f"airflow db migrate failed:\n{migration.stdout[-2_000:]}{migration.stderr[-2_000:]}"
            )
        partial = database.with_suffix(".partial")
        shutil.copyfile(made, partial)
        partial.rename(database)
