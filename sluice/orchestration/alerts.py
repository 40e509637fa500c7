"""The alert on the age of a pipeline's data, which Airflow's triggerer calls when a run has missed its deadline."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime, timedelta
from pkgutil import resolve_name
from typing import Any

import structlog
from airflow.sdk.definitions.callback import AsyncCallback
from airflow.sdk.definitions.deadline import DeadlineAlert, DeadlineReference

from sluice.errors import Overdue
from sluice.settings import Settings, settings
from sluice.state.ledger.failures import Failure
from sluice.state.ledger.ledger import Ledger
from sluice.state.model import JOB
from sluice.values.durations import duration_text

log = structlog.get_logger(__name__)

Notify = Callable[..., Awaitable[object]]
"""`async def notify(pipeline, detail, context)`; `context` has `dag_run` and `deadline`."""


def deadline_alert(pipeline: str, deadline_ms: int, notify: str = "") -> DeadlineAlert:
    """The alert that checks a pipeline's data `deadline_ms` after a run was queued, if it has not ended.

    `notify` is the import path of an async function, which is called if the data are too old.
    """
    arguments = {"pipeline": pipeline, "deadline_ms": deadline_ms, "notify": notify}
    return DeadlineAlert(
        DeadlineReference.DAGRUN_QUEUED_AT, timedelta(milliseconds=deadline_ms), AsyncCallback(check_age, arguments)
    )


async def check_age(pipeline: str, deadline_ms: int, notify: str = "", context: dict[str, Any] | None = None) -> str:
    """Record a failure of the pipeline if its newest snapshot is older than the deadline, and call `notify`.

    A run that lingers can last longer than the deadline, although its data are new. Returns what was found.
    """
    run = str(((context or {}).get("dag_run") or {}).get("dag_run_id", ""))
    detail = await asyncio.to_thread(_note_if_old, settings(), pipeline, deadline_ms, run)
    if not detail:
        log.info("deadline missed, data are new", pipeline=pipeline, run=run)
        return "The data are new."
    log.error("data too old", pipeline=pipeline, run=run, detail=detail)
    if notify:
        function: Notify = resolve_name(notify)
        await function(pipeline=pipeline, detail=detail, context=context)
    return detail


def _note_if_old(known: Settings, pipeline: str, deadline_ms: int, run: str) -> str:
    with Ledger.open(known.ledger) as ledger:
        newest = ledger.snapshots.latest(pipeline, JOB)
        if newest is not None and datetime.now(UTC) - newest.published_at <= timedelta(milliseconds=deadline_ms):
            return ""
        published = "and nothing is published" if newest is None else f"and snapshot {newest.id} is older"
        late = Overdue(f"The run has not ended {duration_text(deadline_ms)} after it was queued, {published}.")
        ledger.failures.add(Failure.of(late, pipeline, JOB, run=run, secrets=known.secrets))
        return late.detail
