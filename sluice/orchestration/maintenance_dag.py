"""The daily maintenance DAG."""

from __future__ import annotations

from collections import Counter
from datetime import UTC, datetime
from typing import Any

import structlog
from airflow.providers.standard.operators.python import PythonOperator
from airflow.sdk import DAG, Param

from sluice.airflow_connections import KAFKA, kafka_config
from sluice.errors import BrokersUnreachable, RetentionFailed, SettingsError, SluiceError
from sluice.kafka.brokers import broker_errors, silent_admin
from sluice.kafka.unread_records import Offsets, read_lag
from sluice.operations.snapshot_retention import merge_history, note_retention, retain
from sluice.operations.state_growth import note_size
from sluice.orchestration.retries import maintenance_task_defaults
from sluice.settings import settings
from sluice.state.ledger.ledger import Ledger
from sluice.topology.loading.pipeline_connections import KafkaConnections

log = structlog.get_logger(__name__)


def retain_all(params: dict[str, Any]) -> None:
    """Apply retention to every pipeline.

    Raises RetentionFailed at the end if retention failed for some pipelines or shards.

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

    Leave out the topics of a cluster that does not answer, so that their history is not merged.
    """
    connections = KafkaConnections(lambda: settings().pipelines)
    topics_of: dict[str, set[str]] = {}
    for info in ledger.generations.all_current():
        connection = connections.of(info.pipeline) or KAFKA
        topics_of.setdefault(connection, set()).update(info.topics)
    begins: dict[str, dict[int, int]] = {}
    # Two clusters may have a topic of the same name, with other offsets.
    ambiguous: Counter[str] = Counter()
    for connection, topics in topics_of.items():
        ambiguous.update(topics)
        try:
            kafka = kafka_config(connection)
            with broker_errors(kafka):
                begins |= read_lag(silent_admin(kafka), topics, {}).begins
        except (BrokersUnreachable, SettingsError) as error:
            log.warning("history kept", connection=connection, why=error.detail)
    return {topic: begin for topic, begin in begins.items() if ambiguous[topic] == 1}


def retention_dag() -> DAG:
    """Delete old snapshots of every pipeline once a day.

    Also delete row versions that no kept snapshot includes. In the history, batches whose records
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
