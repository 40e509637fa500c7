"""A task of a real Airflow on a warm driver: its log, its progress, its end and its failures."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest

from sluice.kafka.topics import Topic, create_topics, produce
from sluice.local.airflow_client import Airflow
from sluice.local.platform import LocalPlatform
from sluice.local.service import members
from sluice.warm.client import LOST
from sluice.warm.warm_driver import READY
from tests.integration.test_end_to_end import MigratedPlatform
from tests.support.ports import free_port

# tests/dags/test_warm_runs.py has the same with runs that are Python code.
pytestmark = [pytest.mark.integration, pytest.mark.heavy, pytest.mark.timeout(900)]

PIPELINE = """
import time
from pathlib import Path
from sluice import Pipeline

FOLDER = Path({folder!r})

def step(word: str) -> str:
    if (FOLDER / "fail").exists():
        raise ValueError("the word is wrong")
    while (FOLDER / "hold").exists():
        (FOLDER / "held").touch()
        time.sleep(0.05)
    return word

pipeline = Pipeline("words", workers=1, schedule=None, on_error="fail")
words = pipeline.stream("words", value=str).map_values(step, returns=str)
words.group_by_key().count(store="count_of_word")
"""
OPTIONS = """
[pipelines.words]
warm = "use"
retries = 1
"""
USES = "The run uses a warm driver."
RECORDS = 10


@dataclass
class Tasks:
    """A pipeline, whose runs somebody triggers, in an Airflow with a warm driver."""

    platform: LocalPlatform
    airflow: Airflow
    sent: int = 0
    warm: subprocess.Popen[str] | None = None

    @property
    def folder(self) -> Path:
        return self.platform.home

    def start_warm_driver(self) -> subprocess.Popen[str]:
        """Start a warm driver with the environment of Airflow's tasks, unless it runs."""
        if self.warm is not None and self.warm.poll() is None:
            return self.warm
        self.close()
        self.warm = subprocess.Popen(
            [sys.executable, "-m", "sluice", "warm", "--master", self.platform.spark_master],
            env=self.platform.variables(),
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        assert self.warm.stdout is not None
        while READY not in self.warm.stdout.readline():
            assert self.warm.poll() is None
        return self.warm

    def close(self) -> None:
        """End the warm driver."""
        if self.warm is not None:
            self.warm.terminate()
            self.warm.wait(60)
            assert self.warm.stdout is not None
            self.warm.stdout.close()

    def send(self) -> None:
        produce(self.platform.kafka_config, "words", (("key", b"word", 0) for _ in range(RECORDS)))
        self.sent += RECORDS

    def trigger(self) -> str:
        """Send records, and trigger a run that reads them. Return the run's id."""
        self.send()
        return self.airflow.trigger("words")

    def hold(self) -> None:
        """Let the function of the pipeline wait."""
        (self.folder / "held").unlink(missing_ok=True)
        (self.folder / "hold").touch()

    def wait_until_held(self) -> None:
        for _ in self.platform.ticks(120, "The run does not reach its records", pause_s=0.1):
            if (self.folder / "held").exists():
                return

    def go_on(self) -> None:
        (self.folder / "hold").unlink()

    def task(self, run: str) -> dict[str, Any]:
        (task,) = self.airflow.tasks("words", run)
        return task

    def ended(self, run: str) -> dict[str, Any]:
        """Return the task of a run when it has ended for good."""
        for _ in self.platform.ticks(180, f"The run {run} has not ended", pause_s=0.3):
            state = self.airflow.json(f"/api/v2/dags/words/dagRuns/{run}")["state"]
            if state in ("success", "failed"):
                break
        return self.task(run)

    def log(self, run: str) -> str:
        task = self.task(run)
        return self.airflow.log("words", run, task["task_id"], task["try_number"])

    def mark_failed(self, run: str) -> None:
        task = self.task(run)["task_id"]
        path = f"{self.platform.url}/api/v2/dags/words/dagRuns/{run}/taskInstances/{task}"
        headers = {"Authorization": f"Bearer {self.airflow.token}"}
        answer = httpx.patch(path, json={"new_state": "failed"}, headers=headers, trust_env=False)
        answer.raise_for_status()

    def processes(self) -> set[psutil.Process]:
        """Return the processes of the warm driver, and of the runs on it."""
        assert self.warm is not None
        return {*psutil.Process(self.warm.pid).children(recursive=True)}

    def counted(self) -> int:
        answer = self.airflow.json("/sluice/v1/stores/count_of_word/keys/key")
        return int(answer["entries"][0]["value"])


@pytest.fixture(scope="module")
def tasks(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Tasks]:
    home = tmp_path_factory.mktemp("platform")
    (home / "pipelines").mkdir()
    (home / "pipelines" / "words.py").write_text(PIPELINE.format(folder=str(home)))
    (home / "pipelines" / "sluice.toml").write_text(OPTIONS)
    with MigratedPlatform(home, free_port(), free_port(), pipelines=home / "pipelines") as platform:
        sessions = platform.sessions

        def make_topic() -> None:
            create_topics(platform.kafka_config, [Topic("words", 1, 1)])

        platform.start(make_topic)
        with platform.as_user() as airflow:
            for _ in platform.ticks(120, "Airflow does not load the DAG"):
                if airflow.ask("/api/v2/dags/words").status_code == httpx.codes.OK:
                    break
            made = Tasks(platform, airflow)
            yield made
            made.close()
        sessions |= platform.sessions
    assert members(sessions) == []


@pytest.fixture(autouse=True)
def warm_driver(tasks: Tasks) -> Iterator[subprocess.Popen[str]]:
    yield tasks.start_warm_driver()
    for name in ("hold", "held", "fail"):
        (tasks.folder / name).unlink(missing_ok=True)


def test_a_task_succeeds_and_its_log_is_that_of_its_run(tasks: Tasks) -> None:
    runs = [tasks.trigger()]
    assert tasks.ended(runs[0])["state"] == "success"
    runs.append(tasks.trigger())
    assert tasks.ended(runs[1])["state"] == "success"
    assert tasks.counted() == tasks.sent
    for run in runs:
        log = tasks.log(run)
        assert USES in log
        assert log.count("batch published") == 1
        assert "run done" in log
        assert "spark-submit" not in log


def test_the_log_grows_while_the_run_goes_on(tasks: Tasks) -> None:
    tasks.hold()
    run = tasks.trigger()
    tasks.wait_until_held()
    log = tasks.log(run)
    assert USES in log
    assert "count_of_word" in log, "the plan is in the log"
    assert "batch published" not in log
    assert tasks.task(run)["state"] == "running"
    tasks.go_on()
    assert tasks.ended(run)["state"] == "success"
    assert "batch published" in tasks.log(run)


def test_a_task_that_is_marked_as_failed_ends_its_run_and_no_other(tasks: Tasks) -> None:
    tasks.hold()
    before = tasks.processes()
    run = tasks.trigger()
    tasks.wait_until_held()
    of_run = tasks.processes() - before
    assert of_run
    tasks.mark_failed(run)
    for _ in tasks.platform.ticks(60, "The run goes on", pause_s=0.2):
        if of_run.isdisjoint(tasks.processes()):
            break
    assert tasks.ended(run)["state"] == "failed"
    assert tasks.warm is not None
    assert tasks.warm.poll() is None
    tasks.go_on()
    # The next run reads what the ended one has not published.
    after = tasks.trigger()
    assert tasks.ended(after)["state"] == "success"
    assert USES in tasks.log(after)
    assert tasks.counted() == tasks.sent


def test_a_run_that_fails_fails_the_task_with_its_error(tasks: Tasks) -> None:
    (tasks.folder / "fail").touch()
    run = tasks.trigger()
    task = tasks.ended(run)
    assert task["state"] == "failed"
    assert task["try_number"] == 1, "the same records would fail again"
    log = tasks.log(run)
    assert USES in log
    assert "the word is wrong" in log
    (tasks.folder / "fail").unlink()
    after = tasks.trigger()
    assert tasks.ended(after)["state"] == "success"
    assert tasks.counted() == tasks.sent


def test_a_driver_that_is_killed_loses_no_record(tasks: Tasks) -> None:
    tasks.hold()
    run = tasks.trigger()
    tasks.wait_until_held()
    assert tasks.warm is not None
    # The command, the driver and its JVM.
    os.killpg(tasks.warm.pid, signal.SIGKILL)
    tasks.warm.wait(60)
    tasks.go_on()
    task = tasks.ended(run)
    assert task["state"] == "success"
    log = tasks.log(run)
    assert LOST in log
    assert log.count("batch published") == 1
    assert tasks.counted() == tasks.sent


def test_a_run_without_a_warm_driver_starts_its_own(tasks: Tasks) -> None:
    assert tasks.warm is not None
    tasks.warm.terminate()
    tasks.warm.wait(60)
    run = tasks.trigger()
    assert tasks.ended(run)["state"] == "success"
    assert USES not in tasks.log(run)
    assert tasks.counted() == tasks.sent
