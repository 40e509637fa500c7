"""A project that `sluice init` made passes its tests with the wheel alone, without this repository."""

from __future__ import annotations

import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.slow
def test_a_new_projects_tests_pass_on_the_wheel(tmp_path: Path) -> None:
    site, project = tmp_path / "site", tmp_path / "shop"

    def run(*command: str | Path, folder: Path) -> str:
        environment = {**os.environ, "PYTHONPATH": str(site)}
        done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    run(
        Path(sys.executable).with_name("uv"),
        "build",
        "--quiet",
        "--wheel",
        "--out-dir",
        tmp_path,
        ROOT,
        folder=tmp_path,
    )
    (wheel,) = tmp_path.glob("sluice_streams-*.whl")
    zipfile.ZipFile(wheel).extractall(site)
    run(sys.executable, "-m", "sluice.cli", "init", "shop", folder=tmp_path)
    where = run(sys.executable, "-c", "import sluice; print(sluice.__file__)", folder=project)
    assert Path(where.strip()).is_relative_to(site)
    assert "2 passed" in run(sys.executable, "-m", "pytest", "-q", folder=project)
    assert "visits_total" in run(sys.executable, "-m", "sluice.cli", "explain", "visits", folder=project)
