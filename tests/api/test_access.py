"""Every route needs a log-in, and every change the permission to edit the DAG."""

from __future__ import annotations

import re

import httpx
import pytest

from tests.support.airflow_server import AirflowServer

pytestmark = pytest.mark.api

EXAMPLES = {
    "store": "general_orders_count",
    "key": "store_1234",
    "pipeline": "orders",
    "order_type": "general_orders",
    "location_id": "s",
}
STREAM = "/sluice/v1/stores/general_orders_count/changes"
EVENTS = "/sluice/v1/events"
REQUIRED = {
    "/keys": "?key=k",
    "/diff": "?before=1.0",
    "/finished-runs": "?since=2026-01-01T00:00:00Z&until=2026-01-02T00:00:00Z",
    "/history": "?since=2026-01-01T00:00:00Z&until=2026-01-02T00:00:00Z",
}
"""The last part of a route's path → the parameters that it needs."""
NEEDS_KAFKA = "/sluice/v1/pipelines/orders/dead_letters"
CHANGES = {
    "/sluice/v1/pipelines/orders/runs": {"action": "run"},
    "/sluice/v1/pipelines/orders/dead_letters/redrive": {"reason": "contract"},
    "/sluice/v1/pipelines/orders/pause": {"reason": "new prices"},
    "/sluice/v1/pipelines/orders/resume": {},
}
"""The routes that change something, with the body that they take."""
BESIDE_ROUTES = [
    "/sluice/",
    "/sluice/docs",
    "/sluice/openapi.json",
    "/sluice/redoc",
    "/sluice/static/app.js",
    "/sluice/static/../static/app.js",
    "/sluice/panels/orders.js",
    "/sluice/nothing",
    "/sluice//",
    "/v1/",
    "/v1/docs",
    "/v1/openapi.json",
    "/v1/nothing",
]


@pytest.fixture(scope="package")
def routes(admin: httpx.Client) -> list[str]:
    """Every route of the OpenAPI document that can be read, except streams, with example parameters."""
    paths = admin.get("/sluice/openapi.json").json()["paths"]
    found = [
        re.sub(r"\{(\w+)\}", lambda name: EXAMPLES[name[1]], path)
        for path in paths
        if "get" in paths[path]
    ]
    assert {STREAM, EVENTS} < {*found}
    return [path for path in found if path not in (STREAM, EVENTS)]


def test_the_plugin_is_listed(admin: httpx.Client) -> None:
    plugins = {plugin["name"]: plugin for plugin in admin.get("/api/v2/plugins").json()["plugins"]}
    assert [app["url_prefix"] for app in plugins["sluice"]["fastapi_apps"]] == ["/sluice", "/v1"]
    assert admin.get("/api/v2/plugins/importErrors").json()["total_entries"] == 0


@pytest.mark.attack(
    "S1", "every route, page and document, and missing paths, with every method and extra slashes"
)
@pytest.mark.parametrize("method", ["GET", "HEAD", "OPTIONS", "POST", "PUT", "PATCH", "DELETE"])
def test_without_a_log_in_every_path_is_401(
    anonymous: httpx.Client, routes: list[str], method: str
) -> None:
    asked = [
        path + slash
        for path in [*routes, STREAM, EVENTS, *CHANGES, *BESIDE_ROUTES]
        for slash in ("", "/")
    ]
    answers = {path: anonymous.request(method, path) for path in asked}
    assert {path: answer.status_code for path, answer in answers.items()} == dict.fromkeys(
        asked, 401
    )
    assert {answer.headers["WWW-Authenticate"] for answer in answers.values()} == {"Bearer"}
    assert {answer.headers["Content-Type"] for answer in answers.values()} == {
        "application/problem+json"
    }


def test_a_viewer_gets_every_route(viewer: httpx.Client, routes: list[str]) -> None:
    asked = [
        path + REQUIRED.get(path[path.rindex("/") :], "") for path in routes if path != NEEDS_KAFKA
    ] + [
        "/sluice/",
        "/sluice/docs",
        "/sluice/openapi.json",
        "/sluice/static/app.js",
        "/sluice/panels/orders.js",
    ]
    assert {path: viewer.get(path).status_code for path in asked} == dict.fromkeys(asked, 200)


def test_everything_else_can_only_be_read(admin: httpx.Client, routes: list[str]) -> None:
    for method in ("POST", "PUT", "PATCH", "DELETE"):
        only_read = [path for path in routes if path not in CHANGES or method != "POST"]
        assert {admin.request(method, path).status_code for path in only_read} == {405}


@pytest.mark.attack("S3", "changing a pipeline with the permission to read its DAG only")
def test_changes_need_permission_to_edit_the_dag(viewer: httpx.Client) -> None:
    for path, body in CHANGES.items():
        refused = viewer.post(path, json=body)
        assert (refused.status_code, refused.json()["title"]) == (403, "Not allowed"), path


@pytest.mark.attack("S3", "changing a pipeline with the permission to edit another one's DAG")
def test_changes_need_permission_for_the_very_dag(airflow: AirflowServer) -> None:
    with airflow.client("editor") as editor:
        for path, body in CHANGES.items():
            other = path.replace("orders", "payroll")
            refused, missing = (
                editor.post(other.replace("payroll", name), json=body)
                for name in ("payroll", "payrolx")
            )
            assert refused.status_code == 404
            assert refused.text == missing.text.replace("payrolx", "payroll")
        started = editor.post("/sluice/v1/pipelines/orders/runs", json={"action": "run"})
        assert (started.status_code, "DAG" in started.text) == (404, True), (
            "allowed, but Airflow has no such DAG"
        )


@pytest.mark.attack("S3", "a page of another site that sends a change with the browser's log-in")
@pytest.mark.parametrize(
    "headers", [{"Sec-Fetch-Site": "cross-site"}, {"Origin": "https://evil.example"}, {}]
)
def test_changes_of_other_sites_are_refused(
    airflow: AirflowServer, anonymous: httpx.Client, headers: dict[str, str]
) -> None:
    cookie = {"Cookie": f"_token={airflow.token('admin')}"}
    for path, body in CHANGES.items():
        assert anonymous.post(path, json=body, headers=cookie | headers).status_code == 403, path


def test_a_run_of_a_pipeline_without_a_dag_cannot_be_started(admin: httpx.Client) -> None:
    refused = admin.post("/sluice/v1/pipelines/orders/runs", json={"action": "run"})
    assert refused.status_code == 404


@pytest.mark.attack("S9", "searching every response for the location of state")
def test_no_response_reveals_where_state_is_stored(admin: httpx.Client, routes: list[str]) -> None:
    for path in [*routes, "/sluice/v1/stores?entries=true"]:
        assert "sqlite" not in admin.get(path).text
