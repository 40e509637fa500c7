"""The shards of one state server: which are its own, and where they lie."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

from sluice.errors import Refused
from sluice.query.workers import LocalWorker
from sluice.state.ledger.ledger import Ledger
from sluice.state.ledger.placement import Places
from sluice.state.model import WorkerInfo
from sluice.state.shard.addresses import location

LOOK_SECONDS = 2.0
"""How often the ledger is looked at for whose shards are here. Those that were moved away are answered for as long
again, as some who ask do not know yet."""

Name = tuple[str, str, int, int]
"""Pipeline, job, generation, number of the worker."""


class OwnShards:
    """The shards below `base_url` of the workers that the ledger says are at (`host`, `port`)."""

    def __init__(
        self, ledger: Ledger, base_url: str, host: str, port: int, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.host = host
        self.port = port
        self._places = Places(ledger)
        self._base_url = base_url
        self._clock = clock
        self._asked_at = float("-inf")
        self._mine: set[tuple[str, int]] = set()
        self._before: set[tuple[str, int]] = set()
        self._coming: set[Name] = set()
        self._workers: dict[Name, LocalWorker] = {}

    async def location(self, name: Name) -> str:
        """Address of a shard that is here, or is just being moved here; Refused if it is another server's."""
        if name not in self._coming and not await self._is_mine((name[0], name[3])):
            raise Refused(f"Worker {name[3]} of {name[0]!r} is not at this server.")
        return location(self._base_url, *name)

    async def worker(self, name: Name) -> LocalWorker:
        """The worker that answers questions about a shard; Refused if it is another server's."""
        place = await self.location(name)
        if name not in self._workers:
            self._workers[name] = LocalWorker(place)
        return self._workers[name]

    def expect(self, name: Name) -> str:
        """Address of a shard that is to be moved here."""
        place = location(self._base_url, *name)
        self._coming.add(name)
        return place

    def here(self, info: WorkerInfo) -> str | None:
        """Address of the shard of a worker that readers find at this server; None if they find it elsewhere."""
        if (info.host, info.port) != (self.host, self.port):
            return None
        generation = int(info.server.split("/")[-2])
        return location(self._base_url, info.pipeline, info.job, generation, info.number)

    async def _is_mine(self, worker: tuple[str, int]) -> bool:
        if self._clock() > self._asked_at + LOOK_SECONDS or worker not in self._mine | self._before:
            self._asked_at = self._clock()
            places = await asyncio.to_thread(self._places.at, self.host, self.port)
            self._mine, self._before = {(one.pipeline, one.number) for one in places}, self._mine
        return worker in self._mine | self._before
