"""Connections without the token: their number and their time are limited, and callers with the token are answered."""

from __future__ import annotations

import socket
import ssl
import time
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from pathlib import Path

import pytest

from sluice.server import admission, state_server
from sluice.settings import settings
from sluice.state.ledger.ledger import Ledger
from tests.api.states import orders_states
from tests.servers.hosts import TOKEN
from tests.support.certificates import make_certificate
from tests.support.ports import free_port
from tests.support.server_thread import ServerThread
from tests.support.states import ledger_url

ASK = f"GET /local HTTP/1.1\r\nHost: h\r\nAuthorization: Bearer {TOKEN}\r\n\r\n".encode()
MOST = 20
SOON = 5.0


class Server:
    """A state server, which admits `MOST` connections that have not shown the token."""

    def __init__(self, folder: Path, certificate: Path | None) -> None:
        key = None if certificate is None else certificate.with_suffix(".key")
        options = state_server.Options(free_port(), certificate=certificate, key=key)
        self.port, self.uses_tls = options.port, certificate is not None
        app = state_server.make_app(
            Ledger.open(ledger_url(f"sqlite:///{folder}")), settings(), options
        )
        self.thread = ServerThread(state_server.uvicorn_config(app, options))

    def connect(self) -> socket.socket:
        """A TCP connection, without a handshake."""
        return socket.create_connection(("127.0.0.1", self.port), timeout=SOON)

    def answers(self) -> bool:
        """Whether a caller with the token is answered."""
        with ExitStack() as stack:
            connection = stack.enter_context(self.connect())
            if self.uses_tls:
                context = ssl.create_default_context()
                context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
                connection = stack.enter_context(context.wrap_socket(connection))
            connection.sendall(ASK)
            return connection.recv(65_536).startswith(b"HTTP/1.1 200")


@pytest.fixture(params=["http", "https"])
def server(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Server]:
    monkeypatch.setattr(state_server, "MOST_UNPROVEN", MOST)
    monkeypatch.setenv("SLUICE_SERVER_TOKEN", TOKEN)
    monkeypatch.setenv("SLUICE_SHARDS", f"sqlite:///{tmp_path}")
    orders_states(f"sqlite:///{tmp_path}", workers=1)
    server = Server(
        tmp_path, make_certificate(tmp_path, "server") if request.param == "https" else None
    )
    with server.thread:
        yield server


def is_open(connection: socket.socket) -> bool:
    connection.setblocking(False)
    try:
        return connection.recv(1) != b""
    except BlockingIOError:
        return True
    except OSError:
        return False


@pytest.mark.fault("F44", "idle connections at a state server")
@pytest.mark.attack("S5", "thousands of connections that send nothing, or a byte at a time")
@pytest.mark.parametrize(
    "first", [b"", b"GET / HTTP/1.1\r\nHost: h\r\nX: "], ids=["silent", "half a head"]
)
def test_idle_connections_do_not_keep_out_callers_with_the_token(
    server: Server, first: bytes
) -> None:
    with ExitStack() as stack:
        idle = []
        for number in range(10 * MOST):
            idle.append(stack.enter_context(server.connect()))
            with suppress(OSError):
                idle[-1].sendall(first)
            if number % MOST == 0:
                assert server.answers()
        assert server.answers()
        assert sum(map(is_open, idle)) <= MOST
        is_no_handshake = server.uses_tls and first
        assert is_no_handshake or is_open(idle[-1]), "the oldest connections are closed first"


@pytest.mark.attack("S5", "connections that stay open without the token")
def test_a_connection_has_to_show_the_token_soon(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(admission, "UNPROVEN_SECONDS", 0.5)
    with server.connect() as idle, server.connect() as slow, server.connect() as known:
        began = time.monotonic()
        if not server.uses_tls:
            known.sendall(ASK)
            assert known.recv(65_536).startswith(b"HTTP/1.1 200")
        slow.sendall(b"GET / HTTP/1.1\r\nX: ")
        while (is_open(slow) or is_open(idle)) and time.monotonic() < began + SOON:
            with suppress(OSError):
                slow.sendall(b"x")
            time.sleep(0.1)
        assert time.monotonic() - began < SOON
        assert server.uses_tls or is_open(known)


def test_a_server_may_open_as_many_files_as_the_system_allows(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    limits = {"now": (1_024, 4_096)}
    monkeypatch.setattr("resource.getrlimit", lambda _: limits["now"])
    monkeypatch.setattr("resource.setrlimit", lambda _, new: limits.update(now=new))
    assert admission.raise_file_limit() == 4_096
    assert limits["now"] == (4_096, 4_096)
    limits["now"] = (1_024, -1)  # no hard limit
    assert admission.raise_file_limit() == 65_536
