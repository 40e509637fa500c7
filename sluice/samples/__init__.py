"""Sample orders: made from a seed, brought to Kafka, and added up again without the product's own code."""

from sluice.samples.orders import START_MS, STORE_1234, Sample, orders, store_ids, stores
from sluice.samples.topics import Produced, produce, produce_orders
from sluice.samples.totals import Totals, totals, totals_of_topic

__all__ = [
    "START_MS",
    "STORE_1234",
    "Produced",
    "Sample",
    "Totals",
    "orders",
    "produce",
    "produce_orders",
    "store_ids",
    "stores",
    "totals",
    "totals_of_topic",
]
