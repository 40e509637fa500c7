"""The ledger keeps the runs that have ended, and adds up what they cost each day."""

from __future__ import annotations

from datetime import date, timedelta

import msgspec
import pytest

from sluice.state.ledger import finished_runs
from sluice.state.ledger.finished_runs import DailyCost, FinishedRun, topology_hash
from sluice.state.ledger.measurements import Measurement
from tests.support.states import NOON, States

pytestmark = pytest.mark.unit

RUN = FinishedRun(
    pipeline="orders",
    began_at=NOON,
    ended_at=NOON + timedelta(seconds=8),
    run="orders/manual__1/orders",
    outcome="succeeded",
    host="h",
    version="0.1.0",
    topology="abc",
    cpu_seconds=4.5,
    memory_bytes=2**29,
    state_bytes=1_000,
)


def later(run: FinishedRun, **by: float) -> FinishedRun:
    """The same run at a later time."""
    pause = timedelta(**by)
    return msgspec.structs.replace(
        run, began_at=run.began_at + pause, ended_at=run.ended_at + pause
    )


def test_runs_come_newest_first_and_only_those_of_the_time(database: str) -> None:
    runs = States(database).ledger.finished_runs
    killed = FinishedRun(
        pipeline="orders",
        began_at=NOON + timedelta(hours=2),
        ended_at=NOON + timedelta(hours=3),
        outcome="failed",
        host="h",
        version="0.1.0",
    )
    for run in (RUN, later(RUN, hours=1), killed, msgspec.structs.replace(RUN, pipeline="pages")):
        runs.add(run)
    until = NOON + timedelta(days=1)
    assert runs.between("orders", NOON, until, 9) == [killed, later(RUN, hours=1), RUN]
    assert runs.between("orders", NOON, until, 1) == [killed]
    assert runs.between("orders", NOON, NOON + timedelta(hours=1), 9) == [RUN]
    assert runs.newest_before("orders", NOON + timedelta(minutes=30)) == RUN
    assert runs.newest_before("orders", NOON) is None


def test_a_day_costs_what_its_runs_cost_together(database: str) -> None:
    ledger = States(database).ledger
    runs = ledger.finished_runs
    runs.add(RUN, [Measurement("runs_total", 1)])
    runs.add(msgspec.structs.replace(later(RUN, hours=1), outcome="failed", cpu_seconds=None))
    runs.add(later(RUN, days=1))
    today, tomorrow = runs.costs(NOON.date())
    assert today == DailyCost(
        pipeline="orders",
        day="2026-11-21",
        runs=2,
        failed_runs=1,
        cpu_seconds=4.5,
        gigabyte_seconds=8.0,
    )
    assert (tomorrow.day, tomorrow.runs) == ("2026-11-22", 1)
    assert runs.costs(date(2026, 11, 22)) == [tomorrow]
    assert ledger.measurements.of_all_pipelines()["orders"] == [Measurement("runs_total", 1)]


def test_a_run_that_is_added_again_replaces_the_first(database: str) -> None:
    runs = States(database).ledger.finished_runs
    runs.add(RUN)
    runs.add(msgspec.structs.replace(RUN, outcome="failed"))
    assert [run.outcome for run in runs.between("orders", NOON, NOON + timedelta(1), 9)] == [
        "failed"
    ]


def test_old_runs_and_too_many_are_forgotten(
    database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(finished_runs, "MOST_RUNS", 3)
    runs = States(database).ledger.finished_runs
    for hours in range(5):
        runs.add(later(RUN, hours=hours))
    until = NOON + timedelta(days=400)
    kept = runs.between("orders", NOON, until, 9)
    assert [run.began_at.hour for run in kept] == [16, 15, 14]
    last = later(RUN, days=100)
    runs.add(last)
    assert runs.between("orders", NOON, until, 9) == [last]
    assert [cost.day for cost in runs.costs(NOON.date())] == ["2027-03-01"], "kept for 90 days"


def test_the_hash_of_a_topology_changes_with_its_code(database: str) -> None:
    states = States(database)
    info = states.info(description="totals")
    changed = msgspec.structs.replace(info, functions={"double": "other code"})
    assert topology_hash(info) == topology_hash(states.info(description="totals"))
    assert topology_hash(info) != topology_hash(changed)
