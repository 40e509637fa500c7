"""Runs are started over REST by users who may edit the DAG, with JSON only."""

from __future__ import annotations

from pathlib import Path

import pytest

from sluice.api.runs import DagState
from sluice.api.services import NO_SERVICES
from sluice.errors import EngineError, Refused
from sluice.state.ledger.failures import Failure
from tests.support.api_client import Api, User
from tests.support.states import States

pytestmark = pytest.mark.unit

RUNS = "/v1/pipelines/orders/runs"


@pytest.fixture
def api(tmp_path: Path) -> Api:
    api = Api(States(f"sqlite:///{tmp_path}").ledger, User(editable=("orders",)))
    api.runs.states["orders"] = DagState(False, None)
    return api


@pytest.mark.parametrize("action", ["run", "replay", "promote", "drop", "roll_back", "change"])
def test_a_run_is_started_with_its_action_in_the_name_of_the_user(api: Api, action: str) -> None:
    answer = api.ask("POST", RUNS, json={"action": action})
    assert answer.status_code == 200
    assert answer.json() == {"run": "manual__1", "log": "/airflow/dags/orders/runs/manual__1"}
    assert api.runs.started == [("orders", {"action": action}, "ada")]


def test_a_replay_takes_the_points_between_which_it_reads(api: Api) -> None:
    points = {"from": "2026-11-21T08:00:00", "until": "orders/0/12"}
    assert api.ask("POST", RUNS, json={"action": "replay", **points}).status_code == 200
    assert api.runs.started == [("orders", {"action": "replay", **points}, "ada")]
    assert (
        api.ask("POST", RUNS, json={"action": "replay", "from": None, "until": ""}).status_code
        == 200
    )
    assert api.runs.started[1:] == [("orders", {"action": "replay"}, "ada")]


@pytest.mark.parametrize(
    ("body", "status"),
    [
        ({"json": {"action": "replay", "from": "yesterday"}}, 400),
        ({"json": {"action": "replay", "from": "2026-11-21", "until": "2026-11-20"}}, 400),
        ({"json": {"action": "run", "from": "beginning"}}, 400),
        ({"json": {"action": "replay", "from": 7}}, 422),
        ({"json": {"action": "replay", "from": "a/0/1," * 1_000}}, 422),
        ({"json": {"action": "explode"}}, 422),
        ({"json": {"action": "run", "more": 1}}, 422),
        ({"json": []}, 422),
        ({"content": b"{", "headers": {"Content-Type": "application/json"}}, 422),
        (
            {
                "content": b'"' + b"x" * 100_000 + b'"',
                "headers": {"Content-Type": "application/json"},
            },
            413,
        ),
        ({"data": {"action": "run"}}, 415),
        ({"content": b'{"action": "run"}', "headers": {"Content-Type": "text/plain"}}, 415),
        ({}, 415),
    ],
)
@pytest.mark.attack(
    "S3", "bodies that are too big, not JSON, or sent as a form of another site could"
)
def test_any_other_body_is_refused(api: Api, body: dict[str, object], status: int) -> None:
    answer = api.ask("POST", RUNS, **body)
    assert (answer.status_code, api.runs.started) == (status, [])
    assert answer.headers["content-type"] == "application/problem+json"


def test_reading_a_pipeline_is_not_enough(api: Api) -> None:
    api.user = User()
    answer = api.ask("POST", RUNS, json={})
    assert (answer.status_code, answer.json()["title"], api.runs.started) == (
        403,
        "Not allowed",
        [],
    )


def test_a_hidden_pipeline_looks_like_a_missing_one(api: Api) -> None:
    api.user = User(hidden=("orders",), editable=("orders",))
    hidden, missing = (
        api.ask("POST", f"/v1/pipelines/{name}/runs", json={}) for name in ("orders", "ordert")
    )
    assert (hidden.status_code, hidden.text.replace("orders", "ordert")) == (404, missing.text)


def test_a_state_server_starts_no_runs() -> None:
    with pytest.raises(Refused, match="A state server cannot start runs"):
        NO_SERVICES.runs.start("orders", {}, "ada")


def test_methods_are_named_that_a_path_allows(api: Api) -> None:
    answer = api.ask("DELETE", RUNS)
    assert (answer.status_code, answer.headers["Allow"]) == (405, "GET, HEAD, POST")


@pytest.mark.parametrize(
    ("next_step", "remedy"),
    [("Compute it: sluice rebuild orders --changed-only.", "change"), ("Undo the change.", "")],
)
def test_a_failure_says_which_action_leads_out_of_it(
    tmp_path: Path, next_step: str, remedy: str
) -> None:
    states = States(f"sqlite:///{tmp_path}")
    error = EngineError("orders has changed.", next_step=next_step)
    states.ledger.failures.keep(Failure.of(error, "orders"))
    failures = Api(states.ledger, User()).get("/v1/overview")[0]["failures"]
    (failure,) = [failure for failure in failures if failure["kind"] == "run"]
    assert failure["remedy"] == remedy
