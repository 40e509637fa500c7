"""The REST view keeps to its own description, whatever is asked: no 5xx, nothing outside the schema, nothing open."""

from __future__ import annotations

import os
from typing import Any

import httpx
import pytest
import schemathesis
from hypothesis import HealthCheck, given, settings
from schemathesis import GenerationMode, checks

from tests.airflow_server import AirflowServer

pytestmark = pytest.mark.api

LONGEST = 5_000
"""Longer requests may be none to the HTTP server, which escapes each letter to twelve: they do not get to the app. Nor
do paths with a newline, for which Airflow's own router has no app."""
ENDLESS = "/sluice/v1/stores/{store}/changes"
EXAMPLES = int(os.environ.get("EXAMPLES", "4"))
"""For each route, of what is valid and of what is not; with EXAMPLES=500 the test looks for long."""


@pytest.fixture(scope="package")
def schema(admin: httpx.Client) -> schemathesis.BaseSchema:
    document = admin.get("/sluice/openapi.json").json()
    del document["paths"][ENDLESS]
    return schemathesis.openapi.from_dict(document)


@pytest.mark.parametrize("mode", [GenerationMode.POSITIVE, GenerationMode.NEGATIVE])
def test_every_route(
    schema: schemathesis.BaseSchema, mode: GenerationMode, airflow: AirflowServer, admin: httpx.Client
) -> None:
    asked = 0

    def ask(case: schemathesis.Case[Any]) -> None:
        nonlocal asked
        url = case.as_transport_kwargs(base_url=airflow.url)["url"]
        if len(url) + len(str(case.query)) > LONGEST or "%0A" in url:
            return
        asked += 1
        # A cut's name and a time are texts to the schema: that not every text is one is 400.
        case.call_and_validate(
            base_url=airflow.url,
            headers={"Authorization": admin.headers["Authorization"]},
            excluded_checks=[checks.positive_data_acceptance],
        )

    hurried = settings(max_examples=EXAMPLES, derandomize=True, suppress_health_check=list(HealthCheck), database=None)
    for result in schema.get_all_operations():
        operation: Any = result.ok()  # type: ignore[union-attr]
        hurried(given(case=operation.as_strategy(generation_mode=mode))(lambda case: ask(case)))()
    assert asked > 20
