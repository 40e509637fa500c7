"""Airflow's DAG that deletes old snapshots once a day."""

# Airflow only reads files with the words airflow and dag in them.
from sluice.orchestration.maintenance_dag import retention_dag

dag = retention_dag()
