"""Incomplete requests: a state server closes their connections soon, and responds to other requests meanwhile."""

from __future__ import annotations

import contextlib
import itertools
import socket
import time
from collections.abc import Callable, Iterator

import pytest

from sluice.server import http_protocol
from sluice.server import local_routes as app_module
from tests.servers.hosts import TOKEN, Host

SHARD = "/local/orders/1/0"
LOGGED_IN = f"Host: h\r\nAuthorization: Bearer {TOKEN}\r\n".encode()
SOON = 6.0
"""Every connection must have ended after this number of seconds; the limits are lowered to fractions of a second."""


@pytest.fixture(autouse=True)
def _impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_protocol, "HEAD_SECONDS", 0.5)
    monkeypatch.setattr(http_protocol, "SILENT_SECONDS", 0.5)
    monkeypatch.setattr(app_module._body, "__defaults__", (app_module.MAX_QUERY_BYTES, 1.0))


def sent(host: Host, parts: Iterator[bytes]) -> tuple[float, bytes]:
    """Send parts until the server closes the connection. Returns the duration and the response."""
    start, heard = time.monotonic(), b""
    with socket.create_connection(("127.0.0.1", host.port), timeout=SOON) as connection:
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            for part in parts:
                connection.sendall(part)
                assert time.monotonic() < start + SOON, "the server keeps the connection open"
        with contextlib.suppress(ConnectionResetError):
            while found := connection.recv(65_536):
                heard += found
    return time.monotonic() - start, heard


def slowly(part: bytes, *before: bytes) -> Iterator[bytes]:
    """Some bytes at once, then more bytes repeatedly, each before the time limit for silence."""
    yield from before
    while True:
        time.sleep(0.1)
        yield part


def asking(more: bytes) -> bytes:
    return f"POST {SHARD}/query HTTP/1.1\r\n".encode() + LOGGED_IN + more


HALF: dict[str, Callable[[], Iterator[bytes]]] = {
    "nothing": lambda: iter(()),
    "half a request line": lambda: iter([b"GET /sl"]),
    "half a header": lambda: iter([b"GET / HTTP/1.1\r\nHost: h\r\nAuthoriz"]),
    "headers without end": lambda: slowly(b"X-More: 1\r\n", b"GET / HTTP/1.1\r\nHost: h\r\n"),
    "a header without end": lambda: itertools.chain(
        [b"GET / HTTP/1.1\r\nHost: h\r\nX: "], itertools.repeat(b"x" * 10_000)
    ),
    "an address without end": lambda: itertools.chain([b"GET /"], itertools.repeat(b"x" * 10_000)),
    "half a body": lambda: iter([asking(b"Content-Length: 100\r\n\r\n"), b"{"]),
    "half a chunk": lambda: iter([asking(b"Transfer-Encoding: chunked\r\n\r\n"), b"a\r\n{"]),
    "a body that comes drop by drop": lambda: slowly(
        b" ", asking(b"Content-Length: 100000\r\n\r\n")
    ),
    "chunks that come drop by drop": lambda: slowly(
        b"1\r\n \r\n", asking(b"Transfer-Encoding: chunked\r\n\r\n")
    ),
    "rows that stop": lambda: iter(
        [
            f"PUT {SHARD}/batches/7?epoch=1 HTTP/1.1\r\n".encode()
            + LOGGED_IN
            + b"Content-Length: 999\r\n\r\n",
            b"\x90",
        ]
    ),
    "a body that nobody wants": lambda: slowly(
        b" ", b"PUT /nowhere HTTP/1.1\r\n" + LOGGED_IN + b"Content-Length: 100000\r\n\r\n"
    ),
    "a body without a log-in": lambda: slowly(
        b" ", f"POST {SHARD}/query HTTP/1.1\r\nHost: h\r\nContent-Length: 100000\r\n\r\n".encode()
    ),
    "a query with a body": lambda: slowly(
        b" ", b"GET /sluice/v1/stores HTTP/1.1\r\n" + LOGGED_IN + b"Content-Length: 100000\r\n\r\n"
    ),
}


@pytest.mark.parametrize("kind", HALF)
@pytest.mark.attack("S5", "requests that are incomplete, slow or endless")
def test_an_incomplete_request_is_ended(host: Host, kind: str) -> None:
    took, heard = sent(host, HALF[kind]())
    assert took < SOON
    assert not heard or heard.startswith((b"HTTP/1.1 4", b"HTTP/1.1 200")), heard
    if "drop by drop" in kind:
        assert heard.startswith(b"HTTP/1.1 408"), heard
    assert host.get("/sluice/v1/stores").status_code == 200


@pytest.mark.attack("S5", "hundreds of incomplete requests at once")
def test_many_incomplete_requests_do_not_block_complete_ones(host: Host) -> None:
    with contextlib.ExitStack() as stack:
        half = [
            stack.enter_context(socket.create_connection(("127.0.0.1", host.port), timeout=SOON))
            for _ in range(400)
        ]
        for connection in half:
            connection.sendall(b"GET / HTTP/1.1\r\nHos")
        assert host.get("/sluice/v1/stores").status_code == 200
        for connection in half:
            with contextlib.suppress(ConnectionResetError):
                assert connection.recv(1) == b""


@pytest.mark.attack("S5", "a body that is too large, with and without Content-Length")
def test_a_body_that_is_too_large_is_rejected(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(app_module, "MAX_WRITE_BYTES", 1_000_000)
    for content in (b"x" * 5_000_000, (b"x" * 100_000 for _ in range(50))):
        answer = host.ask("POST", f"{SHARD}/query", content=content)
        assert (answer.status_code, answer.json()["title"]) == (413, "Too big")
    for content in (b"x" * 2_000_000, (b"x" * 100_000 for _ in range(20))):
        answer = host.ask("PUT", f"{SHARD}/batches/7?epoch=1", content=content)
        assert (answer.status_code, answer.json()["detail"][:34]) == (
            413,
            "The request exceeds the limit of 1",
        )


def test_a_reused_connection_stays_open(host: Host) -> None:
    whole = b"GET /sluice/v1/stores HTTP/1.1\r\n" + LOGGED_IN + b"\r\n"
    with socket.create_connection(("127.0.0.1", host.port), timeout=SOON) as connection:
        for _ in range(3):
            connection.sendall(whole)
            heard = b""
            while not heard.endswith(b"]"):
                heard += connection.recv(65_536)
            assert heard.startswith(b"HTTP/1.1 200")
            time.sleep(0.8)  # longer than the limit for silence within a request


CONFLICTS = {
    "two lengths": b"Content-Length: 2\r\nContent-Length: 3\r\n\r\n{}",
    "a length and chunks": b"Content-Length: 2\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    "a length below nothing": b"Content-Length: -1\r\n\r\n",
    "a length beyond 64 bits": b"Content-Length: 99999999999999999999\r\n\r\n",
    "a length that is a word": b"Content-Length: many\r\n\r\n",
    "a chunk beyond 64 bits": b"Transfer-Encoding: chunked\r\n\r\nfffffffffffffffff\r\n",
    "a chunk below nothing": b"Transfer-Encoding: chunked\r\n\r\n-1\r\n",
    "chunks of chunks": b"Transfer-Encoding: chunked, identity\r\n\r\n0\r\n\r\n",
    "a header folded": b"X: a\r\n b\r\nContent-Length: 0\r\n\r\n",
    "a header with a space in its name": b"Content-Length : 0\r\n\r\n",
    "a header with a NUL": b"X: \0\r\n\r\n",
}


@pytest.mark.parametrize("kind", CONFLICTS)
@pytest.mark.attack("S5", "contradictory or invalid headers")
def test_contradictory_headers_are_rejected(host: Host, kind: str) -> None:
    took, heard = sent(host, iter([asking(CONFLICTS[kind])]))
    assert took < SOON
    assert heard.startswith(b"HTTP/1.1 4"), heard
    assert heard.count(b"HTTP/1.1 ") == 1, "one request has one response"


NUMBERS = ["-1", "x", "1e3", "9" * 19, "9" * 5_000]


@pytest.mark.parametrize("number", NUMBERS)
@pytest.mark.attack(
    "S5", "numbers in a state server's paths and queries that no database can store"
)
def test_no_number_breaks_a_state_server(host: Host, number: str) -> None:
    paths = [
        ("GET", f"/local/orders/{number}/0/batches"),
        ("GET", f"/local/orders/1/{number}/batches"),
        ("PUT", f"{SHARD}/batches/{number}?epoch=1"),
        ("PUT", f"{SHARD}/batches/1?epoch={number}"),
        ("POST", f"{SHARD}/compact?keep_from={number}"),
        ("PATCH", SHARD),
        ("GET", "/local/none"),
    ]
    for method, path in paths:
        answer = host.ask(method, path, content=b"\x90")
        assert 400 <= answer.status_code < 500, path
        assert answer.headers["Content-Type"] == "application/problem+json", path
    for body in (
        f'{{"type":"Value","group_id":{number},"store_column":0,"as_of":0,"key":"a"}}',
        f'{{"type":"Value","group_id":0,"store_column":0,"as_of":{number},"key":"a"}}',
        f'{{"type":"Changed","group_id":0,"store_column":0,"as_of":0,"since":{number},"limit":1}}',
        f'{{"type":"Changed","group_id":0,"store_column":0,"as_of":0,"since":0,"limit":{number}}}',
        "[" * 100_000,
        '{"type":"Value","group_id":0,"store_column":0,"as_of":0,"key":"\\ud800"}',
        '{"type":"Eval"}',
        "",
    ):
        answer = host.ask("POST", f"{SHARD}/query", content=body.encode())
        assert 400 <= answer.status_code < 500 or (number == "-1" and answer.status_code == 200), (
            body[:80],
            answer,
        )
        assert (
            answer.status_code == 200
            or answer.headers["Content-Type"] == "application/problem+json"
        )
