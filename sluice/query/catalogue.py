"""Which stores there are, and which cut a new query is to be pinned to."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Hashable
from typing import Any, TypeVar

from sluice.errors import NotFound, NotReady, QueryError
from sluice.query.answers import Pin
from sluice.state.ledger import Ledger
from sluice.state.model import Cut, JobInfo, StoreInfo

T = TypeVar("T")

FRESH_SECONDS = 0.05
"""How long an answer of the ledger is taken for current: a new cut is seen by every query that begins this long after
it was published."""


class Catalogue:
    """The ledger, asked at most every `FRESH_SECONDS` for the same thing."""

    def __init__(self, ledger: Ledger, clock: Callable[[], float] = time.monotonic) -> None:
        self._ledger = ledger
        self._clock = clock
        self._known: dict[Hashable, tuple[float, Any]] = {}

    async def stores(self) -> list[StoreInfo]:
        """All stores, sorted by pipeline and name."""
        return await self._fresh("stores", self._ledger.stores)

    async def jobs(self) -> list[JobInfo]:
        """All jobs, sorted by pipeline and name."""
        return await self._fresh("jobs", self._all_jobs)

    async def cuts(self, pipeline: str, job: str, limit: int) -> list[Cut]:
        """The newest cuts of a job, newest first."""
        return await asyncio.to_thread(self._ledger.cuts, pipeline, job, limit)

    async def pin(self, store: StoreInfo, as_of: str | None = None) -> Pin:
        """Pin a store to the newest cut of its job, or to the cut `as_of` ("generation.batch").

        Raises NotReady before the job's first cut, and NotFound if there is no such cut, or no longer.
        """
        of = (store.pipeline, store.job)
        newest = await self._fresh(of, lambda: self._newest(*of))
        if newest is None:
            raise NotReady(f"Job {store.job!r} of pipeline {store.pipeline!r} has published nothing yet.")
        cut, job = newest
        if as_of is not None and as_of != cut.id:
            cut, job = await asyncio.to_thread(self._earlier, cut, as_of)
        found = next((known for known in job.stores if known.name == store.name), None)
        if found is None:
            raise NotFound(f"There was no store {store.name!r} in cut {cut.id}.")
        return Pin(found, cut, job)

    def _newest(self, pipeline: str, job: str) -> tuple[Cut, JobInfo] | None:
        cut = self._ledger.latest_cut(pipeline, job)
        info = None if cut is None else self._ledger.job(pipeline, job, cut.generation)
        return None if cut is None or info is None else (cut, info)

    def _earlier(self, newest: Cut, as_of: str) -> tuple[Cut, JobInfo]:
        generation, batch = _parse_cut(as_of)
        cut = self._ledger.cut(newest.pipeline, newest.job, generation, batch)
        job = self._ledger.job(newest.pipeline, newest.job, generation)
        if cut is None or job is None:
            raise NotFound(
                f"There is no cut {as_of} of job {newest.job!r}, or no longer.",
                next_step=f"The newest is {newest.id}; leave as_of out to read it.",
            )
        return cut, job

    def _all_jobs(self) -> list[JobInfo]:
        return [job for pipeline in self._ledger.pipelines() for job in self._ledger.jobs(pipeline)]

    async def _fresh(self, name: Hashable, read: Callable[[], T]) -> T:
        found = self._known.get(name)
        if found is not None and found[0] > self._clock():
            value: T = found[1]
            return value
        asked_at = self._clock()
        value = await asyncio.to_thread(read)
        self._known[name] = asked_at + FRESH_SECONDS, value
        return value


def _parse_cut(text: str) -> tuple[int, int]:
    generation, _, batch = text.partition(".")
    if not (generation.isascii() and generation.isdigit() and batch.isascii() and batch.isdigit() and len(text) < 30):
        raise QueryError(f"{text[:40]!r} is no cut.", next_step="A cut is named generation.batch, for example 1.42.")
    return int(generation), int(batch)
