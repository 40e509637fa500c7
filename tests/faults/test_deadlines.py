"""Records that stay unread beyond the deadline of their pipeline, in a running Airflow."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest

from sluice.kafka.topics import produce
from sluice.local.airflow_client import Airflow
from sluice.local.platform import LocalPlatform
from sluice.observe.metrics import gauges
from sluice.observe.monitoring import LedgerFigures
from sluice.state.ledger.ledger import Ledger
from tests.faults.conftest import Observe
from tests.faults.world import LONGEST_S, wait_until
from tests.support.airflow_database import provide_database
from tests.support.ports import free_port

pytestmark = [pytest.mark.heavy, pytest.mark.timeout(3600)]

DAGS = """
# Airflow only reads files with the words airflow and dag in them.
from sluice.orchestration.dags import Alerts, pipeline_dags
from sluice.settings import settings

globals().update(pipeline_dags(settings().pipelines, Alerts(on_overdue="called_back.overdue")))
"""
CALLED_BACK = """
import json, os

async def overdue(pipeline, detail, context):
    with open(os.environ["CALLS"], "a") as file:
        file.write(json.dumps([pipeline, detail, context["dag_run"]["dag_id"]]) + "\\n")
"""
PIPELINE = """
import os
from sluice import Pipeline

def work(value: str) -> str:
    if not os.path.exists(os.environ["WORKS"]):
        raise ValueError("the database of products is down")
    return value

pipeline = Pipeline("pages", deadline="20 seconds", on_error="fail")
pipeline.stream("views", value=str).map_values(work, returns=str).group_by_key().count(store="counts")
"""


@dataclass
class Watched:
    """The pipeline `pages` in a running Airflow. Its runs fail unless the file `works` exists."""

    platform: LocalPlatform
    airflow: Airflow
    works: Path
    called: Path

    @property
    def calls(self) -> list[list[str]]:
        return (
            [json.loads(line) for line in self.called.read_text().splitlines()]
            if self.called.exists()
            else []
        )

    @property
    def failures(self) -> dict[str, str]:
        """Kind → detail of the pipeline's failures, as the page shows them."""
        (pipeline,) = [
            one for one in self.airflow.json("/sluice/v1/overview") if one["pipeline"] == "pages"
        ]
        return {failure["kind"]: failure["detail"] for failure in pipeline["failures"]}

    def is_loaded(self) -> bool:
        """Whether Airflow has loaded the pipeline's DAG."""
        return self.airflow.ask("/api/v2/dags/pages").status_code == httpx.codes.OK

    def is_overdue(self) -> bool:
        """Whether the metrics say so."""
        with Ledger.open(f"sqlite:///{self.platform.home}/ledger.sqlite") as ledger:
            (gauge,) = [
                gauge
                for gauge in gauges(LedgerFigures.read(ledger), "pages")
                if gauge.name == "overdue"
            ]
        return bool(gauge.value)

    @property
    def runs(self) -> list[str]:
        """The states of all runs, oldest first."""
        return [run["state"] for run in self.airflow.runs("pages")]

    def send(self, count: int) -> None:
        produce(
            self.platform.kafka_config,
            "views",
            [(f"k{number}", b"v", 0) for number in range(count)],
        )

    def pause(self, *, paused: bool) -> None:
        answer = self.airflow._client.patch(
            "/api/v2/dags/pages", json={"is_paused": paused}, headers=self.airflow._headers()
        )
        answer.raise_for_status()

    def wait(self, what: Callable[[], Any]) -> None:
        logs = sorted(self.platform.logs.glob("*.log"))
        assert wait_until(lambda: bool(what()), LONGEST_S, 0.5), "".join(
            log.read_text()[-2_000:] for log in logs
        )


@pytest.fixture
def watched(tmp_path: Path) -> Iterator[Watched]:
    (tmp_path / "dags").mkdir()
    (tmp_path / "dags" / "pipelines.py").write_text(DAGS)
    (tmp_path / "dags" / "called_back.py").write_text(CALLED_BACK)
    (tmp_path / "jobs").mkdir()
    (tmp_path / "jobs" / "pages.py").write_text(PIPELINE)
    home, works, called = tmp_path / "home", tmp_path / "works", tmp_path / "calls"
    provide_database(home / "airflow" / "airflow.db")
    environment = {
        "AIRFLOW__CORE__DAGS_FOLDER": str(tmp_path / "dags"),
        "AIRFLOW__DAG_PROCESSOR__MIN_FILE_PROCESS_INTERVAL": "5",
        "PYTHONPATH": str(tmp_path / "dags"),  # the triggerer imports the function
        "WORKS": str(works),
        "CALLS": str(called),
    }
    platform = LocalPlatform(
        home, free_port(), free_port(), pipelines=tmp_path / "jobs", environment=environment
    )
    with platform:
        platform.start(lambda: platform.kafka.create_topics({"views": 1}))
        with platform.as_user() as airflow:
            yield Watched(platform, airflow, works, called)


@pytest.mark.fault(
    "F35", "records stay unread beyond the deadline: the DAG is paused, and later its runs fail"
)
def test_data_older_than_the_deadline_raise_an_alert(watched: Watched, observe: Observe) -> None:
    watched.wait(watched.is_loaded)
    watched.pause(paused=True)
    watched.send(5)
    watched.wait(lambda: watched.calls)
    detail = "5 records have been unread for more than 20 s, and nothing is published."
    assert watched.calls == [["pages", detail, "sluice_deadlines"]]
    assert watched.failures == {"overdue": detail}
    assert watched.is_overdue()
    assert watched.runs == [], "no run of the paused DAG"

    watched.works.touch()
    watched.pause(paused=False)
    watched.wait(lambda: not watched.failures and {*watched.runs} == {"success"})
    assert not watched.is_overdue()

    watched.works.unlink()
    watched.send(10)
    watched.wait(lambda: len(watched.calls) == 2)
    watched.wait(lambda: "failed" in watched.runs)
    assert watched.failures.keys() == {"run", "overdue"}
    assert "database of products is down" in watched.failures["run"]
    assert watched.calls[1][1] == watched.failures["overdue"]
    assert watched.is_overdue()

    watched.works.touch()
    watched.airflow.trigger("pages")
    watched.wait(lambda: not watched.failures)
    assert not watched.is_overdue()
    assert len(watched.calls) == 2, (
        "one call each, although several runs and triggers may have missed the deadline"
    )
    observe(
        "one call for the paused DAG and one for the failed run, each on the page until the next run succeeded"
    )
