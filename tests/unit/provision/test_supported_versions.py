"""Versions that are too old are refused, versions that are too new are used with a warning."""

from __future__ import annotations

import tomllib
import warnings
from collections.abc import Callable
from pathlib import Path

import pytest

from sluice.errors import PreflightError
from sluice.provision import supported_versions
from sluice.provision.supported_versions import (
    AIRFLOW,
    PYTHON,
    SPARK,
    UntestedVersion,
    check_spark,
    release_of,
)
from tests.matrix.cells import CELLS

ROOT = Path(__file__).parents[3]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]

Install = Callable[..., None]


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Install:
    """Puts a PySpark with these versions of its Python code and its jars on Python's path."""

    def make(python: str, jars: str = "") -> None:
        pyspark = tmp_path / "pyspark"
        pyspark.mkdir()
        (pyspark / "__init__.py").touch()
        (pyspark / "version.py").write_text(f'__version__: str = "{python}"\n')
        if jars:
            (pyspark / "jars").mkdir()
            (pyspark / "jars" / f"spark-core_2.13-{jars}.jar").touch()
        monkeypatch.syspath_prepend(tmp_path)
        monkeypatch.delenv("SPARK_HOME", raising=False)
        found = type("Spec", (), {"origin": str(pyspark / "__init__.py")})()
        monkeypatch.setattr(supported_versions, "find_spec", lambda _: found)
        monkeypatch.setattr(supported_versions, "find_spark", lambda: pyspark)
        monkeypatch.setattr(supported_versions, "_is_overwritten", lambda *_: False)

    check_spark.cache_clear()
    return make


def test_each_supported_version_is_in_the_matrix() -> None:
    for versions, tried in (
        (AIRFLOW, {cell.airflow for cell in CELLS}),
        (SPARK, {cell.spark for cell in CELLS}),
        (PYTHON, {cell.python for cell in CELLS}),
    ):
        first, last = versions.first, versions.last
        supported = {(first[0], minor) for minor in range(first[1], last[1] + 1)}
        assert supported <= {release_of(version) for version in tried}, versions.program


def test_the_package_states_the_ranges() -> None:
    extras = PROJECT["optional-dependencies"]
    assert "apache-airflow>=3.1,<3.4" in extras["airflow-minimal"]
    assert "pyspark>=4.0,<4.4" in extras["spark"]
    assert (AIRFLOW.first, AIRFLOW.last) == ((3, 1), (3, 3))
    assert (SPARK.first, SPARK.last) == ((4, 0), (4, 3))
    stated = {
        classifier.rpartition(" ")[2]
        for classifier in PROJECT["classifiers"]
        if classifier.startswith("Programming Language :: Python :: 3.")
    }
    assert stated == {"3.11", "3.12", "3.13"}


def test_the_minimal_extra_has_no_pyspark() -> None:
    extras = PROJECT["optional-dependencies"]
    for name in ("airflow-minimal", "state", "client"):
        assert not [line for line in extras[name] if line.startswith(("pyspark", "pandas"))]


@pytest.mark.parametrize("version", ["3.1.0", "3.3.9", "3.2.0rc1"])
def test_a_supported_version_says_nothing(version: str) -> None:
    with warnings.catch_warnings(action="error"):
        AIRFLOW.check(version)


def test_a_newer_version_is_used_with_a_warning() -> None:
    with pytest.warns(
        UntestedVersion, match=r"not been tested with Airflow 3\.4\.0, only with 3\.1 to 3\.3"
    ):
        AIRFLOW.check("3.4.0")


def test_an_older_version_is_refused() -> None:
    with pytest.raises(
        PreflightError, match=r"Airflow 3\.0\.6 is too old: Sluice needs 3\.1 to 3\.3"
    ):
        AIRFLOW.check("3.0.6")


@pytest.mark.parametrize("version", ["4.0.5", "4.1.4", "4.2.1", "4.3.0"])
def test_each_supported_spark_passes(version: str, install: Install) -> None:
    install(version, version)
    with warnings.catch_warnings(action="error"):
        check_spark()


WRONG = {
    ("3.5.9", "3.5.9"): r"Spark 3\.5\.9 is too old",
    (
        "4.2.0",
        "4.3.0",
    ): r"Python code is of version 4\.2\.0, but Spark's jars are of version 4\.3\.0\. Run pip install "
    r"--force-reinstall --no-deps pyspark==4\.3\.0",
    ("4.2.0", ""): r"no jars of Spark.*Only pyspark-client is installed: run pip install "
    r"'sluice-streams\[spark\]' pyspark==4\.2\.0\.",
}


@pytest.mark.parametrize("versions", WRONG)
def test_a_wrong_pyspark_is_refused(versions: tuple[str, str], install: Install) -> None:
    install(*versions)
    with pytest.raises(PreflightError, match=WRONG[versions]):
        check_spark()


def test_a_newer_spark_is_used_with_a_warning(install: Install) -> None:
    install("4.4.0", "4.4.0")
    with pytest.warns(UntestedVersion, match=r"Spark 4\.4\.0"):
        check_spark()


@pytest.mark.parametrize(
    ("client", "text", "overwritten"),
    [
        ("4.2.0", "x = 42\n", True),
        ("4.2.0", "x = 4201\n", False),
        ("4.2.1", "x = 4201\n", False),
    ],
    ids=["client installed last", "PySpark installed last", "equal versions"],
)
def test_files_of_another_client_are_found(
    client: str, text: str, overwritten: bool, tmp_path: Path
) -> None:
    pyspark = tmp_path / "pyspark-4.2.1.dist-info"
    for folder in (pyspark, tmp_path / f"pyspark_client-{client}.dist-info", tmp_path / "pyspark"):
        folder.mkdir()
    (pyspark / "RECORD").write_text(
        'pyspark/sql.py,sha256=AA,9\n"pyspark/jars/a,b.jar",sha256=AA,7\npyspark-4.2.1.dist-info/RECORD,,\n'
    )
    (tmp_path / "pyspark" / "sql.py").write_text(text)
    assert supported_versions._is_overwritten(tmp_path, "4.2.1") is overwritten
