"""Path traversal, SQL injection and changed cursors are rejected and change nothing."""

from __future__ import annotations

import base64
import http.client
import json
from collections.abc import Iterator
from urllib.parse import quote

import httpx
import pytest

from tests.servers.test_requests import SENSELESS
from tests.support.airflow_server import AirflowServer

pytestmark = pytest.mark.api

STORES = "/sluice/v1/stores"
COUNT = f"{STORES}/general_orders_count"
NAMES = [
    "..",
    "../../../../../../etc/passwd",
    "..%2f..%2f..%2f..%2fetc%2fpasswd",
    "%2e%2e/%2e%2e/%2e%2e/etc/passwd",
    "%2e%2e%2f%2e%2e%2fledger.sqlite",
    "..%5c..%5cetc%5cpasswd",
    "....//....//etc/passwd",
    "%252e%252e%252fetc%252fpasswd",
    "%c0%ae%c0%ae/%c0%ae%c0%ae/etc/passwd",
    "/etc/passwd",
    "file:%2f%2f%2fetc%2fpasswd",
    "sqlite:%2f%2f%2f%2fetc%2fpasswd",
    "general_orders_count%00",
    "general_orders_count%00.sqlite",
    "%00",
]
"""Raw paths, which no client has normalized."""
PLACES = [
    f"{STORES}/{{}}",
    f"{STORES}/{{}}/keys/k",
    f"{STORES}/{{}}/changes",
    "/sluice/v1/pipelines/{}/snapshots",
    "/sluice/v1/pipelines/{}/topology",
    "/sluice/static/{}",
    f"{COUNT}?as_of={{}}",
    f"{COUNT}?min_snapshot={{}}",
    f"{COUNT}?worker={{}}",
    f"{COUNT}?pipeline={{}}",
    f"{COUNT}?cursor={{}}",
    "/v1/orders/count/{}",
    "/v1/metadata/{}/k",
]
SQL = [
    "' OR 1=1 --",
    "'; DROP TABLE state rows; --",
    '" OR ""="',
    "1) UNION SELECT value FROM state_rows --",
    "%",
    "_",
    "\\",
]


def told(raw: http.client.HTTPConnection, viewer: httpx.Client, path: str) -> tuple[int, bytes]:
    """Status and body of the response to an unmodified path."""
    raw.request("GET", path, headers={"Authorization": viewer.headers["Authorization"]})
    answer = raw.getresponse()
    return answer.status, answer.read()


@pytest.fixture(scope="module")
def raw(airflow: AirflowServer) -> Iterator[http.client.HTTPConnection]:
    """A connection that sends paths unmodified."""
    connection = http.client.HTTPConnection("127.0.0.1", airflow.port, timeout=30)
    yield connection
    connection.close()


@pytest.fixture(autouse=True)
def _everything_is_as_it_was(viewer: httpx.Client) -> Iterator[None]:
    def everything() -> list[str]:
        return [
            viewer.get(f"/v1/orders/{what}").text for what in ("count", "revenue", "windows/count")
        ]

    before = everything()
    yield
    assert everything() == before


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.attack(
    "S4", "../, its encodings and NUL in names of stores, pipelines, snapshots, workers and files"
)
def test_no_name_escapes_its_folder(
    airflow: AirflowServer, viewer: httpx.Client, raw: http.client.HTTPConnection, place: str
) -> None:
    for name in NAMES:
        given, body = told(raw, viewer, place.format(name))
        assert given in (400, 404, 422), name
        assert b"root:" not in body
        assert b"SQLite" not in body
    assert "Traceback" not in airflow.log()


@pytest.mark.attack(
    "S5", "queries that are not text, empty, too long or duplicated, and missing paths"
)
def test_invalid_requests_get_a_problem_document(
    airflow: AirflowServer, viewer: httpx.Client, raw: http.client.HTTPConnection
) -> None:
    for path in SENSELESS:
        status, body = told(raw, viewer, path)
        assert 400 <= status < 500, path
        assert json.loads(body)["status"] == status, path
    assert "Traceback" not in airflow.log()


@pytest.mark.parametrize("method", ["POST", "PUT", "PATCH", "DELETE", "OPTIONS", "TRACE"])
@pytest.mark.attack("S5", "bodies that are not JSON or deeply nested, with unsupported methods")
def test_no_body_is_read(viewer: httpx.Client, method: str) -> None:
    for content in (b"{", b"[" * 100_000, b"\xff", b'{"a": 1e999}', b""):
        answer = viewer.request(
            method, COUNT, content=content, headers={"Content-Type": "application/json"}
        )
        assert (answer.status_code, answer.headers["Content-Type"]) == (
            405,
            "application/problem+json",
        )


@pytest.mark.parametrize("sql", SQL)
@pytest.mark.attack("S5", "SQL in keys, ranges, fields, groups and orders")
def test_sql_is_text(viewer: httpx.Client, sql: str) -> None:
    assert viewer.get(f"{COUNT}/keys/{quote(sql, safe='')}").status_code == 404
    for path, asked, result in (
        ("/keys", {"key": sql}, '"entries":[]'),
        ("", {"prefix": sql}, '"entries":[]'),
        ("", {"first": sql, "last": sql}, '"entries":[]'),
        ("/count", {"prefix": sql}, '"count":0'),
    ):
        answer = viewer.get(COUNT + path, params=asked)
        assert (answer.status_code, result in answer.text) == (200, True), (
            path,
            asked,
            answer.text,
        )
    for name in ("order", "limit", "worker", "require", "smallest", "field", "group_by", sql):
        path = {
            "order": "/combine",
            "group_by": "/combine",
            "smallest": "/top",
            "field": "/top",
        }.get(name, "")
        assert viewer.get(COUNT + path, params={name: sql}).status_code == 422
    for name in ("as_of", "min_snapshot", "min_position", "from", "to"):
        assert viewer.get(COUNT, params={name: sql}).status_code in (400, 422)
    assert (
        viewer.get("/v1/orders/count/general_orders", params={"location_id": sql}).status_code
        == 404
    )


@pytest.mark.parametrize(
    "asked",
    [
        "?limit=1000000000",
        "?limit=-1",
        "?limit=1e9",
        "/top?limit=1000000000",
        "/combine?limit=1000000000",
        "?worker=1000000000",
        f"?prefix={'x' * 3_000}",
        f"/keys/{'x' * 3_000}",
        "/keys?" + "&".join(f"key={number}" for number in range(1_001)),
        "/keys?" + "&".join(f"key={number}" for number in range(10_000)),
    ],
    ids=lambda asked: asked[:20],
)
@pytest.mark.attack("S5", "a limit of a billion, 10,000 keys at once, endless names")
def test_the_size_of_a_request_is_limited(
    viewer: httpx.Client, raw: http.client.HTTPConnection, asked: str
) -> None:
    # The HTTP server already rejects 90 kB of keys.
    assert told(raw, viewer, COUNT + asked)[0] == (422 if len(asked) < 60_000 else 400)


@pytest.mark.attack(
    "S7", "a cursor with each byte changed in turn, truncated, extended, of another store"
)
def test_changed_cursors_are_rejected(viewer: httpx.Client) -> None:
    cursor = viewer.get(COUNT, params={"limit": 1}).json()["cursor"]
    assert viewer.get(COUNT, params={"cursor": cursor}).status_code == 200
    assert (
        viewer.get(f"{STORES}/restaurant_orders_count", params={"cursor": cursor}).status_code
        == 400
    )
    signed = base64.urlsafe_b64decode(cursor + "=" * (-len(cursor) % 4))
    changed = [
        signed[:place] + bytes([byte ^ 1]) + signed[place + 1 :]
        for place, byte in enumerate(signed)
    ]
    for forged in (*changed, signed[:-1], signed[:16], signed[16:], signed + b" ", b""):
        text = base64.urlsafe_b64encode(forged).decode()
        assert viewer.get(COUNT, params={"cursor": text}).status_code == 400
