"""The batches of a time, added up in columns."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from sluice.observe import batch_history
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


def read(api: Api, **changed: Any) -> dict[str, Any]:
    hour = {"since": "2026-11-21T12:00", "until": "2026-11-21T13:00", "columns": 6}
    return dict(api.get(PATH, **(hour | changed)))


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
