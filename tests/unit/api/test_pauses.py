"""A pipeline is paused and resumed over REST; queries by a former name say where it went."""

from __future__ import annotations

from pathlib import Path

import pytest
from structlog.testing import capture_logs

from sluice.api.runs import DagState
from sluice.errors import StateError
from sluice.state.ledger.leases import Holder
from sluice.state.ledger.ledger import Ledger
from sluice.state.model import GenerationRef
from tests.support.api_client import Api, User
from tests.support.states import States

pytestmark = pytest.mark.unit

PAUSE, RESUME = "/v1/pipelines/orders/pause", "/v1/pipelines/orders/resume"


@pytest.fixture
def states(tmp_path: Path) -> States:
    states = States(f"sqlite:///{tmp_path}")
    states.publish({"key": "[1,null]"})
    return states


@pytest.fixture
def api(states: States) -> Api:
    api = Api(states.ledger, User(editable=("orders",)))
    api.runs.states["orders"] = DagState(False, None)
    return api


def test_a_pause_is_shown_with_its_reason_to_all_who_may_read_the_pipeline(api: Api) -> None:
    answer = api.ask("POST", PAUSE, json={"reason": " new prices "})
    assert answer.status_code == 200
    assert (answer.json()["reason"], answer.json()["by"]) == ("new prices", "ada")
    api.user = User()
    (pipeline,) = api.get("/v1/pipelines")
    assert (pipeline["status"], pipeline["pause"]["reason"]) == ("paused", "new prices")
    (overview,) = api.get("/v1/overview")
    assert (overview["health"], overview["pause"]["by"]) == ("paused", "ada")
    assert overview["failures"] == []


def test_a_pipeline_is_resumed_and_nobody_sees_the_reason_any_more(api: Api) -> None:
    api.ask("POST", PAUSE, json={"reason": "new prices"})
    assert api.ask("POST", RESUME, json={}).json() == {"was_paused": True}
    assert api.ask("POST", RESUME, json={}).json() == {"was_paused": False}
    (pipeline,) = api.get("/v1/pipelines")
    assert (pipeline["status"], pipeline["pause"]) == ("ok", None)


def test_an_action_that_cannot_be_recorded_is_done_and_logged(
    api: Api, states: States, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise StateError("Noting who did what failed: permission denied for table activities.")

    monkeypatch.setattr(states.ledger.activities, "add", refuse)
    with capture_logs() as logs:
        assert api.ask("POST", PAUSE, json={"reason": "new prices"}).status_code == 200
    (line,) = [line for line in logs if line["event"] == "activity not recorded"]
    assert (line["pipeline"], line["action"]) == ("orders", "pause")
    assert "permission denied" in line["why"]


@pytest.mark.parametrize(
    ("body", "status"),
    [({"reason": " "}, 400), ({"reason": "x" * 501}, 422), ({}, 422), ({"reason": 7}, 422)],
)
def test_a_pause_needs_a_reason(api: Api, body: dict[str, object], status: int) -> None:
    assert api.ask("POST", PAUSE, json=body).status_code == status
    (pipeline,) = api.get("/v1/pipelines")
    assert pipeline["pause"] is None


def test_only_those_who_may_edit_pause_and_only_with_json(api: Api) -> None:
    assert api.ask("POST", PAUSE, data={"reason": "x"}).status_code == 415
    api.user = User()
    for path, body in ((PAUSE, {"reason": "x"}), (RESUME, {})):
        assert api.ask("POST", path, json=body).status_code == 403
    assert api.get("/v1/pipelines")[0]["pause"] is None


def renamed(ledger: Ledger) -> None:
    lease = ledger.leases.take(
        GenerationRef("orders", 1), Holder(host="here", pid=1, process=""), None
    )
    assert lease is not None
    ledger.renames.begin(lease, "sales")
    addresses = {
        (1, worker.number): worker.location for worker in ledger.generations.workers("orders")
    }
    ledger.renames.switch([lease], "sales", addresses)


def test_queries_by_a_former_name_say_where_the_pipeline_went(api: Api, states: States) -> None:
    renamed(states.ledger)
    for path in ("/v1/pipelines/orders/batches", "/v1/stores/totals?pipeline=orders"):
        answer = api.ask("GET", path)
        assert answer.status_code == 404, path
        assert "The pipeline 'orders' was renamed to 'sales'." in answer.text
    assert api.ask("GET", "/v1/stores/totals?pipeline=sales").status_code == 200


def test_the_new_name_is_hidden_from_users_who_may_not_read_the_pipeline(
    api: Api, states: States
) -> None:
    renamed(states.ledger)
    api.user = User(hidden=("sales",))
    for path in ("/v1/pipelines/orders/batches", "/v1/stores/totals?pipeline=orders"):
        answer = api.ask("GET", path)
        assert answer.status_code == 404
        assert "sales" not in answer.text
