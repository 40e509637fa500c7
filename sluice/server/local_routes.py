"""A state server's HTTP interface, `/local`: queries, and the writes of runs and moves.

Its client `state.remote.remote_shard` calls the methods of `Shard`: see `state.remote.shard_calls`.
Its client `state.remote.remote_worker` calls `query`.
"""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Awaitable, Callable
from http import HTTPStatus
from typing import Any, TypeVar

import msgspec
from starlette.applications import Starlette
from starlette.convertors import IntegerConvertor, register_url_convertor
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Route

from sluice.api.http.bodies import read_body
from sluice.api.http.problems import problem, problem_of
from sluice.api.http.replies import JsonResponse
from sluice.errors import NotFound, QueryError, SluiceError, sentence
from sluice.query.scan_slots import Gate
from sluice.server.served_shards import ServedShards
from sluice.state.model import GenerationRef
from sluice.state.queries.worker_queries import AnyQuery
from sluice.state.remote.server_identity import Card
from sluice.state.remote.shard_calls import CALLS, PROTOCOL, PROTOCOL_HEADER, OtherVersion
from sluice.state.shard.addresses import drop
from sluice.state.shard.local_shard import LocalShard
from sluice.state.shard.sizes import size_of

log = logging.getLogger(__name__)

T = TypeVar("T")

SHARD = "/local/{pipeline}/{generation:small}/{number:small}"
MAX_QUERY_BYTES = 4 * 2**20
MAX_WRITE_BYTES = 4 * 2**30
"""Size limit of one worker's share of a batch."""
_QUERY_BODY_SECONDS = 10.0
_WRITE_BODY_SECONDS = 600.0
"""Time limits for receiving a body: `_QUERY_BODY_SECONDS` for a query, `_WRITE_BODY_SECONDS` for a
write."""

_QUERY = msgspec.json.Decoder(AnyQuery)


class _Small(IntegerConvertor):
    """Path parameter: a number that fits an INTEGER column."""

    regex = "[0-9]{1,9}"


register_url_convertor("small", _Small())


class LocalApp:
    """The routes over one server's shards. No route calls another server."""

    def __init__(self, shards: ServedShards) -> None:
        self._shards = shards
        self._gate = Gate()
        routes = [
            _route("GET", "/local", self._identify),
            _route("POST", f"{SHARD}/query", self._query),
            _route("POST", f"{SHARD}/calls/{{method}}", self._call),
            _route("GET", f"{SHARD}/size", self._size),
            _route("PUT", SHARD, self._create),
            _route("DELETE", SHARD, self._drop),
        ]
        for method in ("GET", "POST", "PUT"):
            routes.append(_route(method, f"{SHARD}/{{call:path}}", _refuse_other_version))
        self.app = Starlette(routes=routes, exception_handlers={HTTPException: _no_route})

    async def _identify(self, _request: Request) -> Card:
        return self._shards.card

    async def _query(self, request: Request) -> Any:
        query = _decode(_QUERY.decode, await _body(request))
        worker = await self._shards.worker(*_shard(request))
        if query.is_quick:
            return await worker.execute(query)
        # Scans take turns, so that look-ups are answered meanwhile.
        async with self._gate:
            return await worker.execute(query)

    async def _call(self, request: Request) -> Response:
        """Call a method of the shard."""
        call = CALLS.get(request.path_params["method"])
        if call is None or request.headers.get(PROTOCOL_HEADER) != PROTOCOL:
            raise OtherVersion
        if call.takes_rows:
            body = await _rows(request)
        else:
            body = await _body(request)
        arguments = _decode(call.decode_arguments, body)
        address = await self._shards.location(*_shard(request))

        def run() -> bytes:
            with LocalShard.open(address, to_write=True) as shard:
                return call.execute(shard, arguments)

        content = await asyncio.to_thread(run)
        return Response(content, media_type="application/msgpack")

    async def _size(self, request: Request) -> int:
        place = await self._shards.location(*_shard(request))
        size = await asyncio.to_thread(size_of, place)
        if size is None:
            raise NotFound("There is no such shard.")
        return size

    async def _create(self, request: Request) -> None:
        anew = request.query_params.get("anew") == "true"
        continued = request.query_params.get("continued") == "true"
        if anew or continued:
            place = await self._shards.expect(*_shard(request))
        else:
            place = await self._shards.location(*_shard(request))

        def create() -> None:
            LocalShard.create(place, anew=anew, continued=continued).close()

        await asyncio.to_thread(create)

    async def _drop(self, request: Request) -> None:
        place = await self._shards.location(*_shard(request))
        await asyncio.to_thread(drop, place)


def _route(method: str, path: str, answer: Callable[[Request], Awaitable[Any]]) -> Route:
    return Route(path, _handler(answer), methods=[method])


def _handler(
    answer: Callable[[Request], Awaitable[Any]],
) -> Callable[[Request], Awaitable[Response]]:
    async def respond(request: Request) -> Response:
        response = await respond_to(request)
        response.headers[PROTOCOL_HEADER] = PROTOCOL
        return response

    async def respond_to(request: Request) -> Response:
        try:
            result = await answer(request)
        except SluiceError as error:
            return problem_of(error)
        except ClientDisconnect:
            return problem(400, "The connection was closed before the request was complete.")
        except OverflowError:
            # SQLite raises OverflowError for a number of more than 64 bits.
            return problem_of(QueryError("A number is too large for a database column."))
        except Exception:
            log.exception("A request failed")
            return problem(500, "The request failed.", "See the server's log.")
        if isinstance(result, Response):
            return result
        return JsonResponse(msgspec.json.encode(result), ())

    return respond


async def _refuse_other_version(_request: Request) -> Response:
    """Refuse a call that this version of Sluice does not have."""
    raise OtherVersion


_NAME = re.compile(r"[A-Za-z0-9_-]{1,200}")


def _shard(request: Request) -> tuple[GenerationRef, int]:
    path = request.path_params
    if not _NAME.fullmatch(path["pipeline"]):
        raise NotFound("No such shard: the name of the pipeline is invalid.")
    return GenerationRef(path["pipeline"], path["generation"]), path["number"]


async def _rows(request: Request) -> bytes:
    return await _body(request, MAX_WRITE_BYTES, _WRITE_BODY_SECONDS)


async def _body(
    request: Request,
    most: int = MAX_QUERY_BYTES,
    seconds: float = _QUERY_BODY_SECONDS,
) -> bytes:
    return await read_body(request, most, seconds)


def _decode(decode: Callable[[bytes], T], body: bytes) -> T:
    try:
        return decode(body)
    except (msgspec.DecodeError, RecursionError) as error:
        # A body of deeply nested arrays exceeds the recursion limit of Python.
        raise QueryError(f"The request is invalid: {error}") from None


async def _no_route(_request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    if error.status_code == HTTPStatus.NOT_FOUND:
        return not_found()
    return problem(error.status_code, sentence(error.detail), headers=error.headers)


def not_found() -> Response:
    return problem(404, "There is nothing at this path.")
