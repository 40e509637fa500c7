"""Checks that the last batch has ended before its state is moved to a new generation."""

from __future__ import annotations

from sluice.errors import EngineError
from sluice.state.ledger.history import Batch
from sluice.state.ledger.ledger import Ledger
from sluice.state.model import Snapshot


def require_complete(
    ledger: Ledger,
    published: Snapshot,
    written: Batch | None,
    *,
    next_step: str,
) -> None:
    """Raise EngineError, with `next_step`, if a batch was begun or written but not published."""
    planned = ledger.plans.unpublished(published.ref)
    begun = [batch.number for batch in (planned, written) if batch is not None]
    last = max(begun, default=-1)
    if last > published.batch:
        raise EngineError(
            f"The last run of {published.pipeline} was interrupted: "
            f"batch {last} has begun but has not ended.",
            next_step=next_step,
        )
