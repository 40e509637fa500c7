"""Restores a backup into an empty installation: in SQLite files or PostgreSQL, whatever it was backed up from.

The ledger is written last, in one transaction. Before, nothing reads the shards, so that an interrupted restore can be
repeated.
"""

from __future__ import annotations

import shutil
from contextlib import ExitStack
from pathlib import Path
from tempfile import TemporaryDirectory

from sluice.errors import Refused
from sluice.operations.backups import manifest
from sluice.operations.backups.manifest import Manifest, file_errors
from sluice.operations.backups.shard_files import fill_from, with_batches
from sluice.operations.imports import unseal_copies
from sluice.settings import Settings
from sluice.state.ledger.copy_ledger import copy_ledger
from sluice.state.ledger.ledger import Ledger
from sluice.state.model import GenerationRef
from sluice.state.remote.copying import Progress, ShardCopy
from sluice.state.remote.opening import open_shard
from sluice.state.shard.addresses import location


def restore(folder: Path, settings: Settings, progress: Progress = lambda _: None) -> Manifest:
    """Restore a backup to the ledger and shards that the settings name.

    State servers have to be set up again. Can be repeated if it is interrupted. Raises Refused if the ledger has
    pipelines, or if there are shards of the backup's pipelines; DamagedState if the backup is damaged.
    """
    progress("comparing checksums")
    with file_errors("Reading the backup"):
        backup = manifest.read(folder)
    with (
        file_errors("Restoring the backup"),
        TemporaryDirectory() as temporary,
        Ledger.open(settings.ledger) as target,
        ExitStack() as stack,
    ):
        # Opening a ledger writes to its file.
        shutil.copyfile(folder / manifest.LEDGER, Path(temporary, manifest.LEDGER))
        source = stack.enter_context(Ledger.open(manifest.ledger(Path(temporary))))
        if there := target.generations.pipelines():
            if unseal_copies(source, target, settings.shards):
                return backup
            raise Refused(
                f"The ledger in SLUICE_LEDGER has pipelines already: {', '.join(there)}.",
                next_step="Set SLUICE_HOME, or SLUICE_LEDGER and SLUICE_SHARDS, to empty places.",
            )
        source.placements.clear()
        generations = with_batches(source)
        copies, locations = [], dict[tuple[GenerationRef, int], str]()
        for info, batch in generations:
            for worker in info.workers:
                locations[info.ref, worker.number] = address = location(settings.shards, info.ref, worker.number)
                old = stack.enter_context(open_shard(location(manifest.shards(folder), info.ref, worker.number)))
                copies.append(stack.enter_context(ShardCopy(old, address, progress, until=batch)))
                fill_from(worker, copies[-1], source)
        copy_ledger(source, target, locations)
        for copy in copies:
            copy.target.seal(sealed=False)
    return backup
