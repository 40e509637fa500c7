"""The batches of a time, added up in columns."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec
import pytest

from sluice.api.runs import DagState
from sluice.observe import batch_history
from sluice.state.ledger.finished_runs import FinishedRun
from tests.support.api_client import Api, User
from tests.support.states import NOON, States

pytestmark = pytest.mark.unit

PATH = "/v1/pipelines/orders/history"


def publish(states: States, minutes: int, **counts: int) -> None:
    at = NOON + timedelta(minutes=minutes)
    event_ms = round((at - timedelta(seconds=minutes)).timestamp() * 1_000)
    states.publish(
        {"a": "[1,2]"}, published_at=at, counts=counts, stream_times={"n/orders/0": event_ms}
    )


def finish(states: States, minutes: float, **changed: Any) -> None:
    """Add a run of ten seconds that ended so many minutes after noon."""
    ended = NOON + timedelta(minutes=minutes)
    run = FinishedRun(
        pipeline="orders",
        began_at=ended - timedelta(seconds=10),
        ended_at=ended,
        outcome="succeeded",
        host="h",
        version="0.1.0",
        topology="a",
        cpu_seconds=4.0,
        memory_bytes=300,
        state_bytes=100,
    )
    states.ledger.finished_runs.add(msgspec.structs.replace(run, **changed))


def read(api: Api, **changed: Any) -> dict[str, Any]:
    hour = {"since": "2026-11-21T12:00", "until": "2026-11-21T13:00", "columns": 6}
    return dict(api.get(PATH, **(hour | changed)))


def test_what_steps_did_not_use_is_added_up_by_step(api: Api, states: States) -> None:
    publish(states, 2, **{"late/n": 1, "null_key/n": 2, "failed/map-3": 4})
    publish(states, 7, **{"late/n": 2, "missing/map-3": 5, "dropped/null_key": 2, "rows": 9})
    publish(states, 61, **{"late/n": 100})
    assert read(api)["steps"] == {
        "n": {"late": 3, "null_key": 2},
        "map-3": {"failed": 4, "missing": 5},
    }


def test_batches_are_added_up_in_equal_parts_of_the_time(api: Api, states: States) -> None:
    publish(states, -5, read=1)
    publish(states, 2, **{"read": 10, "late/n": 1, "output/out": 4})
    publish(states, 7, **{"read": 30, "late/n": 2, "dead_letter/digits": 3})
    publish(states, 60, read=5)
    publish(states, 61, read=7)
    past = read(api)
    assert (past["batches"], past["complete"], past["wrong"]) == (3, True, [])
    first, last = past["columns"]
    assert (first["column"], first["batches"], first["records"]) == (0, 2, 40)
    assert (first["most_records"], first["freshness_seconds"]) == (30, 7.0)
    assert (first["late"], first["written"]) == ({"n": 3}, {"out": 4})
    assert first["dead_letters"] == {"digits": 3}
    assert (last["column"], last["records"]) == (5, 5)


def test_runs_are_added_up_with_what_they_cost(api: Api, states: States) -> None:
    publish(states, 2, read=10)
    finish(states, 3)
    finish(states, 5, memory_bytes=700, state_bytes=150)
    finish(states, 25, outcome="failed", cpu_seconds=None, memory_bytes=None, state_bytes=None)
    finish(states, 61)
    first, second = read(api)["columns"]
    assert (first["batches"], first["runs"], first["cpu_seconds"]) == (1, 2, 8.0)
    assert (first["memory_bytes"], first["state_bytes"]) == (700, 150)
    assert "failed_runs" not in first
    assert (second["column"], second["batches"], second["records"]) == (2, 0, 0)
    assert (second["runs"], second["failed_runs"]) == (1, 1)
    assert "memory_bytes" not in second


def test_changes_and_notes_are_marked(api: Api, states: States) -> None:
    publish(states, 2, read=10)
    finish(states, -30, topology="a")
    finish(states, 10, topology="b")
    finish(states, 11, topology="", outcome="failed")
    finish(states, 12, topology="b", version="0.2.0")
    finish(states, 70, topology="c")
    now = datetime.now(UTC)
    states.ledger.notes.add(states.ref, "", "The state was restored.")
    assert [(mark["at"][11:16], mark["text"]) for mark in read(api)["marks"]] == [
        ("12:09", "changed topology"),
        ("12:11", "Sluice 0.2.0"),
    ]
    recent = read(
        api, since=(now - timedelta(1)).isoformat(), until=(now + timedelta(1)).isoformat()
    )
    assert [mark["text"] for mark in recent["marks"]] == ["The state was restored."]


def test_finished_runs_come_newest_first_with_their_logs(api: Api, states: States) -> None:
    publish(states, 2, read=10)
    finish(states, 3, run="orders/manual__1/orders")
    finish(states, 5, outcome="failed", cpu_seconds=None)
    hour = {"since": "2026-11-21T12:00", "until": "2026-11-21T13:00"}
    path = "/v1/pipelines/orders/finished-runs"
    command, scheduled = api.get(path, **hour)
    assert (command["outcome"], command["run"], command["log"]) == ("failed", "", "")
    assert command["cpu_seconds"] is None
    assert scheduled["log"] == "/airflow/dags/orders/runs/manual__1/tasks/orders"
    assert (scheduled["cpu_seconds"], scheduled["ended_at"]) == (4.0, "2026-11-21T12:03:00Z")
    assert api.get(path, **hour, limit=1) == [command]
    api.user = User(hidden=("orders",))
    assert api.ask("GET", path, params=hour).status_code == 404


def test_costs_are_those_of_readable_pipelines(api: Api, states: States) -> None:
    todays_noon = datetime.now(UTC).replace(hour=12)
    minutes = (todays_noon - NOON).total_seconds() / 60
    for pipeline in ("orders", "secret"):
        finish(states, minutes, pipeline=pipeline)
        finish(states, minutes + 0.1, pipeline=pipeline, outcome="failed")
        finish(states, minutes - 20 * 24 * 60, pipeline=pipeline)
    api.runs.states["orders"] = DagState(False, None, owner="retail")
    api.user = User(hidden=("secret",))
    (today,) = api.get("/v1/costs")
    assert (today["pipeline"], today["owner"], today["runs"]) == ("orders", "retail", 2)
    assert (today["failed_runs"], today["cpu_seconds"]) == (1, 8.0)
    assert len(api.get("/v1/costs", days=30)) == 2
    assert api.ask("GET", "/v1/costs", params={"days": 91}).status_code == 422


def test_a_time_without_batches_has_no_columns(api: Api, states: States) -> None:
    publish(states, 2, read=10)
    assert read(api, until="2026-11-21T12:01")["columns"] == []
    # Even the shortest time has columns.
    shortest = {"since": "2026-11-21T12:02", "until": "2026-11-21T12:02:00.000001"}
    assert read(api, **shortest)["batches"] == 1


def test_the_number_of_batches_is_limited(
    api: Api, states: States, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(batch_history, "MOST_BATCHES", 2)
    for minutes in range(3):
        publish(states, minutes, read=minutes)
    past = read(api)
    assert (past["batches"], past["complete"]) == (2, False)


@pytest.mark.parametrize("until", ["2026-11-21T12:00", "2026-11-20"])
def test_the_end_must_be_later_than_the_begin(api: Api, states: States, until: str) -> None:
    publish(states, 2, read=10)
    response = api.ask("GET", PATH, params={"since": "2026-11-21T12:00", "until": until})
    assert (response.status_code, response.json()["nextStep"]) == (400, "Swap the two times.")


def test_the_history_of_a_hidden_pipeline_is_not_found(api: Api, states: States) -> None:
    publish(states, 2, read=10)
    api.user = User(hidden=("orders",))
    hour = {"since": "2026-11-21T12:00", "until": "2026-11-21T13:00"}
    assert api.ask("GET", PATH, params=hour).status_code == 404


def test_batches_since_a_time(api: Api, states: States) -> None:
    publish(states, 1, read=1)
    publish(states, 9, read=9)
    since = (NOON + timedelta(minutes=5)).astimezone(UTC).isoformat()
    batches = api.get("/v1/pipelines/orders/batches", since=since)
    assert [batch["records"] for batch in batches] == [9]
    assert datetime.fromisoformat(batches[0]["newest_event"]) == NOON + timedelta(
        minutes=8, seconds=51
    )
