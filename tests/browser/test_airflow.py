"""The page inside a real Airflow: in the navigation and as a tab of a DAG, with the DAG's runs."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, expect

from tests.airflow_browser import open_airflow
from tests.airflow_server import AirflowServer
from tests.browser.conftest import REPOSITORY
from tests.faults.world import wait_until
from tests.states import States

pytestmark = [pytest.mark.browser, pytest.mark.timeout(600)]

IMAGES = REPOSITORY / "docs" / "images"


@pytest.fixture
def airflow(tmp_path: Path, states: States) -> Iterator[AirflowServer]:
    """An API server with the DAG of the orders pipeline; nothing runs it."""
    pipelines = tmp_path / "pipelines"
    pipelines.mkdir()
    shutil.copy(REPOSITORY / "spark_jobs" / "orders.py", pipelines)
    environment = {
        "SLUICE_HOME": states.database.removeprefix("sqlite:///"),
        "SLUICE_PIPELINES": str(pipelines),
        "SLUICE_KAFKA": '{"bootstrap.servers": "127.0.0.1:1"}',
        "PYTHONPATH": str(REPOSITORY),
    }
    dags = tmp_path / "dags"
    dags.mkdir()
    shutil.copy(REPOSITORY / "dags" / "pipelines.py", dags)
    home = tmp_path / "airflow"
    with AirflowServer(home, plugins_folder=REPOSITORY / "plugins", dags_folder=dags, env=environment) as server:
        server.run("dags", "reserialize")
        yield server


def test_a_run_is_started_in_the_dags_tab_and_a_failed_one_is_red_with_its_log(
    browser: Browser, airflow: AirflowServer
) -> None:
    page = open_airflow(browser, airflow.url, "admin", airflow.passwords["admin"])
    page.get_by_role("link", name="Sluice").click()
    sluice = page.frame_locator("iframe")
    expect(sluice.get_by_role("link", name="orders", exact=True)).to_be_visible()
    if os.environ.get("SLUICE_SCREENSHOTS"):
        sluice.get_by_role("link", name="orders", exact=True).click()
        expect(sluice.locator(".drawing")).to_be_visible()
        page.screenshot(path=IMAGES / "airflow-page.png")

    page.goto(f"{airflow.url}/dags/orders")
    # The navigation has a link of this name too, which appears before the DAG's tabs do.
    page.locator("a[href*='/dags/orders/']", has_text="Sluice").click()
    sluice.get_by_role("button", name="Replay…").click()
    sluice.get_by_role("button", name="Replay into a new generation").click()
    # The message "is queued", which test_page.py expects, disappears if the page renders itself again.
    expect(sluice.get_by_role("region", name="Runs")).to_contain_text("replay")

    with airflow.client("admin") as client:
        (run,) = client.get("/api/v2/dags/orders/dagRuns").json()["dag_runs"]
        assert (run["conf"], run["triggering_user_name"]) == ({"action": "replay"}, "admin")
        patched = client.patch(f"/api/v2/dags/orders/dagRuns/{run['dag_run_id']}", json={"state": "failed"})
        assert patched.status_code == 200, patched.text
        # The page turns red by itself, and links to the log.
        expect(sluice.locator("h1 .badge").first).to_have_text("failed")
        # The page may have asked for the overview just before; answers are kept for a moment.
        failed = wait_until(lambda: client.get("/sluice/v1/overview").json()[0]["health"] == "failed", 120, 0.5)
        assert failed
        (overview,) = client.get("/sluice/v1/overview").json()
        assert overview["last_run"]["state"] == "failed"
        assert overview["last_run"]["log"].startswith("/dags/orders/runs/manual__")
        log = page.goto(airflow.url + overview["last_run"]["log"])
        assert log is not None
        assert log.ok
        refused = client.post("/sluice/v1/pipelines/orders/runs", json={"action": "explode"})
        assert refused.status_code == 422
    with airflow.client("viewer") as client:
        assert client.post("/sluice/v1/pipelines/orders/runs", json={}).status_code == 403
    page.close()
