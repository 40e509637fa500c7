"""Backs up all pipelines of a ledger while runs go on: the ledger and all shards.

A backup has the ledger and the shards as SQLite files, whatever databases they come from. A read
transaction in each shard keeps the shard unchanged for the copy. Then the ledger is copied in one
read transaction. If no snapshot was published while these transactions were begun, the shards have
all batches of the copied ledger. They have at most one more batch, which the copy omits. Beginning
the transactions takes milliseconds, however long the copying takes.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from datetime import UTC, datetime
from pathlib import Path

from sluice.errors import DamagedState, SettingsError, StateError
from sluice.operations.backups import manifest
from sluice.operations.backups.manifest import BackedUp, Manifest, file_errors
from sluice.operations.backups.shard_files import fill_copy, published_generations
from sluice.state.database import close_file
from sluice.state.ledger.copy_ledger import copy_ledger
from sluice.state.ledger.ledger import Ledger
from sluice.state.model import GenerationInfo, WorkerInfo
from sluice.state.remote.copying import Progress, ShardCopy
from sluice.state.remote.opening import open_shard
from sluice.state.shard.addresses import location
from sluice.state.shard.local_shard import LocalShard
from sluice.state.shard.shard import Shard
from sluice.support.file_modes import make_folder
from sluice.version import __version__

_ATTEMPTS = 50

Source = tuple[GenerationInfo, WorkerInfo, int, Shard]
"""The generation, the worker, the newest batch to copy, and the worker's shard."""


def back_up(ledger: Ledger, folder: Path, progress: Progress = lambda _: None) -> Manifest:
    """Write a backup into a new or empty folder.

    Raise SettingsError if the folder has files, and DamagedState if published state is damaged.
    Raise StateError if there is no snapshot, or if the backup cannot begin between two batches,
    because batches are published too often.
    """
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise SettingsError(f"{folder} exists and is not empty.", next_step="Choose a new folder.")
    if not published_generations(ledger):
        raise StateError(
            "The ledger has no snapshot, so there is nothing to back up.",
            next_step="Check SLUICE_LEDGER and SLUICE_HOME. "
            "If the ledger is lost, restore an earlier backup.",
        )
    folder, made_at = folder.absolute(), datetime.now(UTC)
    with file_errors("Writing the backup"):
        make_folder(folder)
        with Ledger.open(manifest.ledger(folder)) as copy, _pin_shards(ledger, copy) as shards:
            generations = published_generations(copy)
            for info, worker, batch, shard in shards:
                address = location(manifest.shards(folder), info.ref, worker.number)
                with ShardCopy(shard, address, progress, until=batch) as new:
                    _fill(worker, new, copy)
                close_file(address)
            # A shard at a state server is not pinned, so a run may have changed it while it was
            # copied. The backup therefore fails if a snapshot was published meanwhile.
            if not all(isinstance(shard, LocalShard) for *_, shard in shards):
                _require_unchanged(ledger, copy)
        close_file(manifest.ledger(folder))
        backed_up: list[BackedUp] = []
        for info, batch in generations:
            backed_up.append(
                BackedUp(pipeline=info.pipeline, generation=info.generation, batch=batch)
            )
        return manifest.write(folder, __version__, made_at, backed_up)


@contextmanager
def _pin_shards(ledger: Ledger, copy: Ledger) -> Iterator[list[Source]]:
    """Pin each shard: begin a read transaction, which sees no later write. Then copy the ledger.

    Tries again until no snapshot was published between the first look at the ledger and the
    beginning of its copy. Shards at state servers cannot be pinned.
    """
    for _ in range(_ATTEMPTS):
        with ExitStack() as stack:
            generations = published_generations(ledger)
            sources: list[Source] = []
            try:
                for info, batch in generations:
                    for worker in info.workers:
                        shard = stack.enter_context(open_shard(worker.location))
                        if isinstance(shard, LocalShard):
                            stack.enter_context(shard.pinned())
                        sources.append((info, worker, batch, shard))
            except StateError:
                if published_generations(ledger) == generations:
                    raise
                # The ledger has changed meanwhile: a generation and its shards may have been
                # removed. Try again.
                continue
            copy_ledger(ledger, copy)
            if published_generations(copy) == generations:
                yield sources
                return
    raise StateError(
        f"Snapshots were published during each of {_ATTEMPTS} attempts to begin the backup.",
        next_step="Pause some of the pipelines' DAGs, then back up again.",
    )


def _fill(worker: WorkerInfo, new: ShardCopy, copy: Ledger) -> None:
    try:
        fill_copy(worker, new, copy)
    except DamagedState as error:
        error.next_step = (
            f"Run the pipeline, which restores the shard, or: sluice rebuild {worker.pipeline}."
        )
        raise


def _require_unchanged(ledger: Ledger, copy: Ledger) -> None:
    if ledger.snapshots.kept_batches() != copy.snapshots.kept_batches():
        raise StateError(
            "A snapshot was published or removed while shards at state servers were copied.",
            next_step="Pause the pipelines' DAGs and sluice_retention, "
            "then back up again into a new folder.",
        )
