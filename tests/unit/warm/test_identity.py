"""What must be equal for a run and a warm driver."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from sluice.errors import SettingsError
from sluice.settings import Settings
from sluice.warm import identity
from sluice.warm.identity import driver_key, require_local, socket_path


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    return Settings.read({"SLUICE_HOME": str(tmp_path)})


def key(settings: Settings, *, delta: bool = False) -> str:
    return driver_key(settings, "local[2]", delta=delta)


def test_runs_of_different_pipelines_have_the_same_driver(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = key(settings)
    monkeypatch.setenv("SLUICE_RUN", "another")
    monkeypatch.setenv("AWS_SESSION_TOKEN", "another")
    monkeypatch.setenv("HOME", "/another")
    others = replace(settings, kafka={"a": "b"}, ledger="other", linger_ms=5, max_records=7)
    assert key(others) == before


@pytest.mark.parametrize(
    "name", ["JAVA_HOME", "JAVA_TOOL_OPTIONS", "SPARK_CONF_DIR", "PYTHONPATH", "LD_PRELOAD"]
)
def test_variables_that_are_read_only_at_a_start_need_another_driver(
    settings: Settings, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    before = key(settings)
    monkeypatch.setenv(name, "/another")
    assert key(settings) != before


def test_credentials_of_a_storage_count_for_delta_tables_only(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    before, of_delta = key(settings), key(settings, delta=True)
    assert before != of_delta
    monkeypatch.setenv("AWS_SESSION_TOKEN", "another")
    assert key(settings) == before
    assert key(settings, delta=True) != of_delta


def test_another_version_needs_another_driver(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = key(settings)
    monkeypatch.setattr(identity, "__version__", "another")
    assert key(settings) != before


def test_another_dependency_needs_another_driver(
    settings: Settings, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    before = key(settings)
    (tmp_path / "library-2.0.dist-info").mkdir()
    assert key(settings) != before


def test_other_libraries_of_a_pipeline_need_another_driver(
    settings: Settings, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("PYTHONPATH", "/own")
    (tmp_path / "library-2.0.dist-info").mkdir()
    with_libraries = replace(settings, libraries=tmp_path)
    without, of_one = key(settings), key(with_libraries)
    of_two = key(replace(settings, libraries=tmp_path / "other"))
    assert len({without, of_one, of_two}) == 3
    # A driver that a run has started computes the same key from its own environment.
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path}:/own")
    assert key(with_libraries) == of_one


def test_the_socket_is_in_the_home_of_sluice(settings: Settings) -> None:
    assert socket_path(settings, "key") == settings.home / "warm" / "key"
    with pytest.raises(SettingsError, match="is too long for a socket"):
        socket_path(replace(settings, home=Path("/long" * 30)), "key")


def test_a_warm_driver_needs_a_local_spark() -> None:
    require_local("local[2]")
    with pytest.raises(SettingsError, match="needs a local Spark"):
        require_local("spark://host:7077")
