"""Custom routes: a file `NAME_routes.py` defines HTTP routes over a pipeline's stores.

    routes = Routes("pages")

    @routes.get("/pages/{page}/views")
    async def views(stores: Stores, page: str) -> Views:
        ...

The routes are served under `/v1`. Like all routes, they require a log-in and the permission to read
the pipeline's DAG. They return problem documents for errors, send ETags, and appear in the OpenAPI
description.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable, Coroutine, Iterable
from typing import Any, Literal, TypeVar, cast, get_type_hints

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from sluice.answers import WorkerStatus
from sluice.api.http.replies import JsonResponse, Payload, encoded, provenance, reply
from sluice.api.http.route import PATH_PARAMETER, Route
from sluice.api.routes.access import Access, access_of
from sluice.api.routes.query_audit import note_query
from sluice.errors import NotFound, NotReady, RouteError, TooSlow, sentence
from sluice.query import Entry, Group, Pin
from sluice.query.catalogue import PipelineSnapshot
from sluice.query.reader import Reader
from sluice.query.time_texts import parse_time
from sluice.state.model import WorkerInfo
from sluice.state.queries.aggregates import Order
from sluice.state.shard.ranges import RowRange
from sluice.support.time_limit import finish_within
from sluice.values.key_owners import owner
from sluice.values.keys import lookup_key

T = TypeVar("T")

ROUTE_SECONDS = 10.0
"""Time limit for a request to a route."""
_PROBLEMS = (400, 401, 404, 410, 422, 429, 503)

Time = str | int | None
"""An ISO 8601 date and time, or epoch milliseconds. A time without a zone is in UTC."""


class Address(msgspec.Struct, frozen=True):
    """The address of a worker's server."""

    host: str
    port: int


class Stores:
    """The stores of a pipeline, in the newest snapshot at the time of the request."""

    def __init__(self, access: Access, pipeline: str, snapshot: PipelineSnapshot | None) -> None:
        self.snapshots = [] if snapshot is None else [snapshot]
        """The newest snapshot as the only element; empty if nothing has been published yet."""
        self.statuses: list[WorkerStatus] = []
        self._access = access
        self._pipeline = pipeline

    async def get(self, store: str, key: Any) -> Entry | None:
        """Return the entry of a key, or None.

        A key that is not a str, such as a date, is first turned into the text that
        `sluice.key_text` returns.
        """
        text = lookup_key(key)
        entry, status = await self._reader.entry(await self._pin(store), text)
        self.statuses.append(status)
        return entry

    async def multi_get(self, store: str, keys: Iterable[Any]) -> list[Entry]:
        """Return the entries of up to 1,000 keys, in the order of `keys`.

        Keys without a value are left out.
        """
        answer = await self._reader.multi_get(await self._pin(store), map(lookup_key, keys))
        return self._entries(answer.entries, answer.workers)

    async def windows(
        self,
        store: str,
        key: Any,
        start: Time = None,
        end: Time = None,
    ) -> list[Entry]:
        """Return the windows of a key that start between `start` and `end` (included), in order."""
        answer = await self._reader.windows(
            await self._pin(store), lookup_key(key), _ms("start", start), _ms("end", end)
        )
        return self._entries(answer.entries, answer.workers)

    async def all(
        self,
        store: str,
        prefix: str = "",
        *,
        start: Time = None,
        end: Time = None,
        here: bool = False,
    ) -> list[Entry]:
        """Return all entries in order, up to 100,000.

        With `here=True`, return only the entries of shards that this process opens.
        """
        pin = await self._pin(store)
        workers: list[WorkerInfo] | None = None
        if here:
            workers = [worker for worker in pin.workers if self._reader.workers.is_here(worker)]
        answer = await self._reader.all(pin, _range(prefix, start, end), workers=workers)
        return self._entries(answer.entries, answer.workers)

    async def count(
        self,
        store: str,
        prefix: str = "",
        *,
        start: Time = None,
        end: Time = None,
    ) -> int:
        counted = await self._reader.count(await self._pin(store), _range(prefix, start, end))
        self.statuses += counted.workers
        return counted.entries

    async def top(
        self,
        store: str,
        field: str = "",
        limit: int = 10,
        *,
        smallest: bool = False,
    ) -> list[Entry]:
        """Return the entries with the largest numbers in a field, or with the smallest."""
        answer = await self._reader.top(await self._pin(store), field, limit, smallest=smallest)
        return self._entries(answer.entries, answer.workers)

    async def combine(
        self,
        store: str,
        field: str = "",
        group_by: str = "_all",
        *,
        order: Order = "group",
        limit: int = 1_000,
    ) -> list[Group]:
        """Return each group's number of entries, and the sum, minimum and maximum of a field."""
        combined = await self._reader.combine(
            await self._pin(store), field, group_by, order=order, limit=limit
        )
        self.statuses += combined.workers
        return combined.groups

    async def workers(self, store: str) -> list[Address]:
        """Return the address of each worker of a store, sorted by worker number."""
        pin = await self._pin(store)
        return [self._address(worker) for worker in pin.workers]

    async def owner(self, store: str, key: Any) -> Address:
        """Return the address of the worker that owns a key."""
        workers = (await self._pin(store)).workers
        return self._address(workers[owner(lookup_key(key), len(workers))])

    async def cached(self, compute: Callable[[], Awaitable[T]]) -> T:
        """Call `compute`, and encode its result.

        The route must return what `cached` returns, unchanged.

        Concurrent requests with the same path and query string share one call of `compute`. The
        result is cached for one second.
        """

        async def payload() -> Payload:
            before = len(self.statuses)
            # Encoding a large answer must not keep the event loop waiting.
            content = await asyncio.to_thread(encoded, await compute())
            workers = tuple(self.statuses[before:])
            del self.statuses[before:]
            return Payload("", content, workers)

        cached = await self._access.cached(self.snapshots, payload)
        self.statuses += cached.workers
        return cast("T", msgspec.Raw(cached.content))

    @property
    def _reader(self) -> Reader:
        return self._access.reader

    def _entries(self, entries: list[Entry], workers: tuple[WorkerStatus, ...]) -> list[Entry]:
        self.statuses += workers
        return entries

    async def _pin(self, store: str) -> Pin:
        for snapshot in self.snapshots:
            if snapshot.holds(store):
                pin = snapshot.pin(store)
                note_query(self._access.request, self._access.user, pin)
                return pin
        infos = await self._reader.catalogue.stores_named(store)
        if any(info.pipeline == self._pipeline for info in infos):
            raise NotReady(
                f"Store {store!r} of pipeline {self._pipeline!r} has not been published yet."
            )
        raise NotFound(
            f"There is no store {store!r}.", next_step="GET /sluice/v1/stores lists all stores."
        )

    def _address(self, worker: WorkerInfo) -> Address:
        """Return the address of the worker's state server, or of this server if it has none.

        The Host header does not give this server's address, because the client chooses the header.
        """
        if worker.port:
            return Address(worker.host, worker.port)
        return Address(*self._access.request.scope["server"])


Function = TypeVar("Function", bound=Callable[..., Coroutine[Any, Any, Any]])


class Routes:
    """Your own routes, which read the stores of a pipeline.

    Only users who may read the pipeline's DAG can call these routes.
    """

    def __init__(self, pipeline: str) -> None:
        self.pipeline = pipeline
        self.routes: list[Route] = []

    def get(self, path: str, *, etag: bool = True) -> Callable[[Function], Function]:
        """Register an async function for GET requests to a path such as `/pages/{page}/views`.

        The function's first parameter is `Stores`. The function's other parameters have the names
        of the parameters in the path and in the query string, and type annotations that msgspec
        supports. Parameters with a default are optional. The result is sent as JSON. In a path,
        `{name:path}` also matches a text with slashes. Set `etag=False` if the answer depends on
        anything other than the stores.
        """

        def register(function: Function) -> Function:
            self.routes.append(_route(self.pipeline, path, function, etag))
            return function

        return register


def _route(
    pipeline: str,
    path: str,
    function: Callable[..., Coroutine[Any, Any, Any]],
    has_etag: bool,
) -> Route:
    name = f"{pipeline}.{function.__name__}"
    if not inspect.iscoroutinefunction(function):
        raise RouteError(f"{function.__name__} is not async.", next_step="Write: async def.")
    try:
        hints = get_type_hints(function, include_extras=True)
        _, *arguments = inspect.signature(function).parameters.values()
        fields: list[Any] = []
        for argument in arguments:
            field = [argument.name, hints[argument.name]]
            if argument.default is not argument.empty:
                field.append(argument.default)
            fields.append(tuple(field))
        parameters = msgspec.defstruct(
            f"{function.__name__}_parameters", fields, frozen=True, kw_only=True
        )
        answers = (hints["return"],)
        # For a type that msgspec does not support, raise an error now, and not at the first
        # request.
        msgspec.json.schema_components([parameters, *answers])
    except KeyError as error:
        name_without = error.args[0]
        annotation = f"{name_without}: TYPE"
        if name_without == "return":
            annotation = "-> TYPE"
        raise RouteError(
            f"{function.__name__} does not annotate {name_without}.",
            next_step=f"Write {annotation}.",
        ) from None
    except (NameError, TypeError, ValueError) as error:
        raise RouteError(
            f"The types of {function.__name__} cannot be read: {sentence(error)}",
            next_step="Use types that msgspec supports, defined at the top of the file.",
        ) from None
    in_path = {parameter[1] for parameter in PATH_PARAMETER.finditer(path)}
    if not path.startswith("/") or "{" in PATH_PARAMETER.sub("", path):
        raise RouteError(
            f"{path!r} is not a valid path.", next_step="Write for example /pages/{page}/views."
        )
    missing = sorted(in_path.difference(parameters.__struct_fields__))
    if missing:
        raise RouteError(
            f"{function.__name__} lacks the parameters {', '.join(missing)} of the path {path}.",
            next_step="Add them to the function, with their types.",
        )

    async def handler(request: Request, query: msgspec.Struct) -> Response:
        access = await access_of(request)
        stores = Stores(access, pipeline, await access.reader.catalogue.newest(pipeline))
        if has_etag and stores.snapshots:
            access.require_change(stores.snapshots)
        try:
            answer = await finish_within(
                ROUTE_SECONDS, function(stores, **msgspec.structs.asdict(query)), _too_slow
            )
        except SystemExit as error:
            # SystemExit would end the whole server.
            raise RuntimeError("The route called sys.exit.") from error
        if not has_etag or not stores.snapshots:
            return reply(answer)
        return JsonResponse(encoded(answer), provenance(stores.snapshots, stores.statuses))

    return Route(
        path=path,
        tag=pipeline,
        handler=handler,
        parameters=parameters,
        answers=answers,
        problems=_PROBLEMS,
        has_etag=has_etag,
        name=name,
        description=inspect.getdoc(function) or "",
    )


def _too_slow() -> TooSlow:
    return TooSlow(f"The route took longer than {ROUTE_SECONDS:g} s.")


def _range(prefix: str, start: Time, end: Time) -> RowRange:
    return RowRange(prefix=prefix, start_from=_ms("start", start), start_to=_ms("end", end))


def _ms(name: Literal["start", "end"], time: Time) -> int | None:
    return time if isinstance(time, int) else parse_time(name, time)
