"""The blocking client, made from the asynchronous queries.

Its transport blocks, so the coroutines of `Queries` never suspend. A single step therefore runs
each coroutine to completion, in the caller's thread and without an event loop.
"""

from __future__ import annotations

import inspect
import ssl
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Coroutine, Iterator
from contextlib import asynccontextmanager
from functools import wraps
from typing import Any, Concatenate, ParamSpec, Self, TypeVar, cast

import httpx
from typing_extensions import override

from sluice.client.queries import Connection, Queries, Query, error_of, transport_errors

T = TypeVar("T")
P = ParamSpec("P")


def _finish(coroutine: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine to its end. The coroutine must never suspend."""
    try:
        coroutine.send(None)
    except StopIteration as end:
        return cast("T", end.value)
    raise RuntimeError("A blocking query was suspended.")


def _blocking(
    method: Callable[Concatenate[Any, P], Coroutine[Any, Any, T]],
) -> Callable[Concatenate[Client, P], T]:
    @wraps(method)
    def call(client: Client, /, *args: P.args, **kwargs: P.kwargs) -> T:
        return _finish(method(client._queries, *args, **kwargs))

    return _not_async(call)


def _iterating(
    method: Callable[Concatenate[Any, P], AsyncIterator[T]],
) -> Callable[Concatenate[Client, P], Iterator[T]]:
    @wraps(method)
    def iterate(client: Client, /, *args: P.args, **kwargs: P.kwargs) -> Iterator[T]:
        items = cast("AsyncGenerator[T, None]", method(client._queries, *args, **kwargs))
        try:
            while True:
                try:
                    item = _finish(items.__anext__())
                except StopAsyncIteration:
                    return
                yield item
        finally:
            # If the caller stops early, this closes the connection of the stream.
            _finish(items.aclose())

    return _not_async(iterate)


Function = TypeVar("Function", bound=Callable[..., Any])


def _not_async(function: Function) -> Function:
    """Replace AsyncIterator by Iterator in the signature that `wraps` copied from a coroutine."""
    signature = inspect.signature(function)
    returns = str(signature.return_annotation).replace("AsyncIterator", "Iterator")
    function.__signature__ = signature.replace(return_annotation=returns)  # type: ignore[attr-defined]
    return function


class Client:
    """Queries the REST API at `address`, either with a token or as a user of Airflow.

    Methods raise the errors that the server responds with: NotFound, Gone, NotReached, Busy,
    StateError and QueryError. If the log-in is not valid, methods raise Refused. Several
    threads may share a client.
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
        http = httpx.Client(timeout=timeout, verify=verify)
        self._queries = _BlockingQueries(Connection(address, token, user, password), http)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self._queries.http.close()

    overview = _blocking(Queries.overview)
    batches = _blocking(Queries.batches)
    runs = _blocking(Queries.runs)
    activity = _blocking(Queries.activity)
    generations = _blocking(Queries.generations)
    stores = _blocking(Queries.stores)
    get = _blocking(Queries.get)
    multi_get = _blocking(Queries.multi_get)
    windows = _blocking(Queries.windows)
    page = _blocking(Queries.page)
    range = _iterating(Queries.range)
    count = _blocking(Queries.count)
    top = _blocking(Queries.top)
    combine = _blocking(Queries.combine)
    diff = _blocking(Queries.diff)
    changes = _iterating(Queries.changes)


class _BlockingQueries(Queries):
    """Queries over a transport that blocks."""

    def __init__(self, connection: Connection, http: httpx.Client) -> None:
        self.http = http
        self._connection = connection

    @override
    async def _send(self, query: Query[T]) -> T:
        connection = self._connection
        with transport_errors():
            response = self.http.get(**connection.request(query))
            # The server refuses the request if there is no token yet, or if the token has expired.
            if response.status_code == httpx.codes.UNAUTHORIZED and connection.can_log_in:
                connection.store_token(self.http.post(**connection.log_in_request()))
                response = self.http.get(**connection.request(query))
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
        with transport_errors(), self.http.stream("GET", **request, timeout=None) as response:
            if response.status_code != httpx.codes.OK:
                # The body of a streamed response must be read explicitly.
                response.read()
                raise error_of(response)
            yield _each(response.iter_lines())


async def _each(lines: Iterator[str]) -> AsyncIterator[str]:
    for line in lines:
        yield line
