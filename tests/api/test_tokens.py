"""Which log-ins are valid, for how long, and for which sites."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import httpx
import jwt
import pytest

from tests.support.airflow_server import JWT_SECRET, AirflowServer

pytestmark = pytest.mark.api

STORES = "/sluice/v1/stores"
HOUR = 3_600


@pytest.fixture(scope="module")
def token(airflow: AirflowServer) -> str:
    return airflow.token("viewer")


@pytest.fixture(scope="module")
def claims(token: str) -> dict[str, Any]:
    """The claims of Airflow's own tokens."""
    decoded: dict[str, Any] = jwt.decode(token, options={"verify_signature": False})
    return decoded


def signed(
    claims: dict[str, Any], key: str = JWT_SECRET, algorithm: str = "HS512", **changed: Any
) -> str:
    said = {name: value for name, value in (claims | changed).items() if value is not None}
    return jwt.encode(said, key, algorithm)


def statuses(client: httpx.Client, token: str) -> set[int]:
    """Status codes for the token as a program and as a browser send it."""
    ways = (
        {b"Authorization": b"Bearer " + token.encode()},
        {b"Cookie": b"_token=" + token.encode()},
    )
    return {client.get(STORES, headers=way).status_code for way in ways}


@pytest.mark.parametrize("scheme", ["Bearer", "bearer", "Basic", ""])
@pytest.mark.parametrize(
    "token", ["", "x", "a.b.c", "é", jwt.encode({"sub": "admin", "role": "admin"}, "k" * 64)]
)
@pytest.mark.attack("S3", "tokens without a signature or with a foreign one")
def test_forged_tokens_are_401(anonymous: httpx.Client, scheme: str, token: str) -> None:
    given = f"{scheme} {token}".strip().encode()
    for headers in ({b"Authorization": given}, {b"Cookie": b"_token=" + token.encode()}):
        assert anonymous.get(STORES, headers=headers).status_code == 401


Forge = Callable[[dict[str, Any], str], str]
FORGED: dict[str, Forge] = {
    "expired": lambda claims, _: signed(claims, exp=int(time.time()) - HOUR),
    "without an end": lambda claims, _: signed(claims, exp=None),
    "not valid yet": lambda claims, _: signed(claims, nbf=int(time.time()) + HOUR),
    "of another Airflow": lambda claims, _: signed(claims, key="another" * 12),
    "for another audience": lambda claims, _: signed(claims, aud="urn:airflow.apache.org:task"),
    "with no signature": lambda claims, _: jwt.encode(claims, "", "none"),
    "with its signature cut off": lambda _, token: token.rpartition(".")[0] + ".",
    "with another role": lambda claims, token: _with_claims_of(
        signed(claims, key="k" * 64, role="admin"), token
    ),
}


def _with_claims_of(other: str, token: str) -> str:
    head, _, signature = token.split(".")
    return ".".join((head, other.split(".")[1], signature))


@pytest.mark.parametrize("how", FORGED)
@pytest.mark.attack(
    "S3", "Airflow's own token, expired, for another audience, or changed with the old signature"
)
def test_tokens_that_airflow_rejects_are_401(
    anonymous: httpx.Client, claims: dict[str, Any], token: str, how: str
) -> None:
    assert statuses(anonymous, signed(claims)) == {200}, (
        "the same claims with the right signature are valid"
    )
    assert statuses(anonymous, FORGED[how](claims, token)) == {401}


@pytest.mark.attack("S3", "a token that expires while it is cached")
def test_a_token_that_expires_is_401_within_seconds(
    anonymous: httpx.Client, claims: dict[str, Any]
) -> None:
    leeway = 10  # Airflow's own
    short = signed(claims, exp=int(time.time()) - leeway + 2)
    assert statuses(anonymous, short) == {200}
    deadline = time.monotonic() + 2 + 5 + 3
    while statuses(anonymous, short) != {401}:
        assert time.monotonic() < deadline
        time.sleep(0.2)


def test_a_browser_cookie_logs_in(anonymous: httpx.Client, token: str) -> None:
    cookie = {"Cookie": f"_token={token}"}
    assert anonymous.get("/sluice/", headers=cookie).status_code == 200
    # As everywhere in Airflow, an explicit token takes precedence over the cookie.
    for given in ("Bearer x", "Bearer"):
        assert (
            anonymous.get("/sluice/", headers=cookie | {"Authorization": given}).status_code == 401
        )


ELSEWHERE: list[dict[str, str]] = [
    {"Origin": "https://evil.example"},
    {"Origin": "null"},
    {"Origin": "http://127.0.0.1:1"},
    {"Origin": "http://127.0.0.1"},
    {"Sec-Fetch-Site": "cross-site"},
    {"Sec-Fetch-Site": "same-site"},
    {"Sec-Fetch-Site": "none"},
    {},
]


@pytest.mark.parametrize("method", ["POST", "PUT", "PATCH", "DELETE"])
@pytest.mark.parametrize("path", [STORES, "/v1/orders/count", "/sluice/nothing"])
@pytest.mark.attack("S3", "requests that a page of another site can make a logged-in browser send")
def test_a_cookie_does_not_help_pages_of_other_sites(
    airflow: AirflowServer, anonymous: httpx.Client, token: str, method: str, path: str
) -> None:
    cookie = {"Cookie": f"_token={token}"}
    for headers in ELSEWHERE:
        refused = anonymous.request(method, path, headers=cookie | headers)
        assert (refused.status_code, refused.headers["Content-Type"]) == (
            403,
            "application/problem+json",
        ), headers
    # Same-site pages and programs with a token reach the routes, none of which changes anything.
    bearer = {"Authorization": f"Bearer {token}", "Origin": "https://evil.example"}
    for headers in (
        cookie | {"Origin": airflow.url},
        cookie | {"Sec-Fetch-Site": "same-origin"},
        bearer,
    ):
        assert anonymous.request(method, path, headers=headers).status_code in (404, 405)


@pytest.mark.attack("S3", "reading responses from a page of another site")
def test_other_sites_cannot_read_responses(anonymous: httpx.Client, token: str) -> None:
    origin = {"Origin": "https://evil.example"}
    preflight = {
        "Access-Control-Request-Method": "GET",
        "Access-Control-Request-Headers": "authorization",
    }
    answers = [
        anonymous.get(STORES, headers=origin | {"Cookie": f"_token={token}"}),
        anonymous.options(STORES, headers=origin | preflight),
        anonymous.options(STORES, headers=origin | preflight | {"Cookie": f"_token={token}"}),
    ]
    for answer in answers:
        assert not [name for name in answer.headers if name.startswith("access-control-")]


class Stream(threading.Thread):
    """Read a store's changes until the server ends the stream."""

    def __init__(self, client: httpx.Client) -> None:
        super().__init__(daemon=True)
        self.client, self.begun = client, threading.Event()

    def run(self) -> None:
        with self.client.stream(
            "GET", f"{STORES}/general_orders_count/changes", timeout=60
        ) as answer:
            for _ in answer.iter_lines():
                self.begun.set()


@pytest.fixture
def leaving(airflow: AirflowServer) -> Iterator[httpx.Client]:
    with airflow.client("viewer") as client:
        yield client


@pytest.mark.attack("S3", "a token and a stream that are used after the log-out")
def test_a_log_out_ends_access_within_seconds(leaving: httpx.Client) -> None:
    assert leaving.get(STORES).status_code == 200
    stream = Stream(leaving)
    stream.start()
    assert stream.begun.wait(10)
    leaving.get("/api/v2/auth/logout", follow_redirects=False)
    deadline = time.monotonic() + 10
    while leaving.get(STORES).status_code != 401:
        assert time.monotonic() < deadline
        time.sleep(0.2)
    stream.join(10)
    assert not stream.is_alive()
