"""How far everything is closed: the stream time that every partition of an operator's topics has reached.

A partition in which nothing was seen yet can still bring anything, and holds up all others: unless the pipeline
declares after which time without a record a partition is `idle_timeout`, and left out.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

BEFORE_ALL = -1
"""Stream time where nothing was seen yet."""

CLOSED = ":closed"
"""Among the stream times: how far everything is closed."""

SEEN = ":seen"
"""Among the stream times: when, by the clock of the batches, a partition last had a record.

No store or step is called like these two: an author's names have no colon.
"""


@dataclass(frozen=True)
class Clock:
    """The stream times as of some moment, by `operator/topic/partition`; `now`: when the batch was begun, epoch ms."""

    times: Mapping[str, int]
    partitions: Mapping[str, int]
    now: int
    idle_timeout_ms: int | None = None

    def of(self, operator: str, topic: str, partition: int) -> int:
        """Stream time in one partition."""
        return self.times.get(f"{operator}/{topic}/{partition}", BEFORE_ALL)

    def closed(self, operator: str, topics: Iterable[str]) -> int:
        """The stream time that all active partitions of the topics have reached."""
        active = [
            self.of(operator, topic, partition)
            for topic in topics
            for partition in range(self.partitions[topic])
            if not self._is_idle(topic, partition)
        ]
        return min(active, default=BEFORE_ALL)

    def _is_idle(self, topic: str, partition: int) -> bool:
        if self.idle_timeout_ms is None:
            return False
        seen = self.times.get(f"{SEEN}/{topic}/{partition}", BEFORE_ALL)
        return self.now - seen > self.idle_timeout_ms
