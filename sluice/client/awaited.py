"""The client that is awaited."""

from __future__ import annotations

import ssl
from collections.abc import AsyncIterator, Iterable
from typing import Self, TypeVar

import httpx
from typing_extensions import Unpack

from sluice.client import asks
from sluice.client.answers import Change, Count, Entries, Entry, Groups, Part, ReadPoint, Store
from sluice.client.asks import Ask, Caller, Events, error_of, unreachable

T = TypeVar("T")


class AsyncClient(Caller):
    """The same as `Client`, its methods to be awaited."""

    def __init__(
        self,
        address: str,
        *,
        token: str | None = None,
        user: str | None = None,
        password: str | None = None,
        timeout: float = 30.0,
        verify: ssl.SSLContext | bool = True,
    ) -> None:
        super().__init__(address, token, user, password)
        self._client = httpx.AsyncClient(timeout=timeout, verify=verify)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Close the connections."""
        await self._client.aclose()

    async def stores(self, *, entries: bool = False) -> list[Store]:
        """All stores you may read; with `entries` they are counted."""
        return await self._run(asks.stores_of(entries))

    async def get(self, store: str, key: str, **moment: Unpack[ReadPoint]) -> Entries:
        """The value of one key; of a store with windows the key's windows. NotFound if there is none."""
        return await self._run(asks.key_of(store, key, moment))

    async def multi_get(self, store: str, keys: Iterable[str], **moment: Unpack[ReadPoint]) -> Entries:
        """The values of up to 1,000 keys, in the order asked; keys without one are left out."""
        return await self._run(asks.keys_of(store, keys, moment))

    async def windows(self, store: str, key: str, **part: Unpack[Part]) -> Entries:
        """The windows of a key that start from `start` to `end`, in order."""
        return await self._run(asks.key_of(store, key, part))

    async def page(
        self,
        store: str,
        *,
        limit: int = 100,
        cursor: str = "",
        worker: int | None = None,
        **part: Unpack[Part],
    ) -> Entries:
        """A page of a part of a store, in order; `worker` alone, or all."""
        return await self._run(asks.page_of(store, limit, cursor, worker, part))

    async def range(
        self, store: str, *, limit: int = 1_000, worker: int | None = None, **part: Unpack[Part]
    ) -> AsyncIterator[Entry]:
        """All entries of a part of a store, in order, `limit` at a time, all of one snapshot."""
        cursor = ""
        while True:
            found = await self._run(asks.page_of(store, limit, cursor, worker, part))
            for entry in found.entries:
                yield entry
            cursor = found.cursor or ""
            if not cursor:
                return

    async def count(self, store: str, **part: Unpack[Part]) -> Count:
        """How many entries there are."""
        return await self._run(asks.count_of(store, part))

    async def top(
        self, store: str, field: str = "", *, limit: int = 10, smallest: bool = False, **part: Unpack[Part]
    ) -> Entries:
        """The entries with the largest numbers in a field, or with the smallest."""
        return await self._run(asks.top_of(store, part, field=field, limit=limit, smallest=smallest))

    async def combine(
        self,
        store: str,
        field: str = "",
        *,
        group_by: str = "_all",
        order: str = "group",
        limit: int = 1_000,
        **part: Unpack[Part],
    ) -> Groups:
        """Number of entries, and sum, least and greatest of a field, by group."""
        more = {"field": field, "group_by": group_by, "order": order, "limit": limit}
        return await self._run(asks.figures_of(store, part, **more))

    async def changes(
        self, store: str, *, pipeline: str | None = None, since: str | None = None
    ) -> AsyncIterator[Change]:
        """Every new snapshot, as it comes; begins with the newest, or with what came after the snapshot `since`. Never ends."""
        await self._run(asks.stores_of())  # logs in, if need be
        request = self._request(asks.changes_of(store, pipeline), since)
        async with self._client.stream("GET", **request, timeout=None) as answer:
            if answer.status_code != httpx.codes.OK:
                await answer.aread()
                raise error_of(answer)
            reader = Events()
            async for line in answer.aiter_lines():
                for change in reader.read(line):
                    yield change

    async def _run(self, asked: Ask[T]) -> T:
        try:
            answer = await self._client.get(**self._request(asked))
            if answer.status_code == httpx.codes.UNAUTHORIZED and self._can_log_in:
                self._logged_in(await self._client.post(**self._log_in_request()))
                answer = await self._client.get(**self._request(asked))
        except httpx.TransportError as error:
            raise unreachable(error) from error
        return asked.read(answer)
