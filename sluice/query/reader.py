"""The reader: queries the workers of a pinned snapshot and combines their answers."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from itertools import chain
from typing import TypeVar

import msgspec

from sluice.answers import MAX_KEYS, WorkerStatus
from sluice.errors import QueryError, StateError
from sluice.query.catalogue import Catalogue
from sluice.query.results import Answer, Changes, Combined, Counted, Page, Pin
from sluice.query.scan_slots import Gate
from sluice.query.workers import ServedLocation, Workers
from sluice.state.ledger.ledger import Ledger
from sluice.state.model import NO_WINDOW, EntryId, WorkerInfo
from sluice.state.queries.aggregates import Aggregates, Group, Order, largest
from sluice.state.queries.entries import Entry
from sluice.state.queries.worker_queries import (
    Aggregate,
    Changed,
    Count,
    Query,
    Scan,
    Top,
    Value,
    Values,
    WithHeaders,
)
from sluice.state.shard.ranges import EVERYTHING, RowRange
from sluice.values.key_owners import owner

T = TypeVar("T")

MAX_ENTRIES = 100_000
"""Limit of the number of entries in a result."""
_PROBE = Value(group_id=0, store_column=0, as_of=0, key="")
"""A query that every shard can execute. It is sent to find out whether a worker is available."""
MANY = 2_000
"""More entries than this are merged in another thread, so that the merge does not block the event
loop."""


class Reader:
    """Reads stores.

    The parameter `pin` of a query names the store and the snapshot that the query reads.

    One reader serves a whole process, in one event loop. If this process is the state server of a
    worker, `served` returns the address of the worker's shard. Every query raises StateError if the
    ledger, or the owner of the requested key, cannot be read. A query also raises Gone if retention
    removed the snapshot during the query, and Busy if too many queries are already scanning stores.
    """

    def __init__(self, ledger: Ledger, served: ServedLocation = lambda _: None) -> None:
        self.catalogue = Catalogue(ledger)
        self.workers = Workers(ledger.audits, served)
        self._gate = Gate()
        self._counts: dict[tuple[str, str], tuple[str, int]] = {}
        """Pipeline and store → the snapshot and its number of entries."""

    async def get(self, pin: Pin, key: str) -> Answer:
        """Return the value of one key of a store without windows: one entry, or none."""
        entry, status = await self.entry(pin, key)
        return Answer(pin, (status,), [] if entry is None else [entry])

    async def entry(self, pin: Pin, key: str) -> tuple[Entry | None, WorkerStatus]:
        """Return the entry of a key in a store without windows, and the worker's status.

        If there is no such entry, return None for it.
        """
        _require_windows(pin, are_there=False)
        entry: Entry | None = None
        if pin.store.keeps_headers:
            with_headers = WithHeaders(*pin.query_fields, [key])
            entries, status = await self._query_owner(pin, key, with_headers)
            entry = entries[0] if entries else None
        else:
            value, status = await self._query_owner(pin, key, Value(*pin.query_fields, key))
            if value is not None:
                entry = Entry(key, NO_WINDOW, NO_WINDOW, value)
        if entry is None:
            # If retention has removed the snapshot, its row for the key may be gone, too. A missing
            # row then does not mean that the key had no value.
            await self.catalogue.require_kept(pin.snapshot.ref, pin.snapshot.batch)
        return entry, status

    async def multi_get(self, pin: Pin, keys: Iterable[str]) -> Answer:
        """Return the entries of up to 1,000 keys, in the order of `keys`.

        Omits keys without a value.
        """
        _require_windows(pin, are_there=False)
        wanted = list(dict.fromkeys(keys))
        if len(wanted) > MAX_KEYS:
            raise QueryError(
                f"The query has {len(wanted):,} keys, but at most {MAX_KEYS:,} are allowed.",
                next_step="Split the keys over several queries.",
            )
        keys_by_worker: dict[int, list[str]] = defaultdict(list)
        for key in wanted:
            keys_by_worker[
                0 if pin.store.kind == "global" else owner(key, len(pin.workers))
            ].append(key)
        if pin.store.keeps_headers:
            return await self._multi_get_with_headers(pin, wanted, keys_by_worker)
        queries: list[tuple[WorkerInfo, Query[dict[str, msgspec.Raw]]]] = []
        for number, worker_keys in sorted(keys_by_worker.items()):
            queries.append((pin.workers[number], Values(*pin.query_fields, worker_keys)))
        results, statuses = await self._query_each(pin, queries)
        values: dict[str, msgspec.Raw] = {}
        for worker_values in results:
            values.update(worker_values)
        entries: list[Entry] = []
        for key in wanted:
            if key in values:
                entries.append(Entry(key, NO_WINDOW, NO_WINDOW, values[key]))
        return Answer(pin, statuses, entries)

    async def _multi_get_with_headers(
        self, pin: Pin, wanted: Sequence[str], keys_by_worker: Mapping[int, list[str]]
    ) -> Answer:
        queries: list[tuple[WorkerInfo, Query[list[Entry]]]] = []
        for number, worker_keys in sorted(keys_by_worker.items()):
            queries.append((pin.workers[number], WithHeaders(*pin.query_fields, worker_keys)))
        results, statuses = await self._query_each(pin, queries)
        entries = {entry.key: entry for entry in chain.from_iterable(results)}
        return Answer(pin, statuses, [entries[key] for key in wanted if key in entries])

    async def windows(
        self,
        pin: Pin,
        key: str,
        start: int | None = None,
        end: int | None = None,
    ) -> Answer:
        """Return the sorted windows of one key that start between two times (epoch ms, included).

        Raises QueryError if there are more than 100,000 entries.
        """
        _require_windows(pin, are_there=True)
        within = RowRange.of_key(key, start, end)
        entries, status = await self._query_owner(
            pin,
            key,
            Scan(*pin.query_fields, within, None, MAX_ENTRIES + 1, pin.store.keeps_headers),
        )
        if len(entries) > MAX_ENTRIES:
            raise QueryError(
                f"Key {key[:100]!r} has more than {MAX_ENTRIES:,} windows.",
                next_step="Select windows by their start, with `from` and `to`.",
            )
        await self.catalogue.require_kept(pin.snapshot.ref, pin.snapshot.batch)
        return Answer(pin, (status,), entries)

    async def scan(
        self,
        pin: Pin,
        within: RowRange = EVERYTHING,
        *,
        after: EntryId | None = None,
        limit: int = 1_000,
        workers: Iterable[WorkerInfo] | None = None,
    ) -> Page:
        """Return a page of entries sorted by key and window, from all workers or from `workers`."""
        _require_times(pin, within)
        # Request one extra entry to find out whether there is another page.
        pages, statuses = await self._query_all(
            pin,
            Scan(*pin.query_fields, within, after, limit + 1, pin.store.keeps_headers),
            workers,
        )
        if sum(map(len, pages)) > MANY:
            entries = await asyncio.to_thread(_merge_entries, pages, limit + 1)
        else:
            entries = _merge_entries(pages, limit + 1)
        next_after = entries[limit - 1].id if len(entries) > limit else None
        return Page(pin, statuses, entries[:limit], next_after)

    async def all(
        self,
        pin: Pin,
        within: RowRange = EVERYTHING,
        *,
        workers: Iterable[WorkerInfo] | None = None,
    ) -> Answer:
        """Return all entries. Raises QueryError if there are more than 100,000 entries."""
        page = await self.scan(pin, within, limit=MAX_ENTRIES, workers=workers)
        if page.after is not None:
            raise QueryError(
                f"Store {pin.store.name!r} holds more than {MAX_ENTRIES:,} entries.",
                next_step=(
                    "Read a part of it, by keys or times, or page by page: "
                    "GET /sluice/v1/stores/{store}."
                ),
            )
        return page

    async def count(self, pin: Pin, within: RowRange = EVERYTHING) -> Counted:
        """Return the number of entries.

        The count of a whole store is cached until the next snapshot.
        """
        _require_times(pin, within)
        store = (pin.store.pipeline, pin.store.name)
        cached = self._counts.get(store)
        # Counting a store takes as long as scanning it. At one snapshot, the count never changes.
        if within == EVERYTHING and cached is not None and cached[0] == pin.name:
            ok = tuple(WorkerStatus(worker.number, "ok") for worker in pin.workers)
            return Counted(pin, ok, cached[1])
        counts, statuses = await self._query_all(pin, Count(*pin.query_fields, within))
        counted = Counted(pin, statuses, sum(counts))
        if within == EVERYTHING and not counted.partial:
            self._counts[store] = pin.name, counted.entries
        return counted

    async def combine(
        self,
        pin: Pin,
        field: str = "",
        group_by: str = "_all",
        *,
        within: RowRange = EVERYTHING,
        order: Order = "group",
        limit: int | None = None,
    ) -> Combined:
        """Return each group's number of entries, and the sum, minimum and maximum of `field`.

        `field` and `group_by` are paths in the value; `group_by` may also be `_key`, `_start` or
        `_all`.
        """
        _require_times(pin, within)
        if group_by == "_start":
            _require_windows(
                pin, are_there=True, next_step="Group by another field, by _key, or by _all."
            )
        shares, statuses = await self._query_all(
            pin, Aggregate(*pin.query_fields, within, field, group_by)
        )
        groups = await asyncio.to_thread(_merge_groups, shares, field, group_by, order, limit)
        return Combined(pin, statuses, groups)

    async def top(
        self,
        pin: Pin,
        field: str = "",
        limit: int = 10,
        *,
        within: RowRange = EVERYTHING,
        smallest: bool = False,
    ) -> Answer:
        """Return the entries with the largest numbers in `field`, largest first.

        With `smallest`, return those with the smallest numbers, smallest first.
        """
        _require_times(pin, within)
        results, statuses = await self._query_all(
            pin,
            Top(*pin.query_fields, within, field, limit, smallest, pin.store.keeps_headers),
        )
        entries = list(chain.from_iterable(results))
        return Answer(pin, statuses, largest(entries, field, limit, smallest=smallest))

    async def changed_keys(self, pin: Pin, since: int, limit: int = MAX_KEYS) -> Changes:
        """Return the keys and windows changed by the batches after `since`, up to the snapshot.

        Raises Gone if retention has removed the snapshot `since`. In this case, rows that later
        batches deleted may be gone, too, so their keys would be missing from the result.
        """
        results, statuses = await self._query_all(pin, Changed(*pin.query_fields, since, limit + 1))
        await self.catalogue.require_kept(pin.snapshot.ref, since)
        keys = sorted(chain.from_iterable(results))
        return Changes(pin, statuses, keys[:limit], len(keys) > limit)

    async def statuses(self, workers: Iterable[WorkerInfo]) -> tuple[WorkerStatus, ...]:
        """Return whether each worker is available."""
        results = await asyncio.gather(*(self.workers.execute(info, _PROBE) for info in workers))
        return tuple(status for _, status in results)

    async def _query_owner(self, pin: Pin, key: str, query: Query[T]) -> tuple[T, WorkerStatus]:
        # Every worker has the whole global table, so any worker can answer.
        if pin.store.kind == "global":
            result, statuses = await self._query_any(pin.workers, query)
        else:
            result, status = await self.workers.execute(
                pin.workers[owner(key, len(pin.workers))], query
            )
            statuses = (status,)
        if not result:
            failed = statuses[0]
            raise StateError(
                f"Worker {failed.number}, which owns the key, is unavailable. {failed.reason}"
            )
        return result[0], statuses[0]

    async def _query_all(
        self, pin: Pin, query: Query[T], workers: Iterable[WorkerInfo] | None = None
    ) -> tuple[list[T], tuple[WorkerStatus, ...]]:
        if workers is None:
            workers = pin.workers
        return await self._query_each(pin, [(info, query) for info in workers])

    async def _query_each(
        self, pin: Pin, queries: Sequence[tuple[WorkerInfo, Query[T]]]
    ) -> tuple[list[T], tuple[WorkerStatus, ...]]:
        async with self._gate:
            if pin.store.kind == "global" and queries:
                results, statuses = await self._query_any(pin.workers, queries[0][1])
            else:
                outcomes = await asyncio.gather(
                    *(self.workers.execute(info, query) for info, query in queries)
                )
                results = []
                for result, _ in outcomes:
                    results += result
                statuses = tuple(status for _, status in outcomes)
        # Retention may have removed rows of the snapshot while the workers were queried.
        await self.catalogue.require_kept(pin.snapshot.ref, pin.snapshot.batch)
        return results, statuses

    async def _query_any(
        self, workers: Iterable[WorkerInfo], query: Query[T]
    ) -> tuple[list[T], tuple[WorkerStatus, ...]]:
        """Query the workers one after the other, then the standbys, until one is available.

        This is correct only for a global table, which is the same on every worker.
        """
        unavailable: list[tuple[WorkerInfo, WorkerStatus]] = []
        for info in sorted(workers, key=lambda info: not self.workers.is_here(info)):
            result, status = await self.workers.execute_at(info, query)
            if result:
                return result, (status,)
            unavailable.append((info, status))
        statuses = []
        for info, before in unavailable:
            result, status = await self.workers.execute_at_standby(info, query, before)
            if result:
                return result, (status,)
            statuses.append(status)
        return [], tuple(statuses)


def _require_times(pin: Pin, within: RowRange) -> None:
    if (within.start_from, within.start_to) != (None, None):
        _require_windows(pin, are_there=True)


def _require_windows(
    pin: Pin, *, are_there: bool, next_step: str = "Leave `from` and `to` out."
) -> None:
    if (pin.store.kind == "window") == are_there:
        return
    if are_there:
        raise QueryError(f"Store {pin.store.name!r} has no windows.", next_step=next_step)
    raise QueryError(
        f"Store {pin.store.name!r} has windows.", next_step="Query the windows of the key."
    )


def _merge_groups(
    shares: list[list[Group]],
    field: str,
    group_by: str,
    order: Order,
    limit: int | None,
) -> list[Group]:
    aggregates = Aggregates(field, group_by)
    for groups in shares:
        aggregates.merge(groups)
    return aggregates.groups(order, limit)


def _merge_entries(pages: list[list[Entry]], limit: int) -> list[Entry]:
    # Each page is sorted already, and Python's sort is fast if a list consists of sorted parts.
    return sorted(chain.from_iterable(pages), key=lambda entry: entry.id)[:limit]
