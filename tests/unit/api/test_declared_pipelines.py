"""The topology of a pipeline that has never run comes from its file."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from sluice.api.declared_pipelines import DeclaredPipelines
from sluice.api.runs import DagState
from sluice.settings import settings
from tests.support.api_client import Api, User
from tests.support.states import States

pytestmark = pytest.mark.unit

FILE = """
from sluice import Pipeline
pipeline = Pipeline("copies", workers=1)
pipeline.stream("words", value=str).to("%s", value=str)
"""
TOPOLOGY = "/v1/pipelines/copies/topology"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "pipelines"
    folder.mkdir()
    monkeypatch.setenv("SLUICE_PIPELINES", str(folder))
    settings.cache_clear()
    (folder / "copies.py").write_text(FILE % "copies")
    (folder / "broken.py").write_text("from sluice import Pipeline\nPipeline('broken').nothing()")
    return folder


def test_a_topology_is_read_from_the_file_and_again_when_it_changes(folder: Path) -> None:
    declared = DeclaredPipelines()
    topology = asyncio.run(declared.topology("copies"))
    assert topology is not None
    assert (
        topology.text
        == "pipeline copies, 1 worker\n  stream words: str, event time of the record\n    topic copies"
    )
    assert 'data-number="1"' in topology.svg
    (folder / "copies.py").write_text(FILE % "other")
    again = asyncio.run(DeclaredPipelines().topology("copies"))
    assert again is not None
    assert again.text.endswith("topic other")


def test_a_file_that_cannot_be_loaded_has_no_topology(folder: Path) -> None:
    assert asyncio.run(DeclaredPipelines().topology("broken")) is None
    assert asyncio.run(DeclaredPipelines().topology("nothing")) is None
    assert asyncio.run(DeclaredPipelines(lambda: folder / "away").topology("copies")) is None


def test_only_who_may_read_the_dag_sees_the_topology(
    folder: Path, api: Api, states: States
) -> None:
    assert api.ask("GET", TOPOLOGY).status_code == 404, "the pipeline has no DAG"
    api.runs.states["copies"] = DagState(False, None)
    assert "topic copies" in api.ask("GET", TOPOLOGY).text
    api.user = User(hidden=("copies",))
    assert api.ask("GET", TOPOLOGY).status_code == 404
