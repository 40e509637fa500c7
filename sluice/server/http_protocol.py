"""Uvicorn's HTTP protocol with time and size limits, and with fewer steps per request.

Without limits, Uvicorn waits forever for the rest of a request. These tricks save CPU time:

- A connection has one timer for all of its limits. The timer is set anew only if a limit ends
  before the timer fires. Uvicorn itself would start and cancel a timer for each request.
- A request's scope begins as a copy of its connection's scope, and its event is created only if the
  app reads the body.
- The head of a response is encoded once for all responses with the same headers, and a whole
  response is sent with one call (`RESPOND`).
- All responses of an iteration of the event loop are sent at its end. Otherwise each write would
  wake a client on the same machine, which then takes the server's core.

The classes override methods of Uvicorn's classes, so check them against each new version of
Uvicorn.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable
from functools import lru_cache
from typing import Any, NamedTuple
from urllib.parse import unquote
from weakref import WeakKeyDictionary

import httptools
from starlette.types import Message, Scope
from typing_extensions import override
from uvicorn.protocols.http.flow_control import HIGH_WATER_LIMIT
from uvicorn.protocols.http.httptools_impl import (
    HEADER_RE,
    HEADER_VALUE_RE,
    STATUS_LINE,
    HttpToolsProtocol,
    RequestResponseCycle,
)

from sluice.api.http.replies import RESPOND

log = logging.getLogger(__name__)

HEAD_SECONDS = 10.0
"""Time limit for a request's head, from the start of the connection or the request's first byte."""
SILENT_SECONDS = 10.0
"""How long a client may pause while it sends a body."""
UNREAD_SECONDS = 30.0
"""How long a client may read nothing while a response waits for it."""
_MOST_HEAD_BYTES = 64 * 2**10
PROVEN = "sluice_proven"
"""A key in a request's scope. Its value is the function to call when the request has shown the
servers' token."""
BEGUN = "sluice_begun"
"""A key in a request's scope. Its value is a function that an app has put there.

It is called with the status when the response begins."""

Headers = tuple[tuple[bytes, bytes], ...]


class PatientProtocol(HttpToolsProtocol):
    """Uvicorn's protocol, but it closes connections with incomplete or endless requests."""

    _timer: asyncio.TimerHandle | None = None
    _timer_at = 0.0
    _ends_at: float | None = None
    """When the server will close the connection, on the loop's clock; None while a request is
    answered."""
    _head_bytes = 0
    _is_in_head = False
    _has_head_limit = False
    """Whether `_ends_at` is the limit for the head of the present request."""
    _is_in_body = False
    _scope: dict[str, Any]
    """The part of a request's scope that is the same for all requests of the connection."""
    _batched: _Transport
    _running: _Cycle | None = None
    """The newest request that the app has received."""
    _reading: asyncio.TimerHandle | None = None
    """The timer that checks whether the client still reads while a response waits to be sent."""
    leave: Callable[[], None] = staticmethod(lambda: None)
    """The function to call when a request of the connection has shown the token, and when the
    connection is closed."""

    @override
    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        self._batched = _Transport(transport, self.loop)
        super().connection_made(self._batched)
        self._scope = {
            "type": "http",
            "asgi": {"version": self.asgi_version, "spec_version": "2.3"},
            "http_version": "1.1",
            "server": self.server,
            "client": self.client,
            "scheme": self.scheme,
            "root_path": self.root_path,
            PROVEN: self.leave,
            RESPOND: self._respond,
        }
        self._wait(HEAD_SECONDS)

    @override
    def eof_received(self) -> bool:  # type: ignore[override]
        """Note that the client will send nothing more.

        Requests whose response has not begun are answered first. A response that is being streamed
        ends, because nobody knows whether the client still reads it.
        """
        self._batched.flush()
        running, newest = self._running, self.cycle
        if running is None or newest.response_complete or self._is_in_head or self._is_in_body:
            return False
        if running.response_started and not running.response_complete:
            return False
        for cycle in (running, *(waiting for waiting, _ in self.pipeline)):
            if isinstance(cycle, _Cycle):
                cycle.client_has_ended = True
        newest.keep_alive = False
        # TLS closes both directions at once, so a connection with TLS cannot stay open for the
        # answer.
        return self.scheme != "https"

    @override
    def _start_asgi_task(self, cycle: RequestResponseCycle, app: Any) -> None:
        assert isinstance(cycle, _Cycle)
        self._running = cycle
        cycle.task = self.loop.create_task(self._answer(cycle, app))
        self.tasks.add(cycle.task)

    async def _answer(self, cycle: _Cycle, app: Any) -> None:
        try:
            await cycle.run_asgi(app)
        finally:
            # Uvicorn itself would remove the task in a done callback, which needs another iteration
            # of the event loop.
            self.tasks.discard(cycle.task)

    def _respond(
        self, scope: Scope, status: int, headers: Iterable[tuple[bytes, bytes]], body: bytes
    ) -> bool:
        """Send a whole response to the request with this scope.

        Return False if the app has to send ASGI messages instead.
        """
        running = self._running
        return (
            running is not None
            and running.scope is scope
            and running.respond(status, headers, body)
        )

    @override
    def pause_writing(self) -> None:
        super().pause_writing()
        self._require_reading(self._batched.get_write_buffer_size() + 1)

    @override
    def resume_writing(self) -> None:
        super().resume_writing()
        if self._reading is not None:
            self._reading.cancel()

    def _require_reading(self, before: int) -> None:
        """End the connection unless the client has read something since the last check.

        At the last check, `before` bytes were unread.
        """
        unread = self._batched.get_write_buffer_size()
        if unread < before:
            self._reading = self.loop.call_later(UNREAD_SECONDS, self._require_reading, unread)
        else:
            self._batched.abort()

    @override
    def connection_lost(self, exc: Exception | None) -> None:
        self.leave()
        self._ends_at = None
        if self._timer is not None:
            self._timer.cancel()
        if self._reading is not None:
            self._reading.cancel()
        super().connection_lost(exc)

    @override
    def data_received(self, data: bytes) -> None:
        self._head_bytes += len(data)
        try:
            self.parser.feed_data(data)
        except httptools.HttpParserUpgrade:
            pass  # The server never upgrades a connection. It answers the request as usual.
        except httptools.HttpParserError:
            self.send_400_response("Invalid HTTP request received.")
            return
        # The limits are set here rather than while `data` are parsed, because most requests arrive
        # whole and need no limits.
        if self._is_in_head:
            if self._head_bytes > _MOST_HEAD_BYTES:
                self.timeout_keep_alive_handler()
            elif not self._has_head_limit:
                self._has_head_limit = True
                self._wait(HEAD_SECONDS)
        elif self._is_in_body and not self.cycle.response_complete:
            self._wait(SILENT_SECONDS)

    @override
    def on_message_begin(self) -> None:
        self.url = b""
        self.headers = []
        self.expect_100_continue = False
        self._is_in_head, self._has_head_limit, self._is_in_body = True, False, False

    @override
    def on_headers_complete(self) -> None:
        # An error here, such as for a URL without a path, ends the connection with 400.
        if self._head_bytes > _MOST_HEAD_BYTES and self._size_of_head() > _MOST_HEAD_BYTES:
            raise ValueError("The head of the request is too large.")
        raw_path, query = _path_and_query(self.url)
        path = raw_path.decode("ascii")
        version = self.parser.get_http_version()
        # `_is_in_body` becomes true even if the request has no body. `on_message_complete` then
        # follows at once.
        self._is_in_head, self._is_in_body, self._head_bytes = False, True, 0
        scope = self._scope.copy()
        scope["http_version"] = version
        scope["method"] = self.parser.get_method().decode("ascii")
        scope["path"] = unquote(path) if "%" in path else path
        scope["raw_path"] = raw_path
        scope["query_string"] = query
        scope["headers"] = self.headers
        scope["state"] = self.app_state.copy()
        before = self.cycle
        cycle = _Cycle(self, scope, keep_alive=version != "1.0" and self.parser.should_keep_alive())
        self.cycle = cycle
        if before is None or before.response_complete:
            self._start_asgi_task(cycle, self.app)
        else:
            # The client has not waited for the response to its previous request. The current
            # request is answered after the previous one.
            self.flow.pause_reading()
            self.pipeline.appendleft((cycle, self.app))

    @override
    def on_message_complete(self) -> None:
        self._is_in_body, self._ends_at = False, None
        if self.cycle.response_complete:
            self._wait(self.timeout_keep_alive)
        else:
            assert isinstance(self.cycle, _Cycle)
            self.cycle.end_body()

    @override
    def on_response_complete(self) -> None:
        self.server_state.total_requests += 1
        if self.transport.is_closing():
            return
        self.flow.resume_reading()
        if self.pipeline:
            self._start_asgi_task(*self.pipeline.pop())
        elif self._is_in_body:
            # The client still sends the rest of a body that the app did not read.
            self._wait(SILENT_SECONDS)
        elif not self._is_in_head:
            self._wait(self.timeout_keep_alive)

    def _size_of_head(self) -> int:
        return len(self.url) + sum(len(name) + len(value) for name, value in self.headers)

    def _wait(self, seconds: float) -> None:
        """Close the connection after `seconds`, unless the limit is changed or removed before."""
        self._ends_at = ends_at = self.loop.time() + seconds
        # If the timer fires before `_ends_at`, `_check` sets a timer for the remaining time. So a
        # new timer is needed here only if the connection must be closed before the present timer
        # fires.
        if self._timer is None or ends_at < self._timer_at:
            if self._timer is not None:
                self._timer.cancel()
            self._timer, self._timer_at = self.loop.call_later(seconds, self._check), ends_at

    def _check(self) -> None:
        self._timer = None
        if self._ends_at is None:
            return
        left = self._ends_at - self.loop.time()
        if left <= 0:
            self.timeout_keep_alive_handler()
        else:
            self._timer, self._timer_at = self.loop.call_later(left, self._check), self._ends_at


def _path_and_query(url: bytes) -> tuple[bytes, bytes]:
    if url.startswith(b"/") and not url.startswith(b"//") and b"#" not in url:
        # For these URLs, which are the most frequent, httptools has the same result but takes
        # longer.
        path, _, query = url.partition(b"?")
        return path, query
    parsed = httptools.parse_url(url)
    return parsed.path, parsed.query or b""


class _Cycle(RequestResponseCycle):
    """One request and its response. All responses with the same headers share their encoded head.

    Uvicorn itself would check and encode the headers of each response again.
    """

    client_has_ended = False
    access_log = False
    disconnected = False
    more_body = True
    response_started = False
    response_complete = False
    chunked_encoding: bool | None = None
    expected_content_length = 0
    _message_event: asyncio.Event | None = None
    task: asyncio.Task[None]
    """The task that answers the request."""

    def __init__(
        self, protocol: PatientProtocol, scope: dict[str, Any], *, keep_alive: bool
    ) -> None:
        # Uvicorn's constructor would also create an event, which most requests do not need.
        self.scope = scope  # type: ignore[assignment]
        self.transport = protocol.transport
        self.flow = protocol.flow
        self.logger = protocol.logger
        self.access_logger = protocol.access_logger
        self.default_headers = protocol.server_state.default_headers
        self.on_response = protocol.on_response_complete
        self.waiting_for_100_continue = protocol.expect_100_continue
        self.keep_alive = keep_alive
        self.body = bytearray()

    @property
    def message_event(self) -> asyncio.Event:  # type: ignore[override]
        """Set while the app can receive a part of the body, its end, or a disconnect."""
        event = self._message_event
        if event is None:
            event = self._message_event = asyncio.Event()
            if self.body or not self.more_body or self.disconnected:
                event.set()
        return event

    def end_body(self) -> None:
        """Note that the client has sent the whole body."""
        self.more_body = False
        if self._message_event is not None:
            self._message_event.set()

    def respond(self, status: int, headers: Iterable[tuple[bytes, bytes]], body: bytes) -> bool:
        """Send a whole response with one call.

        Return False if the app has to send ASGI messages instead.
        """
        head = _head(status, (*self.default_headers, *headers), self.keep_alive)
        if (
            head is None
            or head.length != len(body)
            or self.scope["method"] == "HEAD"
            or self.response_started
            or self.flow.write_paused
            or self.disconnected
        ):
            return False
        self._begin(status, head)
        self.transport.write(head.text + body)
        self.response_complete = True
        if self._message_event is not None:
            self._message_event.set()
        if not self.keep_alive:
            self.transport.close()
        self.on_response()
        return True

    @override
    async def send(self, message: Message) -> None:  # type: ignore[override]
        if not self.response_started and message["type"] == "http.response.start":
            headers = (*self.default_headers, *message.get("headers", ()))
            head = _head(message["status"], headers, self.keep_alive)
            # If `_head` returns None, Uvicorn handles the response: it sends a response of unknown
            # length, and rejects an invalid response.
            if head is not None and not self.disconnected:
                self._begin(message["status"], head)
                self.transport.write(head.text)
                return
            self._tell_begun(message["status"])
            if self.client_has_ended:
                # The client may have left. A stream that nobody reads would never end.
                self.transport.close()
        await super().send(message)  # type: ignore[arg-type]

    def _begin(self, status: int, head: _Head) -> None:
        self._tell_begun(status)
        self.response_started = True
        self.waiting_for_100_continue = self.chunked_encoding = False
        self.expected_content_length, self.keep_alive = head.length, head.keep_alive

    def _tell_begun(self, status: int) -> None:
        begun: Callable[[int], None] | None = self.scope.get(BEGUN)  # type: ignore[assignment]
        if begun is not None:
            begun(status)


class _Head(NamedTuple):
    text: bytes
    length: int
    """The length of the body."""
    keep_alive: bool
    """Whether the connection stays open after the response."""


@lru_cache(maxsize=1_000)
def _head(status: int, headers: Headers, keep_alive: bool) -> _Head | None:
    """Return the head of a response of known length.

    Return None if Uvicorn must send or reject the response.
    """
    length, is_closing = None, False
    text = [STATUS_LINE[status]]
    for name, value in headers:
        if HEADER_RE.search(name) or HEADER_VALUE_RE.search(value):
            return None
        match name.lower():
            case b"transfer-encoding":
                return None
            case b"content-length":
                length = int(value)
            case b"connection":
                is_closing |= b"close" in (token.lower().strip() for token in value.split(b","))
        text += [name.lower(), b": ", value, b"\r\n"]
    if length is None:
        return None
    if not (keep_alive or is_closing):
        text.append(b"connection: close\r\n")
    return _Head(b"".join([*text, b"\r\n"]), length, keep_alive and not is_closing)


class _Outbox:
    """The connections of an event loop that have data to send at the end of its iteration.

    At this end, all responses are sent directly one after the other. Otherwise, a client on the
    same machine would interrupt the server after each response.
    """

    def __init__(self) -> None:
        self._transports: list[_Transport] = []

    def add(self, transport: _Transport) -> None:
        if not self._transports:
            transport.loop.call_soon(self.flush)
        self._transports.append(transport)

    def flush(self) -> None:
        """Send the waiting data of all connections."""
        transports, self._transports = self._transports, []
        for transport in transports:
            try:
                transport.flush()
            except Exception:
                # An error of one connection must not keep the others from getting their responses.
                log.exception("A response could not be sent")
                transport.abort()


_OUTBOXES: WeakKeyDictionary[asyncio.AbstractEventLoop, _Outbox] = WeakKeyDictionary()


class _Transport(asyncio.Transport):
    """A connection's transport. One system call sends all data of an event-loop iteration."""

    def __init__(self, transport: asyncio.Transport, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__()
        self.loop = loop
        self._transport = transport
        self._outbox = _OUTBOXES.setdefault(loop, _Outbox())
        self._unsent: list[bytes] = []
        self._size = 0
        self.is_closing = transport.is_closing  # type: ignore[method-assign]
        self.get_extra_info = transport.get_extra_info  # type: ignore[method-assign]
        self.pause_reading = transport.pause_reading  # type: ignore[method-assign]
        self.resume_reading = transport.resume_reading  # type: ignore[method-assign]
        self.get_write_buffer_size = transport.get_write_buffer_size  # type: ignore[method-assign]
        self.abort = transport.abort  # type: ignore[method-assign]

    @override
    def write(self, data: bytes) -> None:  # type: ignore[override]
        if not self._unsent:
            self._outbox.add(self)
        self._unsent.append(data)
        self._size += len(data)
        if self._size > HIGH_WATER_LIMIT:
            # The wrapped transport pauses the app only if its own buffer exceeds the limit, so pass
            # the data on to it now.
            self.flush()

    @override
    def close(self) -> None:
        self.flush()
        self._transport.close()

    def flush(self) -> None:
        """Send all waiting data."""
        unsent, self._unsent, self._size = self._unsent, [], 0
        if unsent and not self._transport.is_closing():
            self._transport.write(unsent[0] if len(unsent) == 1 else b"".join(unsent))
