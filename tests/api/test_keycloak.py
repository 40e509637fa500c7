"""Users and permissions of a real Keycloak: with tokens, and in a browser."""

from __future__ import annotations

import time

import httpx
import pytest

from tests.api.keycloak import KeycloakServer
from tests.support.airflow_server import AirflowServer

pytestmark = pytest.mark.api

PIPELINES = "/sluice/v1/pipelines"
STORES = "/sluice/v1/stores"
ORDERS = f"{STORES}/general_orders_count"
PAYROLL = f"{PIPELINES}/payroll/activity"
CACHED_SECONDS = 5.5
"""A little longer than Sluice remembers a log-in and its permissions."""


@pytest.fixture
def server(airflow: AirflowServer) -> KeycloakServer:
    assert isinstance(airflow, KeycloakServer)
    return airflow


def readable(client: httpx.Client) -> set[str]:
    """Return the pipelines that the list shows."""
    answer = client.get(PIPELINES).raise_for_status().json()
    return {pipeline["pipeline"] for pipeline in answer}


def test_each_user_sees_the_pipelines_whose_dags_keycloak_lets_the_user_read(
    server: KeycloakServer,
) -> None:
    expected = {"admin": {"orders", "payroll"}, "viewer": {"orders"}, "stranger": set[str]()}
    for user, pipelines in expected.items():
        with server.client(user) as by_token, server.browser(user) as by_cookie:
            assert readable(by_token) & {"orders", "payroll"} == pipelines
            assert readable(by_cookie) & {"orders", "payroll"} == pipelines


def test_a_browser_opens_the_page_and_a_hidden_pipeline_does_not_exist_for_it(
    server: KeycloakServer,
) -> None:
    with server.browser("viewer") as viewer:
        assert viewer.get("/sluice/").status_code == 200
        assert viewer.get(ORDERS).status_code == 200
        assert viewer.get(PAYROLL).status_code == 404


def test_only_who_may_edit_the_dag_pauses_its_runs(server: KeycloakServer) -> None:
    same_site = {"Sec-Fetch-Site": "same-origin"}
    with server.browser("viewer") as viewer, server.browser("editor") as editor:
        body = {"reason": "new prices"}
        refused = viewer.post(f"{PIPELINES}/orders/pause", json=body, headers=same_site)
        assert refused.status_code == 403
        editor.post(f"{PIPELINES}/orders/pause", json=body, headers=same_site).raise_for_status()
        editor.post(f"{PIPELINES}/orders/resume", json={}, headers=same_site).raise_for_status()


def test_a_token_without_keycloaks_own_cookies_is_no_log_in(server: KeycloakServer) -> None:
    with server.browser("admin") as admin:
        assert admin.get(PAYROLL).status_code == 200
        cookies = {"_token": admin.cookies["_token"]}
    with httpx.Client(base_url=server.url, cookies=cookies) as thief:
        assert thief.get(PAYROLL).status_code == 401


def test_nobody_reads_with_another_users_keycloak_cookie(server: KeycloakServer) -> None:
    with server.browser("admin") as admin, server.browser("stranger") as stranger:
        admin.get(PAYROLL).raise_for_status()
        cookies = {
            "_token": stranger.cookies["_token"],
            "_access_token": admin.cookies["_access_token"],
        }
    with httpx.Client(base_url=server.url, cookies=cookies) as mixed:
        assert mixed.get(PAYROLL).status_code in (401, 403)


def test_a_browser_goes_on_after_its_keycloak_token_has_expired(server: KeycloakServer) -> None:
    with server.keycloak.tokens_expire_after(3), server.browser("viewer") as viewer:
        before = viewer.cookies["_access_token"]
        time.sleep(4)
        assert viewer.get(ORDERS).status_code == 200
        assert viewer.cookies["_access_token"] != before


def test_an_api_token_works_until_its_keycloak_token_expires(server: KeycloakServer) -> None:
    with server.keycloak.tokens_expire_after(3), server.client("viewer") as viewer:
        assert viewer.get(ORDERS).status_code == 200
        time.sleep(CACHED_SECONDS)
        assert viewer.get(ORDERS).status_code == 404


def test_nothing_is_shown_while_keycloak_is_away(server: KeycloakServer) -> None:
    with server.browser("viewer") as viewer:
        assert viewer.get(ORDERS).status_code == 200
        server.keycloak.stop()
        try:
            time.sleep(CACHED_SECONDS)
            refused = viewer.get(ORDERS)
            assert refused.status_code == 503
            assert "orders" not in refused.text
        finally:
            server.keycloak.start()
        assert viewer.get(ORDERS).status_code == 200
