"""Airflow's DAG of the orders example. Delete this file if you do not want the example."""

# Airflow only reads files with the words airflow and dag in them.
from sluice.examples.orders.dag import dag

__all__ = ["dag"]
