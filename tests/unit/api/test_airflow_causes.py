"""What only Airflow's database knows about failures reaches the page, and the ledger for everybody else."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Any, Literal

import pytest

from sluice.answers import Run
from sluice.api import mounted
from sluice.api.airflow_causes import explained, note_causes
from sluice.api.runs import DagState, PoolWait
from sluice.errors import EngineError, Overdue, SettingsError
from sluice.observe.health import not_started
from sluice.state.ledger.failures import Failure
from tests.support.api_client import Api, KnownRuns
from tests.support.states import States

pytestmark = pytest.mark.unit

BEGAN = datetime(2026, 11, 21, 12, tzinfo=UTC)
HOLDER = "long_task of other_team (3 slots since 11:58:00 UTC)"
FULL = PoolWait("streams", 3, BEGAN, (HOLDER,), 3)
RUN = "orders/manual__1/main"


def run(state: Literal["queued", "running", "failed"]) -> Run:
    return Run("manual__1", state, BEGAN, BEGAN + timedelta(minutes=1), "/log", "run")


def told(failure: Failure, dag: DagState) -> str:
    """What a failure says once Airflow's database is asked."""
    (found,) = explained([failure], "orders", dag)
    return " ".join(filter(None, (found.detail, found.next_step, found.outlook)))


def test_who_occupies_the_pool_is_named() -> None:
    asked = not_started("orders", BEGAN)
    assert told(asked, DagState(False, run("running"), FULL)) == (
        f"Its task waits for a slot of the pool streams. All 3 slots are taken by {HOLDER}. "
        "Wait until these tasks have ended, end one of them, or give the pool streams more slots in Airflow."
    )
    free = PoolWait("streams", 3, BEGAN, (), 1)
    assert "which has free slots. Look at Airflow's own limits" in told(
        asked, DagState(False, None, free)
    )
    assert "which has no slots. Give the pool none slots in Airflow." in told(
        asked, DagState(False, None, PoolWait("none", 0, BEGAN))
    )
    general = told(asked, DagState(False, None))
    assert general.startswith(
        "A run was requested at 12:00:00 UTC, but no driver has started. Look at the DAG"
    )


@pytest.mark.parametrize(
    "failure", [not_started("orders", BEGAN), Failure.of(Overdue("Old."), "orders", kind="overdue")]
)
def test_a_paused_dag_is_the_cause(failure: Failure) -> None:
    assert told(failure, DagState(True, None)).endswith("Unpause the DAG orders in Airflow.")


def test_a_short_wait_for_a_slot_is_usual() -> None:
    dag = DagState(False, run("running"), FULL)
    assert explained([], "orders", dag, BEGAN + timedelta(seconds=39)) == []
    (failure,) = explained([], "orders", dag, BEGAN + timedelta(seconds=41))
    assert (failure.kind, failure.at) == ("slot", BEGAN)


def failed(**values: Any) -> Failure:
    error = EngineError("The warehouse refuses connections.", next_step="Start it.")
    return Failure.of(error, "orders", run=values.pop("run", RUN))


def test_a_run_that_somebody_marked_as_failed_says_so() -> None:
    by_ada = DagState(False, run("failed"), attempts_left=1, marked_by="ada")
    marked = "The warehouse refuses connections. Start it. {} marked the run as failed in Airflow at 12:01:00 UTC, so "
    assert told(failed(), by_ada) == marked.format("ada") + "Airflow does not repeat it."
    # Airflow notes no user if several runs are marked at once.
    assert told(failed(), DagState(False, run("failed"), attempts_left=1)).startswith(
        marked.format("Somebody")
    )
    # It had not failed before it was marked.
    (unseen,) = explained([], "orders", by_ada)
    assert (unseen.kind, unseen.detail) == (
        "run",
        "ada marked the run as failed in Airflow at 12:01:00 UTC.",
    )


def test_a_run_that_fails_by_itself_was_not_marked() -> None:
    used_up = DagState(False, run("failed"), attempts_left=0)
    assert told(failed(), used_up).endswith("Airflow has used up its attempts.")
    waits = DagState(False, run("running"), attempts_left=2)
    assert told(failed(), waits).endswith("Airflow repeats the run: 2 attempts left.")
    lasting = Failure.of(SettingsError("No master."), "orders", run=RUN)
    assert told(lasting, DagState(False, run("failed"), attempts_left=2)).endswith(
        "it would fail again in the same way."
    )
    another = failed(run="orders/manual__0/main")
    assert told(another, used_up) == "The warehouse refuses connections. Start it."
    assert explained([], "orders", DagState(False, run("failed"), attempts_left=2)) == []


def test_the_ledger_gets_the_causes_for_sluice_status_and_keeps_what_others_note(
    states: States,
) -> None:
    ledger = states.ledger
    ledger.failures.keep(failed(), not_started("orders", BEGAN))
    at = BEGAN + timedelta(minutes=10)
    runs = KnownRuns(
        states={"orders": DagState(True, run("failed"), attempts_left=1, marked_by="ada")}
    )
    for _ in range(2):
        note_causes(ledger, runs)
        noted, slot = ledger.failures.of("orders")
        assert noted.marked == "ada marked the run as failed in Airflow at 12:01:00 UTC"
        assert slot.next_step == "Unpause the DAG orders in Airflow."
        # The trigger notes when it starts the next run.
        ledger.failures.change(noted, repeats_at=at)
        assert ledger.failures.of("orders")[0].outlook.endswith(
            "does not repeat it. A new run starts at 12:10:00 UTC."
        )
    ledger.failures.keep(failed())
    ledger.failures.change(noted, marked="Somebody")
    assert ledger.failures.of("orders")[0].marked == "", "the run has failed anew meanwhile"
    runs.states["orders"] = DagState(False, run("queued"))
    note_causes(ledger, runs)
    assert ledger.failures.of("orders")[1].next_step.startswith("Look at the DAG in Airflow"), (
        "it is not paused now"
    )


def test_without_failures_airflows_database_is_not_asked(states: States) -> None:
    class Unasked(KnownRuns):
        def dags(self) -> Mapping[str, DagState]:
            raise AssertionError

    states.ledger.failures.keep(Failure.of(EngineError("x"), "orders", kind="disk"))
    note_causes(states.ledger, Unasked())


def test_the_overview_explains_at_once(
    api: Api, states: States, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sluice.kafka.unread_records.ANSWER_SECONDS", 0.1)
    states.ledger.failures.keep(failed())
    api.runs.states["orders"] = DagState(False, run("failed"), attempts_left=1, marked_by="ada")
    (overview,) = api.get("/v1/overview")
    (failure, _) = overview["failures"]  # the second says that no broker answers
    assert failure["outlook"].startswith("ada marked the run as failed")
    assert failure["repeats_at"] is None


def test_the_api_server_notes_causes_from_its_start_to_its_end(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    told: list[str] = []

    async def note_causes_repeatedly() -> None:
        told.append("notes")
        try:
            await asyncio.sleep(60)
        finally:
            told.append("ends")

    async def server(scope: Any, _receive: Any, _send: Any) -> None:
        while scope["type"] == "lifespan" and not told:
            await asyncio.sleep(0.001)
        told.append(scope["type"])

    monkeypatch.setattr(mounted, "_import_note_causes", lambda: note_causes_repeatedly)

    async def runs() -> None:
        noting: Any = mounted.CausesNoted(server)
        await noting({"type": "http"}, None, None)
        told.clear()
        await noting({"type": "lifespan"}, None, None)
        await asyncio.sleep(0)

    asyncio.run(runs())
    assert told == ["notes", "lifespan", "ends"]
