"""A DAG for each pipeline: it starts when records have come, and can be started by hand."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

from airflow.configuration import conf
from airflow.sdk import DAG, Asset, AssetWatcher
from airflow.sdk.exceptions import AirflowFailException

from sluice.errors import SluiceError
from sluice.orchestration.operator import SluiceJobOperator
from sluice.orchestration.trigger import KafkaEndOffsetTrigger
from sluice.plan import plan
from sluice.topology import Pipeline, drawing
from sluice.topology.loader import load_file, pipeline_files

OWNER = "sluice"
RETRIES = 2
RETRY_DELAY = timedelta(seconds=10)
LONGEST_RUN = timedelta(hours=2)


def pipeline_dags(folder: Path) -> dict[str, DAG]:
    """Make the DAGs of all pipelines in `folder`, by id. A file that does not load gets a DAG that says why."""
    dags: dict[str, DAG] = {}
    for file in pipeline_files(folder):
        try:
            dag = pipeline_dag(load_file(file))
        except SluiceError as error:
            dag = broken_dag(file, error)
        dags[dag.dag_id] = dag
    return dags


def pipeline_dag(pipeline: Pipeline) -> DAG:
    """Make the DAG of one pipeline, named as it is: a task for each job, one run at a time."""
    jobs = plan(pipeline).jobs
    topics = sorted({topic for job in jobs for topic in job.topics})
    trigger = KafkaEndOffsetTrigger(pipeline.name, topics)
    asset = Asset(f"{pipeline.name}.records", watchers=[AssetWatcher(f"{pipeline.name}.records", trigger)])
    dag = DAG(
        pipeline.name,
        schedule=[asset],
        catchup=False,
        max_active_runs=1,
        description=pipeline.doc.partition("\n")[0],
        doc_md=documentation(pipeline),
        tags={"sluice", "pipeline"},
        default_args=defaults(),
        owner_links=owner_links(),
    )
    for job in jobs:
        only = [job.name] if len(jobs) > 1 else []
        SluiceJobOperator(dag=dag, task_id=job.name, pipeline=pipeline.name, jobs=only)
    return dag


def broken_dag(file: Path, error: SluiceError) -> DAG:
    """Make a DAG in the place of a pipeline that cannot be loaded, so that the others still run.

    Airflow knows import errors of whole DAG files only; one raised here would stop every pipeline.
    """
    from airflow.providers.standard.operators.python import PythonOperator

    dag = DAG(
        file.stem,
        schedule=None,
        description=f"{file.name} cannot be loaded: {error.detail}",
        doc_md=f"**{file.name} cannot be loaded.**\n\n    {error}\n",
        tags={"sluice", "broken"},
        default_args={"owner": OWNER},
    )
    PythonOperator(dag=dag, task_id="cannot_be_loaded", python_callable=_fail, op_args=[str(error)])
    return dag


def _fail(why: str) -> None:
    raise AirflowFailException(why)


def defaults() -> dict[str, object]:
    """Give what every task of ours starts from."""
    return {
        "owner": OWNER,
        "retries": RETRIES,
        "retry_delay": RETRY_DELAY,
        "retry_exponential_backoff": True,
        "max_retry_delay": timedelta(minutes=5),
        "execution_timeout": LONGEST_RUN,
    }


def owner_links() -> dict[str, str]:
    """Link a DAG's owner to Sluice's page, if Airflow knows its own address."""
    base = conf.get("api", "base_url", fallback="") or ""
    return {OWNER: f"{base.rstrip('/')}/plugin/sluice"} if base.startswith("http") else {}


def documentation(pipeline: Pipeline) -> str:
    """Describe the pipeline in Markdown: its author's words, the topology as text and as a flowchart."""
    return f"{pipeline.doc}\n\n```text\n{drawing.text(pipeline)}\n```\n\n```mermaid\n{drawing.mermaid(pipeline)}\n```\n"
