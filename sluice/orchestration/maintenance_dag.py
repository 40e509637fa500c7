"""The daily maintenance DAG."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import structlog
from airflow.providers.standard.operators.python import PythonOperator
from airflow.sdk import DAG, Param

from sluice.airflow_connections import KAFKA, kafka_config
from sluice.errors import BrokersUnreachable, RetentionFailed, SettingsError, SluiceError
from sluice.kafka.brokers import broker_errors, silent_admin
from sluice.kafka.unread_records import Offsets, read_lag
from sluice.operations.retention import merge_history, note_retention, retain
from sluice.operations.state_growth import note_size
from sluice.orchestration.retries import maintenance_task_defaults
from sluice.settings import settings
from sluice.state.ledger.ledger import Ledger

log = structlog.get_logger(__name__)


def retain_all(params: dict[str, Any]) -> None:
    """Apply retention to every pipeline.

    Raises RetentionFailed at the end if it failed for some pipelines or shards.

    Also records for each pipeline whether retention failed.
    """
    failed: list[str] = []
    with Ledger.open(settings().ledger) as ledger:
        begins = _begin_offsets(ledger)
        for pipeline in ledger.generations.pipelines():
            try:
                done = retain(
                    ledger, pipeline, params["keep_snapshots"], params["keep_hours"] * 3_600.0
                )
                merged = merge_history(ledger, pipeline, begins)
                note_size(ledger, pipeline, datetime.now(UTC).date())
            except SluiceError as error:
                # What is wrong with one pipeline must not keep other pipelines from being retained.
                reasons = [error.detail]
            else:
                log.info(
                    "retained",
                    pipeline=pipeline,
                    snapshots=done.snapshots,
                    versions=done.versions,
                    batches=merged,
                )
                # One shard that cannot be reached does not keep other shards from being compacted.
                reasons = [f"Worker {worker}: {why}" for worker, why in done.failed.items()]
            note_retention(ledger, pipeline, reasons, settings().secrets)
            failed += [f"{pipeline}: {reason}" for reason in reasons]
    if failed:
        raise RetentionFailed(f"Not everything was deleted. {' '.join(failed)}")


def _begin_offsets(ledger: Ledger) -> Offsets:
    """Return the oldest offsets of all pipelines' topics.

    Empty if no broker answers, so that no history is merged.
    """
    topics = {topic for info in ledger.generations.all_current() for topic in info.topics}
    try:
        kafka = kafka_config(KAFKA)
        with broker_errors(kafka):
            return read_lag(silent_admin(kafka), topics, {}).begins if topics else {}
    except (BrokersUnreachable, SettingsError) as error:
        log.warning("history kept", why=error.detail)
        return {}


def retention_dag() -> DAG:
    """Delete old snapshots of every pipeline once a day.

    Also delete row versions that no other snapshot includes. In the history, batches whose records
    are no longer in the topics are merged into one batch.
    """
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
