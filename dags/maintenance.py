"""Keep state small: once a day, forget old snapshots of every pipeline and the versions that only they could show."""

from datetime import timedelta

from airflow.providers.standard.operators.python import PythonOperator
from airflow.sdk import DAG, Param

from sluice.orchestration.maintenance import retain_all

with DAG(
    "sluice_retention",
    schedule="@daily",
    catchup=False,
    max_active_runs=1,
    description="Forget old snapshots and compact the workers' shards",
    doc_md=__doc__,
    tags={"sluice", "maintenance"},
    params={
        "keep_snapshots": Param(
            100, type="integer", minimum=1, maximum=100_000, description="Newest snapshots that stay"
        ),
        "keep_hours": Param(24, type="integer", minimum=1, maximum=8_760, description="Younger snapshots stay as well"),
    },
    default_args={"owner": "sluice", "retries": 2, "retry_delay": timedelta(minutes=1)},
):
    PythonOperator(task_id="retain", python_callable=retain_all)
