"""Airflow integration: a DAG for each pipeline, the trigger that starts it, and the operator that submits its runs."""

# Refuses an Airflow that is too old before a module of this package imports names that it lacks.
import sluice.airflow_releases  # noqa: F401
