"""The tabs *Sluice* in Airflow's own pages: of a DAG, of its run, and of the run's task."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from urllib.parse import quote

import pytest
from playwright.sync_api import Browser, Page, expect

from tests.support.airflow_browser import open_airflow
from tests.support.airflow_server import AirflowServer

pytestmark = [pytest.mark.browser, pytest.mark.heavy]

REPOSITORY = Path(__file__).parents[2]
RUN = "by_hand__2026-11-21T12:00:00+00:00"
"""The id of a run, with characters that an address must quote."""


@pytest.fixture(scope="module")
def airflow(tmp_path_factory: pytest.TempPathFactory) -> Iterator[AirflowServer]:
    """An Airflow with the examples' DAGs, and a run of `orders` that waits for a scheduler."""
    home = tmp_path_factory.mktemp("airflow")
    environment = {
        "SLUICE_HOME": str(tmp_path_factory.mktemp("sluice")),
        "SLUICE_PIPELINES": str(REPOSITORY / "spark_jobs"),
        "PYTHONPATH": str(REPOSITORY),
    }
    server = AirflowServer(
        home,
        dags_folder=REPOSITORY / "dags",
        plugins_folder=REPOSITORY / "plugins",
        env=environment,
    )
    with server:
        server.run("dags", "reserialize")
        server.run("dags", "trigger", "orders", "--run-id", RUN)
        yield server


@pytest.fixture(scope="module")
def page(browser: Browser, airflow: AirflowServer) -> Iterator[Page]:
    page = open_airflow(browser, airflow.url, "admin", airflow.passwords["admin"])
    yield page
    page.close()


def open_tab(page: Page, address: str) -> None:
    page.goto(address)
    page.locator("a[href*='/plugin/sluice_']", has_text="Sluice").first.click()


def test_a_dag_has_a_tab_with_its_pipeline(page: Page, airflow: AirflowServer) -> None:
    open_tab(page, f"{airflow.url}/dags/orders")
    expect(page.frame_locator("iframe").locator("main h1")).to_contain_text("orders")


def test_a_run_has_a_tab_with_its_batches(page: Page, airflow: AirflowServer) -> None:
    open_tab(page, f"{airflow.url}/dags/orders/runs/{quote(RUN)}")
    sluice = page.frame_locator("iframe")
    expect(sluice.get_by_role("region", name="Run")).to_contain_text(RUN)
    expect(sluice.get_by_text("Nothing has been published yet.")).to_be_visible()


def test_a_task_has_a_tab_with_the_batches_of_its_run(page: Page, airflow: AirflowServer) -> None:
    with airflow.client() as client:
        path = f"/api/v2/dags/orders/dagRuns/{quote(RUN)}/taskInstances"
        (task, *_) = client.get(path).json()["task_instances"]
    open_tab(page, f"{airflow.url}/dags/orders/runs/{quote(RUN)}/tasks/{task['task_id']}")
    sluice = page.frame_locator("iframe")
    expect(sluice.get_by_role("region", name="Run")).to_contain_text(RUN)
