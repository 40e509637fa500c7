"""The queries."""

from __future__ import annotations

import asyncio
import heapq
from collections.abc import Awaitable, Callable, Iterable
from typing import TypeVar

from sluice.errors import QueryError, StateError
from sluice.query.answers import Answer, Entry, Page, Pin, WorkerStatus, entry, slot
from sluice.query.catalogue import Catalogue
from sluice.query.workers import LocalWorker, WorkerReader
from sluice.state.ledger import Ledger
from sluice.state.model import NO_WINDOW, Cell, WorkerInfo, owner
from sluice.state.shard import EVERYTHING, Range

T = TypeVar("T")

MOST_ENTRIES = 100_000
"""As many entries as one answer may hold."""


class Reader:
    """Reads stores, each query at one pinned cut. One reader serves a whole process.

    Every query raises StateError if the ledger, or the owner of the one key asked for, cannot be read.
    """

    def __init__(self, ledger: Ledger) -> None:
        self.catalogue = Catalogue(ledger)
        self._workers: dict[str, LocalWorker] = {}
        self._counts: dict[tuple[str, str, int], tuple[str, int]] = {}

    async def get(self, pin: Pin, key: str) -> Answer:
        """The value of one key of a store without windows: one entry, or none."""
        if pin.store.kind == "window":
            raise QueryError(f"Store {pin.store.name!r} has windows.", next_step="Ask for the windows of the key.")
        found, status = await self._ask_owner(pin, key, lambda one: one.get(pin.store.cell, key, pin.cut.batch))
        value = slot(pin.store, found)
        return Answer(pin, [] if value is None else [Entry(key, NO_WINDOW, NO_WINDOW, value)], (status,))

    async def windows(self, pin: Pin, key: str, start: int | None = None, end: int | None = None) -> Answer:
        """The windows of one key whose start lies between two times (epoch ms, both inclusive), in order."""
        if pin.store.kind != "window":
            raise QueryError(f"Store {pin.store.name!r} has no windows.", next_step="Leave the times out.")
        within = Range.of_key(key, start, end)
        cells, status = await self._ask_owner(
            pin, key, lambda one: one.scan(pin.store.cell, pin.cut.batch, within, None, MOST_ENTRIES)
        )
        return Answer(pin, _entries(pin, cells), (status,))

    async def scan(
        self,
        pin: Pin,
        within: Range = EVERYTHING,
        *,
        after: tuple[str, int] | None = None,
        limit: int = 1_000,
        workers: Iterable[WorkerInfo] | None = None,
    ) -> Page:
        """A page of entries sorted by key and window, from all workers or from `workers` only."""
        asked = pin.workers if workers is None else tuple(workers)
        # One more than wanted, to know whether there is another page.
        pages, statuses = await self._ask_all(
            pin, asked, lambda one: one.scan(pin.store.cell, pin.cut.batch, within, after, limit + 1)
        )
        cells = list(heapq.merge(*pages, key=_order))
        page = cells[:limit]
        more = _order(page[-1]) if len(cells) > limit else None
        return Page(pin, _entries(pin, page), statuses, more)

    async def all(self, pin: Pin, within: Range = EVERYTHING, *, workers: Iterable[WorkerInfo] | None = None) -> Answer:
        """Everything in one answer; QueryError if that is more than `MOST_ENTRIES`."""
        page = await self.scan(pin, within, limit=MOST_ENTRIES, workers=workers)
        if page.after is not None:
            raise QueryError(
                f"Store {pin.store.name!r} holds more than {MOST_ENTRIES:,} entries.",
                next_step="Ask page by page: GET /sluice/v1/stores/{store}.",
            )
        return page

    async def count(self, pin: Pin) -> int:
        """How many entries a store has on the workers that can be read; whole counts are kept as long as their cut."""
        cells = (pin.store.pipeline, pin.store.job, pin.store.cell)
        known = self._counts.get(cells)
        if known is not None and known[0] == pin.cut.id:
            return known[1]
        counts, statuses = await self._ask_all(pin, pin.workers, lambda one: one.count(pin.store.cell, pin.cut.batch))
        if all(status.status == "ok" for status in statuses):
            self._counts[cells] = pin.cut.id, sum(counts)
        return sum(counts)

    async def statuses(self, pin: Pin) -> tuple[WorkerStatus, ...]:
        """Whether each worker can be read, without reading much."""
        said = await asyncio.gather(
            *(self._ask_one(info, lambda one: one.get(pin.store.cell, "", pin.cut.batch)) for info in pin.workers)
        )
        return tuple(status for _, status in said)

    def _worker(self, info: WorkerInfo) -> WorkerReader:
        if info.location not in self._workers:
            self._workers[info.location] = LocalWorker(info.location)
        return self._workers[info.location]

    async def _ask_owner(
        self, pin: Pin, key: str, ask: Callable[[WorkerReader], Awaitable[T]]
    ) -> tuple[T, WorkerStatus]:
        everyone = pin.store.kind == "global"
        asked = pin.workers if everyone else (pin.workers[owner(key, len(pin.workers))],)
        found, statuses = await self._ask_all(pin, asked, ask)
        if not found:
            failed = statuses[0]
            raise StateError(f"Worker {failed.number}, which has the key, is unavailable. {failed.reason}")
        return found[0], statuses[0]

    async def _ask_all(
        self, pin: Pin, asked: tuple[WorkerInfo, ...], ask: Callable[[WorkerReader], Awaitable[T]]
    ) -> tuple[list[T], tuple[WorkerStatus, ...]]:
        if pin.store.kind == "global":
            return await self._ask_any(asked, ask)
        said = await asyncio.gather(*(self._ask_one(info, ask) for info in asked))
        return [one for found, _ in said for one in found], tuple(status for _, status in said)

    async def _ask_any(
        self, asked: tuple[WorkerInfo, ...], ask: Callable[[WorkerReader], Awaitable[T]]
    ) -> tuple[list[T], tuple[WorkerStatus, ...]]:
        """Ask one after the other until one answers: a global table is the same on every worker."""
        failed = []
        for info in asked:
            found, status = await self._ask_one(info, ask)
            if found:
                return found, (status,)
            failed.append(status)
        return [], tuple(failed)

    async def _ask_one(
        self, info: WorkerInfo, ask: Callable[[WorkerReader], Awaitable[T]]
    ) -> tuple[list[T], WorkerStatus]:
        if info.unavailable:
            return [], WorkerStatus(info.number, "unavailable", info.unavailable)
        try:
            return [await ask(self._worker(info))], WorkerStatus(info.number, "ok")
        except StateError as error:
            return [], WorkerStatus(info.number, "unavailable", error.detail)


def _order(cell: Cell) -> tuple[str, int]:
    return cell.key, cell.window_start


def _entries(pin: Pin, cells: list[Cell]) -> list[Entry]:
    return [found for cell in cells if (found := entry(pin.store, cell)) is not None]
