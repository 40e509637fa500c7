"""The DAG of the orders example. Delete this file if you do not want the example."""

from sluice.examples.orders.dag import dag

__all__ = ["dag"]
