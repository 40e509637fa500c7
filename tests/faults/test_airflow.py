"""Faults of Airflow's tasks, which start the drivers: tasks are killed, marked as failed, cleared and timed out."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import httpx
import psutil
import pytest

from sluice.state.model import GenerationRef
from tests.faults.conftest import Observe
from tests.faults.truth import compare
from tests.faults.world import World, wait_until, world
from tests.support.airflow_server import AirflowServer

pytestmark = [pytest.mark.heavy, pytest.mark.timeout(3600)]

COMPONENTS = ("api-server", "scheduler", "dag-processor")
DAGS = """
from datetime import timedelta
from airflow.sdk import DAG
from sluice.orchestration.operator import SluiceOperator

for name, bound in (("patient", 1800), ("hasty", 45)):
    dag = DAG(name, schedule=None, max_active_runs=1, catchup=False)
    SluiceOperator(
        dag=dag, task_id="main", pipeline="orders", retries=2, retry_delay=timedelta(seconds=3),
        execution_timeout=timedelta(seconds=bound),
    )
    globals()[name] = dag
"""


@dataclass
class Scheduled:
    """The orders pipeline as a DAG of a real Airflow."""

    orders: World
    airflow: AirflowServer
    client: httpx.Client

    def trigger(self, dag: str, run: str) -> None:
        sent = {"dag_run_id": run, "logical_date": None}
        self.client.post(f"/api/v2/dags/{dag}/dagRuns", json=sent).raise_for_status()

    def state(self, dag: str, run: str) -> str:
        return str(
            self.client.get(f"/api/v2/dags/{dag}/dagRuns/{run}").raise_for_status().json()["state"]
        )

    def task(self, dag: str, run: str) -> dict[str, Any]:
        path = f"/api/v2/dags/{dag}/dagRuns/{run}/taskInstances/main"
        instance: dict[str, Any] = self.client.get(path).raise_for_status().json()
        return instance

    def ended(self, dag: str, run: str, timeout: float = 600) -> str:
        ended = wait_until(lambda: self.state(dag, run) in ("success", "failed"), timeout, 0.5)
        assert ended, self.airflow.log()[-3000:]
        return self.state(dag, run)

    def drivers(self) -> list[psutil.Process]:
        """The Spark drivers of this pipeline, which have its SLUICE_HOME, whatever their parent process is."""
        return [process for process in psutil.process_iter() if self._is_driver(process)]

    def _is_driver(self, process: psutil.Process) -> bool:
        try:
            if "sluice/driver.py" not in " ".join(process.cmdline()):
                return False
            return process.environ().get("SLUICE_HOME") == str(self.orders.home)
        except psutil.Error:
            return False


@pytest.fixture(scope="module")
def scheduled(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scheduled]:
    home = tmp_path_factory.mktemp("airflow")
    (home / "dags").mkdir()
    (home / "dags" / "faulty.py").write_text(DAGS)
    with world() as orders:
        settings = orders.settings
        environment = {
            "AIRFLOW_CONN_KAFKA_DEFAULT": json.dumps(
                {"conn_type": "kafka", "extra": orders.config}
            ),
            "AIRFLOW_CONN_SPARK_DEFAULT": json.dumps({"conn_type": "spark", "host": "local[2]"}),
            "AIRFLOW__CORE__DAGS_ARE_PAUSED_AT_CREATION": "False",
            "SLUICE_HOME": str(settings.home),
            "SLUICE_JARS": str(settings.jars),
            "SLUICE_PIPELINES": str(settings.pipelines),
            "SLUICE_MAX_RECORDS": "400",
        }
        with (
            AirflowServer(home, components=COMPONENTS, env=environment) as airflow,
            airflow.client() as client,
        ):
            scheduled = Scheduled(orders, airflow, client)
            parsed = wait_until(
                lambda: client.get("/api/v2/dags/patient").status_code == 200, 120, 0.5
            )
            assert parsed, airflow.log()[-3000:]
            yield scheduled
        for process in scheduled.drivers():
            process.kill()


@pytest.mark.fault(
    "F4", "kill -9 of the Airflow task while its driver works; the retry starts beside the driver"
)
def test_a_killed_task(scheduled: Scheduled, observe: Observe) -> None:
    orders = scheduled.orders
    orders.produce(12_000)
    scheduled.trigger("patient", "killed")
    assert wait_until(lambda: orders.published() >= 1, 300), scheduled.airflow.log()[-3000:]
    driver = next(process for process in scheduled.drivers() if "java" in process.cmdline()[0])
    task = driver.parent()
    assert task is not None
    task.kill()
    time.sleep(1)
    assert driver.is_running(), "the driver ended together with its task"
    assert scheduled.ended("patient", "killed") == "success"
    tries = scheduled.task("patient", "killed")["try_number"]
    assert tries == 2
    with orders.ledger() as ledger:
        lease = ledger.leases.get(GenerationRef("orders", 1))
    assert lease is not None
    observe(
        f"the driver kept running; try {tries} waited for it and succeeded with epoch {lease.epoch}; {compare(orders)}"
    )


@pytest.mark.fault(
    "F5", "a run is marked as failed, cleared, and triggered twice, all within seconds"
)
def test_conflicting_requests_within_seconds(scheduled: Scheduled, observe: Observe) -> None:
    orders, client = scheduled.orders, scheduled.client
    orders.produce(6_000, seed=5, start_ms=1_670_231_527_000)
    before = orders.published()
    scheduled.trigger("patient", "first")
    assert wait_until(lambda: orders.published() > before, 300), scheduled.airflow.log()[-3000:]
    path = "/api/v2/dags/patient/dagRuns/first/taskInstances/main"
    client.patch(path, json={"new_state": "failed"}).raise_for_status()
    clear = {"dry_run": False, "task_ids": ["main"], "dag_run_id": "first", "only_failed": False}
    client.post("/api/v2/dags/patient/clearTaskInstances", json=clear).raise_for_status()
    scheduled.trigger("patient", "second")
    scheduled.trigger("patient", "third")
    most = 0
    while any(
        scheduled.state("patient", run) not in ("success", "failed")
        for run in ("first", "second", "third")
    ):
        runs = client.get("/api/v2/dags/patient/dagRuns").raise_for_status().json()["dag_runs"]
        most = max(most, sum(run["state"] == "running" for run in runs))
        time.sleep(0.5)
    states = {run: scheduled.state("patient", run) for run in ("first", "second", "third")}
    assert set(states.values()) == {"success"}, states
    assert most == 1
    observe(
        f"one run was active at a time, the others were queued, and all three succeeded; {compare(orders)}"
    )


@pytest.mark.fault(
    "F5",
    "a DAG run is marked failed and deleted while its driver works; another run follows at once",
)
def test_a_deleted_run(scheduled: Scheduled, observe: Observe) -> None:
    orders, client = scheduled.orders, scheduled.client
    orders.produce(6_000, seed=7, start_ms=1_670_233_527_000)
    before = orders.published()
    scheduled.trigger("patient", "deleted")
    assert wait_until(lambda: orders.published() > before, 300), scheduled.airflow.log()[-3000:]
    drivers = scheduled.drivers()
    assert drivers
    deleted = "/api/v2/dags/patient/dagRuns/deleted"
    # Airflow refuses to delete a run that is in progress.
    assert client.delete(deleted).status_code == httpx.codes.CONFLICT
    client.patch(deleted, json={"state": "failed"}).raise_for_status()
    client.delete(deleted).raise_for_status()
    begun = time.monotonic()
    scheduled.trigger("patient", "follows")
    assert wait_until(lambda: not any(driver.is_running() for driver in drivers), 300), (
        "its driver keeps running"
    )
    seconds = time.monotonic() - begun
    assert scheduled.ended("patient", "follows") == "success"
    assert scheduled.drivers() == []
    runs = client.get("/api/v2/dags/patient/dagRuns").raise_for_status().json()["dag_runs"]
    assert "deleted" not in {run["dag_run_id"] for run in runs}
    observe(
        f"its driver ended {seconds:.0f} s after the deletion, and the next run read the rest; {compare(orders)}"
    )


@pytest.mark.fault(
    "F6", "a driver hangs (SIGSTOP), so it ignores SIGTERM, until its task's time limit of 45 s"
)
def test_a_time_limit(scheduled: Scheduled, observe: Observe) -> None:
    orders = scheduled.orders
    orders.produce(6_000, seed=6, start_ms=1_670_232_527_000)
    before = orders.published()
    scheduled.trigger("hasty", "hangs")
    assert wait_until(lambda: orders.published() > before, 300), scheduled.airflow.log()[-3000:]
    stopped = scheduled.drivers()
    hung = scheduled.task("hasty", "hangs")["try_number"]
    for process in stopped:
        process.suspend()
    start = time.monotonic()
    ended = wait_until(lambda: scheduled.task("hasty", "hangs")["try_number"] > hung, 180, 0.5)
    seconds = time.monotonic() - start
    assert ended, "the task did not end"
    status = scheduled.ended("hasty", "hangs", 900)
    for process in stopped:
        if process.is_running():
            process.resume()
            process.kill()
    if status == "failed":
        scheduled.trigger("patient", "after")
        assert scheduled.ended("patient", "after") == "success"
    observe(
        f"the task ended after {seconds:.0f} s; its lease expired, and the next try took it over; {compare(orders)}"
    )
