"""Admits connections to a state server, and closes connections that do not send the token soon.

Anyone who can reach the port can open connections. A connection counts as unproven until one of its
requests has contained the token. The number of unproven connections and their time are limited. If
there are too many, the server closes the oldest connection of the client with the most unproven
connections. So a caller with the token, which sends a request at once, is always answered.
"""

from __future__ import annotations

import asyncio
import logging
import resource
import ssl
import time
from collections.abc import Callable
from functools import partial
from typing import Any, cast

from typing_extensions import override
from uvloop.loop import SSLProtocol  # type: ignore[attr-defined]

from sluice.server.http_protocol import PatientProtocol

log = logging.getLogger(__name__)

UNPROVEN_SECONDS = 5.0
"""How long a connection stays open without a request that has the token, in seconds.

The TLS handshake is a part of this time."""
MOST_UNPROVEN = 1_000
"""The limit of unproven connections. It is high, because many callers with the token may connect at
the same moment, before the server reads their requests."""
_MOST_FILES = 65_536
_LOG_EVERY_SECONDS = 60.0


def raise_file_limit() -> int:
    """Let this process open as many files as the system allows, at most `_MOST_FILES`.

    Return their number.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY:
        return _MOST_FILES
    most = _MOST_FILES if hard == resource.RLIM_INFINITY else min(hard, _MOST_FILES)
    if soft < most:
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))
        soft = most
    return soft


class Admission:
    """The unproven connections of one server."""

    def __init__(self, most: int = MOST_UNPROVEN) -> None:
        self.most = most
        self._unproven: dict[str, dict[asyncio.Transport, asyncio.TimerHandle]] = {}
        """Client's address → its connections, oldest first, and the timers that close them."""
        self._clients: dict[asyncio.Transport, str] = {}
        self._closed = 0
        self._logged_at = float("-inf")

    def arrive(self, transport: asyncio.Transport) -> None:
        """Count a new connection, and close another connection if there are too many."""
        timer = asyncio.get_running_loop().call_later(UNPROVEN_SECONDS, self._close, transport)
        client = self._clients[transport] = _client(transport)
        self._unproven.setdefault(client, {})[transport] = timer
        # The new connection may belong to a caller with the token, so an older connection is
        # closed.
        if len(self._clients) > self.most:
            most_connections = max(self._unproven.values(), key=len)
            self._close(next(iter(most_connections)))

    def leave(self, transport: asyncio.Transport) -> None:
        """Forget a connection that has shown the token, or is closed."""
        client = self._clients.pop(transport, None)
        if client is None:
            return
        self._unproven[client].pop(transport).cancel()
        if not self._unproven[client]:
            del self._unproven[client]

    def _close(self, transport: asyncio.Transport) -> None:
        client = self._clients[transport]
        self.leave(transport)
        if transport.is_closing():
            return
        transport.abort()
        self._closed += 1
        if time.monotonic() - self._logged_at > _LOG_EVERY_SECONDS:
            self._logged_at = time.monotonic()
            log.warning(
                "Closed connections that did not show the token: %d so far, now from %s",
                self._closed,
                client,
            )


class Arrival(asyncio.Protocol):
    """The first protocol of each connection.

    It counts the connection, and hands it over to TLS, if any, and HTTP.
    """

    def __init__(
        self,
        admission: Admission,
        tls: ssl.SSLContext | None,
        http: Callable[[], PatientProtocol],
    ) -> None:
        self._admission = admission
        self._tls = tls
        self._http = http

    @override
    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        protocol: Any = self._http()
        # Uvloop's transports do not inherit from asyncio.Transport.
        accepted = cast("asyncio.Transport", transport)
        protocol.leave = partial(self._admission.leave, accepted)
        self._admission.arrive(accepted)
        if self._tls is not None:
            # Uvloop's own servers do the same, but give a connection a minute for its handshake.
            protocol = SSLProtocol(
                asyncio.get_running_loop(), protocol, self._tls, None, server_side=True,
                ssl_handshake_timeout=UNPROVEN_SECONDS,
            )  # fmt: skip
        accepted.set_protocol(protocol)
        protocol.connection_made(accepted)


def _client(transport: asyncio.BaseTransport) -> str:
    address = transport.get_extra_info("peername")
    if not isinstance(address, tuple):
        return ""
    return str(address[0])
