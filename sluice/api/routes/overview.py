"""An overview of all pipelines: health, unread records, last run, and dead letters."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Collection
from datetime import datetime
from typing import Annotated

import msgspec
from msgspec import Meta
from starlette.requests import Request
from starlette.responses import Response

from sluice import answers
from sluice.answers import FailureKind, PipelineHealth
from sluice.api.airflow_causes import explained
from sluice.api.http.replies import reply, snapshot_answer
from sluice.api.http.route import Router
from sluice.api.routes.access import Access, access_of
from sluice.api.routes.pipeline_routes import failure_answer, pause_answer
from sluice.api.runs import DagState
from sluice.kafka.unread_records import Lag, Offsets
from sluice.observe.health import Calm, awaited_by, calm_of, failures_of, input_away, trouble_of
from sluice.observe.monitoring import LedgerFigures, newest_event

router = Router("overview", "/v1/overview")

_RECENT_BATCHES = 30
"""The number of batches that the overview shows for each pipeline."""
_NO_DAG = DagState(paused=False, last_run=None)


class ChosenPipelines(msgspec.Struct, frozen=True, kw_only=True):
    """The filters that choose pipelines of the overview."""

    health: Annotated[
        PipelineHealth | None, Meta(description="Only pipelines with this health.")
    ] = None
    owner: Annotated[str, Meta(description="Only pipelines of this owner.", max_length=200)] = ""
    tag: Annotated[str, Meta(description="Only pipelines with this tag.", max_length=200)] = ""
    name: Annotated[
        str, Meta(description="Only pipelines whose names contain this text.", max_length=200)
    ] = ""

    def chooses(self, overview: answers.Overview) -> bool:
        """Return whether these filters choose a pipeline."""
        return (
            self.health in (None, overview.health)
            and self.owner in ("", overview.owner)
            and (not self.tag or self.tag in overview.tags)
            and self.name.lower() in overview.pipeline.lower()
        )


class OverviewQuery(ChosenPipelines, frozen=True, kw_only=True):
    """The parameters of `show_overview`."""

    pipeline: Annotated[str, Meta(description="Only this pipeline.", max_length=200)] | None = None
    limit: Annotated[
        int, Meta(description="Maximum number of pipelines; 0 for all.", ge=0, le=100_000)
    ] = 0


class SummaryQuery(ChosenPipelines, frozen=True, kw_only=True):
    """The parameters of `summarize`."""

    limit: Annotated[
        int, Meta(description="Maximum number of pipelines in `first`.", ge=0, le=100_000)
    ] = 0


@router.get("", list[answers.Overview], parameters=OverviewQuery)
async def show_overview(request: Request, query: OverviewQuery) -> Response:
    """Return all pipelines that you may read, the worst first.

    Each has its health, its unread records, and its dead letters of a day.
    """
    overviews = await _overviews(await access_of(request), query.pipeline)
    chosen = [overview for overview in overviews if query.chooses(overview)]
    return reply(chosen[: query.limit or None])


@router.get("/summary", answers.OverviewSummary, parameters=SummaryQuery)
async def summarize(request: Request, query: SummaryQuery) -> Response:
    """Count the pipelines that you may read by health, owner and tag, and return the worst ones."""
    overviews = await _overviews(await access_of(request))
    chosen = [overview for overview in overviews if query.chooses(overview)]
    owners: Counter[str] = Counter()
    tags: Counter[str] = Counter()
    for overview in overviews:
        owners[overview.owner] += 1
        tags.update(overview.tags)
    return reply(
        answers.OverviewSummary(
            pipelines=len(overviews),
            matching=len(chosen),
            failing=sum(bool(overview.failures) for overview in overviews),
            health=dict(Counter(overview.health for overview in overviews)),
            owners=dict(owners),
            tags=dict(tags),
            first=chosen[: query.limit],
        )
    )


async def _overviews(access: Access, pipeline: str | None = None) -> list[answers.Overview]:
    """Return all pipelines that the user may read, or one of them, the worst first."""
    figures, recent, dags = await asyncio.gather(
        access.figures("all", LedgerFigures.read),
        access.figures("recent", lambda ledger: ledger.snapshots.recent_counts(_RECENT_BATCHES)),
        asyncio.to_thread(access.services.runs.dags),
    )
    readable = await access.user.readable(sorted({*figures.pipelines, *dags}))
    names: list[str] = []
    positions: dict[str, Offsets] = {}
    for name in readable:
        if pipeline in (None, name):
            names.append(name)
            if name in figures.positions:
                positions[name] = figures.positions[name]
    lags, errors = await access.services.lags(positions)
    overviews: list[answers.Overview] = []
    for name in names:
        dag = dags.get(name, _NO_DAG)
        error = errors.get(access.services.connections.of(name), "")
        overview = await _overview(access, name, figures, dag, lags.get(name), error)
        records = [*recent.get(name, ())]
        overviews.append(msgspec.structs.replace(overview, records=records))
    order = list(PipelineHealth)
    overviews.sort(key=lambda overview: order.index(overview.health))
    return overviews


async def _overview(
    access: Access,
    name: str,
    figures: LedgerFigures,
    dag: DagState,
    lag: Lag | None,
    error: str,
) -> answers.Overview:
    generation, newest = figures.generations.get(name), figures.snapshots.get(name)
    unread: int | None = None
    held_since: datetime | None = None
    partitions: list[answers.PartitionLag] = []
    lag_error = ""
    if lag is None:
        lag_error = awaited_by(figures, name) or error or "Nothing has been read yet."
    else:
        unread, partitions = lag.unread, _partitions(lag)
        held_since = access.services.held_since(lag)
        missing = [] if generation is None else lag.missing(generation.topics)
        if missing:
            # Nobody knows how many records of a missing topic are unread.
            unread = None
            lag_error = input_away(missing, read=lag.positions, denied=lag.denied).detail
    failures = explained(failures_of(figures, name, lag, error, held_since), name, dag)
    calm = calm_of(figures, name)
    kinds = {failure.kind for failure in failures}
    return answers.Overview(
        pipeline=name,
        health=_health(kinds, dag, name in figures.running, unread, calm),
        paused=dag.paused,
        pause=pause_answer(figures.pauses.get(name)),
        failures=[failure_answer(failure) for failure in failures],
        unread=unread,
        lag=partitions,
        held_since=next((failure.at for failure in failures if failure.kind == "held"), None),
        lag_error=lag_error,
        snapshot=None if newest is None else snapshot_answer(newest),
        last_run=dag.last_run,
        dead_letters=dict(figures.dead_letters.get(name, {})),
        may_edit=await access.user.may_edit(name),
        newest_event=None if newest is None else newest_event(newest),
        records=[],
        tags=[*dag.tags],
        owner=dag.owner,
    )


def _health(
    kinds: Collection[FailureKind],
    dag: DagState,
    held: bool,
    unread: int | None,
    calm: Calm | None,
) -> PipelineHealth:
    """Return the health of a pipeline with failures of these kinds.

    `held`: a driver holds the pipeline's lease.
    """
    trouble = trouble_of(kinds)
    if trouble == "broken":
        return PipelineHealth.BROKEN
    state = dag.last_run.state if dag.last_run else ""
    # A driver or a task that waits for others does no work, although Airflow shows it as running.
    is_at_work = not {"slot", "lease", "registry"} & {*kinds}
    # If the lease is held, a driver is running, even if Airflow has not started this driver. After
    # a failed run, a held lease proves nothing, because a killed driver's lease is held until it
    # expires.
    if is_at_work and (state == "running" or (held and state != "failed")):
        return PipelineHealth.RUNNING
    if calm == "paused":
        return PipelineHealth.PAUSED
    # The run waits for the registry, or has failed and is repeated until the registry is back.
    if trouble == "waiting" and "registry" in kinds:
        return PipelineHealth.WAITING
    # Airflow still shows the last run of a retired pipeline as failed. This is no longer a failure.
    if trouble == "failed" or (state == "failed" and calm != "retired"):
        return PipelineHealth.FAILED
    if trouble == "waiting":
        return PipelineHealth.WAITING
    if state == "queued":
        return PipelineHealth.RUNNING
    if trouble is not None:
        return PipelineHealth(trouble)
    if calm is not None:
        return PipelineHealth(calm)
    if unread:
        return PipelineHealth.BEHIND
    return PipelineHealth.IDLE


def _partitions(lag: Lag) -> list[answers.PartitionLag]:
    partitions: list[answers.PartitionLag] = []
    for topic, partition in sorted(lag.partitions()):
        partitions.append(
            answers.PartitionLag(
                topic=topic,
                partition=partition,
                position=lag.positions.get(topic, {}).get(partition),
                end=lag.full_end(topic, partition),
                unread=lag.unread_in(topic, partition),
                held=lag.held_in(topic, partition),
            )
        )
    return partitions
