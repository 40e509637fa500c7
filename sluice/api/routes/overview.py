"""An overview of all pipelines: health, unread records, last run, and dead letters."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from datetime import UTC, datetime

from starlette.requests import Request
from starlette.responses import Response

from sluice import answers
from sluice.answers import PipelineHealth
from sluice.api.http.replies import reply, snapshot_answer
from sluice.api.http.route import Router
from sluice.api.routes.access import Access, access_of
from sluice.api.routes.pipeline_routes import failure_answer
from sluice.api.runs import DagState
from sluice.errors import BrokersUnreachable
from sluice.kafka.unread_records import Lag, Offsets
from sluice.observe import monitoring
from sluice.state.ledger.failures import Failure
from sluice.state.ledger.ledger import Ledger
from sluice.state.model import GenerationInfo, GenerationRef

router = Router("overview", "/v1/overview")

_NO_DAG = DagState(paused=False, last_run=None)


@router.get("", list[answers.Overview])
async def show_overview(request: Request, _query: object) -> Response:
    """All pipelines that you may read, the worst first: health, unread records, last run, dead letters of a day."""
    access = await access_of(request)
    generations, failures, dags = await asyncio.gather(
        access.generations(), access.failures(), asyncio.to_thread(access.services.runs.dags)
    )
    current = {info.pipeline: info for info in generations}
    names = {*current} | {failure.pipeline for failure in failures}
    names |= {name for name in dags if await access.may_read(name)}
    positions = await access.figures("positions", _positions)
    lags, error = await _lags(access, {name: read for name, read in positions.items() if name in names})
    overviews: list[answers.Overview] = []
    for name in sorted(names):
        own_failures = [failure for failure in failures if failure.pipeline == name]
        dag = dags.get(name, _NO_DAG)
        overviews.append(await _overview(access, name, current.get(name), own_failures, dag, lags.get(name), error))
    order = list(PipelineHealth)
    return reply(sorted(overviews, key=lambda overview: order.index(overview.health)))


async def _overview(
    access: Access,
    name: str,
    generation: GenerationInfo | None,
    failures: list[Failure],
    dag: DagState,
    lag: Lag | None,
    error: str,
) -> answers.Overview:
    newest = None if generation is None else await access.reader.catalogue.newest(name)
    held = generation is not None and await access.figures(
        ("held", name), lambda ledger: _is_held(ledger, generation.ref)
    )
    missing = [] if lag is None or generation is None else sorted({*generation.topics} - {*lag.ends})
    if missing:
        lag_error = f"Missing topics: {', '.join(missing)}."
    elif lag is None:
        lag_error = error or "Nothing has been read yet."
    else:
        lag_error = ""
    # Without one of its topics, nobody knows how many records of a pipeline are unread.
    unread = None if lag is None or missing else lag.unread
    since = None if lag is None else access.services.held_since(lag)
    return answers.Overview(
        pipeline=name,
        health=_health(failures, dag, held, unread, since, is_away=bool(missing or (lag is None and error))),
        paused=dag.paused,
        failures=[failure_answer(failure) for failure in failures],
        unread=unread,
        lag=_partitions(lag) if lag else [],
        held_since=since,
        lag_error=lag_error,
        snapshot=None if newest is None else snapshot_answer(newest.snapshot),
        last_run=dag.last_run,
        dead_letters=await access.figures(
            ("dead letters", name),
            lambda ledger: monitoring.dead_letters(ledger, name, datetime.now(UTC) - monitoring.DAY),
        ),
        may_edit=await access.user.may_edit(name),
    )


def _health(
    failures: list[Failure],
    dag: DagState,
    held: bool,
    unread: int | None,
    held_back: datetime | None,
    *,
    is_away: bool,
) -> PipelineHealth:
    """`is_away`: the brokers do not answer, or have not all topics of the pipeline."""
    kinds = {failure.kind for failure in failures}
    if "file" in kinds:
        return PipelineHealth.BROKEN
    state = dag.last_run.state if dag.last_run else ""
    # A driver that Airflow did not start also holds the lease. A failed run may leave the lease until it expires.
    if state == "running" or (held and state != "failed"):
        return PipelineHealth.RUNNING
    if {"run", "overdue"} & kinds or state == "failed":
        return PipelineHealth.FAILED
    if is_away or "input" in kinds:
        return PipelineHealth.WAITING
    if state == "queued":
        return PipelineHealth.RUNNING
    if held_back is not None:
        return PipelineHealth.HELD
    if "rejections" in kinds:
        return PipelineHealth.DEGRADED
    return PipelineHealth.BEHIND if unread else PipelineHealth.IDLE


def _positions(ledger: Ledger) -> dict[str, Offsets]:
    return {pipeline: ledger.positions(pipeline) for pipeline in ledger.generations.pipelines()}


async def _lags(access: Access, positions: Mapping[str, Offsets]) -> tuple[dict[str, Lag], str]:
    """The lags by pipeline, and the reason if they are unknown."""
    if not positions:
        return {}, ""
    try:
        return await access.services.lag(positions), ""
    except BrokersUnreachable as error:
        return {}, error.detail


def _is_held(ledger: Ledger, ref: GenerationRef) -> bool:
    """Whether a driver holds the generation's lease."""
    lease = ledger.leases.get(ref)
    return lease is not None and lease.held


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
