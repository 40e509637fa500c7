"""Copies shards into and out of backups."""

from __future__ import annotations

from sluice.engine.batch.shards import damaged_state
from sluice.errors import DamagedState
from sluice.remote.copying import Progress, copy_until
from sluice.state.ledger.ledger import Ledger
from sluice.state.model import JobInfo, WorkerInfo
from sluice.state.shard.protocol import Shard


def jobs_with_batches(ledger: Ledger) -> list[tuple[JobInfo, int]]:
    """The generations that have published a batch, with their newest batch."""
    kept = ledger.snapshots.kept()
    jobs = [job for pipeline in ledger.jobs.pipelines() for job in ledger.jobs.all(pipeline)]
    return [(job, kept[job.ref].newest) for job in jobs if job.ref in kept]


def copy_at(
    shard: Shard, target: Shard, ledger: Ledger, job: JobInfo, worker: WorkerInfo, batch: int, progress: Progress
) -> None:
    """Copy a worker's shard, as it is after `batch`, into a new, sealed shard, and compare the published checksums.

    Raises DamagedState if the shard is not as it was published.
    """
    audit = ledger.audits.newest(job.ref)
    published = None if audit is None else audit.published(worker.number)
    try:
        copy_until(shard, target, 0, batch, published, progress)
    except DamagedState as error:
        raise damaged_state({worker.number: (worker.location, error.detail)}) from error
