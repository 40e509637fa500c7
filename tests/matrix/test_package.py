"""The wheel and the source archive have what is needed and nothing else; importing is fast and needs little."""

from __future__ import annotations

import os
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

from tests.matrix.__main__ import build_wheel
from tests.matrix.run_cell import CLONE, Command

UV = Path(sys.executable).with_name("uv")


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_wheel(tmp_path_factory.mktemp("wheel") / "dist", UV)


def tracked(folder: str) -> set[str]:
    """The files of a folder in Git."""
    listed = subprocess.run(
        ["git", "ls-files", folder], cwd=CLONE, check=True, capture_output=True, text=True
    )
    return {name for name in listed.stdout.splitlines() if (CLONE / name).is_file()}


def test_the_wheel_has_all_files_of_the_package_and_no_others(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        names = {name for name in archive.namelist() if ".dist-info/" not in name}
    assert names == tracked("sluice")


def test_the_wheel_has_no_file_of_a_reader_or_a_test(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        top = {name.partition("/")[0] for name in archive.namelist()}
    assert top == {"sluice", "sluice_streams-0.1.0.dist-info"}


def test_the_source_archive_builds_the_same_package(tmp_path: Path, wheel: Path) -> None:
    source = tmp_path / "clone"
    for name in (*tracked("sluice"), "pyproject.toml", "README.md", "LICENSE"):
        (source / name).parent.mkdir(parents=True, exist_ok=True)
        (source / name).write_bytes((CLONE / name).read_bytes())
    build: Command = [UV, "build", "--quiet", "--sdist", "--out-dir", tmp_path / "dist", source]
    subprocess.run(build, check=True)
    (archive,) = (tmp_path / "dist").glob("*.tar.gz")
    with tarfile.open(archive) as files:
        names = {name.name.partition("/")[2] for name in files.getmembers() if name.isfile()}
    assert tracked("sluice") <= names
    others = {
        name for name in names if not name.startswith(("sluice/", "sluice_streams.egg-info/"))
    }
    assert others == {"LICENSE", "PKG-INFO", "README.md", "pyproject.toml", "setup.cfg"}


IMPORT = (
    "import time; begun = time.process_time(); import sluice; print(time.process_time() - begun)"
)


def test_importing_sluice_takes_at_most_150_ms() -> None:
    times: list[float] = []
    for _ in range(3):
        ran = subprocess.run(
            [sys.executable, "-c", IMPORT], check=True, capture_output=True, text=True
        )
        times.append(float(ran.stdout))
    assert min(times) <= 0.15


WITHOUT_SPARK = """
import sys
for name in ("pyspark", "py4j", "pandas"):
    sys.modules[name] = None
from pathlib import Path
from sluice.orchestration.dags import pipeline_dags
from sluice.orchestration.maintenance_dag import retention_dag
dags = pipeline_dags(Path("spark_jobs"))
assert {"orders", "words"} <= dags.keys(), dags
broken = [dag.description for dag in dags.values() if "broken" in dag.tags]
assert not broken, broken
retention_dag()
import sluice.api.apps, sluice.api.plugin, sluice.server.state_server
from sluice.api.airflow_runs import AirflowRuns
import sluice.orchestration.trigger, sluice.orchestration.deadlines
print("everything is imported")
"""


def test_schedulers_and_api_servers_need_no_pyspark(airflow_free: dict[str, str]) -> None:
    ran = subprocess.run(
        [sys.executable, "-c", WITHOUT_SPARK], cwd=CLONE, env=airflow_free, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert "everything is imported" in ran.stdout, ran.stderr


@pytest.fixture
def airflow_free(tmp_path: Path) -> dict[str, str]:
    """The environment of a process with an Airflow of its own."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("AIRFLOW")}
    return kept | {"AIRFLOW_HOME": str(tmp_path), "SLUICE_HOME": str(tmp_path / "sluice")}
