"""Copies a ledger and its shards to other databases, such as from SQLite files to PostgreSQL, with all kept snapshots.

The leases of all generations are held meanwhile, so that no run writes. The old shards stay sealed: a run that still
has the old settings stops, instead of continuing from a state that is no longer read.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack

from sluice.engine.run.driver_lease import Lease, this_process
from sluice.errors import Refused
from sluice.operations.moves import fill_and_seal
from sluice.state.ledger.copy_ledger import copy_ledger
from sluice.state.ledger.ledger import Ledger
from sluice.state.model import GenerationRef
from sluice.state.remote.copying import ShardCopy
from sluice.state.remote.opening import open_shard
from sluice.state.shard.addresses import exists, is_file, location, shown
from sluice.state.shard.local_shard import LocalShard
from sluice.state.shard.passwords import without_password


def import_state(source: Ledger, target: Ledger, shards: str, progress: Callable[[str], None] = lambda _: None) -> int:
    """Copy all pipelines of a ledger, with their shards to `shards`. Returns the number of copied versions.

    Can be repeated until it succeeds. Raises Refused if the target has pipelines, or if a state server has a worker;
    LeaseError if a run is in progress.
    """
    if there := target.generations.pipelines():
        if unseal_copies(source, target, shards):
            return 0
        raise Refused(
            f"The ledger in SLUICE_LEDGER has pipelines already: {', '.join(there)}.",
            next_step="Set SLUICE_LEDGER to an empty database.",
        )
    generations = source.generations.of_all_pipelines()
    workers = [worker for info in generations for worker in info.workers]
    copied, locations = 0, dict[tuple[GenerationRef, int], str]()
    with ExitStack() as stack:
        for info in generations:
            stack.enter_context(Lease(source.leases, info.ref, this_process("")))
        arrived = []
        for worker in workers:
            if not is_file(worker.location):
                raise Refused(
                    f"Worker {worker.number} of {worker.pipeline!r} is not in a SQLite file of this host: "
                    f"{shown(worker.location)}.",
                    next_step="Run without state servers first, or rebuild the state in the new database.",
                )
            locations[worker.ref, worker.number] = address = location(shards, worker.ref, worker.number)
            if (published := source.snapshots.last_batch(worker.ref)) is None:
                continue  # its first run has published nothing, and creates its shards again
            old = stack.enter_context(open_shard(worker.location, to_write=True))
            copy = stack.enter_context(ShardCopy(old, address, progress, settled=published))
            fill_and_seal(old, copy)
            copied += copy.versions
            arrived.append(copy)
        copy_ledger(source, target, locations)
        for copy in arrived:
            copy.target.seal(sealed=False)
    return copied


def unseal_copies(source: Ledger, target: Ledger, shards: str) -> bool:
    """Finish a copy that was interrupted after the ledger was copied. Returns whether there was one."""
    sealed = []
    with ExitStack() as stack:
        for info in target.generations.of_all_pipelines():
            batch = source.snapshots.last_batch(info.ref)
            if batch is None or source.snapshots.get(info.ref, batch) != target.snapshots.get(info.ref, batch):
                continue
            for worker in info.workers:
                # A shard at another address, such as that of a state server, is not a copy of this source.
                its_place = without_password(location(shards, info.ref, worker.number))
                if worker.location == its_place and exists(its_place):
                    shard = stack.enter_context(LocalShard.open(worker.location, to_write=True))
                    sealed += [shard] if shard.is_sealed() else []
        for shard in sealed:
            shard.seal(sealed=False)
    return bool(sealed)
