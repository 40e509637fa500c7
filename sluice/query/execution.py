"""Executes queries at workers, either in this process or through state servers."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Hashable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from threading import Lock
from typing import Generic, Protocol, TypeVar

from sluice.answers import WorkerStatus
from sluice.errors import DamagedState, StateError
from sluice.state.ledger.audits import Audits
from sluice.state.model import WorkerInfo
from sluice.state.queries import worker_queries
from sluice.state.queries.worker_queries import Query
from sluice.state.remote.remote_worker import RemoteWorker
from sluice.state.shard.local_shard import LocalShard
from sluice.state.time_limits import deadline, held

T = TypeVar("T")
Own = Callable[[WorkerInfo], str | None]
Published = Callable[[int], tuple[int, str] | None]
"""A batch → itself, or the oldest retained batch after it, and the published checksum of a shard's state rows at it."""

WORKER_SECONDS = 15.0
"""Time limit of a query at one worker; longer than the server's own limit, so that the server's error arrives first."""
LOOKUP_SECONDS = 2.0
"""Time limit of a lookup at a worker whose standby can answer it instead."""
HOLD_SECONDS = 0.05
"""How long lookups share one read transaction of SQLite. Its beginning and end take longer than a lookup."""
PAUSE_SECONDS = 1.0
"""How long a worker receives no queries after it has exceeded the limit."""
OPEN_SECONDS = 60.0
"""How long a worker's connections stay open without a query; longer than any query takes."""

# Shared by the whole process. Scans compete for the interpreter's lock, so more threads would not make them faster.
# Lookups have threads of their own, so that they do not wait for scans.
_SCANS = ThreadPoolExecutor(max_workers=2, thread_name_prefix="sluice-scans")
_LOOKUPS = ThreadPoolExecutor(max_workers=4, thread_name_prefix="sluice-lookups")


class Worker(Protocol):
    """A worker, on this host or another."""

    async def execute(self, query: Query[T]) -> T:
        """The query's result. Raises StateError for an unreadable shard, QueryError for an unsuitable query."""

    async def close(self) -> None: ...


class LocalWorker(Worker):
    """A worker whose shard this process opens.

    Keeps one connection for lookups and one for scans, so that a long scan does not delay lookups.
    """

    def __init__(self, location: str, published: Published = lambda _: None) -> None:
        self._location = location
        self._published = published
        self._opening = Lock()
        self._shards: dict[str, LocalShard] = {}
        self._held: LocalShard | None = None
        self._held_as_of = -1
        """The batch for whose look-up the shard is held. It has been published, so the shard has it."""
        self._letting_go: asyncio.TimerHandle | None = None

    async def execute(self, query: Query[T]) -> T:
        """The query's result. A lookup in SQLite runs in this thread, because switching threads would take longer."""
        if query.is_quick:
            shard = self._shards.get("get")
            if shard is not None and not shard.blocking and self._holds(shard, query.as_of):
                return query.execute(shard)
        pool, purpose = (_LOOKUPS, "get") if query.is_quick else (_SCANS, "scan")
        until = time.monotonic() + worker_queries.QUERY_SECONDS
        return await asyncio.get_running_loop().run_in_executor(pool, self._execute, purpose, query, until)

    async def close(self) -> None:
        self._let_go()
        for shard in self._shards.values():
            shard.close()
        self._shards.clear()

    def _holds(self, shard: LocalShard, as_of: int) -> bool:
        """Hold the shard for lookups of a batch. Returns False if the shard's file has been removed or replaced.

        A hold that began before a batch was published does not have the batch, so a newer batch needs a new hold.
        """
        if self._held is shard and as_of <= self._held_as_of:
            return True
        self._let_go()
        if not shard.is_current():
            return False
        shard.hold()
        self._held, self._held_as_of = shard, as_of
        self._letting_go = asyncio.get_running_loop().call_later(HOLD_SECONDS, self._let_go)
        return True

    def _let_go(self) -> None:
        held, self._held = self._held, None
        if held is not None and self._letting_go is not None:
            self._letting_go.cancel()
            held.release()

    def _execute(self, purpose: str, query: Query[T], until: float) -> T:
        with deadline(until, worker_queries.QUERY_SECONDS):
            shard = self._shard(purpose, query.as_of)
            shard.release()  # what is held may not have the query's batch
            return query.execute(shard)

    def _shard(self, purpose: str, as_of: int) -> LocalShard:
        with held(self._opening):
            shard = self._shards.get(purpose)
            if shard is None or not shard.is_current():
                # The file was removed or replaced. The old connection is not closed here, because another thread may
                # still read from it; it closes with its last reference.
                self._shards.pop(purpose, None)
                shard = LocalShard.open(self._location)
                try:
                    self._require_published(shard, as_of)
                except StateError:
                    shard.close()
                    raise
                self._shards[purpose] = shard
            return shard

    def _require_published(self, shard: LocalShard, as_of: int) -> None:
        """Raise StateError if the shard does not have the published state, such as another worker's or an old copy."""
        if shard.is_sealed() and not shard.journal().batches:
            raise StateError("The copy of the shard is not complete yet.")
        if (published := self._published(as_of)) is None:
            return
        batch, expected = published
        if (checksum := shard.checksum(batch)) != expected:
            raise DamagedState(
                f"The shard is not the published one: the checksum of its state rows at batch {batch} is {checksum}, "
                f"but {expected} was published. Another worker's shard or an older copy may be in its place. Put the "
                "right one back, or start a run, which restores the state."
            )


W = TypeVar("W", bound=Worker)


class OpenWorkers(Generic[W]):
    """The workers that are in use.

    A worker that is no longer queried, because its generation has been replaced or it has moved, is closed. Otherwise a
    process that runs for months would keep the connections of all of them, and the space of their deleted files.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._workers: dict[Hashable, W] = {}
        self._used: dict[Hashable, float] = {}
        """Key → when the worker was last used."""
        self._checked = clock()

    def get(self, key: Hashable) -> W | None:
        """A worker that is about to be used; None if it is not open."""
        self._used[key] = self._clock()
        return self._workers.get(key)

    def add(self, key: Hashable, worker: W) -> W:
        self._workers[key] = worker
        return worker

    async def close_unused(self) -> None:
        """Close the workers that have not been used for `OPEN_SECONDS`. Does nothing more often than that."""
        oldest = self._clock() - OPEN_SECONDS
        if self._checked > oldest:
            return
        self._checked = self._clock()
        unused = [key for key, used in self._used.items() if used < oldest]
        for key in unused:
            del self._used[key]
        await asyncio.gather(*(self._workers.pop(key).close() for key in unused))

    async def close(self) -> None:
        """Close all connections. The next queries open them again."""
        await asyncio.gather(*(worker.close() for worker in self._workers.values()))


class Workers:
    """All workers. `own` returns the shard's address if this process's own state server serves the worker."""

    def __init__(self, audits: Audits, own: Own = lambda _: None, clock: Callable[[], float] = time.monotonic) -> None:
        self._audits = audits
        self._own = own
        self._open = OpenWorkers[Worker](clock)
        self._paused: dict[str, tuple[float, str]] = {}
        """Address → when it may be called again, and why it is not called until then."""

    def is_here(self, info: WorkerInfo) -> bool:
        """Whether this process opens the worker's shard itself."""
        return isinstance(self._worker(info), LocalWorker)

    async def execute(self, info: WorkerInfo, query: Query[T]) -> tuple[list[T], WorkerStatus]:
        """The result as a list of one, and the worker's status. If the worker is unavailable, its standby is queried.

        The list is empty if the standby does not have the query's snapshot, or is unavailable too.
        """
        result, status = await self.execute_at(info, query)
        return (result, status) if result else await self.execute_at_standby(info, query, status)

    async def execute_at_standby(
        self, info: WorkerInfo, query: Query[T], status: WorkerStatus
    ) -> tuple[list[T], WorkerStatus]:
        """The result from the standby of a worker that is unavailable according to `status`."""
        standby = info.at_standby(query.as_of)
        if standby is None:
            return [], _unavailable(info, f"{status.reason} {_behind(info)}".rstrip())
        result, at_standby = await self.execute_at(standby, query)
        if not result:
            return [], _unavailable(info, f"{status.reason} Its standby: {at_standby.reason}")
        if info.server:
            # The next queries go to the standby at once, without waiting for the worker's server.
            self._paused.setdefault(info.server, (time.monotonic() + PAUSE_SECONDS, status.reason))
        return result, WorkerStatus(info.number, "ok", status.reason, standby=True)

    async def execute_at(self, info: WorkerInfo, query: Query[T]) -> tuple[list[T], WorkerStatus]:
        """The worker's own result as a list of one, empty if the worker is unavailable, and its status."""
        if info.unavailable:
            return [], _unavailable(info, info.unavailable)
        if not info.server and info.location.startswith("http"):
            return [], _unavailable(info, "The shard's address does not belong to a registered state server.")
        if self._paused and info.server in self._paused:
            until, why = self._paused[info.server]
            if until > time.monotonic():
                return [], _unavailable(info, why)
            del self._paused[info.server]
        await self._open.close_unused()
        worker = self._worker(info)
        seconds = WORKER_SECONDS
        try:
            if isinstance(worker, LocalWorker):
                return [await worker.execute(query)], WorkerStatus(info.number, "ok")
            if query.is_quick and info.at_standby(query.as_of) is not None:
                seconds = LOOKUP_SECONDS
            async with asyncio.timeout(seconds):
                return [await worker.execute(query)], WorkerStatus(info.number, "ok")
        except TimeoutError:
            why = f"Timed out recently; retried after {PAUSE_SECONDS:g} s."
            self._paused[info.server] = time.monotonic() + PAUSE_SECONDS, why
            return [], _unavailable(info, f"Timed out after {seconds:g} s.")
        except StateError as error:
            return [], _unavailable(info, error.detail)

    def location(self, info: WorkerInfo) -> str | None:
        """The address of the worker's shard if this process opens it itself."""
        return self._own(info) if info.server else info.location

    async def close(self) -> None:
        await self._open.close()

    def _worker(self, info: WorkerInfo) -> Worker:
        address = info.server or info.location
        worker = self._open.get(address)
        if worker is not None:
            return worker
        own = self.location(info)
        published = partial(self._audits.checksum, info.ref, info.number)
        return self._open.add(address, RemoteWorker(address) if own is None else LocalWorker(own, published))


def _unavailable(info: WorkerInfo, reason: str) -> WorkerStatus:
    return WorkerStatus(info.number, "unavailable", reason)


def _behind(info: WorkerInfo) -> str:
    """Describes a standby that does not have the query's snapshot; empty without a standby."""
    if info.standby is None:
        return ""
    if info.standby.batch < 0:
        return "Its standby has no complete copy."
    return f"Its standby only has batch {info.standby.batch}: read as_of=standby."
