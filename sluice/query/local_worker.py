"""A worker whose shard this process opens and queries itself."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from threading import Lock
from typing import TypeVar

from sluice.errors import DamagedState, StateError
from sluice.state import time_limits
from sluice.state.queries.worker_queries import Query
from sluice.state.shard.local_shard import LocalShard
from sluice.state.time_limits import held, query_deadline

T = TypeVar("T")
PublishedChecksum = Callable[[int], tuple[int, str] | None]
"""Takes a batch. Returns the oldest retained batch from this batch on, and the published checksum
of a shard's state rows at the returned batch. Returns None if there is no such batch."""

HOLD_SECONDS = 0.05
"""How long look-ups share one read transaction of SQLite. Beginning and ending a transaction takes
longer than a look-up."""

# All workers of the process share these threads. Scans compete for the interpreter's lock, so more
# threads would not make them faster. Look-ups have their own threads, so that they do not wait for
# scans.
_SCANS = ThreadPoolExecutor(max_workers=2, thread_name_prefix="sluice-scans")
_LOOKUPS = ThreadPoolExecutor(max_workers=4, thread_name_prefix="sluice-lookups")


class LocalWorker:
    """A worker whose shard this process opens.

    Keeps one connection for look-ups and one for scans, so that a long scan does not delay
    look-ups.
    """

    def __init__(self, location: str, published: PublishedChecksum = lambda _: None) -> None:
        self._location = location
        self._published = published
        self._opening = Lock()
        self._shards: dict[str, LocalShard] = {}
        self._held_shard: LocalShard | None = None
        self._held_as_of = -1
        """The batch of the look-up that began the shared read transaction. The transaction
        certainly contains this batch."""
        self._release_timer: asyncio.TimerHandle | None = None

    async def execute(self, query: Query[T]) -> T:
        """Return the query's result.

        A look-up in SQLite runs in this thread, because switching threads would take longer.
        """
        if query.is_quick:
            shard = self._shards.get("get")
            # PostgreSQL may take a while to answer, so its look-ups run in other threads.
            if shard is not None and not shard.blocking and self._hold(shard, query.as_of):
                return query.execute(shard)
        if query.is_quick:
            pool, purpose = _LOOKUPS, "get"
        else:
            pool, purpose = _SCANS, "scan"
        # The time limit includes the wait for a thread.
        until = time.monotonic() + time_limits.QUERY_SECONDS
        return await asyncio.get_running_loop().run_in_executor(
            pool, self._execute, purpose, query, until
        )

    async def close(self) -> None:
        self._release_hold()
        for shard in self._shards.values():
            shard.close()
        self._shards.clear()

    def _hold(self, shard: LocalShard, as_of: int) -> bool:
        """Let look-ups as of a batch share a read transaction of the shard for `HOLD_SECONDS`.

        Returns False if the shard's file has been removed or replaced. A transaction that began
        before a batch was published does not see the batch, so look-ups as of a newer batch need a
        new transaction.
        """
        if self._held_shard is shard and as_of <= self._held_as_of:
            return True
        self._release_hold()
        if not shard.is_current():
            return False
        shard.hold()
        self._held_shard, self._held_as_of = shard, as_of
        self._release_timer = asyncio.get_running_loop().call_later(
            HOLD_SECONDS, self._release_hold
        )
        return True

    def _release_hold(self) -> None:
        shard, self._held_shard = self._held_shard, None
        if shard is not None and self._release_timer is not None:
            self._release_timer.cancel()
            shard.release()

    def _execute(self, purpose: str, query: Query[T], until: float) -> T:
        with query_deadline(until, time_limits.QUERY_SECONDS):
            shard = self._open_shard(purpose, query.as_of)
            # The read transaction that look-ups share may have begun before the query's batch was
            # published, so it ends here.
            shard.release()
            return query.execute(shard)

    def _open_shard(self, purpose: str, as_of: int) -> LocalShard:
        with held(self._opening):
            shard = self._shards.get(purpose)
            if shard is None or not shard.is_current():
                # The file was removed or replaced. The old connection is not closed here, because
                # another thread may still read from it. Python closes the connection when no thread
                # refers to it any more.
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
        """Raise StateError if the shard does not have the published state.

        The shard may be another worker's or an old copy, for example.
        """
        if shard.is_sealed() and not shard.journal().batches:
            raise StateError("The copy of the shard is not complete yet.")
        published = self._published(as_of)
        if published is None:
            return
        batch, expected = published
        checksum = shard.checksum(batch)
        if checksum != expected:
            raise DamagedState(
                "The shard does not have the published state: the checksum of its rows at batch "
                f"{batch} is {checksum}, but {expected} was published. Another worker's shard or "
                "an older copy may be in its place. Put the published shard back, or start a run, "
                "which restores the state."
            )
