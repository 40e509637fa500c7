"""The recipes that need more than a test driver: a renamed store, pandas, Airflow's pools.

`test_sessions.py` runs the other recipes of the page.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pandas
import pytest

from sluice import read_store
from sluice.engine.run.job_run import JobRun
from sluice.errors import SettingsError
from sluice.kafka.topics import produce
from sluice.local.broker import EmbeddedKafka
from sluice.operations.changed_stores import ChangedStores
from sluice.plan import plan
from sluice.settings import Settings, settings
from sluice.testing import TopologyTestDriver
from sluice.topology import Pipeline, load_pipeline
from sluice.topology.loading.run_options import allowances, run_options
from tests.docs.pages import read, steps, write_files
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


def test_the_files_of_the_pages_say_how_pipelines_run(tmp_path: Path) -> None:
    """The files are those of the platform and of the shop's team."""
    team, libraries, platform, exception, budgets = toml_blocks(read("docs/how-to/teams.md"))
    (tmp_path / "shop").mkdir()
    (tmp_path / "sluice.toml").write_text(platform)
    (tmp_path / "shop" / "sluice.toml").write_text(team)
    orders = run_options(tmp_path, tmp_path / "shop" / "orders.py", "orders")
    assert (orders.owner, orders.pool, orders.memory) == ("shop", "shop", "4g")
    assert run_options(tmp_path, tmp_path / "audit.py", "audit").pool == "shared"

    large = tmp_path / "shop" / "sluice.toml"
    large.write_text('[defaults]\nmemory = "12g"\n')
    with pytest.raises(SettingsError, match="memory"):
        run_options(tmp_path, tmp_path / "shop" / "carts.py", "carts")
    (tmp_path / "sluice.toml").write_text(f"{platform}\n{exception}")
    assert run_options(tmp_path, tmp_path / "shop" / "carts.py", "carts").memory == "12g"

    (tmp_path / "shop" / "sluice.toml").write_text(libraries)
    prices = run_options(tmp_path, tmp_path / "shop" / "prices.py", "prices")
    assert prices.requirements == str(tmp_path / "shop" / "prices.txt")
    stock = run_options(tmp_path, tmp_path / "shop" / "stock.py", "stock")
    assert stock.libraries(tmp_path) is None

    (tmp_path / "shop" / "sluice.toml").write_text(budgets)
    granted = allowances(tmp_path, tmp_path / "shop" / "orders.py", "orders")
    assert [str(each.budget) for each in granted] == [
        "2 CPU hours and 4 GB hours a day",
        "20 CPU hours a day",
    ]

    (single,) = toml_blocks(read("docs/how-to/airflow.md"))
    (tmp_path / "sluice.toml").write_text(single)
    pages = run_options(tmp_path, tmp_path / "pages.py", "pages")
    assert (pages.owner, pages.tags, pages.retries) == ("web", ("web", "nightly"), 4)


def toml_blocks(text: str) -> list[str]:
    return re.findall(r"```toml\n(.*?)```", text, re.DOTALL)
