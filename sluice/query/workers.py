"""Sends queries to workers: in this process, or through their state servers and their standbys."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Hashable
from functools import partial
from typing import Generic, Protocol, TypeVar

from sluice.answers import WorkerStatus
from sluice.errors import StateError
from sluice.query.local_worker import LocalWorker
from sluice.state.ledger.audits import Audits
from sluice.state.model import WorkerInfo
from sluice.state.queries.worker_queries import Query
from sluice.state.remote.remote_worker import RemoteWorker

T = TypeVar("T")
ServedLocation = Callable[[WorkerInfo], str | None]
"""Returns the address of a worker's shard if this process's own state server serves the worker,
else None."""

WORKER_SECONDS = 15.0
"""Time limit of a query at one worker; longer than the server's own limit, so that the server's
error arrives first."""
LOOKUP_SECONDS = 2.0
"""Time limit of a look-up at a worker whose standby can answer it instead."""
PAUSE_SECONDS = 1.0
"""How long a state server gets no queries after it has exceeded the time limit of a query, or after
a standby has answered in its place."""
OPEN_SECONDS = 60.0
"""How long a worker's connections stay open without a query; longer than any query takes."""


class Worker(Protocol):
    """A worker, on this host or another."""

    async def execute(self, query: Query[T]) -> T:
        """Return the query's result.

        Raises StateError if the shard cannot be read, and QueryError if the query is invalid.
        """

    async def close(self) -> None: ...


W = TypeVar("W", bound=Worker)


class OpenWorkers(Generic[W]):
    """The workers that are in use.

    A worker that is no longer queried, because its generation has been replaced or it has moved, is
    closed. Otherwise a process that runs for months would keep connections to all former workers,
    and their deleted files would keep their space on the disk.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._workers: dict[Hashable, W] = {}
        self._used: dict[Hashable, float] = {}
        """Key → when the worker was last used."""
        self._checked = clock()

    def get(self, key: Hashable) -> W | None:
        """Return the open worker with this key, and count it as used now.

        Returns None if no worker with this key is open. The caller then opens it and calls `add`.
        """
        self._used[key] = self._clock()
        return self._workers.get(key)

    def add(self, key: Hashable, worker: W) -> W:
        self._workers[key] = worker
        return worker

    def may_have_unused(self) -> bool:
        """Return whether to call `close_unused`: at most once in `OPEN_SECONDS`."""
        return self._checked <= self._clock() - OPEN_SECONDS

    async def close_unused(self) -> None:
        """Close the workers that have not been used for `OPEN_SECONDS`."""
        self._checked = self._clock()
        oldest = self._checked - OPEN_SECONDS
        unused: list[W] = []
        for key, used in list(self._used.items()):
            if used < oldest:
                del self._used[key]
                unused.append(self._workers.pop(key))
        await asyncio.gather(*[worker.close() for worker in unused])

    async def close(self) -> None:
        """Close all connections. The next queries open them again."""
        await asyncio.gather(*(worker.close() for worker in self._workers.values()))


class Workers:
    """The connections to the workers of all pipelines.

    `served` returns the address of a worker's shard if this process's own state server serves the
    worker. For any other worker, it returns None.
    """

    def __init__(
        self,
        audits: Audits,
        served: ServedLocation = lambda _: None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._audits = audits
        self._served = served
        self._open = OpenWorkers[Worker](clock)
        self._paused: dict[str, tuple[float, str]] = {}
        """State server's address → when it may be called again, and why it is not called until
        then."""

    def is_here(self, info: WorkerInfo) -> bool:
        """Return whether this process opens the worker's shard itself."""
        return isinstance(self._worker(info), LocalWorker)

    async def execute(self, info: WorkerInfo, query: Query[T]) -> tuple[list[T], WorkerStatus]:
        """Return the result, as a list with one element, and the worker's status.

        If the worker is unavailable, its standby is queried. The list is empty if the standby does
        not have the query's snapshot, or is unavailable too.
        """
        result, status = await self.execute_at(info, query)
        if result:
            return result, status
        return await self.execute_at_standby(info, query, status)

    async def execute_at_standby(
        self, info: WorkerInfo, query: Query[T], status: WorkerStatus
    ) -> tuple[list[T], WorkerStatus]:
        """Return the standby's result and status; `status` says why the worker is unavailable."""
        standby = info.at_standby(query.as_of)
        if standby is None:
            return [], _unavailable(info, f"{status.reason} {_missing_copy(info)}".rstrip())
        result, standby_status = await self.execute_at(standby, query)
        if not result:
            return [], _unavailable(info, f"{status.reason} Its standby: {standby_status.reason}")
        if info.server:
            # The next queries go to the standby at once, without waiting for the worker's server.
            self._paused.setdefault(info.server, (time.monotonic() + PAUSE_SECONDS, status.reason))
        return result, WorkerStatus(info.number, "ok", status.reason, standby=True)

    async def execute_at(self, info: WorkerInfo, query: Query[T]) -> tuple[list[T], WorkerStatus]:
        """Return the worker's own result, as a list with one element, and the worker's status.

        The list is empty if the worker is unavailable.
        """
        if info.unavailable:
            return [], _unavailable(info, info.unavailable)
        # A request to a state server contains the token, which must reach only servers that are
        # registered in the ledger.
        if not info.server and info.location.startswith("http"):
            return [], _unavailable(
                info, "The shard's address does not belong to a registered state server."
            )
        if self._paused and info.server in self._paused:
            until, why = self._paused[info.server]
            if until > time.monotonic():
                return [], _unavailable(info, why)
            del self._paused[info.server]
        if self._open.may_have_unused():
            await self._open.close_unused()
        worker = self._worker(info)
        seconds = WORKER_SECONDS
        try:
            # The databases enforce the time limit of a local worker themselves.
            if isinstance(worker, LocalWorker):
                return [await worker.execute(query)], WorkerStatus(info.number, "ok")
            # The standby can answer, so the caller need not wait long for the worker.
            if query.is_quick and info.at_standby(query.as_of) is not None:
                seconds = LOOKUP_SECONDS
            async with asyncio.timeout(seconds):
                return [await worker.execute(query)], WorkerStatus(info.number, "ok")
        except TimeoutError:
            # The next queries must not wait for this server again.
            why = (
                f"Its state server timed out recently and gets no queries for {PAUSE_SECONDS:g} s."
            )
            self._paused[info.server] = time.monotonic() + PAUSE_SECONDS, why
            return [], _unavailable(info, f"Timed out after {seconds:g} s.")
        except StateError as error:
            return [], _unavailable(info, error.detail)

    def location(self, info: WorkerInfo) -> str | None:
        """Return the address of the worker's shard if this process opens it itself, else None."""
        return self._served(info) if info.server else info.location

    async def close(self) -> None:
        await self._open.close()

    def _worker(self, info: WorkerInfo) -> Worker:
        address = info.server or info.location
        worker = self._open.get(address)
        if worker is not None:
            return worker
        location = self.location(info)
        if location is None:
            return self._open.add(address, RemoteWorker(address))
        published = partial(self._audits.checksum, info.ref, info.number)
        return self._open.add(address, LocalWorker(location, published))


def _unavailable(info: WorkerInfo, reason: str) -> WorkerStatus:
    return WorkerStatus(info.number, "unavailable", reason)


def _missing_copy(info: WorkerInfo) -> str:
    """Return why the standby cannot answer the query; empty if the worker has no standby."""
    if info.standby is None:
        return ""
    if info.standby.batch < 0:
        return "Its standby has no complete copy."
    return f"Its standby only has batches up to {info.standby.batch}: read as_of=standby."
