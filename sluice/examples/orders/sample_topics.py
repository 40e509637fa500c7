"""Creates the topics of the orders pipeline and fills them with sample records."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass

from sluice.examples.orders.records import START_MS, orders
from sluice.examples.orders.records import stores as sample_stores
from sluice.kafka.topics import Topic, create_topics, produce

PARTITIONS = 4
_FOREVER = {"retention.ms": "-1"}
OUTPUTS = (
    "general_orders",
    "restaurant_orders",
    "general_orders_revenue",
    "restaurant_orders_revenue",
)
_REPORT_EVERY = 1_000


@dataclass(frozen=True)
class Produced:
    """The numbers of records sent, the duration, and the topics created."""

    orders: int
    stores: int
    bad: int
    seconds: float
    created_topics: tuple[str, ...]


def create_order_topics(kafka: Mapping[str, str], topic: str = "orders") -> tuple[str, ...]:
    """Create missing topics of the orders pipeline, and return their names.

    The topics keep records forever, because Kafka deletes by timestamp and the sample orders have
    old timestamps.
    """
    topics = [Topic(name, PARTITIONS, 1, _FOREVER) for name in (topic, *OUTPUTS)]
    topics.append(Topic("orders_dead_letters", 1, 1, _FOREVER))
    topics.append(Topic("stores", 1, 1, {"cleanup.policy": "compact"}))
    return create_topics(kafka, topics)


def produce_orders(
    kafka: Mapping[str, str],
    *,
    count: int,
    stores: int = 50,
    seed: int = 7,
    bad_share: float = 0.0,
    late_share: float = 0.0,
    start_ms: int = START_MS,
    topic: str = "orders",
    progress: Callable[[int], None] = lambda _: None,
) -> Produced:
    """Send sample stores, then sample orders, and wait until the broker has all of them.

    `progress` is called with the number of orders sent so far.
    """
    began = time.monotonic()
    created = create_order_topics(kafka, topic)
    produce(kafka, "stores", ((key, value, 0) for key, value in sample_stores(stores)))
    sent = _Sent(progress)
    samples = orders(count, stores, seed, bad_share, late_share, start_ms)
    produce(kafka, topic, sent.count(samples))
    return Produced(sent.orders, stores, sent.bad, time.monotonic() - began, created)


class _Sent:
    def __init__(self, progress: Callable[[int], None]) -> None:
        self.orders = self.bad = 0
        self._progress = progress

    def count(
        self,
        samples: Iterable[tuple[str, bytes, int, str]],
    ) -> Iterator[tuple[str, bytes, int]]:
        for key, value, timestamp_ms, reason in samples:
            self.orders += 1
            self.bad += bool(reason)
            if self.orders % _REPORT_EVERY == 0:
                self._progress(self.orders)
            yield key, value, timestamp_ms
        self._progress(self.orders)
