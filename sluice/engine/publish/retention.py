"""Closed windows are let go of once stream time has passed their retention: with the batch that brought it so far.

Everything that was declared to be kept so long, on every worker, whether or not the worker has anything else of the
batch: what a snapshot shows does not depend on where the input was cut into batches.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Self

from sluice.engine.batch.storage import Storage
from sluice.engine.batch.stream_time import Clock
from sluice.plan import FusedJob, Job


@dataclass(frozen=True)
class KeptWindows:
    """Windows of one aggregation group, and whose stream time their retention goes by."""

    group_id: int
    operator: str
    topics: tuple[str, ...]
    retention_ms: int


@dataclass(frozen=True)
class Retention:
    """The retention of a job's windows."""

    storage: Storage
    partitions: Mapping[str, int]
    windows: tuple[KeptWindows, ...]

    @classmethod
    def of(cls, storage: Storage, partitions: Mapping[str, int]) -> Self:
        """That of a job, given how many partitions each topic has."""
        return cls(storage, partitions, tuple(_windows(storage.job)))

    def let_go(self, batch: int, stream_times: Mapping[str, int], epoch: int) -> None:
        """Remove the windows that are closed by these stream times, those after the batch."""
        if not self.windows:
            return
        clock = Clock(
            stream_times, self.partitions, self.storage.batches.begun(batch), self.storage.job.pipeline.idle_timeout_ms
        )
        reached = {one: clock.closed(one.operator, one.topics) for one in self.windows}
        ends = {one.group_id: time - one.retention_ms for one, time in reached.items() if time > one.retention_ms}
        for worker in range(len(self.storage.locations)) if ends else ():
            with self.storage.shard(worker) as shard:
                shard.expire(batch, ends, epoch)


def _windows(job: Job) -> Iterator[KeptWindows]:
    for store in job.groups if isinstance(job, FusedJob) else job.operators:
        if store.retention_ms is not None:
            yield KeptWindows(store.number, store.name, store.topics, store.retention_ms)
