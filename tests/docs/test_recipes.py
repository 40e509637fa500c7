"""The recipes that need more than a test driver: a renamed store, pandas, Airflow's pools.

`test_sessions.py` runs the other recipes of the page.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pandas
import pytest
from airflow.serialization.serialized_objects import DagSerialization

from sluice import read_store
from sluice.engine.run.job_run import JobRun
from sluice.kafka.topics import produce
from sluice.local.broker import EmbeddedKafka
from sluice.operations.changed_stores import ChangedStores
from sluice.plan import plan
from sluice.settings import Settings, settings
from sluice.testing import TopologyTestDriver
from sluice.topology import Pipeline, load_pipeline
from sluice.values.pipeline_modules import load_module
from tests.docs.pages import ROOT, files, read, steps, write_files
from tests.support.spark_in_process import SparkInProcess

PAGE = "docs/recipes.md"


@pytest.fixture
def as_settings(monkeypatch: pytest.MonkeyPatch) -> Iterator[pytest.MonkeyPatch]:
    """Variables of the environment, which the process reads again."""
    settings.cache_clear()
    yield monkeypatch
    settings.cache_clear()


def section(title: str) -> str:
    """The text of a recipe."""
    return read(PAGE).partition(f"## {title}\n")[2].partition("\n## ")[0]


def test_a_store_becomes_a_data_frame(tmp_path: Path, as_settings: pytest.MonkeyPatch) -> None:
    write_files(read(PAGE), tmp_path)
    local, remote = steps(section("A store as a pandas DataFrame"), "py")
    with TopologyTestDriver(load_pipeline(tmp_path / "pipelines", "fresh")) as driver:
        driver.pipe("sales", {"amount": 5}, key="s1", timestamp=0)
        driver.pipe("sales", {"amount": 7}, key="s2", timestamp=0)
        driver.commit()
        as_settings.setenv("SLUICE_HOME", str(driver.home))
        settings.cache_clear()
        session: dict[str, Any] = {"Client": ClientOfThisProcess, "password": "x"}
        for step in (local, remote):
            exec(step.commands, session)
            frame = session["frame"]
            assert isinstance(frame, pandas.DataFrame)
            assert dict(zip(frame.key, frame.amount, strict=True)) == {"s1": 5, "s2": 7}


class ClientOfThisProcess:
    """Stands for `sluice.Client`, without a server."""

    def __init__(self, address: str, *, user: str, password: str) -> None:
        assert address.startswith("http")
        assert user
        assert password

    def __enter__(self) -> ClientOfThisProcess:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def range(self, store: str) -> Any:
        return iter(read_store(store))


def test_a_store_gets_another_name(kafka: EmbeddedKafka, tmp_path: Path) -> None:
    """As the page says: all records are counted under the new name, and other stores keep their state."""
    kafka.create_topics({"renamed_sales": 1})
    brokers = {"bootstrap.servers": kafka.bootstrap, "log_level": "0"}
    values = Settings.read({"SLUICE_HOME": str(tmp_path), "SLUICE_KAFKA": json.dumps(brokers)})
    produce(values.kafka, "renamed_sales", [("s1", b"tea", 0), ("s1", b"pot", 0)])
    spark = SparkInProcess.session()

    JobRun(spark, plan(renamed("old_name")).job, values).run()
    pipeline = renamed("new_name")
    job = plan(pipeline).job
    ChangedStores(spark, job, lambda only: plan(pipeline, only).job, values).run()

    assert stores(values) == {"new_name": {"s1": 2}, "last": {"s1": "pot"}}


def renamed(name: str) -> Pipeline:
    pipeline = Pipeline("renamed", workers=1)
    sales = pipeline.stream("renamed_sales", value=str).group_by_key()
    sales.count(store=name)
    sales.reduce(lambda _, item: item, store="last")
    return pipeline


def stores(values: Settings) -> dict[str, dict[str, Any]]:
    from sluice.state.ledger.ledger import Ledger

    with Ledger.open(values.ledger) as ledger:
        names = [store.name for store in ledger.generations.stores("renamed")]
    with pytest.MonkeyPatch.context() as environment:
        environment.setenv("SLUICE_HOME", str(values.home))
        settings.cache_clear()
        return {name: {entry.key: entry.value for entry in read_store(name)} for name in names}


def test_the_dag_file_of_the_page_gives_pipelines_a_pool_and_an_owner(
    tmp_path: Path, as_settings: pytest.MonkeyPatch
) -> None:
    as_settings.setenv("SLUICE_PIPELINES", str(ROOT / "spark_jobs"))
    as_settings.setenv("SLUICE_HOME", str(tmp_path))
    content = files(read("docs/how-to/airflow.md"))["dags/pipelines.py"]
    file = tmp_path / "pipelines.py"
    file.write_text(content)
    dags = vars(load_module(file))["dags"]

    kept = DagSerialization.to_dict(dags["orders"])["dag"]
    (task,) = kept["tasks"]
    assert task["__var"]["pool"] == "team_a"
    assert task["__var"]["owner"] == "team-a"
    assert "team-a" in kept["tags"]
    (other,) = DagSerialization.to_dict(dags["words"])["dag"]["tasks"]
    assert other["__var"].get("pool", "default_pool") == "default_pool"
