"""Alert on the age of a pipeline's data, after a run or unread records have missed the deadline."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from pkgutil import resolve_name
from typing import Any

import structlog

from sluice.airflow_releases import AsyncCallback, DeadlineAlert, DeadlineReference
from sluice.errors import Overdue, SluiceError
from sluice.settings import Settings, settings
from sluice.state.ledger.failures import Failure
from sluice.state.ledger.ledger import Ledger
from sluice.state.model import Snapshot
from sluice.values.phrases import duration_text

log = structlog.get_logger(__name__)

Notify = Callable[..., Awaitable[object]]
"""`async def notify(pipeline, detail, context)`; `context` has `dag_run` and, for a run's deadline,
`deadline`."""


def deadline_alert(pipeline: str, deadline_ms: int, notify: str = "") -> DeadlineAlert:
    """Return the alert for a run that has not succeeded `deadline_ms` after it was queued.

    Airflow calls the alert, which checks how old the data are. `notify` is the import path of an
    async function, which is called if the data are too old.
    """
    arguments = {"pipeline": pipeline, "deadline_ms": deadline_ms, "notify": notify}
    return DeadlineAlert(
        DeadlineReference.DAGRUN_QUEUED_AT,
        timedelta(milliseconds=deadline_ms),
        AsyncCallback(check_age, arguments),
    )


async def check_age(
    pipeline: str,
    deadline_ms: int,
    notify: str = "",
    context: dict[str, Any] | None = None,
) -> str:
    """Alert unless a snapshot has been published since the run was queued.

    Airflow's triggerer calls this when the deadline has passed. The end of the run does not matter,
    because a run that lingers can last longer than the deadline although its data are new. Returns
    a sentence about the outcome.
    """
    context = context or {}
    allowed = timedelta(milliseconds=deadline_ms)
    ended = (context.get("deadline") or {}).get("deadline_time") or datetime.now(UTC)
    queued = (datetime.fromisoformat(ended) if isinstance(ended, str) else ended) - allowed
    why = f"The run has not succeeded {duration_text(deadline_ms)} after it was queued"
    return await alert(pipeline, queued, why, notify, context)


async def alert(
    pipeline: str,
    since: datetime,
    why: str,
    notify: str,
    context: dict[str, Any],
) -> str:
    """Record that a pipeline's data are too old, and call `notify`.

    Do nothing if the newest snapshot is newer than `since`. Alerts only once until a run has read
    all records. Returns a sentence about the outcome.
    """
    run = str((context.get("dag_run") or {}).get("dag_run_id", ""))
    detail = await asyncio.to_thread(_note_if_old, settings(), pipeline, since, why, run)
    if not detail:
        log.info("deadline missed, no alert", pipeline=pipeline, run=run)
        return "The data are new, or there has been an alert."
    log.error("data too old", pipeline=pipeline, run=run, detail=detail)
    if notify:
        function: Notify = resolve_name(notify)
        await function(pipeline=pipeline, detail=detail, context=context)
    return detail


def keep_current(failure: Failure, why: str) -> None:
    """Update the text of a recorded failure that says why the data are too old."""
    with suppress(SluiceError, OSError), Ledger.open(settings().ledger) as ledger:
        newest = ledger.snapshots.latest(failure.pipeline)
        ledger.failures.change(failure, detail=_detail(why, newest))


def _detail(why: str, newest: Snapshot | None) -> str:
    published = "nothing is published" if newest is None else f"snapshot {newest.id} is older"
    return f"{why}, and {published}."


def _note_if_old(
    configuration: Settings,
    pipeline: str,
    since: datetime,
    why: str,
    run: str,
) -> str:
    with Ledger.open(configuration.ledger) as ledger:
        if ledger.pauses.of(pipeline) is not None:
            return ""
        newest = ledger.snapshots.latest(pipeline)
        # The data are new. A run that lingers has published without ending, or another run has
        # published meanwhile.
        if newest is not None and newest.published_at >= since:
            return ""
        late = Overdue(_detail(why, newest))
        failure = Failure.of(late, pipeline, run=run, kind="overdue", secrets=configuration.secrets)
        return late.detail if ledger.failures.add_if_new(failure) else ""
