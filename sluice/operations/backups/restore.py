"""Restores a backup into an empty installation.

The installation can use SQLite files or PostgreSQL, no matter which of the two was backed up.
Unlike an import, a restore copies files that nobody uses. It compares them with the backup's
checksums.
"""

from __future__ import annotations

import shutil
from contextlib import ExitStack
from pathlib import Path
from tempfile import TemporaryDirectory

from sluice.operations.backups import manifest
from sluice.operations.backups.manifest import Manifest, file_errors
from sluice.operations.backups.shard_files import fill_copy, published_generations
from sluice.operations.new_installation import NewInstallation
from sluice.settings import Settings
from sluice.state.ledger.ledger import Ledger
from sluice.state.remote.copying import Progress, ShardCopy
from sluice.state.remote.opening import open_shard
from sluice.state.shard.addresses import location

_EMPTY_PLACES = "Set SLUICE_HOME, or SLUICE_LEDGER and SLUICE_SHARDS, to empty places."


def restore(folder: Path, settings: Settings, progress: Progress = lambda _: None) -> Manifest:
    """Restore a backup to the ledger and shards that the settings name.

    State servers have to be set up again. An interrupted call can be repeated. Raise Refused if
    the ledger has pipelines, or if there are shards of the backup's pipelines; DamagedState if the
    backup is damaged.
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
        # Opening a ledger writes to its file, so a copy of the backup's ledger is opened.
        shutil.copyfile(folder / manifest.LEDGER, Path(temporary, manifest.LEDGER))
        source = stack.enter_context(Ledger.open(manifest.ledger(Path(temporary))))
        installation = NewInstallation(source, target, settings.shards)
        if installation.finish_interrupted(next_step=_EMPTY_PLACES):
            return backup
        source.placements.clear()
        for info, batch in published_generations(source):
            for worker in info.workers:
                old = stack.enter_context(
                    open_shard(location(manifest.shards(folder), info.ref, worker.number))
                )
                copy = stack.enter_context(
                    ShardCopy(old, installation.place(worker), progress, until=batch)
                )
                fill_copy(worker, copy, source)
                installation.add(copy)
        installation.finish()
    return backup
