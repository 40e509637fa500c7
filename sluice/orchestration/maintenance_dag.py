"""The daily maintenance DAG."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import structlog
from airflow.providers.standard.operators.python import PythonOperator
from airflow.sdk import DAG, Param

from sluice.errors import StateError
from sluice.operations.retention import retain
from sluice.operations.state_growth import note_size
from sluice.orchestration.retries import maintenance_task_defaults
from sluice.settings import settings
from sluice.state.ledger.ledger import Ledger

log = structlog.get_logger(__name__)


def retain_all(params: dict[str, Any]) -> None:
    """Apply retention to every pipeline.

    Raises StateError at the end if some shards could not be reached.
    """
    failed: list[str] = []
    with Ledger.open(settings().ledger) as ledger:
        for pipeline in ledger.generations.pipelines():
            done = retain(ledger, pipeline, params["keep_snapshots"], params["keep_hours"] * 3_600.0)
            note_size(ledger, pipeline, datetime.now(UTC).date())
            log.info("retained", pipeline=pipeline, snapshots=done.snapshots, versions=done.versions)
            # One shard that cannot be reached must not keep other shards from being compacted.
            failed += [f"{pipeline}, worker {worker}: {why}" for worker, why in done.failed.items()]
    if failed:
        raise StateError(f"Shards could not be compacted: {'; '.join(failed)}")


def retention_dag() -> DAG:
    """Once a day, delete old snapshots of every pipeline, and row versions that no other snapshot includes."""
    with DAG(
        "sluice_retention",
        schedule="@daily",
        catchup=False,
        max_active_runs=1,
        description="Delete old snapshots and compact the shards",
        doc_md=retention_dag.__doc__,
        tags={"sluice", "maintenance"},
        params={
            "keep_snapshots": Param(
                100,
                type="integer",
                minimum=1,
                maximum=100_000,
                description="Number of newest snapshots to keep",
            ),
            "keep_hours": Param(
                24,
                type="integer",
                minimum=1,
                maximum=8_760,
                description="Also keep snapshots younger than this",
            ),
        },
        default_args=maintenance_task_defaults(),
    ) as dag:
        PythonOperator(task_id="retain", python_callable=retain_all)
    return dag
