"""Copies shards into and out of backups."""

from __future__ import annotations

from sluice.engine.batch.worker_shards import damaged_state
from sluice.errors import DamagedState
from sluice.state.ledger.ledger import Ledger
from sluice.state.model import GenerationInfo, WorkerInfo
from sluice.state.remote.copying import ShardCopy


def published_generations(ledger: Ledger) -> list[tuple[GenerationInfo, int]]:
    """Return the generations that have published a batch, with their newest batch."""
    kept = ledger.snapshots.kept_batches()
    published: list[tuple[GenerationInfo, int]] = []
    for info in ledger.generations.of_all_pipelines():
        if info.ref in kept:
            published.append((info, kept[info.ref].newest))
    return published


def fill_copy(worker: WorkerInfo, copy: ShardCopy, ledger: Ledger) -> None:
    """Copy a worker's shard.

    Raise DamagedState if the copy does not have the published checksums.
    """
    published = ledger.audits.newest_checksums(worker.ref, worker.number)
    try:
        copy.fill(published)
    except DamagedState as error:
        raise damaged_state({worker.number: (worker.location, error.detail)}) from error
