"""Every route needs a log-in and only reads."""

from __future__ import annotations

import re

import httpx
import pytest

pytestmark = pytest.mark.api

EXAMPLES = {
    "store": "general_orders_count",
    "key": "store_1234",
    "pipeline": "orders",
    "order_type": "general_orders",
    "location_id": "s",
}
STREAM = "/sluice/v1/stores/general_orders_count/changes"
BESIDE_ROUTES = [
    "/sluice/",
    "/sluice/docs",
    "/sluice/openapi.json",
    "/sluice/redoc",
    "/sluice/static/page.js",
    "/sluice/static/../static/page.js",
    "/sluice/nothing",
    "/sluice//",
    "/v1/",
    "/v1/docs",
    "/v1/openapi.json",
    "/v1/nothing",
]


@pytest.fixture(scope="package")
def routes(admin: httpx.Client) -> list[str]:
    """Every route of the OpenAPI document except streams, with example parameters."""
    paths = admin.get("/sluice/openapi.json").json()["paths"]
    results = [re.sub(r"\{(\w+)\}", lambda name: EXAMPLES[name[1]], path) for path in paths]
    assert STREAM in results
    return [path for path in results if path != STREAM]


def test_the_plugin_is_listed(admin: httpx.Client) -> None:
    plugins = {plugin["name"]: plugin for plugin in admin.get("/api/v2/plugins").json()["plugins"]}
    assert [app["url_prefix"] for app in plugins["sluice"]["fastapi_apps"]] == ["/sluice", "/v1"]
    assert admin.get("/api/v2/plugins/importErrors").json()["total_entries"] == 0


@pytest.mark.attack("S1", "every route, page and document, and missing paths, with every method and extra slashes")
@pytest.mark.parametrize("method", ["GET", "HEAD", "OPTIONS", "POST", "PUT", "PATCH", "DELETE"])
def test_without_a_log_in_every_path_is_401(anonymous: httpx.Client, routes: list[str], method: str) -> None:
    asked = [path + slash for path in [*routes, STREAM, *BESIDE_ROUTES] for slash in ("", "/")]
    answers = {path: anonymous.request(method, path) for path in asked}
    assert {path: answer.status_code for path, answer in answers.items()} == dict.fromkeys(asked, 401)
    assert {answer.headers["WWW-Authenticate"] for answer in answers.values()} == {"Bearer"}
    assert {answer.headers["Content-Type"] for answer in answers.values()} == {"application/problem+json"}


def test_a_viewer_gets_every_route(viewer: httpx.Client, routes: list[str]) -> None:
    asked = [f"{path}?key=k" if path.endswith("/keys") else path for path in routes] + [
        "/sluice/",
        "/sluice/docs",
        "/sluice/openapi.json",
        "/sluice/static/page.js",
    ]
    assert {path: viewer.get(path).status_code for path in asked} == dict.fromkeys(asked, 200)


def test_nothing_can_be_changed(admin: httpx.Client, routes: list[str]) -> None:
    for method in ("POST", "PUT", "PATCH", "DELETE"):
        assert {admin.request(method, path).status_code for path in routes} == {405}


@pytest.mark.attack("S9", "searching every response for the location of state")
def test_no_response_reveals_where_state_is_stored(admin: httpx.Client, routes: list[str]) -> None:
    for path in [*routes, "/sluice/v1/stores?entries=true"]:
        assert "sqlite" not in admin.get(path).text
