"""A state server's HTTP interface, `/local`: executes queries over its shards, and the writes of runs and moves.

The routes are the methods of `Shard`, which `state.remote.remote_shard` calls, and `query`, which
`state.remote.remote_worker` calls.
"""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Awaitable, Callable
from http import HTTPStatus
from typing import Any, Literal, TypeVar

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
from sluice.state.model import EntryId, GenerationRef, StateRow
from sluice.state.queries.worker_queries import AnyQuery
from sluice.state.remote.server_identity import Card
from sluice.state.shard.addresses import drop
from sluice.state.shard.answer_rows import Answer
from sluice.state.shard.local_shard import LocalShard
from sluice.state.shard.operator_states import State, StateVersion
from sluice.state.shard.ranges import Range
from sluice.state.shard.row_columns import RowColumns, RowIds
from sluice.state.shard.row_tuples import VersionId
from sluice.state.shard.shard import Checksums, Journal, Version
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
_PAGES = msgspec.msgpack.Decoder(list[RowColumns])
_IDS = msgspec.msgpack.Decoder(RowIds)
_VERSIONS = msgspec.msgpack.Decoder(list[Version])
_KEYS = msgspec.msgpack.Decoder(tuple[int, list[str], int, int, bool])
_STATES = msgspec.msgpack.Decoder(tuple[list[int], list[State]])
_STATE_VERSIONS = msgspec.msgpack.Decoder(list[StateVersion])
_COPIED_ANSWERS = msgspec.msgpack.Decoder(tuple[list[Answer], int])
_NEW_ANSWERS = msgspec.msgpack.Decoder(tuple[list[Answer], dict[str, int]])
_ANSWER_IDS = msgspec.msgpack.Decoder(tuple[str, list[str]])
_AFTER_STATE = msgspec.json.Decoder(tuple[int, tuple[int, int, str, int] | None, int])


class _Small(IntegerConvertor):
    """Path parameter: a number that fits an INTEGER column."""

    regex = "[0-9]{1,9}"


class _Large(IntegerConvertor):
    """Path parameter: a number that fits a BIGINT column."""

    regex = "[0-9]{1,18}"


register_url_convertor("small", _Small())
register_url_convertor("large", _Large())


class _Page(msgspec.Struct, frozen=True):
    group_id: int
    as_of: int
    within: Range
    after: EntryId | None
    limit: int
    checked: bool = False

    def read(self, shard: LocalShard) -> list[StateRow]:
        return shard.scan(
            self.group_id,
            self.as_of,
            self.within,
            after=self.after,
            limit=self.limit,
            checked=self.checked,
        )


class LocalApp:
    """The routes over one server's shards. No route calls another server."""

    def __init__(self, shards: ServedShards) -> None:
        self._shards = shards
        self._gate = Gate()
        routes: list[tuple[str, str, Callable[[Request], Awaitable[Any]]]] = [
            ("GET", "/local", self._identify),
            ("POST", f"{SHARD}/query", self._query),
            ("POST", f"{SHARD}/state_rows", self._state_rows),
            ("GET", f"{SHARD}/batches", self._batches),
            ("PUT", f"{SHARD}/batches/{{batch:large}}", self._write),
            ("POST", f"{SHARD}/batches/{{batch:large}}/before", self._before),
            ("POST", f"{SHARD}/batches/{{batch:large}}/expire", self._expire),
            ("POST", f"{SHARD}/compact", self._compact),
            ("POST", f"{SHARD}/begin", self._begin),
            ("POST", f"{SHARD}/checksums", self._checksums),
            ("POST", f"{SHARD}/verify", self._verify),
            ("POST", f"{SHARD}/states", self._read_states),
            ("POST", f"{SHARD}/states/due", self._due),
            ("POST", f"{SHARD}/states/earliest-timer", self._earliest_timer),
            ("POST", f"{SHARD}/states/verify", self._verify_states),
            ("POST", f"{SHARD}/states/versions", self._state_versions),
            ("PUT", f"{SHARD}/states/versions", self._absorb_states),
            ("PUT", f"{SHARD}/states/{{batch:large}}", self._write_states),
            ("POST", f"{SHARD}/answers", self._write_answers),
            ("PUT", f"{SHARD}/answers", self._absorb_answers),
            ("POST", f"{SHARD}/answers/read", self._read_answers),
            ("POST", f"{SHARD}/answers/page", self._answers),
            ("POST", f"{SHARD}/answers/{{batch:large}}/forget-failures", self._forget_failures),
            ("PUT", SHARD, self._create),
            ("DELETE", SHARD, self._drop),
            ("POST", f"{SHARD}/versions", self._versions),
            ("PUT", f"{SHARD}/versions", self._absorb),
            ("GET", f"{SHARD}/last", self._last),
            ("GET", f"{SHARD}/size", self._size),
            ("GET", f"{SHARD}/rows", self._row_counts),
            ("POST", f"{SHARD}/settle", self._settle),
            ("POST", f"{SHARD}/seal", self._seal),
        ]
        self.app = Starlette(
            routes=[Route(path, _handler(answer), methods=[how]) for how, path, answer in routes],
            exception_handlers={HTTPException: _no_route},
        )

    async def _identify(self, _request: Request) -> Card:
        return self._shards.card

    async def _query(self, request: Request) -> Any:
        query = _decode(_QUERY, await _body(request))
        worker = await self._shards.worker(*_shard(request))
        if query.is_quick:
            return await worker.execute(query)
        # Scans take turns, so that look-ups are answered meanwhile.
        async with self._gate:
            return await worker.execute(query)

    async def _state_rows(self, request: Request) -> Any:
        page = _decode(msgspec.json.Decoder(_Page), await _body(request))
        return await self._on(request, page.read)

    async def _batches(self, request: Request) -> Any:
        return await self._on(request, lambda shard: shard.journal())

    async def _before(self, request: Request) -> Response:
        ids = _decode(_IDS, await _rows(request))
        epoch, batch = _number(request, "epoch"), request.path_params["batch"]
        return _msgpack_response(
            await self._on(request, lambda shard: shard.rows_before(batch, ids, epoch))
        )

    async def _write(self, request: Request) -> Any:
        pages = _decode(_PAGES, await _rows(request))
        epoch, batch = _number(request, "epoch"), request.path_params["batch"]
        checksum = _checksum(request, "replaced")
        replaced = None if checksum is None else lambda: checksum
        return await self._on(
            request, lambda shard: shard.write_pages(batch, pages, epoch, replaced)
        )

    async def _expire(self, request: Request) -> Any:
        ends = _decode(msgspec.json.Decoder(dict[int, int]), await _body(request))
        epoch, batch = _number(request, "epoch"), request.path_params["batch"]
        return await self._on(request, lambda shard: shard.expire_windows(batch, ends, epoch))

    async def _begin(self, request: Request) -> Any:
        epoch, as_of = _decode(msgspec.json.Decoder(tuple[int, int]), await _body(request))
        return await self._on(request, lambda shard: shard.begin_run(epoch, as_of))

    async def _checksums(self, request: Request) -> Any:
        as_of = _decode(msgspec.json.Decoder(int), await _body(request))
        return await self._on(request, lambda shard: shard.checksums(as_of))

    async def _verify(self, request: Request) -> None:
        as_of, published = _decode(
            msgspec.json.Decoder(tuple[int, Checksums | None]), await _body(request)
        )
        await self._on(request, lambda shard: shard.verify_rows(as_of, published))

    async def _read_states(self, request: Request) -> Response:
        operator, keys, before, epoch, shared = _decode(_KEYS, await _rows(request))
        return _msgpack_response(
            await self._on(
                request,
                lambda shard: shard.read_states(operator, keys, before, epoch, shared=shared),
            )
        )

    async def _due(self, request: Request) -> Any:
        kind = tuple[int, int, int, int, Literal["due", "wall"]]
        arguments = _decode(msgspec.json.Decoder(kind), await _body(request))
        return await self._on(request, lambda shard: shard.due_keys(*arguments))

    async def _earliest_timer(self, request: Request) -> Any:
        kind = tuple[int, int, int, Literal["due", "wall"], int]
        arguments = _decode(msgspec.json.Decoder(kind), await _body(request))
        return await self._on(request, lambda shard: shard.earliest_timer(*arguments))

    async def _write_states(self, request: Request) -> None:
        (numbers, states), epoch = _decode(_STATES, await _rows(request)), _number(request, "epoch")
        batch = request.path_params["batch"]
        await self._on(request, lambda shard: shard.write_states(batch, numbers, states, epoch))

    async def _verify_states(self, request: Request) -> None:
        as_of, published = _decode(
            msgspec.json.Decoder(tuple[int, Checksums | None]), await _body(request)
        )
        await self._on(request, lambda shard: shard.verify_states(as_of, published))

    async def _state_versions(self, request: Request) -> Response:
        since, after, limit = _decode(_AFTER_STATE, await _body(request))
        return _msgpack_response(
            await self._on(request, lambda shard: shard.state_versions(since, after, limit))
        )

    async def _absorb_states(self, request: Request) -> None:
        versions = _decode(_STATE_VERSIONS, await _rows(request))
        await self._on(request, lambda shard: shard.absorb_states(versions))

    async def _read_answers(self, request: Request) -> Response:
        (step, ids), epoch = _decode(_ANSWER_IDS, await _rows(request)), _number(request, "epoch")
        return _msgpack_response(
            await self._on(request, lambda shard: shard.read_answers(step, ids, epoch))
        )

    async def _write_answers(self, request: Request) -> None:
        (answers, forget), epoch = (
            _decode(_NEW_ANSWERS, await _rows(request)),
            _number(request, "epoch"),
        )
        await self._on(request, lambda shard: shard.write_answers(answers, epoch, forget=forget))

    async def _forget_failures(self, request: Request) -> None:
        batch, epoch = request.path_params["batch"], _number(request, "epoch")
        await self._on(request, lambda shard: shard.forget_failures(batch, epoch))

    async def _answers(self, request: Request) -> Response:
        after, limit = _decode(
            msgspec.json.Decoder(tuple[tuple[int, str, str] | None, int]), await _body(request)
        )
        return _msgpack_response(await self._on(request, lambda shard: shard.answers(after, limit)))

    async def _absorb_answers(self, request: Request) -> None:
        answers, oldest = _decode(_COPIED_ANSWERS, await _rows(request))
        await self._on(request, lambda shard: shard.absorb_answers(answers, oldest))

    async def _drop(self, request: Request) -> None:
        place = await self._shards.location(*_shard(request))
        await asyncio.to_thread(drop, place)

    async def _compact(self, request: Request) -> Any:
        keep_from = _number(request, "keep_from")
        return await self._on(request, lambda shard: shard.compact(keep_from))

    async def _create(self, request: Request) -> None:
        anew, continued = (
            request.query_params.get(name) == "true" for name in ("anew", "continued")
        )
        place = await (self._shards.expect if anew or continued else self._shards.location)(
            *_shard(request)
        )
        await asyncio.to_thread(
            lambda: LocalShard.create(place, anew=anew, continued=continued).close()
        )

    async def _versions(self, request: Request) -> Response:
        since, after, limit = _decode(
            msgspec.json.Decoder(tuple[int, VersionId | None, int]),
            await _body(request),
        )
        return _msgpack_response(
            await self._on(request, lambda shard: shard.row_versions(since, after, limit))
        )

    async def _absorb(self, request: Request) -> None:
        versions = _decode(_VERSIONS, await _rows(request))
        await self._on(request, lambda shard: shard.absorb_rows(versions))

    async def _last(self, request: Request) -> Any:
        return await self._on(request, lambda shard: shard.last_places())

    async def _row_counts(self, request: Request) -> Any:
        return await self._on(request, lambda shard: shard.row_counts())

    async def _size(self, request: Request) -> int:
        place = await self._shards.location(*_shard(request))
        size = await asyncio.to_thread(size_of, place)
        if size is None:
            raise NotFound("There is no such shard.")
        return size

    async def _settle(self, request: Request) -> None:
        since, journal = _decode(msgspec.json.Decoder(tuple[int, Journal]), await _body(request))
        await self._on(request, lambda shard: shard.replace_journal(since, journal))

    async def _seal(self, request: Request) -> None:
        sealed = request.query_params.get("sealed") == "true"
        await self._on(request, lambda shard: shard.seal(sealed=sealed))

    async def _on(self, request: Request, do: Callable[[LocalShard], T]) -> T:
        """Open the request's shard in another thread, and return the result of `do` for it."""
        address = await self._shards.location(*_shard(request))

        def run() -> T:
            with LocalShard.open(address, to_write=True) as shard:
                return do(shard)

        return await asyncio.to_thread(run)


def _msgpack_response(value: Any) -> Response:
    return Response(msgspec.msgpack.encode(value), media_type="application/msgpack")


def _handler(
    answer: Callable[[Request], Awaitable[Any]],
) -> Callable[[Request], Awaitable[Response]]:
    async def respond(request: Request) -> Response:
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
        return (
            result
            if isinstance(result, Response)
            else JsonResponse(msgspec.json.encode(result), ())
        )

    return respond


_NAME = re.compile(r"[A-Za-z0-9_-]{1,200}")


def _shard(request: Request) -> tuple[GenerationRef, int]:
    path = request.path_params
    if not _NAME.fullmatch(path["pipeline"]):
        raise NotFound("No such shard: the name of the pipeline is invalid.")
    return GenerationRef(path["pipeline"], path["generation"]), path["number"]


def _number(request: Request, name: str) -> int:
    text = request.query_params.get(name, "")
    if not re.fullmatch(_Large.regex, text):
        raise QueryError(f"{name} is not a number.")
    return int(text)


def _checksum(request: Request, name: str) -> int | None:
    text = request.query_params.get(name)
    if text is not None and not re.fullmatch("[0-9a-f]{16}", text):
        raise QueryError(f"{name} is not a checksum.")
    return None if text is None else int(text, 16)


async def _rows(request: Request) -> bytes:
    return await _body(request, MAX_WRITE_BYTES, _WRITE_BODY_SECONDS)


async def _body(
    request: Request,
    most: int = MAX_QUERY_BYTES,
    seconds: float = _QUERY_BODY_SECONDS,
) -> bytes:
    return await read_body(request, most, seconds)


def _decode(decoder: Any, body: bytes) -> Any:
    try:
        return decoder.decode(body)
    except (msgspec.DecodeError, RecursionError) as error:
        # A body of deeply nested arrays exceeds the recursion limit of Python.
        raise QueryError(f"The request is invalid: {error}") from None


async def _no_route(_request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    what = (
        "There is nothing at this path."
        if error.status_code == HTTPStatus.NOT_FOUND
        else error.detail
    )
    return problem(error.status_code, sentence(what), headers=error.headers)


def not_found() -> Response:
    return problem(404, "There is nothing at this path.")
