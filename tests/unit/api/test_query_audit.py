"""The log of who queried which store: off by default, and without keys and values."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from structlog.testing import capture_logs

from sluice.settings import settings
from tests.support.api_client import Api
from tests.support.states import States

pytestmark = pytest.mark.unit

KEY = "a-secret-key"


@pytest.fixture
def on(states: States, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    states.publish({KEY: "[1,2]"})
    monkeypatch.setenv("SLUICE_AUDIT_QUERIES", "true")
    settings.cache_clear()
    yield
    settings.cache_clear()


@pytest.mark.parametrize(
    ("path", "parameters", "kind"),
    [
        ("", {}, "entries"),
        (f"/keys/{KEY}", {}, "key"),
        ("/keys", {"key": KEY}, "keys"),
        ("/count", {"prefix": KEY}, "count"),
    ],
)
def test_a_query_is_logged_without_its_key(
    on: None, api: Api, path: str, parameters: dict[str, str], kind: str
) -> None:
    with capture_logs() as logs:
        api.get(f"/v1/stores/totals{path}", **parameters)
    queried = [line for line in logs if line["event"] == "store queried"]
    assert queried == [
        {
            "event": "store queried", "log_level": "info", "user": "ada", "pipeline": "orders",
            "store": "totals", "kind": kind, "snapshot": "1.0",
        }
    ]  # fmt: skip
    assert KEY not in str(logs)


def test_lists_of_stores_and_refused_queries_are_no_queries(on: None, api: Api) -> None:
    with capture_logs() as logs:
        api.get("/v1/stores")
        assert api.ask("GET", "/v1/stores/nothing").status_code == 404
    assert [line for line in logs if line["event"] == "store queried"] == []


def test_by_default_nothing_is_logged(states: States, api: Api) -> None:
    states.publish({KEY: "[1,2]"})
    with capture_logs() as logs:
        api.get("/v1/stores/totals")
    assert [line for line in logs if line["event"] == "store queried"] == []
