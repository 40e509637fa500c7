"""`sluice constraints` prints the versions that have been tried with a release of Airflow."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from sluice.commands.constraints_command import constraints_text
from sluice.errors import SettingsError
from sluice.provision.supported_versions import AIRFLOW

ROOT = Path(__file__).parents[3]


@pytest.mark.parametrize("release", ["3.1", "3.2", "3.3", "3.2.2"])
def test_each_supported_airflow_has_constraints(release: str) -> None:
    lines = constraints_text(release).splitlines()[1:]
    versions = dict(line.split("==") for line in lines)
    assert versions["apache-airflow"].startswith(release)
    assert {"pyspark", "sqlglot", "pyarrow", "starlette"} <= versions.keys()
    # The provider needs pyspark-client since version 6. Its files must be those of the same PySpark.
    assert versions.get("pyspark-client", versions["pyspark"]) == versions["pyspark"]
    assert "sluice-streams" not in versions


@pytest.mark.parametrize("release", ["3.1", "3.2", "3.3"])
def test_constraints_satisfy_the_package(release: str) -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    lines = constraints_text(release).splitlines()[1:]
    versions = dict(line.split("==") for line in lines)
    needs = [Requirement(line) for line in project["dependencies"]]
    for extra in ("client", "state", "spark", "airflow-minimal"):
        needs += map(Requirement, project["optional-dependencies"][extra])
    for need in needs:
        if need.name != "sluice-streams":
            version = versions[canonicalize_name(need.name)]
            assert need.specifier.contains(version, prereleases=True), f"{need} is {version}"


def test_the_default_is_the_newest_release() -> None:
    assert AIRFLOW.last == (3, 3)


def test_another_airflow_has_none() -> None:
    with pytest.raises(SettingsError, match=r"no constraints for Airflow 3\.4.*3\.1, 3\.2, 3\.3"):
        constraints_text("3.4.0")
