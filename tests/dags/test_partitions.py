"""The events of closed windows in Airflow's own database, and the runs that its scheduler makes of them.

Airflow runs the DAGs in this process; a fake spark-submit takes the place of the driver.
`tests/integration/test_closed_windows.py` runs all of it in Airflow's own processes.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import pytest
from airflow.jobs.job import Job
from airflow.jobs.scheduler_job_runner import SchedulerJobRunner
from airflow.models.asset import AssetEvent, AssetModel
from airflow.models.dag import DagModel
from airflow.models.dagrun import DagRun
from airflow.sdk import DAG
from airflow.utils.session import create_session
from sqlalchemy import select, update

from sluice.orchestration import operator
from sluice.settings import settings
from sluice.values.closed_windows import ANNOUNCED, ANNOUNCED_FROM
from tests.dags.conftest import ROOT
from tests.dags.test_operator import FINISHES, connect
from tests.support.dag_bags import DagBag
from tests.support.states import States

MINUTE = 60_000
EIGHT = 1_795_248_000_000
"""2026-11-21T08:00:00Z in epoch ms."""

pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")


@pytest.fixture
def submits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A fake spark-submit. It fails while the returned file exists."""
    fails = tmp_path / "fails"
    program = tmp_path / "bin" / "spark2-submit"
    program.parent.mkdir()
    code = f"sys.exit(1) if os.path.exists({str(fails)!r}) else {FINISHES}"
    program.write_text(f"#!{sys.executable}\nimport os, sys\n{code}\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{program.parent}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setattr(operator, "require_brokers", lambda _: None)
    monkeypatch.setattr(operator, "_lag", lambda *_: None)
    connect(monkeypatch)
    return fails


@pytest.fixture
def states() -> States:
    """The published state of the pipeline `windows`, with its store `minutes`."""
    home = f"sqlite:///{settings().home}"
    states = States(home, pipeline="windows", ledger_at=settings().ledger)
    minutes = states.store("minutes", "window", group_id=1, window_ms=MINUTE, grace_ms=15_000)
    states.stores = (minutes,)
    states.ledger.generations.register(states.info())
    return states


def publish(states: States, closed: int, *starts: int) -> None:
    rows = [(1, "home", start, start + MINUTE, "[1]") for start in starts]
    times = {f"{ANNOUNCED}/minutes": closed, f"{ANNOUNCED_FROM}/minutes": -1}
    states.publish(rows, stream_times=times)


def announced() -> list[str | None]:
    """The partition keys of all events of the asset, in order."""
    with create_session() as session:
        of_asset = select(AssetModel.id).where(AssetModel.name == "windows.closed.minutes")
        keys = select(AssetEvent.partition_key).where(AssetEvent.asset_id.in_(of_asset))
        return sorted(session.scalars(keys), key=str)


def scheduled() -> list[str | None]:
    """The partition keys of the runs of `complete_minutes`, after the scheduler has looked for work."""
    with create_session() as session:
        runner = SchedulerJobRunner(Job())  # type: ignore[no-untyped-call]
        runner._create_dagruns_for_partitioned_asset_dags(session)
        runs = select(DagRun.partition_key).where(DagRun.dag_id == "complete_minutes")
        return sorted(session.scalars(runs), key=str)


@pytest.mark.usefixtures("airflow_database")
def test_a_dag_runs_once_for_each_closed_window(submits: Path, states: States) -> None:
    made: Any = DagBag(ROOT / "dags").dags["windows"]
    assert isinstance(made, DAG)
    made.task_dict["main"].retries = 0
    publish(states, EIGHT + MINUTE - 1, EIGHT)
    assert made.test().state == "success"
    with create_session() as session:
        session.execute(update(DagModel).values(is_paused=False))
    assert announced() == scheduled() == [], "no minute is complete"

    # A run that fails after it has published announces nothing; the next run does.
    publish(states, EIGHT + 2 * MINUTE + 15_000, EIGHT + MINUTE)
    submits.touch()
    assert made.test().state == "failed"
    assert announced() == []
    submits.unlink()
    assert made.test().state == "success"
    minutes: list[str | None] = ["2026-11-21T08:00:00", "2026-11-21T08:01:00"]
    assert announced() == scheduled() == minutes

    # The runs that these events have started are queued. The next run announces only what is new.
    publish(states, EIGHT + 3 * MINUTE + 15_000)
    assert made.test().state == "success"
    minutes.append("2026-11-21T08:02:00")
    assert announced() == scheduled() == minutes
