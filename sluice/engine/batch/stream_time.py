"""Stream time: the largest event time that an operator has seen in a partition, and how far everything is closed.

Late rows move an operator's stream time like any other. A row without a key does not, nor does one without a value
where the operator drops such rows. What waits for stream time is closed once every partition of the operator's topics
has reached it. A partition in which nothing was seen yet can still bring anything, and holds up all others: unless the
pipeline declares after which time without a record a partition is idle (`idle_timeout`), and left out.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Times = npt.NDArray[np.int64]
"""Epoch ms."""
Mask = npt.NDArray[np.bool_]

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


def advance(times: Times, moves: Mask, begin: int) -> tuple[Times, Times]:
    """Stream time before and with each of an operator's rows, in their order; `moves`: which of them move it."""
    after = np.maximum(np.maximum.accumulate(np.where(moves, times, BEFORE_ALL)), begin)
    return np.concatenate(([begin], after[:-1])), after


def advance_joint(times: Times, there: Mask, whole: Mask, begin: int, closed: int) -> tuple[Times, Times, Times]:
    """The same for a join of two streams, whose sides share their stream time; third, how far it is closed.

    Every row that is `there` moves stream time. But unmatched records come out only with a `whole` row, one that has a
    key and a value, and is not out of order: a row's `before` is the stream time of the last such row before it.
    """
    _, after = advance(times, there, begin)
    before, closed_after = advance(times, whole & (times == after), closed)
    return before, after, closed_after
