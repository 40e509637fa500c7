"""The orders example: sample orders from a seed, and expected totals computed without Sluice.

The pipeline is `spark_jobs/orders.py`, its REST API `spark_jobs/orders_routes.py`.
"""

from sluice.examples.orders.expected_totals import Totals, totals, totals_of_topic
from sluice.examples.orders.orders_example import EXAMPLE
from sluice.examples.orders.records import START_MS, STORE_1234, Sample, orders, store_ids, stores
from sluice.examples.orders.sample_topics import Produced, create_order_topics, produce_orders

__all__ = [
    "EXAMPLE",
    "START_MS",
    "STORE_1234",
    "Produced",
    "Sample",
    "Totals",
    "create_order_topics",
    "orders",
    "produce_orders",
    "store_ids",
    "stores",
    "totals",
    "totals_of_topic",
]
