"""The task of the daily maintenance DAG."""

from __future__ import annotations

from typing import Any

import structlog

from sluice.errors import StateError
from sluice.settings import settings
from sluice.snapshot_retention import retain
from sluice.state.ledger.ledger import Ledger

log = structlog.get_logger(__name__)


def retain_all(params: dict[str, Any]) -> None:
    """Apply retention to every pipeline. Raises StateError at the end if some shards could not be reached."""
    failed: list[str] = []
    with Ledger.open(settings().ledger) as ledger:
        for pipeline in ledger.jobs.pipelines():
            for done in retain(ledger, pipeline, params["keep_snapshots"], params["keep_hours"] * 3_600.0):
                log.info("retained", pipeline=pipeline, job=done.job, snapshots=done.snapshots, versions=done.versions)
                failed += [f"{pipeline}/{done.job}, worker {worker}: {why}" for worker, why in done.failed.items()]
    if failed:
        raise StateError(f"Shards could not be compacted: {'; '.join(failed)}")
