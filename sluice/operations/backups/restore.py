"""Restores a backup into an empty installation: in SQLite files or PostgreSQL, whatever it was backed up from.

The ledger is written last, in one transaction. Before, nothing reads the shards and checkpoints, so that an interrupted
restore can be repeated.
"""

from __future__ import annotations

import hashlib
import shutil
from contextlib import ExitStack
from pathlib import Path
from tempfile import TemporaryDirectory

from pyarrow import fs

from sluice.engine.batch.side_outputs import delete_folder, open_path
from sluice.engine.batch.spark_state import copy_checkpoint, has_spark_state
from sluice.engine.batch.storage import checkpoint_of
from sluice.errors import Refused
from sluice.operations.backups import manifest
from sluice.operations.backups.manifest import Manifest, file_errors
from sluice.operations.backups.shards import fill_from, with_batches
from sluice.operations.copying import Progress, WholeCopy
from sluice.operations.imports import unseal_copies
from sluice.remote.opening import open_shard
from sluice.settings import Settings
from sluice.state.ledger.copying import copy_ledger
from sluice.state.ledger.ledger import Ledger
from sluice.state.model import GenerationInfo, GenerationRef
from sluice.state.shard.addresses import location


def restore(folder: Path, settings: Settings, progress: Progress = lambda _: None) -> Manifest:
    """Restore a backup to the ledger, shards and checkpoints that the settings name.

    State servers have to be set up again. Can be repeated if it is interrupted. Raises Refused if the ledger has
    pipelines, or if there are shards or checkpoints of the backup's pipelines; DamagedState if the backup is damaged.
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
                next_step="Set SLUICE_HOME, or SLUICE_LEDGER, SLUICE_SHARDS and SLUICE_CHECKPOINTS, to empty places.",
            )
        source.placements.clear()
        generations = with_batches(source)
        placed = {info.ref for info, _ in generations if _is_placed(folder, settings.checkpoints, info.ref)}
        copies, locations = [], dict[tuple[GenerationRef, int], str]()
        for info, batch in generations:
            for worker in info.workers:
                locations[info.ref, worker.number] = address = location(settings.shards, info.ref, worker.number)
                old = stack.enter_context(open_shard(location(manifest.shards(folder), info.ref, worker.number)))
                copies.append(stack.enter_context(WholeCopy(old, address, progress, until=batch)))
                fill_from(worker, copies[-1], source)
        for info, batch in generations:
            if info.ref not in placed and has_spark_state(checkpoint_of(manifest.checkpoints(folder), info.ref)):
                _restore_checkpoint(folder, settings.checkpoints, info, batch)
        copy_ledger(source, target, locations)
        for copy in copies:
            copy.target.seal(sealed=False)
    return backup


def _is_placed(folder: Path, checkpoints: str, ref: GenerationRef) -> bool:
    """Whether an interrupted restore has moved the checkpoint to its place. Raises Refused if another one is there."""
    place = checkpoint_of(checkpoints, ref)
    if not (there := _digests(place)):
        return False
    if there != _digests(checkpoint_of(manifest.checkpoints(folder), ref)):
        raise Refused(
            f"There already is a checkpoint of pipeline {ref.pipeline!r}: {place}.",
            next_step="Set SLUICE_CHECKPOINTS to an empty folder, or remove this one if no ledger needs it.",
        )
    return True


def _restore_checkpoint(folder: Path, checkpoints: str, info: GenerationInfo, batch: int) -> None:
    """Copy a checkpoint beside its place, then move it there, so that only whole checkpoints are in their places."""
    place = checkpoint_of(checkpoints, info.ref)
    unfinished = f"{place}.restoring"
    delete_folder(unfinished)
    copy_checkpoint(checkpoint_of(manifest.checkpoints(folder), info.ref), unfinished, batch)
    filesystem, path = open_path(place)
    filesystem.move(open_path(unfinished)[1], path)


def _digests(location: str) -> dict[str, bytes]:
    """Path in a folder → SHA-256 of the file, for all files. Empty if there is no folder."""
    filesystem, root = open_path(location)
    digests = {}
    for info in filesystem.get_file_info(fs.FileSelector(root, recursive=True, allow_not_found=True)):
        if info.type == fs.FileType.File:
            with filesystem.open_input_stream(info.path) as file:
                digests[info.path.removeprefix(root)] = hashlib.file_digest(file, "sha256").digest()
    return digests
