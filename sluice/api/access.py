"""From a request to a pinned store: what is asked for, whether this user may know of it, and as of which snapshot."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Hashable, Iterable
from typing import Annotated, Literal

import msgspec
from msgspec import Meta
from starlette.requests import Request

from sluice.api.replies import Told, etag
from sluice.api.routes import Unchanged
from sluice.api.visitors import Visitor, visitor
from sluice.errors import Incomplete, NotFound, QueryError
from sluice.query import AsOf, Pin, Reader, WorkerStatus
from sluice.query.read_point import parse_positions
from sluice.settings import settings
from sluice.state.ledger.failures import Failure
from sluice.state.ledger.ledger import Ledger
from sluice.state.ledger.placement import Places
from sluice.state.model import JobInfo, StoreInfo

_FEED = "GET /sluice/v1/stores lists those there are; the DAG produce_sample_orders makes records for a first run."
_TOLD_BYTES = 32 * 2**20
REMEMBER_SECONDS = 1.0
"""How long a complete answer of a snapshot is told again without asking the workers, hence how long they may be down
before answers say so."""


class ReadPoint(msgspec.Struct, frozen=True, kw_only=True):
    """As of when a store is asked, and what the answer must be like."""

    pipeline: (
        Annotated[str, Meta(description="The pipeline, where several have a store of this name.", max_length=200)]
        | None
    ) = None
    as_of: (
        Annotated[
            str,
            Meta(
                description="A snapshot (1.42), a run (run:NAME), or a time; by default the newest snapshot.",
                max_length=300,
            ),
        ]
        | None
    ) = None
    min_snapshot: Annotated[str, Meta(description="412 if the snapshot is before this one.", max_length=30)] | None = (
        None
    )
    min_position: (
        Annotated[
            str,
            Meta(
                description="412 if less was read: TOPIC:PARTITION:OFFSET, several with commas between.",
                max_length=4_000,
            ),
        ]
        | None
    ) = None
    require: (
        Annotated[
            Literal["complete"], Meta(description="503 if a worker is unavailable, in place of a partial answer.")
        ]
        | None
    ) = None

    @property
    def when(self) -> AsOf:
        """The same for a reader."""
        return AsOf(self.as_of, self.min_snapshot, parse_positions(self.min_position) if self.min_position else {})


class Remembered:
    """What was told within the last `REMEMBER_SECONDS`. Snapshots never change, so neither does what is told of one."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._bytes = 0
        self._told: dict[Hashable, tuple[float, Told]] = {}
        self._making: dict[Hashable, asyncio.Task[Told]] = {}

    async def get(self, name: Hashable, make: Callable[[], Awaitable[Told]]) -> Told:
        """What was told, or what `make` tells: once for all who ask for it at the same time."""
        until, told = self._told.get(name, (0.0, None))
        if told is not None and until > self._clock():
            return told
        making = self._making.get(name)
        if making is None:
            making = self._making[name] = asyncio.ensure_future(self._make(name, make))
        return await asyncio.shield(making)

    async def _make(self, name: Hashable, make: Callable[[], Awaitable[Told]]) -> Told:
        try:
            told = await make()
            if not told.partial:
                self._put(name, told)
            return told
        finally:
            del self._making[name]

    def _put(self, name: Hashable, told: Told) -> None:
        self._forget(name)
        self._told[name] = self._clock() + REMEMBER_SECONDS, told
        self._bytes += len(told.content)
        while self._bytes > _TOLD_BYTES:
            self._forget(next(iter(self._told)))

    def _forget(self, name: Hashable) -> None:
        _, told = self._told.pop(name, (0.0, None))
        self._bytes -= len(told.content) if told is not None else 0


class State:
    """What the whole process has: the reader, and what it told lately."""

    def __init__(self, ledger: Ledger, reader: Reader) -> None:
        self.reader = reader
        self.remembered = Remembered()
        self._places = Places(ledger)
        self._secrets: dict[str, bytes] = {}

    async def secret(self, name: str) -> bytes:
        """A key that all servers with this ledger share."""
        if name not in self._secrets:
            self._secrets[name] = await asyncio.to_thread(self._places.secret, name)
        return self._secrets[name]


_states: dict[str, State] = {}


class Access:
    """One request's way to the stores.

    A store that this user may not read is answered for exactly as if there were none: there is no way to tell.
    """

    def __init__(self, request: Request, state: State, user: Visitor) -> None:
        self.request = request
        self.state = state
        self.reader = state.reader
        self._user = user

    async def stores(self) -> list[StoreInfo]:
        """All stores this user may read."""
        return [store for store in await self.reader.catalogue.stores() if await self._user.may_read(store.pipeline)]

    async def jobs(self, pipeline: str | None = None) -> list[JobInfo]:
        """All jobs this user may read, or those of one pipeline; NotFound if that has none."""
        jobs = [job for job in await self.reader.catalogue.jobs() if pipeline in (None, job.pipeline)]
        mine = [job for job in jobs if await self._user.may_read(job.pipeline)]
        if pipeline is not None and not mine:
            await self._take_as_long()
            raise NotFound(
                f"There is no pipeline {pipeline!r}.", next_step="GET /sluice/v1/pipelines lists those there are."
            )
        return mine

    async def failures(self) -> list[Failure]:
        """What has failed of the pipelines that this user may read, and has not gone well since."""
        found = await self.reader.catalogue.failures()
        return [failure for failure in found if await self._user.may_read(failure.pipeline)]

    async def pin(self, name: str, pipeline: str | None = None, when: AsOf | None = None) -> Pin:
        """Find a store and pin it to a snapshot; QueryError if two pipelines have a store of that name."""
        found = [
            store
            for store in await self.reader.catalogue.named(name)
            if pipeline in (None, store.pipeline) and await self._user.may_read(store.pipeline)
        ]
        if not found:
            await self._take_as_long()
            raise NotFound(f"There is no store {name!r}.", next_step=_FEED)
        if len(found) > 1:
            owners = ", ".join(store.pipeline for store in found)
            raise QueryError(
                f"{len(found)} pipelines have a store {name!r}.", next_step=f"Add pipeline= one of: {owners}."
            )
        return await self.reader.catalogue.pin(found[0], when or AsOf())

    async def _take_as_long(self) -> None:
        """Look up all permissions, whichever have been by now: else the time an answer takes told what is hidden."""
        await self.stores()

    async def pin_at(self, name: str, moment: ReadPoint) -> Pin:
        """Find a store and pin it as asked; Unchanged if the client has the answer at that snapshot."""
        pin = await self.pin(name, moment.pipeline, moment.when)
        self.demand_change([pin])
        return pin

    def demand_change(self, pins: list[Pin]) -> None:
        """Raise Unchanged if the client has the answer at these snapshots."""
        known = self.request.headers.get("if-none-match")
        if known is not None and (mine := etag(pins)) in known:
            raise Unchanged(mine)

    async def told(self, pins: list[Pin], make: Callable[[], Awaitable[Told]], *, complete: bool = False) -> Told:
        """What `make` tells at these snapshots, or told when this was asked before; Incomplete if it must not be partial."""
        scope = self.request.scope
        name = (scope["path"], scope["query_string"], *(pin.name for pin in pins))
        told = await self.state.remembered.get(name, make)
        if complete:
            demand_complete(told.workers)
        return told


def demand_complete(workers: Iterable[WorkerStatus]) -> None:
    """Raise Incomplete, with the reasons, if a worker is unavailable."""
    if lost := [f"worker {one.number}: {one.reason}" for one in workers if one.status != "ok"]:
        raise Incomplete(f"Not every worker can be read: {', '.join(lost)}")


async def access(request: Request) -> Access:
    """The way to the stores for whoever sent the request. The ledger is opened when it is first needed."""
    return Access(request, await _state(request), visitor(request))


async def _state(request: Request) -> State:
    given: State | None = request.scope["state"].get("sluice_state")
    if given is not None:
        return given
    url = settings().ledger
    if url not in _states:
        ledger = await asyncio.to_thread(Ledger.open, url)
        _states.setdefault(url, State(ledger, Reader(ledger)))
    return _states[url]
