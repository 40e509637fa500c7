"""Moves Spark's own state to a new generation, and tells whether the last batch has ended."""

from __future__ import annotations

from sluice.engine.batch.side_outputs import delete_folder
from sluice.engine.batch.spark_state import copy_checkpoint, has_spark_state, last_batch
from sluice.engine.batch.storage import Storage
from sluice.errors import EngineError
from sluice.state.ledger.history import Batch
from sluice.state.ledger.ledger import Ledger
from sluice.state.model import Snapshot


def require_complete(
    ledger: Ledger, storage: Storage, published: Snapshot, written: Batch | None, *, next_step: str
) -> None:
    """Raise EngineError with this next step unless all batches that were begun or written have been published."""
    last_written = -1 if written is None else written.number
    if is_interrupted(ledger, storage, published) or last_written > published.batch:
        planned = ledger.plans.unpublished(storage.ref)
        begun = -1 if planned is None else planned.number
        raise EngineError(
            f"The last run of {storage.job.pipeline.name} was interrupted: batch "
            f"{max(begun, published.batch, last_written)} has begun but has not ended.",
            next_step=next_step,
        )


def is_interrupted(ledger: Ledger, storage: Storage, published: Snapshot) -> bool:
    """Whether the next run repeats a batch that was planned, or, for Spark's own state, published."""
    lacks_it = has_spark_state(storage.checkpoint) and last_batch(storage.checkpoint, "commits") < published.batch
    return lacks_it or ledger.plans.unpublished(storage.ref) is not None


def move_spark_state(old: Storage, new: Storage, batch: int) -> None:
    """Copy the checkpoint of a job whose state Spark keeps, without batches after `batch`.

    Raises EngineError if its files cannot be read or written.
    """
    if not has_spark_state(old.checkpoint):
        return
    try:
        delete_folder(new.folder)
        copy_checkpoint(old.checkpoint, new.checkpoint, batch)
    except OSError as error:
        raise EngineError(
            f"The checkpoint of {old.job.pipeline.name} cannot be copied: {error}.",
            next_step="Check the folder's permissions and the free space, then repeat the command.",
        ) from error
