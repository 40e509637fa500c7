"""Finds the pipelines and stores that the user of a request may read, and pins their snapshots.

Every route gets to data through `Access`. See `auth.permissions` for who decides what the user may
read.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Hashable, Iterable, Sequence
from typing import TypeVar, cast

import structlog
from starlette.requests import Request

from sluice.answers import WorkerStatus, unavailable
from sluice.api.auth.permissions import Principal, principal
from sluice.api.http.replies import Payload, etag
from sluice.api.http.request_headers import header
from sluice.api.http.route import Unchanged
from sluice.api.routes.api_state import API_STATE, ApiState, state_of_settings
from sluice.api.routes.query_audit import note_query
from sluice.api.routes.read_point import ReadPoint
from sluice.api.services import NO_SERVICES, SERVICES, Services
from sluice.errors import Incomplete, NotFound, QueryError, StateError
from sluice.query import AsOf, Pin
from sluice.query.catalogue import PipelineSnapshot, only_store
from sluice.query.former_names import renamed_pipeline, renamed_store
from sluice.query.ledger_reads import read_ledger
from sluice.state.ledger.ledger import Ledger
from sluice.state.model import GenerationInfo, StoreInfo

T = TypeVar("T")
log = structlog.get_logger()

_LIST_STORES = "GET /sluice/v1/stores lists all stores."


class Forbidden(QueryError):
    """The user may read the pipeline but not change it."""

    status = 403
    title = "Not allowed"
    next_step = "Ask an administrator of Airflow for the permission to edit the DAG."


class Access:
    """The access of one request to stores and pipelines.

    The response for a store that the user may not read is the same as for a store that does not
    exist, even in timing.
    """

    def __init__(self, request: Request, state: ApiState, user: Principal) -> None:
        self.request = request
        self.state = state
        self.reader = state.reader
        self.user = user

    @property
    def services(self) -> Services:
        """The services of the API's server."""
        return self.request.scope.get("state", {}).get(SERVICES) or NO_SERVICES

    async def may_read(self, pipeline: str) -> bool:
        """Return whether the user may read a pipeline."""
        return await self.user.may_read(pipeline)

    async def figures(self, name: Hashable, read: Callable[[Ledger], T]) -> T:
        """Return the result of `read`, cached for `FIGURES_SECONDS` under `name`.

        Concurrent requests share one call.
        """
        ledger = self.state.ledger
        return cast(
            "T", await self.state.figures.get(name, lambda: read_ledger(lambda: read(ledger)))
        )

    def forget_figures(self) -> None:
        """Let the next request read all figures anew, because the user has changed something."""
        self.state.figures.clear()

    async def note(self, pipeline: str, action: str, detail: str = "", run: str = "") -> None:
        """Record an action of the user on a pipeline.

        The action has already been done, so an error of the ledger is only logged.
        """
        add = self.state.ledger.activities.add
        try:
            await asyncio.to_thread(add, pipeline, action, self.user.name, detail, run)
        except StateError as error:
            log.warning("activity not recorded", pipeline=pipeline, action=action, why=error.detail)

    async def require_edit(self, pipeline: str) -> None:
        """Require that the user may edit the pipeline's DAG.

        Raise NotFound if the user may not read the pipeline, and Forbidden if the user may read but
        not edit it.
        """
        await self.require_pipeline(pipeline)
        if not await self.user.may_edit(pipeline):
            raise Forbidden(f"You may read {pipeline!r} but not edit its DAG.")

    async def stores(self) -> list[StoreInfo]:
        """Return all stores that this user may read."""
        stores = await self.reader.catalogue.stores()
        readable = {*await self.user.readable({store.pipeline for store in stores})}
        return [store for store in stores if store.pipeline in readable]

    async def generation(self, pipeline: str) -> GenerationInfo:
        """Return the pipeline's current generation.

        Raise NotFound if it has none, or if the user may not read it.
        """
        for info in await self.reader.catalogue.generations():
            if info.pipeline == pipeline and await self.may_read(pipeline):
                return info
        readable = await self.look_up_all()
        renamed = await read_ledger(
            lambda: renamed_pipeline(self.state.ledger.renames, pipeline, readable.__contains__)
        )
        raise renamed or NotFound(
            f"There is no pipeline {pipeline!r}.",
            next_step="GET /sluice/v1/pipelines lists all pipelines.",
        )

    async def require_pipeline(self, pipeline: str) -> None:
        """Raise NotFound if the user may not read the pipeline, or if there is no such pipeline.

        A pipeline has a generation or a DAG.
        """
        # A pipeline that has never run has a DAG but no generation.
        dags = await asyncio.to_thread(self.services.runs.dags)
        if pipeline not in dags or not await self.may_read(pipeline):
            await self.generation(pipeline)

    async def pin(self, name: str, pipeline: str | None = None, when: AsOf | None = None) -> Pin:
        """Find a store and pin it to a snapshot.

        Raise QueryError if several pipelines have a store with this name.
        """
        stores: list[StoreInfo] = []
        for store in await self.reader.catalogue.stores_named(name):
            if pipeline in (None, store.pipeline) and await self.may_read(store.pipeline):
                stores.append(store)
        if not stores:
            await self._require_not_renamed(name, pipeline)
        found = only_store(
            name, stores, unknown=_LIST_STORES, ambiguous="Add `pipeline=` and one of: {pipelines}."
        )
        pin = await self.reader.catalogue.pin(found, when or AsOf())
        note_query(self.request, self.user, pin)
        return pin

    async def _require_not_renamed(self, store: str, pipeline: str | None) -> None:
        """If the store or its pipeline was renamed, raise NotFound, with the new name."""
        readable = await self.look_up_all()
        renamed = await read_ledger(
            lambda: renamed_store(self.state.ledger.renames, store, pipeline, readable.__contains__)
        )
        if renamed is not None:
            raise renamed

    async def look_up_all(self) -> frozenset[str]:
        """Look up every permission. Return the pipelines with stores that the user may read.

        The response time of a 404 then does not reveal whether a hidden name exists.
        """
        return frozenset(store.pipeline for store in await self.stores())

    async def pin_at(self, name: str, moment: ReadPoint) -> Pin:
        """Find a store and pin it to a read point.

        Raise Unchanged if the client already has this response.
        """
        pin = await self.pin(name, moment.pipeline, moment.when)
        self.require_change([pin])
        return pin

    def require_change(self, pins: Sequence[Pin | PipelineSnapshot]) -> None:
        """Raise Unchanged if the client already has the response for these snapshots."""
        etags = header(self.request.scope, b"if-none-match")
        if etags:
            current = etag(pins)
            # The header may list several ETags.
            if current in etags.decode("latin-1"):
                raise Unchanged(current)

    async def cached(
        self,
        pins: Sequence[Pin | PipelineSnapshot],
        compute: Callable[[], Awaitable[Payload]],
        *,
        complete: bool = False,
    ) -> Payload:
        """Return the cached payload for this path, query and snapshots, or compute it.

        The answers to one query from one snapshot are equal, and a dashboard with many viewers
        repeats its queries. An answer is cached for one second only, so that the failure of a
        worker soon shows. A partial answer is not cached.

        Raise Incomplete if `complete` is set and a worker is unavailable.
        """
        scope = self.request.scope
        payload = await self.state.cached(
            (scope["path"], scope["query_string"], *(pin.name for pin in pins)), compute
        )
        if complete:
            require_complete(payload.workers)
        return payload


def require_complete(workers: Iterable[WorkerStatus]) -> None:
    """Raise Incomplete, with the reasons, if a worker is unavailable."""
    reasons = unavailable(workers)
    if reasons:
        raise Incomplete(
            f"Some workers cannot be read: {', '.join(reasons)}",
            next_step="Try again, or remove require=complete to get the other workers' data.",
        )


async def access_of(request: Request) -> Access:
    """Return the access of a request's user."""
    # In a state server, the request has the server's `ApiState`.
    state: ApiState | None = request.scope["state"].get(API_STATE)
    return Access(request, state or await state_of_settings(), principal(request))
