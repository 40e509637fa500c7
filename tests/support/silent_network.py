"""A network in front of a server that can fall silent: nothing is reset, nothing arrives, as behind a lost link."""

from __future__ import annotations

import select
import socket
import threading
from contextlib import suppress


class SilentNetwork:
    """Forwards connections from `port` to the server, until `is_silent` is set.

    As a context manager, it listens.
    """

    def __init__(self, server_port: int) -> None:
        self._server_port = server_port
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._ended = threading.Event()
        self._sockets: list[socket.socket] = [self._listener]
        self.is_silent = False
        self.port: int = self._listener.getsockname()[1]

    def __enter__(self) -> SilentNetwork:
        threading.Thread(target=self._accept, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        for each in self._sockets:
            each.close()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                self._sockets.append(client)
                threading.Thread(target=self._forward, args=(client,), daemon=True).start()

    def _forward(self, client: socket.socket) -> None:
        server: socket.socket | None = None
        with suppress(OSError, ValueError):
            while not self._ended.is_set():
                if self.is_silent:
                    self._ended.wait(0.02)
                    continue
                if server is None:
                    server = socket.create_connection(("127.0.0.1", self._server_port))
                    self._sockets.append(server)
                readable, _, _ = select.select([client, server], [], [], 0.02)
                for source in readable if not self.is_silent else ():
                    data = source.recv(65_536)
                    (server if source is client else client).sendall(data)
                    if not data:
                        client.close()
                        server.close()
                        return
