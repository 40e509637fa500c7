"""Errors for queries that use a former name of a pipeline or a store; they give the new name."""

from __future__ import annotations

from collections.abc import Callable

from sluice.errors import NotFound
from sluice.state.ledger.renames import Renames


def renamed_pipeline(
    renames: Renames, name: str, may_read: Callable[[str], bool] = lambda _: True
) -> NotFound | None:
    """Return the error for a query that names a pipeline by its former name.

    Return None if the name is not a former name, or if the user may not read the pipeline.
    """
    renamed = renames.of(name)
    if renamed is None or renamed.phase == "begun" or not may_read(renamed.name):
        return None
    return NotFound(
        f"The pipeline {name!r} was renamed to {renamed.name!r}.",
        next_step=f"Ask for {renamed.name!r}.",
    )


def renamed_store(
    renames: Renames,
    name: str,
    pipeline: str | None,
    may_read: Callable[[str], bool] = lambda _: True,
) -> NotFound | None:
    """Return the error for a query by a former name of a store, or of the store's pipeline.

    Return None if the name is no former name, or if the user may not read the pipeline.
    """
    if pipeline is not None:
        moved = renamed_pipeline(renames, pipeline, may_read)
        if moved is not None:
            return moved
    places: list[str] = []
    for rename in renames.of_stores(name):
        if pipeline in (None, rename.pipeline) and may_read(rename.pipeline):
            places.append(f"{rename.name!r} of {rename.pipeline!r}")
    if not places:
        return None
    return NotFound(
        f"The store {name!r} was renamed: it is now {' or '.join(places)}.",
        next_step="Query the store by its new name.",
    )
