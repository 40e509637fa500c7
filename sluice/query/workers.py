"""Asking workers: those whose shards this process opens itself, and those behind state servers."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from threading import Lock
from typing import Protocol, TypeVar

from sluice.answers import WorkerStatus
from sluice.errors import StateError
from sluice.query import questions
from sluice.query.questions import Question
from sluice.query.remote import RemoteWorker
from sluice.state.deadlines import deadline
from sluice.state.model import WorkerInfo
from sluice.state.shard.shard import Shard

T = TypeVar("T")
Own = Callable[[WorkerInfo], str | None]

WORKER_SECONDS = 15.0
"""How long a worker may take; longer than a server's own limit for a query, so that its reason is heard."""
REST_SECONDS = 1.0
"""How long a worker that took longer is not asked again: nobody shall wait for it in vain meanwhile."""

# Of the process: scans take the interpreter's lock in turns, so more of them at once make nothing quicker. Look-ups in
# databases have threads of their own, so that no scan holds them up.
_SCANS = ThreadPoolExecutor(max_workers=2, thread_name_prefix="sluice-scans")
_LOOK_UPS = ThreadPoolExecutor(max_workers=4, thread_name_prefix="sluice-look-ups")


class Worker(Protocol):
    """A worker, wherever it is."""

    async def ask(self, question: Question[T]) -> T:
        """Its answer; StateError if it gives none, QueryError if the question does not fit what it holds."""

    async def close(self) -> None:
        """Close the connections."""


class LocalWorker(Worker):
    """A worker whose shard this process reads itself.

    Connections stay open, one for single keys and one for everything else, so that a long scan holds up no look-up.
    """

    def __init__(self, location: str) -> None:
        self._location = location
        self._opening = Lock()
        self._shards: dict[str, Shard] = {}

    async def ask(self, question: Question[T]) -> T:
        """Its answer; a few keys of a SQLite shard are looked up quicker than a hop to another thread."""
        if question.is_quick:
            shard = self._shards.get("get")
            if shard is not None and not shard.blocking and shard.is_current():
                return question.answer(shard)
        pool, purpose = (_LOOK_UPS, "get") if question.is_quick else (_SCANS, "scan")
        until = time.monotonic() + questions.QUERY_SECONDS
        return await asyncio.get_running_loop().run_in_executor(pool, self._answer, purpose, question, until)

    async def close(self) -> None:
        """Close the connections."""
        for shard in self._shards.values():
            shard.close()
        self._shards.clear()

    def _answer(self, purpose: str, question: Question[T], until: float) -> T:
        with deadline(until, questions.QUERY_SECONDS):
            return question.answer(self._shard(purpose))

    def _shard(self, purpose: str) -> Shard:
        with self._opening:
            shard = self._shards.get(purpose)
            if shard is None or not shard.is_current():
                # A file that was removed or replaced must not be read on through the old connection. That one is not
                # closed: another thread may be reading from it; it goes with its last reader.
                self._shards.pop(purpose, None)
                shard = self._shards[purpose] = Shard.open(self._location)
            return shard


class Workers:
    """All workers that this process asks. `own` gives the shard's address of those that are at its own state server."""

    def __init__(self, own: Own = lambda _: None) -> None:
        self._own = own
        self._known: dict[str, Worker] = {}
        self._resting: dict[str, float] = {}

    def is_here(self, info: WorkerInfo) -> bool:
        """Whether this process opens the worker's shard itself."""
        return isinstance(self._worker(info), LocalWorker)

    async def ask(self, info: WorkerInfo, question: Question[T]) -> tuple[list[T], WorkerStatus]:
        """A worker's answer, if it gives one, and its status."""
        if info.unavailable:
            return [], _unavailable(info, info.unavailable)
        if not info.server and info.location.startswith("http"):
            return [], _unavailable(info, "Its shard is at an address that is no registered state server's.")
        if self._resting and self._resting.get(info.server, 0.0) > time.monotonic():
            return [], _unavailable(info, "It did not answer in time a moment ago.")
        worker = self._worker(info)
        try:
            if isinstance(worker, LocalWorker):
                return [await worker.ask(question)], WorkerStatus(info.number, "ok")
            async with asyncio.timeout(WORKER_SECONDS):
                return [await worker.ask(question)], WorkerStatus(info.number, "ok")
        except TimeoutError:
            self._resting[info.server] = time.monotonic() + REST_SECONDS
            return [], _unavailable(info, f"It did not answer within {WORKER_SECONDS:g} s.")
        except StateError as error:
            return [], _unavailable(info, error.detail)

    async def close(self) -> None:
        """Close all connections."""
        await asyncio.gather(*(worker.close() for worker in self._known.values()))

    def _worker(self, info: WorkerInfo) -> Worker:
        place = info.server or info.location
        known = self._known.get(place)
        if known is None:
            own = self._own(info) if info.server else info.location
            known = self._known[place] = RemoteWorker(place) if own is None else LocalWorker(own)
        return known


def _unavailable(info: WorkerInfo, reason: str) -> WorkerStatus:
    return WorkerStatus(info.number, "unavailable", reason)
