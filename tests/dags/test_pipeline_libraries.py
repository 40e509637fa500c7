"""DAGs of pipelines whose files import libraries that Airflow's Python does not have."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from airflow.sdk.definitions._internal.dag_parsing_context import _airflow_parsing_context_manager

from sluice.orchestration.dags import pipeline_dags
from sluice.orchestration.operator import SluiceOperator
from sluice.settings import settings
from sluice.values.pipeline_modules import use_libraries
from tests.support.tiny_wheels import write_packages

PIPELINE = """
import tinylib
from sluice import Pipeline

pipeline = Pipeline("priced")
texts = pipeline.stream("prices", value=str).map_values(tinylib.version, returns=str)
texts.to("priced_" + tinylib.VERSION)
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    folder = tmp_path / "pipelines"
    folder.mkdir()
    write_packages(folder / "prices.zip", "1.0")
    (folder / "priced.py").write_text(PIPELINE)
    (folder / "sluice.toml").write_text('[pipelines.priced]\nrequirements = "prices.zip"\n')
    monkeypatch.setenv("SLUICE_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("SLUICE_PIPELINES", str(folder))
    settings.cache_clear()
    yield folder
    settings.cache_clear()
    use_libraries(None)


def test_the_dag_is_broken_until_the_processor_has_installed_the_libraries(folder: Path) -> None:
    first = pipeline_dags(folder)["priced"]
    assert "broken" in first.tags
    assert "The libraries of" in (first.description or "")
    begun = time.monotonic()
    while "broken" in pipeline_dags(folder)["priced"].tags and time.monotonic() - begun < 120:
        time.sleep(0.2)
    dag = pipeline_dags(folder)["priced"]
    assert isinstance(dag.get_task("main"), SluiceOperator)
    assert "priced_1.0" in (dag.doc_md or "")


def test_a_task_on_another_host_installs_them_and_keeps_them_from_airflow(folder: Path) -> None:
    # The host has no facts of the DAG processor.
    with _airflow_parsing_context_manager(dag_id="priced", task_id="main"):
        dag = pipeline_dags(folder)["priced"]
    assert isinstance(dag.get_task("main"), SluiceOperator)
    assert "tinylib" not in sys.modules
    assert not any("libraries" in path for path in sys.path)
