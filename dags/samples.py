"""Airflow's DAG of the orders example; remove this file where the example is not wanted."""

from sluice.examples.orders.dag import dag

__all__ = ["dag"]
