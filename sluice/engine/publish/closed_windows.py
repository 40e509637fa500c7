"""The stream time up to which the windows of announced stores are closed, for Airflow's events.

A window is closed once no record can change its results any more: records are late for it in every
partition. This is the rule by which the next batch decides which records are late. The times are
among the stream times of the batch, which the ledger stores in the transaction that publishes the
snapshot. A batch that is repeated, and a rebuild, compute the same times again.

`orchestration/window_events.py` turns them into events.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from sluice.engine.batch.stream_time import BEFORE_ALL, CLOSED, StreamTimes
from sluice.engine.combine.windowing import closed
from sluice.plan import Job
from sluice.values.closed_windows import ANNOUNCED, ANNOUNCED_FROM


def announced_times(job: Job, before: Mapping[str, int], after: StreamTimes) -> dict[str, int]:
    """Return the times of announced stores after a batch; empty if no store is announced.

    `before` are the stream times before the batch. The times never decrease.
    """
    times: dict[str, int] = {}
    for store in job.pipeline.announced_windows:
        name, first = f"{ANNOUNCED}/{store}", f"{ANNOUNCED_FROM}/{store}"
        times[name] = max(_closed(job, store, after), before.get(name, BEFORE_ALL))
        if first not in before:
            times[first] = _closed(job, store, replace(after, times=before))
    return times


def _closed(job: Job, store: str, times: StreamTimes) -> int:
    """Return the stream time up to which the windows of an announced store are closed."""
    for operator in job.operators:
        if operator.store == store:
            return times.times.get(f"{CLOSED}/{operator.clock}", BEFORE_ALL)
    for group in job.groups:
        if store in group.stores:
            # A record is late if its window is closed by its partition's own time, or by the time
            # that all groups have reached. For a partition that was idle, only the latter time
            # counts.
            own = replace(times, idle_timeout_ms=None).closed(group.name, group.topics)
            return max(own, closed(job.groups, times))
    # The store may be missing: a rebuild of changed stores computes only a part of the pipeline.
    return BEFORE_ALL
