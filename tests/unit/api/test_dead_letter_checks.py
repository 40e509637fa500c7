"""A value is checked against the recorded contract of its topic, by whoever may read the pipeline."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.support.api_client import Api, User
from tests.support.states import States

pytestmark = pytest.mark.unit

CHECK = "/v1/pipelines/orders/dead_letters/check"


@pytest.fixture
def states(tmp_path: Path) -> States:
    states = States(f"sqlite:///{tmp_path}")
    contracts = {"orders": {"id": "BIGINT"}, "^eu_.*": {"price": "DECIMAL(6,2)"}}
    states.ledger.generations.register(states.info(contracts=contracts))
    return states


def check(api: Api, topic: str, value: str) -> Any:
    response = api.ask("POST", CHECK, json={"topic": topic, "value": value})
    assert response.status_code == 200, response.text
    return response.json()


def test_a_wrong_field_is_named(api: Api) -> None:
    assert check(api, "orders", '{"id": 1}')["problems"] == []
    (problem,) = check(api, "orders", '{"id": "1"}')["problems"]
    assert problem == {"path": "id", "detail": "Expected a BIGINT, got a text"}


def test_a_pattern_has_the_contract_of_the_topics_that_it_matches(api: Api) -> None:
    (problem,) = check(api, "eu_sales", "{}")["problems"]
    assert problem == {"path": "price", "detail": "The field is missing"}


@pytest.mark.parametrize("topic", ["other", "^eu_.*x", ""])
def test_without_a_contract_nothing_is_checked(api: Api, topic: str) -> None:
    answer = check(api, topic, "{")
    assert (answer["has_contract"], answer["problems"]) == (False, [])


def test_the_contract_of_a_hidden_pipeline_is_not_found(api: Api) -> None:
    api.user = User(hidden=("orders",))
    body = {"topic": "orders", "value": "{}"}
    assert api.ask("POST", CHECK, json=body).status_code == 404


def test_a_value_is_re_driven_for_one_place_only(api: Api) -> None:
    api.user = User(editable=("orders",))
    path = "/v1/pipelines/orders/dead_letters/redrive"
    response = api.ask("POST", path, json={"reason": "digits", "value": "{}"})
    assert response.status_code == 400
    assert response.json()["nextStep"] == "Add the dead letter's place, such as 0/17."
