"""`sluice libraries build` and `list`: the mistake of one team does not stop the other teams."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from sluice.commands.cli import app
from sluice.settings import settings
from tests.support.tiny_wheels import write_packages

pytestmark = pytest.mark.unit


@pytest.fixture
def teams(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The pipeline `ads` names a file that does not exist; `orders` and `stock` share an archive.

    `views` may not have libraries of its own.
    """
    for team, pipelines, requirements in (
        ("ads", ("ads",), "missing.txt"),
        ("shop", ("orders", "stock"), "packages.zip"),
        ("web", ("views",), "packages.zip"),
    ):
        folder = tmp_path / team
        folder.mkdir()
        (folder / "sluice.toml").write_text(f'[defaults]\nrequirements = "{requirements}"')
        for name in pipelines:
            (folder / f"{name}.py").write_text(f'pipeline = Pipeline("{name}")')
    write_packages(tmp_path / "shop" / "packages.zip", "1.0")
    (tmp_path / "sluice.toml").write_text('[limits]\nrequirements = ["ads", "orders", "stock"]')
    monkeypatch.setenv("SLUICE_PIPELINES", str(tmp_path))
    monkeypatch.setenv("SLUICE_HOME", str(tmp_path / "home"))
    settings.cache_clear()
    return tmp_path


def call(*words: str) -> Result:
    return CliRunner().invoke(app, ["libraries", *words])


def test_the_libraries_of_the_other_teams_are_installed(teams: Path) -> None:
    result = call("build")
    assert result.exit_code == 1
    (orders, stock) = result.stdout.splitlines()
    assert orders.startswith(f"orders: {teams / 'home' / 'libraries'}")
    assert stock.removeprefix("stock") == orders.removeprefix("orders")
    said = " ".join(result.stderr.split())
    assert "missing.txt" in said
    assert "the pipeline views has requirements, but only ads, orders, stock may have" in said


def test_the_list_has_the_libraries_of_the_other_teams(teams: Path) -> None:
    call("build", "orders")
    result = call("list")
    assert result.exit_code == 0
    assert "orders, stock, 0.0 MB" in result.stdout
    assert "the pipeline views has requirements" in " ".join(result.stderr.split())
