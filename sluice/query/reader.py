"""The queries."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import TypeVar

from sluice.answers import WorkerStatus
from sluice.errors import QueryError, StateError
from sluice.query.answers import Answer, Changes, Combined, Counted, Entry, Page, Pin
from sluice.query.catalogue import Catalogue
from sluice.query.combine import Group, Groups, Order, largest
from sluice.query.limits import Gate
from sluice.query.questions import Changed, Combine, Count, Question, Scan, Top, Value, Values
from sluice.query.workers import Own, Workers
from sluice.state.ledger.ledger import Ledger
from sluice.state.model import NO_WINDOW, WorkerInfo, owner
from sluice.state.shard.ranges import EVERYTHING, Range

T = TypeVar("T")

MOST_ENTRIES = 100_000
"""As many entries as one answer may hold."""
MOST_KEYS = 1_000
"""As many keys as may be asked for at once."""
_PROBE = Value(group_id=0, store_column=0, as_of=0, key="")
"""A question that every shard answers."""
MANY = 2_000
"""More entries than this are put together beside the event loop, which others wait for."""


class Reader:
    """Reads stores, each query at one pinned snapshot. One reader serves a whole process, in one event loop.

    `own` gives the shard's address of workers that are at this process's own state server. Every query raises
    StateError if the ledger, or the owner of the one key asked for, cannot be read; Gone if the snapshot was given up while
    it was read; Busy if too many queries look through stores already.
    """

    def __init__(self, ledger: Ledger, own: Own = lambda _: None) -> None:
        self.catalogue = Catalogue(ledger)
        self.workers = Workers(own)
        self._gate = Gate()
        self._counts: dict[tuple[str, str, str], tuple[str, int]] = {}

    async def get(self, pin: Pin, key: str) -> Answer:
        """The value of one key of a store without windows: one entry, or none."""
        _demand_windows(pin, are_there=False)
        value, status = await self._ask_owner(pin, key, Value(*pin.of, key))
        if value is None:
            await self.catalogue.demand_kept(pin)
            return Answer(pin, (status,), [])
        return Answer(pin, (status,), [Entry(key, NO_WINDOW, NO_WINDOW, value)])

    async def multi_get(self, pin: Pin, keys: Iterable[str]) -> Answer:
        """The values of up to `MOST_KEYS` keys, in the order asked; keys without one are left out."""
        _demand_windows(pin, are_there=False)
        wanted = list(dict.fromkeys(keys))
        if len(wanted) > MOST_KEYS:
            raise QueryError(f"{len(wanted):,} keys are more than {MOST_KEYS:,}.", next_step="Ask in several queries.")
        shares: dict[int, list[str]] = defaultdict(list)
        for key in wanted:
            shares[0 if pin.store.kind == "global" else owner(key, len(pin.workers))].append(key)
        asked = [(pin.workers[number], Values(*pin.of, share)) for number, share in sorted(shares.items())]
        found, statuses = await self._ask_each(pin, asked)
        values = {key: value for some in found for key, value in some.items()}
        entries = [Entry(key, NO_WINDOW, NO_WINDOW, values[key]) for key in wanted if key in values]
        return Answer(pin, statuses, entries)

    async def windows(self, pin: Pin, key: str, start: int | None = None, end: int | None = None) -> Answer:
        """The windows of one key whose start lies between two times (epoch ms, both inclusive), in order."""
        _demand_windows(pin, are_there=True)
        within = Range.of_key(key, start, end)
        entries, status = await self._ask_owner(pin, key, Scan(*pin.of, within, None, MOST_ENTRIES))
        await self.catalogue.demand_kept(pin)
        return Answer(pin, (status,), entries)

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
        # One more than wanted, to know whether there is another page.
        pages, statuses = await self._ask_all(pin, Scan(*pin.of, within, after, limit + 1), workers)
        if sum(map(len, pages)) > MANY:
            found = await asyncio.to_thread(_merged, pages, limit + 1)
        else:
            found = _merged(pages, limit + 1)
        more = _order(found[limit - 1]) if len(found) > limit else None
        return Page(pin, statuses, found[:limit], more)

    async def all(self, pin: Pin, within: Range = EVERYTHING, *, workers: Iterable[WorkerInfo] | None = None) -> Answer:
        """Everything in one answer; QueryError if that is more than `MOST_ENTRIES`."""
        page = await self.scan(pin, within, limit=MOST_ENTRIES, workers=workers)
        if page.after is not None:
            raise QueryError(
                f"Store {pin.store.name!r} holds more than {MOST_ENTRIES:,} entries.",
                next_step="Ask page by page: GET /sluice/v1/stores/{store}.",
            )
        return page

    async def count(self, pin: Pin, within: Range = EVERYTHING) -> Counted:
        """How many entries the workers that can be read hold; whole counts are kept as long as their snapshot."""
        of = (pin.store.pipeline, pin.store.job, pin.store.name)
        known = self._counts.get(of)
        if within == EVERYTHING and known is not None and known[0] == pin.snapshot.id:
            return Counted(pin, tuple(WorkerStatus(one.number, "ok") for one in pin.workers), known[1])
        counts, statuses = await self._ask_all(pin, Count(*pin.of, within))
        found = Counted(pin, statuses, sum(counts))
        if within == EVERYTHING and not found.partial:
            self._counts[of] = pin.snapshot.id, found.entries
        return found

    async def combine(
        self,
        pin: Pin,
        field: str = "",
        group_by: str = "_all",
        *,
        within: Range = EVERYTHING,
        order: Order = "group",
        limit: int | None = None,
    ) -> Combined:
        """Number of entries, and sum, minimum and maximum of `field`, by group; see `Groups` for the special names."""
        found, statuses = await self._ask_all(pin, Combine(*pin.of, within, field, group_by))
        return Combined(pin, statuses, await asyncio.to_thread(_groups, found, field, group_by, order, limit))

    async def top(
        self, pin: Pin, field: str = "", limit: int = 10, *, within: Range = EVERYTHING, smallest: bool = False
    ) -> Answer:
        """The entries with the largest numbers in `field`, or with the smallest, the first first."""
        found, statuses = await self._ask_all(pin, Top(*pin.of, within, field, limit, smallest))
        entries = [entry for some in found for entry in some]
        return Answer(pin, statuses, largest(entries, field, limit, smallest=smallest))

    async def changed(self, pin: Pin, since: int, limit: int = MOST_KEYS) -> Changes:
        """Keys (and window starts) that the batches after `since` have changed in the pinned snapshot."""
        found, statuses = await self._ask_all(pin, Changed(*pin.of, since, limit + 1))
        keys = sorted(key for some in found for key in some)
        return Changes(pin, statuses, keys[:limit], len(keys) > limit)

    async def statuses(self, workers: Iterable[WorkerInfo]) -> tuple[WorkerStatus, ...]:
        """Whether each worker can be read, without reading much."""
        said = await asyncio.gather(*(self.workers.ask(info, _PROBE) for info in workers))
        return tuple(status for _, status in said)

    async def _ask_owner(self, pin: Pin, key: str, question: Question[T]) -> tuple[T, WorkerStatus]:
        if pin.store.kind == "global":
            found, statuses = await self._ask_any(pin.workers, question)
        else:
            found, status = await self.workers.ask(pin.workers[owner(key, len(pin.workers))], question)
            statuses = (status,)
        if not found:
            failed = statuses[0]
            raise StateError(f"Worker {failed.number}, which has the key, is unavailable. {failed.reason}")
        return found[0], statuses[0]

    async def _ask_all(
        self, pin: Pin, question: Question[T], workers: Iterable[WorkerInfo] | None = None
    ) -> tuple[list[T], tuple[WorkerStatus, ...]]:
        return await self._ask_each(pin, [(info, question) for info in (pin.workers if workers is None else workers)])

    async def _ask_each(
        self, pin: Pin, asked: Sequence[tuple[WorkerInfo, Question[T]]]
    ) -> tuple[list[T], tuple[WorkerStatus, ...]]:
        async with self._gate:
            if pin.store.kind == "global" and asked:
                found, statuses = await self._ask_any(pin.workers, asked[0][1])
            else:
                said = await asyncio.gather(*(self.workers.ask(info, question) for info, question in asked))
                found, statuses = [one for some, _ in said for one in some], tuple(status for _, status in said)
        await self.catalogue.demand_kept(pin)
        return found, statuses

    async def _ask_any(
        self, asked: Iterable[WorkerInfo], question: Question[T]
    ) -> tuple[list[T], tuple[WorkerStatus, ...]]:
        """Ask one after the other until one answers: a global table is the same on every worker."""
        failed = []
        for info in sorted(asked, key=lambda info: not self.workers.is_here(info)):
            found, status = await self.workers.ask(info, question)
            if found:
                return found, (status,)
            failed.append(status)
        return [], tuple(failed)


def _demand_windows(pin: Pin, *, are_there: bool) -> None:
    if (pin.store.kind == "window") == are_there:
        return
    if are_there:
        raise QueryError(f"Store {pin.store.name!r} has no windows.", next_step="Leave the times out.")
    raise QueryError(f"Store {pin.store.name!r} has windows.", next_step="Ask for the windows of the key.")


def _groups(found: list[list[Group]], field: str, group_by: str, order: Order, limit: int | None) -> list[Group]:
    groups = Groups(field, group_by)
    for some in found:
        groups.merge(some)
    return groups.found(order, limit)


def _order(entry: Entry) -> tuple[str, int]:
    return entry.key, entry.window_start


def _merged(pages: list[list[Entry]], limit: int) -> list[Entry]:
    # Sorting runs that are sorted already is what Python's sort is best at.
    return sorted((entry for page in pages for entry in page), key=_order)[:limit]
