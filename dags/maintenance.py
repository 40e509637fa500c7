"""Retention: once a day, delete old snapshots of every pipeline, and row versions that no other snapshot includes."""

from datetime import timedelta

from airflow.providers.standard.operators.python import PythonOperator
from airflow.sdk import DAG, Param

from sluice.orchestration.maintenance import retain_all

with DAG(
    "sluice_retention",
    schedule="@daily",
    catchup=False,
    max_active_runs=1,
    description="Delete old snapshots and compact the shards",
    doc_md=__doc__,
    tags={"sluice", "maintenance"},
    params={
        "keep_snapshots": Param(
            100, type="integer", minimum=1, maximum=100_000, description="Number of newest snapshots to keep"
        ),
        "keep_hours": Param(
            24, type="integer", minimum=1, maximum=8_760, description="Also keep snapshots younger than this"
        ),
    },
    default_args={"owner": "sluice", "retries": 2, "retry_delay": timedelta(minutes=1)},
):
    PythonOperator(task_id="retain", python_callable=retain_all)
