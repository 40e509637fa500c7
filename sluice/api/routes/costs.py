"""What the runs of pipelines cost each day."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta
from typing import Annotated

import msgspec
from msgspec import Meta
from starlette.requests import Request
from starlette.responses import Response

from sluice import answers
from sluice.api.http.replies import reply
from sluice.api.http.route import Router
from sluice.api.routes.access import access_of
from sluice.state.ledger.finished_runs import COST_DAYS

router = Router("costs", "/v1/costs")


class CostsQuery(msgspec.Struct, frozen=True, kw_only=True):
    """The parameters of `list_costs`."""

    days: Annotated[
        int, Meta(description="The number of days up to today, in UTC.", ge=1, le=COST_DAYS)
    ] = 14


@router.get("", list[answers.DailyCost], parameters=CostsQuery)
async def list_costs(request: Request, query: CostsQuery) -> Response:
    """Return the daily costs of all pipelines that you may read, by pipeline and day."""
    access = await access_of(request)
    since = datetime.now(UTC).date() - timedelta(days=query.days - 1)
    costs, dags = await asyncio.gather(
        access.figures(("costs", since), lambda ledger: ledger.finished_runs.costs(since)),
        asyncio.to_thread(access.services.runs.dags),
    )
    readable = set(await access.user.readable(sorted({cost.pipeline for cost in costs})))
    shown: list[answers.DailyCost] = []
    for cost in costs:
        if cost.pipeline in readable:
            dag = dags.get(cost.pipeline)
            shown.append(
                answers.DailyCost(
                    pipeline=cost.pipeline,
                    owner="" if dag is None else dag.owner,
                    day=cost.day,
                    runs=cost.runs,
                    failed_runs=cost.failed_runs,
                    cpu_seconds=round(cost.cpu_seconds, 2),
                    gigabyte_seconds=round(cost.gigabyte_seconds, 2),
                )
            )
    return reply(shown)
