"""Who may see what."""

from __future__ import annotations

import re
import time

import httpx
import jwt
import pytest

from tests.airflow_server import AirflowServer

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
    """Every route of the OpenAPI document that comes to an end, with examples for its parameters."""
    paths = admin.get("/sluice/openapi.json").json()["paths"]
    found = [re.sub(r"\{(\w+)\}", lambda name: EXAMPLES[name[1]], path) for path in paths]
    assert STREAM in found
    return [path for path in found if path != STREAM]


def test_the_plugin_is_listed(admin: httpx.Client) -> None:
    plugins = {plugin["name"]: plugin for plugin in admin.get("/api/v2/plugins").json()["plugins"]}
    assert [app["url_prefix"] for app in plugins["sluice"]["fastapi_apps"]] == ["/sluice", "/v1"]
    assert admin.get("/api/v2/plugins/importErrors").json()["total_entries"] == 0


@pytest.mark.parametrize("method", ["GET", "HEAD", "OPTIONS", "POST", "PUT", "PATCH", "DELETE"])
def test_without_a_log_in_every_path_is_401(anonymous: httpx.Client, routes: list[str], method: str) -> None:
    asked = [path + slash for path in [*routes, STREAM, *BESIDE_ROUTES] for slash in ("", "/")]
    answers = {path: anonymous.request(method, path) for path in asked}
    assert {path: answer.status_code for path, answer in answers.items()} == dict.fromkeys(asked, 401)
    assert {answer.headers["WWW-Authenticate"] for answer in answers.values()} == {"Bearer"}
    assert {answer.headers["Content-Type"] for answer in answers.values()} == {"application/problem+json"}


def test_a_viewer_gets_every_route(viewer: httpx.Client, routes: list[str]) -> None:
    asked = [f"{path}?key=k" for path in routes] + [
        "/sluice/",
        "/sluice/docs",
        "/sluice/openapi.json",
        "/sluice/static/page.js",
    ]
    assert {path: viewer.get(path).status_code for path in asked} == dict.fromkeys(asked, 200)


def test_nothing_can_be_changed(admin: httpx.Client, routes: list[str]) -> None:
    for method in ("POST", "PUT", "PATCH", "DELETE"):
        assert {admin.request(method, path).status_code for path in routes} == {405}


@pytest.mark.parametrize("scheme", ["Bearer", "bearer", "Basic", ""])
@pytest.mark.parametrize("token", ["", "x", "a.b.c", "é", jwt.encode({"sub": "admin", "role": "admin"}, "k" * 64)])
def test_forged_tokens_are_401(anonymous: httpx.Client, scheme: str, token: str) -> None:
    given = f"{scheme} {token}".strip().encode()
    for headers in ({b"Authorization": given}, {b"Cookie": b"_token=" + token.encode()}):
        assert anonymous.get("/sluice/v1/stores", headers=headers).status_code == 401


def test_a_browsers_cookie_is_a_log_in(airflow: AirflowServer, anonymous: httpx.Client) -> None:
    cookie = {"Cookie": f"_token={airflow.token('viewer')}"}
    assert anonymous.get("/sluice/", headers=cookie).status_code == 200
    # As everywhere in Airflow, a token that is given explicitly wins over the browser's.
    assert anonymous.get("/sluice/", headers=cookie | {"Authorization": "Bearer x"}).status_code == 401


def test_a_log_out_ends_it_within_seconds(airflow: AirflowServer) -> None:
    with airflow.client("viewer") as client:
        assert client.get("/sluice/v1/stores").status_code == 200
        client.get("/api/v2/auth/logout", follow_redirects=False)
        deadline = time.monotonic() + 10
        while client.get("/sluice/v1/stores").status_code != 401:
            assert time.monotonic() < deadline
            time.sleep(0.2)


@pytest.mark.parametrize(
    "path",
    [
        "/sluice/v1/stores/{}?pipeline=payroll",
        "/sluice/v1/stores/{}/keys/boss?pipeline=payroll",
        "/sluice/v1/stores/totals?pipeline={}",
        "/sluice/v1/pipelines/{}/cuts",
        "/sluice/v1/pipelines/{}/topology",
    ],
)
def test_what_one_may_not_read_cannot_be_told_from_what_is_not_there(
    admin: httpx.Client, viewer: httpx.Client, path: str
) -> None:
    hidden = "payroll" if "{}" in path.partition("pipelines")[2] or "pipeline={}" in path else "totals"
    assert admin.get(path.format(hidden)).status_code == 200
    refused, missing = viewer.get(path.format(hidden)), viewer.get(path.format("missing"))
    assert refused.status_code == missing.status_code == 404
    assert refused.text.replace(hidden, "…") == missing.text.replace("missing", "…").replace(hidden, "…")


def test_lists_leave_out_what_one_may_not_read(admin: httpx.Client, viewer: httpx.Client) -> None:
    def pipelines(client: httpx.Client) -> set[str]:
        stores = {store["pipeline"] for store in client.get("/sluice/v1/stores").json()}
        assert stores == {pipeline["pipeline"] for pipeline in client.get("/sluice/v1/pipelines").json()}
        return stores

    assert pipelines(admin) == {"orders", "payroll"}
    assert pipelines(viewer) == {"orders"}
    assert viewer.get("/sluice/v1/stores/totals").status_code == 404
    assert viewer.get("/sluice/v1/stores/totals/keys/boss").status_code == 404


def test_no_answer_tells_where_state_is_kept(admin: httpx.Client, routes: list[str]) -> None:
    for path in [*routes, "/sluice/v1/stores?entries=true"]:
        assert "sqlite" not in admin.get(path).text
