"""Asking one worker."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from threading import Lock
from typing import Protocol, TypeVar

from sluice.state.model import Cell
from sluice.state.shard import Range, Shard

T = TypeVar("T")


class WorkerReader(Protocol):
    """What can be asked of a worker, wherever it is. Raises StateError if it does not answer."""

    async def get(self, cell: int, key: str, as_of: int) -> str | None:
        """The value of a cell without windows."""

    async def scan(self, cell: int, as_of: int, within: Range, after: tuple[str, int] | None, limit: int) -> list[Cell]:
        """A page of cells, sorted by key and window start."""

    async def count(self, cell: int, as_of: int) -> int:
        """How many cells there are."""


class LocalWorker:
    """A worker whose shard this process reads itself.

    Connections stay open, one for single keys and one for everything else, so that a long scan holds up no look-up.
    """

    def __init__(self, location: str) -> None:
        self._location = location
        self._opening = Lock()
        self._shards: dict[str, Shard] = {}

    async def get(self, cell: int, key: str, as_of: int) -> str | None:
        """The value of a cell without windows; in a SQLite shard quicker than a hop to another thread."""
        shard = self._shards.get("get")
        if shard is None or shard.blocking or not shard.is_current():
            return await self._in_thread("get", lambda shard: shard.get(cell, key, as_of))
        return shard.get(cell, key, as_of)

    async def scan(self, cell: int, as_of: int, within: Range, after: tuple[str, int] | None, limit: int) -> list[Cell]:
        """A page of cells, sorted by key and window start."""
        return await self._in_thread("scan", lambda shard: shard.scan(cell, as_of, within, after=after, limit=limit))

    async def count(self, cell: int, as_of: int) -> int:
        """How many cells there are."""
        return await self._in_thread("scan", lambda shard: shard.count(cell, as_of))

    async def _in_thread(self, purpose: str, ask: Callable[[Shard], T]) -> T:
        return await asyncio.to_thread(partial(self._ask, purpose, ask))

    def _ask(self, purpose: str, ask: Callable[[Shard], T]) -> T:
        return ask(self._shard(purpose))

    def _shard(self, purpose: str) -> Shard:
        with self._opening:
            shard = self._shards.get(purpose)
            if shard is None or not shard.is_current():
                # A file that was removed or replaced must not be read on through the old connection. That one is not
                # closed: another thread may be reading from it; it goes with its last reader.
                self._shards.pop(purpose, None)
                shard = self._shards[purpose] = Shard.open(self._location)
            return shard
