"""The asynchronous client."""

from __future__ import annotations

import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, Self, TypeVar

import httpx
from typing_extensions import override

from sluice.client.queries import Connection, Queries, Query, error_of, transport_errors

T = TypeVar("T")


class AsyncClient(Queries):
    """Like `Client`, with coroutines as methods."""

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
        self._connection = Connection(address, token, user, password)
        self._http = httpx.AsyncClient(timeout=timeout, verify=verify)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        await self._http.aclose()

    @override
    async def _send(self, query: Query[T]) -> T:
        connection = self._connection
        with transport_errors():
            response = await self._http.get(**connection.request(query))
            # The server refuses the request if there is no token yet, or if the token has expired.
            if response.status_code == httpx.codes.UNAUTHORIZED and connection.can_log_in:
                connection.store_token(await self._http.post(**connection.log_in_request()))
                response = await self._http.get(**connection.request(query))
        return query.decode(response)

    @override
    @asynccontextmanager
    async def _lines(
        self,
        query: Query[Any],
        headers: dict[str, str],
    ) -> AsyncIterator[AsyncIterator[str]]:
        request = self._connection.request(query)
        request["headers"] = request["headers"] | headers
        with transport_errors():
            async with self._http.stream("GET", **request, timeout=None) as response:
                if response.status_code != httpx.codes.OK:
                    # The body of a streamed response must be read explicitly.
                    await response.aread()
                    raise error_of(response)
                yield response.aiter_lines()
