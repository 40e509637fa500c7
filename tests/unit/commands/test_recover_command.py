"""`sluice recover --anew` says which shards it removes, and with `--dry-run` removes none."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from typer.testing import CliRunner

from sluice.commands.cli import app
from sluice.operations import recovery
from sluice.settings import settings
from sluice.state.model import GenerationRef
from sluice.state.remote.opening import create_shard
from sluice.state.shard.addresses import location

pytestmark = pytest.mark.unit

PIPELINE = """
from msgspec import Struct
from sluice import Pipeline

class Item(Struct):
    n: int

pipeline = Pipeline("items", workers=2)
pipeline.stream("all_items", value=Item).group_by_key().count(store="counts")
"""


@pytest.fixture
def shards(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Path]]:
    """The shards of a pipeline whose ledger and markers are lost."""
    (tmp_path / "items.py").write_text(PIPELINE)
    monkeypatch.setenv("SLUICE_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("SLUICE_PIPELINES", str(tmp_path))
    settings.cache_clear()
    # A broker that has no topic of markers.
    monkeypatch.setattr(recovery, "topic_ids", lambda *_: {})
    folder = f"sqlite:///{tmp_path}/home/shards"
    for worker in range(2):
        create_shard(location(folder, GenerationRef("items", 1), worker)).close()
    files = sorted((tmp_path / "home").rglob("worker-*.sqlite"))
    assert len(files) == 2
    yield files
    settings.cache_clear()


def test_a_dry_run_of_a_new_beginning_says_what_would_be_removed(shards: list[Path]) -> None:
    said = CliRunner().invoke(app, ["recover", "items", "--anew", "--dry-run"])
    assert said.exit_code == 0, said.output
    assert f"Would be removed: sqlite:///{shards[0]}" in said.stdout
    assert "Nothing was changed. To remove 2 shards and begin anew: sluice recover" in said.stdout
    assert all(shard.exists() for shard in shards)


def test_a_new_beginning_removes_all_shards(shards: list[Path]) -> None:
    said = CliRunner().invoke(app, ["recover", "items", "--anew"])
    assert said.exit_code == 0, said.output
    assert f"Removed: sqlite:///{shards[1]}" in said.stdout
    assert "items begins anew: 2 shards removed." in said.stdout
    assert not any(shard.exists() for shard in shards)


def test_shards_are_found_although_the_first_one_is_lost(shards: list[Path]) -> None:
    shards[0].unlink()
    said = CliRunner().invoke(app, ["recover", "items", "--anew"])
    assert "items begins anew: 1 shard removed." in said.stdout
    assert not shards[1].exists()


def test_a_new_beginning_also_removes_the_shards_of_high_generations(shards: list[Path]) -> None:
    folder = f"sqlite:///{shards[0].parents[2]}"
    late = location(folder, GenerationRef("items", 77), 0)
    create_shard(late).close()
    said = CliRunner().invoke(app, ["recover", "items", "--anew"])
    assert said.exit_code == 0, said.output
    assert late in said.stdout.replace("\n", "")
    assert not Path(late.removeprefix("sqlite:///")).exists()
