"""Airflow in the tests' own process.

Import this module before Airflow, which reads its environment once.
"""

from __future__ import annotations

import atexit
import os
import shutil
import tempfile
from pathlib import Path

# Each process has its own home, even if it inherits the environment of another process.
HOME = tempfile.mkdtemp(prefix="sluice-airflow-")
atexit.register(shutil.rmtree, HOME, ignore_errors=True)

os.environ["AIRFLOW_HOME"] = HOME
os.environ.setdefault("AIRFLOW__CORE__LOAD_EXAMPLES", "False")
os.environ.setdefault("AIRFLOW__CORE__DAGS_FOLDER", str(Path(__file__).parents[2] / "dags"))
