"""Limits concurrent scans, so that the rest of the process stays responsive."""

from __future__ import annotations

import asyncio
from types import TracebackType

from sluice.errors import Busy

RUNNING = 2
WAITING = 16
WAIT_SECONDS = 10.0
"""How long a query waits until it may run. A running query has the same time limit."""


class Gate:
    """Lets `running` queries run at the same time, and up to `waiting` further queries wait.

    Raises Busy if there are more queries, or if a query waits too long.
    """

    def __init__(self, running: int = RUNNING, waiting: int = WAITING) -> None:
        self._most = running + waiting
        self._inside = 0
        self._turns = asyncio.Semaphore(running)

    async def __aenter__(self) -> None:
        if self._inside >= self._most:
            raise Busy(f"{self._most} queries that scan stores are already running or waiting.")
        self._inside += 1
        try:
            async with asyncio.timeout(WAIT_SECONDS):
                await self._turns.acquire()
        # A caller that is cancelled, or has waited too long, no longer counts as waiting.
        except BaseException as error:
            self._inside -= 1
            if isinstance(error, TimeoutError):
                raise Busy(
                    f"The query has waited {WAIT_SECONDS:g} s for other queries that scan stores."
                ) from None
            raise

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._inside -= 1
        self._turns.release()
