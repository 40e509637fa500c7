"""Copies shards into and out of backups."""

from __future__ import annotations

from sluice.engine.batch.shards import damaged_state
from sluice.errors import DamagedState
from sluice.remote.copying import Progress, copy_until
from sluice.state.ledger.ledger import Ledger
from sluice.state.model import GenerationInfo, WorkerInfo
from sluice.state.shard.protocol import Shard


def with_batches(ledger: Ledger) -> list[tuple[GenerationInfo, int]]:
    """The generations that have published a batch, with their newest batch."""
    kept = ledger.snapshots.kept()
    return [(info, kept[info.ref].newest) for info in ledger.generations.of_all_pipelines() if info.ref in kept]


def copy_at(
    shard: Shard,
    target: Shard,
    ledger: Ledger,
    info: GenerationInfo,
    worker: WorkerInfo,
    batch: int,
    progress: Progress,
) -> None:
    """Copy a worker's shard, as it is after `batch`, into a new, sealed shard, and compare the published checksums.

    Raises DamagedState if the shard is not as it was published.
    """
    audit = ledger.audits.newest(info.ref)
    published = None if audit is None else audit.published(worker.number)
    try:
        copy_until(shard, target, 0, batch, published, progress)
    except DamagedState as error:
        raise damaged_state({worker.number: (worker.location, error.detail)}) from error
