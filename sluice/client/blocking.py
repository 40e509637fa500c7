"""The client that waits."""

from __future__ import annotations

import ssl
from collections.abc import Iterable, Iterator
from typing import Self, TypeVar

import httpx
from typing_extensions import Unpack

from sluice.client import asks
from sluice.client.answers import Change, Count, Entries, Entry, Groups, Part, ReadPoint, Store
from sluice.client.asks import Ask, Caller, Events, error_of, unreachable

T = TypeVar("T")


class Client(Caller):
    """Asks the REST view at `address`, with a token or with a log-in of Airflow.

    An error is raised as what it is in the server: NotFound, Gone, NotReached, Busy, StateError, QueryError; Refused
    without a log-in. The client may be used by several threads.
    """

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
        self._client = httpx.Client(timeout=timeout, verify=verify)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the connections."""
        self._client.close()

    def stores(self, *, entries: bool = False) -> list[Store]:
        """All stores you may read; with `entries` they are counted."""
        return self._run(asks.stores_of(entries))

    def get(self, store: str, key: str, **moment: Unpack[ReadPoint]) -> Entries:
        """The value of one key; of a store with windows the key's windows. NotFound if there is none."""
        return self._run(asks.key_of(store, key, moment))

    def multi_get(self, store: str, keys: Iterable[str], **moment: Unpack[ReadPoint]) -> Entries:
        """The values of up to 1,000 keys, in the order asked; keys without one are left out."""
        return self._run(asks.keys_of(store, keys, moment))

    def windows(self, store: str, key: str, **part: Unpack[Part]) -> Entries:
        """The windows of a key that start from `start` to `end`, in order."""
        return self._run(asks.key_of(store, key, part))

    def page(
        self,
        store: str,
        *,
        limit: int = 100,
        cursor: str = "",
        worker: int | None = None,
        **part: Unpack[Part],
    ) -> Entries:
        """A page of a part of a store, in order; `worker` alone, or all."""
        return self._run(asks.page_of(store, limit, cursor, worker, part))

    def range(
        self, store: str, *, limit: int = 1_000, worker: int | None = None, **part: Unpack[Part]
    ) -> Iterator[Entry]:
        """All entries of a part of a store, in order, `limit` at a time, all of one snapshot."""
        cursor = ""
        while True:
            found = self._run(asks.page_of(store, limit, cursor, worker, part))
            yield from found.entries
            cursor = found.cursor or ""
            if not cursor:
                return

    def count(self, store: str, **part: Unpack[Part]) -> Count:
        """How many entries there are."""
        return self._run(asks.count_of(store, part))

    def top(
        self, store: str, field: str = "", *, limit: int = 10, smallest: bool = False, **part: Unpack[Part]
    ) -> Entries:
        """The entries with the largest numbers in a field, or with the smallest."""
        return self._run(asks.top_of(store, part, field=field, limit=limit, smallest=smallest))

    def combine(
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
        return self._run(asks.figures_of(store, part, **more))

    def changes(self, store: str, *, pipeline: str | None = None, since: str | None = None) -> Iterator[Change]:
        """Every new snapshot, as it comes; begins with the newest, or with what came after the snapshot `since`. Never ends."""
        self._run(asks.stores_of())  # logs in, if need be
        request = self._request(asks.changes_of(store, pipeline), since)
        with self._client.stream("GET", **request, timeout=None) as answer:
            if answer.status_code != httpx.codes.OK:
                answer.read()
                raise error_of(answer)
            reader = Events()
            for line in answer.iter_lines():
                yield from reader.read(line)

    def _run(self, asked: Ask[T]) -> T:
        try:
            answer = self._client.get(**self._request(asked))
            if answer.status_code == httpx.codes.UNAUTHORIZED and self._can_log_in:
                self._logged_in(self._client.post(**self._log_in_request()))
                answer = self._client.get(**self._request(asked))
        except httpx.TransportError as error:
            raise unreachable(error) from error
        return asked.read(answer)
