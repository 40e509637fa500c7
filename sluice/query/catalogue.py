"""The catalogue of stores, which pins new queries to a snapshot."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Hashable, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any, TypeVar, cast

from sluice.errors import Gone, NotFound, NotReady, QueryError
from sluice.query.as_of import NEWEST, AsOf, find_snapshot
from sluice.query.ledger_reads import read_ledger
from sluice.query.results import Pin, snapshot_name
from sluice.state.ledger.ledger import Ledger
from sluice.state.model import GenerationInfo, GenerationRef, Snapshot, StoreInfo

T = TypeVar("T")

_RENEWAL = 0.8
"""A query renews a cached result in the background after this share of the result's lifetime."""

FRESH_SECONDS = 0.05
"""For how many seconds a result from the ledger counts as current. A query that begins more than
this time after a snapshot was published therefore sees that snapshot."""
_SELDOM = 20
"""The cached lists of stores and generations count as current for this many times `FRESH_SECONDS`.
The generation that queries of a pipeline use is also read again with each new snapshot."""


@dataclass(frozen=True)
class _Cached:
    """A result from the ledger, and the time on the catalogue's clock at which its read began."""

    read_at: float
    value: Any


class PipelineSnapshot:
    """A pipeline's snapshot, with one pin for each store that a query has asked for."""

    def __init__(self, snapshot: Snapshot, generation: GenerationInfo) -> None:
        self.snapshot = snapshot
        self.generation = generation
        self._stores = generation.stores_by_name
        self._pins: dict[str, Pin] = {}

    @cached_property
    def name(self) -> str:
        """The name of the snapshot in ETags and cache keys."""
        return snapshot_name(self.snapshot)

    def holds(self, name: str) -> bool:
        """Return whether the pipeline has a store of this name."""
        return name in self._stores

    def pin(self, name: str) -> Pin:
        """Return a store at the snapshot. Raises NotFound if the store did not exist yet."""
        if name not in self._pins:
            if name not in self._stores:
                raise NotFound(
                    f"There was no store {name!r} in snapshot {self.snapshot.id}.",
                    next_step="Read a later snapshot, or one of the stores that it had: "
                    f"{', '.join(sorted(self._stores)) or 'none'}.",
                )
            self._pins[name] = Pin(self._stores[name], self.snapshot, self.generation)
        return self._pins[name]


def only_store(
    name: str,
    stores: Sequence[StoreInfo],
    *,
    unknown: str,
    ambiguous: str,
) -> StoreInfo:
    """Return the only element of `stores`, which are the stores with this name.

    Raises NotFound, with the next step `unknown`, if `stores` is empty; and QueryError, with the
    next step `ambiguous`, if several pipelines have the store. `{pipelines}` in `ambiguous` is
    replaced by the pipelines' names.
    """
    if not stores:
        raise NotFound(f"There is no store {name!r}.", next_step=unknown)
    if len(stores) > 1:
        pipelines = ", ".join(store.pipeline for store in stores)
        raise QueryError(
            f"{len(stores)} pipelines have a store {name!r}.",
            next_step=ambiguous.format(pipelines=pipelines),
        )
    return stores[0]


class Catalogue:
    """Caches reads of the ledger for `FRESH_SECONDS`.

    If a query uses a result that is about to expire, the result is read again in the background.
    """

    def __init__(self, ledger: Ledger, clock: Callable[[], float] = time.monotonic) -> None:
        self._ledger = ledger
        self._clock = clock
        self._cache: dict[Hashable, _Cached] = {}
        self._reads: dict[Hashable, asyncio.Future[Any]] = {}
        self._generations: dict[str, tuple[float, str, GenerationInfo]] = {}
        """Pipeline → when its generation was read, at which snapshot, and the generation."""

    async def stores(self) -> list[StoreInfo]:
        """Return all stores, sorted by pipeline and name."""
        return await self._fresh("stores", self._ledger.generations.stores, times=_SELDOM)

    async def stores_named(self, name: str) -> list[StoreInfo]:
        """Return the stores with this name, one per pipeline that has it."""
        by_name: dict[str, list[StoreInfo]] = await self._fresh("names", self._names, times=_SELDOM)
        return by_name.get(name, [])

    async def generations(self) -> list[GenerationInfo]:
        """Return the current generations of all pipelines, sorted by pipeline."""
        return await self._fresh("generations", self._ledger.generations.all_current, times=_SELDOM)

    async def snapshots(self, pipeline: str, limit: int) -> list[Snapshot]:
        """Return the newest snapshots of a pipeline, newest first."""
        return await read_ledger(lambda: self._ledger.snapshots.recent(pipeline, limit))

    async def pin(self, store: StoreInfo, when: AsOf = NEWEST) -> Pin:
        """Pin a store to the snapshot that `when` selects, by default to the newest snapshot.

        Raises NotReady if the pipeline has no snapshot yet, NotFound if the snapshot never existed,
        and Gone if it is no longer kept. Raises NotReached if it has not reached the requested
        minimum, and QueryError if it can never reach this minimum.
        """
        pipeline = store.pipeline
        newest = await self.newest(pipeline)
        if newest is not None and when.has_bounds and not when.is_reached(newest.snapshot):
            # The cached snapshot can be a moment old. Only a fresh snapshot proves that the
            # requested minimum is not reached.
            newest = await self._fresh(
                _newest_of(pipeline), lambda: self._newest(pipeline), since=self._clock()
            )
        if newest is None:
            raise NotReady(f"Pipeline {pipeline!r} has published nothing yet.")
        if when.min_positions:
            when.require_topics({*newest.generation.topics, *newest.snapshot.positions})
        if when.as_of is not None and when.as_of != newest.snapshot.id:
            newest = await read_ledger(partial(self._earlier, newest.snapshot, when.as_of))
        when.require_reached(newest.snapshot)
        return newest.pin(store.name)

    def newest(self, pipeline: str) -> Awaitable[PipelineSnapshot | None]:
        """Return the newest snapshot of a pipeline; None if there is none yet."""
        return self._fresh(_newest_of(pipeline), lambda: self._newest(pipeline))

    async def require_kept(self, ref: GenerationRef, batch: int) -> None:
        """Raise Gone if retention has removed the snapshot that was read.

        Rows may then be missing from the result.
        """
        cached = self._cache.get(_newest_of(ref.pipeline))
        if cached is not None and cached.value is not None:
            newest = cached.value.snapshot
            if (newest.ref, newest.batch) == (ref, batch):
                return
        if await read_ledger(lambda: self._ledger.snapshots.get(ref, batch)) is None:
            raise Gone(
                f"Retention removed snapshot {ref.generation}.{batch} during the read.",
                next_step="Read a newer snapshot.",
            )

    def _newest(self, pipeline: str) -> PipelineSnapshot | None:
        snapshot = self._ledger.snapshots.latest(pipeline)
        if snapshot is None:
            return None
        info = self._generation_of(snapshot)
        if info is None:
            return None
        cached = self._cache.get(_newest_of(pipeline))
        if cached is not None:
            newest: PipelineSnapshot | None = cached.value
            if newest is not None and newest.snapshot == snapshot and newest.generation is info:
                # Return the cached object, because it has cached pins.
                return newest
        return PipelineSnapshot(snapshot, info)

    def _generation_of(self, snapshot: Snapshot) -> GenerationInfo | None:
        read_at, snapshot_id, info = self._generations.get(snapshot.pipeline, (0.0, "", None))
        # Moves and standbys change a generation's workers without a new snapshot, so the generation
        # is read again after some time.
        is_recent = self._clock() < read_at + FRESH_SECONDS * _SELDOM
        if info is not None and snapshot_id == snapshot.id and is_recent:
            return info
        read_at, info = self._clock(), self._ledger.generations.get(snapshot.ref)
        if info is not None:
            self._generations[snapshot.pipeline] = read_at, snapshot.id, info
        return info

    def _earlier(self, newest: Snapshot, as_of: str) -> PipelineSnapshot:
        snapshot = find_snapshot(self._ledger, newest, as_of)
        generation = self._ledger.generations.get(snapshot.ref)
        if generation is None:
            raise NotFound(
                f"Pipeline {snapshot.pipeline!r} has no generation {snapshot.generation}.",
                next_step="Read the newest snapshot: leave out `as_of`.",
            )
        return PipelineSnapshot(snapshot, generation)

    def _names(self) -> dict[str, list[StoreInfo]]:
        by_name: dict[str, list[StoreInfo]] = {}
        for store in self._ledger.generations.stores():
            by_name.setdefault(store.name, []).append(store)
        return by_name

    async def _fresh(
        self,
        name: Hashable,
        read: Callable[[], T],
        *,
        times: int = 1,
        since: float | None = None,
    ) -> T:
        """Return a result from the ledger, at most `times * FRESH_SECONDS` old.

        With `since`, return a result whose read began at this time or later.
        """
        now, max_age = self._clock(), FRESH_SECONDS * times
        cached = self._cache.get(name)
        if cached is not None and since is None and now - cached.read_at < max_age:
            if now - cached.read_at > max_age * _RENEWAL and name not in self._reads:
                # The read begins before the cached result is too old, so that no query waits for
                # it.
                self._read(name, read)
            value: T = cached.value
            return value
        shared_read = None
        if since is None:
            shared_read = self._reads.get(name)
        # A query that is cancelled must not cancel the read for other queries.
        result: _Cached = await asyncio.shield(shared_read or self._read(name, read))
        if shared_read is not None and now - result.read_at >= max_age:
            # The shared read began before this query, so it may have missed a snapshot that this
            # query has to see.
            result = await asyncio.shield(self._read(name, read))
        return cast("T", result.value)

    def _read(self, name: Hashable, read: Callable[[], T]) -> asyncio.Future[_Cached]:
        read_at = self._clock()
        future = asyncio.ensure_future(read_ledger(lambda: _Cached(read_at, read())))
        self._reads[name] = future
        future.add_done_callback(lambda done: self._store(name, done))
        return future

    def _store(self, name: Hashable, done: asyncio.Future[_Cached]) -> None:
        if self._reads.get(name) is done:
            del self._reads[name]
        if not done.cancelled() and done.exception() is None:
            cached = self._cache.get(name)
            # Reads may end in another order than they began. The result of the read that began last
            # is kept.
            if cached is None or cached.read_at <= done.result().read_at:
                self._cache[name] = done.result()


def _newest_of(pipeline: str) -> Hashable:
    """Return the name of a pipeline's newest snapshot in the cache."""
    return "newest", pipeline
