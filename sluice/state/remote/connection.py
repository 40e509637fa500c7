"""How this process calls state servers: token, certificates, time limits, and errors."""

from __future__ import annotations

import socket
import ssl
from functools import cache
from typing import Any

import httpx
import msgspec

from sluice.errors import (
    DamagedState,
    LeaseError,
    QueryError,
    Refused,
    SettingsError,
    SluiceError,
    StateError,
    TooSlow,
)
from sluice.settings import settings

SAME_TOKEN = (
    "Set SLUICE_SERVER_TOKEN or SLUICE_SERVER_TOKEN_FILE "
    "to the token with which the server was started."
)
_CONNECT_SECONDS = 3.0
_TCP_OPTIONS = {
    "TCP_USER_TIMEOUT": 30_000,
    "TCP_KEEPIDLE": 10,
    "TCP_KEEPINTVL": 5,
    "TCP_KEEPCNT": 4,
}
"""With these options, the kernel gives up a connection if the server's host has acknowledged
nothing for 30 s. The time limit of a write, 10 minutes, would notice a lost host much later."""
_ERRORS: dict[str, type[SluiceError]] = {
    error.title: error for error in (DamagedState, LeaseError, QueryError, Refused, TooSlow)
}
"""Title of a state server's error → the class of the error that this process raises. Errors with
other titles become StateError."""


class NotAStateServer(Exception):
    """The response does not come from a state server."""


def client_options(
    seconds: float,
    token: str = "",
    *,
    verify_certificate: bool = True,
) -> dict[str, Any]:
    """Return the arguments for httpx clients that call state servers.

    Raise SettingsError if there is no token.
    """
    tls = tls_context() if verify_certificate else False
    return {
        "headers": {"Authorization": f"Bearer {token or server_token()}"},
        "transport": httpx.HTTPTransport(
            verify=tls, trust_env=False, socket_options=_socket_options()
        ),
        "timeout": call_limits(seconds),
        # Connections between servers use no proxy.
        "trust_env": False,
        "follow_redirects": False,
    }


def _socket_options() -> list[tuple[int, int, int]]:
    options = [(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)]
    for name, value in _TCP_OPTIONS.items():
        # Some operating systems lack some of these options.
        if hasattr(socket, name):
            options.append((socket.IPPROTO_TCP, getattr(socket, name), value))
    return options


def call_limits(seconds: float) -> httpx.Timeout:
    """Return the time limits of a call: `seconds` per read and write, less for connecting."""
    return httpx.Timeout(seconds, connect=_CONNECT_SECONDS)


def server_token() -> str:
    """Return the token for state servers. Raise SettingsError if it is not set."""
    token = settings().server_token
    if not token:
        raise SettingsError(
            "A worker is at a state server, but no token for state servers is set.",
            next_step="Set SLUICE_SERVER_TOKEN or SLUICE_SERVER_TOKEN_FILE to the server's token.",
        )
    return token


@cache
def tls_context() -> ssl.SSLContext:
    """Return a TLS context that trusts SLUICE_SERVER_CA, or the system's certificates."""
    authorities = settings().server_ca
    if authorities is None:
        return ssl.create_default_context()
    return ssl.create_default_context(cafile=str(authorities))


def response_content(status: int, content: bytes) -> bytes:
    """Return the content of a successful response.

    Raise the error that a problem document describes.

    Raise NotAStateServer if the response is neither successful nor a problem document.
    """
    if status == httpx.codes.OK:
        return content
    try:
        problem = msgspec.json.decode(content, type=dict[str, Any])
        detail, next_step = str(problem["detail"]), str(problem.get("nextStep", ""))
    except (msgspec.DecodeError, KeyError):
        raise NotAStateServer from None
    if status == httpx.codes.UNAUTHORIZED:
        raise StateError(
            "The state server rejected the token of this process.", next_step=SAME_TOKEN
        )
    raise _ERRORS.get(problem.get("title", ""), StateError)(detail, next_step=next_step)
