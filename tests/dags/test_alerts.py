"""Failures and old data reach the functions that a DAG file names."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from airflow.sdk import Asset
from airflow.serialization.serialized_objects import DagSerialization

from sluice.airflow_releases import AsyncCallback
from sluice.errors import EngineError
from sluice.kafka.unread_records import Lag
from sluice.observe.metrics import gauges
from sluice.observe.monitoring import LedgerFigures
from sluice.orchestration.alerts import check_age
from sluice.orchestration.dags import Alerts, pipeline_dags
from sluice.orchestration.deadlines import Age, OverdueTrigger, alert_overdue
from sluice.orchestration.watch import Observation
from sluice.settings import settings
from sluice.state.ledger.failures import Failure
from sluice.state.ledger.ledger import Ledger
from sluice.state.model import GenerationInfo
from tests.support.states import make_snapshot

MINUTE = 60_000
CONTEXT = {"dag_run": {"dag_run_id": "manual__1"}}
told: list[dict[str, Any]] = []


async def notify(**what: Any) -> None:
    told.append(what)


def page(_context: Any) -> None:
    """Somebody's failure callback."""


@pytest.fixture(autouse=True)
def nobody_was_told() -> None:
    told.clear()


def dag_of(folder: Path, arguments: str, alerts: Alerts) -> Any:
    (folder / "p.py").write_text(
        f'from sluice import Pipeline\npipeline = Pipeline("p"{arguments})\n'
        'pipeline.stream("t", value=str).to("u", value=str)\n'
    )
    return pipeline_dags(folder, alerts)["p"]


def test_a_task_that_has_failed_after_its_retries_calls_back(tmp_path: Path) -> None:
    task = dag_of(tmp_path, "", Alerts(on_failure=page)).task_dict["main"]
    assert (task.retries, task.retry_exponential_backoff, task.on_failure_callback) == (
        2,
        True,
        [page],
    )
    assert (task.retry_delay, task.max_retry_delay) == (timedelta(seconds=10), timedelta(minutes=5))


def test_without_alerts_nothing_is_called(tmp_path: Path) -> None:
    dag = dag_of(tmp_path, "", Alerts())
    assert dag.deadline is None
    assert not dag.task_dict["main"].on_failure_callback


def test_a_deadline_of_a_pipeline_is_one_of_its_runs(tmp_path: Path) -> None:
    dag = dag_of(
        tmp_path, ', deadline="10 minutes"', Alerts(on_overdue="tests.dags.test_alerts:notify")
    )
    (alert,) = dag.deadline
    assert (alert.reference.reference_name, alert.interval) == (
        "DagRunQueuedAtDeadline",
        timedelta(minutes=10),
    )
    assert isinstance(alert.callback, AsyncCallback)
    assert alert.callback.path == "sluice.orchestration.alerts.check_age"
    assert alert.callback.kwargs == {
        "pipeline": "p", "deadline_ms": 10 * MINUTE, "notify": "tests.dags.test_alerts:notify",
    }  # fmt: skip
    assert DagSerialization.to_dict(dag)["dag"]["deadline"]


@pytest.mark.parametrize("minutes", [None, 11])
def test_old_data_are_a_failure_of_the_pipeline_with_one_alert(minutes: int | None) -> None:
    publish(minutes)
    found = check()
    assert found.startswith("The run has not succeeded 10 min after it was queued, and ")
    assert told == [{"pipeline": "orders", "detail": found, "context": CONTEXT}]
    assert check() != found
    assert len(told) == 1, "the same data are still old"
    with Ledger.open(settings().ledger) as ledger:
        ledger.failures.keep(Failure.of(EngineError("The driver ended."), "orders"))
        failures = {failure.kind: (failure.run, failure.title) for failure in ledger.failures.all()}
        assert failures == {
            "run": ("", "The run stopped"),
            "overdue": ("manual__1", "The data are too old"),
        }
        overdue = [
            gauge.value
            for gauge in gauges(LedgerFigures.read(ledger), "orders")
            if gauge.name == "overdue"
        ]
        assert overdue == [1]
        # The next run that has read everything ends it, as it ends every failure of a run.
        ledger.failures.clear("orders", "run", "overdue", "input")
        assert ledger.failures.all() == []
    assert check() == found
    assert len(told) == 2, "the data are old again"


def check(context: dict[str, Any] = CONTEXT) -> str:
    return asyncio.run(check_age("orders", 10 * MINUTE, "tests.dags.test_alerts:notify", context))


def test_new_data_of_a_run_that_lingers_raise_no_alert() -> None:
    publish(9)
    check()
    assert told == []
    with Ledger.open(settings().ledger) as ledger:
        assert ledger.failures.all() == []


@pytest.mark.parametrize("as_text", [False, True])
def test_a_triggerer_that_was_down_raises_no_alert_for_data_that_were_new_at_the_deadline(
    *, as_text: bool
) -> None:
    publish(30)
    ended: Any = datetime.now(UTC) - timedelta(minutes=25)
    check(CONTEXT | {"deadline": {"deadline_time": ended.isoformat() if as_text else ended}})
    assert told == []


def test_a_pipeline_with_a_deadline_is_watched_by_a_dag_of_its_own(tmp_path: Path) -> None:
    dag_of(tmp_path, ', deadline="10 minutes"', Alerts())
    dags = pipeline_dags(
        tmp_path, Alerts(on_failure=page, on_overdue="tests.dags.test_alerts:notify")
    )
    assert set(dags) == {"p", "sluice_deadlines"}
    dag: Any = dags["sluice_deadlines"]
    (asset,) = dag.timetable.asset_condition.objects
    trigger = asset.watchers[0].trigger
    assert isinstance(trigger, OverdueTrigger)
    assert OverdueTrigger(**trigger.serialize()[1]).serialize() == trigger.serialize()
    assert (trigger.topics, trigger.deadline_ms) == (["t"], 10 * MINUTE)
    assert dag.task_dict["alert"].retries == 0
    assert DagSerialization.to_dict(dag)


def test_unread_records_are_a_failure_of_the_pipeline() -> None:
    publish(11)
    sent = {"pipeline": "orders", "records": 1200, "at": datetime.now(UTC).isoformat()}
    events = {Asset("orders.overdue"): [SimpleNamespace(extra={"payload": sent})]}
    run = SimpleNamespace(dag_id="sluice_deadlines", run_id="asset__1")
    (found,) = alert_overdue(
        {"orders": 10 * MINUTE},
        "tests.dags.test_alerts:notify",
        dag_run=run,
        triggering_asset_events=events,
    )
    assert (
        found == "1,200 records have been unread for more than 10 min, and snapshot 1.0 is older."
    )
    assert [call["detail"] for call in told] == [found]
    with Ledger.open(settings().ledger) as ledger:
        assert [failure.kind for failure in ledger.failures.all()] == ["overdue"]


def test_data_become_overdue_once_until_they_are_new() -> None:
    age = Age(60)
    # Seconds, unread records, age of the newest snapshot, and whether the data become overdue.
    story = [
        (0, 0, 9_000, False),
        (10, 5, 9_010, False),
        (69, 5, 9_069, False),
        (70, 5, 9_070, True),
        (71, 9, 9_071, False),
        (80, 0, 1, False),
        (90, 3, 11, False),
        (120, 3, 2, False),  # records keep arriving, and a run keeps reading
        (177, 3, 59, False),
        (178, 3, 60, True),
    ]
    assert [age.due(records, snapshot_s, now) for now, records, snapshot_s, _ in story] == [
        due for *_, due in story
    ]
    first = Age(60)
    assert [first.due(1, None, now) for now in (0, 59, 60)] == [False, False, True]


def test_data_become_overdue_while_nobody_knows_whether_records_are_unread() -> None:
    age = Age(60)
    story = [
        (0, 0, 10, False),
        (10, None, 20, False),
        (69, None, 79, False),
        (70, None, 80, True),
        (71, 0, 81, False),
    ]
    assert [age.due(records, snapshot_s, now) for now, records, snapshot_s, _ in story] == [
        due for *_, due in story
    ]


def test_the_alert_says_why_the_lag_is_unknown() -> None:
    publish(11)
    sent = {
        "pipeline": "orders",
        "records": None,
        "at": datetime.now(UTC).isoformat(),
        "trouble": "no broker",
    }
    events = {Asset("orders.overdue"): [SimpleNamespace(extra={"payload": sent})]}
    run = SimpleNamespace(dag_id="sluice_deadlines", run_id="asset__1")
    (alerted,) = alert_overdue(
        {"orders": 10 * MINUTE},
        "tests.dags.test_alerts:notify",
        dag_run=run,
        triggering_asset_events=events,
    )
    assert alerted == (
        "For 10 min, it has been unknown whether there are unread records (no broker), and snapshot 1.0 is older."
    )


class Enough(Exception):
    """Ends a trigger, which otherwise looks for ever."""


def test_a_recorded_alert_says_how_many_records_are_unread_now() -> None:
    publish(11)
    check()

    class Looking(OverdueTrigger):
        def __init__(self) -> None:
            super().__init__("orders", ["t"], 10 * MINUTE, poll_seconds=0.01)
            self.looks = 0

        async def _look(self, *_: object) -> Observation:
            self.looks += 1
            if self.looks > 1:
                raise Enough
            return Observation(
                Lag({"t": {0: 1_200}}, {}, {}), None, datetime.now(UTC), {"overdue": recorded()}
            )

    def recorded() -> Failure:
        with Ledger.open(settings().ledger) as ledger:
            (failure,) = ledger.failures.all()
        return failure

    async def look() -> None:
        async for _ in Looking().run():
            pass

    before = recorded()
    with pytest.raises(Enough):
        asyncio.run(look())
    assert (
        recorded().detail
        == "1,200 records have been unread for more than 10 min, and snapshot 1.0 is older."
    )
    assert (recorded().at, recorded().next_step) == (before.at, before.next_step)


def publish(minutes: int | None) -> None:
    """Publish a snapshot some minutes ago; none for None."""
    with Ledger.open(settings().ledger) as ledger:
        ledger.generations.register(
            GenerationInfo(pipeline="orders", generation=1, workers=(), stores=(), topics=("t",))
        )
        if minutes is not None:
            at = datetime.now(UTC) - timedelta(minutes=minutes)
            ledger.snapshots.publish(make_snapshot(0, published_at=at))
