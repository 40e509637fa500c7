"""Airflow integration: each pipeline's DAG, its trigger, and the operator that submits its runs."""
