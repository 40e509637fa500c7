"""Stream time: the largest event time that an operator has seen in a partition of a topic.

An operator's window closes when the stream times of all partitions of the operator's topics have
reached the window's end. A partition without records can still get records of any event time, so
windows wait for it, unless the pipeline has an idle timeout. `idle_time` says how stream time
advances without records.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

import numpy as np

from sluice.support.arrays import Mask, Times
from sluice.values.closed_windows import ANNOUNCED, ANNOUNCED_FROM

BEFORE_ALL = -1
"""Stream time before the first record."""

CLOSED = ":closed"
"""Begins the name of the time, among the stream times, up to which all windows are closed."""

SEEN = ":seen"
"""Begins the name of the time, by the batches' clock, at which a partition last had a record.

No store or step can have this name, because authors' names contain no colon.
"""

ORDER = ":order"
"""Begins the name of the largest Kafka timestamp that was read from a partition."""

WALL = ":wall"
"""Begins the name of the time at which an operator's earliest wall-clock timer on a worker is
due."""

DUE = ":due"
"""Begins the name of the stream time at which an operator must send the earliest result that it
holds back on a worker."""

IDLE = ":idle"
"""Begins the name of the time of the last batch in which stream time advanced without records."""

OWN_TIMES = (ANNOUNCED, ANNOUNCED_FROM, CLOSED, DUE, IDLE, ORDER, SEEN, WALL)
"""Times with these names are kept among the stream times, but are not stream times of operators.
Snapshots do not show them."""

OF_WORKERS = (DUE, WALL)
"""The names of the times that are kept for each worker."""


def times_of_operators(times: Mapping[str, int]) -> dict[str, int]:
    """Return the operators' stream times, which a snapshot shows.

    The other times, such as when each partition last had a record, depend on where batches end.
    """
    shown: dict[str, int] = {}
    for name, time in times.items():
        if name.split("/")[0] not in OWN_TIMES:
            shown[name] = time
    return shown


@dataclass(frozen=True)
class StreamTimes:
    """The stream times at one moment, such as the start of a batch."""

    times: Mapping[str, int]
    """`OPERATOR/TOPIC/PARTITION` → stream time, ms."""
    partitions: Mapping[str, int]
    """Topic → its number of partitions."""
    now: int
    """The time at which the batch began, epoch ms."""
    idle_timeout_ms: int | None = None
    goes_on_when_idle: bool = False
    """Whether stream time advances without records once the pipeline's topics have been silent for
    long enough."""

    def of(self, operator: str, topic: str, partition: int) -> int:
        return self.times.get(f"{operator}/{topic}/{partition}", BEFORE_ALL)

    def closed(self, operator: str, topics: Collection[str]) -> int:
        """Return the stream time that all partitions of the topics have reached.

        Idle partitions do not count. Co-partitioned topics share the stream time of each partition
        number.
        """
        # The topics of an operator may have different numbers of partitions. The largest number
        # counts.
        numbers = range(max(self.partitions[topic] for topic in topics))
        reached: list[int] = []
        for number in numbers:
            if not self.is_idle(topics, number):
                reached.append(self._of_task(operator, topics, number))
        return min(reached, default=BEFORE_ALL)

    def _of_task(self, operator: str, topics: Iterable[str], number: int) -> int:
        # In Kafka Streams, one task reads the same partition number of all of an operator's topics,
        # and has one stream time for these partitions.
        return max(self.of(operator, topic, number) for topic in topics)

    def timer_due(self, operator: str, worker: int) -> int | None:
        """Return when the worker's earliest wall-clock timer of an operator is due.

        Return -1 if there is no timer, and None if the time is unknown.
        """
        return self.times.get(wall_name(operator, worker))

    def has_reached_result(self, operator: str, clock: str, worker: int) -> bool:
        """Return whether stream time has reached a result that the worker holds back.

        Only stream time that has advanced without records counts.
        """
        due = self.times.get(due_name(operator, worker), BEFORE_ALL)
        reached = self.times.get(f"{CLOSED}/{clock}", BEFORE_ALL)
        return self.goes_on_when_idle and BEFORE_ALL < due <= reached

    def went_on_when_idle(self, clock: str) -> bool:
        """Return whether an operator's stream time has advanced in this batch without records."""
        return self.times.get(f"{IDLE}/{clock}") == self.now

    def is_idle(self, topics: Iterable[str], number: int) -> bool:
        """Return whether the topics' partitions with this number are idle.

        They are idle if they have had no record for longer than the idle timeout.
        """
        if self.idle_timeout_ms is None:
            return False
        seen = BEFORE_ALL
        for topic in topics:
            seen = max(seen, self.times.get(f"{SEEN}/{topic}/{number}", BEFORE_ALL))
        return self.now - seen > self.idle_timeout_ms


def split_times(
    times: Mapping[str, int], clocks: Collection[str]
) -> tuple[dict[str, int], dict[str, int]]:
    """Divide the times into times for tasks that read records, and times that only stages use.

    `clocks` are the names under which the reading tasks keep stream times.
    """
    of_readers: dict[str, int] = {}
    of_stages: dict[str, int] = {}
    for name, time in times.items():
        kind, _, rest = name.partition("/")
        if kind == CLOSED:
            clock = rest
        else:
            clock = name.rsplit("/", 2)[0]
        is_for_readers = name == CLOSED or kind in (ORDER, SEEN) or clock in clocks
        if is_for_readers:
            of_readers[name] = time
        else:
            of_stages[name] = time
    return of_readers, of_stages


def wall_name(operator: str, worker: int) -> str:
    """Return the name of the time at which the worker's earliest wall-clock timer is due."""
    return f"{WALL}/{operator}/{worker}"


def due_name(operator: str, worker: int) -> str:
    """Return the name of the stream time at which the worker's earliest result is due."""
    return f"{DUE}/{operator}/{worker}"


def spread_timers(times: Mapping[str, int], workers: int) -> dict[str, int]:
    """Return the times for another number of workers.

    The keys with timers get new owners, so any worker may own the key of an operator's earliest
    timer. Every worker therefore gets the earliest time of all workers.
    """
    of_workers = tuple(f"{kind}/" for kind in OF_WORKERS)
    spread: dict[str, int] = {}
    for name, time in times.items():
        if not name.startswith(of_workers):
            spread[name] = time
        elif time >= 0:
            operator, _, _ = name.rpartition("/")
            for worker in range(workers):
                new = f"{operator}/{worker}"
                spread[new] = min(time, spread.get(new, time))
    return spread


def earliest_timer(times: Mapping[str, int]) -> int | None:
    """Return when a job's earliest wall-clock timer is due, epoch ms; None if there is no timer."""
    due: list[int] = []
    for name, time in times.items():
        if name.startswith(f"{WALL}/") and time >= 0:
            due.append(time)
    return min(due, default=None)


def advance(times: Times, advancing: Mask, begin: int) -> tuple[Times, Times]:
    """Return stream time before and after each of an operator's rows, in their order.

    Only `advancing` rows advance stream time. They include late rows, but not rows without a key,
    nor rows without a value if the operator drops them.
    """
    after = after_each(times, advancing, begin)
    return np.concatenate(([begin], after[:-1])), after


def after_each(times: Times, advancing: Mask, begin: int) -> Times:
    """Return stream time after each row, as in `advance`."""
    advances = np.where(advancing, times, BEFORE_ALL)
    return np.maximum(np.maximum.accumulate(advances), begin)
