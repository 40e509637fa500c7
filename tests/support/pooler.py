"""A connection pooler for PostgreSQL: a client has a connection only while a transaction lasts.

It does what PgBouncer does with `pool_mode=transaction`, without a log-in, TLS or the cancelling of
queries.
"""

from __future__ import annotations

import socket
import struct
from collections import deque
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, field
from threading import Condition, Thread

from sqlalchemy import URL, make_url

_TLS, _GSS = 80_877_103, 80_877_104
_PROTOCOL = 196_608


@dataclass
class Wire:
    """One side of a connection, which carries messages with a type."""

    socket: socket.socket

    def read(self, size: int) -> bytes:
        data = b""
        while len(data) < size:
            more = self.socket.recv(size - len(data))
            if not more:
                raise EOFError
            data += more
        return data

    def untyped(self) -> bytes:
        """The first message of a client, which has no type."""
        (size,) = struct.unpack("!I", self.read(4))
        return self.read(size - 4)

    def message(self) -> tuple[bytes, bytes]:
        """The type and the body of the next message."""
        kind = self.read(1)
        return kind, self.untyped()

    def send(self, kind: bytes, body: bytes) -> None:
        self.socket.sendall(kind + struct.pack("!I", len(body) + 4) + body)


@dataclass
class Pooler:
    """Accepts clients at a port, and gives their transactions connections of a database."""

    url: URL
    size: int
    takes_turns: bool
    """Whether the connections take turns. By default, the one that was used last comes first."""
    listener: socket.socket = field(default_factory=lambda: socket.create_server(("127.0.0.1", 0)))

    def __post_init__(self) -> None:
        self._returned = Condition()
        self._free: deque[Wire] = deque()
        self._parameters: list[tuple[bytes, bytes]] = []
        for _ in range(self.size):
            self._free.append(self._server())
        Thread(target=self._accept, daemon=True).start()

    @property
    def address(self) -> str:
        pooled = self.url.set(host="127.0.0.1", port=self.listener.getsockname()[1])
        return pooled.render_as_string(hide_password=False)

    def _server(self) -> Wire:
        wire = Wire(socket.create_connection((self.url.host or "", self.url.port or 0)))
        body = f"user\0{self.url.username}\0database\0{self.url.database}\0\0".encode()
        wire.send(b"", struct.pack("!I", _PROTOCOL) + body)
        self._parameters = []
        while (message := wire.message())[0] != b"Z":
            if message[0] == b"S":
                self._parameters.append(message)
        return wire

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                client, _ = self.listener.accept()
                Thread(target=self._serve, args=(Wire(client),), daemon=True).start()

    def _serve(self, client: Wire) -> None:
        with closing(client.socket), suppress(EOFError, OSError):
            while struct.unpack("!I", client.untyped()[:4])[0] in (_TLS, _GSS):
                client.socket.sendall(b"N")
            client.send(b"R", struct.pack("!I", 0))
            for parameter in self._parameters:
                client.send(*parameter)
            client.send(b"Z", b"I")
            while (first := client.message())[0] != b"X":
                with self._connection() as server:
                    _pass_transaction(client, server, first)

    @contextmanager
    def _connection(self) -> Iterator[Wire]:
        with self._returned:
            self._returned.wait_for(lambda: self._free)
            server = self._free.popleft()
        try:
            yield server
        finally:
            with self._returned:
                if self.takes_turns:
                    self._free.append(server)
                else:
                    self._free.appendleft(server)
                self._returned.notify()


def _pass_transaction(client: Wire, server: Wire, first: tuple[bytes, bytes]) -> None:
    """Pass on the messages of a transaction, which ends when the server says that it is idle."""
    message: tuple[bytes, bytes] | None = first
    status = b""
    while status != b"I":
        asks = False
        while not asks:
            kind, body = message or client.message()
            message = None
            server.send(kind, body)
            asks = kind in (b"Q", b"S")
        status = b""
        while not status:
            kind, body = server.message()
            client.send(kind, body)
            if kind == b"G":
                _pass_copy(client, server)
            status = body if kind == b"Z" else b""


def _pass_copy(client: Wire, server: Wire) -> None:
    """Pass on the data of a COPY."""
    kind = b""
    while kind not in (b"c", b"f"):
        kind, body = client.message()
        server.send(kind, body)


@contextmanager
def pooled(url: str, size: int = 1, *, takes_turns: bool = False) -> Iterator[str]:
    """The address of a pooler of a database. It serves present clients even after the block."""
    pooler = Pooler(make_url(url), size, takes_turns)
    with closing(pooler.listener):
        yield pooler.address
