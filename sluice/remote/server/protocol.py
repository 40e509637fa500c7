"""Uvicorn's HTTP protocol with time and size limits: connections with incomplete or endless requests are closed."""

from __future__ import annotations

import asyncio

from typing_extensions import override
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

HEAD_SECONDS = 10.0
"""Time limit for a request's head, measured from the connection or the request's first byte."""
SILENT_SECONDS = 10.0
"""How long a client may pause while it sends a body."""
MOST_HEAD_BYTES = 64 * 2**10


class PatientProtocol(HttpToolsProtocol):
    """Uvicorn's protocol with limits. Without limits, uvicorn waits forever for the rest of a request."""

    _timer: asyncio.TimerHandle | None = None
    _head_bytes = 0
    _is_in_head = False
    _is_in_body = False

    @override
    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._wait(HEAD_SECONDS)

    @override
    def connection_lost(self, exc: Exception | None) -> None:
        self._stop()
        super().connection_lost(exc)

    @override
    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        if self._is_in_head:
            self._head_bytes += len(data)
            if self._head_bytes > MOST_HEAD_BYTES:
                self._give_up()
        elif self._is_in_body and not self.cycle.response_complete:
            self._wait(SILENT_SECONDS)

    @override
    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._is_in_head, self._is_in_body, self._head_bytes = True, False, 0
        self._wait(HEAD_SECONDS)

    @override
    def on_headers_complete(self) -> None:
        super().on_headers_complete()
        self._is_in_head, self._is_in_body = False, True
        self._wait(SILENT_SECONDS)

    @override
    def on_message_complete(self) -> None:
        self._is_in_body = False
        self._stop()
        super().on_message_complete()

    @override
    def on_response_complete(self) -> None:
        super().on_response_complete()
        if self._is_in_body and not self.transport.is_closing():
            self._wait(SILENT_SECONDS)  # for the rest of a body that the app did not read

    def _wait(self, seconds: float) -> None:
        self._stop()
        self._timer = self.loop.call_later(seconds, self._give_up)

    def _stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _give_up(self) -> None:
        if not self.transport.is_closing():
            self.transport.close()
