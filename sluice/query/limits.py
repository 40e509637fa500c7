"""How much may run at once, so that whatever else the process does stays quick."""

from __future__ import annotations

import asyncio
from types import TracebackType

from sluice.errors import Busy

RUNNING = 2
WAITING = 16


class Gate:
    """Lets `running` in at once; `waiting` more may wait for their turn, and everybody else is told Busy."""

    def __init__(self, running: int = RUNNING, waiting: int = WAITING) -> None:
        self._most = running + waiting
        self._inside = 0
        self._turns = asyncio.Semaphore(running)

    async def __aenter__(self) -> None:
        if self._inside >= self._most:
            raise Busy(f"{self._most} queries that look through stores are running or waiting.")
        self._inside += 1
        try:
            await self._turns.acquire()
        except BaseException:
            self._inside -= 1
            raise

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._inside -= 1
        self._turns.release()
