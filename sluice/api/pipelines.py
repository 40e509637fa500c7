"""Pipelines: their jobs, their cuts and what became of the records, their topology."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

import msgspec
from msgspec import Meta
from starlette.requests import Request
from starlette.responses import Response

from sluice.api.access import Access, access
from sluice.api.replies import CutReply, reply
from sluice.api.routes import Routes
from sluice.errors import NotFound
from sluice.query import WorkerStatus
from sluice.state.model import Cut, JobInfo

routes = Routes("pipelines", "/v1/pipelines")

_AS_IT_SAYS = {"X-Content-Type-Options": "nosniff"}

Pipeline = Annotated[str, Meta(description="The pipeline's name.", max_length=200)]


class Form(StrEnum):
    """A form of a topology."""

    TEXT = "text"
    MERMAID = "mermaid"
    SVG = "svg"


class JobReply(msgspec.Struct, frozen=True):
    """One job of a pipeline."""

    job: str
    generation: int
    topics: tuple[str, ...]
    stores: list[str]
    workers: int
    cut: CutReply | None


class PipelineReply(msgspec.Struct, frozen=True):
    """One pipeline and its jobs."""

    pipeline: str
    jobs: list[JobReply]


class CountedCut(msgspec.Struct, frozen=True):
    """One cut of a job, and what became of its batch's records."""

    job: str
    cut: CutReply
    run: str
    """The run that published it."""
    counts: dict[str, int]


class WorkerReply(msgspec.Struct, frozen=True, omit_defaults=True):
    """One worker of a job: where it can be asked, and how it is."""

    job: str
    number: int
    host: str
    port: int
    """0: it has no state server; whoever reads opens its shard."""
    stores: list[str]
    status: str
    reason: str = ""


class PipelineQuery(msgspec.Struct, frozen=True, kw_only=True):
    """One pipeline."""

    pipeline: Pipeline


class CutsQuery(PipelineQuery, frozen=True, kw_only=True):
    """Its newest cuts."""

    limit: Annotated[int, Meta(description="How many of each job.", ge=1, le=1_000)] = 20


class TopologyQuery(PipelineQuery, frozen=True, kw_only=True):
    """Its topology."""

    form: Annotated[Form, Meta(description="How it is written.")] = msgspec.field(default=Form.TEXT, name="format")


@routes.get("", list[PipelineReply])
async def list_pipelines(request: Request, _asked: object) -> Response:
    """All pipelines you may read."""
    ask = await access(request)
    jobs = await ask.jobs()
    names = dict.fromkeys(job.pipeline for job in jobs)
    return reply(
        [PipelineReply(name, [await _job_reply(ask, job) for job in jobs if job.pipeline == name]) for name in names]
    )


@routes.get("/{pipeline}/cuts", list[CountedCut], parameters=CutsQuery)
async def list_cuts(request: Request, asked: CutsQuery) -> Response:
    """The newest cuts of each of the pipeline's jobs, newest first."""
    ask = await access(request)
    cuts = [cut for job in await ask.jobs(asked.pipeline) for cut in await _cuts(ask, job, asked.limit)]
    return reply([CountedCut(cut.job, CutReply.of(cut), cut.run, cut.counts) for cut in cuts])


@routes.get("/{pipeline}/workers", list[WorkerReply], parameters=PipelineQuery)
async def list_workers(request: Request, asked: PipelineQuery) -> Response:
    """The workers of each of the pipeline's jobs: where each can be asked, what it holds, and how it is."""
    ask = await access(request)
    return reply([one for job in await ask.jobs(asked.pipeline) for one in await _workers(ask, job)])


@routes.get(
    "/{pipeline}/topology", parameters=TopologyQuery, media_types=("text/plain; charset=utf-8", "image/svg+xml")
)
async def get_topology(request: Request, asked: TopologyQuery) -> Response:
    """The pipeline's topology as text, as a Mermaid flowchart, or as an SVG drawing."""
    ask = await access(request)
    job = (await ask.jobs(asked.pipeline))[0]  # every job of a pipeline keeps the whole topology
    content = {Form.TEXT: job.description, Form.MERMAID: job.drawing, Form.SVG: job.picture}[asked.form]
    if not content:
        raise NotFound(
            f"Pipeline {asked.pipeline!r} has not been drawn as {asked.form}.", next_step="Ask for format=text."
        )
    if asked.form is Form.SVG:
        # Names and expressions in it are an author's: nothing in a drawing may run.
        headers = _AS_IT_SAYS | {"Content-Security-Policy": "default-src 'none'; style-src 'unsafe-inline'; sandbox"}
        return Response(content, media_type="image/svg+xml", headers=headers)
    return Response(content, media_type="text/plain; charset=utf-8", headers=_AS_IT_SAYS)


async def _job_reply(ask: Access, job: JobInfo) -> JobReply:
    newest = await _cuts(ask, job, 1)
    stores = [store.name for store in job.stores]
    cut = CutReply.of(newest[0]) if newest else None
    return JobReply(job.job, job.generation, job.topics, stores, len(job.workers), cut)


async def _workers(ask: Access, job: JobInfo) -> list[WorkerReply]:
    if await _cuts(ask, job, 1):
        statuses = await ask.reader.statuses(job.workers)
    else:
        statuses = tuple(WorkerStatus(one.number, "unavailable", "Nothing is published yet.") for one in job.workers)
    stores = [store.name for store in job.stores]
    return [
        WorkerReply(job.job, one.number, one.host, one.port, stores, said.status, said.reason)
        for one, said in zip(job.workers, statuses, strict=True)
    ]


async def _cuts(ask: Access, job: JobInfo, limit: int) -> list[Cut]:
    return await ask.reader.catalogue.cuts(job.pipeline, job.job, limit)
