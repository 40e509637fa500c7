"""A project that `sluice init` made passes its tests with the wheel alone, without this repository."""

from __future__ import annotations

import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def run(*command: str | Path, folder: Path, site: Path) -> str:
    """Run a command with the packages in `site`, and return its output."""
    environment = {**os.environ, "PYTHONPATH": str(site)}
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the wheel's files."""
    folder = tmp_path_factory.mktemp("wheel")
    site = folder / "site"
    build = (
        Path(sys.executable).with_name("uv"),
        "build",
        "--quiet",
        "--wheel",
        "--out-dir",
        folder,
        ROOT,
    )
    run(*build, folder=folder, site=site)
    (wheel,) = folder.glob("sluice_streams-*.whl")
    zipfile.ZipFile(wheel).extractall(site)
    return site


@pytest.fixture
def project(tmp_path: Path, site: Path) -> Path:
    """The folder of a new project."""
    run(sys.executable, "-m", "sluice", "init", "shop", folder=tmp_path, site=site)
    return tmp_path / "shop"


@pytest.mark.heavy  # test_cli.py makes a project
def test_a_new_project_uses_the_wheel(site: Path, project: Path) -> None:
    where = run(
        sys.executable, "-c", "import sluice; print(sluice.__file__)", folder=project, site=site
    )
    assert Path(where.strip()).is_relative_to(site)
    assert "visits_total" in run(
        sys.executable, "-m", "sluice", "explain", "visits", folder=project, site=site
    )
    assert "2 tests collected" in run(
        sys.executable, "-m", "pytest", "-q", "--collect-only", folder=project, site=site
    )


@pytest.mark.heavy
def test_a_new_projects_tests_pass_on_the_wheel(site: Path, project: Path) -> None:
    assert "2 passed" in run(sys.executable, "-m", "pytest", "-q", folder=project, site=site)
