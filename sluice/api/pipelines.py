"""Pipelines: their jobs, their snapshots and what became of the records, their topology."""

from __future__ import annotations

from datetime import UTC, datetime
from enum import StrEnum
from typing import Annotated, Literal

import msgspec
from msgspec import Meta
from starlette.requests import Request
from starlette.responses import Response

from sluice.api.access import Access, access
from sluice.api.replies import SnapshotReply, reply
from sluice.api.routes import Routes
from sluice.errors import NotFound
from sluice.query import WorkerStatus
from sluice.state.ledger.failures import Failure
from sluice.state.model import JobInfo, Snapshot

routes = Routes("pipelines", "/v1/pipelines", 404)

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
    snapshot: SnapshotReply | None


class Health(StrEnum):
    """How a pipeline is."""

    OK = "ok"
    """The last run of every job succeeded."""
    FAILED = "failed"
    """The last run of a job failed."""
    BROKEN = "broken"
    """Its file cannot be loaded: no job can run."""


class FailureReply(msgspec.Struct, frozen=True):
    """What failed and has not gone well since."""

    job: str
    """Empty for the pipeline's file, and for a run that failed before its first job."""
    run: str
    """Of Airflow; empty for a run that was started by hand."""
    at: datetime
    age_seconds: float
    title: str
    detail: str

    @classmethod
    def of(cls, failure: Failure) -> FailureReply:
        """A failure and its age now."""
        age = (datetime.now(UTC) - failure.at).total_seconds()
        return cls(failure.job, failure.run, failure.at, round(max(age, 0.0), 3), failure.title, failure.detail)


class PipelineReply(msgspec.Struct, frozen=True):
    """One pipeline, how it is, and its jobs: none if it has never run."""

    pipeline: str
    status: Health
    failures: list[FailureReply]
    jobs: list[JobReply]


class CountedSnapshot(msgspec.Struct, frozen=True):
    """One snapshot of a job, and what became of its batch's records."""

    job: str
    snapshot: SnapshotReply
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
    status: Literal["ok", "unavailable"]
    reason: str = ""


class PipelineQuery(msgspec.Struct, frozen=True, kw_only=True):
    """One pipeline."""

    pipeline: Pipeline


class SnapshotsQuery(PipelineQuery, frozen=True, kw_only=True):
    """Its newest snapshots."""

    limit: Annotated[int, Meta(description="How many of each job.", ge=1, le=1_000)] = 20


class TopologyQuery(PipelineQuery, frozen=True, kw_only=True):
    """Its topology."""

    form: Annotated[Form, Meta(description="How it is written.")] = msgspec.field(default=Form.TEXT, name="format")


@routes.get("", list[PipelineReply])
async def list_pipelines(request: Request, _asked: object) -> Response:
    """All pipelines you may read, each with its jobs, and with what failed and has not gone well since."""
    ask = await access(request)
    jobs, failures = await ask.jobs(), await ask.failures()
    names = sorted({job.pipeline for job in jobs} | {failure.pipeline for failure in failures})
    return reply([await _pipeline_reply(ask, name, jobs, failures) for name in names])


@routes.get("/{pipeline}/snapshots", list[CountedSnapshot], parameters=SnapshotsQuery)
async def list_snapshots(request: Request, asked: SnapshotsQuery) -> Response:
    """The newest snapshots of each of the pipeline's jobs, newest first."""
    ask = await access(request)
    snapshots = [
        snapshot for job in await ask.jobs(asked.pipeline) for snapshot in await _snapshots(ask, job, asked.limit)
    ]
    return reply(
        [
            CountedSnapshot(snapshot.job, SnapshotReply.of(snapshot), snapshot.run, snapshot.counts)
            for snapshot in snapshots
        ]
    )


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


async def _pipeline_reply(ask: Access, name: str, jobs: list[JobInfo], failures: list[Failure]) -> PipelineReply:
    mine = [failure for failure in failures if failure.pipeline == name]
    kinds = {failure.kind for failure in mine}
    status = Health.BROKEN if "file" in kinds else Health.FAILED if kinds else Health.OK
    told = [FailureReply.of(failure) for failure in mine]
    return PipelineReply(name, status, told, [await _job_reply(ask, job) for job in jobs if job.pipeline == name])


async def _job_reply(ask: Access, job: JobInfo) -> JobReply:
    newest = await _snapshots(ask, job, 1)
    stores = [store.name for store in job.stores]
    snapshot = SnapshotReply.of(newest[0]) if newest else None
    return JobReply(job.job, job.generation, job.topics, stores, len(job.workers), snapshot)


async def _workers(ask: Access, job: JobInfo) -> list[WorkerReply]:
    if await _snapshots(ask, job, 1):
        statuses = await ask.reader.statuses(job.workers)
    else:
        statuses = tuple(WorkerStatus(one.number, "unavailable", "Nothing is published yet.") for one in job.workers)
    stores = [store.name for store in job.stores]
    return [
        WorkerReply(job.job, one.number, one.host, one.port, stores, said.status, said.reason)
        for one, said in zip(job.workers, statuses, strict=True)
    ]


async def _snapshots(ask: Access, job: JobInfo, limit: int) -> list[Snapshot]:
    return await ask.reader.catalogue.snapshots(job.pipeline, job.job, limit)
