"""A worker on another host: calls the worker's state server, which executes the queries."""

from __future__ import annotations

import asyncio
from itertools import chain
from typing import Any, TypeVar, cast

import msgspec

from sluice.errors import Refused, StateError
from sluice.state.queries.worker_queries import RESULTS, Query, Value, Values
from sluice.state.remote.connection import (
    NotAStateServer,
    response_content,
    server_token,
    tls_context,
)
from sluice.state.remote.http_client import HttpClient

T = TypeVar("T")

_CALLS_AT_ONCE = 1
"""The largest number of concurrent calls for single keys to one worker.

Keys that are requested during these calls share the next call."""


class RemoteWorker:
    """A worker at a state server's URL.

    The server executes queries itself and never calls another server.
    """

    def __init__(self, address: str, token: str = "") -> None:
        self._address = address
        self._token = token
        """The token of the state server; if empty, the token from the settings is used."""
        self._client: HttpClient | None = None
        self._waiting: dict[
            tuple[int, int, int], dict[str, list[asyncio.Future[msgspec.Raw | None]]]
        ] = {}
        """Group, store column and batch of a query → the keys that wait for the next call. Each key
        has a future for each caller that waits for the key's value."""
        self._calls: set[asyncio.Task[None]] = set()

    async def execute(self, query: Query[T]) -> T:
        """Return the query's result.

        Raise StateError if the server is unreachable or cannot read the shard.
        """
        if isinstance(query, Value):
            return cast("T", await self._value(query))
        return await self._call(query)

    async def close(self) -> None:
        if self._client is not None:
            await self._client.close()

    async def _value(self, query: Value) -> msgspec.Raw | None:
        """Return the value of one key, fetched in one call together with other waiting keys."""
        store = query.group_id, query.store_column, query.as_of
        # Each caller has its own future, because a caller that is cancelled cancels its future.
        future: asyncio.Future[msgspec.Raw | None] = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(store, {}).setdefault(query.key, []).append(future)
        if len(self._calls) < _CALLS_AT_ONCE:
            self._start_call()
        return await future

    def _start_call(self) -> None:
        call = asyncio.get_running_loop().create_task(self._look_up_waiting_keys())
        self._calls.add(call)
        call.add_done_callback(self._end_call)

    def _end_call(self, call: asyncio.Task[None]) -> None:
        self._calls.discard(call)
        if self._waiting and len(self._calls) < _CALLS_AT_ONCE:
            self._start_call()

    async def _look_up_waiting_keys(self) -> None:
        """Look up all waiting keys of the store whose oldest key has waited longest."""
        if not self._waiting:
            return
        store = next(iter(self._waiting))
        callers = self._waiting.pop(store)
        try:
            values = await self._call(Values(*store, list(callers)))
        except Exception as error:
            for future in chain.from_iterable(callers.values()):
                _fail(future, error)
        else:
            for key, futures in callers.items():
                for future in futures:
                    if not future.done():
                        future.set_result(values.get(key))

    async def _call(self, query: Query[T]) -> T:
        if self._client is None:
            self._client = HttpClient(self._address, self._token or server_token(), tls_context())
        try:
            status, content = await self._client.post("/query", msgspec.json.encode(query))
        except OSError as error:
            raise StateError(
                f"The worker's state server cannot be reached ({type(error).__name__})."
            ) from None
        try:
            result: Any = RESULTS[type(query).__name__].decode(response_content(status, content))
            if isinstance(query, Values) and not result.keys() <= set(query.keys):
                # The response has values of keys that the query did not ask for.
                raise NotAStateServer
            return cast("T", result)
        except Refused as error:
            # The server refuses the query if another server has the worker.
            raise StateError(error.detail) from None
        except (NotAStateServer, msgspec.DecodeError, RecursionError):
            raise StateError("The worker's state server returned an unexpected response.") from None


def _fail(future: asyncio.Future[Any], error: Exception) -> None:
    if not future.done():
        future.set_exception(error)
        # Asyncio logs the error of a future if nobody retrieves the error. The caller may be gone,
        # so the error is retrieved here.
        future.exception()
