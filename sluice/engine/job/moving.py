"""Whether the last batch has ended, so that the state can be moved to a new generation."""

from __future__ import annotations

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
    if is_interrupted(ledger, storage) or last_written > published.batch:
        planned = ledger.plans.unpublished(storage.ref)
        begun = -1 if planned is None else planned.number
        raise EngineError(
            f"The last run of {storage.job.pipeline.name} was interrupted: batch "
            f"{max(begun, published.batch, last_written)} has begun but has not ended.",
            next_step=next_step,
        )


def is_interrupted(ledger: Ledger, storage: Storage) -> bool:
    """Whether the next run repeats a batch that was planned."""
    return ledger.plans.unpublished(storage.ref) is not None
