"""Airflow: a DAG for each pipeline, what starts it, and the operator that submits its jobs."""
