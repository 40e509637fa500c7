"""Copies a ledger and its shards to other databases, such as from SQLite files to PostgreSQL.

All kept snapshots are copied.

Unlike a restore, an import copies state that is in use. The leases of all generations are held
meanwhile, so that no run writes. The old shards stay sealed: a run that still has the old settings
stops, instead of continuing from a state that is no longer read.
"""

from __future__ import annotations

from contextlib import ExitStack
from itertools import chain

from sluice.engine.run.driver_lease import Lease, this_process
from sluice.errors import Refused
from sluice.operations.moves import fill_and_seal
from sluice.operations.new_installation import NewInstallation
from sluice.state.ledger.ledger import Ledger
from sluice.state.remote.copying import Progress, ShardCopy
from sluice.state.remote.opening import open_shard
from sluice.state.shard.addresses import is_file, shown


def import_state(
    source: Ledger,
    target: Ledger,
    shards: str,
    progress: Progress = lambda _: None,
) -> int:
    """Copy all pipelines of a ledger, with their shards to `shards`.

    Return the number of copied versions. The call can be repeated until it succeeds. Raise
    Refused if the target has pipelines, or if a state server has a worker; LeaseError if a run is
    in progress.
    """
    installation = NewInstallation(source, target, shards)
    if installation.finish_interrupted(next_step="Set SLUICE_LEDGER to an empty database."):
        return 0
    generations = source.generations.of_all_pipelines()
    copied = 0
    with ExitStack() as stack:
        for info in generations:
            stack.enter_context(Lease(source.leases, info.ref, this_process("")))
        for worker in chain.from_iterable(info.workers for info in generations):
            if not is_file(worker.location):
                raise Refused(
                    f"The shard of worker {worker.number} of {worker.pipeline!r} is not a SQLite "
                    f"file on this host: {shown(worker.location)}.",
                    next_step="Use sluice backup and sluice restore, which also copy shards at "
                    "state servers. Or rebuild the state in the new database.",
                )
            address = installation.place(worker)
            published = source.snapshots.last_batch(worker.ref)
            if published is None:
                # No run has published anything in this generation, so its shards are not copied.
                # The next run creates them again.
                continue
            old = stack.enter_context(open_shard(worker.location, to_write=True))
            copy = stack.enter_context(ShardCopy(old, address, progress, settled=published))
            fill_and_seal(old, copy)
            copied += copy.versions
            installation.add(copy)
        installation.finish()
    return copied
