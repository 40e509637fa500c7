"""The OpenAPI description is valid, has enums, and matches all responses."""

from __future__ import annotations

import os
from typing import Any

import httpx
import pytest
import schemathesis
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from schemathesis import GenerationMode
from schemathesis.config import SchemathesisConfig

from sluice.answers import PipelineHealth
from sluice.api.routes import rest_api
from sluice.api.routes.custom_route_files import routes_in
from sluice.settings import settings as sluice_settings
from tests.servers.hosts import TOKEN, Host

LONGEST = 5_000
"""Limits for a request's path and query; the HTTP server rejects longer ones."""
OMITTED = {
    "/sluice/v1/stores/{store}/changes": "endless",
    "/sluice/v1/events": "endless",
    "/sluice/v1/pipelines/{pipeline}/dead_letters": "needs Kafka",
}
"""Routes that the test of all routes omits, and why. It only reads, too."""
EXAMPLES = int(os.environ.get("EXAMPLES", "1"))
"""Number of examples per route, valid and invalid ones. EXAMPLES=500 searches longer."""
THERE_ARE = {"store": "general_orders_count", "pipeline": "orders", "order_type": "general_orders"}
"""Values that exist, so that every other example finds something."""
FITTING = ["2xx", "304", "400", "404", "410", "412"]
"""Statuses that a valid request may get: the named entity may not exist, or may not fit the
store."""


def description() -> dict[str, Any]:
    """The description with the orders view, for a user who may read the orders pipeline."""
    return rest_api.description(routes_in(sluice_settings().pipelines))


@pytest.fixture
def schema() -> schemathesis.BaseSchema:
    paths = {
        path: {"get": methods["get"]}
        for path, methods in description()["paths"].items()
        if "get" in methods and path not in OMITTED
    }
    document = {**description(), "paths": paths}
    config = SchemathesisConfig.from_dict({
        "checks": {"positive_data_acceptance": {"expected-statuses": FITTING}},
        "headers": {"Authorization": f"Bearer {TOKEN}"},
    })  # fmt: skip
    return schemathesis.openapi.from_dict(document, config=config)


def test_the_description_is_valid() -> None:
    schemathesis.openapi.from_dict(description()).validate()
    validator = pytest.importorskip("openapi_spec_validator")
    validator.validate(description())


def test_parameters_with_few_values_are_enums() -> None:
    paths, types = description()["paths"], description()["components"]["schemas"]
    enums = {
        parameter["name"]: parameter["schema"]["enum"]
        for path in paths.values()
        for parameter in path.get("get", {}).get("parameters", ())
        if "enum" in parameter["schema"]
    }
    assert enums == {
        "require": ["complete"],
        "order": ["entries", "group", "max", "min", "sum"],
        "format": ["svg", "text"],
        "order_type": ["general_orders", "restaurant_orders"],
        "health": sorted(PipelineHealth),
    }
    assert types["Store"]["properties"]["kind"]["enum"] == ["global", "key-value", "window"]
    assert types["WorkerStatus"]["properties"]["status"]["enum"] == ["ok", "unavailable"]
    assert types["Worker"]["properties"]["status"]["enum"] == ["degraded", "ok", "unavailable"]
    assert types["OrderRevenue"]["properties"]["orderType"]["enum"] == ["GENERAL", "RESTAURANT"]
    assert types["Group"]["properties"]["sum"]["anyOf"][0] == {"type": "number"}
    keys = next(
        parameter
        for parameter in paths["/sluice/v1/stores/{store}/keys"]["get"]["parameters"]
        if parameter["name"] == "key"
    )
    assert keys["required"]


@pytest.mark.parametrize("mode", [GenerationMode.POSITIVE, GenerationMode.NEGATIVE])
def test_every_response_matches_the_description(
    schema: schemathesis.BaseSchema, mode: GenerationMode, host: Host
) -> None:
    address, statuses = f"http://{host.address}", set()

    def ask(case: schemathesis.Case[Any], is_there: bool) -> None:
        if is_there and mode is GenerationMode.POSITIVE:
            case.path_parameters.update(
                {name: THERE_ARE[name] for name in case.path_parameters if name in THERE_ARE}
            )
            for name in ("field", "group_by"):
                case.query.pop(name, None)  # the values of the store have no fields
        if len(case.as_transport_kwargs(base_url=address)["url"]) + len(str(case.query)) <= LONGEST:
            statuses.add(case.call_and_validate(base_url=address).status_code)

    hurried = settings(
        max_examples=EXAMPLES,
        derandomize=True,
        suppress_health_check=list(HealthCheck),
        database=None,
    )
    for result in schema.get_all_operations():
        operation: Any = result.ok()  # type: ignore[union-attr]
        if mode is GenerationMode.NEGATIVE and not operation.definition.raw["parameters"]:
            continue  # the route has no parameters that could be invalid
        hurried(
            given(case=operation.as_strategy(generation_mode=mode), is_there=st.booleans())(ask)
        )()
    assert statuses >= ({200, 404} if mode is GenerationMode.POSITIVE else {422}), statuses
    assert httpx.get(
        f"{address}/sluice/openapi.json", headers={"Authorization": f"Bearer {TOKEN}"}
    ).json() == (description())
