"""The pipelines that read stores of another pipeline."""

from __future__ import annotations

from sluice.state.ledger.ledger import Ledger


def readers_of(ledger: Ledger, pipeline: str) -> list[str]:
    """Return the other pipelines whose newest batches read a pipeline's stores, sorted.

    Batches that read the stores under a former name of the pipeline count, too.
    """
    readers: set[str] = set()
    for name in (pipeline, *ledger.renames.former_names(pipeline)):
        readers.update(ref.pipeline for ref in ledger.plans.readers(name))
    return sorted(readers - {pipeline})
