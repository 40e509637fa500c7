"""The DAG of `dags/closed_windows.py` in a real Airflow: one run for each minute that is complete."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest
from confluent_kafka import Producer

from sluice.kafka.topics import Topic, create_topics
from sluice.local.platform import LocalPlatform
from sluice.state.ledger.ledger import Ledger
from sluice.state.model import GenerationRef
from tests.integration.test_end_to_end import PIPELINES, MigratedPlatform
from tests.support.ports import free_port

pytestmark = [pytest.mark.timeout(900), pytest.mark.heavy]

PIPELINE, DAG, ASSET = "windows", "complete_minutes", "windows.closed.minutes"
TOPICS = ("visits", "visits_recorded", "visits_processed")


@pytest.fixture(scope="module")
def platform(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalPlatform]:
    home = tmp_path_factory.mktemp("platform")
    (pipelines := home / "pipelines").mkdir()
    shutil.copy(PIPELINES / "windows.py", pipelines)
    with MigratedPlatform(home, free_port(), free_port(), pipelines=pipelines) as platform:
        # The DAG asks the REST API as a user.
        platform.environment |= {
            "SLUICE_URL": platform.url,
            "SLUICE_USER": platform.viewer.user,
            "SLUICE_PASSWORD": platform.viewer.password,
        }
        platform.start(lambda: create(platform))
        yield platform


def create(platform: LocalPlatform) -> None:
    create_topics(platform.kafka_config, [Topic(name, 1) for name in TOPICS])


def visit(platform: LocalPlatform, *times: str) -> None:
    """Send visits at these times of 21 November 2026."""
    producer = Producer(platform.kafka_config)
    for at in times:
        value = {"page": "home", "at": f"2026-11-21T{at}"}
        producer.produce("visits", json.dumps(value), key="home")
    assert producer.flush(20) == 0


def keys(platform: LocalPlatform) -> Counter[str | None]:
    """The keys of the asset's events, and how many events each has."""
    with platform.as_user() as airflow:
        events = airflow.json("/api/v2/assets/events", source_dag_id=PIPELINE, limit=100)
    of_asset = [event for event in events["asset_events"] if event["name"] == ASSET]
    return Counter(event["partition_key"] for event in of_asset)


def minutes(platform: LocalPlatform) -> dict[str, int]:
    """What the runs of the DAG have counted, by minute. Fails if two runs had the same minute."""
    counts: dict[str, int] = {}
    with platform.as_user() as airflow:
        for run in airflow.runs(DAG):
            assert run["state"] != "failed"
            if run["state"] == "success":
                path = f"/api/v2/dags/{DAG}/dagRuns/{run['dag_run_id']}/taskInstances/visits"
                answer = airflow.json(f"{path}/xcomEntries/return_value")["value"]
                value: dict[str, Any] = json.loads(answer) if isinstance(answer, str) else answer
                assert not counts.keys() & value.keys()
                counts |= value
    return counts


def wait_for(platform: LocalPlatform, count: int) -> dict[str, int]:
    for _ in platform.ticks(400, f"The DAG has not run for {count} minutes", pause_s=2.0):
        counted = minutes(platform)
        if len(counted) >= count:
            return counted
    raise AssertionError


def kill_driver_in_a_batch(platform: LocalPlatform) -> None:
    """Kill the processes of a run after it has planned a batch, before the batch is published."""
    ref = GenerationRef(PIPELINE, 1)
    with Ledger.open(f"sqlite:///{platform.home}/ledger.sqlite") as ledger:
        deadline = time.monotonic() + 300
        while ledger.plans.unpublished(ref) is None:
            assert time.monotonic() < deadline
            time.sleep(0.01)
        for process in platform.processes("scheduler"):
            if any(part.endswith("sluice/driver.py") for part in process.cmdline()):
                process.kill()
        assert ledger.plans.unpublished(ref) is not None, "the batch was published meanwhile"


def test_a_local_spark_has_what_a_run_needs(platform: LocalPlatform) -> None:
    # tests/cluster/test_executor_check.py has the same with executors of a cluster.
    process = subprocess.run(
        [sys.executable, "-m", "sluice", "check", PIPELINE, "--master", "local[2]"],
        env=platform.variables(),
        capture_output=True,
        text=True,
    )
    assert process.returncode == 0, process.stdout + process.stderr
    for check in ("Kafka", "Python", "Sluice", "clock", "packages"):
        assert re.search(rf"^\S+ +{check} +ok", process.stdout, re.MULTILINE), process.stdout
    assert "checks passed" in process.stdout


def test_the_dag_runs_once_for_each_complete_minute(platform: LocalPlatform) -> None:
    visit(platform, "08:00:10", "08:00:20", "08:01:10", "08:02:20")
    expected = {"2026-11-21T08:00:00": 2, "2026-11-21T08:01:00": 1}
    assert wait_for(platform, 2) == expected

    visit(platform, "08:02:30", "08:02:40", "08:05:30")
    kill_driver_in_a_batch(platform)
    expected |= {
        "2026-11-21T08:02:00": 3,
        "2026-11-21T08:03:00": 0,
        "2026-11-21T08:04:00": 0,
    }
    assert wait_for(platform, 5) == expected
    with platform.as_user() as airflow:
        run = airflow.runs(PIPELINE)[-1]
        (task,) = airflow.tasks(PIPELINE, run["dag_run_id"])
    assert (run["state"], task["try_number"]) == ("success", 2)

    # A run that closes no window has no event.
    visit(platform, "08:05:31")
    for _ in platform.ticks(200, "no further run", pause_s=2.0):
        with platform.as_user() as airflow:
            if [run["state"] for run in airflow.runs(PIPELINE)] == ["success"] * 3:
                break
    assert keys(platform) == dict.fromkeys(expected, 1)
    assert minutes(platform) == expected
