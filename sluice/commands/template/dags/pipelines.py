"""Airflow's DAGs of all pipelines in SLUICE_PIPELINES, one for each file."""

# Airflow only reads files with the words airflow and dag in them.
from sluice.orchestration.dags import pipeline_dags
from sluice.settings import settings

globals().update(pipeline_dags(settings().pipelines))
