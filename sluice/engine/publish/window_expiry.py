"""Expires closed windows in the batch in which stream time passes their end + retention.

All workers expire their windows in the same batch, even workers for which the batch has no rows.
The content of a snapshot therefore does not depend on where batches end.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from sluice.engine.batch.storage import Storage
from sluice.engine.batch.stream_time import StreamTimes
from sluice.plan import Job


@dataclass(frozen=True)
class ExpiringWindows:
    """The windows of a group or an operator.

    The stream time of `operator` in `topics` expires the windows.
    """

    group_id: int
    operator: str
    topics: tuple[str, ...]
    retention_ms: int


def expire_windows(storage: Storage, batch: int, times: StreamTimes, epoch: int) -> None:
    """Remove the windows whose retention ends in a batch.

    `times` are the stream times after the batch.
    """
    ends: dict[int, int] = {}
    for windows in expiring_windows(storage.job):
        stream_time = times.closed(windows.operator, windows.topics)
        # Event times are never negative, so every window ends after 0. Until stream time exceeds
        # the retention, no window has ended that long ago.
        if stream_time > windows.retention_ms:
            ends[windows.group_id] = stream_time - windows.retention_ms
    if not ends:
        return
    for worker in range(len(storage.locations)):
        with storage.shard(worker) as shard:
            shard.expire_windows(batch, ends, epoch)


def expiring_windows(job: Job) -> Iterator[ExpiringWindows]:
    """Yield the windows of a job that have a retention."""
    for group in job.groups:
        if group.retention_ms is not None:
            yield ExpiringWindows(group.number, group.name, group.topics, group.retention_ms)
    for operator in job.operators:
        if operator.retention_ms is not None:
            yield ExpiringWindows(
                operator.number,
                operator.name,
                operator.topics,
                operator.retention_ms,
            )
