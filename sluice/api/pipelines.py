"""Pipelines: their jobs, their cuts and what became of the records, their topology."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

import msgspec
from fastapi import APIRouter, Query
from starlette.responses import Response

from sluice.api.access import Asking
from sluice.api.documentation import answers
from sluice.api.replies import CutReply, reply
from sluice.errors import NotFound
from sluice.state.model import Cut, JobInfo

router = APIRouter(prefix="/v1/pipelines", tags=["pipelines"])


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
    counts: dict[str, int]


@router.get("", responses=answers(list[PipelineReply]))
async def list_pipelines(ask: Asking) -> Response:
    """All pipelines you may read."""
    jobs = await ask.jobs()
    names = dict.fromkeys(job.pipeline for job in jobs)
    return reply(
        [PipelineReply(name, [await _job_reply(ask, job) for job in jobs if job.pipeline == name]) for name in names]
    )


@router.get("/{pipeline}/cuts", responses=answers(list[CountedCut]))
async def list_cuts(ask: Asking, pipeline: str, limit: Annotated[int, Query(ge=1, le=1_000)] = 20) -> Response:
    """The newest cuts of each of the pipeline's jobs, newest first."""
    cuts = [cut for job in await ask.jobs(pipeline) for cut in await _cuts(ask, job, limit)]
    return reply([CountedCut(cut.job, CutReply.of(cut), cut.counts) for cut in cuts])


@router.get("/{pipeline}/topology", response_class=Response)
async def get_topology(
    ask: Asking, pipeline: str, form: Annotated[Form, Query(alias="format")] = Form.TEXT
) -> Response:
    """The pipeline's topology as text, as a Mermaid flowchart, or as an SVG drawing."""
    job = (await ask.jobs(pipeline))[0]  # every job of a pipeline keeps the whole topology
    content = {Form.TEXT: job.description, Form.MERMAID: job.drawing, Form.SVG: job.picture}[form]
    if not content:
        raise NotFound(f"Pipeline {pipeline!r} has not been drawn as {form}.", next_step="Ask for format=text.")
    if form is Form.SVG:
        # Names and expressions in it are an author's: nothing in a drawing may run.
        headers = {"Content-Security-Policy": "default-src 'none'; style-src 'unsafe-inline'; sandbox"}
        return Response(content, media_type="image/svg+xml", headers=headers)
    return Response(content, media_type="text/plain; charset=utf-8")


async def _job_reply(ask: Asking, job: JobInfo) -> JobReply:
    newest = await _cuts(ask, job, 1)
    stores = [store.name for store in job.stores]
    cut = CutReply.of(newest[0]) if newest else None
    return JobReply(job.job, job.generation, job.topics, stores, len(job.workers), cut)


async def _cuts(ask: Asking, job: JobInfo, limit: int) -> list[Cut]:
    return await ask.reader.catalogue.cuts(job.pipeline, job.job, limit)
