"""Routes for pipelines: health, snapshots, batches, runs, workers and topology."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime
from enum import StrEnum
from typing import Annotated
from urllib.parse import quote

import msgspec
from msgspec import Meta
from starlette.requests import Request
from starlette.responses import Response

from sluice import answers
from sluice.answers import Health, WorkerStatus
from sluice.api.http.replies import age_seconds, reply, snapshot_answer
from sluice.api.http.route import Router
from sluice.api.routes.access import Access, access_of
from sluice.errors import NotFound, QueryError
from sluice.observe import monitoring
from sluice.observe.activity import activity
from sluice.observe.batch_history import history
from sluice.observe.health import calm_of, recorded_failures, trouble_of
from sluice.observe.monitoring import LedgerFigures
from sluice.query.ledger_reads import read_ledger
from sluice.query.time_texts import parse_moment
from sluice.state.ledger.failures import Failure
from sluice.state.ledger.finished_runs import FinishedRun
from sluice.state.ledger.ledger import Ledger
from sluice.state.ledger.pauses import LONGEST_REASON, Pause
from sluice.state.model import GenerationInfo, WorkerInfo
from sluice.state.shard.sizes import size_of
from sluice.values.replay_span import LONGEST_POINT, Span

router = Router("pipelines", "/v1/pipelines", 400, 404)

_NO_SNIFF = {"X-Content-Type-Options": "nosniff"}

MOST_RUNS = 200
"""The largest number of runs that a request gets from Airflow."""

Pipeline = Annotated[str, Meta(description="The pipeline's name.", max_length=200)]


CHANGED_ONLY = "--changed-only"
"""A failure whose next step contains this option can be resolved by a run with the action
`change`."""


class Form(StrEnum):
    """An output format of a topology."""

    TEXT = "text"
    SVG = "svg"


class PipelineQuery(msgspec.Struct, frozen=True, kw_only=True):
    pipeline: Pipeline


class SnapshotsQuery(PipelineQuery, frozen=True, kw_only=True):
    """The parameters of `list_snapshots`."""

    limit: Annotated[int, Meta(description="Maximum number of snapshots.", ge=1, le=1_000)] = 20


class BatchesQuery(PipelineQuery, frozen=True, kw_only=True):
    """The parameters of `list_batches`."""

    limit: Annotated[int, Meta(description="Maximum number of batches.", ge=1, le=5_000)] = 100
    since: (
        Annotated[
            str,
            Meta(description="Only batches published at this time or later.", max_length=100),
        ]
        | None
    ) = None


class HistoryQuery(PipelineQuery, frozen=True, kw_only=True):
    """The parameters of `show_history`."""

    since: Annotated[str, Meta(description="The begin of the time.", max_length=100)]
    until: Annotated[str, Meta(description="The end of the time.", max_length=100)]
    columns: Annotated[int, Meta(description="The number of columns.", ge=1, le=500)] = 120


class RunsQuery(PipelineQuery, frozen=True, kw_only=True):
    """The parameters of `list_runs`."""

    limit: Annotated[int, Meta(description="Maximum number of runs.", ge=1, le=MOST_RUNS)] = 20


class FinishedRunsQuery(PipelineQuery, frozen=True, kw_only=True):
    """The parameters of `list_finished_runs`."""

    since: Annotated[str, Meta(description="The begin of the time.", max_length=100)]
    until: Annotated[str, Meta(description="The end of the time.", max_length=100)]
    limit: Annotated[int, Meta(description="Maximum number of runs.", ge=1, le=1_000)] = 200


class ActivityQuery(PipelineQuery, frozen=True, kw_only=True):
    """The parameters of `list_activity`."""

    limit: Annotated[int, Meta(description="Maximum number of activities.", ge=1, le=1_000)] = 100


class Action(StrEnum):
    """The action of a run."""

    RUN = "run"
    """Read all unread records."""
    REPLAY = "replay"
    """Build the state again from the topics in a new generation, beside the current generation."""
    PROMOTE = "promote"
    """Make the generation of a replay current, after it has processed the batches that were
    published meanwhile."""
    DROP = "drop"
    """Remove the generation that a replay has built."""
    ROLL_BACK = "roll_back"
    """Undo a promotion: make the earlier generation current again. The pipeline's file must be the
    earlier generation's file."""
    CHANGE = "change"
    """Compute only new and changed stores from the topics, delete the entries of removed stores,
    keep the state of all others, and then run."""


Point = Annotated[str, Meta(max_length=LONGEST_POINT)]


class StartRun(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The action and options of a run to start."""

    action: Action = Action.RUN
    begin: Annotated[
        Point | None, Meta(description="Where a replay begins: beginning, a time or offsets.")
    ] = msgspec.field(default=None, name="from")
    until: Annotated[Point | None, Meta(description="Where a replay ends: a time or offsets.")] = (
        None
    )


class StartPause(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Why a pipeline is paused."""

    reason: Annotated[
        str, Meta(description="Why the pipeline is paused.", max_length=LONGEST_REASON)
    ]


class Resume(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The empty body of a request to resume a pipeline."""


class TopologyQuery(PipelineQuery, frozen=True, kw_only=True):
    """The parameters of `get_topology`."""

    form: Annotated[Form, Meta(description="The output format.")] = msgspec.field(
        default=Form.TEXT, name="format"
    )


@router.get("", list[answers.PipelineStatus])
async def list_pipelines(request: Request, _query: object) -> Response:
    """Return all pipelines that you may read, with current generations and unresolved failures."""
    access = await access_of(request)
    figures = await access.figures("all", LedgerFigures.read)
    names = await access.user.readable(figures.pipelines)
    return reply([_pipeline(figures, name) for name in names])


@router.get("/{pipeline}/snapshots", list[answers.CountedSnapshot], parameters=SnapshotsQuery)
async def list_snapshots(request: Request, query: SnapshotsQuery) -> Response:
    """Return the newest snapshots of the pipeline, newest first."""
    access = await access_of(request)
    await access.generation(query.pipeline)
    snapshots = await access.reader.catalogue.snapshots(query.pipeline, query.limit)
    counted: list[answers.CountedSnapshot] = []
    for snapshot in snapshots:
        shown = snapshot_answer(snapshot)
        counted.append(answers.CountedSnapshot(shown, snapshot.run, snapshot.counts))
    return reply(counted)


@router.get("/{pipeline}/batches", list[answers.BatchHistory], parameters=BatchesQuery)
async def list_batches(request: Request, query: BatchesQuery) -> Response:
    """Return the newest batches of the pipeline with their audits, newest first."""
    access = await access_of(request)
    info, root = await access.generation(query.pipeline), access.services.runs.root
    since = None if query.since is None else parse_moment("since", query.since)
    name = ("batches", info.ref, query.limit, since)
    return reply(
        await access.figures(
            name, lambda ledger: monitoring.batches(ledger, info, query.limit, root, since)
        )
    )


@router.get("/{pipeline}/history", answers.History, parameters=HistoryQuery)
async def show_history(request: Request, query: HistoryQuery) -> Response:
    """Divide a period into equal parts, and add up the pipeline's batches and runs in each part."""
    access = await access_of(request)
    info = await access.generation(query.pipeline)
    since, until = parse_moment("since", query.since), parse_moment("until", query.until)
    if until <= since:
        raise QueryError("`until` is not later than `since`.", next_step="Swap the two times.")
    name = ("history", info.ref, since, until, query.columns)
    return reply(
        await access.figures(
            name, lambda ledger: history(ledger, info, since, until, query.columns)
        )
    )


@router.get("/{pipeline}/runs", list[answers.Run], parameters=RunsQuery)
async def list_runs(request: Request, query: RunsQuery) -> Response:
    """Return the newest runs of the DAG in Airflow, newest first; empty on a state server."""
    access = await access_of(request)
    await access.require_pipeline(query.pipeline)
    return reply(await asyncio.to_thread(access.services.runs.recent, query.pipeline, query.limit))


@router.get("/{pipeline}/finished-runs", list[answers.FinishedRun], parameters=FinishedRunsQuery)
async def list_finished_runs(request: Request, query: FinishedRunsQuery) -> Response:
    """Return the runs that ended in a period and what they cost, newest first.

    They include runs from the command line. Runs are kept for eight days.
    """
    access = await access_of(request)
    await access.require_pipeline(query.pipeline)
    root = access.services.runs.root
    since, until = parse_moment("since", query.since), parse_moment("until", query.until)
    name = ("finished runs", query.pipeline, since, until, query.limit)

    def read(ledger: Ledger) -> list[answers.FinishedRun]:
        runs = ledger.finished_runs.between(query.pipeline, since, until, query.limit)
        return [_finished_run(run, root) for run in runs]

    return reply(await access.figures(name, read))


@router.get("/{pipeline}/activity", list[answers.Activity], parameters=ActivityQuery)
async def list_activity(request: Request, query: ActivityQuery) -> Response:
    """Return who did what to the pipeline, newest first.

    The list has runs that users started, pauses, replays, re-drives and so on. It also has changes
    of the pipeline's file or of Sluice's version, once a run has used them.
    """
    access = await access_of(request)
    await access.require_pipeline(query.pipeline)
    runs = await asyncio.to_thread(access.services.runs.recent, query.pipeline, MOST_RUNS)
    path = _runs_path(access.services.runs.root, query.pipeline)
    ledger, now = access.state.ledger, datetime.now(UTC)
    return reply(
        await read_ledger(lambda: activity(ledger, query.pipeline, runs, path, query.limit, now))
    )


@router.post("/{pipeline}/runs", answers.Started, body=StartRun, parameters=PipelineQuery)
async def start_run(request: Request, query: PipelineQuery, start: StartRun) -> Response:
    """Trigger the pipeline's DAG.

    The run reads records, replays into a new generation, or promotes or drops that generation. The
    user needs the permission to edit the DAG. The new run waits until the previous run has ended.
    """
    access = await access_of(request)
    await access.require_edit(query.pipeline)
    runs, parameters = access.services.runs, {"action": start.action.value}
    points: dict[str, str] = {}
    if start.begin:
        points["from"] = start.begin
    if start.until:
        points["until"] = start.until
    # The user gets the error for an invalid start or end of a replay at once, and not in the log of
    # a failed run.
    Span.parse(start.begin, start.until)
    if points and start.action is not Action.REPLAY:
        raise QueryError(
            f"Only a replay takes {' and '.join(f'`{name}`' for name in points)}.",
            next_step='Leave them out, or set "action" to "replay".',
        )
    run = await asyncio.to_thread(runs.start, query.pipeline, parameters | points, access.user.name)
    detail = ", ".join(f"{name} {point}" for name, point in points.items())
    await access.note(query.pipeline, start.action.value, detail, run)
    path = _runs_path(runs.root, query.pipeline)
    return reply(answers.Started(run, f"{path}/{quote(run, safe='')}"))


def _runs_path(root: str, pipeline: str) -> str:
    return f"{root}/dags/{quote(pipeline, safe='')}/runs"


@router.post("/{pipeline}/pause", answers.Pause, body=StartPause, parameters=PipelineQuery)
async def pause_pipeline(request: Request, query: PipelineQuery, pause: StartPause) -> Response:
    """Pause the pipeline: its runs do not start, and nothing counts as wrong with it.

    The user needs the permission to edit the DAG. A run in progress ends when it has read all
    records.
    """
    access = await access_of(request)
    await access.require_edit(query.pipeline)
    ledger, reason = access.state.ledger, pause.reason.strip()
    if not reason:
        raise QueryError("A pause needs a reason.", next_step='Write for example "new prices".')
    paused = await asyncio.to_thread(ledger.pauses.pause, query.pipeline, reason, access.user.name)
    await access.note(query.pipeline, "pause", reason)
    access.forget_figures()
    return reply(pause_answer(paused))


@router.post("/{pipeline}/resume", answers.Resumed, body=Resume, parameters=PipelineQuery)
async def resume_pipeline(request: Request, query: PipelineQuery, _resume: Resume) -> Response:
    """Let the pipeline run again. The user needs the permission to edit the DAG."""
    access = await access_of(request)
    await access.require_edit(query.pipeline)
    was_paused = await asyncio.to_thread(access.state.ledger.pauses.resume, query.pipeline)
    if was_paused:
        await access.note(query.pipeline, "resume")
    access.forget_figures()
    return reply(answers.Resumed(was_paused))


@router.get("/{pipeline}/generations", list[answers.Generation], parameters=PipelineQuery)
async def list_generations(request: Request, query: PipelineQuery) -> Response:
    """Return the pipeline's current generation, and those of unfinished rebuilds and replays."""
    access = await access_of(request)
    await access.generation(query.pipeline)
    return reply(
        await read_ledger(lambda: monitoring.generations(access.state.ledger, query.pipeline))
    )


@router.get("/{pipeline}/workers", list[answers.Worker], parameters=PipelineQuery)
async def list_workers(request: Request, query: PipelineQuery) -> Response:
    """Return the workers of the pipeline: address, stores and status."""
    access = await access_of(request)
    return reply(await _workers(access, await access.generation(query.pipeline)))


@router.get(
    "/{pipeline}/topology",
    parameters=TopologyQuery,
    media_types=("text/plain; charset=utf-8", "image/svg+xml"),
)
async def get_topology(request: Request, query: TopologyQuery) -> Response:
    """Return the pipeline's topology as text, or as an SVG drawing.

    If the pipeline has never run, the topology comes from the pipeline's file.
    """
    access = await access_of(request)
    await access.require_pipeline(query.pipeline)
    text, svg = await _topology(access, query.pipeline)
    content = svg if query.form is Form.SVG else text
    if not content:
        raise NotFound(
            f"Pipeline {query.pipeline!r} has no topology as {query.form}.",
            next_step="Use format=text.",
        )
    if query.form is Form.SVG:
        # The pipeline's author chooses the names and expressions in a drawing, so scripts in the
        # drawing must not run.
        headers = _NO_SNIFF | {
            "Content-Security-Policy": "default-src 'none'; style-src 'unsafe-inline'; sandbox"
        }
        return Response(content, media_type="image/svg+xml", headers=headers)
    return Response(content, media_type="text/plain; charset=utf-8", headers=_NO_SNIFF)


async def _topology(access: Access, pipeline: str) -> tuple[str, str]:
    """Return the topology as text and as SVG; empty texts if it is unknown."""
    for info in await access.reader.catalogue.generations():
        if info.pipeline == pipeline:
            return info.description, info.picture
    declared = await access.services.declared.topology(pipeline)
    if declared is None:
        return "", ""
    return declared.text, declared.svg


def failure_answer(failure: Failure) -> answers.Failure:
    """Return the answer for a failure, with the failure's age and the action that resolves it."""
    return answers.Failure(
        kind=failure.kind,
        host=failure.host,
        run=failure.run,
        at=failure.at,
        age_seconds=age_seconds(failure.at),
        title=failure.title,
        detail=failure.detail,
        next_step=failure.next_step,
        seen_at=failure.seen_at,
        outlook=failure.outlook,
        repeats_at=failure.repeats_at,
        remedy="change" if CHANGED_ONLY in failure.next_step else "",
    )


def _finished_run(run: FinishedRun, root: str) -> answers.FinishedRun:
    return answers.FinishedRun(
        began_at=run.began_at,
        ended_at=run.ended_at,
        run=run.run,
        log=monitoring.log_path(run.run, root),
        outcome=run.outcome,
        host=run.host,
        version=run.version,
        cpu_seconds=run.cpu_seconds,
        memory_bytes=run.memory_bytes,
        state_bytes=run.state_bytes,
    )


def pause_answer(pause: Pause | None) -> answers.Pause | None:
    """Return a pause without the pipeline's name."""
    if pause is None:
        return None
    return answers.Pause(pause.reason, pause.paused_by, pause.paused_at)


def _pipeline(figures: LedgerFigures, name: str) -> answers.PipelineStatus:
    failures = recorded_failures(figures, name)
    trouble = trouble_of({failure.kind for failure in failures})
    info, newest = figures.generations.get(name), figures.snapshots.get(name)
    generation: int | None = None
    topics: tuple[str, ...] = ()
    stores: list[str] = []
    workers = 0
    if info is not None:
        generation, topics, workers = info.generation, info.topics, len(info.workers)
        stores = [*info.stores_by_name]
    return answers.PipelineStatus(
        pipeline=name,
        status=Health(trouble or calm_of(figures, name) or "ok"),
        failures=[failure_answer(failure) for failure in failures],
        generation=generation,
        topics=topics,
        stores=stores,
        workers=workers,
        snapshot=None if newest is None else snapshot_answer(newest),
        pause=pause_answer(figures.pauses.get(name)),
    )


async def _workers(access: Access, info: GenerationInfo) -> list[answers.Worker]:
    statuses: list[WorkerStatus] = []
    if await access.reader.catalogue.newest(info.pipeline) is None:
        for worker in info.workers:
            nothing = "Nothing is published yet."
            statuses.append(WorkerStatus(worker.number, "unavailable", nothing))
    else:
        statuses += await access.reader.statuses(info.workers)
    stores = [*info.stores_by_name]
    workers: list[answers.Worker] = []
    for worker, status in zip(info.workers, statuses, strict=True):
        workers.append(
            answers.Worker(
                number=worker.number,
                host=worker.host,
                port=worker.port,
                stores=stores,
                status="degraded" if status.standby else status.status,
                reason=status.reason,
                bytes=_size(access, worker),
                standby=_standby(info, worker),
            )
        )
    return workers


def _standby(info: GenerationInfo, worker: WorkerInfo) -> answers.Standby | None:
    standby = worker.standby
    if standby is None:
        return None
    snapshot: str | None = None
    if standby.batch >= 0:
        snapshot = f"{info.generation}.{standby.batch}"
    return answers.Standby(standby.host, standby.port, snapshot)


def _size(access: Access, worker: WorkerInfo) -> int | None:
    """Return the size of a worker's shard.

    Return None if this server does not open it, or the size is unknown.
    """
    location = access.reader.workers.location(worker)
    if location is None:
        return None
    return size_of(location)
