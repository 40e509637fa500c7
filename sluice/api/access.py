"""From a request to a pinned store: what is asked for, whether this user may know of it, and as of which cut."""

from __future__ import annotations

import asyncio
from typing import Annotated

from fastapi import Depends, Query, Request

from sluice.api.login import Reads, visitor
from sluice.errors import NotFound, QueryError
from sluice.query import Pin, Reader
from sluice.settings import settings
from sluice.state.ledger import Ledger
from sluice.state.model import JobInfo, StoreInfo

_FEED = "GET /sluice/v1/stores lists those there are; the DAG produce_sample_orders makes records for a first run."

_readers: dict[str, Reader] = {}


class Access:
    """One request's way to the stores.

    A store that this user may not read is answered for exactly as if there were none: there is no way to tell.
    """

    def __init__(self, reader: Reader, user: Reads) -> None:
        self.reader = reader
        self._user = user

    async def stores(self) -> list[StoreInfo]:
        """All stores this user may read."""
        return [store for store in await self.reader.catalogue.stores() if await self._user.may_read(store.pipeline)]

    async def jobs(self, pipeline: str | None = None) -> list[JobInfo]:
        """All jobs this user may read, or those of one pipeline; NotFound if that has none."""
        jobs = [job for job in await self.reader.catalogue.jobs() if pipeline in (None, job.pipeline)]
        mine = [job for job in jobs if await self._user.may_read(job.pipeline)]
        if pipeline is not None and not mine:
            raise NotFound(
                f"There is no pipeline {pipeline!r}.", next_step="GET /sluice/v1/pipelines lists those there are."
            )
        return mine

    async def pin(self, name: str, pipeline: str | None = None, as_of: str | None = None) -> Pin:
        """Find a store and pin it to a cut; QueryError if two pipelines have a store of that name."""
        named = [store for store in await self.reader.catalogue.stores() if store.name == name]
        found = [
            store for store in named if pipeline in (None, store.pipeline) and await self._user.may_read(store.pipeline)
        ]
        if not found:
            raise NotFound(f"There is no store {name!r}.", next_step=_FEED)
        if len(found) > 1:
            owners = ", ".join(store.pipeline for store in found)
            raise QueryError(
                f"{len(found)} pipelines have a store {name!r}.", next_step=f"Add pipeline= one of: {owners}."
            )
        return await self.reader.catalogue.pin(found[0], as_of)


async def access(request: Request) -> Access:
    """The way to the stores for whoever sent the request. The ledger is opened when it is first needed."""
    url = settings().ledger
    if url not in _readers:
        _readers[url] = Reader(await asyncio.to_thread(Ledger.open, url))
    return Access(_readers[url], visitor(request))


Asking = Annotated[Access, Depends(access)]
InPipeline = Annotated[str | None, Query(description="The pipeline, where several have a store of this name.")]
AsOf = Annotated[str | None, Query(description="A cut, generation.batch; by default the newest.", examples=["1.42"])]
