"""A pipeline's history of batches from the audits, its runs and its generations."""

from __future__ import annotations

import time
from dataclasses import replace

import msgspec
import pytest

from sluice import Pipeline
from sluice.answers import Run
from sluice.api.runs import DagState
from sluice.observe.monitoring import log_path
from sluice.state.ledger.audits import SourceAudit
from sluice.state.ledger.history import Batch
from sluice.state.ledger.leases import Holder
from sluice.state.ledger.plans import PlannedBatch
from sluice.testing import TopologyTestDriver
from tests.support.api_client import Api, User
from tests.support.states import NOON, States, make_audit, make_snapshot

pytestmark = pytest.mark.unit

BATCHES = "/v1/pipelines/orders/batches"
COUNTS = {
    "read": 100, "applied": 90, "filtered": 3, "late/totals": 2, "dropped/null_key": 1, "null_key/totals": 1,
    "failed/double": 4,
    "dead_letter/contract": 3, "output/out": 50, "output/orders_dead_letters": 3, "rows": 40,
}  # fmt: skip
STEP_ROWS = {"received/join-3/0": 90, "received/join-3/1": 7, "results/join-3": 30}


def publish(states: States, batch: int, *, phases: dict[str, int], read: int = 100) -> None:
    """Publish a batch with its audit and history, as a run does."""
    ledger = states.ledger
    lease = ledger.leases.get(states.ref) or ledger.leases.take(
        states.ref, Holder(host="h", pid=1, process="p"), None
    )
    assert lease is not None
    sources = SourceAudit(topic="orders", partition=0, start=0, end=read, read=read, applied=100)
    audit = msgspec.structs.replace(
        make_audit(batch, lease.epoch, sources), phases=phases, step_rows=STEP_ROWS
    )
    history = Batch(number=batch, begun=0, partitions={"orders": 1}, ends={"orders": {"0": read}})
    snapshot = make_snapshot(
        batch, counts=COUNTS, run="orders/manual__2026-11-21T12:00:00+00:00/totals"
    )
    assert ledger.snapshots.publish(snapshot, audit, batch=history)


def test_a_repeated_batch_does_not_count_the_time_of_a_driver_that_has_ended() -> None:
    pipeline = Pipeline("copies", workers=1)
    pipeline.stream("words", value=str).to("copies", value=str)
    with TopologyTestDriver(pipeline) as driver:
        publisher = driver._run._publisher
        killed_ms = time.time_ns() // 1_000_000 - 271_000
        planned = PlannedBatch(number=0, begun=killed_ms)
        assert publisher._begin_phases(planned).ms["start"] < 60_000


def test_a_batch_with_its_counts_durations_and_log(api: Api, states: States) -> None:
    publish(states, 0, phases={"start": 500, "state": 2_500, "audit": 250, "output": 600})
    (batch,) = api.get(BATCHES)
    assert batch == {
        "snapshot": "1.0",
        "published_at": "2026-11-21T12:00:00Z",
        "seconds": 3.85,
        "phases": {"start": 0.5, "state": 2.5, "audit": 0.25, "output": 0.6},
        "records": 100,
        "records_per_second": 26.0,
        "applied": 90,
        "filtered": 3,
        "late": {"totals": 2},
        "dropped": {"null_key": 1},
        "failed": {"double": 4},
        "passed_over": {"null_key/totals": 1},
        "dead_letters": {"contract": 3},
        "read": {"orders": 100},
        "written": {"out": 50, "orders_dead_letters": 3},
        "received": {"join-3/0": 90, "join-3/1": 7},
        "results": {"join-3": 30},
        "rows": 40,
        "run": "orders/manual__2026-11-21T12:00:00+00:00/totals",
        "log": "/airflow/dags/orders/runs/manual__2026-11-21T12%3A00%3A00%2B00%3A00/tasks/totals",
        "wrong": [],
        "newest_event": "2022-12-05T08:55:27Z",
    }


def test_the_rows_of_steps_are_added_up_over_a_time(api: Api, states: States) -> None:
    publish(states, 0, phases={})
    publish(states, 1, phases={})
    noon = {"since": "2026-11-21T11:00", "until": "2026-11-21T13:00"}
    past = api.get("/v1/pipelines/orders/history", **noon)
    assert past["received"] == {"join-3/0": 180, "join-3/1": 14}
    assert past["results"] == {"join-3": 60}


def test_a_batch_that_a_rebuild_repeated_has_no_duration(api: Api, states: States) -> None:
    publish(states, 0, phases={"state": 2_500})
    (batch,) = api.get(BATCHES)
    assert (batch["seconds"], batch["records_per_second"]) == (None, None)


def test_an_audit_that_does_not_balance_has_the_reason(api: Api, states: States) -> None:
    publish(states, 0, phases={}, read=101)
    assert api.get(BATCHES)[0]["wrong"] == [
        "orders/0: 101 records were read, but 100 are accounted for"
    ]


def test_the_newest_batches_come_first(api: Api, states: States) -> None:
    for _ in range(3):
        states.publish()
    assert [batch["snapshot"] for batch in api.get(BATCHES, limit=2)] == ["1.2", "1.1"]


def test_the_runs_of_a_dag_that_has_published_nothing(api: Api) -> None:
    api.runs.states["fresh"] = DagState(False, None)
    api.runs.history["fresh"] = [
        Run("manual__1", "failed", NOON, NOON, "/dags/fresh/runs/manual__1", "run")
    ]
    (run,) = api.get("/v1/pipelines/fresh/runs")
    assert (run["state"], run["log"]) == ("failed", "/dags/fresh/runs/manual__1")


def test_generations_list_the_current_one_and_unfinished_ones(api: Api, states: States) -> None:
    states.publish({"a": "[1,2]"})
    shadow = replace(states, generation=2)
    states.ledger.generations.register(shadow.info(description="another topology"), hidden=True)
    current, other = api.get("/v1/pipelines/orders/generations")
    assert (current["generation"], current["current"], current["snapshot"]["id"]) == (
        1,
        True,
        "1.0",
    )
    assert current["same_topology"]
    assert (other["generation"], other["current"], other["snapshot"]) == (2, False, None)
    assert not other["same_topology"]


@pytest.mark.parametrize("what", ["batches", "runs", "generations"])
@pytest.mark.attack("S2", "a pipeline's history without permission")
def test_a_hidden_pipeline_looks_like_a_missing_one(api: Api, what: str) -> None:
    api.user = User(hidden=("orders", "secret"))
    api.runs.states["secret"] = DagState(False, None)
    answers = [
        api.ask("GET", f"/v1/pipelines/{name}/{what}") for name in ("orders", "secret", "absent")
    ]
    assert [answer.status_code for answer in answers] == [404] * 3
    assert (
        len(
            {
                answer.text.replace(name, "…")
                for answer, name in zip(answers, ("orders", "secret", "absent"), strict=True)
            }
        )
        == 1
    )


@pytest.mark.parametrize(
    ("run", "path"),
    [
        ("orders/manual__1/totals", "/dags/orders/runs/manual__1/tasks/totals"),
        ("orders/a/b c/totals", "/dags/orders/runs/a%2Fb%20c/tasks/totals"),
        ("", ""),
        ("by-hand", ""),
    ],
)
def test_the_log_of_a_run_is_that_of_its_task(run: str, path: str) -> None:
    assert log_path(run) == path
