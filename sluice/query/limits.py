"""Limits concurrent scans, so that the rest of the process stays responsive."""

from __future__ import annotations

import asyncio
from types import TracebackType

from sluice.errors import Busy

RUNNING = 2
WAITING = 16


class Gate:
    """Admits `running` queries, queues `waiting` more, and rejects the rest with Busy."""

    def __init__(self, running: int = RUNNING, waiting: int = WAITING) -> None:
        self._most = running + waiting
        self._inside = 0
        self._turns = asyncio.Semaphore(running)

    async def __aenter__(self) -> None:
        if self._inside >= self._most:
            raise Busy(f"{self._most} queries that scan stores are already running or waiting.")
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
