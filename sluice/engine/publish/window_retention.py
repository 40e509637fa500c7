"""Expires closed windows in the batch in which stream time passes window end + retention.

All workers expire their windows in the same batch, even workers without rows in it. The content of a snapshot therefore
does not depend on where batches end.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Self

from sluice.engine.batch.storage import Storage
from sluice.engine.batch.stream_time import StreamTimes
from sluice.plan import Job
from sluice.state.ledger.plans import PlannedBatch


@dataclass(frozen=True)
class KeptWindows:
    """The windows of a group or an operator, and the one whose stream time determines when they expire."""

    group_id: int
    operator: str
    topics: tuple[str, ...]
    retention_ms: int


@dataclass(frozen=True)
class Retention:
    """Expires a job's windows."""

    storage: Storage
    partitions: Mapping[str, int]
    windows: tuple[KeptWindows, ...]

    @classmethod
    def of(cls, storage: Storage, partitions: Mapping[str, int]) -> Self:
        return cls(storage, partitions, tuple(_windows(storage.job)))

    def expire(self, plan: PlannedBatch, stream_times: Mapping[str, int], epoch: int) -> None:
        """Remove the windows whose retention is over. `stream_times` are the stream times after the batch."""
        if not self.windows:
            return
        times = StreamTimes(stream_times, self.partitions, plan.begun, self.storage.job.pipeline.idle_timeout_ms)
        closed = {windows: times.closed(windows.operator, windows.topics) for windows in self.windows}
        ends = {
            windows.group_id: time - windows.retention_ms
            for windows, time in closed.items()
            if time > windows.retention_ms
        }
        for worker in range(len(self.storage.locations)) if ends else ():
            with self.storage.shard(worker) as shard:
                shard.expire(plan.number, ends, epoch)


def _windows(job: Job) -> Iterator[KeptWindows]:
    for group in job.groups:
        if group.retention_ms is not None:
            yield KeptWindows(group.number, group.name, group.topics, group.retention_ms)
    for operator in job.operators:
        if operator.retention_ms is not None:
            yield KeptWindows(operator.number, operator.name, operator.topics, operator.retention_ms)
