"""Airflow integration: a DAG for each pipeline, the trigger that starts it, and the operator that submits its runs."""
