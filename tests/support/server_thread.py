"""An HTTP server in a thread of the tests' own process."""

from __future__ import annotations

import threading
import time
from types import TracebackType
from typing import Self

import uvicorn


class ServerThread:
    """Serves from `start`, which waits until the server is ready, until `stop`; or within a block."""

    def __init__(self, config: uvicorn.Config) -> None:
        self._server = uvicorn.Server(config)
        self._thread = threading.Thread(target=self._server.run, daemon=True)

    def start(self) -> Self:
        self._thread.start()
        deadline = time.monotonic() + 20
        while not self._server.started:
            assert time.monotonic() < deadline
            time.sleep(0.01)
        return self

    def begin_stop(self) -> None:
        """Tell the server to stop and to close its connections, without waiting for it."""
        self._server.should_exit = self._server.force_exit = True

    def stop(self) -> None:
        self.begin_stop()
        self._thread.join(10)

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        at: TracebackType | None,
    ) -> None:
        self.stop()
