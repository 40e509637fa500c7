"""Airflow's runs with a warm driver, whose runs are Python code in the variable CODE."""

from __future__ import annotations

import json
import os
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from airflow.providers.apache.spark.operators.spark_submit import SparkSubmitOperator

from sluice.airflow_releases import AirflowException
from sluice.orchestration import operator
from sluice.orchestration.operator import SluiceOperator
from sluice.orchestration.repetition import AttemptEnded
from sluice.settings import USE_WARM, settings
from sluice.topology.loading.run_options import RunOptions
from sluice.warm.client import LOST
from sluice.warm.identity import driver_key, socket_path
from tests.support.fork_servers import Server, fork_server

FINISHES = "open(os.environ['SLUICE_FINISHED'], 'w').close()"
WARM = RunOptions(warm="use")


@pytest.fixture(autouse=True)
def connections(monkeypatch: pytest.MonkeyPatch) -> None:
    spark = {"conn_type": "spark", "host": "local[2]"}
    kafka = {"conn_type": "kafka", "extra": {"bootstrap.servers": "kafka:9092"}}
    monkeypatch.setenv("AIRFLOW_CONN_SPARK_DEFAULT", json.dumps(spark))
    monkeypatch.setenv("AIRFLOW_CONN_KAFKA_DEFAULT", json.dumps(kafka))


@pytest.fixture
def driver() -> Iterator[Server]:
    configuration = replace(settings(), warm=USE_WARM)
    key = driver_key(configuration, "local[2]", delta=False)
    with fork_server(socket_path(configuration, key), key) as started:
        yield started


@pytest.fixture
def cold(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The pipelines that start a driver of their own."""
    pipelines: list[str] = []

    def submit(self: SluiceOperator, context: object) -> None:
        pipelines.append(self.pipeline)
        Path(os.environ["SLUICE_FINISHED"]).touch()

    monkeypatch.setattr(SparkSubmitOperator, "execute", submit)
    monkeypatch.setattr(operator, "require_brokers", lambda _: None)
    return pipelines


def task(options: RunOptions = WARM) -> SluiceOperator:
    return SluiceOperator(task_id="main", pipeline="orders", options=options)


def execute(operator: SluiceOperator) -> None:
    context: dict[str, Any] = {
        "ti": SimpleNamespace(dag_id="orders", run_id="manual__1", task_id="main"),
        "params": {},
        "dag_run": SimpleNamespace(conf={}, run_id="manual__1"),
    }
    operator.execute(cast(Any, context))


def test_the_lines_of_a_run_are_in_the_log_at_their_levels(
    driver: Server,
    cold: list[str],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    lines = (
        "2026-11-21 08:00:00 [info     ] run done\\n2026-11-21 08:00:00 [warning  ] 100% of a disk"
    )
    monkeypatch.setenv("CODE", f"print('{lines}'); print(os.environ['SLUICE_RUN']); {FINISHES}")
    execute(task())
    printed = capsys.readouterr().out
    assert "[info     ] 2026-11-21 08:00:00 [info     ] run done" in printed
    assert "[warning  ] 2026-11-21 08:00:00 [warning  ] 100% of a disk" in printed
    assert "orders/manual__1/main" in printed
    assert not cold


@pytest.mark.parametrize(
    ("code", "why"),
    [("sys.exit(1)", "ended with status 1"), ("os._exit(0)", "before the run was complete")],
)
def test_a_run_that_fails_fails_the_task(
    driver: Server, cold: list[str], monkeypatch: pytest.MonkeyPatch, code: str, why: str
) -> None:
    monkeypatch.setenv("CODE", code)
    with pytest.raises(AirflowException, match=why):
        execute(task())
    assert not cold


def test_without_a_warm_driver_a_run_starts_its_own(cold: list[str]) -> None:
    execute(task())
    assert cold == ["orders"]


def test_a_pipeline_that_does_not_ask_for_a_warm_driver_starts_its_own(
    driver: Server, cold: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CODE", FINISHES)
    execute(task(RunOptions()))
    assert cold == ["orders"]


def test_a_run_that_is_lost_starts_its_own_driver(
    driver: Server,
    cold: list[str],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("CODE", "os.kill(os.getppid(), 9); time.sleep(60)")
    execute(task())
    assert cold == ["orders"]
    assert LOST in capsys.readouterr().out


def test_a_task_that_airflow_ends_kills_its_run(
    driver: Server, cold: list[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    file = tmp_path / "pid"
    monkeypatch.setenv(
        "CODE", f"open({str(file)!r}, 'w').write(f'{{os.getpid()}}\\n'); time.sleep(60)"
    )
    running = task()

    def end() -> None:
        while not file.exists() or not file.read_text().endswith("\n"):
            time.sleep(0.01)
        running.on_kill()

    ending = threading.Thread(target=end)
    ending.start()
    with pytest.raises(AttemptEnded):
        execute(running)
    ending.join()
    assert not cold
    # The driver may still be killing the run.
    for _ in range(200):
        try:
            os.kill(int(file.read_text()), 0)
        except ProcessLookupError:
            return
        time.sleep(0.02)
    raise AssertionError("The run goes on.")
