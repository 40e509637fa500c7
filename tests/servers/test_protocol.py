"""The server's protocol sends the same bytes as Uvicorn's own one."""

from __future__ import annotations

import asyncio
import re
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import pytest
from starlette.responses import Response, StreamingResponse
from starlette.types import ASGIApp, Receive, Scope, Send
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from sluice.server import http_protocol
from sluice.server.state_server import Options, make_app, uvicorn_config
from sluice.settings import settings
from tests.servers.hosts import TOKEN, Host
from tests.support.ports import free_port
from tests.support.server_thread import ServerThread

LOG_IN = f"Host: h\r\nAuthorization: Bearer {TOKEN}\r\n"
KEYS = "/sluice/v1/stores/general_orders_count/keys"
COUNT = "/v1/orders/count/general_orders"
AGE = re.compile(rb'"age_seconds":[0-9.]+|content-length: [0-9]+')


@contextmanager
def serving(app: ASGIApp, kind: type[HttpToolsProtocol]) -> Iterator[int]:
    """A server with a protocol. Yields its port."""
    options = Options(free_port(), rest=True)
    config = uvicorn_config(app, options)
    config.http = kind
    with ServerThread(config):
        yield options.port


def answer_to(port: int, *parts: bytes) -> bytes:
    """Everything that a server sends after some parts, until both sides have closed the connection."""
    received = b""
    with socket.create_connection(("127.0.0.1", port), timeout=20) as connection:
        for part in parts:
            connection.sendall(part)
            time.sleep(0.02 if len(parts) > 1 else 0)
        try:
            while block := connection.recv(65_536):
                received += block
        except ConnectionResetError:
            received += b"(reset)"
    return received


def get(path: str, more: str = "", method: str = "GET", close: bool = True) -> bytes:
    ending = "Connection: close\r\n" if close else ""
    return f"{method} {path} HTTP/1.1\r\n{LOG_IN}{more}{ending}\r\n".encode()


def connections() -> dict[str, tuple[bytes, ...]]:
    """Name → the parts of a connection's bytes."""
    one = f"{COUNT}?location_id=store_1"
    tag = 'If-None-Match: W/"orders/1.0@20261121T120000.000000Z"\r\n'
    paths = {path: (get(path),) for path in (
        *(f"{COUNT}?location_id=store_{number}" for number in range(40)), *(f"{KEYS}/store_{n}" for n in range(10)),
        f"{COUNT}?location_id=none", f"{COUNT}?location_id=a%20%C3%A4", f"{COUNT}?x=1", f"{COUNT}?location_id=%ff",
        COUNT, f"{KEYS}/none", f"{KEYS}?key=store_1&key=store_2", "/v1/orders/count/none", "/v1/none", "/none", "/",
        "/v1/metadata/all", "/local", "//v1", "/v1/%2e%2e", "http://h/v1/orders/count", "*", "/sluice/v1/stores#x",
        "/sluice/static/none", "/v1/orders/count/general_orders?",
    )}  # fmt: skip
    return paths | {
        "head": (get(one, method="HEAD"),),
        "options": (get(one, method="OPTIONS"),),
        "post without a body": (get(one, method="POST"),),
        "post with a body": (get(one, "Content-Length: 2\r\n", "POST") + b"{}",),
        "get with a body": (get(one, "Content-Length: 2\r\n") + b"{}",),
        "get with chunks": (get(one, "Transfer-Encoding: chunked\r\n") + b"2\r\n{}\r\n0\r\n\r\n",),
        "expect": (get(one, "Expect: 100-continue\r\nContent-Length: 2\r\n") + b"{}",),
        "expect and query": (
            get("/local/orders/1/0/query", "Expect: 100-continue\r\nContent-Length: 2\r\n", "POST"),
            b"{}",
        ),
        "unchanged": (get(one, tag),),
        "unchanged, among others": (get(f"{KEYS}/store_1", tag.replace("W/", '"a", W/')),),
        "changed": (get(one, 'If-None-Match: W/"orders/1.7@20261121T120000.000000Z"\r\n'),),
        "odd headers": (
            get(one, "X: \xff\r\nCookie: a=b\r\nX:\r\nRange: bytes=-1\r\nUpgrade: h2c\r\n"),
        ),
        "an upgrade": (
            get(one, "Upgrade: websocket\r\nConnection: Upgrade, close\r\n", close=False),
        ),
        "no token": (f"GET {one} HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n".encode(),),
        "a wrong token": (
            f"GET {one} HTTP/1.1\r\nAuthorization: Bearer {TOKEN}x\r\n\r\n".encode(),
        ),
        "the token after a wrong one": (
            f"GET {one} HTTP/1.1\r\nAuthorization: x\r\n{LOG_IN}\r\n".encode(),
        ),
        "a scheme in capitals": (get(one).replace(b"Bearer", b"BEARER"),),
        "HTTP/1.0": (get(one, close=False).replace(b"1.1", b"1.0", 1),),
        "HTTP/1.0, to be kept": (
            get(one, "Connection: keep-alive\r\n", close=False).replace(b"1.1", b"1.0", 1),
        ),
        "two requests": (get(one, close=False), get(one)),
        "pipelined requests": (
            get(one, close=False) * 5 + get(COUNT, close=False) + get(f"{KEYS}/store_2"),
        ),
        "pipelined errors": (
            get("/none", close=False) * 3 + get(one, close=False) + get("/local/none"),
        ),
        "pipelined, then no request": (get(one, close=False) * 2 + b"\0\r\n\r\n",),
        "no request": (b"\0\r\n\r\n",),
        "a name that is no method": (get(one, method="FROB"),),
        "in parts": (get(one)[:30], get(one)[30:60], get(one)[60:]),
        "a pause in a body": (
            get("/local/orders/1/0/query", "Content-Length: 4\r\n", "POST"),
            b"{",
            b"  }",
        ),
        "an address that is too long": (get("/" + "x" * 70_000),),
        "a header that is too long": (get(one, f"X: {'x' * 60_000}\r\n"),),
    }


def app_of(host: Host) -> ASGIApp:
    """Another app over the shards of a host."""
    own = replace(settings(), server_token=TOKEN, shards=f"sqlite:///{host.folder}")
    return make_app(host.ledger, own, host.options)


@pytest.fixture(scope="module")
def both(host: Host) -> Iterator[tuple[int, int]]:
    """The ports of two servers of the same shards: with our protocol, and with Uvicorn's."""
    with (
        serving(app_of(host), http_protocol.PatientProtocol) as ours,
        serving(app_of(host), HttpToolsProtocol) as theirs,
    ):
        yield ours, theirs


@pytest.mark.parametrize("name", connections())
def test_responses_are_those_of_uvicorn(both: tuple[int, int], name: str) -> None:
    ours, theirs = (AGE.sub(b"", answer_to(port, *connections()[name])) for port in both)
    if name == "an address that is too long":
        assert ours in (
            theirs,
            b"",
            b"(reset)",
        )  # only our protocol has a limit, and the kernel may reset
    else:
        assert ours == theirs
        assert ours.startswith(b"HTTP/1.1 ")


async def parts(count: int) -> object:
    for number in range(count):
        yield f"part {number} ".encode()


async def responses(scope: Scope, receive: Receive, send: Send) -> None:
    """An app with responses of every kind, and with mistakes."""
    path = scope["path"]
    start = {"type": "http.response.start", "status": 200}
    if path == "/none":
        return
    if path == "/early":
        raise ValueError("early")
    if path == "/streamed":
        await StreamingResponse(parts(5))(scope, receive, send)  # type: ignore[arg-type]
        return
    headers: dict[str, list[tuple[bytes, bytes]]] = {
        "/plain": [(b"Content-Length", b"4")],
        "/closing": [(b"content-length", b"4"), (b"connection", b"x, Close")],
        "/lengthy": [(b"content-length", b"9")],
        "/brief": [(b"content-length", b"2")],
        "/both": [(b"content-length", b"4"), (b"transfer-encoding", b"chunked")],
        "/splitting": [(b"content-length", b"4"), (b"x", b"a\r\nb: c")],
        "/misnamed": [(b"content-length", b"4"), (b"x y", b"a")],
        "/late": [(b"content-length", b"4")],
        "/twice": [(b"content-length", b"4")],
        "/divided": [(b"content-length", b"4")],
        "/large": [(b"content-length", b"3000000")],
        "/huge": [(b"content-length", b"30000000")],
    }
    if path not in headers:
        await Response(status_code=int(path[1:]))(scope, receive, send)
        return
    await send({**start, "headers": headers[path]})
    if path == "/late":
        raise ValueError("late")
    if path == "/twice":
        await send({**start, "headers": []})
    if path in ("/large", "/huge"):
        for _ in range(3 if path == "/large" else 30):
            await send({"type": "http.response.body", "body": b"x" * 1_000_000, "more_body": True})
        await send({"type": "http.response.body"})
    elif path == "/divided":
        await send({"type": "http.response.body", "body": b"ab", "more_body": True})
        await send({"type": "http.response.body", "body": b"cd"})
    else:
        await send({"type": "http.response.body", "body": b"abcd"})


KINDS = [
    "/plain", "/closing", "/lengthy", "/brief", "/both", "/splitting", "/misnamed", "/late", "/twice", "/divided",
    "/large", "/streamed", "/none", "/early", "/204", "/304", "/404",
]  # fmt: skip


@pytest.mark.parametrize("method", ["GET", "HEAD"])
def test_apps_are_answered_for_as_by_uvicorn(method: str) -> None:
    with (
        serving(responses, http_protocol.PatientProtocol) as ours,
        serving(responses, HttpToolsProtocol) as theirs,
    ):
        for kind in KINDS:
            for bytes_ in (
                get(kind, method=method),
                get(kind, method=method, close=False)
                + get("/streamed", method=method, close=False)
                + get("/plain"),
                get("/plain", close=False)
                + get("/divided", close=False)
                + get(kind, method=method),
            ):
                assert answer_to(ours, bytes_) == answer_to(theirs, bytes_), kind


def test_a_response_that_cannot_be_sent_does_not_hold_back_the_others() -> None:
    sent: list[bytes] = []

    class Fake(asyncio.Transport):
        def __init__(self, is_broken: bool) -> None:
            super().__init__()
            self.is_broken = is_broken

        def is_closing(self) -> bool:
            return False

        def write(self, data: Any) -> None:
            if self.is_broken:
                raise OSError("broken")
            sent.append(data)

        def abort(self) -> None:
            sent.append(b"aborted")

    async def respond() -> None:
        for is_broken in (True, False):
            transport = http_protocol._Transport(Fake(is_broken), asyncio.get_running_loop())
            transport.write(b"head ")
            transport.write(b"body")
        await asyncio.sleep(0)

    asyncio.run(respond())
    assert sent == [b"aborted", b"head body"]


def test_the_rest_of_a_head_has_a_limit_after_a_response(
    host: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(http_protocol, "HEAD_SECONDS", 0.5)
    before = get(f"{COUNT}?location_id=store_1", close=False)
    start = time.monotonic()
    assert answer_to(host.port, before + b"GET /v1/orders/cou").startswith(b"HTTP/1.1 200")
    assert time.monotonic() < start + 10, (
        "the limit is not that of a connection without a request, 60 s"
    )


def test_a_connection_without_requests_is_closed(
    host: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = f"{COUNT}?location_id=store_1"
    with serving(app_of(host), http_protocol.PatientProtocol) as port:
        monkeypatch.setattr(http_protocol, "HEAD_SECONDS", 0.2)
        original = http_protocol.PatientProtocol.__init__

        def impatient(self: http_protocol.PatientProtocol, *given: object, **more: object) -> None:
            original(self, *given, **more)  # type: ignore[arg-type]
            self.timeout_keep_alive = 1

        monkeypatch.setattr(http_protocol.PatientProtocol, "__init__", impatient)
        start = time.monotonic()
        # Bytes between requests do not lengthen the limit.
        assert answer_to(port, get(path, close=False), b"\r\n").count(b"HTTP/1.1 200") == 1
        assert 0.9 < time.monotonic() - start < 10


def test_requests_are_answered_after_the_client_has_ended_its_side(host: Host) -> None:
    paths = [f"{COUNT}?location_id=store_1", f"{KEYS}/store_1", "/none"]
    requests = [
        *(get(path, close=False) for path in paths),
        get(paths[0], close=False) + get(paths[1], close=False),
    ]
    for request in requests * 10:
        with socket.create_connection(("127.0.0.1", host.port), timeout=20) as connection:
            connection.sendall(request)
            connection.shutdown(socket.SHUT_WR)
            assert everything(connection).count(b"HTTP/1.1 ") == request.count(b"GET ")
    with socket.create_connection(("127.0.0.1", host.port), timeout=2) as connection:
        connection.sendall(requests[0][:-2])
        connection.shutdown(socket.SHUT_WR)
        assert everything(connection) == b"", "an incomplete request ends with its connection"


def test_a_client_that_does_not_read_loses_its_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_protocol, "UNREAD_SECONDS", 0.5)
    with (
        serving(responses, http_protocol.PatientProtocol) as port,
        socket.socket() as idle,
        socket.socket() as slow,
    ):
        idle.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4_096)
        for connection in (idle, slow):
            connection.settimeout(20)
            connection.connect(("127.0.0.1", port))
            connection.sendall(get("/huge"))
        received = 0
        while block := slow.recv(50_000):  # for longer than the limit, but without a pause
            received += len(block)
            time.sleep(0.001)
        assert received > 30_000_000
        assert len(everything(idle)) < 30_000_000


def everything(connection: socket.socket) -> bytes:
    received = b""
    while block := connection.recv(65_536):
        received += block
    return received
