"""Mistakes that `sluice warm` reports before it starts anything."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from sluice.commands.cli import app
from sluice.settings import settings
from sluice.warm.client import locked
from sluice.warm.identity import driver_key


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("SLUICE_HOME", str(tmp_path))
    settings.cache_clear()
    yield
    settings.cache_clear()


def warm(*arguments: str) -> Result:
    return CliRunner().invoke(app, ["warm", *arguments])


def test_a_cluster_is_refused() -> None:
    refused = warm("--master", "spark://host:7077")
    assert refused.exit_code == 1
    assert "needs a local Spark" in refused.stderr


def test_a_second_driver_with_the_same_settings_is_refused() -> None:
    with locked(settings(), driver_key(settings(), "local[2]", delta=False)):
        refused = warm()
    assert refused.exit_code == 1
    assert "is already running" in refused.stderr


@pytest.mark.parametrize("option", ["--idle", "--age"])
def test_a_duration_must_be_one(option: str) -> None:
    refused = warm(option, "soon")
    assert refused.exit_code == 1
    assert "soon" in refused.stderr
